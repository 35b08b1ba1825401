"""How each family writes its numbers in a Hugging Face ``config.json``.

One function a family. It takes the parsed file and the model's name, and returns a
:class:`~tokenlife.transformer.config.ModelConfig`. What a file may leave out is taken from
``data/families.toml``.
"""

from collections.abc import Mapping

from tokenlife.catalog import family_defaults
from tokenlife.transformer.config import ConfigError, ModelConfig
from tokenlife.transformer.families import classic, gemma, llama, mixture
from tokenlife.transformer.families.fields import complete

FAMILIES = {
    "gpt2": classic.gpt2,
    "gpt_neox": classic.gpt_neox,
    "opt": classic.opt,
    "bloom": classic.bloom,
    "falcon": classic.falcon,
    "llama": llama.llama,
    "mistral": llama.llama,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
    "phi3": llama.llama,
    "olmo2": llama.olmo2,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3": gemma.gemma3_wrapped,
    "gemma3_text": gemma.gemma3,
    "mixtral": mixture.mixtral,
    "qwen3_moe": mixture.qwen3_moe,
    "deepseek_v2": mixture.deepseek_v2,
    "deepseek_v3": mixture.deepseek_v3,
    "kimi_k2": mixture.deepseek_v3,  # DeepSeek-V3's keys and layers under another name
    "gpt_oss": mixture.gpt_oss,
}


def read(config: Mapping, name: str) -> ModelConfig:
    """Read a ``config.json`` of any family in ``FAMILIES``.

    Raises
    ------
    ConfigError
        If the family is unknown, or a field it needs is missing.

    Examples
    --------
    >>> read({"model_type": "llm9"}, "new")
    Traceback (most recent call last):
        ...
    tokenlife.transformer.config.ConfigError: new: model_type 'llm9' is not known; known: bloom, \
...; a model built like Llama can be given as 'llama', with hidden_size, intermediate_size, \
max_position_embeddings, num_attention_heads, num_hidden_layers, vocab_size
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(
            f"{name}: model_type {family!r} is not known; known: {', '.join(sorted(FAMILIES))}; a "
            f"model built like Llama can be given as 'llama', with {', '.join(sorted(llama.NEEDS))}"
        )
    return FAMILIES[family](complete(config, family_defaults(family), name), name)
