"""Llama and the families built like it: Mistral, Qwen2, Qwen3, Phi-3, OLMo 2, SmolLM.

Norm before, RoPE, grouped key–value heads, a gated SiLU MLP. The lookalikes change a bias, a norm
of queries and keys, a window, or where the norms stand.
"""

from collections.abc import Mapping
from dataclasses import replace

from tokenlife.transformer.config import Attention, Mlp, ModelConfig, Norm
from tokenlife.transformer.families.fields import activation, head_dim, layer_types, need, rope

NEEDS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "vocab_size",
)


def llama(config: Mapping, name: str) -> ModelConfig:
    """Read Llama 1–3, SmolLM, Mistral and Phi-3, which share their shape."""
    layers, hidden, heads, inner, positions, vocab = need(config, name, *NEEDS)
    width = config.get("head_dim") or head_dim(name, hidden, heads)
    bias = config["attention_bias"]
    kv_heads = config.get("num_key_value_heads")
    window, windowed = windows(config, name, layers)
    return ModelConfig(
        name=name,
        family=config["model_type"],
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        positions=positions,
        attention=Attention(
            heads,
            heads if kv_heads is None else kv_heads,
            width,
            width,
            qkv_bias=bias,
            out_bias=bias,
            window=window,
            windowed=windowed,
        ),
        mlp=Mlp(
            inner,
            activation(config, name, "hidden_activation", "hidden_act"),
            gated=True,
            bias=config["mlp_bias"],
        ),
        position=rope(config, name, width),
        norm=Norm("rmsnorm", config["rms_norm_eps"]),
        tied=config["tie_word_embeddings"],
    )


def windows(config: Mapping, name: str, layers: int) -> tuple[int, tuple[bool, ...]]:
    """Read which layers look back over a window only, and how far."""
    window = config.get("sliding_window")
    if not window or not config.get("use_sliding_window", True):
        return 0, ()
    if config.get("layer_types") is None and isinstance(layers, int):
        # Qwen2 windows the layers from max_window_layers up; Mistral and Phi-3 all of them.
        below = config.get("max_window_layers", 0)
        kinds = ["sliding_attention" if i >= below else "full_attention" for i in range(layers)]
        config = {**config, "layer_types": kinds}
    windowed = layer_types(config, name, layers)
    return (window, windowed) if windowed else (0, ())


def qwen2(config: Mapping, name: str) -> ModelConfig:
    """Read Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""
    base = llama(config, name)
    return replace(base, attention=replace(base.attention, qkv_bias=True, out_bias=False))


def qwen3(config: Mapping, name: str) -> ModelConfig:
    """Read Qwen3: Llama with each head's queries and keys normalised."""
    base = llama(config, name)
    return replace(base, attention=replace(base.attention, qk_norm="head"))


def olmo2(config: Mapping, name: str) -> ModelConfig:
    """Read OLMo 2: norms on what attention and MLP give, and on all queries or keys at once."""
    base = llama(config, name)
    return replace(
        base,
        attention=replace(base.attention, qk_norm="width"),
        norm=replace(base.norm, placement="post"),
    )
