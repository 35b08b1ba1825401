"""Context parallelism: each rank holds a part of every sequence, and attention needs the rest.

Three ways to it; all but attention is local. Ring attention [1]_: keys and values travel round the
ring while each rank computes with the block it has; backward they travel once more, with their
gradients, which make one hop more to come home. All-gather [2]_: keys and values of the whole
sequence are gathered at once; backward their gradients are reduce-scattered (and, with
``regather``, keys and values gathered again). With grouped queries they are far narrower than the
stream. Ulysses [3]_: four all-to-alls change from a part of the sequence with all heads to the
whole sequence with a part of the heads, and back.

For causal masks a sequence is cut into 2·cp pieces and rank i holds pieces i and 2·cp − 1 − i, so
that all have the same work. Volumes do not depend on it. A ring in which one rank needs nothing of
later pieces still passes them on. Latent attention sends its expanded keys and values. Left out:
windows, which would need fewer blocks. If the core of attention is recomputed, it asks again.

References
----------
.. [1] H. Liu, M. Zaharia, P. Abbeel, "Ring attention with blockwise transformers for near-infinite
   context", ICLR 2024.
.. [2] Llama Team, "The Llama 3 herd of models", 2024, section 3.3.2.
.. [3] S. Jacobs et al., "DeepSpeed Ulysses", 2023.
"""

from collections.abc import Iterator

from tokenlife.parallel.ops import Demand
from tokenlife.parallel.plan import Plan
from tokenlife.parallel.shards import Holding
from tokenlife.transformer.config import ModelConfig


def context_demands(config: ModelConfig, plan: Plan, held: Holding) -> Iterator[Demand]:
    """Yield what one rank of a pipeline stage asks for."""
    layers, a, width = held.layers, config.attention, plan.states.weights
    times = (layers.dense + layers.mixtures) * plan.micro_batches * (plan.cp > 1)
    again = times * (plan.recompute != "none")
    parts = {
        "queries": a.heads * a.head_dim, "keys": a.kv_heads * a.head_dim,
        "values": a.kv_heads * a.value_dim, "mixed values": a.heads * a.value_dim,
    }  # fmt: skip
    parts = {name: plan.tokens * numbers // plan.tp for name, numbers in parts.items()}
    block = parts["keys"] + parts["values"]
    if plan.cp_method == "ulysses":
        for name, numbers in parts.items():
            for phase, count in (("forward", times), ("backward", times + again)):
                yield Demand("all_to_all", "cp", numbers, width, phase, count, name)
    elif plan.cp_method == "ring":
        hops, added = plan.cp - 1, "the block's gradients are added"
        behind = "attention with the block at hand"
        for phase, count in (("forward", times * hops), ("backward", (times + again) * hops)):
            yield Demand("send", "cp_next", block, width, phase, count, "the block arrived", behind)
        home = times * plan.cp
        yield Demand("send", "cp_next", block, width, "backward", home, added, behind)
    else:
        whole, ready = block * plan.cp, "keys and values"
        yield Demand("all_gather", "cp", whole, width, "forward", times, ready)
        redone = times * plan.regather + again
        yield Demand("all_gather", "cp", whole, width, "backward", redone, ready)
        yield Demand("reduce_scatter", "cp", whole, width, "backward", times, "their gradients")
