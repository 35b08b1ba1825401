"""A model from named tensors: every weight once, each of the right shape, nothing left over.

A weight that is missing or misnamed would leave a model that runs and talks nonsense, so nothing is
filled in and nothing is passed over in silence.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tokenlife.errors import TokenlifeError
from tokenlife.transformer.config import ModelConfig
from tokenlife.transformer.model import Decoder


class WeightsError(TokenlifeError, ValueError):
    """A file that cannot be read as a model's weights."""


class MissingWeights(WeightsError):
    """The file lacks a tensor that the model needs."""


class SurplusWeights(WeightsError):
    """The file holds a tensor that the model has no place for."""


class WrongShape(WeightsError):
    """A tensor is not as large as the configuration says."""


def assemble(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    source: str,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Build a decoder around tensors that carry its own names.

    Parameters
    ----------
    config
        The architecture.
    tensors
        Name in :class:`Decoder` → tensor.
    source
        What to call the file in an error.
    attention, dtype
        Of the decoder.

    Raises
    ------
    MissingWeights, SurplusWeights, WrongShape
        If the tensors are not exactly those of the model.

    Examples
    --------
    >>> assemble(ModelConfig.load("running-gpt"), {}, "nothing")
    Traceback (most recent call last):
        ...
    tokenlife.transformer.weights.assemble.MissingWeights: nothing lacks \
blocks.0.attention.key.bias and 35 more that running-gpt needs
    """
    with torch.device("meta"):  # shapes only: no memory, no random numbers
        model = Decoder(config, attention)
    wanted = model.state_dict()
    _refuse(MissingWeights, source, "lacks", wanted.keys() - tensors, f"that {config.name} needs")
    surplus = tensors.keys() - wanted
    _refuse(SurplusWeights, source, "holds", surplus, f"that {config.name} has no place for")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise WrongShape(
                f"{source}: {name} is {tuple(tensor.shape)}, "
                f"but {config.name} needs {tuple(wanted[name].shape)}"
            )
    model.load_state_dict({n: t.to(dtype) for n, t in tensors.items()}, assign=True)
    return model.eval()


def _refuse(error: type, source: str, verb: str, names: Iterable[str], why: str) -> None:
    names = sorted(names)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise error(f"{source} {verb} {names[0]}{more} {why}")
