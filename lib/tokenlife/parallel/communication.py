"""All dimensions together: what one rank of a job asks of the network in one step."""

from tokenlife.parallel.context import context_demands
from tokenlife.parallel.data import data_demands
from tokenlife.parallel.expert import expert_demands
from tokenlife.parallel.ops import CommOp, Demand, place
from tokenlife.parallel.pipeline import pipeline_demands
from tokenlife.parallel.plan import Plan
from tokenlife.parallel.shards import hold
from tokenlife.parallel.tensor import tensor_demands
from tokenlife.transformer.config import ModelConfig

DIMENSIONS = {
    "tp": tensor_demands,
    "cp": context_demands,
    "ep": expert_demands,
    "pp": pipeline_demands,
    "dp": data_demands,
}


def demands(config: ModelConfig, plan: Plan, stage: int) -> tuple[Demand, ...]:
    """Return what any rank of a pipeline stage asks for; ``stage`` and plan may hold arrays."""
    held = hold(config, plan, stage)
    return tuple(d for ask in DIMENSIONS.values() for d in ask(config, plan, held))


def communication(
    config: ModelConfig, plan: Plan, rank: int = 0, axis: str | None = None
) -> tuple[CommOp, ...]:
    """Return every operation that a rank takes part in during one step.

    Parameters
    ----------
    config, plan
        The model and its layout.
    rank
        Whose; all ranks of one pipeline stage ask for the same, each in its own groups.
    axis
        Only what this axis asks for.

    Raises
    ------
    PlanError
        If the model cannot be laid out so.

    Examples
    --------
    >>> plan = Plan(tp=2, sequence=1024)
    >>> for op in communication(ModelConfig.load("llama-3.1-8b"), plan):
    ...     print(op.axis, op.kind, op.phase, op.count, op.bytes_)
    tp all_reduce forward 65 8388608
    tp all_reduce backward 65 8388608
    tp all_reduce forward 3 4096
    """
    plan.check(config)
    asked = demands(config, plan, plan.coordinates(rank)["pp"])
    return place((d for d in asked if axis in (None, d.axis)), plan, rank)
