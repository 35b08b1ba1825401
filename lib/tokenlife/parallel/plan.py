"""The layout of a job: how many ranks along each axis, and which rank sits where.

Ranks are numbered with the first axis of :data:`AXES` running fastest, as Megatron-LM does [1]_:
the axis that talks most gets neighbouring ranks, which are the ones that share a machine.

References
----------
.. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using
   Megatron-LM", SC'21.
"""

import math
from dataclasses import dataclass

from tokenlife.errors import TokenlifeError

AXES = ("tp", "cp", "dp", "pp")


class PlanError(TokenlifeError, ValueError):
    """A layout that cannot be."""


@dataclass(frozen=True)
class Plan:
    """Ranks along each axis of parallelism.

    Attributes
    ----------
    dp, tp, pp, cp
        Sizes of the data-, tensor-, pipeline- and context-parallel axes.

    Raises
    ------
    PlanError
        If an axis is not a whole number above 0.

    Examples
    --------
    >>> plan = Plan(dp=2, tp=4)
    >>> plan.world, plan.coordinates(5)
    (8, {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 0})
    >>> plan.groups("dp")
    ((0, 4), (1, 5), (2, 6), (3, 7))
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1

    def __post_init__(self):
        for axis in AXES:
            size = getattr(self, axis)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise PlanError(f"{axis} must be a whole number above 0, not {size!r}")

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Read a layout such as ``dp=2,tp=4``.

        Examples
        --------
        >>> Plan.parse("dp=2")
        Plan(dp=2, tp=1, pp=1, cp=1)
        >>> Plan.parse("dp=two")
        Traceback (most recent call last):
            ...
        tokenlife.parallel.plan.PlanError: cannot read plan 'dp=two'; write it like dp=2,tp=4
        """
        sizes = {}
        for part in filter(None, text.split(",")):
            axis, _, size = (piece.strip() for piece in part.partition("="))
            if not (size.isascii() and size.isdigit()):
                raise PlanError(f"cannot read plan {text!r}; write it like dp=2,tp=4")
            if axis not in AXES:
                raise PlanError(f"no axis {axis!r} in plan {text!r}; known: {', '.join(AXES)}")
            if axis in sizes:
                raise PlanError(f"plan {text!r} names {axis} twice")
            sizes[axis] = int(size)
        return cls(**sizes)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return math.prod(getattr(self, axis) for axis in AXES)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return where a rank sits on each axis.

        Raises
        ------
        PlanError
            If there is no such rank.
        """
        if not 0 <= rank < self.world:
            raise PlanError(f"no rank {rank}: this plan has ranks 0 to {self.world - 1}")
        where = {}
        for axis in AXES:
            rank, where[axis] = divmod(rank, getattr(self, axis))
        return where

    def rank(self, **coordinates: int) -> int:
        """Return the rank at the given coordinates; an axis that is not named stands at 0.

        Examples
        --------
        >>> Plan(dp=2, tp=4).rank(tp=1, dp=1)
        5
        """
        rank, stride = 0, 1
        for axis in AXES:
            size, at = getattr(self, axis), coordinates.get(axis, 0)
            if not 0 <= at < size:
                raise PlanError(f"{axis}={at} is outside this plan's {axis} of {size}")
            rank += at * stride
            stride *= size
        return rank

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ in ``axis`` alone, ordered by first rank."""
        if axis not in AXES:
            raise PlanError(f"no axis {axis!r}; known: {', '.join(AXES)}")
        groups: dict[tuple, list[int]] = {}
        for rank in range(self.world):
            where = self.coordinates(rank)
            where.pop(axis)
            groups.setdefault(tuple(where.values()), []).append(rank)
        return tuple(tuple(group) for group in groups.values())
