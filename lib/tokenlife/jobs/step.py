"""The time of one training step: compute, exposed communication by axis, bubble, optimiser.

Compute. Matrix products run at a part of the peak; beside them every number that a product reads or
writes, and every activation that is kept, passes through memory. So narrow shards and short
micro-batches are slow of themselves: a product of (m, k) by (k, n) costs 2·m·k·n FLOPs and
m·k + k·n + m·n numbers. Backward takes both twice, recomputation once more.

Communication is priced on the levels that a group crosses (``tokenlife.jobs.placement``). What has
nothing to hide behind is exposed. What has hides behind: gradients of ZeRO 0 and 1 the backward
pass of the last micro-batch, their weights the first forward pass; ZeRO 2 and 3, and what tensor
and context parallelism may overlap, all compute of their phase; pipeline sends other micro-batches,
so that only those that fill the pipeline are seen. Where tensor parallelism leaves the stream
whole, each rank sends its part of it and the node gathers, as Megatron-LM does.

Bubble: the closed forms of ``tokenlife.parallel.schedules``, with the communication that a
micro-batch waits for inside its time. The slowest stage sets the pace: its layers are the most, and
the others' time counts once, while the pipeline fills. Optimiser: its states are read and written
once, at the memory's rate.

Four numbers are calibrated, together, for all jobs
(:class:`~tokenlife.jobs.compute.Calibration`). Left out: links that collide, stragglers,
checkpoints, data loading, 8-bit products, uneven experts, and power below a chip's rating.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration, model_flops, pass_seconds
from tokenlife.jobs.placement import op_seconds
from tokenlife.jobs.traffic import ALGORITHMS, AXES, BATCH, in_batches
from tokenlife.parallel import Plan, demands
from tokenlife.parallel.memory import KINDS, memory
from tokenlife.parallel.shards import hold
from tokenlife.transformer import ModelConfig

PARTS = ("compute", *AXES, "bubble", "update")


def sweep_steps(
    config: ModelConfig,
    plans: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    algorithms: Mapping[str, str] = ALGORITHMS,
) -> pd.DataFrame:
    """Price the steps of many plans: one row for each.

    Parameters
    ----------
    config, cluster
        The model and where it trains.
    plans
        :class:`~tokenlife.parallel.plan.Plans`, or one plan. None is refused.
    calibration
        By default ``Calibration.fitted()``.

    Returns
    -------
    pandas.DataFrame
        ``step_time_s`` and its parts, ``compute_s``, ``tp_s`` … (exposed),
        ``bubble_s``, ``update_s`` (the optimiser); ``mfu``; ``memory`` of the fullest GPU and its
        kinds, in bytes.

    Examples
    --------
    >>> from tokenlife.parallel import Plans
    >>> plans = Plans(dp=[128, 64], tp=8, pp=[16, 32], sequence=8192, global_batch=2048,
    ...     zero=1, balance=True, sequence_parallel=True)
    >>> table = sweep_steps(ModelConfig.load("llama-3.1-405b"), plans, Cluster.load("llama3-24k"))
    >>> parts = table[[f"{part}_s" for part in PARTS]].sum(axis=1)
    >>> bool(np.allclose(parts, table.step_time_s))
    True
    """
    chosen = calibration or Calibration.fitted()
    return in_batches(
        plans, 4 * BATCH, lambda part: _price(config, part, cluster, chosen, algorithms)
    )


def _price(config, plans, cluster, c, algorithms) -> pd.DataFrame:
    """Price the stages of which one is the slowest, and one the fullest.

    Stages hold ever fewer layers, but for the first and the last, which hold embedding and head; of
    a mixture model also the first stage that holds mixtures only.
    """
    (dense, mixed), (dense_core, mixed_core), head = pass_seconds(config, plans, cluster, c)
    number = sum(map(config.is_moe, range(config.layers)))
    everything = (config.layers - number) * dense + number * mixed + head
    last = plans.pp - 1
    stages = [np.zeros_like(last), np.minimum(1, last), last]
    if config.moe and config.moe.first_dense:
        share, rest = np.divmod(config.layers + 2 * plans.balance, plans.pp * plans.virtual)
        dense_chunks = (config.moe.first_dense + plans.balance - 1) // (share + (rest > 0))
        stages.append(np.minimum(dense_chunks + 1, last))
    tables, known = [], {}
    for stage in stages:
        on = hold(config, plans, stage).layers
        forward = on.dense * dense + on.mixtures * mixed + on.last * head
        core = on.dense * dense_core + on.mixtures * mixed_core
        again = {"none": 0, "selective": core, "full": forward - on.last * head}[plans.recompute]
        held = memory(config, plans, stage)
        price = partial(op_seconds, algorithms=algorithms, known=known)
        tables.append(
            held | _stage(config, plans, stage, cluster, c, price, (forward, again), held)
        )
    pace = np.argmax([t["pass"] for t in tables], axis=0)
    full = np.argmax([t["total"] for t in tables], axis=0)
    rows = np.arange(len(plans.pp))

    def of(which, name):
        return np.stack([np.broadcast_to(t[name], rows.shape) for t in tables])[which, rows]

    out = {name: of(pace, name) for name in ("compute", *AXES, "bubble")}
    # All stages fill the pipeline, not only the slowest: what the others have less is given back.
    mean = everything / plans.pp * (3 + (plans.recompute == "full"))
    slack = np.maximum(of(pace, "work") - mean, 0) * (plans.pp > 1)
    out["bubble"] = np.maximum(out["bubble"] - slack * (plans.pp - 1) / plans.virtual, 0)
    out["dp"] = np.max([t["dp"] for t in tables], axis=0)
    moved = np.max([t["moved"] for t in tables], axis=0)
    out["update"] = moved / (cluster.memory_Bps * c.memory)
    step = sum(out.values())
    peak = cluster.peak(plans.states.weights)
    found = {"step_time_s": step, "mfu": model_flops(config, plans) / (step * plans.world * peak)}
    held = {kind: of(full, kind) for kind in KINDS}
    parts = {f"{part}_s": out[part] for part in PARTS}
    return pd.DataFrame(found | parts | held | {"memory": of(full, "total")})


def bubble_seconds(plan: Plan, forward_s, backward_s, weights_s):
    """Return the bubble of a pipeline whose stages are alike, in closed form; takes arrays.

    Parameters
    ----------
    forward_s, backward_s, weights_s
        Of one micro-batch on one stage, all its chunks: F, B without the weights' gradients, W.

    Examples
    --------
    >>> float(bubble_seconds(Plan(pp=4, global_batch=8), 1.0, 1.0, 1.0))
    9.0
    """
    fill, both = plan.pp - 1, forward_s + backward_s
    return fill * {
        "gpipe": both + weights_s, "1f1b": both + weights_s,
        "interleaved": (both + weights_s) / plan.virtual,
        "zb-h1": both - weights_s, "zb-h2": np.maximum(both - 2 * weights_s, 0),
        "zb-v": np.maximum(both - 2 * weights_s, 0),
    }[plan.schedule]  # fmt: skip


def _stage(config, plans, stage, cluster, c, price, work, held) -> dict:
    """Return the parts of a step, in seconds, as the ranks of one stage would have them."""
    forward, again = work
    m, compute = plans.micro_batches, {"forward": forward, "backward": 2 * forward + again}
    efficiency = {True: c.inside, False: c.between}
    seen = {axis: dict.fromkeys(compute, 0.0) for axis in AXES}
    hidden = {axis: dict.fromkeys(compute, 0.0) for axis in AXES}
    first = once = 0.0
    for d in demands(config, plans, stage):
        if not np.any(d.count) or not np.any(d.items):
            continue
        time = d.count * price(d, plans, cluster, efficiency)
        if d.over in ("pp_next", "pp_previous"):  # each rank sends its part; the node gathers
            gather = replace(d, kind="all_gather", over="tp")
            part = replace(d, items=d.items * plans.stream_tp // plans.tp)
            whole = d.count * price(gather, plans, cluster, efficiency)
            time = d.count * price(part, plans, cluster, efficiency)
            time = time + whole * (plans.stream_tp < plans.tp)
        if d.axis == "dp" or d.over == "ends":
            if not d.hides_behind:
                once = once + time
            elif d.phase == "optimiser":
                first = first + time
            else:
                hidden["dp"][d.phase] = hidden["dp"][d.phase] + time
            continue
        kind = hidden if d.hides_behind else seen
        kind[d.axis][d.phase] = kind[d.axis][d.phase] + time / m
    for axis in ("tp", "cp", "ep"):
        for phase in compute:
            over = np.maximum(hidden[axis][phase] - compute[phase], 0)
            seen[axis][phase] = seen[axis][phase] + over
    waits = {phase: sum(seen[a][phase] for a in ("tp", "cp", "ep")) for phase in compute}
    whole = {phase: compute[phase] + waits[phase] for phase in compute}
    times = np.where(plans.zero >= 2, m, 1)
    once = once + np.maximum(first - forward, 0)
    for phase in compute:
        once = once + np.maximum(hidden["dp"][phase] - times * compute[phase], 0)
    sends = sum(hidden["pp"].values()) + sum(seen["pp"].values())
    out = {axis: m * (seen[axis]["forward"] + seen[axis]["backward"]) for axis in AXES}
    out["pp"] = (plans.pp - 1) / plans.virtual * sends
    if not plans.overlap:
        out["pp"] = out["pp"] + (m - 1) * sends
    out["dp"] = once
    states = plans.states
    numbers = held["optimiser"] / max(states.master + states.moments, 1)
    moved = 2 * held["optimiser"] + numbers * (states.weights + states.gradients)
    return out | {
        "compute": m * sum(compute.values()),
        "work": sum(compute.values()),
        "pass": sum(whole.values()),
        "bubble": bubble_seconds(plans, whole["forward"], whole["backward"] - forward, forward),
        "moved": moved,
    }


@dataclass(frozen=True)
class Step:
    """One training step of one plan.

    Attributes
    ----------
    plan, cluster
        What was priced.
    time_s
        Of the step.
    parts_s
        Its parts, by the names of :data:`PARTS`.
    memory_bytes
        On the fullest GPU, by kind.
    mfu
        FLOPs needed over those that the peak would do in this time.
    """

    plan: Plan
    cluster: Cluster
    time_s: float
    parts_s: dict[str, float]
    memory_bytes: dict[str, int]
    mfu: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens that all GPUs train on in a second."""
        return self.plan.tokens_per_step / self.time_s

    @property
    def joules_per_token(self) -> float:
        """Energy of the GPUs, each at the power it is rated for: hosts and cooling not counted."""
        return self.cluster.power_w * self.plan.world / self.tokens_per_s

    def cost_per_million_tokens(self, price_per_gpu_hour: float) -> float:
        """Return the price of a million tokens, in the currency of the price of a GPU's hour."""
        return price_per_gpu_hour / 3600 * self.plan.world / self.tokens_per_s * 1e6


def step(
    config: ModelConfig,
    plan: Plan,
    cluster: Cluster,
    calibration: Calibration | None = None,
    algorithms: Mapping[str, str] = ALGORITHMS,
) -> Step:
    """Price one plan: a sweep of one.

    Raises
    ------
    PlanError
        If the model cannot be laid out so.

    Examples
    --------
    >>> plan = Plan(dp=8, sequence=1024, global_batch=64, zero=1)
    >>> found = step(ModelConfig.load("gpt2"), plan, Cluster.load("dgx-h100"))
    >>> 0 < found.mfu < 1, found.parts_s["bubble"]
    (True, 0.0)
    """
    plan.check(config)
    row = sweep_steps(config, plan, cluster, calibration, algorithms).iloc[0]
    return Step(
        plan,
        cluster,
        float(row.step_time_s),
        {part: float(row[f"{part}_s"]) for part in PARTS},
        {kind: int(row[kind]) for kind in KINDS},
        float(row.mfu),
    )
