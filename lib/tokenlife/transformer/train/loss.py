"""Cross-entropy: the cost of the true next token, in nats; and what a model costs on unseen text.

The loss of a step is the mean over *all* its labels. Micro-batches do not hold equally many
(padding and document ends have none), so the mean of their means is not it: each micro-batch gives
the sum of its losses, and the sum is divided by the labels of the whole step.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenlife.corpus.batch import IGNORE
from tokenlife.errors import TokenlifeError


class NoLabelsError(TokenlifeError, ValueError):
    """A batch in which nothing is to be predicted."""


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of −ln p(label) over the places that have a label.

    Parameters
    ----------
    logits
        (B, S, V); taken to float32, since a sum of exponentials needs the digits.
    labels
        (B, S) int64, ``IGNORE`` where there is none.

    Examples
    --------
    >>> logits = torch.zeros(1, 2, 8)
    >>> round(loss_sum(logits, torch.tensor([[3, IGNORE]])).item(), 4)    # ln 8
    2.0794
    """
    return F.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def autocast(precision: str, device: torch.device) -> AbstractContextManager:
    """Return the context in which matrix products run in 16 bits, or in which nothing changes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@dataclass(frozen=True)
class Evaluation:
    """What unseen text costs.

    Attributes
    ----------
    nats
        Sum over all labels.
    labels
        Places that had one.
    """

    nats: float
    labels: int

    @property
    def loss(self) -> float:
        """Nats per token: the number that training makes small."""
        return self.nats / self.labels

    @property
    def bits_per_token(self) -> float:
        """Bits per token: the same in the unit of chapter 1."""
        return self.loss / math.log(2)

    def bits_per_byte(self, n_bytes: int) -> float:
        """Bits per byte of the text: comparable between vocabularies.

        Parameters
        ----------
        n_bytes
            Bytes of the evaluated text in UTF-8.
        """
        return self.nats / math.log(2) / n_bytes


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Mapping[str, Tensor]], precision: str = "float32"
) -> Evaluation:
    """Measure a model on batches without teaching it.

    Parameters
    ----------
    model
        Takes (B, S) ids and returns (B, S, V) logits.
    batches
        Each with ``ids`` and ``labels``.
    precision
        As in ``TrainingRecipe``.

    Raises
    ------
    NoLabelsError
        If no batch has a label.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    nats, labels = 0.0, 0
    try:
        for batch in batches:
            target = batch["labels"].to(device)
            with autocast(precision, device):
                logits = model(batch["ids"].to(device))
            nats += loss_sum(logits, target).item()
            labels += int((target != IGNORE).sum())
    finally:
        model.train(training)
    if not labels:
        raise NoLabelsError("no labels to evaluate on; give batches with at least one prediction")
    return Evaluation(nats, labels)
