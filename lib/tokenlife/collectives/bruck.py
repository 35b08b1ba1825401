"""Bruck's algorithms and PAT: ⌈log₂ n⌉ rounds for any number of ranks.

Bruck [1]_ passes what a rank holds to the rank 1, 2, 4, … away; the last round sends what is still
missing, so a power of two is not needed. For an all-to-all, a block that must go j ranks further
takes the hops that are ones in j written in binary: log n rounds, but each block crosses the
network about log₂(n)/2 times.

PAT, the parallel aggregated trees of NCCL [2]_, takes the far hops first, while there is little to
send, and the near ones last. It puts a limited number of blocks into one message: log n rounds for
short buffers, n − 1 for long ones.

References
----------
.. [1] J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby, "Efficient algorithms for all-to-all
   communications in multiport message-passing systems", IEEE TPDS 8(11), 1997.
.. [2] S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
   2025, arXiv:2506.20252.
"""

import numpy as np

from tokenlife.collectives.compose import GATHERS, registered, runs
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms, all_but_own, log2_up

_BRUCK = "J. Bruck et al., IEEE Trans. Parallel Distrib. Syst. 8(11), 1997"
_PAT = "S. Jeaugey, arXiv:2506.20252, 2025"


@registered(GATHERS, "bruck", all_but_own(log2_up), _BRUCK)
def bruck_all_gather(ranks: int) -> Schedule:
    """Build Bruck's all-gather: round t passes what a rank holds to the rank 2ᵗ before it."""
    rank = np.arange(ranks)

    def give(step: int) -> Round:
        count = np.full(ranks, min(1 << step, ranks - (1 << step)))
        return runs(rank, (rank - (1 << step)) % ranks, rank, count, ranks)

    return Schedule("all_gather", "bruck", ranks, ranks, LazyRounds(int(log2_up(ranks)), give))


def _all_to_all_terms(ranks, bytes_) -> Terms:
    moved = 0
    for hop in 1 << np.arange(np.max(log2_up(ranks))):
        # How many of the numbers below ``ranks`` have this bit set.
        moved = moved + ranks // (2 * hop) * hop + np.maximum(ranks % (2 * hop) - hop, 0)
    return Terms(log2_up(ranks), moved * bytes_ / ranks)


@registered("all_to_all", "bruck", _all_to_all_terms, _BRUCK)
def bruck_all_to_all(ranks: int) -> Schedule:
    """Build Bruck's all-to-all: blocks hop along the bits of their distance; more bytes."""
    source = np.arange(ranks)[:, None]

    def hop(step: int) -> Round:
        far = np.arange(ranks)[None]
        far = far[far >> step & 1 == 1]
        at = (source + far % (1 << step)) % ranks
        chunk = source * ranks + (source + far) % ranks
        columns = (at, (at + (1 << step)) % ranks, chunk)
        return Round.columns(*(column.ravel() for column in columns), reduce=False)

    return Schedule("all_to_all", "bruck", ranks, ranks, LazyRounds(int(log2_up(ranks)), hop))


def _pat_rounds(ranks, aggregate: int):
    rounds = 0 * ranks
    for hop in 1 << np.arange(np.max(log2_up(ranks))):
        blocks = ((ranks - 1) // hop + 1) // 2
        rounds = rounds + (blocks + aggregate - 1) // aggregate
    return rounds


@registered(GATHERS[:2], "pat", all_but_own(_pat_rounds), _PAT)
def pat_all_gather(ranks: int, aggregate: int = 1024) -> Schedule:
    """Build the PAT all-gather: far hops first with few blocks, near ones last.

    Parameters
    ----------
    ranks
        Size of the group.
    aggregate
        Blocks in one message, at most.
    """
    rank = np.arange(ranks)[:, None]
    plan = []
    for hop in 1 << np.arange(log2_up(ranks))[::-1]:
        # The receiver's new blocks lie an odd number of hops behind it.
        behind = np.arange(hop, ranks, 2 * hop)
        plan += [(hop, behind[at : at + aggregate]) for at in range(0, len(behind), aggregate)]

    def give(step: int) -> Round:
        hop, behind = plan[step]
        columns = np.broadcast_arrays((rank - hop) % ranks, rank, (rank - behind) % ranks)
        return Round.columns(*(column.ravel() for column in columns), reduce=False)

    return Schedule("all_gather", "pat", ranks, ranks, LazyRounds(len(plan), give))
