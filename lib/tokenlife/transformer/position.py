"""Where a token stands: RoPE and its scalings, and ALiBi.

RoPE (Su et al. 2021) takes the numbers of a query or key in pairs and turns pair i by the angle
position · θ^(−2i/d). Turning both by their own position leaves a product that depends only on the
distance between them. Early pairs turn fast and tell neighbours apart; late pairs turn once in
thousands of tokens. A *scaling* slows the turning, so that a model trained on short texts reads
longer ones:

=========  ===================================================================================
linear     all pairs slower by one factor (Chen et al. 2023)
llama3     slow pairs slower by the factor, fast ones as they were, a ramp between (Llama 3.1)
yarn       the same with a ramp over the pairs' numbers, and scores made sharper (Peng et al. 2023)
longrope   a factor of its own for each pair, one list for short and one for long texts (Ding et
           al. 2024)
=========  ===================================================================================

ALiBi (Press et al. 2021) turns nothing: it takes from each score a number that grows with the
distance, with its own slope in each head. A learned table is an ``nn.Embedding``, in ``model``.

Left out: ``dynamic`` scaling, whose factor changes while a text grows.
"""

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from tokenlife.transformer.config import ConfigError, Position


@cache
def frequencies(position: Position, local: bool = False, longest: int = 0) -> tuple[Tensor, float]:
    """Return the angle that each pair turns by per token, and the factor on cosine and sine.

    Parameters
    ----------
    position
        Of a model with RoPE.
    local
        For windowed layers, which may have a base of their own and then no scaling (Gemma 3).
    longest
        Tokens of the longest sequence; only LongRoPE asks.

    Returns
    -------
    tuple
        (rotary_dim / 2,) float32 in radians per token, on the CPU; and a factor, 1 for most.

    Raises
    ------
    ConfigError
        If the scaling is not known, or a number that it needs is missing.

    Examples
    --------
    >>> frequencies(Position("rope", theta=10_000.0, rotary_dim=4))
    (tensor([1.0000, 0.0100]), 1.0)
    """
    own_base = local and position.local_theta
    theta = position.local_theta if own_base else position.theta
    scaling = {} if own_base else dict(position.scaling)
    pairs = torch.arange(0, position.rotary_dim, 2).float() / position.rotary_dim
    turn = theta**-pairs
    kind = scaling.get("rope_type", "default")
    try:
        if kind == "default":
            return turn, 1.0
        if kind == "linear":
            return turn / scaling["factor"], 1.0
        if kind == "llama3":
            return _llama3(turn, scaling), 1.0
        if kind == "yarn":
            return _yarn(turn, scaling, theta)
        if kind == "longrope":
            return _longrope(turn, scaling, longest)
    except KeyError as error:
        raise ConfigError(f"RoPE scaling {kind!r} needs {error}") from None
    raise ConfigError(f"RoPE scaling {kind!r} is not known; known: linear, llama3, yarn, longrope")


def _llama3(turn: Tensor, scaling: Mapping) -> Tensor:
    turns = scaling["original_max_position_embeddings"] * turn / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # Pairs that turn fewer than `low` times in the old context are slowed, more than `high` not.
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return turn * (keep + (1 - keep) / scaling["factor"])


def _yarn(turn: Tensor, scaling: Mapping, theta: float) -> tuple[Tensor, float]:
    factor, old = scaling["factor"], scaling["original_max_position_embeddings"]
    width = 2 * len(turn)

    def pair_that_turns(times: float) -> float:
        return width * math.log(old / (times * 2 * math.pi)) / (2 * math.log(theta))

    first = pair_that_turns(scaling.get("beta_fast") or 32)
    last = pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    slow = ((torch.arange(len(turn)) - first) / (max(last - first, 0) or 0.001)).clamp(0, 1)
    sharper = scaling.get("attention_factor")
    if sharper is None:
        rotated, all_ = scaling.get("mscale"), scaling.get("mscale_all_dim")
        sharper = _mscale(factor, rotated) / _mscale(factor, all_) if rotated and all_ else None
    if sharper is None:
        sharper = _mscale(factor, 1.0)
    return turn * (1 - slow + slow / factor), sharper


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def _longrope(turn: Tensor, scaling: Mapping, longest: int) -> tuple[Tensor, float]:
    old = scaling["original_max_position_embeddings"]
    factors = scaling["long_factor" if longest > old else "short_factor"]
    sharper, factor = scaling.get("attention_factor"), scaling["factor"]
    if sharper is None:
        sharper = math.sqrt(1 + math.log(factor) / math.log(old)) if factor > 1 else 1.0
    return turn / torch.tensor(factors), sharper


def cosines(
    positions: Tensor, position: Position, local: bool = False, longest: int = 0
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each pair's angle at each position.

    Parameters
    ----------
    positions
        (…, S) whole numbers.

    Returns
    -------
    tuple
        Two of (…, S, rotary_dim / 2), float32: angles of far positions need it.
    """
    turn, factor = frequencies(position, local, longest)
    angles = positions[..., None].float() * turn.to(positions.device)
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Turn the pairs of each head; numbers beyond the rotary part pass unchanged.

    Parameters
    ----------
    x
        (B, heads, S, head_dim): queries or keys.
    cos, sin
        Of :func:`cosines`, of a shape that broadcasts to (B, heads, S, rotary_dim / 2).
    interleaved
        Pairs are neighbours (2i, 2i + 1); else halves (i, i + rotary_dim / 2).

    Examples
    --------
    >>> quarter = torch.tensor([0.0]), torch.tensor([1.0])
    >>> rotate(torch.tensor([1.0, 0.0, 5.0]), *quarter).tolist()
    [0.0, 1.0, 5.0]
    """
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pair = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
        turned = pair.flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def alibi_slopes(heads: int) -> Tensor:
    """Return ALiBi's slope of each head, falling geometrically.

    For a number of heads that is no power of two, the power below it, then every other slope of
    twice that power, as the paper's authors do.

    Examples
    --------
    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return torch.tensor((slopes + between)[:heads])
