"""What all blocks share about a batch: angles, who may look at whom, and where the cache stands.

Position and order are two things. A token's *slot* is its place in the sequence, and decides whom
it sees: those in slots before it. Its *position* decides its angle or embedding; it is the slot
unless the caller says otherwise (several documents packed into one sequence each start at 0).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenlife.errors import TokenlifeError
from tokenlife.transformer.cache import KVCache, Place
from tokenlife.transformer.config import ModelConfig
from tokenlife.transformer.position import alibi_slopes, cosines


class InputError(TokenlifeError, ValueError):
    """Token ids that the model cannot take."""


@dataclass(frozen=True)
class Context:
    """What every block needs to know about a batch, worked out once.

    Attributes
    ----------
    positions
        (B or 1, S).
    cosines
        RoPE's (cos, sin), each (B or 1, 1, S, rotary_dim / 2), for layers that see all and for
        windowed layers; empty without RoPE.
    biases
        For layers that see all and for windowed layers: what is added to scores,
        (B or 1, heads or 1, S, T), −∞ where a query must not look. None: nothing is added.
    causal
        For both: whether the kernel itself must hide the future.
    cache, place
        Where keys and values are kept, or None.
    """

    positions: Tensor
    cosines: tuple[tuple[Tensor, Tensor], ...]
    biases: tuple[Tensor | None, Tensor | None]
    causal: tuple[bool, bool]
    cache: KVCache | None = None
    place: Place | None = None


def make_context(
    config: ModelConfig,
    ids: Tensor,
    dtype: torch.dtype,
    fused: bool,
    cache: KVCache | None = None,
    positions: Tensor | None = None,
    mask: Tensor | None = None,
) -> Context:
    """Work out the context of a batch; the parameters are those of ``Decoder.forward``.

    Raises
    ------
    InputError
        If the ids are none, unknown, or reach beyond the model's positions.
    CacheError
        If they do not fit the cache.
    """
    slots = _slots(ids, cache)  # (B or 1, S)
    where = slots if positions is None else torch.atleast_2d(positions)
    _check(config, ids, cache, positions)
    padded = mask if mask is not None and mask.ndim == 2 else None
    place = None
    if cache is not None:
        cache.check(len(ids), counts(ids, mask))
        place = cache.place(ids.shape[1], padded)
    keys = ids.shape[1] if place is None else place.stop
    # Padding stands on the right, where the causal rule hides it already.
    seen = None if mask is None or mask.ndim == 2 else mask
    turns = _turns(config, where, keys, dtype)
    sights = [_sight(config, slots, keys, seen, 0, dtype, fused)]
    window = config.attention.window
    sights.append(_sight(config, slots, keys, seen, window, dtype, fused) if window else sights[0])
    biases, causal = zip(*sights, strict=True)
    return Context(where, turns, biases, causal, cache, place)


def counts(ids: Tensor, mask: Tensor | None) -> Tensor:
    """Return how many tokens each row really holds, (B,) on the CPU."""
    if mask is not None and mask.ndim == 2:
        return mask.sum(1).cpu()
    return torch.full((len(ids),), ids.shape[1])


def _slots(ids: Tensor, cache: KVCache | None) -> Tensor:
    new = torch.arange(ids.shape[-1], device=ids.device)[None]
    if cache is None:
        return new
    start = int(cache.lengths.min())
    if start == int(cache.lengths.max()):
        return new + start
    return cache.lengths.to(ids.device)[:, None] + new


def _turns(config: ModelConfig, where: Tensor, longest: int, dtype: torch.dtype):
    position = config.position
    if position.kind != "rope":
        return ()
    both = [
        tuple(t[:, None].to(dtype) for t in cosines(where, position, local, longest))
        for local in ((False, True) if position.local_theta else (False,))
    ]
    return both[0], both[-1]


def _sight(config, slots, keys, seen, window, dtype, fused) -> tuple[Tensor | None, bool]:
    """Return what is added to the scores, and whether the kernel must hide the future itself."""
    length, alibi = slots.shape[1], config.position.kind == "alibi"
    near = not window or keys <= window
    if seen is None and near and not alibi and len(slots) == 1:
        if length == 1:
            return None, False  # the last token sees all
        if fused and length == keys:
            return None, True
    distance = slots[:, :, None] - torch.arange(keys, device=slots.device)  # (B or 1, S, T)
    allowed = distance >= 0
    if not near:
        allowed = allowed & (distance < window)
    if seen is not None:
        allowed = allowed & seen
    bias = torch.zeros(allowed.shape, dtype=dtype, device=slots.device)
    bias = bias.masked_fill(~allowed, -torch.inf)[:, None]  # (B or 1, 1, S, T)
    if alibi:
        a = config.attention
        slopes = alibi_slopes(a.heads).to(slots.device)[:, None, None]
        if config.position.scaled:
            slopes = slopes * (a.scale or a.head_dim**-0.5)
        bias = bias - (slopes * distance[:, None]).to(dtype)  # (B or 1, heads, S, T)
    return bias, False


def _check(
    config: ModelConfig, ids: Tensor, cache: KVCache | None, positions: Tensor | None
) -> None:
    if ids.ndim != 2 or not ids.numel():
        raise InputError(
            f"ids must be (sequences, tokens) with one token at least, not {tuple(ids.shape)}"
        )
    if ids.device.type == "cpu" and not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab:
        bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise InputError(f"no token {bad} in {config.name}; ids run from 0 to {config.vocab - 1}")
    limited = config.position.kind != "alibi"  # ALiBi has no table and no longest angle
    if positions is not None:
        longest = int(positions.max()) + 1
    else:  # known without asking the device, which would have to finish its work first
        longest = ids.shape[1] + (0 if cache is None else int(cache.lengths.max()))
    if limited and longest > config.positions:
        raise InputError(
            f"{longest} tokens are more than the {config.positions} positions of {config.name}"
        )
