"""Straight from owner to user: no rank forwards for another.

Nothing is easier to write, and for all-to-all nothing sends fewer bytes. For a root that speaks to
everybody it is the worst there is: n − 1 messages one after another through one port.
"""

import numpy as np

from tokenlife.collectives.compose import GATHERS, TREES, family, reverse
from tokenlife.collectives.registry import Algorithm, build, register
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule, ScheduleError
from tokenlife.collectives.terms import Terms, log2_up

_MPI = "the basic algorithms of MPI libraries"
_THAKUR = "R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005"
_LINEAR = "round t goes t ranks further; every block crosses the network once"


def power_of_two(ranks: int, **options) -> bool:
    """Return whether a number of ranks is a power of two."""
    return ranks & (ranks - 1) == 0


def linear_broadcast(ranks: int, root: int = 0) -> Schedule:
    """Build the broadcast in which the root sends to one rank after another."""

    def give(step: int) -> Round:
        return Round.columns(root, (root + step + 1) % ranks, 0, reduce=False)

    return Schedule("broadcast", "linear", ranks, 1, LazyRounds(ranks - 1, give), root=root)


def linear_scatter(ranks: int, root: int = 0) -> Schedule:
    """Build the scatter in which the root sends to one rank after another."""

    def give(step: int) -> Round:
        rank = (root + step + 1) % ranks
        return Round.columns(root, rank, rank, reduce=False)

    return Schedule("scatter", "linear", ranks, ranks, LazyRounds(ranks - 1, give), root=root)


def linear_all_gather(ranks: int) -> Schedule:
    """Build the all-gather in which round t sends every block t ranks further."""
    rank = np.arange(ranks)

    def shift(step: int) -> Round:
        return Round.columns(rank, (rank + step + 1) % ranks, rank, reduce=False)

    return Schedule("all_gather", "linear", ranks, ranks, LazyRounds(ranks - 1, shift))


def linear_all_to_all(ranks: int) -> Schedule:
    """Build the all-to-all in which rank i sends to rank i + t in round t."""
    rank = np.arange(ranks)

    def shift(step: int) -> Round:
        peer = (rank + step + 1) % ranks
        return Round.columns(rank, peer, rank * ranks + peer, reduce=False)

    return Schedule("all_to_all", "linear", ranks, ranks, LazyRounds(ranks - 1, shift))


def pairwise_all_to_all(ranks: int) -> Schedule:
    """Build the all-to-all in which ranks i and i xor t swap blocks in round t."""
    rank = np.arange(ranks)

    def swap(step: int) -> Round:
        peer = rank ^ (step + 1)
        return Round.columns(rank, peer, rank * ranks + peer, reduce=False)

    return Schedule("all_to_all", "pairwise", ranks, ranks, LazyRounds(ranks - 1, swap))


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


def dissemination_barrier(ranks: int) -> Schedule:
    """Build the barrier in which rank i tells rank i + 2ᵗ in round t."""
    rank = np.arange(ranks)

    def tell(step: int) -> Round:
        return Round.columns(rank, (rank + 2**step) % ranks, 0, reduce=False)

    return Schedule("barrier", "dissemination", ranks, 1, LazyRounds(int(log2_up(ranks)), tell))


def direct_send(ranks: int, root: int = 0) -> Schedule:
    """Build one message from the root to the next rank."""
    one = Round.columns(root, (root + 1) % ranks, 0, reduce=False)
    return Schedule("send", "direct", ranks, 1, (one,)[: ranks - 1], root=root)


def _whole(ranks, bytes_) -> Terms:
    return Terms(ranks - 1, (ranks - 1) * bytes_)


def _blocks(ranks, bytes_) -> Terms:
    return Terms(ranks - 1, (ranks - 1) / ranks * bytes_)


family(TREES, "linear", linear_broadcast, _whole, "the root talks to each rank in turn", _MPI)
family(GATHERS[:2], "linear", linear_all_gather, _blocks, _LINEAR, _MPI)
register(
    Algorithm("scatter", "linear", linear_scatter, _blocks, "the root gives to each in turn", _MPI),
    Algorithm(
        "gather",
        "linear",
        lambda ranks, root=0: reverse(linear_scatter(ranks, root), "gather"),
        _blocks,
        "the root takes from each in turn",
        _MPI,
    ),
    Algorithm("all_to_all", "linear", linear_all_to_all, _blocks, _LINEAR, _MPI),
    Algorithm(
        "all_to_all",
        "pairwise",
        pairwise_all_to_all,
        _blocks,
        "in each round all ranks pair off and swap; every block crosses the network once",
        _THAKUR,
        power_of_two,
        "a power of two",
    ),
    Algorithm(
        "barrier",
        "dissemination",
        dissemination_barrier,
        lambda ranks, bytes_: Terms(log2_up(ranks), log2_up(ranks) * bytes_),
        "in each round twice as many have been heard of",
        "D. Hensgen, R. Finkel, U. Manber, Int. J. Parallel Programming 17(1), 1988",
    ),
    Algorithm(
        "send",
        "direct",
        direct_send,
        lambda ranks, bytes_: Terms(np.minimum(ranks - 1, 1), np.minimum(ranks - 1, 1) * bytes_),
        "one message",
        _MPI,
    ),
)
