"""The families with a mixture of experts: Mixtral, Qwen3-MoE, DeepSeek-V2 and V3, gpt-oss."""

import math
from collections.abc import Mapping
from dataclasses import replace

from tokenlife.transformer.config import Attention, ConfigError, ModelConfig, Moe
from tokenlife.transformer.families.fields import need, rope
from tokenlife.transformer.families.llama import llama, qwen3, windows


def mixtral(config: Mapping, name: str) -> ModelConfig:
    """Read Mixtral: Mistral with every MLP a mixture."""
    experts, top_k, width = need(
        config, name, "num_local_experts", "num_experts_per_tok", "intermediate_size"
    )
    return replace(llama(config, name), moe=Moe(experts, top_k, width))


def qwen3_moe(config: Mapping, name: str) -> ModelConfig:
    """Read Qwen3-MoE: Qwen3 with many narrow experts."""
    config = {"num_experts": config.get("num_local_experts"), **config}
    experts, top_k, width = need(
        config, name, "num_experts", "num_experts_per_tok", "moe_intermediate_size"
    )
    if config.get("mlp_only_layers"):
        raise ConfigError(f"{name}: mlp_only_layers must be empty; use decoder_sparse_step")
    return replace(
        qwen3(config, name),
        moe=Moe(
            experts,
            top_k,
            width,
            every=config["decoder_sparse_step"],
            normalise=config["norm_topk_prob"],
        ),
    )


def deepseek_v2(config: Mapping, name: str) -> ModelConfig:
    """Read DeepSeek-V2: latent attention, shared experts, dense layers at the bottom."""
    limited = config["topk_method"] == "group_limited_greedy"
    base = _deepseek(config, name, interleaved=True)
    return replace(
        base,
        moe=replace(
            base.moe,
            groups=need(config, name, "n_group")[0] if limited else 1,
            top_groups=need(config, name, "topk_group")[0] if limited else 1,
        ),
    )


def deepseek_v3(config: Mapping, name: str) -> ModelConfig:
    """Read DeepSeek-V3 and Kimi K2: V2 with sigmoid scores and a bias that steers the choice."""
    groups, top_groups = need(config, name, "n_group", "topk_group")
    base = _deepseek(config, name, interleaved=config["rope_interleave"])
    return replace(
        base,
        moe=replace(
            base.moe,
            scoring="sigmoid",
            router_bias="choice",
            groups=groups,
            top_groups=top_groups,
        ),
        mtp_layers=config.get("num_nextn_predict_layers") or 0,
    )


def _deepseek(config: Mapping, name: str, interleaved: bool) -> ModelConfig:
    heads, kv_rank, nope, rope_dim, value_dim = need(
        config,
        name,
        "num_attention_heads",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    )
    experts, top_k, width = need(
        config, name, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"
    )
    bias = config["attention_bias"]
    position = rope(config, name, rope_dim, interleaved)
    unturned = {"rope_parameters": None, "rope_scaling": None, "partial_rotary_factor": 0.0}
    base = llama(
        {**config, **unturned, "head_dim": nope + rope_dim, "num_key_value_heads": heads}, name
    )
    return replace(
        base,
        attention=Attention(
            heads,
            heads,
            nope + rope_dim,
            value_dim,
            qkv_bias=bias,
            out_bias=bias,
            kv_rank=kv_rank,
            query_rank=config.get("q_lora_rank") or 0,
            rope_dim=rope_dim,
            scale=_yarn_scale(dict(position.scaling), nope + rope_dim),
        ),
        position=position,
        moe=Moe(
            experts,
            top_k,
            width,
            shared_width=width * (config.get("n_shared_experts") or 0),
            first_dense=config["first_k_dense_replace"],
            every=config["moe_layer_freq"],
            normalise=config["norm_topk_prob"],
            scale=config["routed_scaling_factor"],
        ),
    )


def _yarn_scale(scaling: Mapping, head_dim: int) -> float:
    """Return what scores are multiplied by: YaRN makes them larger where the context is stretched.

    YaRN's factor on a query and on a key is 0.1 · mscale · ln(factor) + 1 each; DeepSeek puts both
    into the scale of the scores, since only a part of each head is rotated.
    """
    mscale, factor = scaling.get("mscale_all_dim", 0.0), scaling.get("factor", 1.0)
    if not mscale or factor <= 1:
        return 0.0
    return head_dim**-0.5 * (0.1 * mscale * math.log(factor) + 1.0) ** 2


def gpt_oss(config: Mapping, name: str) -> ModelConfig:
    """Read gpt-oss: biases everywhere, attention sinks, a window in every other layer."""
    experts, width, layers = need(
        config, name, "num_local_experts", "intermediate_size", "num_hidden_layers"
    )
    top_k = config.get("num_experts_per_tok") or config.get("experts_per_token")
    if top_k is None:
        need(config, name, "num_experts_per_tok")
    if config.get("layer_types") is None and isinstance(layers, int):
        kinds = ("sliding_attention", "full_attention")
        config = {**config, "layer_types": [kinds[layer % 2] for layer in range(layers)]}
    base = llama(config, name)
    window, windowed = windows(config, name, base.layers)
    return replace(
        base,
        attention=replace(base.attention, window=window, windowed=windowed, sinks=True),
        mlp=replace(base.mlp, activation="silu_clamped", bias=True),
        moe=Moe(
            experts, top_k, width, scoring="softmax_top", router_bias="logit", expert_bias=True
        ),
    )
