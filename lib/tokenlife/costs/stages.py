"""The stages of a model: the work of each, and the tensor that passes from each to the next.

Conventions: FLOPs as in ``tokenlife.costs.operations``, over the full S × S square; ``activation``
bytes are what autograd keeps for the backward pass (``tokenlife.costs.activations``). Left out: the
optimiser.
"""

from dataclasses import dataclass
from itertools import pairwise

from tokenlife.costs.activations import stage_activations
from tokenlife.costs.flops import stage_flops
from tokenlife.costs.memory import kv_numbers_per_layer
from tokenlife.costs.operations import check_batch
from tokenlife.costs.parameters import layer_parameters, parameters_by_part
from tokenlife.transformer.config import ModelConfig

ID_BYTES = 8  # torch looks up embeddings by int64


@dataclass(frozen=True)
class StageCost:
    """The work of one stage for one batch.

    Attributes
    ----------
    stage
        ``embedding``, ``layer 0`` …, ``head``.
    flops
        Forward FLOPs; the backward pass takes twice as many.
    weight_bytes
        Parameters read.
    activation_bytes
        Kept for the backward pass.
    output_bytes
        Handed to the next stage: what a network would carry if the model were cut here.
    """

    stage: str
    flops: int
    weight_bytes: int
    activation_bytes: int
    output_bytes: int


def forward_stages(
    config: ModelConfig,
    sequences: int,
    length: int,
    bytes_per_number: int = 4,
    attention: str = "naive",
) -> tuple[StageCost, ...]:
    """Cost each stage of a forward pass over ``sequences`` sequences of ``length`` tokens.

    Parameters
    ----------
    config
        A model of any family.
    sequences
        Sequences in the batch.
    length
        Tokens in each, at most ``config.positions``.
    bytes_per_number
        4 for float32, 2 for bfloat16.
    attention
        ``naive`` or ``sdpa``: what the backward pass needs depends on it.

    Raises
    ------
    CostError
        If the batch is empty or longer than the model's positions.

    Examples
    --------
    >>> stages = forward_stages(ModelConfig.load("gpt2"), sequences=1, length=1024)
    >>> len(stages), stages[1].output_bytes, sum(stage.flops for stage in stages)
    (14, 3145728, 291648307200)
    """
    flops = stage_flops(config, sequences, length)
    kept = stage_activations(config, sequences, length, bytes_per_number, attention)
    tokens = sequences * length
    hidden = tokens * config.hidden * bytes_per_number
    outputs = [hidden] * (config.layers + 1) + [tokens * config.vocab * bytes_per_number]
    return tuple(
        StageCost(f.stage, f.forward, weights * bytes_per_number, kept[f.stage], output)
        for f, weights, output in zip(flops, _weights(config), outputs, strict=True)
    )


def _weights(config: ModelConfig) -> list[int]:
    """Count the parameters that each stage reads; a tied head reads the embedding table again."""
    parts = parameters_by_part(config)
    vector = config.hidden * (2 if config.norm.bias else 1)
    first = parts["token embedding"] + parts["position embedding"] + config.norm.embedding * vector
    layers = [sum(layer_parameters(config, layer).values()) for layer in range(config.layers)]
    head = parts["token embedding"] if config.tied else parts["head"]
    return [first, *layers, head + config.norm.final * vector]


@dataclass(frozen=True)
class Boundary:
    """What passes between two stages.

    Attributes
    ----------
    after, before
        The stages on both sides.
    tensor
        What it is called.
    shape
        Its shape, for the batch.
    bytes_per_number
        Of its type.
    tokens
        Tokens in the batch.
    """

    after: str
    before: str
    tensor: str
    shape: tuple[int, ...]
    bytes_per_number: int
    tokens: int

    @property
    def bytes_(self) -> int:
        """Bytes of the whole tensor."""
        size = self.bytes_per_number
        for extent in self.shape:
            size *= extent
        return size

    @property
    def bytes_per_token(self) -> float:
        """Bytes for each token of the batch."""
        return self.bytes_ / self.tokens


def stage_table(
    config: ModelConfig, sequences: int, length: int, bytes_per_number: int = 4
) -> tuple[Boundary, ...]:
    """List the tensors that pass between the stages of a forward pass.

    Between two layers it is always the residual stream, whatever happens inside them. In training
    a gradient of the same shape passes back. In serving the cache stays where its layer is, unless
    another machine decodes: then the last row crosses too.

    Raises
    ------
    CostError
        If the batch is empty or longer than the model's positions.

    Examples
    --------
    >>> table = stage_table(ModelConfig.load("gpt2"), sequences=2, length=10, bytes_per_number=2)
    >>> [(b.tensor, b.shape, b.bytes_per_token) for b in table[:2]]
    [('token ids', (2, 10), 8.0), ('residual stream', (2, 10, 768), 1536.0)]
    """
    check_batch(config, sequences, length)
    tokens = sequences * length
    names = ["tokeniser", "embedding", *(f"layer {i}" for i in range(config.layers)), "head"]
    stream = (sequences, length, config.hidden)
    rows = [Boundary(names[0], names[1], "token ids", (sequences, length), ID_BYTES, tokens)]
    rows += [
        Boundary(after, before, "residual stream", stream, bytes_per_number, tokens)
        for after, before in pairwise(names[1:])
    ]
    logits = (sequences, length, config.vocab)
    rows.append(Boundary("head", "loss or sampler", "logits", logits, bytes_per_number, tokens))
    cache = (config.layers, sequences, length, kv_numbers_per_layer(config))
    name = "latent cache" if config.attention.kv_rank else "key-value cache"
    rows.append(Boundary("prefill", "decode", name, cache, bytes_per_number, tokens))
    return tuple(rows)


def layer_table(
    config: ModelConfig, layer: int, sequences: int, length: int, bytes_per_number: int = 4
) -> tuple[Boundary, ...]:
    """List the tensors inside one layer, where a tensor-parallel cut would go through.

    Examples
    --------
    >>> for b in layer_table(ModelConfig.load("llama-3.1-8b"), 0, 1, 8, 2):
    ...     print(f"{b.tensor}: {b.shape}, {b.bytes_per_token:.0f} B per token")
    queries: (1, 32, 8, 128), 8192 B per token
    keys: (1, 8, 8, 128), 2048 B per token
    values: (1, 8, 8, 128), 2048 B per token
    scores: (1, 32, 8, 8), 512 B per token
    heads, joined: (1, 8, 4096), 8192 B per token
    MLP inside: (1, 8, 14336), 28672 B per token
    """
    check_batch(config, sequences, length)
    a, tokens, moe = config.attention, sequences * length, config.moe

    def row(after: str, before: str, tensor: str, *shape: int) -> Boundary:
        return Boundary(after, before, tensor, (sequences, *shape), bytes_per_number, tokens)

    core = ("projections", "attention")
    rows = [row(*core, "queries", a.heads, length, a.head_dim)]
    if a.kv_rank:
        rows.append(row(*core, "latent", length, a.kv_rank + a.rope_dim))
    rows += [
        row(*core, "keys", a.kv_heads, length, a.head_dim),
        row(*core, "values", a.kv_heads, length, a.value_dim),
        row("scores", "softmax", "scores", a.heads, length, length),
        row("attention", "attention out", "heads, joined", length, a.heads * a.value_dim),
    ]
    if moe and config.is_moe(layer):
        rows.append(row("router", "experts", "router scores", length, moe.experts))
        rows.append(row("router", "experts", "dispatched tokens", length, moe.top_k, config.hidden))
        rows.append(row("experts up", "experts down", "inside", length, moe.top_k, moe.width))
    else:
        rows.append(row("MLP up", "MLP down", "MLP inside", length, config.mlp.width))
    return tuple(rows)
