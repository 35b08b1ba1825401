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

from tokenlife.collectives.compose import reverse, then
from tokenlife.collectives.direct import power_of_two
from tokenlife.collectives.registry import Algorithm, register
from tokenlife.collectives.ring import ring_all_gather, ring_reduce_scatter
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms, log2_down, log2_up
from tokenlife.collectives.tree import binomial_scatter

_THAKUR = "R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005"
_GEIJN = "M. Barnett, L. Shuler, R. van de Geijn, S. Gupta, D. Payne, J. Watts, SHPCC 1994"


def doubling_all_gather(ranks: int) -> Schedule:
    """Build the all-gather by recursive doubling, for a power of two."""
    rank = np.arange(ranks)

    def swap(step: int) -> Round:
        reach = 1 << step
        return Round.columns(rank, rank ^ reach, rank & -reach, reduce=False, count=reach)

    rounds = LazyRounds(int(log2_down(ranks)), swap)
    return Schedule("all_gather", "recursive_doubling", ranks, ranks, rounds)


def halving_reduce_scatter(ranks: int) -> Schedule:
    """Build the reduce-scatter by recursive halving, for a power of two."""
    gather = doubling_all_gather(ranks).renamed(algorithm="recursive_halving")
    return reverse(gather, "reduce_scatter")


def doubling_all_reduce(ranks: int) -> Schedule:
    """Build the all-reduce that exchanges whole buffers at distance 1, 2, 4, …; any ranks."""

    def swap(step: int) -> Round:
        rank = np.arange(1 << int(log2_down(ranks)))
        return Round.columns(rank, rank ^ (1 << step), 0, reduce=True)

    rounds = LazyRounds(int(log2_down(ranks)), swap)
    return fold(Schedule("all_reduce", "recursive_doubling", ranks, 1, rounds))


def halving_doubling_all_reduce(ranks: int) -> Schedule:
    """Build Rabenseifner's all-reduce: recursive halving, then recursive doubling; any ranks."""
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


def scatter_all_gather_broadcast(ranks: int, root: int = 0) -> Schedule:
    """Build van de Geijn's broadcast: a binomial scatter, then a ring all-gather."""
    schedule = then(binomial_scatter(ranks, root), ring_all_gather(ranks), "broadcast")
    return schedule.renamed(algorithm="scatter_all_gather")


def reduce_scatter_gather_reduce(ranks: int, root: int = 0) -> Schedule:
    """Build the reduce that is a ring reduce-scatter, then a binomial gather."""
    gather = reverse(binomial_scatter(ranks, root), "gather")
    schedule = then(ring_reduce_scatter(ranks), gather, "reduce", root=root)
    return schedule.renamed(algorithm="reduce_scatter_gather")


def _gather_terms(ranks, bytes_, adds: bool = False) -> Terms:
    sent = (ranks - 1) / ranks * bytes_
    return Terms(log2_down(ranks), sent, sent * adds)


def _fold_terms(ranks, rounds, sent, reduced) -> Terms:
    folds = (1 << log2_down(ranks)) != ranks
    return Terms(rounds + 2 * folds, sent[0] + 2 * folds * sent[1], reduced + folds * sent[1])


def _doubling_terms(ranks, bytes_) -> Terms:
    levels = log2_down(ranks)
    return _fold_terms(ranks, levels, (levels * bytes_, bytes_), levels * bytes_)


def _halving_terms(ranks, bytes_) -> Terms:
    levels = log2_down(ranks)
    half = (1 - 0.5**levels) * bytes_
    return _fold_terms(ranks, 2 * levels, (2 * half, bytes_), half)


def _two_step_terms(ranks, bytes_, adds: bool) -> Terms:
    sent = (ranks - 1) / ranks * bytes_
    return Terms(log2_up(ranks) + ranks - 1, 2 * sent, sent * adds)


_POWERS = (_THAKUR, power_of_two, "a power of two")

register(
    Algorithm(
        "all_gather",
        "recursive_doubling",
        doubling_all_gather,
        _gather_terms,
        "partners at doubling distance swap all they hold",
        *_POWERS,
    ),
    Algorithm(
        "reduce_scatter",
        "recursive_halving",
        halving_reduce_scatter,
        lambda ranks, bytes_: _gather_terms(ranks, bytes_, True),
        "partners at halving distance swap the halves that each will not keep",
        *_POWERS,
    ),
    Algorithm(
        "all_reduce",
        "recursive_doubling",
        doubling_all_reduce,
        _doubling_terms,
        "whole buffers swapped at doubling distance; best for short ones",
        _THAKUR,
    ),
    Algorithm(
        "all_reduce",
        "halving_doubling",
        halving_doubling_all_reduce,
        _halving_terms,
        "recursive halving, then doubling; least bytes in 2·log n rounds at powers of two",
        _THAKUR,
    ),
    Algorithm(
        "broadcast",
        "scatter_all_gather",
        scatter_all_gather_broadcast,
        lambda ranks, bytes_: _two_step_terms(ranks, bytes_, False),
        "scatter along a tree, all-gather around a ring; for long buffers",
        _GEIJN,
        once=False,
    ),
    Algorithm(
        "reduce",
        "reduce_scatter_gather",
        reduce_scatter_gather_reduce,
        lambda ranks, bytes_: _two_step_terms(ranks, bytes_, True),
        "reduce-scatter around a ring, gather along a tree; for long buffers",
        _THAKUR,
        once=False,
    ),
)
