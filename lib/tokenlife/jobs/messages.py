"""Every message of a job, alike ones counted together: its size, the links it crosses, how many.

A demand (:mod:`tokenlife.jobs.traffic`) is performed by each of its groups with one algorithm. Of
one group the messages are read off the schedule, or counted in closed form where it is a ring: then
16,384 ranks cost no more than 16. What is the same in all groups is counted once; where each
message lands on the cluster depends on the ranks alone.

Inside the innermost of several levels (a node) a message travels on links that are no network.
Elsewhere it crosses as many links as the level says. A switch that adds or copies stands half way.

Left out: which of several equal paths is taken, and switches that help only a part of a group.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tokenlife.collectives import ScheduleError, algorithm, build
from tokenlife.jobs.cluster import Level
from tokenlife.jobs.traffic import ALGORITHMS, Row
from tokenlife.parallel import Plan

LARGEST_LAID_OUT = 2**23  # rounds × ranks of a schedule that is read message by message
BLOCK = 2**20  # pairs of ranks that are looked at together

# How many times around a ring the buffer goes: adding, then copying.
_RING = {"all_reduce": (1, 1), "reduce_scatter": (1, 0), "all_gather": (0, 1)}


class Messages(NamedTuple):
    """Messages of one step that are alike.

    Attributes
    ----------
    axis, kind, phase
        As in :class:`~tokenlife.parallel.ops.CommOp`.
    level
        Of the cluster: the innermost that holds both ends.
    links
        That each crosses; 0 inside a node, where there is no network.
    by_switch
        Whether a switch sends them, not a rank.
    bytes_, count
        Payload of one, and how many.
    """

    axis: str
    kind: str
    phase: str
    level: str
    links: int
    by_switch: bool
    bytes_: int
    count: int

    @property
    def total(self) -> int:
        """Payload of all."""
        return self.bytes_ * self.count


@lru_cache(maxsize=1024)
def census(kind: str, name: str, ranks: int, items: int, item_bytes: int) -> tuple:
    """Count the messages of one run of a collective by sender, receiver and size.

    Parameters
    ----------
    kind, name, ranks
        The collective, its algorithm, and the size of the group.
    items, item_bytes
        The whole buffer of one rank.

    Returns
    -------
    src, dst, size, count
        Places in the group, from ``ranks`` on switches; shape (pairs and sizes,) each.

    Raises
    ------
    ScheduleError
        If the algorithm does not work for so many ranks, or has too many messages to be read.

    Examples
    --------
    >>> [column.tolist() for column in census("all_reduce", "ring", 2, 10, 4)]
    [[0, 1], [1, 0], [20, 20], [2, 2]]
    """
    if name == "ring" and kind in _RING:
        src, dst, bytes_, count = _around(ranks, items, item_bytes, *_RING[kind])
    else:
        schedule = build(kind, name, ranks)
        if len(schedule.rounds) * ranks > LARGEST_LAID_OUT:
            raise ScheduleError(
                f"{name} {kind} over {ranks} ranks has too many messages to be counted one by one; "
                "ring is counted for any number"
            )
        offsets = schedule.chunk_offsets(items) * item_bytes
        found = [schedule.messages(i, offsets)[:3] for i in range(len(schedule.rounds))]
        table = np.concatenate([np.empty((0, 3), np.int64), *(np.stack(f, 1) for f in found)])
        table, count = np.unique(table, axis=0, return_counts=True)
        src, dst, bytes_ = table.T
    some = (bytes_ > 0) & (count > 0)
    return src[some], dst[some], bytes_[some], count[some]


def _around(ranks: int, items: int, item_bytes: int, adds: int, copies: int) -> tuple:
    """Count a ring in closed form: each edge carries every block but one, once or twice."""
    size, long = divmod(items, ranks)
    src = np.arange(ranks)
    kept_back = (src, adds), ((src + 1) % ranks, copies)  # the block that the edge does not carry
    longer = sum(times * (long - (block < long)) for block, times in kept_back)
    shorter = sum(times * (ranks - long - (block >= long)) for block, times in kept_back)
    sizes = np.repeat([size + 1, size], ranks) * item_bytes
    return np.tile(src, 2), np.tile((src + 1) % ranks, 2), sizes, np.concatenate([longer, shorter])


def payload(kind: str, name: str, ranks: int, items: int, item_bytes: int) -> tuple[int, int]:
    """Return what ranks, and what switches send in one run, without looking at any message.

    Examples
    --------
    >>> payload("all_reduce", "ring", 4, 1000, 4), payload("all_to_all", "linear", 4, 1000, 4)
    ((24000, 0), (12000, 0))
    """
    whole = items * item_bytes
    if kind == "send":
        return whole, 0
    if name == "ring" and kind in _RING:
        return sum(_RING[kind]) * (ranks - 1) * whole, 0
    sent = build(kind, name, ranks).bytes_sent_per_node(items, item_bytes)
    return int(sent[:ranks].sum()), int(sent[ranks:].sum())


def least(kind: str, ranks: int, items: int, item_bytes: int) -> int:
    """Return what the ranks of a group send at least if no switch adds or copies for them.

    Of an all-reduce 2(n − 1) buffers, of its halves and of an all-to-all n − 1.
    """
    times = 1 if kind == "send" else (1 + (kind == "all_reduce")) * (ranks - 1)
    return times * items * item_bytes


def of_rows(
    rows: tuple[Row, ...],
    plan: Plan,
    levels: tuple[Level, ...],
    algorithms: Mapping[str, str] = ALGORITHMS,
) -> tuple[Messages, ...]:
    """Count all messages of a step.

    Parameters
    ----------
    rows
        What the stages of the job ask for.
    plan
        The layout; rank r is GPU r.
    levels
        Of the cluster, from the inside out.
    algorithms
        For each kind of collective.

    Examples
    --------
    >>> from tokenlife.jobs.cluster import Cluster
    >>> from tokenlife.jobs.traffic import rows
    >>> from tokenlife.transformer import ModelConfig
    >>> plan, cluster = Plan(dp=16, sequence=64), Cluster.load("dgx-h100")
    >>> found = of_rows(rows(ModelConfig.load("gpt2"), plan), plan, cluster.levels)
    >>> [(m.level, m.links, m.count) for m in found]
    [('NVLink domain', 0, 420), ('spine', 4, 60)]
    """
    table: Counter[tuple] = Counter()
    groups: dict[str, np.ndarray] = {}
    for d, ranks, stages, *_ in rows:
        if d.over not in groups:
            groups[d.over] = np.array(plan.groups(d.over))
        here = groups[d.over]
        here = here[np.isin(plan.coordinates(here[:, 0])["pp"], stages)]
        name = algorithms.get(d.kind, "")
        for place, switch, bytes_, count in _placed(d, name, ranks, here, levels):
            key = (d.axis, d.kind, d.phase, place, switch, bytes_)
            table[key] += count * d.count
    node = len(levels) > 1
    return tuple(
        Messages(axis, kind, phase, levels[place].name, _links(levels, place, node, switch),
                 switch > 1, bytes_, count)
        for (axis, kind, phase, place, switch, bytes_), count in table.items()
    )  # fmt: skip


_NO, _UP, _DOWN, _ACROSS = range(4)  # whether a switch receives, sends, or both


def _links(levels: tuple[Level, ...], place: int, node: bool, switch: int) -> int:
    if node and place == 0:
        return 0
    links = levels[place].links
    return {_NO: links, _UP: links // 2, _DOWN: links // 2, _ACROSS: 1}[switch]


def _placed(d, name: str, ranks: int, groups: np.ndarray, levels: tuple[Level, ...]) -> Iterator:
    """Yield (place of the level, what a switch does, bytes, how many) over all groups."""
    if d.kind == "send":
        src, dst, bytes_, count = (np.array([x]) for x in (0, 1, d.bytes_, 1))
    else:
        src, dst, bytes_, count = census(d.kind, name, ranks, d.items, d.item_bytes)
    switch = (dst >= ranks) + 2 * (src >= ranks)
    sizes, size = np.unique(bytes_, return_inverse=True)
    kinds = 4 * len(sizes)
    total = np.zeros(len(levels) * kinds, np.int64)
    step = max(1, BLOCK // len(src)) if len(src) else len(groups)
    for first in range(0, len(groups), step):
        some = groups[first : first + step]
        whole = _apart(some.min(1), some.max(1), levels)[:, None]
        ends = (some[:, np.where(end < ranks, end, 0)] for end in (src, dst))
        place = np.where(switch > 0, whole, _apart(*ends, levels))
        cell = (place * kinds + switch * len(sizes) + size).ravel()
        np.add.at(total, cell, np.broadcast_to(count, place.shape).ravel())
    for cell in np.flatnonzero(total).tolist():
        place, rest = divmod(cell, kinds)
        kind, which = divmod(rest, len(sizes))
        yield place, kind, int(sizes[which]), int(total[cell])


def _apart(a: np.ndarray, b: np.ndarray, levels: tuple[Level, ...]) -> np.ndarray:
    """Return the innermost level that holds both GPUs, by its place."""
    return sum((a // level.gpus != b // level.gpus).astype(np.int64) for level in levels[:-1]) + (
        0 * a
    )


def check_algorithms(algorithms: Mapping[str, str]) -> dict[str, str]:
    """Return the algorithm of each kind: those named, the usual ones for the rest.

    Raises
    ------
    ScheduleError
        If one is not known.
    """
    for kind, name in algorithms.items():
        algorithm(kind, name)
    return {**ALGORITHMS, **algorithms}
