"""Recursive doubling and halving: partners at distance 1, 2, 4, …, and log₂ n rounds.

An all-gather doubles what a rank holds in every round; backwards it is the reduce-scatter that
halves it. Together they are Rabenseifner's all-reduce [1]_: as few bytes as the ring in 2·log₂ n
rounds. Where buffers are short, exchanging whole buffers takes only log₂ n.

They want a power of two. Otherwise the r ranks above one *fold*: r pairs add up into one of the two
first, and that one hands the sum back at the end, at the price of two more whole buffers.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
   MPICH", Int. J. High Performance Computing Applications 19(1), 2005.
"""

import numpy as np

from tokenlife.collectives.compose import registered, reverse, then
from tokenlife.collectives.direct import POWER_OF_TWO
from tokenlife.collectives.ring import ring_all_gather, ring_reduce_scatter
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms, all_but_own, log2_down, log2_up
from tokenlife.collectives.tree import binomial_scatter

_THAKUR = "R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005"
_GEIJN = "M. Barnett, L. Shuler, R. van de Geijn, S. Gupta, D. Payne, J. Watts, SHPCC 1994"


@registered("all_gather", "recursive_doubling", all_but_own(log2_down), _THAKUR, **POWER_OF_TWO)
def doubling_all_gather(ranks: int) -> Schedule:
    """Build recursive doubling: partners at doubling distance swap all they hold."""
    rank = np.arange(ranks)

    def swap(step: int) -> Round:
        reach = 1 << step
        return Round.columns(rank, rank ^ reach, rank & -reach, reduce=False, count=reach)

    rounds = LazyRounds(int(log2_down(ranks)), swap)
    return Schedule("all_gather", "recursive_doubling", ranks, ranks, rounds)


def _halving_terms(ranks, bytes_) -> Terms:
    sent = (ranks - 1) / ranks * bytes_
    return Terms(log2_down(ranks), sent, sent)


@registered("reduce_scatter", "recursive_halving", _halving_terms, _THAKUR, **POWER_OF_TWO)
def halving_reduce_scatter(ranks: int) -> Schedule:
    """Build recursive halving: partners swap the halves that each will not keep."""
    gather = doubling_all_gather(ranks).renamed(algorithm="recursive_halving")
    return reverse(gather, "reduce_scatter")


def _folded(ranks, bytes_, terms: Terms) -> Terms:
    """Add the two rounds of whole buffers where the ranks are no power of two."""
    folds = (1 << log2_down(ranks)) != ranks
    return terms + Terms(2 * folds, 2 * folds * bytes_, folds * bytes_)


def _doubling_terms(ranks, bytes_) -> Terms:
    levels = log2_down(ranks)
    return _folded(ranks, bytes_, Terms(levels, levels * bytes_, levels * bytes_))


@registered("all_reduce", "recursive_doubling", _doubling_terms, _THAKUR)
def doubling_all_reduce(ranks: int) -> Schedule:
    """Build recursive doubling: whole buffers at doubling distance; best for short ones."""

    def swap(step: int) -> Round:
        rank = np.arange(1 << int(log2_down(ranks)))
        return Round.columns(rank, rank ^ (1 << step), 0, reduce=True)

    rounds = LazyRounds(int(log2_down(ranks)), swap)
    return fold(Schedule("all_reduce", "recursive_doubling", ranks, 1, rounds))


def _halving_doubling_terms(ranks, bytes_) -> Terms:
    half = (1 - 0.5 ** log2_down(ranks)) * bytes_
    return _folded(ranks, bytes_, Terms(2 * log2_down(ranks), 2 * half, half))


@registered("all_reduce", "halving_doubling", _halving_doubling_terms, _THAKUR)
def halving_doubling_all_reduce(ranks: int) -> Schedule:
    """Build Rabenseifner's all-reduce: recursive halving, then recursive doubling."""
    core = 1 << int(log2_down(ranks))
    inner = then(halving_reduce_scatter(core), doubling_all_gather(core), "all_reduce")
    return fold(inner.renamed(algorithm="halving_doubling", ranks=ranks))


def fold(schedule: Schedule) -> Schedule:
    """Spread an all-reduce over the first power of two of ranks to all of them."""
    ranks = schedule.ranks
    core = 1 << int(log2_down(ranks))
    idle = np.arange(ranks - core) * 2
    if not len(idle):
        return schedule
    acting = np.concatenate([idle + 1, np.arange(2 * len(idle), ranks)])

    def renamed(index: int) -> Round:
        sends = schedule.rounds[index]
        src, dst = acting[sends.src], acting[sends.dst]
        return Round.columns(src, dst, sends.chunk, reduce=sends.reduce, count=sends.count)

    def hand(src, dst, reduce: bool) -> LazyRounds:
        whole = Round.columns(src, dst, 0, reduce=reduce, count=schedule.chunks)
        return LazyRounds(1, lambda index: whole)

    inner = LazyRounds(len(schedule.rounds), renamed)
    rounds = hand(idle, idle + 1, True) + inner + hand(idle + 1, idle, False)
    return schedule.renamed(rounds=rounds)


def _two_step_terms(ranks, bytes_) -> Terms:
    return Terms(log2_up(ranks) + ranks - 1, 2 * (ranks - 1) / ranks * bytes_)


@registered("broadcast", "scatter_all_gather", _two_step_terms, _GEIJN, once=False)
def scatter_all_gather_broadcast(ranks: int, root: int = 0) -> Schedule:
    """Build van de Geijn's broadcast: a binomial scatter, a ring all-gather; for long buffers."""
    schedule = then(binomial_scatter(ranks, root), ring_all_gather(ranks), "broadcast")
    return schedule.renamed(algorithm="scatter_all_gather")


def _two_step_adds(ranks, bytes_) -> Terms:
    return _two_step_terms(ranks, bytes_) + Terms(0, 0, (ranks - 1) / ranks * bytes_)


@registered("reduce", "reduce_scatter_gather", _two_step_adds, _THAKUR)
def reduce_scatter_gather_reduce(ranks: int, root: int = 0) -> Schedule:
    """Build the reduce of two steps: a ring reduce-scatter, a binomial gather; for long buffers."""
    gather = reverse(binomial_scatter(ranks, root), "gather")
    schedule = then(ring_reduce_scatter(ranks), gather, "reduce", root=root)
    return schedule.renamed(algorithm="reduce_scatter_gather")
