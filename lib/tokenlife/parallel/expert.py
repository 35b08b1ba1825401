"""Expert parallelism: the experts of a layer lie on different ranks, and tokens travel to them.

Dispatch sends every token to the ranks of its top-k experts, combine sends the results back; the
backward pass makes both ways once more (GShard [1]_, Switch [2]_). Each is an all-to-all of
tokens · k · hidden numbers; under sequence parallelism a rank brings only its part of the tokens.
Where an expert is split over ``etp`` ranks they gather the tokens they received and reduce-scatter
the results. Dispatch may travel narrower than combine (DeepSeek-V3 [3]_: 8 bits out, 16 back).

Node-limited routing [3]_: a token visits at most ``top_groups`` nodes. It is sent once to each of
them (to the rank at the same place in that node), and from there to its experts inside the node.

Assumed: tokens choose evenly, and of equal chances for all nodes a token takes as many as it may.
Left out: capacity and dropped tokens, scales of narrow types, and the small exchange of counts.

References
----------
.. [1] D. Lepikhin et al., "GShard", ICLR 2021.
.. [2] W. Fedus, B. Zoph, N. Shazeer, "Switch transformers", JMLR 2022.
.. [3] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, sections 2.1.2 and 3.2.
"""

from collections.abc import Iterator

import numpy as np

from tokenlife.costs.memory import BYTES
from tokenlife.parallel.ops import Demand
from tokenlife.parallel.plan import Plan
from tokenlife.parallel.shards import Holding
from tokenlife.transformer.config import ModelConfig


def expert_demands(config: ModelConfig, plan: Plan, held: Holding) -> Iterator[Demand]:
    """Yield what one rank of a pipeline stage asks for."""
    if config.moe is None:
        return
    moe, wide = config.moe, plan.states.weights
    narrow = BYTES[plan.dispatch] if plan.dispatch else wide
    times = held.layers.mixtures * plan.micro_batches
    again = times * (plan.recompute == "full")
    tokens = plan.tokens // plan.stream_tp * config.hidden
    visits, limited = tokens * moe.top_k, plan.ep_node > 1
    nodes = np.minimum(moe.top_groups, np.minimum(plan.size("ep_inter"), moe.top_k))
    received = visits * plan.expert_tp
    for phase, count in (("forward", times), ("backward", times + again)):
        for over, numbers, calls in (
            ("ep", visits, count * (1 - limited)),
            ("ep_inter", tokens * nodes, count * limited),
            ("ep_intra", visits, count * limited),
        ):
            yield Demand("all_to_all", over, numbers, narrow, phase, calls, "dispatch")
            yield Demand("all_to_all", over, numbers, wide, phase, calls, "combine")
        yield Demand("all_gather", "etp", received, narrow, phase, count, "dispatch")
        yield Demand("reduce_scatter", "etp", received, wide, phase, count, "the experts")
