"""The numbers of a training run, and the learning rate they give at each step.

The rate climbs in a straight line over the warm-up, while Adam's averages are still made of few
gradients, then falls along half a cosine to a small share of its peak (Loshchilov and Hutter 2017),
so that the last steps settle instead of wandering.
"""

import math
from dataclasses import dataclass, fields

from tokenlife.errors import TokenlifeError

PRECISIONS = ("float32", "bfloat16")
_KINDS = {int: (int, "a whole number"), float: (int | float, "a number"), str: (str, "a name")}


class RecipeError(TokenlifeError, ValueError):
    """A recipe that cannot be followed."""


@dataclass(frozen=True)
class TrainingRecipe:
    """How a model is trained.

    Attributes
    ----------
    steps
        Optimiser steps of the whole run; the schedule ends there.
    learning_rate
        Its peak.
    final_share
        Share of the peak that is left at the last step.
    warmup
        Steps until the peak.
    beta1, beta2, eps
        Adam's: memory of the mean gradient, of the mean square, and what is added to its root.
    embedding_rate
        What the learning rate is multiplied by for embedding tables. A row learns only when its
        token occurs, so in a short run tables want larger steps than matrices.
    weight_decay
        Share of a matrix taken away in each step, times the learning rate.
    clip
        Longest gradient, over all parameters together; a longer one is scaled down to it.
    precision
        ``float32``; or ``bfloat16``: products in 16 bits, weights and updates in 32.
    checkpoint_every
        Steps between two checkpoints; 0 for the last step only.

    Raises
    ------
    RecipeError
        If a number is out of range.

    Examples
    --------
    >>> TrainingRecipe(steps=100, warmup=200)
    Traceback (most recent call last):
        ...
    tokenlife.transformer.train.recipe.RecipeError: warmup must be from 0 to steps (100), not 200
    """

    steps: int
    learning_rate: float = 1e-3
    final_share: float = 0.1
    warmup: int = 0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    embedding_rate: float = 1.0
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: str = "float32"
    checkpoint_every: int = 0

    def __post_init__(self):
        for field in fields(self):
            kind, said = _KINDS[field.type]
            value = getattr(self, field.name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise RecipeError(f"{field.name} must be {said}, not {value!r}")
        rules = {
            "steps": (self.steps >= 1, "at least 1"),
            "learning_rate": (0 < self.learning_rate < math.inf, "above 0"),
            "final_share": (0 <= self.final_share <= 1, "from 0 to 1"),
            "warmup": (0 <= self.warmup <= self.steps, f"from 0 to steps ({self.steps})"),
            "beta1": (0 <= self.beta1 < 1, "from 0 and below 1"),
            "beta2": (0 <= self.beta2 < 1, "from 0 and below 1"),
            "eps": (self.eps > 0, "above 0"),
            "embedding_rate": (0 < self.embedding_rate < math.inf, "above 0"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "0 or more"),
            "clip": (self.clip > 0, "above 0 (math.inf for none)"),
            "precision": (self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
            "checkpoint_every": (self.checkpoint_every >= 0, "0 or more"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise RecipeError(f"{name} must be {rule}, not {getattr(self, name)!r}")


def learning_rate(recipe: TrainingRecipe, step: int) -> float:
    """Return the learning rate of a step; steps count from 1.

    Examples
    --------
    >>> recipe = TrainingRecipe(steps=100, learning_rate=1.0, warmup=10)
    >>> [round(learning_rate(recipe, step), 3) for step in (1, 10, 55, 100)]
    [0.1, 1.0, 0.55, 0.1]
    """
    if step < recipe.warmup:
        return recipe.learning_rate * step / recipe.warmup
    after = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    fallen = (1 + math.cos(math.pi * min(after, 1.0))) / 2
    share = recipe.final_share + (1 - recipe.final_share) * fallen
    return recipe.learning_rate * share
