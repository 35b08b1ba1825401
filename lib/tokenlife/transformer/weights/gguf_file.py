"""Weights in GGUF, the file of llama.cpp: numbers in 4 to 8 bits, with the tokeniser beside them.

Weights lie in blocks of 32: in Q4_1, 16 levels of 4 bits, a step and a least value in 16 bits, so 5
bits a weight. They are widened to float32 here, so the file's rounding stays and no other comes.

llama.cpp turns neighbours (2i, 2i + 1) in RoPE where Hugging Face turns halves (i, i + d/2); a GGUF
file therefore holds the rows of queries and keys in another order, which is undone here.

Left out: architectures other than ``llama``, and computing with the packed weights.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tokenlife.tokenizer import Pretokenizer, Tokenizer, pretokenizer
from tokenlife.tokenizer.byte_alphabet import to_bytes
from tokenlife.transformer.config import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.weights.assemble import WeightsError, assemble

_FIELDS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "vocab_size": "vocab_size",
}
_AROUND = {
    "token_embd": "token_embedding",
    "output_norm": "final_norm",
    "output": "unembedding",
}
_INSIDE = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.query",
    "attn_k": "attention.key",
    "attn_v": "attention.value",
    "attn_output": "attention.out",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}
_SPECIAL = 3  # GGUF's token type "control"


def load_gguf(
    path: str | Path, attention: str = "sdpa", dtype: torch.dtype = torch.float32
) -> Decoder:
    """Load a Llama-like model from a GGUF file, its weights widened to ``dtype``.

    Raises
    ------
    WeightsError
        If the file is missing, truncated, no GGUF, of another architecture or of an unknown
        quantisation. Its subclasses: if a tensor is missing, too many, or of another shape.
    """
    from gguf.quants import dequantize

    reader = _open(path)
    config = _config(reader, path)
    tensors = {}
    for stored in reader.tensors:
        try:
            numbers = dequantize(stored.data, stored.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise WeightsError(f"{path}: {stored.name}: {error}") from None
        # A copy: the file's own memory is mapped and cannot be written.
        tensor = torch.from_numpy(np.array(numbers, dtype=np.float32))
        name = _name(stored.name)
        tensors[name] = _untwist(name, tensor, config)
    return assemble(config, tensors, str(path), attention, dtype)


def _open(path: str | Path):
    try:
        from gguf import GGUFReader
    except ImportError:
        raise WeightsError("reading a GGUF file needs the package 'gguf'") from None
    if not Path(path).is_file():
        raise WeightsError(f"no file {path}")
    try:
        return GGUFReader(path)
    except Exception as error:  # the reader indexes into the file and trips in many ways
        raise WeightsError(f"{path} is truncated, or no GGUF file: {error}") from None


def _field(reader, key: str):
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _config(reader, path: str | Path) -> ModelConfig:
    kind = _field(reader, "general.architecture")
    if kind != "llama":
        raise WeightsError(f"{path}: architecture {kind!r} is not known; known: llama")
    fields = {ours: _field(reader, f"llama.{theirs}") for ours, theirs in _FIELDS.items()}
    if _field(reader, "llama.rope.scaling.type") not in (None, "none"):
        raise WeightsError(f"{path}: a scaled RoPE in GGUF is not known")
    tied = not any(stored.name == "output.weight" for stored in reader.tensors)
    config = {"model_type": "llama", "tie_word_embeddings": tied}
    config |= {key: value for key, value in fields.items() if value is not None}
    return ModelConfig.from_hf(config, _field(reader, "general.basename") or Path(path).stem)


def _name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _AROUND:
        return f"{_AROUND[stem]}.{kind}"
    _, _, rest = stem.partition("blk.")
    number, _, part = rest.partition(".")
    return f"blocks.{number}.{_INSIDE[part]}.{kind}" if part in _INSIDE else name


def _untwist(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Put the rows of queries and keys from neighbours back to halves."""
    a = config.attention
    heads = {"attention.query": a.heads, "attention.key": a.kv_heads}
    count = next((n for part, n in heads.items() if part in name), 0)
    if not count or len(tensor) != count * a.head_dim:  # of a wrong shape: assemble says so
        return tensor
    return tensor.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Read the byte-level BPE tokeniser that a GGUF file carries.

    Raises
    ------
    WeightsError
        If the file is no GGUF, or its tokeniser is of another kind.
    """
    reader = _open(path)
    kind, cut = _field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre")
    cuts = {
        "smollm": Pretokenizer((r"\p{N}", *pretokenizer("gpt2").patterns)),  # each digit alone
        "gpt-2": pretokenizer("gpt2"),
        "llama-bpe": pretokenizer("llama3"),
        "qwen2": pretokenizer("qwen", "NFC"),
    }
    if kind != "gpt2" or cut not in cuts:
        raise WeightsError(
            f"{path}: a tokeniser of kind {kind!r} cut by {cut!r} is not known; known: "
            f"'gpt2' cut by {', '.join(cuts)}"
        )
    tokens = _field(reader, "tokenizer.ggml.tokens")
    kinds = _field(reader, "tokenizer.ggml.token_type") or [0] * len(tokens)
    special = {t: i for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k == _SPECIAL}
    ids = {token: i for i, token in enumerate(tokens) if token not in special}
    pairs = (merge.split(" ") for merge in _field(reader, "tokenizer.ggml.merges"))
    return Tokenizer(
        _field(reader, "general.basename") or Path(path).stem,
        {to_bytes(token): i for token, i in ids.items()},
        cuts[cut],
        special,
        [(ids[left], ids[right]) for left, right in pairs],
    )
