"""Weights in safetensors: one file, or a folder of shards, as Hugging Face models are kept."""

import json
from pathlib import Path

import torch

from tokenlife.transformer.config import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.weights.assemble import WeightsError, assemble
from tokenlife.transformer.weights.names import translate

_LOADED = (torch.float16, torch.bfloat16, torch.float32)
# Scales beside a tensor: its numbers mean nothing without them.
_QUANTISED = ("_scale_inv", "_scales", "_blocks", ".qweight", ".absmax")


def load_safetensors(
    path: str | Path,
    config: ModelConfig | None = None,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Load a checkpoint of any known family.

    Parameters
    ----------
    path
        A ``.safetensors`` file, or a folder of them.
    config
        The architecture; if not given, the folder's ``config.json``.
    attention, dtype
        Of the decoder.

    Raises
    ------
    WeightsError
        If there is no such file, it is truncated, or its numbers are quantised. Its subclasses: if
        a tensor is missing, too many, or of another shape.
    ConfigError
        If the ``config.json`` is of no known family.
    """
    path = Path(path)
    files = _files(path)
    if config is None:
        config = ModelConfig.load((path if path.is_dir() else path.parent) / "config.json")
    tensors = {}
    for file in files:
        for name, tensor in _read(file):
            try:
                made = dict(translate(config, name, tensor))
            except (RuntimeError, TypeError, IndexError, ValueError) as error:
                raise WeightsError(
                    f"{file}: {name} of shape {tuple(tensor.shape)} is not what {config.name} "
                    f"holds there"
                ) from error
            if name.endswith(_QUANTISED) or (made and tensor.dtype not in _LOADED):
                raise WeightsError(
                    f"{file}: {name} is {str(tensor.dtype).removeprefix('torch.')}: quantised or "
                    "foreign weights; float16, bfloat16 and float32 load"
                )
            if twice := made.keys() & tensors:
                raise WeightsError(f"{file}: {name} gives {min(twice)}, which another gave already")
            tensors.update(made)
    return assemble(config, tensors, str(path), attention, dtype)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
            raise WeightsError(f"{index} is no index of shards: {e}") from None
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise WeightsError(f"{index}: a shard must be a file beside it, not {name!r}")
        files = [path / name for name in sorted(names)]
    else:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"no .safetensors file at {path}")
    return files


def _read(file: Path):
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise WeightsError("reading .safetensors needs the package 'safetensors'") from None
    try:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no dict)
                yield name, opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file} is not a readable safetensors file: {error}") from None
