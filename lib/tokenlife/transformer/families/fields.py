"""Reading fields of a ``config.json``: what is missing, what is no number, what RoPE is called.

Hugging Face's files name RoPE in two ways: ``rope_theta`` beside ``rope_scaling``, and since
version 5 one object ``rope_parameters``. Both are read here, once for all families.
"""

import math
from collections.abc import Mapping

from tokenlife.transformer.config import MOST_LAYERS, ConfigError, Position

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


# Whole numbers that a family computes with before ``ModelConfig`` looks at them; null: not given.
WHOLE = (
    "head_dim", "n_inner", "num_kv_heads", "sliding_window", "sliding_window_pattern",
    "qk_nope_head_dim", "qk_rope_head_dim", "moe_intermediate_size", "n_shared_experts",
)  # fmt: skip
# Fields in which null says "none", and not "as the family has it".
NONE_MEANS_NONE = (
    "attn_logit_softcapping", "final_logit_softcapping", "rope_scaling", "num_key_value_heads",
    "head_dim", "sliding_window", "n_shared_experts", "q_lora_rank",
)  # fmt: skip
SCALINGS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")

_POSITIVE = (  # of RoPE's scalings
    "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
    "beta_fast", "beta_slow", "attention_factor",
)  # fmt: skip


def complete(config: Mapping, defaults: Mapping, name: str) -> dict:
    """Add the family's defaults to a ``config.json``, and refuse fields of a wrong type.

    Raises
    ------
    ConfigError
        Naming the first such field, and what it must be.
    """
    merged = dict(defaults)
    for key, value in config.items():
        if value is None:
            if key not in defaults or key in NONE_MEANS_NONE:
                merged[key] = None
            continue
        kind = int if key in WHOLE else type(defaults.get(key))
        what, fits = _KINDS.get(kind, ("", lambda _: True))
        if not fits(value):
            raise ConfigError(f"{name}: {key} must be {what}, not {value!r}")
        merged[key] = value
    for key in ("num_hidden_layers", "n_layer"):  # families list their layers one by one
        if _number(layers := merged.get(key)) and layers > MOST_LAYERS:
            raise ConfigError(f"{name}: {key} must be {MOST_LAYERS:,} at most, not {layers!r:.20}")
    return merged


def _number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


_KINDS = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", lambda value: _number(value) and value == int(value)),
    float: ("a number", _number),
    str: ("a name in quotes", lambda value: isinstance(value, str)),
    dict: ("an object of keys", lambda value: isinstance(value, Mapping)),
}


def need(config: Mapping, name: str, *keys: str) -> list:
    """Return the values of ``keys``, or say in one line which of them are missing."""
    missing = sorted(key for key in keys if config.get(key) is None)
    if missing:
        raise ConfigError(f"{name}: config.json lacks {', '.join(missing)}")
    return [config[key] for key in keys]


def head_dim(name: str, hidden: int, heads: int) -> int:
    """Return the width of a head, where the heads share the hidden size among them."""
    if not (_count(hidden) and _count(heads)):
        raise ConfigError(
            f"{name}: hidden size and attention heads must be whole numbers above 0, "
            f"not {hidden!r} and {heads!r}"
        )
    if hidden % heads:
        raise ConfigError(f"{name}: {heads} heads do not divide a hidden size of {hidden}")
    return hidden // heads


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def activation(config: Mapping, name: str, *keys: str) -> str:
    """Return the activation's name as this library writes it, from the first key that is there."""
    said = next((config[key] for key in keys if config.get(key)), None)
    if not isinstance(said, str) or said not in ACTIVATIONS:
        raise ConfigError(
            f"{name}: activation {said!r} is not known; known: {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[said]


def layer_types(config: Mapping, name: str, layers: int, every: int = 0) -> tuple[bool, ...]:
    """Say for each layer whether it is windowed.

    ``layer_types`` of the file decides; else ``every``: one layer in so many sees all (0: none is
    windowed, 1 with a window: all are).
    """
    listed = config.get("layer_types")
    if listed is not None:
        if not isinstance(listed, list):
            raise ConfigError(f"{name}: layer_types must be a list, not {listed!r}")
        if not _count(layers) or len(listed) != layers:
            raise ConfigError(
                f"{name}: layer_types names {len(listed)} layers, the model has {layers!r}"
            )
        for kind in listed:
            if kind not in ("sliding_attention", "full_attention"):
                raise ConfigError(
                    f"{name}: layer type {kind!r} is not known; known: full_attention, "
                    "sliding_attention"
                )
        windowed = tuple(kind == "sliding_attention" for kind in listed)
    elif every and _count(layers):
        windowed = tuple((layer + 1) % every != 0 for layer in range(layers))
    else:
        windowed = ()
    return windowed if any(windowed) else ()


def rope(config: Mapping, name: str, head_dim: int, interleaved: bool = False) -> Position:
    """Read RoPE: its base, the part of a head that it turns, and its scaling."""
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(said, Mapping):
        raise ConfigError(f"{name}: rope_scaling must be an object of keys, not {said!r}")
    local, said = said.get("sliding_attention", {}), said.get("full_attention", said)
    if not (isinstance(local, Mapping) and isinstance(said, Mapping)):
        raise ConfigError(f"{name}: rope_parameters must hold an object for each kind of layer")
    said = dict(said)
    theta = said.pop("rope_theta", None)
    theta = config.get("rope_theta") if theta is None else theta
    part = said.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor", 1.0)
    if not _number(part):
        raise ConfigError(f"{name}: partial_rotary_factor must be a number, not {part!r}")
    kind = said.pop("type", None)
    kind = said.pop("rope_type", None) or kind or "default"
    if kind not in SCALINGS:
        raise ConfigError(
            f"{name}: RoPE scaling {kind!r} is not known; known: {', '.join(sorted(SCALINGS))}"
        )
    if kind != "default":
        said["rope_type"] = kind
        original = config.get("original_max_position_embeddings")
        if original and "original_max_position_embeddings" not in said:
            said["original_max_position_embeddings"] = original
        if said.get("factor") is None and said.get("original_max_position_embeddings"):
            # Phi-3 leaves it out: how much longer the context is than the one trained first.
            (longest,) = need(config, name, "max_position_embeddings")
            old = said["original_max_position_embeddings"]
            said["factor"] = longest / old if _number(old) and _number(longest) else None
        for key in _POSITIVE:
            value = said.get(key)
            if value is not None and not (_number(value) and value > 0):
                raise ConfigError(f"{name}: RoPE's {key} must be a number above 0, not {value!r}")
    else:
        said = {}
    return Position(
        "rope",
        theta=theta,
        rotary_dim=int(head_dim * part),
        interleaved=interleaved,
        scaling=tuple(sorted((key, _frozen(value)) for key, value in said.items())),
        local_theta=local.get("rope_theta") or config.get("rope_local_base_freq") or 0.0,
    )


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
