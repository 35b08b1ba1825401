"""How each family writes its numbers in a Hugging Face ``config.json``.

One function a family. It takes the parsed file and the model's name, and returns a
:class:`~tokenlife.transformer.config.ModelConfig`.
"""

from collections.abc import Mapping

from tokenlife.transformer.config import (
    Attention,
    ConfigError,
    Mlp,
    ModelConfig,
    Norm,
    Position,
)


def _need(config: Mapping, name: str, *keys: str) -> list:
    missing = sorted(key for key in keys if config.get(key) is None)
    if missing:
        raise ConfigError(f"{name}: config.json lacks {', '.join(missing)}")
    return [config[key] for key in keys]


def _head_dim(name: str, hidden: int, heads: int) -> int:
    if not (isinstance(hidden, int) and isinstance(heads, int) and hidden > 0 and heads > 0):
        raise ConfigError(
            f"{name}: hidden size and attention heads must be whole numbers above 0, "
            f"not {hidden!r} and {heads!r}"
        )
    if hidden % heads:
        raise ConfigError(f"{name}: {heads} heads do not divide a hidden size of {hidden}")
    return hidden // heads


def gpt2(config: Mapping, name: str) -> ModelConfig:
    """Read GPT-2: learned positions, biases everywhere, a plain GELU MLP, tied embeddings."""
    layers, hidden, heads, positions, vocab = _need(
        config, name, "n_layer", "n_embd", "n_head", "n_positions", "vocab_size"
    )
    head_dim = _head_dim(name, hidden, heads)
    return ModelConfig(
        name=name,
        family="gpt2",
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        positions=positions,
        attention=Attention(heads, heads, head_dim, head_dim, qkv_bias=True, out_bias=True),
        mlp=Mlp(config.get("n_inner") or 4 * hidden, "gelu_tanh", bias=True),
        position=Position("learned"),
        norm=Norm("layernorm", config.get("layer_norm_epsilon", 1e-5), bias=True),
        tied=config.get("tie_word_embeddings", True),
    )


FAMILIES = {"gpt2": gpt2}


def read(config: Mapping, name: str) -> ModelConfig:
    """Read a ``config.json`` of any family in ``FAMILIES``.

    Raises
    ------
    ConfigError
        If the family is unknown, or a field it needs is missing.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"{name}: model_type {family!r} is not known; known: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[family](config, name)
