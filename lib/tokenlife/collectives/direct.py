"""Straight from owner to user: no rank forwards for another.

Nothing is easier to write, and for all-to-all nothing sends fewer bytes. For a root that speaks to
everybody it is the worst there is: n − 1 messages one after another through one port.
"""

import numpy as np

from tokenlife.collectives.compose import GATHERS, SCATTERS, TREES, registered
from tokenlife.collectives.registry import build
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule, ScheduleError
from tokenlife.collectives.terms import all_but_own, log2_up, others, whole_buffers

_MPI = "the basic algorithms of MPI libraries"
_THAKUR = "R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005"
_BARRIER = "D. Hensgen, R. Finkel, U. Manber, Int. J. Parallel Programming 17(1), 1988"

POWER_OF_TWO = {"supports": lambda ranks: ranks & (ranks - 1) == 0, "counts": "a power of two"}


@registered(TREES, "linear", whole_buffers(others), _MPI)
def linear_broadcast(ranks: int, root: int = 0) -> Schedule:
    """Build the linear broadcast: the root sends to one rank after another."""

    def give(step: int) -> Round:
        return Round.columns(root, (root + step + 1) % ranks, 0, reduce=False)

    return Schedule("broadcast", "linear", ranks, 1, LazyRounds(ranks - 1, give), root=root)


@registered(SCATTERS, "linear", all_but_own(others), _MPI)
def linear_scatter(ranks: int, root: int = 0) -> Schedule:
    """Build the linear scatter: the root serves one rank after another."""

    def give(step: int) -> Round:
        rank = (root + step + 1) % ranks
        return Round.columns(root, rank, rank, reduce=False)

    return Schedule("scatter", "linear", ranks, ranks, LazyRounds(ranks - 1, give), root=root)


@registered(GATHERS[:2], "linear", all_but_own(others), _MPI)
def linear_all_gather(ranks: int) -> Schedule:
    """Build the linear all-gather: in round t every rank sends its block t ranks further."""
    rank = np.arange(ranks)

    def shift(step: int) -> Round:
        return Round.columns(rank, (rank + step + 1) % ranks, rank, reduce=False)

    return Schedule("all_gather", "linear", ranks, ranks, LazyRounds(ranks - 1, shift))


def _meetings(name: str, ranks: int, peer_of) -> Schedule:
    """Return the all-to-all in which rank i sends to ``peer_of(i, t)`` in round t, from 1."""
    rank = np.arange(ranks)

    def meet(step: int) -> Round:
        peer = peer_of(rank, step + 1)
        return Round.columns(rank, peer, rank * ranks + peer, reduce=False)

    return Schedule("all_to_all", name, ranks, ranks, LazyRounds(ranks - 1, meet))


@registered("all_to_all", "linear", all_but_own(others), _MPI)
def linear_all_to_all(ranks: int) -> Schedule:
    """Build the linear all-to-all: in round t every rank sends to the one t ranks further."""
    return _meetings("linear", ranks, lambda rank, step: (rank + step) % ranks)


@registered("all_to_all", "pairwise", all_but_own(others), _THAKUR, **POWER_OF_TWO)
def pairwise_all_to_all(ranks: int) -> Schedule:
    """Build the pairwise all-to-all: in round t ranks i and i xor t swap blocks."""
    return _meetings("pairwise", ranks, lambda rank, step: rank ^ step)


def uneven_all_to_all(counts: np.ndarray, name: str = "linear", **options) -> Schedule:
    """Build an all-to-all in which each pair of ranks has its own size.

    Parameters
    ----------
    counts
        Items from rank i to rank j; shape (ranks, ranks).
    name, **options
        Any algorithm for all-to-all.

    Raises
    ------
    ScheduleError
        If the table is not square, or holds anything but whole numbers from zero.

    Examples
    --------
    >>> uneven_all_to_all([[0, 3], [1, 0]]).bytes_sent_per_rank(items=0, item_bytes=2).tolist()
    [6, 2]
    """
    table = np.asarray(counts)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ScheduleError(f"counts need shape (ranks, ranks), not {table.shape}")
    if not np.issubdtype(table.dtype, np.integer) or (table < 0).any():
        raise ScheduleError("counts are whole numbers of items, zero or more")
    return build("all_to_all", name, len(table), **options).renamed(counts=table)


@registered("barrier", "dissemination", whole_buffers(log2_up), _BARRIER)
def dissemination_barrier(ranks: int) -> Schedule:
    """Build the dissemination barrier: in round t every rank tells the one 2ᵗ further."""
    rank = np.arange(ranks)

    def tell(step: int) -> Round:
        return Round.columns(rank, (rank + 2**step) % ranks, 0, reduce=False)

    return Schedule("barrier", "dissemination", ranks, 1, LazyRounds(int(log2_up(ranks)), tell))


@registered("send", "direct", whole_buffers(lambda ranks: np.minimum(ranks - 1, 1)), _MPI)
def direct_send(ranks: int, root: int = 0) -> Schedule:
    """Build a send: one message from the root to the next rank."""
    one = Round.columns(root, (root + 1) % ranks, 0, reduce=False)
    return Schedule("send", "direct", ranks, 1, (one,)[: ranks - 1], root=root)
