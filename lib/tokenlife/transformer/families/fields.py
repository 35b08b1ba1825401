"""Reading fields of a ``config.json``: what is missing, what is no number, what RoPE is called.

Hugging Face's files name RoPE in two ways: ``rope_theta`` beside ``rope_scaling``, and since
version 5 one object ``rope_parameters``. Both are read here, once for all families.
"""

from collections.abc import Mapping

from tokenlife.transformer.config import ConfigError, Position

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


SCALINGS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


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
    if said not in ACTIVATIONS:
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
        if not _count(layers) or len(listed) != layers:
            raise ConfigError(
                f"{name}: layer_types names {len(listed)} layers, the model has {layers!r}"
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
    said = dict(said)
    local = dict(said.pop("sliding_attention", {}))
    said = dict(said.pop("full_attention", said))
    theta = said.pop("rope_theta", None)
    theta = config.get("rope_theta") if theta is None else theta
    part = said.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor", 1.0)
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
            said["factor"] = longest / said["original_max_position_embeddings"]
    else:
        said = {}
    return Position(
        "rope",
        theta=theta,
        rotary_dim=int(head_dim * part),
        interleaved=interleaved,
        scaling=tuple(sorted((key, _frozen(value)) for key, value in said.items())),
        local_theta=float(local.get("rope_theta") or config.get("rope_local_base_freq") or 0.0),
    )


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
