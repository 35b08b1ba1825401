"""Rings along the dimensions of a torus, and Swing.

In a torus rank r has coordinates, and links only to its neighbours in each dimension. An all-gather
runs a ring along one dimension after another, each carrying all that the ones before collected:
as few bytes as one ring over all ranks, and Σ(dᵢ − 1) rounds instead of Πdᵢ − 1.

Swing [1]_ needs log₂ n rounds: partners at distance 1, 1, 3, 5, 11, … in turn to both sides, nearer
than the 1, 2, 4, 8, 16, … of recursive doubling. A schedule says only who talks to whom: how the
messages load the links on their way is for the network to say, and there Swing gains.

References
----------
.. [1] D. De Sensi, T. Bonato, D. Saam, T. Hoefler, "Swing: short-cutting rings for higher bandwidth
   allreduce", NSDI 2024.
"""

from functools import cache
from math import prod

import numpy as np

from tokenlife.collectives.compose import GATHERS, registered
from tokenlife.collectives.direct import POWER_OF_TWO
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import all_but_own, log2_down

_SWING = "D. De Sensi, T. Bonato, D. Saam, T. Hoefler, NSDI 2024"
_TORUS = "P. Sack, W. Gropp, ACM Trans. Parallel Computing 1(2), 2015"


def torus_all_gather(dims: tuple[int, ...], name: str = "torus") -> Schedule:
    """Build the all-gather by rings along each dimension.

    Parameters
    ----------
    dims
        Ranks along each dimension; ranks next to each other differ in the first.
    name
        Of the algorithm.

    Examples
    --------
    >>> len(torus_all_gather((4, 3)).rounds)
    5
    """
    ranks = prod(dims)
    rank = np.arange(ranks)
    rounds, stride = LazyRounds(0, None), 1
    for length in dims:
        rounds = rounds + LazyRounds(length - 1, _ring_along(rank, stride, length))
        stride *= length
    return Schedule("all_gather", name, ranks, ranks, rounds)


def _ring_along(rank: np.ndarray, stride: int, length: int):
    """Return the rounds of a ring in one dimension; the blocks of the ones before travel along."""
    at = rank // stride % length
    start = rank - rank % (stride * length)
    to = rank + ((at + 1) % length - at) * stride

    def shift(step: int) -> Round:
        chunk = start + (at - step) % length * stride
        return Round.columns(rank, to, chunk, reduce=False, count=stride)

    return shift


@cache
def shape(ranks: int, *lengths: int) -> tuple[int, ...] | None:
    """Return the lengths of a torus, one more than are given; None where there is no such torus.

    Where 0 is given the length is free: as near to a square or a cube as can be, shorter first.

    Examples
    --------
    >>> shape(24, 0), shape(24, 3), shape(7, 0), shape(64, 0, 0), shape(24, 2, 6)
    ((4, 6), (3, 8), None, (4, 4, 4), (2, 6, 2))
    """
    if not lengths:
        return (ranks,) if ranks > 1 else None
    able = [n for n in (lengths[:1] if lengths[0] else range(2, ranks)) if n > 1 and ranks % n == 0]
    shapes = [(n, *rest) for n in able if (rest := shape(ranks // n, *lengths[1:]))]
    return min(shapes, key=sum, default=None)


def _rounds(ranks, **lengths):
    each = np.vectorize(lambda n: sum(d - 1 for d in shape(int(n), *lengths.values())), [int])
    return each(ranks)


_TORI = {
    "supports": lambda ranks, **lengths: shape(ranks, *lengths.values()) is not None,
    "counts": "a product of numbers above 1, one per dimension (`width`, `height`)",
}


@registered(GATHERS, "torus_2d", all_but_own(_rounds), _TORUS, **_TORI)
def torus_2d_all_gather(ranks: int, width: int = 0) -> Schedule:
    """Build the 2-D torus: rings along rows, then along columns."""
    return torus_all_gather(shape(ranks, width), "torus_2d")


@registered(GATHERS, "torus_3d", all_but_own(_rounds), _TORUS, **_TORI)
def torus_3d_all_gather(ranks: int, width: int = 0, height: int = 0) -> Schedule:
    """Build the 3-D torus: rings along three dimensions in turn."""
    return torus_all_gather(shape(ranks, width, height), "torus_3d")


@registered(GATHERS, "swing", all_but_own(log2_down), _SWING, **POWER_OF_TWO)
def swing_all_gather(ranks: int) -> Schedule:
    """Build Swing: partners to both sides in turn, nearer than at doubling distance."""
    rank = np.arange(ranks)
    levels = int(log2_down(ranks))

    def partner(step: int) -> np.ndarray:
        reach = (1 - (-2) ** (levels - step)) // 3
        return np.where(rank % 2 == 0, rank + reach, rank - reach) % ranks

    def swap(step: int) -> Round:
        held = rank[:, None]
        for earlier in range(step):
            held = np.hstack([held, held[partner(earlier)]])
        ends = (np.repeat(who, held.shape[1]) for who in (rank, partner(step)))
        return Round.columns(*ends, held.ravel(), reduce=False)

    return Schedule("all_gather", "swing", ranks, ranks, LazyRounds(levels, swap))
