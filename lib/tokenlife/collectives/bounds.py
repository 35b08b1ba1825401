"""What no algorithm can better, and the bandwidths that are reckoned from it.

Each bound is three numbers, like an algorithm's closed form: messages one after another, bytes
through the busiest rank, bytes that it must add [1]_. They hold for ranks of one port in a network
that only carries. A switch that adds (NVLS, SHARP) is not bound by them.

``busbw`` is the rate at which the busiest rank would have to send, did it move no more than the
bound. It is what nccl-tests prints, so that rates can be compared between rank counts. It is not
what crosses a link: a tree's inner ranks send more, and ranks under an adding switch send less.

References
----------
.. [1] E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory,
   practice, and experience", Concurrency and Computation 19(13), 2007.
"""

import numpy as np
import pandas as pd

from tokenlife.collectives.definitions import definition
from tokenlife.collectives.schedule import Schedule, ScheduleError
from tokenlife.collectives.terms import Terms, log2_up

# Of each collective: (sent, reduced) in units of (n − 1)/n of the buffer; None is the whole buffer.
_SHARES = {
    "broadcast": (None, 0),
    "scatter": (1, 0),
    "gather": (1, 0),
    "all_gather": (1, 0),
    "reduce": (None, 1),
    "reduce_scatter": (1, 1),
    "all_reduce": (2, 1),
    "all_to_all": (1, 0),
    "barrier": (0, 0),
    "send": (None, 0),
}


def busbw_factor(kind: str, ranks):
    """Return the bytes that the busiest rank must send or receive, over the size of the buffer.

    Parameters
    ----------
    kind
        The collective.
    ranks
        Size of the group; takes arrays. One rank moves nothing.

    Examples
    --------
    >>> busbw_factor("all_reduce", 8), busbw_factor("broadcast", 8)
    (1.75, 1.0)
    """
    definition(kind)
    share = _SHARES[kind][0]
    return (ranks > 1) * 1.0 if share is None else share * (ranks - 1) / ranks


def must_move(kind: str, ranks: int) -> float:
    """Derive :func:`busbw_factor` from the definition: count who lacks what.

    A rank must receive once every block that it lacks, or holds only its own part of, and send once
    every block that others need of it. And the parts of one block need a send for each holder but
    one to come together, and a send for each further rank to spread: shared by all ranks, some rank
    sends at least the mean.

    Examples
    --------
    >>> must_move("all_reduce", 8), must_move("scatter", 4)
    (1.75, 0.75)
    """
    what = definition(kind)
    before, after = what.before(ranks, 0), what.after(ranks, 0)
    parts, goals = before.sum(axis=0), after.sum(axis=0)
    receives = (after & ((parts > 1) | ~before)).sum(axis=1)
    # A block with one holder stays there; a part of a sum is of use wherever else the sum must be.
    sends = (before & (goals - after > 0)).sum(axis=1)
    spread = np.where(parts > 1, goals - 1, goals - (before & after).sum(axis=0))
    total = (parts - 1 + spread).sum()
    moved = max(receives.max(), sends.max(), total / ranks) if ranks > 1 else 0
    return float(moved / what.blocks(ranks)) if kind != "barrier" else 0.0


def lower_bound(kind: str, ranks, bytes_) -> Terms:
    """Return the least rounds, bytes and added bytes of a collective; takes arrays.

    Examples
    --------
    >>> bound = lower_bound("all_reduce", 8, 1024)
    >>> [float(x) for x in (bound.rounds, bound.sent_bytes, bound.reduced_bytes)]
    [3.0, 1792.0, 896.0]
    """
    ranks = np.asarray(ranks)
    if np.any(ranks < 1) or np.any(np.asarray(bytes_) < 0):
        raise ScheduleError("a bound needs at least one rank, and no size below zero")
    rounds = np.minimum(ranks - 1, 1) if kind == "send" else log2_up(ranks)
    sent = busbw_factor(kind, ranks) * bytes_
    return Terms(rounds, sent, _SHARES[kind][1] * (ranks - 1) / ranks * bytes_)


def algbw_Bps(bytes_, time_s):
    """Return the size of the buffer over the time, in bytes per second; takes arrays."""
    return np.divide(bytes_, time_s)


def busbw_Bps(kind: str, ranks, bytes_, time_s):
    """Return nccl-tests' bus bandwidth in bytes per second; takes arrays.

    Examples
    --------
    >>> float(busbw_Bps("all_reduce", 4, 1e9, 0.01) / 1e9)
    150.0
    """
    return busbw_factor(kind, ranks) * algbw_Bps(bytes_, time_s)


def true_bytes(schedule: Schedule, items: int, item_bytes: int) -> pd.DataFrame:
    """Count what each wire carries, beside what bus bandwidth takes for granted.

    Returns
    -------
    DataFrame
        ``src``, ``dst`` (from ``schedule.ranks`` on, switches) and ``bytes``, one row for each pair
        that speaks; in ``attrs``: ``implied``, the bytes that busbw counts for the busiest rank.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_gather
    >>> wires = true_bytes(ring_all_gather(3), items=6, item_bytes=4)
    >>> wires.bytes.tolist(), wires.attrs
    ([16, 16, 16], {'implied': 16.0})
    """
    offsets = schedule.chunk_offsets(items) * item_bytes
    rounds = [schedule.messages(index, offsets)[:3] for index in range(len(schedule.rounds))]
    columns = [np.concatenate(column) for column in zip(*rounds, strict=True)] or [[], [], []]
    table = pd.DataFrame(dict(zip(("src", "dst", "bytes"), columns, strict=True)))
    wires = table.groupby(["src", "dst"], as_index=False).sum()
    wires.attrs["implied"] = busbw_factor(schedule.kind, schedule.ranks) * items * item_bytes
    return wires
