"""When the loss is no number: where the first infinity or NaN stands, and what likely did it.

A NaN spreads to everything it touches, so what one sees says little. Asked in order: are the
weights still numbers? Then, on the batch that failed, which stage is the first whose output is
none? If all are numbers, it happened on the way back.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tokenlife.errors import TokenlifeError

GROWTH = 10  # a gradient so many times the usual one counts as grown


class DivergedError(TokenlifeError, ArithmeticError):
    """Training stopped because the loss, a gradient or a weight is no finite number.

    Attributes
    ----------
    step
        The step that failed, the weights being those of the step before; or, where weights were
        not finite when a checkpoint was due, the step they were found after.
    """

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


def first_nonfinite(model: nn.Module, ids: Tensor) -> str:
    """Name the first thing that is not finite: a weight, or a stage's output for these ids.

    Returns
    -------
    str
        Empty if all is finite.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> _ = layer.weight.data.fill_(float("nan"))
    >>> first_nonfinite(layer, torch.zeros(1, 2))
    'weight weight'
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"weight {name}"
    found: list[str] = []

    def look(name: str):
        def hook(module, inputs, output):
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(name)

        return hook

    # Inner modules finish before those that hold them, so the first found is the innermost.
    hooks = [
        module.register_forward_hook(look(name)) for name, module in model.named_modules() if name
    ]
    try:
        with torch.no_grad():
            output = model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"output of {found[0]}"
    return "" if torch.isfinite(output).all() else "the logits"


def likely_cause(where: str, norms: Sequence[float], rate: float, clip: float) -> str:
    """Say in one sentence what probably went wrong, and what to try.

    Parameters
    ----------
    where
        From :func:`first_nonfinite`.
    norms
        Gradient norms of the steps before.
    rate
        The learning rate of the step.
    clip
        The recipe's.

    Examples
    --------
    >>> likely_cause("output of blocks.1", [1.0, 1.1, 90.0], 0.5, 1.0)
    'output of blocks.1 is not finite; gradients had grown from 1.1 to 90: lower the learning rate \
(0.5)'
    """
    usual = sorted(norms)[len(norms) // 2] if norms else math.nan
    if where.startswith("weight") and not norms:
        return f"{where} was not finite before the first step: check what was loaded"
    what = f"{where} is not finite" if where else "the forward pass is finite, a gradient is not"
    if norms and norms[-1] > GROWTH * usual:
        grown = f"gradients had grown from {usual:.3g} to {norms[-1]:.3g}"
        return f"{what}; {grown}: lower the learning rate ({rate:g})"
    if not norms:
        return f"{what} in the very first step: check the weights and the batch"
    if not math.isfinite(clip):
        return f"{what}; gradients are not clipped: set clip, or lower the learning rate ({rate:g})"
    return f"{what}: lower the learning rate ({rate:g}), or warm up for longer"
