"""Activations: what autograd keeps of a forward pass until the backward pass has used it.

Counted tensor by tensor for the decoder of ``tokenlife.transformer.model``, on both of its
attention paths, without dropout. ``naive`` keeps the square of probabilities; ``sdpa`` (one fused
kernel) keeps queries, keys, values, its output and one logarithm a query.

Recomputation: ``selective`` drops what only the core of attention needs (its inputs stay);
``full`` keeps the input of each layer and nothing inside it, so that only one layer at a time is
ever whole: :func:`peak_activation_bytes` adds that one.

Left out: dropout masks, the loss, temporary tensors of a kernel, and gradients on their way back.
"""

from dataclasses import dataclass

from tokenlife.costs.flops import RECOMPUTE
from tokenlife.costs.operations import CostError, check_batch
from tokenlife.transformer.config import ModelConfig

PATHS = ("naive", "sdpa")
WIDE = 4  # statistics of norms and of softmax stay in float32
INDEX = 8  # int64


@dataclass(frozen=True)
class Kept:
    """One tensor that is kept.

    Attributes
    ----------
    part
        ``norms``, ``attention``, ``core``, ``mlp``, ``router``, ``experts`` or ``head``.
    what
        What it is.
    numbers
        How many.
    width
        Bytes of a number where its type does not follow the model's; 0 where it does.
    """

    part: str
    what: str
    numbers: int
    width: int = 0

    def bytes_(self, bytes_per_number: int) -> int:
        """Bytes, in a model of such numbers."""
        return self.numbers * (self.width or bytes_per_number)


def norm_kept(config: ModelConfig, tokens: int, name: str) -> list[Kept]:
    """List what one norm of the residual stream keeps, its output (the next input) included."""
    size = tokens * config.hidden
    kept = [Kept("norms", f"{name}: input", size), Kept("norms", f"{name}: output", size)]
    if config.norm.kind == "layernorm":
        return [*kept, Kept("norms", f"{name}: mean and deviation", 2 * tokens, WIDE)]
    return [
        *kept,
        Kept("norms", f"{name}: before its weight", size),
        Kept("norms", f"{name}: deviation", tokens, WIDE),
    ]


def layer_kept(
    config: ModelConfig, layer: int, sequences: int, length: int, attention: str = "naive"
) -> list[Kept]:
    """List what one layer keeps."""
    if attention not in PATHS:
        raise CostError(f"attention {attention!r} is not known; known: {', '.join(PATHS)}")
    tokens = sequences * length
    a = config.attention
    kept = [*norm_kept(config, tokens, "before attention")]
    kept += [
        Kept("attention", "queries", tokens * a.heads * a.head_dim),
        Kept("attention", "keys", tokens * a.kv_heads * a.head_dim),
        Kept("attention", "values", tokens * a.kv_heads * a.value_dim),
        Kept("core", "probabilities", sequences * a.heads * length * length),
        Kept("attention", "heads, joined", tokens * a.heads * a.value_dim),
    ]
    kept += norm_kept(config, tokens, "before the MLP")
    inner = tokens * config.mlp.width
    kept += [Kept("mlp", "before the activation", inner), Kept("mlp", "inside", inner)]
    if config.mlp.gated:
        kept += [Kept("mlp", "activation", inner), Kept("mlp", "gated", inner)]
    return kept


def stage_activations(
    config: ModelConfig,
    sequences: int,
    length: int,
    bytes_per_number: int = 4,
    attention: str = "naive",
    recompute: str = "none",
) -> dict[str, int]:
    """Return the bytes that each stage keeps."""
    check_batch(config, sequences, length)
    if recompute not in RECOMPUTE:
        raise CostError(f"recompute {recompute!r} is not known; known: {', '.join(RECOMPUTE)}")
    tokens = sequences * length
    learned = config.position.kind == "learned"
    stages = {"embedding": (tokens + learned * length) * INDEX}
    for layer in range(config.layers):
        kept = layer_kept(config, layer, sequences, length, attention)
        if recompute == "selective":
            kept = [item for item in kept if item.part != "core"]
        if recompute == "full":
            kept = [Kept("layer", "input", tokens * config.hidden)]
        stages[f"layer {layer}"] = sum(item.bytes_(bytes_per_number) for item in kept)
    head = norm_kept(config, tokens, "before the head")
    stages["head"] = sum(item.bytes_(bytes_per_number) for item in head)
    return stages


def activation_bytes(
    config: ModelConfig,
    sequences: int,
    length: int,
    bytes_per_number: int = 4,
    attention: str = "naive",
    recompute: str = "none",
) -> int:
    """Return the bytes that the whole model keeps.

    Examples
    --------
    >>> activation_bytes(ModelConfig.load("gpt2"), 1, 1024)
    1214472192
    """
    kept = stage_activations(config, sequences, length, bytes_per_number, attention, recompute)
    return sum(kept.values())
