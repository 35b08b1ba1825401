"""Running a schedule on arrays: the result must be the definition of the collective.

Two runs. :func:`run` plays the schedule on real buffers, item by item. :func:`verify` plays it on
one random 64-bit word for each chunk that a rank contributes, adding modulo 2⁶⁴: a sum that counts
one rank twice, or never, comes out right by chance once in 2⁶⁴.
"""

import numpy as np

from tokenlife.collectives.definitions import holds
from tokenlife.collectives.schedule import Round, Schedule, ScheduleError


def run(schedule: Schedule, buffers: np.ndarray) -> np.ndarray:
    """Play a schedule.

    Parameters
    ----------
    schedule
        The algorithm; an all-to-all must be even, its items a multiple of the ranks.
    buffers
        What each rank holds before, each block in its place; shape (ranks, items).

    Returns
    -------
    ndarray
        What each rank holds after; the same shape. Where the definition asks for nothing, zeros.
        After an all-to-all, block j is the one from rank j.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_reduce
    >>> run(ring_all_reduce(2), np.array([[1, 2, 3], [10, 20, 30]])).tolist()
    [[11, 22, 33], [11, 22, 33]]
    """
    if buffers.shape[0] != schedule.ranks:
        raise ScheduleError(f"{buffers.shape[0]} buffers for a schedule of {schedule.ranks} ranks")
    if schedule.counts is not None:
        raise ScheduleError("an uneven all-to-all has no buffer of one size: use verify")
    items = buffers.shape[1]
    if schedule.kind == "all_to_all" and items % schedule.ranks:
        raise ScheduleError(
            f"{items} items are no even all-to-all over {schedule.ranks} ranks: use verify"
        )
    offsets = schedule.chunk_offsets(items)
    before, after = holds(schedule)
    sizes = np.diff(offsets)
    may, must = (np.repeat(mask, sizes, axis=1) for mask in (before, after))
    held = np.zeros((schedule.nodes, offsets[-1]), buffers.dtype)
    held[: schedule.ranks] = np.tile(buffers, offsets[-1] // items if items else 1) * may
    for sends in schedule.rounds:
        _play(sends, offsets, held)
    result = held[: schedule.ranks] * must
    if schedule.kind != "all_to_all":
        return result
    # Row by row the blocks that a rank must hold stand in order of their senders.
    received = [row[where] for row, where in zip(held, must, strict=False)]
    return np.array(received, buffers.dtype).reshape(buffers.shape)


def _play(sends: Round, offsets: np.ndarray, held: np.ndarray) -> None:
    """Apply one round in place; all sends of a round read what stood before it."""
    moved = [(send, slice(offsets[send.chunk], offsets[send.chunk + send.count])) for send in sends]
    copies = [held[send.src, where].copy() for send, where in moved]
    for (send, where), data in zip(moved, copies, strict=True):
        if send.reduce:
            held[send.dst, where] += data
        else:
            held[send.dst, where] = data


def verify(schedule: Schedule, *, once: bool = False) -> None:
    """Check a schedule against the definition of its collective.

    Parameters
    ----------
    schedule
        Any.
    once
        Whether also to ask that no node is ever sent a copy of a chunk it has been given already.

    Raises
    ------
    ScheduleError
        If a node sends what it does not hold, or sends more messages in a round than it has ports,
        or any rank ends with anything but what the definition says.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_reduce
    >>> verify(ring_all_reduce(5), once=True)
    """
    name = f"{schedule.algorithm} {schedule.kind} over {schedule.ranks} ranks"
    before, after = holds(schedule)
    shape = (schedule.nodes, schedule.chunks)
    own = np.zeros(shape, np.uint64)
    rng = np.random.default_rng(0)
    own[: schedule.ranks] = before * rng.integers(0, 2**64, before.shape, np.uint64)
    held, valid = own.copy(), np.zeros(shape, bool)
    valid[: schedule.ranks] = before
    given = np.zeros(shape, np.int64)
    heard = np.eye(schedule.nodes, dtype=bool)
    for number, sends in enumerate(schedule.rounds):
        src, dst, chunk, reduce = sends.single_chunks()
        _check_round(schedule, sends, src, dst, chunk, valid, f"{name}, round {number}")
        data = held[src, chunk]
        # A switch that is sent its first contribution starts from nothing.
        held[dst[~reduce], chunk[~reduce]] = 0
        np.add.at(held, (dst, chunk), data)
        valid[dst, chunk] = True
        np.add.at(given, (dst[~reduce], chunk[~reduce]), 1)
        news = heard[src]
        np.logical_or.at(heard, dst, news)
    if schedule.kind == "barrier":
        deaf = (~heard[: schedule.ranks, : schedule.ranks]).any(axis=1).nonzero()[0]
        if deaf.size:
            raise ScheduleError(f"{name}: rank {deaf[0]} has not heard of every rank")
        return
    total = own.sum(axis=0, dtype=np.uint64)
    wrong = ((held[: schedule.ranks] != total) & after).any(axis=1).nonzero()[0]
    if wrong.size:
        raise ScheduleError(f"{name}: rank {wrong[0]} does not hold the {_what(schedule)}")
    if once and (given > 1).any():
        rank, chunk = np.argwhere(given > 1)[0]
        raise ScheduleError(f"{name}: node {rank} is given chunk {chunk} {given.max()} times")


def _what(schedule: Schedule) -> str:
    return "sum" if "reduce" in schedule.kind else "block"


def _check_round(schedule: Schedule, sends: Round, src, dst, chunk, valid, where: str) -> None:
    empty = np.flatnonzero(~valid[src, chunk])
    if empty.size:
        raise ScheduleError(
            f"{where}: node {src[empty[0]]} sends chunk {chunk[empty[0]]}, which it does not hold"
        )
    pairs = np.unique(sends.src * schedule.nodes + sends.dst)
    for verb, ends in (("sends", pairs // schedule.nodes), ("receives", pairs % schedule.nodes)):
        ends = ends[ends < schedule.ranks]
        if ends.size and np.bincount(ends).max() > schedule.ports:
            rank = int(np.bincount(ends).argmax())
            raise ScheduleError(
                f"{where}: rank {rank} {verb} {np.bincount(ends).max()} messages "
                f"at {schedule.ports} port(s)"
            )
