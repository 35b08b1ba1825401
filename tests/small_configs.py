"""Small ``config.json`` files of every family, drawn at random: what the judges' tests build."""

import random

FAMILIES = (
    "gpt2", "gpt_neox", "opt", "bloom", "falcon-7b", "falcon-40b", "falcon-rw", "llama", "mistral",
    "qwen2", "qwen3", "phi3", "olmo2", "gemma", "gemma2", "gemma3_text", "mixtral", "qwen3_moe",
    "deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "gpt_oss",
)  # fmt: skip

# What is run on several ranks: 8 heads and 4 of keys can be split, untied weights be sharded.
SMALL_LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 128,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


def small_config(family: str, seed: int = 0) -> dict:
    """Draw a small model of a family, as its ``config.json`` writes it.

    A family may have layouts after a dash: ``falcon-40b``. Sizes differ from each other wherever
    they may, so that a count that mixes two of them up comes out wrong.
    """
    draw = random.Random(f"{family} {seed}")
    model_type, _, layout = family.partition("-")
    heads = draw.choice((2, 4, 6))
    hidden = heads * draw.choice((8, 12, 16))
    layers, vocab, positions = draw.choice((2, 3)), draw.randrange(70, 140), draw.choice((40, 64))
    inner = draw.choice((40, 56, 72))
    if model_type == "gpt2":
        return {
            "model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads,
            "n_inner": draw.choice((None, inner)), "n_positions": positions, "vocab_size": vocab,
        }  # fmt: skip
    if model_type == "bloom":
        return {
            "model_type": "bloom", "n_layer": layers, "hidden_size": hidden, "n_head": heads,
            "vocab_size": vocab, "seq_length": positions,
        }  # fmt: skip
    config = {
        "model_type": model_type, "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "vocab_size": vocab, "max_position_embeddings": positions,
    }  # fmt: skip
    if model_type == "opt":
        return config | {"ffn_dim": inner, "word_embed_proj_dim": hidden}
    if model_type == "falcon":
        return (
            config
            | {
                "7b": {"multi_query": True},
                "40b": {"new_decoder_architecture": True, "num_kv_heads": draw.choice((1, 2))},
                "rw": {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
            }[layout]
        )
    config["intermediate_size"] = inner
    if model_type == "gpt_neox":
        return config | {
            "rotary_pct": 0.5, "use_parallel_residual": draw.choice((True, False)),
            "tie_word_embeddings": draw.choice((True, False)),
        }  # fmt: skip
    config |= {
        "num_key_value_heads": draw.choice((1, 2, heads)), "rope_theta": 10000.0,
        "tie_word_embeddings": draw.choice((True, False)),
    }  # fmt: skip
    own_width = {"head_dim": draw.choice((8, 12, 20))}
    window = {"sliding_window": draw.choice((3, 5, 9))}
    experts = {"num_experts_per_tok": draw.choice((1, 2))}
    if model_type.startswith("deepseek"):
        return config | _deepseek(family, draw, heads)
    return config | {
        "llama": {
            "attention_bias": draw.choice((True, False)), "mlp_bias": draw.choice((True, False)),
        },
        "mistral": own_width | window,
        "qwen2": {},
        "qwen3": own_width,
        "phi3": {"pad_token_id": 0},
        "olmo2": {},
        "gemma": own_width | {"tie_word_embeddings": True},
        "gemma2": own_width | window | {"query_pre_attn_scalar": 16, "tie_word_embeddings": True},
        "gemma3_text": own_width | window | {
            "query_pre_attn_scalar": 16, "sliding_window_pattern": 2, "tie_word_embeddings": True,
        },
        "mixtral": experts | {"num_local_experts": draw.choice((3, 4))},
        "qwen3_moe": experts | own_width | {
            "num_experts": draw.choice((4, 6)), "moe_intermediate_size": draw.choice((12, 20)),
            "norm_topk_prob": draw.choice((True, False)),
        },
        "gpt_oss": experts | own_width | window | {"num_local_experts": draw.choice((4, 6))},
    }[model_type]  # fmt: skip


def _deepseek(family: str, draw: random.Random, heads: int) -> dict:
    lite = family.endswith("lite")
    groups = 1 if lite else 2
    return {
        "num_key_value_heads": heads,
        "q_lora_rank": None if lite else draw.choice((12, 20)),
        "kv_lora_rank": draw.choice((16, 24)),
        "qk_nope_head_dim": draw.choice((8, 16)),
        "qk_rope_head_dim": draw.choice((4, 6)),
        "v_head_dim": draw.choice((8, 10)),
        "n_routed_experts": 8,
        "n_shared_experts": draw.choice((1, 2)),
        "num_experts_per_tok": 2,
        "moe_intermediate_size": draw.choice((12, 20)),
        "first_k_dense_replace": 1,
        "n_group": groups,
        "topk_group": 1,
        "topk_method": "greedy" if lite else "group_limited_greedy",
        "routed_scaling_factor": 1.5,
    }
