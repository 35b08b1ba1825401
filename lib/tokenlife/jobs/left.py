"""What each strategy leaves to the network: one line for each, in a table that grows.

A strategy is an axis of parallelism. Its line sums what one GPU sends in a step, over all stages of
the mean, and says between how many ranks, at which level of a cluster, in which calls, behind which
work; and what its calls would take, alone and one after another, were latency twice as long or the
rate half. That last pair says what the strategy waits for.

Left out: what hides, whose share is the time line's to tell (:mod:`tokenlife.jobs.step`).
"""

from collections.abc import Iterable

import pandas as pd

from tokenlife.catalog import running
from tokenlife.jobs import traffic
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.placement import op_seconds, outermost
from tokenlife.parallel import Plan, PlanError
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_time

STRATEGIES = {
    "dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert",
}  # fmt: skip


def left(axes: Iterable[str]) -> pd.DataFrame:
    """Return the lines of the book's large jobs, as ``data/running.toml`` lays them out.

    Examples
    --------
    >>> left(["dp", "tp"])[["strategy", "group"]].values.tolist()
    [['data', 128], ['tensor', 8]]
    """
    jobs = {axis: job for job in running()["large"] for axis in job["axes"]}
    lines = []
    for axis in axes:
        job = jobs[axis]
        config, cluster = ModelConfig.load(job["model"]), Cluster.load(job["cluster"])
        lines.append({"model": config.name, **line(config, Plan(**job["plan"]), cluster, axis)})
    return pd.DataFrame(lines)


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text to be read: a column for each strategy.

    Examples
    --------
    >>> in_words(left(["pp"]))["pipeline"].tolist()[1]
    '1.01 GB'
    """
    rows = {
        "of": table.model,
        "volume per GPU and step": table.bytes.map(format_bytes),
        "group": table.group.map(str) + ", " + table.level,
        "calls per GPU and step": table.calls,
        "behind what": table.behind,
        "all calls, one after another": table.seconds.map(format_time),
        "at twice the latency": table.latency.map("× {:.2f}".format),
        "at half the rate": table.rate.map("× {:.2f}".format),
    }
    return pd.DataFrame(
        {"": list(rows)} | {s: [rows[r][i] for r in rows] for i, s in enumerate(table.strategy)}
    )


def line(config: ModelConfig, plan: Plan, cluster: Cluster, axis: str) -> dict:
    """Return what one axis of a job leaves.

    Parameters
    ----------
    config, plan, cluster
        The job, and where it runs.
    axis
        ``dp``, ``tp``, ``pp``, ``cp`` or ``ep``.

    Returns
    -------
    dict
        ``strategy``; ``bytes`` that a GPU sends in a step, the mean over all; ``group`` and the
        outermost ``level`` that it crosses; ``calls`` in words; ``behind`` which work, and how many
        calls where not all; ``seconds`` of all calls of the busiest stage, one after another;
        ``latency`` and ``rate``: by what factor they grow at twice the latency, and at half the
        rate.

    Raises
    ------
    PlanError
        If the model cannot be laid out so, or the axis leaves nothing.
    """
    found = [row for row in traffic.rows(config, plan) if row.demand.axis == axis]
    if not found:
        raise PlanError(f"axis {axis!r} of size 1 leaves nothing: no line for it")
    sent = sum(r.demand.count * r.sent_bytes * len(r.stages) for r in found) / plan.pp
    calls: dict[str, list[float]] = {}
    for row in found:
        of_kind = calls.setdefault(row.demand.kind.replace("_", "-"), [0.0, 0.0])
        each = row.demand.count * len(row.stages) / plan.pp
        of_kind[0] += each
        of_kind[1] += each * row.demand.bytes_
    behind: dict[str, float] = {}
    for row in found:
        work = row.demand.hides_behind or "nothing"
        behind[work] = behind.get(work, 0.0) + row.demand.count * len(row.stages) / plan.pp
    seconds = {"now": _seconds(found, plan, cluster)}
    for name, change in {"latency": {"latency_s": 2.0}, "rate": {"Bps": 0.5}}.items():
        other = cluster
        for level in cluster.levels:
            other = other.what_if(level.name, **change)
        seconds[name] = _seconds(found, plan, other)
    return {
        "strategy": STRATEGIES[axis],
        "bytes": float(sent),
        "group": max(row.group_size for row in found),
        "level": outermost(plan, max(found, key=lambda r: r.group_size).demand.over, cluster),
        "calls": "; ".join(
            f"{count:,.0f} × {kind} of {format_bytes(total / count, 2)}"
            for kind, (count, total) in calls.items()
        ),
        "behind": "; ".join(
            work + f" ({count:,.0f} calls)" * (len(behind) > 1) for work, count in behind.items()
        ),
        "seconds": seconds["now"],
        "latency": seconds["latency"] / seconds["now"],
        "rate": seconds["rate"] / seconds["now"],
    }


def _seconds(found, plan: Plan, cluster: Cluster) -> float:
    """Return the seconds of all calls of the stage that takes longest."""
    stages = dict.fromkeys(range(plan.pp), 0.0)
    for row in found:
        once = float(op_seconds(row.demand, plan, cluster))
        for stage in row.stages:
            stages[stage] += row.demand.count * once
    return max(stages.values())
