"""The small parts of a block: norms, and the MLP that works on each token alone.

Both keep the width of the residual stream. A norm sets the length of each token's vector before a
part reads it. The MLP widens the vector, passes it through a function that is no straight line, and
narrows it again; where it is gated, a second projection decides how much of each inner number
passes (Shazeer 2020, "GLU Variants Improve Transformer").

Left out: dropout, which today's large models do without.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenlife.transformer.config import ModelConfig

# gpt-oss holds both halves of its gate to ± LIMIT and leans on a steeper sigmoid.
LIMIT, STEEPNESS = 7.0, 1.702

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class RMSNorm(nn.Module):
    """Divide a vector by its root mean square, then weigh each number.

    Parameters
    ----------
    width
        Of the last dimension.
    eps
        Added to the mean square.
    unit_offset
        The weight is stored as w − 1 and starts at 0 (Gemma).

    Examples
    --------
    >>> RMSNorm(2, eps=0.0)(torch.tensor([3.0, -3.0])).tolist()
    [1.0, -1.0]
    """

    def __init__(self, width: int, eps: float, unit_offset: bool = False):
        super().__init__()
        self.eps, self.unit_offset = eps, unit_offset
        self.weight = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        weight = 1 + self.weight if self.unit_offset else self.weight
        return F.rms_norm(x, weight.shape, weight, self.eps)


def norm(config: ModelConfig, width: int = 0) -> nn.Module:
    """Return a norm of the kind that the model uses, over ``width`` or the hidden size."""
    width = width or config.hidden
    if config.norm.kind == "layernorm":
        return nn.LayerNorm(width, config.norm.eps, bias=config.norm.bias)
    return RMSNorm(width, config.norm.eps, config.norm.unit_offset)


class Mlp(nn.Module):
    """The feed-forward part: up, through the activation, down.

    Parameters
    ----------
    hidden
        Width of the residual stream.
    width
        Inner width.
    activation
        As in ``config.Mlp``.
    gated, bias
        Whether there is a gate, and whether projections carry biases.

    Examples
    --------
    >>> mlp = Mlp(8, 32, "silu", gated=True)
    >>> mlp(torch.zeros(2, 5, 8)).shape, sum(p.numel() for p in mlp.parameters())
    (torch.Size([2, 5, 8]), 768)
    """

    def __init__(
        self, hidden: int, width: int, activation: str, gated: bool = False, bias: bool = False
    ):
        super().__init__()
        self.activation = activation
        self.gate = nn.Linear(hidden, width, bias) if gated else None
        self.up = nn.Linear(hidden, width, bias)
        self.down = nn.Linear(width, hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        """(…, hidden) → (…, hidden)."""
        up = self.up(x)  # (…, width)
        if self.gate is None:
            inside = ACTIVATIONS[self.activation](up)
        elif self.activation == "silu_clamped":
            gate, up = self.gate(x).clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
            inside = gate * torch.sigmoid(STEEPNESS * gate) * (up + 1)
        else:
            inside = ACTIVATIONS[self.activation](self.gate(x)) * up
        return self.down(inside)
