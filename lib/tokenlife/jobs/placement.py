"""Which level of the network each group of ranks lands on, and what an operation takes there.

Ranks fill the cluster in order, so an axis with stride s and n members spreads over s·n GPUs. Of a
group, q members sit in one unit of a level: n if the unit is a multiple of s·n, else as many as
strides fit in. A ring crosses the border of a unit once, and the q members inside bring q network
cards to that crossing; so a byte takes 1/(q·B) there, B being one card's rate. In an all-to-all
each rank sends (n − q)/(n − 1) of its bytes across the border, by its own card. A send crosses
whole, by one card. A round waits for the slowest border that is crossed. What lies on several
borders flows through all at once.

Ring collectives move (n − 1)/n of the buffer once or twice: ``tokenlife.jobs.traffic``. Left out:
paths that collide, trees, and sums inside switches.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.traffic import ALGORITHMS, sent
from tokenlife.parallel import Demand, Plan
from tokenlife.parallel.ranks import AXES

_SENDS = {"pp_next": "pp", "pp_previous": "pp", "ends": "pp", "cp_next": "cp"}


class Crossing(NamedTuple):
    """How a group meets one level: its name, members in one unit inside it, and whether it leaves.

    The numbers may be arrays, one for each plan.
    """

    level: str
    inside: int
    crosses: bool


def spans(plan: Plan, group: str) -> list[tuple[int, int]]:
    """Return (stride, members) of a group along each axis that it runs over; takes arrays.

    Examples
    --------
    >>> spans(Plan(tp=8, pp=16, dp=128), "dp")
    [(8, 128)]
    """
    strides, stride = {}, 1
    for axis in plan.order:
        strides[axis], stride = stride, stride * getattr(plan, axis)
    group = _SENDS.get(group, group)
    if group in AXES:
        return [(strides[group], getattr(plan, group))]
    shard = plan.dp // plan.replicate
    if group in ("dp_cp", "shard"):
        members = plan.dp if group == "dp_cp" else shard
        return [(strides["cp"], plan.cp), (strides["dp"], members)]
    if group == "replicate":
        return [(strides["dp"] * shard, plan.replicate)]
    one, inner = plan.expert_tp, plan.tp * plan.cp * plan.dp
    low, high = {
        "etp": (1, one), "ep": (one, one * plan.ep), "edp": (one * plan.ep, inner),
        "ep_intra": (one, one * plan.ep_node), "ep_inter": (one * plan.ep_node, one * plan.ep),
    }[group]  # fmt: skip
    found, first = [], 1
    for axis in ("tp", "cp", "dp"):  # the order in which experts count the ranks of a stage
        last = first * getattr(plan, axis)
        start = np.maximum(low, first)
        members = np.maximum(np.minimum(high, last) // start, 1)
        found.append((strides[axis] * np.maximum(start // first, 1), members))
        first = last
    return found


def crossings(plan: Plan, group: str, cluster: Cluster) -> list[Crossing]:
    """Return how a group meets each level, from the inside out.

    Examples
    --------
    >>> plan = Plan(tp=8, pp=16, dp=128)
    >>> where = crossings(plan, "dp", Cluster.load("llama3-24k"))
    >>> [(c.level, int(c.inside)) for c in where if c.crosses]
    [('rack', 1), ('pod', 2)]
    """
    found, inside, size = [], 1, plan.size(group)
    for level in cluster.levels:
        whole = 1
        for stride, members in spans(plan, group):
            block = stride * members
            part = np.where(block > level.gpus, np.maximum(level.gpus // stride, 1), 1)
            fits = (level.gpus % block == 0) | (plan.world <= level.gpus)
            whole = whole * np.where(fits, members, part)
        now = np.minimum(np.maximum(whole, inside), size)
        if level is cluster.levels[-1]:
            now = size
        found.append(Crossing(level.name, inside, now > inside))
        inside = now
    return found


def outermost(plan: Plan, group: str, cluster: Cluster) -> str:
    """Return the outermost level that a group of more than one rank crosses."""
    return [c.level for c in crossings(plan, group, cluster) if c.crosses][-1]


def op_seconds(
    demand: Demand,
    plan: Plan,
    cluster: Cluster,
    efficiency: Mapping[bool, float] | None = None,
    algorithms: Mapping[str, str] = ALGORITHMS,
    known: dict[str, list[Crossing]] | None = None,
):
    """Return the seconds of one run of a demand on the levels that its group crosses.

    Parameters
    ----------
    demand, plan, cluster
        Numbers of demand and plan may be arrays.
    efficiency
        Part of a level's rate that is reached: ``{True: …}`` on the innermost level, ``{False: …}``
        on all others; 1 by default.
    known
        Crossings of this plan, by group: filled here, so that each is found once.

    Examples
    --------
    >>> gathers = Demand("all_gather", "tp", 2**20, 2, "forward")
    >>> inside, across = (
    ...     op_seconds(gathers, Plan(tp=tp), Cluster.load("dgx-h100")) for tp in (8, 16)
    ... )
    >>> bool(across > inside)
    True
    """
    known = {} if known is None else known
    if demand.over not in known:
        known[demand.over] = crossings(plan, demand.over, cluster)
    rounds, bytes_ = sent(demand, plan, algorithms)
    members = plan.size(demand.over)
    if demand.kind == "send":
        bytes_ = bytes_ * (members > 1)
        rounds = rounds * (members > 1)
    slowest = latency = 0.0
    for level, (_, inside, crosses) in zip(cluster.levels, known[demand.over], strict=True):
        if not np.any(crosses):
            continue
        reached = (efficiency or {}).get(level is cluster.levels[0], 1.0)
        rate = level.Bps * reached / level.oversubscription
        if demand.kind == "all_to_all":
            share = (members - inside) / np.maximum(members - 1, 1)
            per_byte = share / rate
        else:
            per_byte = 1 / (rate * (1 if demand.kind == "send" else inside))
        slowest = np.maximum(slowest, per_byte * crosses)
        latency = np.maximum(latency, level.latency_s * crosses)
    return rounds * latency + bytes_ * slowest


def placement(plan: Plan, cluster: Cluster) -> pd.DataFrame:
    """Say which level each axis of a plan lands on.

    Returns
    -------
    pandas.DataFrame
        ``axis``, ``ranks``, ``stride``, ``level`` (the outermost that it crosses), ``gpus`` that a
        group spreads over.

    Examples
    --------
    >>> plan = Plan(tp=8, pp=16, dp=128, order=("tp", "cp", "pp", "dp"))
    >>> placement(plan, Cluster.load("llama3-24k"))[["axis", "level"]].values.tolist()
    [['tp', 'NVLink domain'], ['pp', 'pod'], ['dp', 'between pods']]
    """
    rows = []
    for axis in plan.order:
        members = getattr(plan, axis)
        if members > 1:
            [(stride, _)] = spans(plan, axis)
            level = outermost(plan, axis, cluster)
            rows.append((axis, members, stride, level, stride * members))
    return pd.DataFrame(rows, columns=["axis", "ranks", "stride", "level", "gpus"])
