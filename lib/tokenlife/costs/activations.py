"""Activations: what autograd keeps of a forward pass until the backward pass has used it.

Counted tensor by tensor for ``tokenlife.transformer.model.Decoder`` in float32 on a CPU, on both of
its attention paths. ``naive`` keeps the square of probabilities; ``sdpa`` (one fused kernel) keeps
queries, keys, values, its output and one logarithm a query.

Recomputation: ``selective`` drops what only the core of attention needs (its inputs stay);
``full`` keeps the input of each layer and nothing inside it. While its backward pass runs, one
layer at a time is whole again: that is in :func:`peak_activation_bytes`.

In 16 bits the numbers are taken to be half as wide, but for statistics. Real kernels differ there:
a CPU's RMSNorm keeps what it normalises in float32, a GPU's fused one keeps a tensor less. Left
out: dropout masks, the loss, temporary tensors of a kernel, gradients on their way back.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tokenlife.costs.flops import RECOMPUTE
from tokenlife.costs.operations import CostError, check_batch
from tokenlife.transformer.config import ModelConfig

PATHS = ("naive", "sdpa")
WIDE = 4  # statistics stay in float32
INDEX = 8  # int64


@dataclass(frozen=True)
class Kept:
    """One tensor that is kept.

    Attributes
    ----------
    part
        ``norms``, ``attention``, ``core``, ``mlp``, ``router``, ``experts`` or ``shared``.
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


def layer_kept(
    config: ModelConfig, layer: int, sequences: int, length: int, attention: str = "naive"
) -> tuple[Kept, ...]:
    """List what one layer keeps.

    Raises
    ------
    CostError
        If the attention path is not known.

    Examples
    --------
    >>> kept = layer_kept(ModelConfig.load("gpt2"), 0, sequences=1, length=1024)
    >>> max(kept, key=lambda item: item.numbers)
    Kept(part='core', what='probabilities', numbers=12582912, width=0)
    """
    if attention not in PATHS:
        raise CostError(f"attention {attention!r} is not known; known: {', '.join(PATHS)}")
    return (
        *_stream(config, sequences * length),
        *_projections(config, sequences, length),
        *_core(config, layer, sequences, length, attention),
        *(_mixture if config.is_moe(layer) else _dense)(config, sequences * length),
    )


def _norm(config: ModelConfig, vectors: int, width: int, name: str) -> Iterator[Kept]:
    """Yield what a norm makes and keeps; its input and output are their makers' to count."""
    if config.norm.kind == "layernorm":
        yield Kept("norms", f"{name}: mean and deviation", 2 * vectors, WIDE)
        return
    yield Kept("norms", f"{name}: before its weight", vectors * width)
    yield Kept("norms", f"{name}: deviation", vectors, WIDE)
    if config.norm.unit_offset:
        yield Kept("norms", f"{name}: its weight plus 1", width)


def _stream(config: ModelConfig, tokens: int) -> Iterator[Kept]:
    """Yield the residual stream, and what the norms around attention and MLP keep."""
    norm, size = config.norm, tokens * config.hidden
    yield Kept("norms", "stream before attention", size)
    if not norm.parallel:
        yield Kept("norms", "stream before the MLP", size)
    for name in ("attention", "MLP") if not norm.shared else ("both",):
        if norm.placement in ("pre", "both"):
            yield from _norm(config, tokens, config.hidden, f"before {name}")
            yield Kept("norms", f"input of {name}", size)
        if norm.placement in ("post", "both"):
            yield Kept("norms", f"output of {name}", size)
            yield from _norm(config, tokens, config.hidden, f"after {name}")


def _projections(config: ModelConfig, sequences: int, length: int) -> Iterator[Kept]:
    """Yield queries, keys, values, and what makes them."""
    a, tokens = config.attention, sequences * length
    values = a.value_dim
    if a.kv_rank:
        if a.query_rank:
            narrow = 2 * tokens * a.query_rank
            yield Kept("attention", "narrow query, before and after its norm", narrow)
            yield from _norm(config, tokens, a.query_rank, "narrow query")
        latent = 2 * tokens * (a.kv_rank + a.rope_dim)
        yield Kept("attention", "latent, before and after its norm", latent)
        yield from _norm(config, tokens, a.kv_rank, "latent")
        if 1 in (sequences, length, a.heads):
            # Values are then read in place, in one tensor with the keys they were made with.
            values += a.head_dim - a.rope_dim
    for name, heads in (("queries", a.heads), ("keys", a.kv_heads)):
        width = heads * a.head_dim
        yield Kept("attention", name, tokens * width)
        if a.qk_norm:
            yield Kept("attention", f"{name} before their norm", tokens * width)
            vectors = tokens * (heads if a.qk_norm == "head" else 1)
            yield from _norm(config, vectors, tokens * width // vectors, name)
    yield Kept("attention", "values", tokens * a.kv_heads * values)
    yield Kept("attention", "heads, joined", tokens * a.heads * a.value_dim)


def _core(config, layer, sequences, length, attention) -> Iterator[Kept]:
    """Yield what the core of attention keeps between queries and mixed values."""
    a = config.attention
    rows = sequences * a.heads * length
    if attention == "sdpa" and _fused(config):
        yield Kept("core", "logarithm of each query's sum", rows, WIDE)
        if config.position.kind == "rope" and 1 not in (length, a.heads):
            # The kernel's output lies as its queries do; turned ones lie head by head.
            yield Kept("core", "mixed values, head by head", rows * a.value_dim)
        return
    if a.softcap:
        yield Kept("core", "scores under the cap", rows * length)
    yield Kept("core", "probabilities", rows * (length + a.sinks))


def _fused(config: ModelConfig) -> bool:
    """Say whether a fused kernel takes this attention: no capped scores, no sinks, equal widths."""
    a = config.attention
    return not a.softcap and not a.sinks and a.head_dim == a.value_dim


def _inner(config: ModelConfig, part: str, rows: int, width: int) -> Iterator[Kept]:
    """Yield what an MLP keeps between its projections."""
    mlp, size = config.mlp, rows * width
    tensors = {"silu_clamped": 7, "relu": 2 * mlp.gated + 1}.get(mlp.activation, 2 * mlp.gated + 2)
    yield Kept(part, "inside", tensors * size)


def _dense(config: ModelConfig, tokens: int) -> Iterator[Kept]:
    yield from _inner(config, "mlp", tokens, config.mlp.width)


def _mixture(config: ModelConfig, tokens: int) -> Iterator[Kept]:
    """Yield what router and experts keep; which expert is visited changes nothing."""
    moe, visits = config.moe, tokens * config.moe.top_k
    yield Kept("router", "scores", tokens * moe.experts, WIDE)
    yield Kept("router", "chosen experts", visits, INDEX)
    if moe.scoring == "softmax_top":
        yield Kept("router", "logits and weights", tokens * moe.experts + visits, WIDE)
    elif moe.normalise:
        yield Kept("router", "weights and their sum", visits + tokens, WIDE)
    if moe.scoring == "sigmoid":
        yield Kept("router", "sum of scores", tokens, WIDE)
    yield Kept("experts", "rows and places", 2 * visits, INDEX)
    yield Kept("experts", "weights", visits)
    yield Kept("experts", "inputs", visits * config.hidden)
    yield Kept("experts", "outputs, and weighted", 2 * visits * config.hidden)
    yield from _inner(config, "experts", visits, moe.width)
    if moe.shared_width:
        yield from _inner(config, "shared", tokens, moe.shared_width)


def _around(config: ModelConfig, sequences: int, length: int, attention: str):
    """Return what embedding (with angles and masks, made once for all layers) and head keep."""
    a, position, tokens = config.attention, config.position, sequences * length
    first = [Kept("embedding", "ids", tokens, INDEX)]
    if position.kind == "learned":
        first.append(Kept("embedding", "positions", length, INDEX))
    if position.kind == "rope":
        bases = 2 if position.local_theta else 1
        first.append(Kept("embedding", "angles", bases * length * position.rotary_dim))
    if attention == "sdpa" and _fused(config):
        masks = a.heads if position.kind == "alibi" else any(a.windowed) and length > a.window
        first.append(Kept("embedding", "mask", masks * length * length))
    if config.embedding_scale != 1:
        first.append(Kept("embedding", "scale", 1))
    if config.norm.embedding:
        first.append(Kept("embedding", "before its norm", tokens * config.hidden))
        first += _norm(config, tokens, config.hidden, "after embedding")
    last = []
    if config.norm.final:
        last.append(Kept("head", "stream", tokens * config.hidden))
        last += _norm(config, tokens, config.hidden, "before the head")
    last.append(Kept("head", "input", tokens * config.hidden))
    if config.softcap:
        last.append(Kept("head", "logits under the cap", tokens * config.vocab))
    return first, last


def stage_activations(
    config: ModelConfig,
    sequences: int,
    length: int,
    bytes_per_number: int = 4,
    attention: str = "naive",
    recompute: str = "none",
) -> dict[str, int]:
    """Return the bytes that each stage keeps.

    Raises
    ------
    CostError
        If the batch is empty or too long, or path or recomputation are not known.
    """
    check_batch(config, sequences, length)
    if recompute not in RECOMPUTE:
        raise CostError(f"recompute {recompute!r} is not known; known: {', '.join(RECOMPUTE)}")
    first, last = _around(config, sequences, length, attention)
    stages = {"embedding": first}
    for layer in range(config.layers):
        kept = layer_kept(config, layer, sequences, length, attention)
        if recompute == "selective":
            kept = [item for item in kept if item.part != "core"]
        if recompute == "full":
            kept = [Kept("norms", "stream", sequences * length * config.hidden)]
        stages[f"layer {layer}"] = kept
    stages["head"] = last
    return {
        stage: sum(item.bytes_(bytes_per_number) for item in kept) for stage, kept in stages.items()
    }


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


def peak_activation_bytes(
    config: ModelConfig,
    sequences: int,
    length: int,
    bytes_per_number: int = 4,
    attention: str = "naive",
    recompute: str = "none",
) -> int:
    """Return the most that is kept at any time of a backward pass, one recomputed layer included.

    Examples
    --------
    >>> gpt2 = ModelConfig.load("gpt2")
    >>> whole, full = (peak_activation_bytes(gpt2, 1, 1024, recompute=r) for r in ("none", "full"))
    >>> round(whole / full, 1)
    8.6
    """
    batch = (config, sequences, length, bytes_per_number, attention)
    kept, whole = stage_activations(*batch, recompute), stage_activations(*batch)
    # The last layers' tensors are the first to go, so the first layer to be redone meets the most.
    again = max(whole[f"layer {i}"] - kept[f"layer {i}"] for i in range(config.layers))
    return sum(kept.values()) + again
