"""The families before Llama: GPT-2, GPT-NeoX and Pythia, OPT, BLOOM, Falcon."""

from collections.abc import Mapping

from tokenlife.transformer.config import (
    Attention,
    ConfigError,
    Mlp,
    ModelConfig,
    Norm,
    Position,
)
from tokenlife.transformer.families.fields import activation, head_dim, need, rope


def gpt2(config: Mapping, name: str) -> ModelConfig:
    """Read GPT-2: learned positions, biases everywhere, a plain GELU MLP, tied embeddings."""
    layers, hidden, heads, positions, vocab = need(
        config, name, "n_layer", "n_embd", "n_head", "n_positions", "vocab_size"
    )
    width = head_dim(name, hidden, heads)
    return ModelConfig(
        name=name,
        family="gpt2",
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        positions=positions,
        attention=Attention(heads, heads, width, width, qkv_bias=True, out_bias=True),
        mlp=Mlp(
            config.get("n_inner") or 4 * hidden,
            activation(config, name, "activation_function"),
            bias=True,
        ),
        position=Position("learned"),
        norm=Norm("layernorm", config["layer_norm_epsilon"], bias=True),
        tied=config["tie_word_embeddings"],
    )


def gpt_neox(config: Mapping, name: str) -> ModelConfig:
    """Read GPT-NeoX and Pythia: attention and MLP side by side, RoPE on a part of each head."""
    layers, hidden, heads, inner, positions, vocab = need(
        config,
        name,
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "vocab_size",
    )
    width = head_dim(name, hidden, heads)
    said = {
        "rope_theta": config.get("rotary_emb_base") or config["rope_theta"],
        "partial_rotary_factor": config.get("rotary_pct") or config["partial_rotary_factor"],
    }
    bias = config["attention_bias"]
    return ModelConfig(
        name=name,
        family="gpt_neox",
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        positions=positions,
        attention=Attention(heads, heads, width, width, qkv_bias=bias, out_bias=bias),
        mlp=Mlp(inner, activation(config, name, "hidden_act"), bias=True),
        position=rope({**config, **said}, name, width),
        norm=Norm(
            "layernorm",
            config["layer_norm_eps"],
            bias=True,
            parallel=config["use_parallel_residual"],
        ),
        tied=config["tie_word_embeddings"],
    )


def opt(config: Mapping, name: str) -> ModelConfig:
    """Read OPT: GPT-2's shape with a ReLU, and two unused rows before position 0."""
    layers, hidden, heads, inner, positions, vocab = need(
        config,
        name,
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "ffn_dim",
        "max_position_embeddings",
        "vocab_size",
    )
    width = head_dim(name, hidden, heads)
    projected = config.get("word_embed_proj_dim", hidden)
    if projected != hidden or not config["do_layer_norm_before"]:
        raise ConfigError(
            f"{name}: this OPT normalises after each sum or projects its embeddings, as OPT-350m "
            f"does; known are those with do_layer_norm_before and word_embed_proj_dim = hidden_size"
        )
    bias = config["enable_bias"]
    return ModelConfig(
        name=name,
        family="opt",
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        positions=positions,
        attention=Attention(heads, heads, width, width, qkv_bias=bias, out_bias=bias),
        mlp=Mlp(inner, activation(config, name, "activation_function"), bias=bias),
        position=Position("learned", offset=2),
        norm=Norm("layernorm", config["layer_norm_eps"], bias=True),
        tied=config["tie_word_embeddings"],
    )


def bloom(config: Mapping, name: str) -> ModelConfig:
    """Read BLOOM: ALiBi, a norm right after the embedding, biases everywhere."""
    # The files on the Hub are older than the library's names for these keys.
    for old, new in (("n_embed", "hidden_size"), ("num_attention_heads", "n_head")):
        config = {new: config.get(old), **config}
    layers, hidden, heads, vocab, positions = need(
        config, name, "n_layer", "hidden_size", "n_head", "vocab_size", "seq_length"
    )
    width = head_dim(name, hidden, heads)
    return ModelConfig(
        name=name,
        family="bloom",
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        positions=positions,
        attention=Attention(heads, heads, width, width, qkv_bias=True, out_bias=True),
        mlp=Mlp(4 * hidden, "gelu_tanh", bias=True),
        position=Position("alibi"),
        norm=Norm("layernorm", config["layer_norm_epsilon"], bias=True, embedding=True),
        tied=config["tie_word_embeddings"],
    )


def falcon(config: Mapping, name: str) -> ModelConfig:
    """Read Falcon: 7B (one key–value head, one norm), 40B and 180B (8 of them, two norms), RW."""
    layers, hidden, heads, vocab, positions = need(
        config,
        name,
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    )
    width = head_dim(name, hidden, heads)
    new, parallel = config["new_decoder_architecture"], config["parallel_attn"]
    if new:
        kv_heads = config.get("num_kv_heads")
        kv_heads = heads if kv_heads is None else kv_heads
    else:
        kv_heads = 1 if config["multi_query"] else heads
    norms = config.get("num_ln_in_parallel_attn") or (2 if new else 1)
    bias = config["bias"]
    return ModelConfig(
        name=name,
        family="falcon",
        layers=layers,
        hidden=hidden,
        vocab=vocab,
        positions=positions,
        attention=Attention(heads, kv_heads, width, width, qkv_bias=bias, out_bias=bias),
        mlp=Mlp(
            config.get("ffn_hidden_size") or 4 * hidden,
            activation(config, name, "activation"),
            bias=bias,
        ),
        position=Position("alibi", scaled=True) if config["alibi"] else rope(config, name, width),
        norm=Norm(
            "layernorm",
            config["layer_norm_epsilon"],
            bias=True,
            parallel=parallel,
            shared=parallel and norms == 1,
        ),
        tied=config["tie_word_embeddings"],
    )
