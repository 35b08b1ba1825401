"""Which layers a pipeline stage holds, and how many of their parameters one rank holds.

Layers are dealt to pp · virtual chunks in order, as evenly as can be, the first chunks larger by
one; with ``plan.balance`` embedding and head count as a layer each (Llama 3 took one layer from the
first and one from the last stage). Chunk c lies on stage c mod pp; ``zb-v`` folds instead: the
second half of the chunks runs back from the last stage to the first.

Tensor parallelism splits the projections of attention and MLP by heads and columns, and embedding
and head by rows of the vocabulary (Shoeybi et al. 2019). Whole on every rank stay norms, biases
that are added after a sum over ranks, routers, learned positions, and the narrow projections of
latent attention. A tied head is held twice where first and last stage differ.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from tokenlife.costs.parameters import layer_parameters, parameters_by_part
from tokenlife.parallel.plan import Plan
from tokenlife.transformer.config import ModelConfig


class Layers(NamedTuple):
    """Layers of each kind on a stage, and whether embedding and head are there (0 or 1)."""

    dense: int
    mixtures: int
    first: int
    last: int


class Unit(NamedTuple):
    """A part of the model that is sharded and gathered as one, as it lies on one rank.

    ``split`` and ``whole`` are numbers held of what tensor parallelism splits and leaves whole,
    ``experts`` of routed experts; ``times`` how many such units the rank holds.
    """

    name: str
    split: int
    whole: int
    experts: int
    times: int


def layers_on(config: ModelConfig, plan: Plan, stage: int) -> Layers:
    """Return what lies on a stage.

    Examples
    --------
    >>> plan = Plan(pp=16, balance=True)
    >>> [int(layers_on(ModelConfig.load("llama-3.1-405b"), plan, s).dense) for s in (0, 1, 15)]
    [7, 8, 7]
    """
    chunks = plan.pp * plan.virtual
    share, rest = np.divmod(config.layers + 2 * plan.balance, chunks)
    before = _mixtures_before(config)
    total = mixtures = 0
    for k in range(np.max(plan.virtual)):
        chunk = k * plan.pp + (plan.pp - 1 - stage if folded(plan) and k % 2 else stage)
        edges = [c * share + np.minimum(c, rest) - plan.balance for c in (chunk, chunk + 1)]
        start, end = (np.clip(edge, 0, config.layers) for edge in edges)
        held = k < plan.virtual
        total = total + (end - start) * held
        mixtures = mixtures + (before[end] - before[start]) * held
    last = stage == (0 if folded(plan) else plan.pp - 1)
    return Layers(total - mixtures, mixtures, (stage == 0) * 1, last * 1)


def folded(plan: Plan) -> bool:
    """Say whether the chunks of the model run to the last stage and back."""
    return plan.schedule == "zb-v"


@cache
def _mixtures_before(config: ModelConfig) -> np.ndarray:
    return np.cumsum([0, *(config.is_moe(layer) for layer in range(config.layers))])


@cache
def representative(config: ModelConfig, mixture: bool) -> int | None:
    """Return the last layer of a kind, or None where the model has none."""
    return max((i for i in range(config.layers) if config.is_moe(i) == mixture), default=None)


@cache
def _layer(config: ModelConfig, mixture: bool) -> tuple[int, int, int]:
    """Return (split, whole, experts) of one layer, over all ranks."""
    layer = representative(config, mixture)
    if layer is None:
        return 0, 0, 0
    parts, a, hidden = layer_parameters(config, layer), config.attention, config.hidden
    narrow = (hidden + a.qkv_bias) * (a.query_rank + (a.kv_rank + a.rope_dim) * bool(a.kv_rank))
    biased = config.mlp.bias and ("mlp" in parts) + ("shared experts" in parts)
    whole = narrow + hidden * (a.out_bias + biased) + parts["norms"] + parts.get("router", 0)
    experts = parts.get("experts", 0)
    return sum(parts.values()) - whole - experts, whole, experts


class Holding(NamedTuple):
    """What a rank of one pipeline stage holds: its layers, and its units of parameters."""

    stage: int
    layers: Layers
    units: tuple[Unit, ...]

    def parameters(self) -> tuple[int, int]:
        """Return how many numbers: of routed experts, and all others."""
        others = sum((unit.split + unit.whole) * unit.times for unit in self.units)
        return sum(unit.experts * unit.times for unit in self.units), others


def hold(config: ModelConfig, plan: Plan, stage: int) -> Holding:
    """Return what a rank of a stage holds: layers of each kind, embedding, head.

    Examples
    --------
    >>> held = hold(ModelConfig.load("llama-3.1-405b"), Plan(tp=8, pp=16), stage=1)
    >>> int(held.layers.dense), int(held.parameters()[1])
    (8, 3187933184)
    """
    layers, norm, parts = layers_on(config, plan, stage), config.norm, parameters_by_part(config)
    units = []
    for mixture, name in enumerate(("layer", "mixture")):
        split, whole, experts = _layer(config, bool(mixture))
        experts = experts // (plan.ep * plan.expert_tp) if experts else 0
        units.append(Unit(name, split // plan.tp if split else 0, whole, experts, layers[mixture]))
    vector = config.hidden * (2 if norm.bias else 1)
    table = config.vocab * config.hidden
    own = table * (layers.first == 0) if config.tied else table
    own = own + config.head_bias * config.vocab
    first = parts["position embedding"] + norm.embedding * vector
    units.append(Unit("embedding", table // plan.tp, first, 0, layers.first))
    units.append(Unit("head", own // plan.tp, norm.final * vector, 0, layers.last))
    return Holding(stage, layers, tuple(units))
