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
    if folded(plan):  # one chunk runs up, one runs back; each turns round inside a stage
        up, down = (held.stage < plan.pp - 1) * 1, (held.stage > 0) * 1
        sends = {"forward": (up, down), "backward": (up, down)}
    else:
        zero = 0 * layers.last
        sends = {
            "forward": (plan.virtual - layers.last, zero),
            "backward": (zero, plan.virtual - layers.first),
        }
    behind = "other micro-batches" if plan.overlap else ""
    for phase, counts in sends.items():
        for group, count in zip(("pp_next", "pp_previous"), counts, strict=True):
            yield Demand(
                "send", group, numbers, width, phase, count * m, f"{phase} of a chunk", behind
            )
    table = config.vocab * config.hidden // plan.tp * config.tied
    apart = np.abs(layers.first - layers.last)
    yield Demand(
        "all_reduce", "ends", table, plan.gradient_bytes, "backward", apart,
        "the gradients of the last micro-batch",
    )  # fmt: skip
