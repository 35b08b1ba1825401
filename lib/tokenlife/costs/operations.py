"""The matrix products of a model, one by one: FLOPs, weights read, numbers read and written.

Conventions: a multiply–add is two FLOPs. Only matrix products count, as in torch's own counter:
norms, activations, RoPE, softmax and the look-up of embeddings are left out. They cost time, since
they read and write memory, but next to no arithmetic.

A query may see every key (``causal=False``: the whole square, which is what a naive kernel computes
before half of it is masked) or only the keys that it may look at (``causal=True``: what a fused
kernel computes, to within a tile; a window shortens it further). ``past`` tokens are in the cache
already: decoding is ``length=1``.
"""

from dataclasses import dataclass

from tokenlife.errors import TokenlifeError
from tokenlife.transformer.config import ModelConfig

MOST_SEQUENCES = 10**9  # keeps sums of bytes and operations in the range of a float


class CostError(TokenlifeError, ValueError):
    """A batch that the model cannot take."""


@dataclass(frozen=True)
class Operation:
    """One matrix product, or a few that are always done together.

    Attributes
    ----------
    name
        What it computes.
    flops
        Of the forward pass.
    weights
        Parameters read (without biases).
    reads, writes
        Numbers of activations that enter and leave; the scores of attention are not among them,
        as if a fused kernel kept them on the chip.
    core
        Whether it is a product of two activations (scores and their mixing), with no weights.
    """

    name: str
    flops: int
    weights: int
    reads: int
    writes: int
    core: bool = False

    def bytes_(self, bytes_per_number: int) -> int:
        """Bytes that pass between memory and the processor, if each number passes once."""
        return (self.weights + self.reads + self.writes) * bytes_per_number


def check_batch(config: ModelConfig, sequences: int, length: int, past: int = 0) -> None:
    """Refuse a batch that is empty or longer than the model's positions.

    Raises
    ------
    CostError
        Saying which.
    """
    for what, value in (("sequences", sequences), ("tokens", length), ("cached tokens", past + 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CostError(
                "a batch needs at least one sequence of at least one token, in whole numbers; "
                f"{what}: {value - 1 if what == 'cached tokens' else value!r}"
            )
    if sequences > MOST_SEQUENCES:
        raise CostError(f"a batch of more than {MOST_SEQUENCES:,} sequences is none that exists")
    if past + length > config.positions:
        raise CostError(
            f"{past + length} tokens are more than the {config.positions} positions of "
            f"{config.name}"
        )


def pairs(config: ModelConfig, layer: int, length: int, past: int = 0, causal: bool = False) -> int:
    """Count the (query, key) pairs of one sequence in one layer.

    Examples
    --------
    >>> config = ModelConfig.load("gpt2")
    >>> pairs(config, 0, length=4), pairs(config, 0, length=4, causal=True)
    (16, 10)
    >>> pairs(config, 0, length=1, past=9, causal=True)
    10
    """
    if not causal:
        return length * (past + length)
    seen = length * past + length * (length + 1) // 2
    window = config.attention.window
    if not config.is_windowed(layer) or past + length <= window:
        return seen
    # A query at position p looks at p + 1 keys, or at `window` of them: take off what is too far.
    first = max(past, window)
    beyond = past + length - first
    nearest, farthest = first + 1 - window, past + length - window
    return seen - beyond * (nearest + farthest) // 2


def layer_operations(
    config: ModelConfig,
    layer: int,
    sequences: int,
    length: int,
    past: int = 0,
    causal: bool = False,
) -> tuple[Operation, ...]:
    """List the matrix products of one layer, in order.

    Latent attention (MLA) expands keys and values of all tokens from their latent vectors. When it
    decodes one token (``length=1`` after a past), the expansion is absorbed into the query and the
    output, and attention works on the latent vectors themselves.

    Examples
    --------
    >>> gpt2 = ModelConfig.load("gpt2")
    >>> [operation.name for operation in layer_operations(gpt2, 0, 1, 1024)]
    ['queries, keys, values', 'scores', 'mixing', 'attention out', 'MLP up', 'MLP down']
    >>> sum(operation.flops for operation in layer_operations(gpt2, 0, 1, 1024))
    17716740096
    """
    tokens = sequences * length
    return (
        *_attention(config, layer, sequences, length, past, causal),
        *(_experts(config, tokens) if config.is_moe(layer) else _mlp(config, tokens)),
    )


def head_operation(config: ModelConfig, tokens: int) -> Operation:
    """Return the product with the output head, for so many tokens."""
    return _linear("head", tokens, config.hidden, config.vocab)


def _linear(name: str, rows: int, width_in: int, width_out: int, count: int = 1) -> Operation:
    weights = width_in * width_out * count
    return Operation(name, 2 * rows * weights, weights, rows * width_in, rows * width_out * count)


def _attention(config, layer, sequences, length, past, causal):
    a, hidden, tokens = config.attention, config.hidden, sequences * length
    held = sequences * (past + length)  # tokens whose keys and values are looked at
    seen = sequences * pairs(config, layer, length, past, causal)
    if causal and config.is_windowed(layer):
        held = sequences * min(past + length, length - 1 + a.window)
    absorbed = a.kv_rank and past and length == 1
    plain = a.head_dim - a.rope_dim
    if a.kv_rank:
        if a.query_rank:
            yield _linear("query down", tokens, hidden, a.query_rank)
            yield _linear("query up", tokens, a.query_rank, a.heads * a.head_dim)
        else:
            yield _linear("queries", tokens, hidden, a.heads * a.head_dim)
        yield _linear("latent down", tokens, hidden, a.kv_rank + a.rope_dim)
        if absorbed:
            yield _linear("query to latent", tokens, plain, a.kv_rank, count=a.heads)
        else:
            expanded = a.heads * (plain + a.value_dim)
            yield _linear("keys, values up", sequences * (past + length), a.kv_rank, expanded)
    else:
        width = (a.heads + a.kv_heads) * a.head_dim + a.kv_heads * a.value_dim
        yield _linear("queries, keys, values", tokens, hidden, width)
    key, value, kv_heads = a.head_dim, a.value_dim, a.kv_heads
    if absorbed:  # one key for all heads, and the value is a part of it
        key, value, kv_heads = a.kv_rank + a.rope_dim, a.kv_rank, 1
    queries, mixed = tokens * a.heads * key, tokens * a.heads * value
    values = 0 if absorbed else held * kv_heads * value
    scored = 2 * seen * a.heads
    yield Operation("scores", scored * key, 0, queries + held * kv_heads * key, 0, core=True)
    yield Operation("mixing", scored * value, 0, values, mixed, core=True)
    if absorbed:
        yield _linear("values from latent", tokens, a.kv_rank, a.value_dim, count=a.heads)
    yield _linear("attention out", tokens, a.heads * a.value_dim, hidden)


def _mlp(config, tokens, width=0, name="MLP"):
    width = width or config.mlp.width
    yield _linear(f"{name} up", tokens, config.hidden, width, count=2 if config.mlp.gated else 1)
    yield _linear(f"{name} down", tokens, width, config.hidden)


def _experts(config, tokens):
    moe, hidden = config.moe, config.hidden
    yield _linear("router", tokens, hidden, moe.experts)
    ups = 2 if config.mlp.gated else 1
    visits = tokens * moe.top_k
    # Where tokens choose evenly: an expert stays unread only if every token passes it by.
    read = round(moe.experts * (1 - (1 - moe.top_k / moe.experts) ** tokens))
    for name, matrices, width_in, width_out in (
        ("experts up", ups, hidden, moe.width),
        ("experts down", 1, moe.width, hidden),
    ):
        one = width_in * width_out * matrices
        yield Operation(
            name, 2 * visits * one, read * one, visits * width_in, visits * width_out * matrices
        )
    if moe.shared_width:
        yield from _mlp(config, tokens, moe.shared_width, "shared experts")
