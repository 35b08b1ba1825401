"""The architecture of a decoder-only transformer, as numbers.

Reads the ``config.json`` that Hugging Face repositories carry. So far the GPT-2 family: learned
positions, full multi-head attention, a GELU MLP, LayerNorm with bias, tied embeddings [1]_.

References
----------
.. [1] A. Radford et al., "Language models are unsupervised multitask learners", 2019.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenlife.catalog import read_model
from tokenlife.errors import TokenlifeError

FAMILIES = ("gpt2",)


class ConfigError(TokenlifeError, ValueError):
    """A configuration that describes no model this library knows."""


@dataclass(frozen=True)
class ModelConfig:
    """The numbers of an architecture.

    Attributes
    ----------
    name
        As in ``data/models/``, or the path it was read from.
    family
        ``model_type`` of the ``config.json``.
    layers
        Transformer blocks.
    hidden
        Width of the residual stream.
    heads
        Attention heads; divides ``hidden``.
    ffn
        Width of the MLP's inner layer.
    vocab
        Rows of the embedding table.
    positions
        Longest sequence in tokens.
    tied
        Whether the output head is the embedding table.

    Raises
    ------
    ConfigError
        If a number is not positive, or ``heads`` does not divide ``hidden``.

    Examples
    --------
    >>> config = ModelConfig.load("gpt2")
    >>> config.layers, config.hidden, config.head_dim, config.ffn
    (12, 768, 64, 3072)
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    positions: int
    tied: bool = True

    def __post_init__(self):
        for field in ("layers", "hidden", "heads", "ffn", "vocab", "positions"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"{self.name}: {field} must be a whole number above 0, not {value!r}"
                )
        if self.hidden % self.heads:
            raise ConfigError(
                f"{self.name}: {self.heads} heads do not divide a hidden size of {self.hidden}"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    @classmethod
    def load(cls, name_or_path: str | Path) -> "ModelConfig":
        """Read a named model of ``data/models/`` or any ``config.json``.

        Raises
        ------
        CatalogError
            If there is no such model or file.
        ConfigError
            If the file describes a family that is not known here, or lacks a field.
        """
        return cls.from_hf(read_model(name_or_path), name=str(name_or_path))

    @classmethod
    def from_hf(cls, config: Mapping, name: str) -> "ModelConfig":
        """Read the keys of a Hugging Face ``config.json``.

        Parameters
        ----------
        config
            The parsed file.
        name
            What to call the model.

        Examples
        --------
        >>> ModelConfig.from_hf({"model_type": "gpt2", "n_layer": 1}, "tiny")
        Traceback (most recent call last):
            ...
        tokenlife.transformer.config.ConfigError: tiny: config.json lacks n_embd, n_head, \
n_positions, vocab_size
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise ConfigError(
                f"{name}: model_type {family!r} is not known; known: {', '.join(FAMILIES)}"
            )
        keys = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
        missing = sorted(key for key in keys if key not in config)
        if missing:
            raise ConfigError(f"{name}: config.json lacks {', '.join(missing)}")
        hidden = config["n_embd"]
        ffn = config.get("n_inner")
        if ffn is None and isinstance(hidden, int):
            ffn = 4 * hidden
        return cls(
            name=name,
            family=family,
            layers=config["n_layer"],
            hidden=hidden,
            heads=config["n_head"],
            ffn=ffn,
            vocab=config["vocab_size"],
            positions=config["n_positions"],
            tied=config.get("tie_word_embeddings", True),
        )
