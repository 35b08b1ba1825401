"""The loop: micro-batches in, one optimiser step out, again and again; and going on after a stop.

A step takes as many micro-batches as the data's layout says, adds their gradients up, scales the
sum down if it is too long, and moves the weights once. Nothing moves before the loss and the
gradient are known to be numbers: a step that fails leaves weights and checkpoint as they were.

What a resumed run needs is small: weights, the optimiser's moments, the state of torch's random
generators, how many sequences were consumed, and the step. On a CPU it then computes bit for bit
what the run without a stop computes.

Left out: more than one rank (part II adds the exchange of gradients), a moving average of weights,
documents kept apart inside a row (a token sees whatever stands before it in its row, as in GPT-2).
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from tokenlife.corpus.batch import IGNORE
from tokenlife.corpus.loader import TokenBatches
from tokenlife.errors import TokenlifeError
from tokenlife.transformer.train.checkpoint import (
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from tokenlife.transformer.train.diverged import DivergedError, first_nonfinite, likely_cause
from tokenlife.transformer.train.loss import NoLabelsError, autocast, loss_sum
from tokenlife.transformer.train.optimiser import make_optimiser, set_rate
from tokenlife.transformer.train.recipe import TrainingRecipe, learning_rate

REMEMBERED = 50  # gradient norms kept for a diagnosis


class TrainingError(TokenlifeError, ValueError):
    """A trainer that is asked for what it cannot do."""


@dataclass(frozen=True)
class StepReport:
    """One step, as it is handed to the progress callback.

    Attributes
    ----------
    step
        Counted from 1.
    loss
        Mean over the step's labels, nats per token.
    gradient_norm
        Before clipping, over all parameters.
    learning_rate
        Used in this step.
    tokens
        Read in this step, padding included.
    seconds
        Wall time.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    seconds: float


class Trainer:
    """Trains a model on a rank's stream of micro-batches.

    Parameters
    ----------
    model
        Takes (B, S) ids and returns (B, S, V) logits; has a ``config`` if it is a ``Decoder``.
    batches
        The stream, which knows how many micro-batches make a step.
    recipe
        The numbers of the run.
    checkpoint
        Where the checkpoint goes; ``None`` keeps none.
    device
        ``"auto"``: a GPU where there is one.

    Raises
    ------
    TrainingError
        If the data are dealt to more ranks than the one that trains here.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: TokenBatches,
        recipe: TrainingRecipe,
        checkpoint: str | Path | None = None,
        device: str | torch.device = "auto",
    ):
        if batches.layout.ranks != 1:
            raise TrainingError(
                f"the batches are dealt to {batches.layout.ranks} ranks; this trainer is one rank"
            )
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.batches, self.recipe = batches, recipe
        self.checkpoint = Path(checkpoint) if checkpoint is not None else None
        self.optimiser = make_optimiser(self.model, recipe)
        self.done = 0  # steps
        self._saved = None
        self._stream = None
        self._norms: deque[float] = deque(maxlen=REMEMBERED)

    def run(
        self, until: int | None = None, progress: Callable[[StepReport], object] | None = None
    ) -> list[StepReport]:
        """Train up to a step, by default to the end of the recipe.

        Parameters
        ----------
        until
            The last step to do.
        progress
            Called after each step.

        Raises
        ------
        DivergedError
            If a loss or gradient is not finite, or a weight when it is to be kept or handed over.
        KeyboardInterrupt
            As the reader asked. The checkpoint that was last written stays, whole.
        """
        until = self.recipe.steps if until is None else min(until, self.recipe.steps)
        every, reports = self.recipe.checkpoint_every, []
        try:
            while self.done < until:
                reports.append(self.step())
                if every and self.done % every == 0:
                    self.save()
                if progress:
                    progress(reports[-1])
        except KeyboardInterrupt as stop:
            stop.add_note(f"stopped after step {self.done}; {self._kept()}")
            raise
        if self._saved != self.done:
            self.save()
        return reports

    def step(self) -> StepReport:
        """Take the next micro-batches and move the weights once.

        A step that fails or is interrupted before the weights moved leaves the data and torch's
        random generators where they stood, so the next call takes the same step.

        Raises
        ------
        DivergedError
            If the loss or the gradient is not finite; the weights are as before.
        NoLabelsError
            If the step's batches hold nothing to predict.
        TrainingError
            If the data end before the step is full.
        """
        data, random, number = self.batches.state_dict(), self._random(), self.done + 1
        try:
            return self._step(number)
        except BaseException:
            if self.done < number:
                self.batches.load_state_dict(data)
                self._stream = None
                self._set_random(random)
            raise

    def _step(self, number: int) -> StepReport:
        start = time.perf_counter()
        rate = learning_rate(self.recipe, number)
        micro_batches = self._next()
        labels = sum(int((batch["labels"] != IGNORE).sum()) for batch in micro_batches)
        if not labels:
            raise NoLabelsError(f"step {number}: no labels in its batches, nothing to learn")
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for batch in micro_batches:
            with autocast(self.recipe.precision, self.device):
                logits = self.model(batch["ids"])
            loss = loss_sum(logits, batch["labels"]) / labels
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        loss_, norm_ = total.item(), norm.item()
        if not (math.isfinite(loss_) and math.isfinite(norm_)):
            self.optimiser.zero_grad(set_to_none=True)
            raise self._diverged(number, loss_, rate, micro_batches)
        set_rate(self.optimiser, rate)
        self.optimiser.step()
        self.done = number
        self._norms.append(norm_)
        tokens = sum(batch["ids"].numel() for batch in micro_batches)
        return StepReport(number, loss_, norm_, rate, tokens, time.perf_counter() - start)

    def _next(self) -> list[dict]:
        """Return the micro-batches of one step, on the device."""
        if self._stream is None:
            self._stream = iter(self.batches)
        wanted = self.batches.layout.accumulation
        found = [batch for _, batch in zip(range(wanted), self._stream, strict=False)]
        if len(found) < wanted:
            raise TrainingError(
                f"the data end in step {self.done + 1}: "
                f"{len(found)} of its {wanted} micro-batches are left"
            )
        names = ("ids", "labels")
        return [{name: batch[name].to(self.device) for name in names} for batch in found]

    def _diverged(self, step: int, loss: float, rate: float, batches: list) -> DivergedError:
        with autocast(self.recipe.precision, self.device):
            found = (first_nonfinite(self.model, batch["ids"]) for batch in batches)
            where = next(filter(None, found), "")
        cause = likely_cause(where, list(self._norms), rate, self.recipe.clip)
        return DivergedError(
            f"step {step}: the loss is {loss:g}; likely cause: {cause}; {self._kept()}", step
        )

    def _kept(self) -> str:
        if self._saved is None:
            return "no checkpoint was written"
        return f"the checkpoint of step {self._saved} is in {self.checkpoint}"

    # ---- stopping and going on ----------------------------------------------------------------

    def state_dict(self) -> dict:
        """Return all that a resumed run needs, as tensors and plain values."""
        config = getattr(self.model, "config", None)
        return {
            "step": self.done,
            "recipe": asdict(self.recipe),
            "config": asdict(config) if config is not None else {},
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "loader": self.batches.state_dict(),
            "norms": list(self._norms),
            **self._random(),
        }

    def _random(self) -> dict:
        state = {"rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        return state

    def _set_random(self, state: dict) -> None:
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)

    def save(self) -> None:
        """Write the checkpoint, if this trainer keeps one.

        Raises
        ------
        DivergedError
            If a weight is not finite; the checkpoint that was last written stays.
        """
        for name, parameter in self.model.named_parameters():
            if not torch.isfinite(parameter).all():
                rate = learning_rate(self.recipe, max(1, self.done))
                norms = list(self._norms)
                cause = likely_cause(f"weight {name}", norms, rate, self.recipe.clip)
                message = f"after step {self.done}, likely cause: {cause}; {self._kept()}"
                raise DivergedError(message, self.done)
        if self.checkpoint is None:
            return
        save_checkpoint(self.checkpoint, self.state_dict())
        self._saved = self.done

    def load(self, path: str | Path | None = None) -> None:
        """Go on from a checkpoint.

        Parameters
        ----------
        path
            By default this trainer's own.

        Raises
        ------
        CheckpointError
            If there is none, or it is of another model or recipe.
        ResumeError
            If it is of other data.
        """
        path = path or self.checkpoint
        if path is None:
            raise CheckpointError("no checkpoint to load: name its path")
        state, own = load_checkpoint(path), self.state_dict()
        if missing := [part for part in own if part not in {*state, "cuda_rng"}]:
            raise CheckpointError(f"{path} is no whole checkpoint; it lacks {', '.join(missing)}")
        for part in ("config", "recipe"):
            for name, value in own[part].items():
                if (saved := state[part].get(name)) != value:
                    raise CheckpointError(
                        f"{path} has {part} {name} = {saved!r}, this run has {value!r}; "
                        "resume with the same model and recipe"
                    )
        self.batches.load_state_dict(state["loader"])
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self._set_random(state)
        self.done = self._saved = state["step"]
        self._norms = deque(state["norms"], maxlen=REMEMBERED)
        self._stream = None
