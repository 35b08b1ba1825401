"""Gemma 1, 2 and 3 (text): scaled embeddings, a gated GELU, norms stored as w − 1.

Gemma 2 normalises before and after attention and MLP, squashes scores and logits, and windows every
other layer; Gemma 3 drops the squashing, normalises queries and keys, and windows five layers of
six, with a RoPE base of their own.
"""

from collections.abc import Mapping
from dataclasses import replace

from tokenlife.transformer.config import ConfigError, ModelConfig
from tokenlife.transformer.families.fields import layer_types, need
from tokenlife.transformer.families.llama import llama


def gemma(config: Mapping, name: str) -> ModelConfig:
    """Read Gemma 1."""
    need(config, name, "head_dim", "hidden_size")
    base = llama(config, name)
    return replace(
        base,
        norm=replace(base.norm, unit_offset=True),
        embedding_scale=base.hidden**0.5,
    )


def gemma2(config: Mapping, name: str) -> ModelConfig:
    """Read Gemma 2."""
    return _sandwich(config, name, every=2)


def gemma3(config: Mapping, name: str) -> ModelConfig:
    """Read the text part of Gemma 3."""
    every = config.get("sliding_window_pattern") or config["_sliding_window_pattern"]
    base = _sandwich(config, name, every=every)
    return replace(base, attention=replace(base.attention, qk_norm="head"))


def gemma3_wrapped(config: Mapping, name: str) -> ModelConfig:
    """Read the text part of a ``config.json`` that holds an image encoder beside it."""
    from tokenlife.transformer.families import read

    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise ConfigError(f"{name}: config.json lacks text_config")
    return read({**text, "model_type": "gemma3_text"}, name)


def _sandwich(config: Mapping, name: str, every: int) -> ModelConfig:
    window, scalar = need(config, name, "sliding_window", "query_pre_attn_scalar")
    if not scalar > 0:
        raise ConfigError(f"{name}: query_pre_attn_scalar must be above 0, not {scalar!r}")
    base = gemma({**config, "sliding_window": None}, name)
    windowed = layer_types(config, name, base.layers, every)
    return replace(
        base,
        attention=replace(
            base.attention,
            window=window if windowed else 0,
            windowed=windowed,
            softcap=config.get("attn_logit_softcapping") or 0.0,
            scale=scalar**-0.5,
        ),
        norm=replace(base.norm, placement="both"),
        softcap=config.get("final_logit_softcapping") or 0.0,
    )
