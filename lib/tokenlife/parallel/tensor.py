"""Tensor parallelism: the matrices of a layer are split over neighbouring ranks.

Attention and MLP are each cut by columns going in and by rows coming out [1]_. Going in costs
nothing forward and one sum of gradients backward; coming out costs one sum forward and nothing
backward: four all-reduces a layer and micro-batch, each of tokens × hidden numbers. Where attention
and MLP stand side by side (Falcon, GPT-NeoX) their sums are taken together.

Sequence parallelism [2]_ splits what is left whole (norms, the stream) along the sequence. Each
all-reduce becomes an all-gather going in and a reduce-scatter coming out, of the same volume. With
``regather`` a rank keeps only its part of what it gathered, and gathers once more for the gradient
of the weights. Gradients of what is whole on every rank are then summed over the group.

The embedding table is cut by rows: each rank looks up what it has and the sum is taken. The head
likewise; the loss needs three numbers a token (the largest logit, the right one, the sum of
exponentials), so logits are never gathered.

Latent attention gathers the stream, not its narrow vectors. Left out: norms over a whole projection
(OLMo 2), which would need a sum of their own.

References
----------
.. [1] M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
   parallelism", 2019.
.. [2] V. Korthikanti et al., "Reducing activation recomputation in large transformer models",
   MLSys 2023.
"""

from collections.abc import Iterator

from tokenlife.parallel.ops import Demand
from tokenlife.parallel.plan import Plan
from tokenlife.parallel.shards import Holding
from tokenlife.transformer.config import ModelConfig

FLOAT32 = 4  # the loss is computed in it


def tensor_demands(config: ModelConfig, plan: Plan, held: Holding) -> Iterator[Demand]:
    """Yield what one rank of a pipeline stage asks for."""
    layers, norm, width = held.layers, config.norm, plan.states.weights
    stream, m, sp = plan.tokens * config.hidden, plan.micro_batches, plan.sequence_parallel * 1
    shared = layers.mixtures * bool(config.moe and config.moe.shared_width)
    blocks = 2 * layers.dense + layers.mixtures + shared  # attention and MLP of each layer
    side_by_side = (layers.dense + shared) * norm.parallel
    ins = blocks - side_by_side * norm.shared
    outs = blocks - side_by_side
    again = outs * (plan.recompute == "full")
    into, out_of = "the sequence-parallel part before", "the row-split product"

    def demand(kind: str, phase: str, count, after: str) -> Demand:
        return Demand(kind, "tp", stream, width, phase, count * m, after)

    yield demand("all_reduce", "forward", (1 - sp) * (outs + layers.first), out_of)
    yield demand("all_reduce", "backward", (1 - sp) * (ins + layers.last + again), "its gradient")
    yield demand("all_gather", "forward", sp * (ins + layers.last), into)
    yield demand("reduce_scatter", "forward", sp * (outs + layers.first), out_of)
    redone = ins * (plan.recompute == "full")
    kept_part = (ins + layers.last) * plan.regather
    yield demand("all_gather", "backward", sp * (outs + layers.first + redone), "the gradient")
    yield Demand(
        "all_gather", "tp", stream, width, "backward", sp * kept_part * m, "the gradient",
        "the product for the input's gradient",
    )  # fmt: skip
    yield demand("reduce_scatter", "backward", sp * (ins + layers.last + again), "its gradient")
    loss = ("forward", 3 * layers.last * m, "the head")
    yield Demand("all_reduce", "tp", plan.tokens, FLOAT32, *loss)
    whole = sum(unit.whole * unit.times for unit in held.units)
    per_head = config.attention.qk_norm == "head" and 2 * config.attention.head_dim
    whole = sp * whole + (1 - sp) * (layers.dense + layers.mixtures) * per_head
    times = 1 + (m - 1) * (plan.zero >= 2)  # before gradients are sharded
    yield Demand("all_reduce", "tp", whole, plan.gradient_bytes, "backward", times, "the gradients")
