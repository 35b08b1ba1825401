"""The model: its architecture's numbers, read from a ``config.json``."""

from tokenlife.transformer.config import ConfigError, ModelConfig

__all__ = ["ConfigError", "ModelConfig"]
