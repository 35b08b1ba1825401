"""Sites that train in one process, step by step: every byte is made, only no wire is crossed.

:class:`Replica` is one site's training: a model, AdamW, and the rows of text that are its own. A
step's rows follow from seed, site and step alone, so a run that stops goes on as if it had not.
:class:`Sites` lets replicas step in turn and carries the messages of
:mod:`tokenlife.wan.local_sgd` at once, or τ steps late. Some may be away for a while, or slower.

Left out: time. What a step costs on which link is :mod:`tokenlife.wan.local_time`'s.
"""

import math
from collections.abc import Callable, Container, Mapping

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tokenlife.transformer.train import TrainingRecipe, learning_rate, make_optimiser
from tokenlife.transformer.train.optimiser import set_rate
from tokenlife.wan.local_sgd import LocalError, Method, Site


def rows_of(
    tokens: np.ndarray, rows: int, length: int, sites: int | list[int], seed: int = 0
) -> Callable[[int], torch.Tensor]:
    """Return what gives a site its rows of a step: shape (rows, length + 1).

    Parameters
    ----------
    tokens
        Shape (n,).
    rows, length
        Of one site, and of each row.
    sites
        A site's number, or several: the rows of all of them, as a step over all sites reads them.
    seed
        Of the whole run.

    Examples
    --------
    >>> own, all_ = (rows_of(np.arange(99), 2, 4, sites) for sites in (1, [0, 1]))
    >>> bool((own(7) == all_(7)[2:]).all())
    True
    """

    def batch(step: int) -> torch.Tensor:
        starts = [
            np.random.default_rng((seed, site, step)).integers(len(tokens) - length, size=rows)
            for site in np.atleast_1d(sites)
        ]
        places = np.concatenate(starts)[:, None] + np.arange(length + 1)
        return torch.from_numpy(tokens[places].astype(np.int64))

    return batch


class Replica:
    """One site's own training.

    Parameters
    ----------
    model
        Takes ids and returns logits.
    recipe
        Of its steps.
    batch
        Takes a step, from 1, and returns (rows, length + 1) ids.

    Attributes
    ----------
    done
        Steps taken.
    """

    def __init__(self, model: nn.Module, recipe: TrainingRecipe, batch: Callable):
        self.model, self.recipe, self.batch, self.done = model, recipe, batch, 0
        self.optimiser = make_optimiser(model, recipe)

    def step(self, exchange: Callable[[np.ndarray], np.ndarray] | None = None) -> float:
        """Take a step; return the mean loss of its own rows, nats a token.

        Parameters
        ----------
        exchange
            Takes this site's gradient as one vector, and returns the one to be used.
        """
        ids = self.batch(self.done + 1)
        logits = self.model(ids[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if exchange:
            flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
            self._fill(exchange(flat.numpy()), lambda p: p.grad)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.done += 1
        set_rate(self.optimiser, learning_rate(self.recipe, self.done))
        self.optimiser.step()
        return loss.item()

    @property
    def weights(self) -> np.ndarray:
        """All weights as one float32 vector."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).numpy()

    @weights.setter
    def weights(self, values: np.ndarray) -> None:
        self._fill(values, lambda p: p.data)

    def _fill(self, values: np.ndarray, which: Callable) -> None:
        start, values = 0, torch.from_numpy(np.asarray(values, np.float32))
        for parameter in self.model.parameters():
            target = which(parameter)
            target.copy_(values[start : start + target.numel()].view_as(target))
            start += target.numel()

    def state_dict(self) -> dict:
        """Return all that a resumed run needs."""
        parts = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        return {"done": self.done, **parts}

    def load_state_dict(self, state: dict) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.done = state["done"]


class Sites:
    """Sites that train in one process, step by step: a rehearsal, with every byte made.

    Parameters
    ----------
    workers
        One a site; each has ``step()``, and ``weights``, one float32 vector that can be set.
    method
        How they agree.

    Attributes
    ----------
    done
        Steps taken.
    sent
        Bytes that each site has sent across the WAN: its messages, once to each other site.

    Raises
    ------
    LocalError
        If there is none, or they do not start from the same weights.
    """

    def __init__(self, workers: list, method: Method):
        if not workers or any(
            not np.array_equal(worker.weights, workers[0].weights) for worker in workers
        ):
            raise LocalError("sites start from the same weights: seed them alike, or copy them")
        self.workers, self.method, self.done = workers, method, 0
        self.sites = [Site(worker.weights, method) for worker in workers]
        self.sent, self._away = [0] * len(workers), set()
        self._flying: list[tuple[int, int, dict[int, bytes]]] = []

    @property
    def agreed(self) -> np.ndarray:
        """The weights that the sites last agreed on."""
        return next(s.agreed for i, s in enumerate(self.sites) if i not in self._away)

    def run(self, steps: int, away: Mapping[int, Container[int]] | None = None, pace=None) -> None:
        """Take steps.

        Parameters
        ----------
        steps
            How many.
        away
            For a site, the steps after which it cannot be reached; it trains on.
        pace
            For each site the share of steps that it gets done; all, if not given.
        """
        for _ in range(steps):
            self.done += 1
            for i, worker in enumerate(self.workers):
                share = 1 if pace is None else pace[i]
                if math.floor(self.done * share) > math.floor((self.done - 1) * share):
                    worker.step()
            gone = {i for i, when in (away or {}).items() if self.done in when}
            self._come_back(gone)
            for fragment in self.method.due(self.done):
                here = [i for i in range(len(self.sites)) if i not in self._away]
                offers = {i: self.sites[i].offer(self.workers[i].weights, fragment) for i in here}
                for i in here:
                    self.sent[i] += (len(here) - 1) * len(offers[i])
                self._flying.append((self.done + self.method.behind, fragment, offers))
            for due, fragment, offers in [f for f in self._flying if f[0] <= self.done]:
                self._flying.remove((due, fragment, offers))
                for i, site in enumerate(self.sites):
                    if i not in self._away:
                        worker = self.workers[i]
                        worker.weights = site.merge(worker.weights, fragment, offers)

    def _come_back(self, gone: set[int]) -> None:
        if len(gone) == len(self.sites):
            raise LocalError("at least one site must stay")
        for i in self._away - gone:
            other = next(j for j in range(len(self.sites)) if j not in self._away | gone)
            held = self.sites[other]
            self.workers[i].weights = self.sites[i].adopt(
                self.workers[i].weights, held.agreed, held.velocity
            )
            self.sent[other] += held.agreed.nbytes + held.velocity.nbytes
        self._away = gone

    def state_dict(self) -> dict:
        """Return the state of all sites, their workers, and of what is on its way."""
        own = {"done": self.done, "sent": list(self.sent), "away": sorted(self._away)}
        states = {
            "sites": [site.state_dict() for site in self.sites],
            "workers": [worker.state_dict() for worker in self.workers],
        }
        return {**own, **states, "flying": list(self._flying)}

    def load_state_dict(self, state: dict) -> None:
        """Go on from a checkpoint."""
        for name, own in (("sites", self.sites), ("workers", self.workers)):
            for one, held in zip(own, state[name], strict=True):
                one.load_state_dict(held)
        self.done, self.sent = state["done"], list(state["sent"])
        self._flying, self._away = list(state["flying"]), set(state["away"])
