"""Pretrained weights: safetensors, GGUF, and a small real model that a package carries."""

from tokenlife.transformer.weights.assemble import (
    MissingWeights,
    SurplusWeights,
    WeightsError,
    WrongShape,
)
from tokenlife.transformer.weights.gguf_file import load_gguf, read_tokenizer
from tokenlife.transformer.weights.safetensors_files import load_safetensors
from tokenlife.transformer.weights.smollm2 import smollm2, smollm2_path, smollm2_tokenizer

__all__ = [
    "MissingWeights",
    "SurplusWeights",
    "WeightsError",
    "WrongShape",
    "load_gguf",
    "load_safetensors",
    "read_tokenizer",
    "smollm2",
    "smollm2_path",
    "smollm2_tokenizer",
]
