"""Bytes that one rank holds, by kind: weights, gradients, optimiser states, activations.

States: the numbers that tensor, pipeline and expert parallelism leave on the rank, times the bytes
of the recipe; ZeRO divides optimiser states (1), gradients (2) and weights (3) by the ranks that
shard them.

Activations: what ``tokenlife.costs.activations`` counts tensor by tensor for a layer, divided as
the tensors are. Context parallelism divides all of it, tensor parallelism what lies inside
attention and MLP, sequence parallelism the stream and norms too (Korthikanti et al. 2023). Times
the micro-batches that the pipeline schedule keeps in flight. The loss keeps one 32-bit probability
for each logit. With recomputation one layer at a time is whole again.

Left out: one unit's gathered weights under ZeRO-3, buffers of communication and kernels, and
fragmentation. Experts are taken to be visited evenly; what ``etp`` gathers is not kept.
"""

from functools import cache

import numpy as np

from tokenlife.costs.activations import layer_kept
from tokenlife.parallel.plan import Plan
from tokenlife.parallel.shards import Holding, hold, representative
from tokenlife.transformer.config import ModelConfig

KINDS = ("weights", "gradients", "optimiser", "activations")
LOGIT_BYTES = 4


def memory(config: ModelConfig, plan: Plan, stage: int = 0) -> dict[str, int]:
    """Return the bytes that a rank of a pipeline stage holds, by kind, and their ``total``.

    Examples
    --------
    >>> plan = Plan(dp=64, zero=1, recipe="mixed", sequence=1024)
    >>> held = memory(ModelConfig.load("gpt2"), plan)
    >>> int(held["weights"]), int(held["optimiser"])
    (248879616, 23332464)
    """
    held, states = hold(config, plan, stage), plan.states
    numbers = held.parameters()
    shards = plan.size("edp"), plan.size("shard")

    def split(bytes_: int, least_zero: int) -> int:
        ranks = (1 + (size - 1) * (plan.zero >= least_zero) for size in shards)
        return sum(-(-n // r) * bytes_ for n, r in zip(numbers, ranks, strict=True))

    found = {
        "weights": split(states.weights, 3),
        "gradients": split(states.gradients, 2),
        "optimiser": split(states.master + states.moments, 1),
        "activations": activations(config, plan, held),
    }
    return found | {"total": sum(found.values())}


def in_flight(plan: Plan, stage: int) -> int:
    """Return how many micro-batches of one chunk a stage holds at most.

    Equal to what ``tokenlife.jobs.timeline`` finds by playing the schedules; of ``zb-v`` with fewer
    than 2·pp − 1 micro-batches an upper bound.

    Examples
    --------
    >>> [int(in_flight(Plan(pp=4, global_batch=8), stage)) for stage in range(4)]
    [4, 3, 2, 1]
    """
    number, after = plan.micro_batches * plan.virtual, plan.pp - 1 - stage
    most = {
        "gpipe": number, "1f1b": after + 1, "zb-h1": plan.pp, "zb-h2": 2 * plan.pp - 1,
        "zb-v": 2 * plan.pp, "interleaved": 2 * after + (plan.virtual - 1) * plan.pp + 1,
    }  # fmt: skip
    return np.minimum(number, most[plan.schedule])


def activations(config: ModelConfig, plan: Plan, held: Holding) -> int:
    """Return the bytes of activations that a rank of a stage holds at most."""
    layers, width, sp, tp = held.layers, plan.states.weights, plan.stream_tp, plan.tp
    gathered = 1 + (sp - 1) * plan.regather
    kept = once = 0
    for mixture in range(2 if config.moe else 1):
        count = layers[mixture]
        one = (bool(mixture), plan.sequence, width, plan.attention)
        stream, inputs, inside, core = layer_bytes(config, *one)
        rest = stream // sp + inputs // gathered + inside // tp
        whole = rest + core // tp
        saved = {
            "none": whole, "selective": rest, "full": plan.sequence * config.hidden * width // sp,
        }[plan.recompute]  # fmt: skip
        kept = kept + count * saved
        once = np.maximum(once, (count > 0) * (whole - saved))
    head = plan.sequence * (2 * config.hidden * width // sp + config.vocab // tp * LOGIT_BYTES)
    kept = (kept + layers.last * head) * in_flight(plan, held.stage) // plan.virtual
    return (kept + once) * plan.micro_batch // plan.cp


@cache
def layer_bytes(config: ModelConfig, mixture: bool, length: int, width: int, attention: str):
    """Return a layer's bytes for one sequence: stream, inputs of its blocks, inside, core."""
    layer, found = representative(config, mixture), [0, 0, 0, 0]
    for item in layer_kept(config, layer, 1, length, attention) if layer is not None else ():
        kind = {"norms": 0, "router": 0, "core": 3}.get(item.part, 2)
        found[1 if item.what.startswith("input of") else kind] += item.bytes_(width)
    return tuple(found)
