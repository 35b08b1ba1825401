"""AdamW: each parameter moves by its mean gradient over the root of its mean squared gradient.

Loshchilov and Hutter (2019) take weight decay out of the gradient and apply it to the weight. It is
meant for matrices: a norm's weight or a bias that is pulled to zero only loses what it has learnt,
so vectors are left alone, as GPT-2's successors do. The two moments are the optimiser's states: 8 B
beside each float32 weight of 4 B.
"""

import torch
from torch import nn

from tokenlife.transformer.train.recipe import TrainingRecipe


def decay_groups(model: nn.Module, weight_decay: float, embedding_rate: float = 1.0) -> list[dict]:
    """Split a model's parameters into matrices, which decay, embedding tables, and vectors.

    Returns
    -------
    list of dict
        Groups as torch's optimisers take them. ``rate`` is what the learning rate is multiplied by.

    Examples
    --------
    >>> groups = decay_groups(nn.Linear(3, 5), 0.1)
    >>> [(group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in groups]
    [(0.1, [(5, 3)]), (0.0, [(5,)])]
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trained = [p for p in model.parameters() if p.requires_grad]  # a tied table is named once
    groups = [
        {"params": [p for p in trained if p.dim() >= 2 and id(p) not in tables],
         "weight_decay": weight_decay, "rate": 1.0},
        {"params": [p for p in trained if id(p) in tables],
         "weight_decay": weight_decay, "rate": embedding_rate},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0, "rate": 1.0},
    ]  # fmt: skip
    return [group for group in groups if group["params"]]


def make_optimiser(model: nn.Module, recipe: TrainingRecipe) -> torch.optim.AdamW:
    """Make the optimiser of a recipe; torch's fused kernel updates all parameters in one pass."""
    optimiser = torch.optim.AdamW(
        decay_groups(model, recipe.weight_decay, recipe.embedding_rate),
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.eps,
        fused=True,
    )
    set_rate(optimiser, recipe.learning_rate)
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate * group["rate"]
