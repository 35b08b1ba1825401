"""AdamW: each parameter moves by its mean gradient over the root of its mean squared gradient.

Loshchilov and Hutter (2019) take weight decay out of the gradient and apply it to the weight. It is
meant for matrices: a norm's weight or a bias that is pulled to zero only loses what it has learnt,
so vectors are left alone, as GPT-2's successors do. The two moments are the optimiser's states: 8 B
beside each float32 weight of 4 B.
"""

import torch
from torch import nn

from tokenlife.transformer.train.recipe import TrainingRecipe


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Split a model's parameters into those that decay (matrices) and those that do not.

    Examples
    --------
    >>> groups = decay_groups(nn.Linear(3, 5), 0.1)
    >>> [(group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in groups]
    [(0.1, [(5, 3)]), (0.0, [(5,)])]
    """
    # parameters() names a tied matrix once.
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def make_optimiser(model: nn.Module, recipe: TrainingRecipe) -> torch.optim.AdamW:
    """Make the optimiser of a recipe; torch's fused kernel updates all parameters in one pass."""
    return torch.optim.AdamW(
        decay_groups(model, recipe.weight_decay),
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.eps,
        fused=True,
    )
