"""What each family calls its weights in a checkpoint, and how it packs them.

Three habits differ. Names: ``h.0.ln_1`` or ``layers.0.input_layernorm``. Packing: queries, keys and
values in one matrix, one after the other (GPT-2, Phi-3) or by group of heads (GPT-NeoX, BLOOM,
Falcon); gate and up in one, or all experts in one (gpt-oss). Orientation: GPT-2 stores its matrices
as (in, out).

Left out: quantised checkpoints (fp8, MXFP4).
"""

import re
from collections.abc import Iterator

from torch import Tensor

from tokenlife.transformer.config import ModelConfig

_PREFIX = re.compile(r"^(?:(?:model|transformer|gpt_neox|decoder|language_model)\.)+")
_LAYER = re.compile(r"(?:h|layers)\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)")
# Constants that older files carry, and parts that stand beside the text model.
_IGNORED = re.compile(
    r"rotary_emb\.inv_freq$|\.(attn|attention)\.(masked_)?bias$"
    r"|vision_tower\.|multi_modal_projector\."
)

_AROUND = {
    "embed_tokens": "token_embedding",
    "wte": "token_embedding",
    "embed_in": "token_embedding",
    "word_embeddings": "token_embedding",
    "wpe": "position_embedding",
    "embed_positions": "position_embedding",
    "word_embeddings_layernorm": "embedding_norm",
    "norm": "final_norm",
    "ln_f": "final_norm",
    "final_layer_norm": "final_norm",
    "lm_head": "unembedding",
    "embed_out": "unembedding",
}
_INSIDE = {
    "input_layernorm": "attention_norm",
    "ln_1": "attention_norm",
    "ln_attn": "attention_norm",
    "self_attn_layer_norm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "ln_2": "mlp_norm",
    "ln_mlp": "mlp_norm",
    "final_layer_norm": "mlp_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.out",
    "self_attn.out_proj": "attention.out",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "self_attn.sinks": "attention.sinks",
    "attn.c_proj": "attention.out",
    "attention.dense": "attention.out",
    "self_attention.dense": "attention.out",
    # latent attention
    "self_attn.q_a_proj": "attention.query_down",
    "self_attn.q_a_layernorm": "attention.query_norm",
    "self_attn.q_b_proj": "attention.query",
    "self_attn.kv_a_proj_with_mqa": "attention.latent_down",
    "self_attn.kv_a_layernorm": "attention.latent_norm",
    "self_attn.kv_b_proj": "attention.latent_up",
    # the MLP
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
    "mlp.dense_h_to_4h": "mlp.up",
    "mlp.dense_4h_to_h": "mlp.down",
    "fc1": "mlp.up",
    "fc2": "mlp.down",
    # mixtures
    "mlp.gate": "mlp.router",
    "mlp.router": "mlp.router",
    "block_sparse_moe.gate": "mlp.router",
    "mlp.gate.e_score_correction_bias": "mlp.choice_bias",
    "mlp.shared_experts.gate_proj": "mlp.shared.gate",
    "mlp.shared_experts.up_proj": "mlp.shared.up",
    "mlp.shared_experts.down_proj": "mlp.shared.down",
}
# Where norms stand behind attention and MLP too, the same name means another norm.
_BEHIND = {
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}
_EXPERT_PARTS = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}


def translate(config: ModelConfig, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Give the tensors of a checkpoint the decoder's own names.

    Parameters
    ----------
    config
        Of the model.
    name, tensor
        As the checkpoint holds them.

    Yields
    ------
    tuple
        Our name and tensor: none for what the decoder does without, several where one matrix packs
        several of ours. A name that is not known is passed on as it is.

    Examples
    --------
    >>> import torch
    >>> config = ModelConfig.load("gpt2")
    >>> for ours, part in translate(config, "h.0.attn.c_attn.weight", torch.zeros(768, 2304)):
    ...     print(ours, tuple(part.shape))
    blocks.0.attention.query.weight (768, 768)
    blocks.0.attention.key.weight (768, 768)
    blocks.0.attention.value.weight (768, 768)
    """
    if _IGNORED.search(name):
        return
    short = _PREFIX.sub("", name)
    layer = _LAYER.fullmatch(short)
    if layer is None:
        stem, _, kind = short.rpartition(".")
        ours = _AROUND.get(stem)
        if ours == "unembedding" and config.tied:
            return  # a second copy of the embedding table
        yield (f"{ours}.{kind}" if ours else name), tensor
        return
    number, inside = int(layer[1]), layer[2]
    if config.layers <= number < config.layers + config.mtp_layers:
        return
    for ours, part in _inside(config, inside, tensor):
        yield (f"blocks.{number}.{ours}" if ours else name), part


def _inside(config: ModelConfig, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Translate the name of a tensor inside a block; an unknown one gives an empty name."""
    stem, _, kind = name.rpartition(".")
    table = _INSIDE | (_BEHIND if config.norm.placement != "pre" else {})
    if config.family == "gpt2" and kind == "weight" and ".c_" in stem:
        tensor = tensor.T
    if name in table:
        yield table[name], tensor
    elif stem in table:
        yield f"{table[stem]}.{kind}", tensor
    elif expert := _EXPERT.fullmatch(stem):
        part = _EXPERT_PARTS.get(expert[2])
        yield (f"mlp.experts.{expert[1]}.{part}.{kind}" if part else ""), tensor
    elif stem == "mlp.experts":
        yield from _packed_experts(kind, tensor)
    elif stem == "mlp.gate_up_proj":
        for part, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
            yield f"mlp.{part}.{kind}", half
    elif stem in ("attn.c_attn", "self_attn.qkv_proj"):
        yield from _named(kind, _one_after_the_other(config, tensor))
    elif stem in ("attention.query_key_value", "self_attention.query_key_value"):
        yield from _named(kind, _by_group(config, tensor))
    else:
        yield "", tensor


def _named(kind: str, parts) -> Iterator[tuple[str, Tensor]]:
    for part, tensor in zip(("query", "key", "value"), parts, strict=True):
        yield f"attention.{part}.{kind}", tensor


def _one_after_the_other(config: ModelConfig, tensor: Tensor) -> tuple[Tensor, ...]:
    a = config.attention
    keys = a.kv_heads * a.head_dim
    return tensor.split((len(tensor) - 2 * keys, keys, keys))


def _by_group(config: ModelConfig, tensor: Tensor) -> tuple[Tensor, ...]:
    """Rows lie as: for each group its query heads, its key head, its value head."""
    a = config.attention
    grouped = tensor.unflatten(0, (a.kv_heads, -1, a.head_dim))
    return tuple(part.flatten(0, 2) for part in grouped.tensor_split((-2, -1), dim=1))


def _packed_experts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Unpack gpt-oss: (experts, in, out), with gate and up in turns."""
    stem, kind = name.removesuffix("_bias"), "bias" if name.endswith("_bias") else "weight"
    if kind == "weight":
        tensor = tensor.transpose(-1, -2)  # (experts, out, in)
    for number, one in enumerate(tensor):
        if stem == "gate_up_proj":
            yield f"mlp.experts.{number}.gate.{kind}", one[0::2]
            yield f"mlp.experts.{number}.up.{kind}", one[1::2]
        else:
            yield f"mlp.experts.{number}.down.{kind}", one
