"""Inference: what one forward pass of a served model asks of the network.

Prefill and decode differ only in how many new tokens a pass has. There is no backward pass, so each
dimension asks for its forward half: two all-reduces a layer of tokens × hidden numbers under tensor
parallelism (Pope et al. [1]_ call it 1D weight-stationary and count 2·B·L·E numbers for each),
dispatch and combine at every mixture of experts, a send between two pipeline stages. Instead of a
loss there is a draw: the logits of the sampled tokens, split by rows of the vocabulary, are
gathered.

Where another machine decodes, the keys and values of the prompt follow it (:func:`kv_bytes`).

Assumed: the tokens of a pass are padded to a multiple of tp where they are split over it. Left out:
context parallelism, ids sent back to the first stage, draws on each rank's own part of the logits,
and 2D layouts of the weights.

References
----------
.. [1] R. Pope et al., "Efficiently scaling transformer inference", MLSys 2023, section 3.
"""

from collections.abc import Iterator
from dataclasses import replace

from tokenlife.costs.memory import kv_cache_bytes
from tokenlife.parallel.expert import expert_demands
from tokenlife.parallel.ops import CommOp, Demand, place
from tokenlife.parallel.pipeline import pipeline_demands
from tokenlife.parallel.plan import Plan, PlanError
from tokenlife.parallel.shards import hold, layers_on
from tokenlife.parallel.tensor import tensor_demands
from tokenlife.transformer.config import ModelConfig


def check_layout(config: ModelConfig, plan: Plan) -> Plan:
    """Return the plan, if the model can be served so.

    Raises
    ------
    PlanError
        If it cannot, or the plan splits the context.
    """
    if plan.cp > 1:
        raise PlanError(f"serving is counted without context parallelism; cp=1, not {plan.cp}")
    replace(plan, micro_batch=1, global_batch=0, sequence=plan.stream_tp).check(config)
    return plan


def pass_demands(
    config: ModelConfig, plan: Plan, tokens: int, sampled: int, stage: int = 0
) -> Iterator[Demand]:
    """Yield what one rank of a stage asks for in one forward pass.

    Parameters
    ----------
    config, plan
        The model and its layout; each data-parallel rank has a batch of its own.
    tokens
        New tokens of one such batch: rows of a decode step, or tokens of prompts.
    sampled
        How many of them a next token is drawn from.
    stage
        The pipeline stage.

    Examples
    --------
    >>> ops = pass_demands(ModelConfig.load("llama-3.1-8b"), Plan(tp=2), tokens=8, sampled=8)
    >>> [(op.kind, int(op.count), op.bytes_) for op in ops if op.count]
    [('all_reduce', 65, 65536), ('all_gather', 1, 2052096)]
    """
    padded = -(-tokens // plan.stream_tp) * plan.stream_tp
    at = replace(plan, micro_batch=1, global_batch=0, sequence=padded)
    held = hold(config, at, stage)
    for dimension in (tensor_demands, expert_demands, pipeline_demands):
        for demand in dimension(config, at, held):
            if demand.phase == "forward" and demand.after != "the head":
                yield replace(demand, hides_behind="")
    logits = sampled * config.vocab
    width = at.states.weights
    yield Demand("all_gather", "tp", logits, width, "forward", held.layers.last, "the head")


def pass_ops(
    config: ModelConfig, plan: Plan, tokens: int, sampled: int, rank: int = 0
) -> tuple[CommOp, ...]:
    """Return every operation that a rank takes part in during one forward pass.

    Raises
    ------
    PlanError
        If the model cannot be served so, or a pass has no tokens.
    """
    if tokens < 1 or not 0 <= sampled <= tokens:
        raise PlanError(f"a pass has one token at least and draws from 0 to all, not {sampled} "
                        f"of {tokens}")  # fmt: skip
    check_layout(config, plan)
    stage = plan.coordinates(rank)["pp"]
    return place(pass_demands(config, plan, tokens, sampled, stage), plan, rank)


def kv_bytes(config: ModelConfig, plan: Plan, length: int, stage: int = 0) -> float:
    """Return the bytes of cache that one rank of a stage holds of one sequence.

    Heads of keys and values are split over tensor-parallel ranks; a latent vector is whole on each.
    Windowed layers are taken to be dealt evenly to the stages.

    Examples
    --------
    >>> config, plan = ModelConfig.load("llama-3.1-70b"), Plan(tp=8)
    >>> float(kv_bytes(config, plan, 131072)) * 8 / 2**30
    40.0
    """
    layers = layers_on(config, plan, stage)
    share = (layers.dense + layers.mixtures) / config.layers
    split = 1 if config.attention.kv_rank else plan.tp
    return kv_cache_bytes(config, 1, length, plan.states.weights) * share / split
