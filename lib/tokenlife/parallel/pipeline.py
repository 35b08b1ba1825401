"""Pipeline parallelism: layers are dealt to stages, and micro-batches walk through them.

Between two stages passes the residual stream, forward, and its gradient, backward: tokens × hidden
numbers a micro-batch, whatever the layers hold (GPipe [1]_, PipeDream [2]_). With v model chunks a
stage the stream passes v times as often [3]_. Under sequence parallelism each tensor-parallel rank
sends its own part. First and last stage hold a copy each of a tied embedding, whose gradients are
summed once a step.

When what is sent is told by ``tokenlife.parallel.schedules``.

References
----------
.. [1] Y. Huang et al., "GPipe", NeurIPS 2019.
.. [2] D. Narayanan et al., "PipeDream", SOSP'19.
.. [3] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using
   Megatron-LM", SC'21, sections 2.2 and 4.1.
"""

from collections.abc import Iterator

import numpy as np

from tokenlife.parallel.ops import Demand
from tokenlife.parallel.plan import Plan
from tokenlife.parallel.shards import Holding, folded
from tokenlife.transformer.config import ModelConfig


def pipeline_demands(config: ModelConfig, plan: Plan, held: Holding) -> Iterator[Demand]:
    """Yield what one rank of a pipeline stage sends."""
    layers, m, width = held.layers, plan.micro_batches, plan.states.weights
    numbers = plan.tokens * config.hidden // plan.stream_tp
    ups, downs = plan.virtual - layers.last, plan.virtual - layers.first
    sends = [("forward", "pp_next", ups), ("backward", "pp_previous", downs)]
    if folded(plan):  # one chunk runs up and one runs back; they turn round inside a stage
        ways = ("pp_next", (held.stage < plan.pp - 1) * 1), ("pp_previous", (held.stage > 0) * 1)
        sends = [(phase, *way) for phase in ("forward", "backward") for way in ways]
    behind = "other micro-batches" if plan.overlap else ""
    for phase, to, count in sends:
        made = (phase, count * m, f"{phase} of a chunk", behind)
        yield Demand("send", to, numbers, width, *made)
    table = config.vocab * config.hidden // plan.tp * config.tied
    apart, ready = np.abs(layers.first - layers.last), "the gradients of the last micro-batch"
    yield Demand("all_reduce", "ends", table, plan.gradient_bytes, "backward", apart, ready)
