"""Parameters, counted exactly from the architecture's numbers."""

from tokenlife.transformer.config import ModelConfig


def parameters_by_part(config: ModelConfig) -> dict[str, int]:
    """Count the trainable numbers of each part of a GPT-2-family model.

    A linear layer of shape (in, out) holds in · out weights and out biases; a LayerNorm two vectors
    of the hidden size. A tied head holds nothing of its own.

    Returns
    -------
    dict
        ``token embedding``, ``position embedding``, ``attention`` and ``mlp`` (over all layers),
        ``norms``, ``head``.

    Examples
    --------
    >>> parts = parameters_by_part(ModelConfig.load("gpt2"))
    >>> parts["token embedding"], parts["attention"], sum(parts.values())
    (38597376, 28348416, 124439808)
    """
    hidden, ffn = config.hidden, config.mlp.width
    qkv = hidden * 3 * hidden + 3 * hidden
    out = hidden * hidden + hidden
    up = hidden * ffn + ffn
    down = ffn * hidden + hidden
    norm = 2 * hidden
    return {
        "token embedding": config.vocab * hidden,
        "position embedding": config.positions * hidden,
        "attention": config.layers * (qkv + out),
        "mlp": config.layers * (up + down),
        "norms": (2 * config.layers + 1) * norm,
        "head": 0 if config.tied else config.vocab * hidden,
    }


def count_parameters(config: ModelConfig) -> int:
    """Count all trainable numbers.

    Examples
    --------
    >>> count_parameters(ModelConfig.load("gpt2"))
    124439808
    """
    return sum(parameters_by_part(config).values())
