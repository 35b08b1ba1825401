"""The architecture of a decoder-only transformer, as numbers.

:class:`ModelConfig` holds the parts of a block (``tokenlife.transformer.parts``) and what stands
around them, and refuses numbers that do not fit together. How the keys of a Hugging Face
``config.json`` become these numbers is told family by family in ``tokenlife.transformer.families``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenlife.catalog import read_model
from tokenlife.errors import TokenlifeError
from tokenlife.transformer.parts import Attention, Mlp, Moe, Norm, Position

__all__ = ["Attention", "ConfigError", "Mlp", "ModelConfig", "Moe", "Norm", "Position"]

MOST_LAYERS = 100_000  # far beyond any model, and still counted in a moment


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
    vocab
        Rows of the embedding table.
    positions
        Longest sequence in tokens.
    attention, mlp, position, norm
        The parts of a block.
    moe
        The mixture of experts, or None.
    tied
        Whether the output head is the embedding table.
    head_bias
        Whether the output head has a bias.
    embedding_scale
        What embeddings are multiplied by (Gemma); 1 elsewhere.
    softcap
        Output logits are squashed to ± this by tanh (Gemma 2); 0 where they are not.
    mtp_layers
        Multi-token-prediction blocks beside the model, not counted in it (DeepSeek-V3).

    Raises
    ------
    ConfigError
        If a number is not positive, or the heads do not fit together.

    Examples
    --------
    >>> config = ModelConfig.load("gpt2")
    >>> config.layers, config.hidden, config.attention.kind, config.attention.head_dim
    (12, 768, 'MHA', 64)
    """

    name: str
    family: str
    layers: int
    hidden: int
    vocab: int
    positions: int
    attention: Attention
    mlp: Mlp
    position: Position
    norm: Norm
    moe: Moe | None = None
    tied: bool = True
    head_bias: bool = False
    embedding_scale: float = 1.0
    softcap: float = 0.0
    mtp_layers: int = 0

    def __post_init__(self):
        for what, value, least in self._sizes():
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"{self.name}: {what} must be a whole number above {least - 1}, not {value!r}"
                )
        if self.layers > MOST_LAYERS:
            raise ConfigError(f"{self.name}: layers must be {MOST_LAYERS:,} at most")
        for what, value in (("the norms' eps", self.norm.eps), *self._bases()):
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ConfigError(f"{self.name}: {what} must be a number above 0, not {value!r}")
        for problem in self._misfits():
            raise ConfigError(f"{self.name}: {problem}")

    def _bases(self):
        if self.position.kind == "rope":
            yield "RoPE's base", self.position.theta
            yield "RoPE's base in windowed layers", self.position.local_theta or self.position.theta

    def _sizes(self):
        """Yield each size with its name and the least that it may be."""
        a, moe = self.attention, self.moe
        yield from (
            ("layers", self.layers, 1), ("hidden", self.hidden, 1), ("vocab", self.vocab, 1),
            ("positions", self.positions, 1), ("attention heads", a.heads, 1),
            ("key-value heads", a.kv_heads, 1), ("head_dim", a.head_dim, 1),
            ("value_dim", a.value_dim, 1), ("MLP width", self.mlp.width, 1),
            ("the latent width", a.kv_rank, 0), ("the query's latent width", a.query_rank, 0),
            ("the rotated part of a head", a.rope_dim, 0), ("window", a.window, 0),
            ("multi-token-prediction layers", self.mtp_layers, 0),
        )  # fmt: skip
        if moe:
            yield from (
                ("experts", moe.experts, 1), ("experts per token", moe.top_k, 1),
                ("expert width", moe.width, 1), ("shared experts' width", moe.shared_width, 0),
                ("dense layers at the bottom", moe.first_dense, 0),
                ("the spacing of mixtures", moe.every, 1), ("expert groups", moe.groups, 1),
                ("expert groups per token", moe.top_groups, 1),
            )  # fmt: skip

    def _misfits(self):
        """Yield what does not fit together."""
        a, moe, turned = self.attention, self.moe, self.position.rotary_dim
        if a.heads % a.kv_heads:
            yield f"{a.kv_heads} key-value heads do not divide {a.heads} heads"
        if turned % 2 or turned > a.head_dim:
            yield f"RoPE turns pairs: {turned} of {a.head_dim} numbers of a head cannot be rotated"
        if a.windowed and (len(a.windowed) != self.layers or not a.window):
            yield f"a window of {a.window} for {len(a.windowed)} of {self.layers} layers"
        if moe and moe.top_k > moe.experts:
            yield f"a token cannot visit {moe.top_k} of {moe.experts} experts"
        if moe and moe.experts % moe.groups:
            yield f"{moe.groups} groups do not divide {moe.experts} experts"
        if moe and moe.top_groups > moe.groups:
            yield f"a token cannot visit {moe.top_groups} of {moe.groups} groups"
        elif moe and moe.top_k > (within := moe.experts // moe.groups * moe.top_groups):
            yield f"a token cannot visit {moe.top_k} of the {within} experts in its groups"

    def is_moe(self, layer: int) -> bool:
        """Say whether this layer is a mixture of experts."""
        if self.moe is None or layer < self.moe.first_dense:
            return False
        return (layer - self.moe.first_dense) % self.moe.every == self.moe.every - 1

    def is_windowed(self, layer: int) -> bool:
        """Say whether attention in this layer looks back over a window only."""
        return bool(self.attention.windowed) and self.attention.windowed[layer]

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
        from tokenlife.transformer.families import read  # families build on the classes above

        return read(config, name)
