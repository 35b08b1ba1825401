"""Rings along the dimensions of a torus, and Swing.

In a torus rank r has coordinates, and links only to its neighbours in each dimension. An all-gather
runs a ring along one dimension after another, each carrying all that the ones before collected:
as few bytes as one ring over all ranks, and Σ(dᵢ − 1) rounds instead of Πdᵢ − 1.

Swing [1]_ needs log₂ n rounds: partners at distance 1, 1, 3, 5, 11, … in turn to both sides, nearer
than the 1, 2, 4, 8, 16, … of recursive doubling. Only the distance on the ring is modelled here by
who talks to whom: the load on the links between is the network's.

References
----------
.. [1] D. De Sensi, T. Bonato, D. Saam, T. Hoefler, "Swing: short-cutting rings for higher bandwidth
   allreduce", NSDI 2024.
"""

from functools import cache
from math import isqrt, prod

import numpy as np

from tokenlife.collectives.compose import GATHERS, family
from tokenlife.collectives.direct import power_of_two
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms, log2_down

_SWING = "D. De Sensi, T. Bonato, D. Saam, T. Hoefler, NSDI 2024"
_TORUS = "P. Sack, W. Gropp, ACM Trans. Parallel Computing 1(2), 2015"


def torus_all_gather(dims: tuple[int, ...]) -> Schedule:
    """Build the all-gather by rings along each dimension.

    Parameters
    ----------
    dims
        Ranks along each dimension; ranks next to each other differ in the first.

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
    return Schedule("all_gather", "torus", ranks, ranks, rounds)


def _ring_along(rank: np.ndarray, stride: int, length: int):
    """Return the rounds of a ring in one dimension; the blocks of the ones before travel along."""
    at = rank // stride % length
    start = rank - rank % (stride * length)
    to = rank + ((at + 1) % length - at) * stride

    def shift(step: int) -> Round:
        chunk = start + (at - step) % length * stride
        return Round.columns(rank, to, chunk, reduce=False, count=stride)

    return shift


def swing_all_gather(ranks: int) -> Schedule:
    """Build Swing's all-gather, for a power of two: the last partners of its reduction first."""
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


def squarest(ranks: int, width: int = 0) -> tuple[int, int] | None:
    """Return width × height of a torus, the shorter first; None where there is no such torus.

    A width of 0 asks for the squarest.

    Examples
    --------
    >>> squarest(24), squarest(24, 3), squarest(7)
    ((4, 6), (3, 8), None)
    """
    if not width:
        width = max((d for d in range(2, isqrt(ranks) + 1) if ranks % d == 0), default=1)
    if width < 2 or ranks % width or ranks // width < 2:
        return None
    return width, ranks // width


def cubest(ranks: int, width: int = 0, height: int = 0) -> tuple[int, int, int] | None:
    """Return width × height × depth of a torus; None where there is none; 0 leaves the choice.

    Examples
    --------
    >>> cubest(64), cubest(24, 2, 6), cubest(25)
    ((4, 4, 4), (2, 6, 2), None)
    """
    widths = [width] if width else range(2, ranks // 4 + 1)
    shapes = [
        (w, *rest) for w in widths if ranks % w == 0 and (rest := squarest(ranks // w, height))
    ]
    return min(shapes, key=sum, default=None)


def _tori(name: str, shape, says: str, counts: str, **options) -> None:
    @cache
    def rounds(ranks: int, **chosen) -> int:
        dims = shape(ranks, **chosen)
        return sum(dims) - len(dims)

    def terms(ranks, bytes_, **chosen) -> Terms:
        each = np.vectorize(lambda n: rounds(int(n), **chosen), otypes=[int])
        return Terms(each(ranks), (ranks - 1) / ranks * bytes_)

    family(
        GATHERS,
        name,
        lambda ranks, **chosen: torus_all_gather(shape(ranks, **chosen)).renamed(algorithm=name),
        terms,
        says,
        _TORUS,
        lambda ranks, **chosen: shape(ranks, **chosen) is not None,
        counts,
        options=options,
    )


_tori(
    "torus_2d",
    squarest,
    "rings along rows, then along columns",
    "a product of two numbers above 1, the first of them `width`",
    width=0,
)
_tori(
    "torus_3d",
    cubest,
    "rings along three dimensions in turn",
    "a product of three numbers above 1, the first two `width` and `height`",
    width=0,
    height=0,
)
family(
    GATHERS,
    "swing",
    swing_all_gather,
    lambda ranks, bytes_: Terms(log2_down(ranks), (ranks - 1) / ranks * bytes_),
    "partners in turn to both sides, nearer than at doubling distance; for rings and tori",
    _SWING,
    power_of_two,
    "a power of two",
)
