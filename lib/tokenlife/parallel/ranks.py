"""Which rank sits where, and the groups of ranks that talk to each other.

Groups beside the four axes, all inside the ranks that the name says: ``dp_cp`` (hold the same
weights), ``shard`` and ``replicate`` (dp_cp taken apart), ``etp``, ``ep``, ``edp`` (experts split,
dealt, copied), ``ep_inter`` and ``ep_intra`` (an expert group across and inside nodes). Sends go to
``pp_next``, ``pp_previous`` and ``cp_next``; ``ends`` are first and last pipeline stage.
"""

from functools import cached_property

import numpy as np

from tokenlife.parallel.rules import PlanError

AXES = ("tp", "cp", "dp", "pp")

# The axis that each group of ranks belongs to.
AXIS_OF = {axis: axis for axis in (*AXES, "ep")} | {
    "dp_cp": "dp", "shard": "dp", "replicate": "dp", "edp": "dp", "etp": "ep", "ep_inter": "ep",
    "ep_intra": "ep", "pp_next": "pp", "pp_previous": "pp", "ends": "pp", "cp_next": "cp",
}  # fmt: skip
_STEP = {"pp_next": ("pp", 1), "pp_previous": ("pp", -1), "ends": ("pp", 0), "cp_next": ("cp", 1)}


class Ranks:
    """The rank numbers of a plan: what :class:`~tokenlife.parallel.plan.Plan` inherits."""

    @cached_property
    def _sizes(self) -> dict[str, int]:
        inner, one = self.tp * self.cp * self.dp, self.expert_tp
        return {
            "dp_cp": self.dp * self.cp, "shard": self.dp * self.cp // self.replicate,
            "etp": one, "edp": inner // (one * self.ep),
            "ep_intra": self.ep_node, "ep_inter": self.ep // self.ep_node,
        } | {name: 1 + (getattr(self, axis) > 1) for name, (axis, _) in _STEP.items()}  # fmt: skip

    def size(self, group: str) -> int:
        """Return how many ranks are in each group of this name (a key of ``AXIS_OF``)."""
        return self._sizes[group] if group in self._sizes else getattr(self, group)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return where a rank, or each of an array of ranks, sits on each axis.

        Raises
        ------
        PlanError
            If there is no such rank.
        """
        if not np.all((np.asarray(rank) >= 0) & (np.asarray(rank) < self.world)):
            raise PlanError(f"no rank {rank}: this plan has ranks 0 to {self.world - 1}")
        where = {}
        for axis in self.order:
            rank, where[axis] = divmod(rank, getattr(self, axis))
        return where

    def _rank(self, at: dict):
        rank, stride = 0, 1
        for axis in self.order:
            rank, stride = rank + at.get(axis, 0) * stride, stride * getattr(self, axis)
        return rank

    def rank(self, **coordinates: int) -> int:
        """Return the rank at the given coordinates; an axis that is not named stands at 0.

        Examples
        --------
        >>> from tokenlife.parallel import Plan
        >>> Plan(dp=2, tp=4).rank(tp=1, dp=1)
        5
        """
        for axis, at in coordinates.items():
            if axis not in AXES or not 0 <= at < getattr(self, axis):
                raise PlanError(f"{axis}={at} is no place in this plan: {self}")
        return self._rank(coordinates)

    def _leader(self, group: str, rank):
        """Return the first member of the group that a rank belongs to; takes arrays."""
        if group not in AXIS_OF:
            raise PlanError(f"no axis {group!r}; known: {', '.join(AXIS_OF)}")
        at, shard = self.coordinates(rank), self.dp // self.replicate
        first = {axis: {axis: 0} for axis in AXES} | {
            "dp_cp": {"cp": 0, "dp": 0}, "replicate": {"dp": at["dp"] % shard},
            "shard": {"cp": 0, "dp": at["dp"] // shard * shard},
        }  # fmt: skip
        if group not in first:  # groups of experts, inside a stage
            inner = at["tp"] + self.tp * (at["cp"] + self.cp * at["dp"])
            etp, node, block = (
                self.expert_tp,
                self.expert_tp * self.ep_node,
                self.expert_tp * self.ep,
            )
            inner = {
                "etp": inner // etp * etp, "ep": inner // block * block + inner % etp,
                "edp": inner % block, "ep_intra": inner // node * node + inner % etp,
                "ep_inter": inner // block * block + inner % node,
            }[group]  # fmt: skip
            rest, tp = divmod(inner, self.tp)
            return self._rank(at | {"tp": tp, "cp": rest % self.cp, "dp": rest // self.cp})
        return self._rank(at | first[group])

    def groups(self, group: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks of an axis, or of another name of ``AXIS_OF``.

        Ordered by first rank. A group that only sends (``pp_next``) is a pair for each sender.

        Raises
        ------
        PlanError
            If no group has this name.
        """
        ranks = np.arange(self.world)
        if group in _STEP:
            pairs = np.stack(self._pair(group, ranks), axis=1)
            pairs = np.unique(pairs, axis=0) if group == "ends" else pairs
            return tuple(map(tuple, pairs.tolist()))
        members = np.lexsort((ranks, self._leader(group, ranks))).reshape(-1, self.size(group))
        return tuple(map(tuple, members.tolist()))

    def _pair(self, group: str, rank):
        """Return who sends and who receives where these ranks take part; takes arrays."""
        at = self.coordinates(rank)
        if group == "ends":
            return tuple(self._rank(at | {"pp": stage}) for stage in (0, self.pp - 1))
        axis, step = _STEP[group]
        return rank, self._rank(at | {axis: (at[axis] + step) % getattr(self, axis)})

    def group(self, group: str, rank: int) -> tuple[int, ...]:
        """Return the group of this name that a rank belongs to; of a send: sender, receiver."""
        if group in _STEP:
            return self._pair(group, rank)
        self.coordinates(rank)  # refuse what is no rank
        leaders = self._leader(group, np.arange(self.world))
        return tuple(np.flatnonzero(leaders == leaders[rank]).tolist())
