"""Every legal layout of a job on a cluster: priced, pruned by memory, ranked, and explained.

The space: tensor-, pipeline- and context-parallel ranks over all divisors of the number of GPUs,
data parallelism the rest, expert parallelism over the divisors of the experts, micro-batches over
the divisors of the batch, ZeRO 0 to 3, three ways of recomputation, model chunks on a stage and
the schedules 1F1B, interleaved and ZB-H1. Sequence parallelism goes with tensor parallelism,
embedding and head count as layers, all rings, axes in the order of the plan. All of it is arrays:
nothing is skipped by a rule of thumb, so nothing good is missed inside the space.
"""

from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
import pandas as pd

from tokenlife.costs.flops import RECOMPUTE
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration
from tokenlife.jobs.placement import placement
from tokenlife.jobs.step import PARTS, step, sweep_steps
from tokenlife.jobs.traffic import AXES, sweep
from tokenlife.parallel import Plan, Plans
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_time

SCHEDULES = ("1f1b", "interleaved", "zb-h1")
MOST_CHUNKS, MOST_MICRO = 8, 16
MOST_GPUS = 2**20
_COLUMNS = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "virtual")


class SearchError(TokenlifeError, ValueError):
    """A search that can find nothing: no legal layout, or none that fits."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes
    ----------
    table
        The plans that fit, fastest first: axes, ``recompute``, ``schedule``, what
        :func:`~tokenlife.jobs.step.sweep_steps` says, ``limit`` and ``pareto``.
    considered, fitting
        Legal plans, and those that fit into memory.
    least_memory_bytes
        What the smallest legal plan needs on its fullest GPU.
    base
        The plan that all share: sequence, global batch, order.
    """

    config: ModelConfig
    cluster: Cluster
    table: pd.DataFrame
    considered: int
    fitting: int
    least_memory_bytes: int
    base: Plan

    def plan(self, row: int = 0) -> Plan:
        """Return a plan of the table, by its place."""
        line = self.table.iloc[row]
        return _plan(self.base, line)


def divisors(number: int, most: int | None = None) -> list[int]:
    """Return the divisors of a number, in order, up to a bound.

    Examples
    --------
    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [d for d in range(1, min(number, most or number) + 1) if number % d == 0]


def space(config: ModelConfig, gpus: int, base: Plan) -> list[Plans]:
    """Return all legal plans, one :class:`~tokenlife.parallel.plan.Plans` for each pair of names.

    Parameters
    ----------
    config, gpus
        The model, and how many GPUs it has.
    base
        Sequence, global batch, order and whatever else all plans share.

    Examples
    --------
    >>> base = Plan(sequence=1024, global_batch=8)
    >>> sum(len(plans.pp) for plans in space(ModelConfig.load("gpt2"), 4, base))
    672
    """
    a, moe, batch = config.attention, config.moe, base.sequences
    axes = [
        (tp, pp, cp, gpus // (tp * pp * cp))
        for tp in divisors(gpus, a.kv_heads)
        for pp in divisors(gpus // tp, config.layers + 2)
        for cp in divisors(gpus // tp // pp, max(1, base.sequence // 2))
    ]
    axes = [row for row in axes if batch % row[3] == 0]
    experts = divisors(moe.experts) if moe else [1]
    rest = list(product(experts, range(4), divisors(batch, MOST_MICRO)))
    found = []
    for schedule, recompute in product(SCHEDULES, RECOMPUTE):
        chunks = range(2, MOST_CHUNKS + 1) if schedule == "interleaved" else (1,)
        grid = [(*x, *y, v) for x in axes for y in rest for v in chunks]
        if not grid:
            continue
        tp, pp, cp, dp, ep, zero, micro, virtual = np.array(grid).T
        shared = {f.name: getattr(base, f.name) for f in fields(base)}
        shared |= {"schedule": schedule, "recompute": recompute, "balance": True}
        shared |= {"sequence_parallel": tp > 1, "etp": 1 if moe else 0}
        sizes = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep}
        sizes |= {"zero": zero, "micro_batch": micro, "virtual": virtual}
        plans = Plans(**shared | sizes)
        legal = plans.legal(config)
        if schedule != "1f1b":  # one stage has no pipeline to schedule
            legal &= plans.pp > 1
        legal &= (plans.zero == 0) | (plans.dp * plans.cp > 1)
        if legal.any():
            found.append(plans.take(legal))
    return found


def search(
    config: ModelConfig,
    cluster: Cluster,
    gpus: int,
    global_batch: int,
    sequence: int,
    calibration: Calibration | None = None,
    order: tuple[str, ...] = Plan.order,
) -> Found:
    """Price every legal layout and rank those that fit.

    Raises
    ------
    SearchError
        If the cluster has fewer GPUs, or no layout is legal.

    Examples
    --------
    >>> found = search(ModelConfig.load("gpt2"), Cluster.load("dgx-h100"), 8, 64, 1024)
    >>> found.considered, found.plan(0).world
    (2082, 8)
    """
    if not 0 < gpus <= cluster.gpus:
        raise SearchError(f"{cluster.name} has {cluster.gpus} GPUs: ask for 1 to {cluster.gpus}")
    base = Plan(sequence=sequence, global_batch=global_batch, order=order)
    tables = []
    for plans in space(config, gpus, base):
        table = sweep_steps(config, plans, cluster, calibration)
        named = {name: getattr(plans, name) for name in _COLUMNS}
        names = {"schedule": plans.schedule, "recompute": plans.recompute}
        tables.append(pd.concat([pd.DataFrame(named).assign(**names), table], axis=1))
    if not tables:
        raise SearchError(
            f"no layout of {config.name} on {gpus} GPUs is legal with a global batch of "
            f"{global_batch} sequences of {sequence} tokens; a number of GPUs and a batch that are "
            "powers of two have the most"
        )
    table = pd.concat(tables, ignore_index=True)
    fits = table.memory <= cluster.memory_bytes
    # Of plans that take the same time the one that holds least comes first.
    kept = table[fits].sort_values(["step_time_s", "memory"], kind="stable", ignore_index=True)
    if len(kept):
        parts = kept[[f"{part}_s" for part in PARTS]].to_numpy()
        kept["limit"] = np.array(PARTS)[parts.argmax(axis=1)]
    sizes = len(table), int(fits.sum()), int(table.memory.min())
    return Found(config, cluster, kept, *sizes, base)


def _plan(base: Plan, line) -> Plan:
    sizes = {name: int(line[name]) for name in _COLUMNS}
    names = {"schedule": line.schedule, "recompute": line.recompute, "balance": True}
    experts = {"etp": 1} if sizes["ep"] > 1 else {}
    return replace(base, **sizes, **names, **experts, sequence_parallel=sizes["tp"] > 1)


def pareto(table: pd.DataFrame, columns=("step_time_s", "memory")) -> pd.DataFrame:
    """Return the plans that no other beats on all columns at once, by the first of them.

    Examples
    --------
    >>> table = pd.DataFrame({"step_time_s": [1, 2, 3], "memory": [9, 9, 4]})
    >>> pareto(table).index.tolist()
    [0, 2]
    """
    ordered = table.sort_values(list(columns), kind="stable")
    values, front = ordered[list(columns)].to_numpy(), []
    for i, row in enumerate(values):
        best = values[front]
        if not len(front) or not (best <= row).all(axis=1).any():
            front.append(i)
    return ordered.iloc[front]


def smallest_that_fits(
    config: ModelConfig, cluster: Cluster, gpus: int, global_batch: int, sequence: int
) -> int | None:
    """Return the least power of two of such GPUs, above ``gpus``, on which a layout fits."""
    tried = 2 ** int(np.floor(np.log2(gpus)) + 1)
    while tried <= MOST_GPUS:
        large = replace(cluster, gpus=MOST_GPUS)
        base = Plan(sequence=sequence, global_batch=global_batch)
        for plans in space(config, tried, base):
            if (sweep(config, plans).total <= large.memory_bytes).any():
                return tried
        tried *= 2
    return None


def refuse(found: Found, gpus: int) -> SearchError:
    """Say by how much a model fits nowhere, and how many GPUs would do."""
    over = found.least_memory_bytes - found.cluster.memory_bytes
    batch = found.base.global_batch
    needed = smallest_that_fits(found.config, found.cluster, gpus, batch, found.base.sequence)
    would = f"{needed} such GPUs would do" if needed else "no number of such GPUs would do"
    return SearchError(
        f"{found.config.name} fits nowhere on {gpus} GPUs of {found.cluster.name}: the leanest of "
        f"{found.considered:,} layouts needs {format_bytes(found.least_memory_bytes)} a GPU, "
        f"{format_bytes(over)} more than there is; {would}"
    )


def explain(found: Found, row: int = 0, calibration: Calibration | None = None) -> list[str]:
    """Say in words why a plan wins: its parts, and what each neighbour would cost.

    A neighbour moves a factor of two from one axis to data parallelism or back, or changes one
    choice. The same model prices it.
    """
    plan, config, cluster = found.plan(row), found.config, found.cluster
    best = step(config, plan, cluster, calibration)
    most = max(best.parts_s, key=best.parts_s.get)
    exposed = sum(best.parts_s[axis] for axis in AXES)
    said = [
        f"{plan}: {format_time(best.time_s)} a step, MFU {best.mfu:.1%}, "
        f"{best.parts_s[most] / best.time_s:.0%} of it {most}, {exposed / best.time_s:.1%} exposed "
        f"communication, {best.parts_s['bubble'] / best.time_s:.1%} bubble"
    ]
    where = placement(plan, cluster).set_index("axis").level
    changes = [
        {axis: getattr(plan, axis) * 2, "dp": plan.dp // 2} for axis in ("tp", "pp", "cp")
    ] + [
        {axis: getattr(plan, axis) // 2, "dp": plan.dp * 2}
        for axis in ("tp", "pp", "cp")
        if getattr(plan, axis) > 1
    ]
    changes += [{"zero": z} for z in range(4) if z != plan.zero]
    changes += [{"recompute": r} for r in RECOMPUTE if r != plan.recompute]
    for change in changes:
        what = ", ".join(f"{k}={v}" for k, v in change.items() if k != "dp")
        try:
            other = replace(plan, **change)
            if "tp" in change:
                other = replace(other, sequence_parallel=other.tp > 1)
            priced = step(config, other, cluster, calibration)
        except TokenlifeError as error:
            said.append(f"{what}: not legal ({str(error).split(';')[0]})")
            continue
        held = sum(priced.memory_bytes.values())
        if held > cluster.memory_bytes:
            said.append(f"{what}: does not fit, {format_bytes(held)} a GPU")
            continue
        more = {p: priced.parts_s[p] - best.parts_s[p] for p in PARTS}
        worst = max(more, key=lambda p: abs(more[p]))
        lies = placement(other, cluster).set_index("axis").level
        axis = next(iter(change))
        moved = axis in lies and axis in where and lies[axis] != where[axis]
        leaves = f", {axis} then crosses {lies[axis]!r}" if moved else ""
        said.append(
            f"{what}: {priced.time_s / best.time_s - 1:+.1%} time, {worst} "
            f"{more[worst] / best.time_s:+.1%}{leaves}"
        )
    return said


def what_ifs(found: Found, row: int = 0, calibration: Calibration | None = None) -> pd.DataFrame:
    """Price a plan on other networks: twice the card, half the latency, 7:1 oversubscription."""
    plan, cluster = found.plan(row), found.cluster
    outer = cluster.levels[-1]
    other = 1.0 if outer.oversubscription >= 7 else 7.0
    others = {
        "as it is": cluster,
        "twice the network card": cluster.what_if(Bps=2),
        "half the network card": cluster.what_if(Bps=0.5),
        "half the latency": cluster.what_if(latency_s=0.5),
        f"{outer.name} oversubscribed {other:g}:1": cluster.what_if(
            outer.name, oversubscription=other / outer.oversubscription
        ),
        "every level beyond the first 7:1": replace(
            cluster,
            levels=(
                cluster.levels[0],
                *(replace(level, oversubscription=7.0) for level in cluster.levels[1:]),
            ),
        ),
    }
    rows = []
    for name, changed in others.items():
        priced = step(found.config, plan, changed, calibration)
        exposed = sum(priced.parts_s[axis] for axis in AXES)
        rows.append((name, priced.time_s, priced.mfu, exposed))
    table = pd.DataFrame(rows, columns=["network", "step_time_s", "mfu", "exposed_s"])
    return table.assign(change=table.step_time_s / table.step_time_s[0] - 1)
