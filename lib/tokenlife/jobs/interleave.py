"""Offsets that keep jobs out of each other's way: demands on a circle, turned against each other.

A periodic job is a demand for a link around a circle, one turn a step; jobs of different periods
lie on the circle of their least common multiple. What the sum of all demands is above the link, on
average over the circle, is the excess: bytes that must wait. The best turns are found by trying all
of a grid [1]_.

Left out: jobs that share several links, whose turns must agree; and periods that change once jobs
hold each other up.

References
----------
.. [1] S. Rajasekaran, M. Ghobadi, A. Akella, "CASSINI: network-aware job scheduling in machine
   learning clusters", NSDI 2024.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tokenlife.jobs.multijob import JobError

LARGEST_SEARCH = 1 << 22  # turns to try, times the slots of the circle


def excess(demands: Sequence[np.ndarray], turns: Sequence[int]) -> float:
    """Return the demand above the link, averaged over the circle.

    Parameters
    ----------
    demands
        Of each job in the slots of its period, as a share of the link.
    turns
        By how many slots each job is late.

    Examples
    --------
    >>> excess([np.array([1, 0]), np.array([1, 0])], [0, 0])
    0.5
    """
    slots = math.lcm(*map(len, demands))
    total = sum(
        np.tile(np.roll(d, t), slots // len(d)) for d, t in zip(demands, turns, strict=True)
    )
    return float(np.maximum(total - 1, 0).mean())


def interleave(demands: Sequence[np.ndarray]) -> tuple[tuple[int, ...], float]:
    """Return the turns with the least excess, and that excess; the first job stays where it is.

    Raises
    ------
    JobError
        If a demand is negative or empty, or the search is too large.

    Examples
    --------
    >>> interleave([np.array([1, 0, 0, 0]), np.array([1, 1, 0, 0])])
    ((0, 1), 0.0)
    """
    demands = [np.asarray(d, float) for d in demands]
    if not demands or any(d.ndim != 1 or not len(d) or not np.all(d >= 0) for d in demands):
        raise JobError("each job needs a demand of zero or more in every slot of its period")
    slots = math.lcm(*map(len, demands))
    work = slots * math.prod(map(len, demands[1:]))
    if work > LARGEST_SEARCH:
        raise JobError(
            f"{work:,} sums to try, of at most {LARGEST_SEARCH:,}: take fewer slots or jobs"
        )
    turned = [
        np.stack([np.tile(np.roll(d, t), slots // len(d)) for t in range(len(d))]) for d in demands
    ]  # for each job (turns, slots)
    best = (math.inf, ())
    *others, last = turned[1:] or [np.zeros((1, slots))]
    for turns in itertools.product(*(range(len(each)) for each in others)):
        total = turned[0][0] + sum(each[t] for each, t in zip(others, turns, strict=True))
        over = np.maximum(total + last - 1, 0).mean(axis=1)
        best = min(best, (float(over.min()), (0, *turns, int(over.argmin()))))
    return best[1][: len(demands)], best[0]


def least_excess(demands: Sequence[np.ndarray]) -> float:
    """Return what no turn can avoid: the sum of the mean demands, above the link.

    Examples
    --------
    >>> least_excess([np.array([1, 1, 0, 0]), np.array([1, 1, 1, 0])])
    0.25
    """
    return max(0.0, float(sum(np.mean(d) for d in demands)) - 1)


def can_avoid(period_a: int, sends_a: int, period_b: int, sends_b: int) -> bool:
    """Tell whether two jobs, one burst at full rate each a period, can for ever miss each other.

    Modulo the greatest common divisor of the periods every offset that ever occurs is the same; the
    two bursts must fit beside each other there.

    Examples
    --------
    >>> can_avoid(10, 4, 10, 6), can_avoid(10, 4, 15, 2), can_avoid(10, 3, 15, 2)
    (True, False, True)
    """
    return sends_a + sends_b <= math.gcd(period_a, period_b)
