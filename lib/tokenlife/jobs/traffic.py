"""What a job puts on the network in one step: by axis, by phase, by pair of ranks, by token.

Every rank of a pipeline stage asks for the same, so a job is a list of demands for each stage
(``tokenlife.parallel``), priced with one collective algorithm for each kind: rings, and for
all-to-all one message to each peer. The same formulas price a million plans at once
(:func:`sweep`) or one (:func:`traffic`), which is a sweep of one.

Counted is payload that a rank sends. Wire bytes take every message as one write, of the mean size
of the algorithm's messages, and every link as a network: that some ranks share a machine is for
placement to say. Left out: acknowledgements, and what ``tokenlife.parallel`` leaves out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from tokenlife.collectives import algorithm, build
from tokenlife.parallel import Demand, Plan, Plans, demands
from tokenlife.parallel.memory import KINDS, memory
from tokenlife.parallel.ranks import AXIS_OF
from tokenlife.transformer import ModelConfig
from tokenlife.wire import PacketFormat

ALGORITHMS = {
    "all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "all_to_all": "linear",
}  # fmt: skip
BATCH = 1024  # plans priced together: their arrays stay in the processor's cache
AXES = tuple(dict.fromkeys(AXIS_OF.values()))


def sent(demand: Demand, plan: Plan, algorithms: Mapping[str, str] = ALGORITHMS):
    """Return (rounds, bytes) of the payload that one rank sends for a demand, once."""
    if demand.kind == "send":
        return 1, demand.bytes_
    terms = algorithm(demand.kind, algorithms[demand.kind]).terms
    priced = terms(plan.size(demand.over), demand.bytes_)
    return priced.rounds, priced.sent_bytes


def sweep(
    config: ModelConfig, plans: Plan, algorithms: Mapping[str, str] = ALGORITHMS
) -> pd.DataFrame:
    """Price plans: volumes and memory, one row for each.

    Parameters
    ----------
    config
        The model.
    plans
        A :class:`~tokenlife.parallel.plan.Plans`, or one plan. None is refused:
        ``plans.legal(config)`` says which to believe.
    algorithms
        For each kind of collective.

    Returns
    -------
    pandas.DataFrame
        For each axis the bytes that a GPU sends in a step (``dp`` …: the mean over all GPUs;
        ``dp_busiest`` …: the most of any); ``weights``, ``gradients``, ``optimiser``,
        ``activations`` and ``total``: bytes on the GPU that holds most.

    Examples
    --------
    >>> table = sweep(ModelConfig.load("llama-3.1-8b"), Plans(dp=[1, 2, 4], sequence=1024))
    >>> [round(gigabytes, 1) for gigabytes in table["dp"] / 1e9]
    [0.0, 32.1, 48.2]
    """
    return in_batches(plans, BATCH, lambda part: _sweep(config, part, algorithms))


def in_batches(plans: Plan, size: int, price: Callable[[Plans], pd.DataFrame]) -> pd.DataFrame:
    """Price plans, or one plan, so many at a time; one table of all."""
    plans = Plans(**{field.name: getattr(plans, field.name) for field in fields(plans)})
    parts = (plans.take(slice(i, i + size)) for i in range(0, len(plans.pp), size))
    return pd.concat(map(price, parts), ignore_index=True)


def _sweep(config: ModelConfig, plans: Plans, algorithms: Mapping[str, str]) -> pd.DataFrame:
    """Price a line for each plan and stage, then take the mean and the most of each plan."""
    which, starts = np.repeat(np.arange(len(plans.pp)), plans.pp), np.cumsum(plans.pp) - plans.pp
    each, stage = plans.take(which), np.arange(len(which)) - starts[which]
    volumes, table = {axis: np.zeros(len(which)) for axis in AXES}, {}
    for demand in demands(config, each, stage):
        if np.any(demand.count):
            volumes[demand.axis] += demand.count * sent(demand, each, algorithms)[1]
    for axis, volume in volumes.items():
        table[axis] = np.add.reduceat(volume, starts) / plans.pp
        table[f"{axis}_busiest"] = np.maximum.reduceat(volume, starts)
    held = memory(config, each, stage)
    most = np.maximum.reduceat(held["total"], starts)[which] == held["total"]
    fullest = np.flatnonzero(most)[np.unique(which[most], return_index=True)[1]]
    return pd.DataFrame(table | {kind: held[kind][fullest] for kind in (*KINDS, "total")})


class Row(NamedTuple):
    """A demand of one or more stages.

    Attributes
    ----------
    demand
        What each rank of these stages asks for.
    group_size
        Ranks that perform it together.
    stages
        Which pipeline stages.
    rounds, sent_bytes
        Messages that a rank sends each time, and their payload.
    """

    demand: Demand
    group_size: int
    stages: tuple[int, ...]
    rounds: int
    sent_bytes: float


def rows(
    config: ModelConfig, plan: Plan, algorithms: Mapping[str, str] = ALGORITHMS
) -> tuple[Row, ...]:
    """List what the ranks of a job ask for in one step.

    Raises
    ------
    PlanError
        If the model cannot be laid out so.
    """
    plan.check(config)
    return collect(plan, lambda stage: demands(config, plan, stage), algorithms)


def collect(
    plan: Plan,
    ask: Callable[[int], Iterable[Demand]],
    algorithms: Mapping[str, str] = ALGORITHMS,
) -> tuple[Row, ...]:
    """List what moves of what each stage asks for; what several stages ask for alike is one row."""
    stages: dict[Demand, list[int]] = {}
    for stage in range(plan.pp):
        for d in ask(stage):
            if d.moves(plan):
                d = replace(d, items=int(d.items), count=int(d.count))
                stages.setdefault(d, []).append(stage)
    return tuple(
        Row(d, int(plan.size(d.over)), tuple(where), *sent(d, plan, algorithms))
        for d, where in stages.items()
    )


def wire_bytes(found: tuple[Row, ...], plan: Plan, packets: PacketFormat) -> int:
    """Return what all messages of a step occupy on their first link, preambles and gaps included.

    Examples
    --------
    >>> from tokenlife.wire import tcp_over_ethernet
    >>> plan = Plan(dp=2, sequence=64)
    >>> found = rows(ModelConfig.load("gpt2"), plan)
    >>> round(wire_bytes(found, plan, tcp_over_ethernet(1500)) / (2 * found[0].sent_bytes), 3)
    1.062
    """
    total = 0
    for row in found:
        message = packets.frame(int(np.ceil(row.sent_bytes / row.rounds))).wire_bytes
        total += message * int(row.rounds) * row.demand.count * len(row.stages)
    return total * (plan.world // plan.pp)


def matrix(
    config: ModelConfig, plan: Plan, algorithms: Mapping[str, str] = ALGORITHMS
) -> pd.DataFrame:
    """Return who sends how much payload to whom in one step.

    Returns
    -------
    pandas.DataFrame
        ``axis``, ``phase``, ``src``, ``dst``, ``bytes``; pairs that exchange nothing are left out.

    Examples
    --------
    >>> pairs = matrix(ModelConfig.load("gpt2"), Plan(dp=3, sequence=64))
    >>> pairs[["src", "dst"]].values.tolist(), int(pairs["bytes"].sum()) // 124439808
    ([[0, 1], [1, 2], [2, 0]], 16)
    """
    keys, pieces = ["axis", "phase", "src", "dst"], []
    for d, group_size, stages, *_ in rows(config, plan, algorithms):
        src, dst, bytes_ = _pairs(d, group_size, algorithms)
        groups = np.array(plan.groups(d.over))
        groups = groups[np.isin(plan.coordinates(groups[:, 0])["pp"], stages)]
        ends = {"src": groups[:, src].ravel(), "dst": groups[:, dst].ravel()}
        sent_bytes = np.tile(bytes_ * d.count, len(groups))
        pieces.append(pd.DataFrame({"axis": d.axis, "phase": d.phase, **ends, "bytes": sent_bytes}))
    found = pd.concat(pieces) if pieces else pd.DataFrame(columns=[*keys, "bytes"])
    return found.groupby(keys, as_index=False)["bytes"].sum()


def _pairs(demand: Demand, ranks: int, algorithms: Mapping[str, str]):
    """Return (src, dst, bytes) of one operation, by places in its group."""
    if demand.kind == "send":
        return np.array([0]), np.array([1]), np.array([demand.bytes_])
    schedule = build(demand.kind, algorithms[demand.kind], ranks)
    offsets = schedule.chunk_offsets(demand.items) * demand.item_bytes
    total = np.zeros((ranks, ranks), dtype=np.int64)
    for i in range(len(schedule.rounds)):
        src, dst, size, _ = schedule.messages(i, offsets)
        total[src, dst] += size
    src, dst = np.nonzero(total)
    return src, dst, total[src, dst]
