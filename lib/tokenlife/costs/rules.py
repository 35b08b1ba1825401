"""Published short formulas for FLOPs and activation memory, to stand beside the exact counts.

Each is right for the models it was written for, and says here what it leaves out.
"""

from tokenlife.costs.parameters import active_parameters, parameters_by_part
from tokenlife.transformer.config import ModelConfig


def six_n(config: ModelConfig, tokens: int) -> int:
    """Return 6·N·D, the training FLOPs that Kaplan et al. (2020) estimate.

    N are the parameters without embeddings (of a mixture, those that a token meets), D the tokens.
    Left out: attention's scores and mixing, and the output head.

    Examples
    --------
    >>> six_n(ModelConfig.load("gpt2"), tokens=1) / 1e6
    510.33...
    """
    parts = parameters_by_part(config)
    embeddings = parts["token embedding"] + parts["position embedding"] + parts["head"]
    return 6 * (active_parameters(config) - embeddings) * tokens


def palm(config: ModelConfig, length: int, tokens: int) -> int:
    """Return (6·N + 12·L·H·Q·T) per token times the tokens (Chowdhery et al. 2022, appendix B).

    N are the parameters that a matrix product meets: all but the learned positions, and the token
    embedding where the head is a matrix of its own. L layers, H heads, Q their width, T the length
    of a sequence, whose whole square is counted. Left out: that values may be narrower than keys.

    Examples
    --------
    >>> palm(ModelConfig.load("gpt2"), length=1024, tokens=1) / 1e6
    855.16...
    """
    parts, a = parameters_by_part(config), config.attention
    matrices = active_parameters(config) - parts["position embedding"]
    if not config.tied:
        matrices -= parts["token embedding"]
    return (6 * matrices + 12 * config.layers * a.heads * a.head_dim * length) * tokens


def megatron(config: ModelConfig, sequences: int, length: int) -> float:
    """Return 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)), Narayanan et al. (2021), equation 3.

    FLOPs of one training step with full recomputation. Written for GPT: an MLP of width 4h, keys
    and values as wide as queries, no mixture; biases and norms left out.

    Examples
    --------
    >>> megatron(ModelConfig.load("gpt2"), 1, 1024) / 1e12
    1.087...
    """
    h, layers = config.hidden, config.layers
    shape = 1 + length / (6 * h) + config.vocab / (16 * layers * h)
    return 96 * sequences * length * layers * h * h * shape


def korthikanti(config: ModelConfig, sequences: int, length: int, recompute: str = "none") -> int:
    """Return the bytes that Korthikanti et al. (2022) say one layer keeps, in 16 bits.

    ``none``: s·b·h·(34 + 5·a·s/h); ``selective``: 34·s·b·h; ``full``: 2·s·b·h, with sequence s,
    batch b, hidden h and a heads. Written for GPT with dropout (masks of one byte), an MLP of width
    4h, and kernels that do not keep a norm's mean and deviation.

    Examples
    --------
    >>> korthikanti(ModelConfig.load("gpt3-175b"), 1, 2048) / 2**30
    2.671...
    """
    base = length * sequences * config.hidden
    scores = 5 * config.attention.heads * length * length * sequences
    return {"none": 34 * base + scores, "selective": 34 * base, "full": 2 * base}[recompute]
