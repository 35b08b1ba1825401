"""Training: one step and many, the optimiser, checkpoints, and the measure of what was learnt.

``recipe`` holds the numbers of a training run and the schedule they give, ``loss`` what is made
small, ``optimiser`` what makes it small, ``checkpoint`` what survives a crash, ``diverged`` the
diagnosis when a loss is no number, ``trainer`` the loop over all of them.
"""

from tokenlife.transformer.train.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from tokenlife.transformer.train.diverged import DivergedError
from tokenlife.transformer.train.loss import Evaluation, evaluate, loss_sum
from tokenlife.transformer.train.optimiser import decay_groups, make_optimiser
from tokenlife.transformer.train.recipe import RecipeError, TrainingRecipe, learning_rate
from tokenlife.transformer.train.trainer import StepReport, Trainer, TrainingError

__all__ = [
    "CheckpointError",
    "DivergedError",
    "Evaluation",
    "RecipeError",
    "StepReport",
    "Trainer",
    "TrainingError",
    "TrainingRecipe",
    "decay_groups",
    "evaluate",
    "learning_rate",
    "load_checkpoint",
    "loss_sum",
    "make_optimiser",
    "save_checkpoint",
]
