"""Bytes that a model holds: weights, gradients, optimiser states, and the key–value cache.

A recipe says in how many bytes each parameter is kept. Adam holds two moments of every parameter;
mixed precision computes in 16 bits and updates a 32-bit master copy (Micikevicius et al. 2018).
Rajbhandari et al. (2020) count 16 bytes a parameter for it: 2 + 2 + 4 + 4 + 4.

Left out: buffers of the allocator, of fused kernels and of communication, and fragmentation.
Activations are in ``tokenlife.costs.activations``.
"""

from dataclasses import dataclass

from tokenlife.costs.operations import CostError, check_batch
from tokenlife.costs.parameters import count_parameters
from tokenlife.transformer.config import ModelConfig


@dataclass(frozen=True)
class Recipe:
    """Bytes for each parameter, by kind.

    Attributes
    ----------
    name
        What the recipe is called.
    weights, gradients
        What forward and backward compute with.
    master
        A second, more precise copy of the weights; 0 for none.
    moments
        Both of Adam's together.
    """

    name: str
    weights: int
    gradients: int
    master: int
    moments: int

    @property
    def per_parameter(self) -> int:
        """All bytes of one parameter."""
        return self.weights + self.gradients + self.master + self.moments


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("float32", 4, 4, 0, 8),
        Recipe("mixed", 2, 2, 4, 8),  # ZeRO's 16 bytes
        Recipe("mixed, float32 gradients", 2, 4, 4, 8),  # Megatron sums gradients in 32 bits
        Recipe("bfloat16 moments", 2, 4, 4, 4),  # DeepSeek-V3 keeps moments in 16 bits
        Recipe("bfloat16", 2, 2, 0, 4),
        Recipe("inference bfloat16", 2, 0, 0, 0),
        Recipe("inference float32", 4, 0, 0, 0),
    )
}

BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1}


def bytes_of(dtype: str) -> int:
    """Return the bytes of one number.

    Raises
    ------
    CostError
        If the type is not known.

    Examples
    --------
    >>> bytes_of("bf16"), bytes_of("float32")
    (2, 4)
    """
    if dtype not in BYTES:
        raise CostError(f"dtype {dtype!r} is not known; known: {', '.join(BYTES)}")
    return BYTES[dtype]


def state_bytes(config: ModelConfig, recipe: Recipe | str = "mixed") -> dict[str, int]:
    """Return the bytes of ``weights``, ``gradients``, ``master`` and ``moments``.

    Raises
    ------
    CostError
        If a recipe of this name is not known.

    Examples
    --------
    >>> states = state_bytes(ModelConfig.load("gpt2"), "mixed")
    >>> sum(states.values()) / count_parameters(ModelConfig.load("gpt2"))
    16.0
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise CostError(f"recipe {recipe!r} is not known; known: {', '.join(RECIPES)}")
        recipe = RECIPES[recipe]
    parameters = count_parameters(config)
    kinds = ("weights", "gradients", "master", "moments")
    return {kind: parameters * getattr(recipe, kind) for kind in kinds}


def kv_numbers_per_layer(config: ModelConfig) -> int:
    """Count the numbers that one layer keeps of one token.

    Keys and values of all key–value heads; of latent attention the latent vector and the rotated
    part of the key, once for all heads.
    """
    a = config.attention
    if a.kv_rank:
        return a.kv_rank + a.rope_dim
    return a.kv_heads * (a.head_dim + a.value_dim)


def kv_bytes_per_token(config: ModelConfig, bytes_per_number: int = 2) -> int:
    """Return the bytes of key–value cache that one more token takes, over all layers.

    Layers with a window stop growing once it is full: see :func:`kv_cache_bytes`.

    Examples
    --------
    >>> kv_bytes_per_token(ModelConfig.load("llama-3.1-8b"))
    131072
    >>> kv_bytes_per_token(ModelConfig.load("deepseek-v3"))
    70272
    """
    return config.layers * kv_numbers_per_layer(config) * bytes_per_number


def kv_cache_bytes(
    config: ModelConfig, sequences: int, length: int, bytes_per_number: int = 2
) -> int:
    """Return the bytes of cache for a batch, where windowed layers keep only their window.

    Raises
    ------
    CostError
        If the batch is empty or longer than the model's positions.

    Examples
    --------
    >>> gemma = ModelConfig.load("gemma-2-2b")
    >>> kv_cache_bytes(gemma, 1, 8192) / (8192 * kv_bytes_per_token(gemma))
    0.75
    """
    check_batch(config, sequences, length)
    window = config.attention.window
    kept = sum(
        min(length, window) if config.is_windowed(layer) else length
        for layer in range(config.layers)
    )
    return sequences * kept * kv_numbers_per_layer(config) * bytes_per_number
