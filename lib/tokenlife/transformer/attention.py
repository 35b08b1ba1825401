"""Attention: each token asks all before it, and takes a weighted mean of what they hold.

A query meets every key: their product, scaled, is a score. A softmax over a token's scores gives
weights, and the values are averaged by them. Several heads do so side by side. Queries come in
``heads``; keys and values may come in fewer, each serving a group of query heads (grouped-query
attention, Ainslie et al. 2023). Latent attention (MLA, DeepSeek-V2 2024) keeps one narrow vector a
token and makes keys and values of all heads from it.

Two paths compute the same: :func:`naive_attention`, which is the definition and holds the S × T
square of scores, and torch's ``scaled_dot_product_attention``, which does not. A softcap or sinks
need the naive one.

Sources: Vaswani et al. 2017; sinks as in gpt-oss (2025); the softcap as in Gemma 2 (2024).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenlife.transformer.config import ModelConfig
from tokenlife.transformer.context import Context
from tokenlife.transformer.layers import norm
from tokenlife.transformer.position import rotate


def attention_weights(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return how much each query takes from each key.

    Parameters
    ----------
    q, k
        (B, heads, S, width) and (B, kv_heads, T, width).
    bias
        Added to the scores; see ``context.Context``.
    scale
        What the scores are multiplied by.
    softcap
        Scores are squashed to ± this; 0: they are not.
    sinks
        (heads,) a further score in each softmax, whose weight goes nowhere.

    Returns
    -------
    Tensor
        (B, heads, S, T); each row sums to 1, or to less with sinks.

    Examples
    --------
    >>> q = k = torch.zeros(1, 1, 2, 4)
    >>> attention_weights(q, k, torch.tensor([[0, -torch.inf], [0, 0]]))[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    batch, heads, length, _ = q.shape
    # Query heads that share a key head become rows of one product: no key is copied.
    scores = _by_group(q * scale, k.shape[1]) @ k.transpose(-1, -2)
    scores = scores.view(batch, heads, length, -1)  # (B, heads, S, T)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if sinks is None:
        return scores.softmax(-1)
    drain = sinks.view(1, -1, 1, 1).expand(batch, heads, length, 1)
    return torch.cat((scores, drain), dim=-1).softmax(-1)[..., :-1]


def _by_group(x: Tensor, groups: int) -> Tensor:
    """(B, heads, S, width) → (B, groups, heads/groups · S, width)."""
    return x.reshape(x.shape[0], groups, -1, x.shape[-1])


def naive_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, **rest) -> Tensor:
    """Attend by the definition: weights, then the mean of values (B, heads, S, value_dim)."""
    weights = attention_weights(q, k, bias, **rest)
    return (_by_group(weights, v.shape[1]) @ v).view(*weights.shape[:-1], v.shape[-1])


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """Attend by torch's kernel, which computes the square tile by tile."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, is_causal=causal, scale=scale, enable_gqa=grouped
    )


class Attention(nn.Module):
    """Multi-head, grouped-query or multi-query attention of one layer.

    Parameters
    ----------
    config
        The model's.
    layer
        Which layer this is: it may be windowed, and has its place in the cache.
    path
        ``"sdpa"`` or ``"naive"``.
    """

    def __init__(self, config: ModelConfig, layer: int, path: str = "sdpa"):
        super().__init__()
        a = self.sizes = config.attention
        self.layer, self.path = layer, path
        self.windowed = config.is_windowed(layer)
        self.rope = config.position.kind == "rope"
        self.interleaved = config.position.interleaved
        self.scale = a.scale or a.head_dim**-0.5
        self.sinks = nn.Parameter(torch.zeros(a.heads)) if a.sinks else None
        self.out = nn.Linear(a.heads * a.value_dim, config.hidden, a.out_bias)
        self.projections(config)

    def projections(self, config: ModelConfig) -> None:
        """Make what turns the stream into queries, keys and values."""
        a, hidden = config.attention, config.hidden
        self.query = nn.Linear(hidden, a.heads * a.head_dim, a.qkv_bias)
        self.key = nn.Linear(hidden, a.kv_heads * a.head_dim, a.qkv_bias)
        self.value = nn.Linear(hidden, a.kv_heads * a.value_dim, a.qkv_bias)
        self.query_norm = self.key_norm = None
        if a.qk_norm:
            whole = a.qk_norm == "width"
            self.query_norm = norm(config, a.head_dim * (a.heads if whole else 1))
            self.key_norm = norm(config, a.head_dim * (a.kv_heads if whole else 1))

    def queries_keys_values(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Project, normalise and turn: (B, S, hidden) → three of (B, heads, S, width)."""
        a = self.sizes
        q, k, v = self.query(x), self.key(x), self.value(x)
        if a.qk_norm == "width":
            q, k = self.query_norm(q), self.key_norm(k)
        q = q.unflatten(-1, (a.heads, a.head_dim)).transpose(1, 2)
        k = k.unflatten(-1, (a.kv_heads, a.head_dim)).transpose(1, 2)
        v = v.unflatten(-1, (a.kv_heads, a.value_dim)).transpose(1, 2)
        if a.qk_norm == "head":
            q, k = self.query_norm(q), self.key_norm(k)
        if self.rope:
            q, k = self.turn(q, context), self.turn(k, context)
        return q, k, v

    def turn(self, x: Tensor, context: Context) -> Tensor:
        """Apply RoPE."""
        return rotate(x, *context.cosines[self.windowed], self.interleaved)

    def keep(self, k: Tensor, v: Tensor | None, context: Context) -> tuple[Tensor, Tensor | None]:
        """Add keys and values to the cache, if there is one, and return all of them."""
        if context.cache is None:
            return k, v
        return context.cache.store(self.layer, k, v, context.place)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Mix values: (B, heads, S, value_dim)."""
        bias, causal = context.biases[self.windowed], context.causal[self.windowed]
        if needs_naive(self.sizes, self.path):
            cap, sinks = self.sizes.softcap, self.sinks
            return naive_attention(q, k, v, bias, scale=self.scale, softcap=cap, sinks=sinks)
        return fused_attention(q, k, v, bias, causal, self.scale)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """(B, S, hidden) → (B, S, hidden)."""
        q, k, v = self.queries_keys_values(x, context)
        k, v = self.keep(k, v, context)
        mixed = self.attend(q, k, v, context)  # (B, heads, S, value_dim)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor, context: Context) -> Tensor:
        """Return the map of who looks at whom, (B, heads, S, S), of a batch without a cache."""
        q, k, _ = self.queries_keys_values(x, context)
        bias = context.biases[self.windowed]
        if context.causal[self.windowed]:  # left to the fused kernel: here it must be written out
            square = (x.shape[1], x.shape[1])
            bias = torch.full(square, -torch.inf, dtype=x.dtype, device=x.device).triu(1)
        return attention_weights(q, k, bias, self.scale, self.sizes.softcap, self.sinks)


def needs_naive(sizes, path: str) -> bool:
    """Say whether scores must be at hand, so that the fused kernel cannot be used."""
    return path == "naive" or bool(sizes.softcap) or sizes.sinks


class LatentAttention(Attention):
    """Multi-head latent attention (MLA): keys and values of all heads from one narrow vector.

    The cache holds that vector and one rotated key for all heads. When a single token is decoded,
    the expansion is not done for every token of the past: it is absorbed into the query and the
    output, and what is left is attention with one key head over the latent vectors themselves.
    """

    def projections(self, config: ModelConfig) -> None:
        """Make the projections down to the latent vectors and up from them."""
        a, hidden = config.attention, config.hidden
        self.query_down = self.query_norm = None
        if a.query_rank:
            self.query_down = nn.Linear(hidden, a.query_rank, a.qkv_bias)
            self.query_norm = norm(config, a.query_rank)
        self.query = nn.Linear(a.query_rank or hidden, a.heads * a.head_dim, bias=False)
        self.latent_down = nn.Linear(hidden, a.kv_rank + a.rope_dim, a.qkv_bias)
        self.latent_norm = norm(config, a.kv_rank)
        plain = a.head_dim - a.rope_dim
        self.latent_up = nn.Linear(a.kv_rank, a.heads * (plain + a.value_dim), bias=False)

    def queries_and_latent(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return queries (B, heads, S, head_dim) and what is cached (B, 1, S, rank + rope_dim)."""
        a = self.sizes
        q = self.query(x if self.query_down is None else self.query_norm(self.query_down(x)))
        q = q.unflatten(-1, (a.heads, a.head_dim)).transpose(1, 2)
        plain, turned = q.split((a.head_dim - a.rope_dim, a.rope_dim), dim=-1)
        q = torch.cat((plain, self.turn(turned, context)), dim=-1)
        latent, key = self.latent_down(x)[:, None].split((a.kv_rank, a.rope_dim), dim=-1)
        return q, torch.cat((self.latent_norm(latent), self.turn(key, context)), dim=-1)

    def expand(self, held: Tensor) -> tuple[Tensor, Tensor]:
        """Make keys and values of all heads: (B, 1, T, rank + rope_dim) → (B, heads, T, width)."""
        a = self.sizes
        plain = a.head_dim - a.rope_dim
        latent, turned = held.split((a.kv_rank, a.rope_dim), dim=-1)
        both = self.latent_up(latent[:, 0]).unflatten(-1, (a.heads, plain + a.value_dim))
        k, v = both.transpose(1, 2).split((plain, a.value_dim), dim=-1)
        return torch.cat((k, turned.expand(-1, a.heads, -1, -1)), dim=-1), v

    def queries_keys_values(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Project and expand, as for a batch without a cache."""
        q, latent = self.queries_and_latent(x, context)
        return q, *self.expand(latent)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """(B, S, hidden) → (B, S, hidden)."""
        q, latent = self.queries_and_latent(x, context)
        held, _ = self.keep(latent, None, context)  # (B, 1, T, rank + rope_dim)
        if context.cache is not None and x.shape[1] == 1:
            mixed = self.absorbed(q, held, context)
        else:
            mixed = self.attend(q, *self.expand(held), context)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def absorbed(self, q: Tensor, held: Tensor, context: Context) -> Tensor:
        """Attend over latent vectors: q · (U c) = (Uᵀ q) · c, and the same for values."""
        a = self.sizes
        plain = a.head_dim - a.rope_dim
        up = self.latent_up.weight.view(a.heads, plain + a.value_dim, a.kv_rank)
        up_k, up_v = up[:, :plain], up[:, plain:]
        q = torch.cat((q[..., :plain] @ up_k, q[..., plain:]), dim=-1)  # (B, heads, 1, rank + rope)
        mixed = self.attend(q, held, held[..., : a.kv_rank], context)  # (B, heads, 1, rank)
        return mixed @ up_v.transpose(-1, -2)
