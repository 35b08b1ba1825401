"""The compute of one training step: FLOPs, and numbers that pass through memory, by layer.

Matrix products run at a part of the peak; beside them every number that a product reads or writes,
and every activation that is kept, passes through memory (``tokenlife.jobs.step`` says more).
"""

from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

from tokenlife.catalog import read_calibration
from tokenlife.costs.operations import head_operation, layer_operations
from tokenlife.parallel import Plan
from tokenlife.parallel.memory import layer_bytes
from tokenlife.parallel.shards import representative
from tokenlife.transformer import ModelConfig

_ROWS = ("attention out", "MLP down", "experts down", "shared experts down")


@dataclass(frozen=True)
class Calibration:
    """What a machine reaches of what is promised, for all jobs alike.

    Attributes
    ----------
    matmul
        Of the peak, in large matrix products.
    memory
        Of the memory's rate; what passes through it is counted once a kept number.
    inside, between
        Of a link's rate: on the innermost level, and on all others.

    Examples
    --------
    >>> 0.5 < Calibration.fitted().matmul < 1
    True
    """

    matmul: float
    memory: float
    inside: float
    between: float

    @classmethod
    def fitted(cls) -> "Calibration":
        """Return the constants of ``data/hardware/calibration.toml``."""
        table = read_calibration()
        return cls(**{field.name: table[field.name] for field in fields(cls)})


class Work(NamedTuple):
    """What one layer (or the head) does for one sequence, forward.

    ``linear`` and ``core`` are FLOPs; ``whole`` and ``split`` are numbers read and written that
    tensor parallelism leaves whole, or splits; ``weights`` and ``experts`` are parameters read.
    """

    linear: int
    core: int
    whole: int
    split: int
    weights: int
    experts: int


@cache
def layer_work(config: ModelConfig, mixture: bool, length: int, causal: bool) -> Work:
    """Return the work of a layer of a kind; nothing where the model has none."""
    layer, found = representative(config, mixture), [0] * 6
    if layer is None:
        return Work(*found)
    for op in layer_operations(config, layer, 1, length, causal=causal):
        found[op.core] += op.flops
        row = op.name in _ROWS
        ins, outs = (op.reads, op.writes) if row else (op.writes, op.reads)
        found[3] += ins if not op.core else op.reads + op.writes
        found[2] += outs if not op.core else 0
        found[4 + op.name.startswith("experts")] += op.weights
    return Work(*found)


def model_flops(config: ModelConfig, plan: Plan):
    """Return the FLOPs that a step needs, recomputation not counted: three forward passes.

    Of attention the whole square where it is naive, what a causal mask leaves where it is fused.
    """
    causal = plan.attention == "sdpa"
    one = head_operation(config, plan.sequence).flops
    for mixture in (False, True):
        work = layer_work(config, mixture, plan.sequence, causal)
        count = sum(config.is_moe(layer) == mixture for layer in range(config.layers))
        one += count * (work.linear + work.core)
    return 3.0 * one * plan.sequences


def pass_seconds(config, plan, cluster, c):
    """Return seconds of one forward pass of a micro-batch: (dense, mixture, head), and cores."""
    width, causal = plan.states.weights, plan.attention == "sdpa"
    rate, through = cluster.peak(width) * c.matmul, cluster.memory_Bps * c.memory
    share = plan.micro_batch / plan.cp
    times, cores = [], []
    for mixture in (False, True):
        w = layer_work(config, mixture, plan.sequence, causal)
        stream, inputs, inside, core = layer_bytes(
            config, mixture, plan.sequence, width, plan.attention
        )
        numbers = (w.whole + w.split / plan.tp) * share + w.weights / plan.tp
        numbers = numbers + w.experts / (plan.ep * plan.expert_tp)
        kept = (stream / plan.stream_tp + inputs + inside / plan.tp) * share
        core = (w.core / rate + core / through) * share / plan.tp
        linear = w.linear * share / plan.tp / rate + (numbers * width + kept) / through
        times.append(linear + core)
        cores.append(core)
    op = head_operation(config, plan.sequence)
    numbers = (op.reads + 2 * op.writes / plan.tp) * share + op.weights / plan.tp
    head = op.flops * share / plan.tp / rate + numbers * width / through
    return times, cores, head
