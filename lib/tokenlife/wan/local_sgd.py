"""Training at sites that speak seldom: local SGD, DiLoCo, and DiLoCo in fragments that overlap.

Every site takes H steps of its own from the same weights θ. What it then offers to the others is
the way it went, θ − θᵢ, the outer gradient. All sites take the mean Δ of those that came, and make
the same outer step, with momentum μ as Nesterov meant it::

    v ← μ·v + Δ            θ ← θ − η·(Δ + μ·v)

η = 1 and μ = 0 is the mean of the weights [1]_. DiLoCo [2]_ takes η = 0.7 and μ = 0.9. Streaming
DiLoCo [3]_ cuts the weights into fragments that are due at different steps, so that the link is
used evenly, and lets a fragment arrive τ steps after it left; what a site learnt meanwhile is mixed
with what arrives: ``mix``·θᵢ + (1 − ``mix``)·θ.

Weights are one float32 vector. Each site decodes the messages that were sent, its own too, and adds
them in the order of the sites: so all hold the same θ and v to the bit, and nobody sends them.
A site that was away takes both from another (8 bytes a weight) and keeps the way it went, which it
offers when it is next due.

Left out: sums of outer gradients on the way (each site sends its own to each other), inner
optimisers' states (they stay at home), unequal data.

References
----------
.. [1] S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019.
.. [2] A. Douillard et al., "DiLoCo: distributed low-communication training of language models",
   2023.
.. [3] A. Douillard et al., "Streaming DiLoCo with overlapping communication", 2025.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch

from tokenlife.errors import TokenlifeError
from tokenlife.wan.compression import Blocks, Feedback


class LocalError(TokenlifeError, ValueError):
    """A way of training at several sites that cannot be."""


@dataclass(frozen=True)
class Method:
    """How sites agree.

    Attributes
    ----------
    every
        Steps between two exchanges of a weight, H.
    bits
        Of a number of an outer gradient, as :class:`~tokenlife.wan.compression.Blocks` offers them.
    rate, momentum
        Of the outer step.
    fragments
        Into which the weights are cut, each due at another step.
    behind
        Steps from sending to using, τ.
    mix
        What a site keeps of its own weights when others' arrive.
    feedback
        Whether what the code lost is sent with the next outer gradient.

    Raises
    ------
    LocalError
        If a number is out of range.

    Examples
    --------
    >>> Method(every=0)
    Traceback (most recent call last):
        ...
    tokenlife.wan.local_sgd.LocalError: every must be at least 1 step, not 0: sites that never ...
    """

    every: int
    bits: int = 32
    rate: float = 1.0
    momentum: float = 0.0
    fragments: int = 1
    behind: int = 0
    mix: float = 0.0
    feedback: bool = True

    def __post_init__(self):
        for name, least in (("every", 1), ("fragments", 1), ("behind", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                why = ": sites that never speak train models apart" if name == "every" else ""
                raise LocalError(f"{name} must be at least {least} step, not {value!r}{why}")
        Blocks(self.bits)
        if self.fragments > self.every:
            raise LocalError(
                f"{self.fragments} fragments need as many steps between exchanges, not {self.every}"
            )
        if self.behind >= self.every:
            raise LocalError(
                f"a fragment must arrive before it is due again: behind must be below {self.every}"
            )
        if not 0 < self.rate <= 10 or not 0 <= self.momentum < 1 or not 0 <= self.mix < 1:
            raise LocalError("rate must be above 0, momentum and mix from 0 and below 1")

    def due(self, step: int) -> list[int]:
        """Return the fragments that leave after a step; steps count from 1.

        Examples
        --------
        >>> [Method(4, fragments=2).due(step) for step in (1, 2, 3, 4, 5, 6)]
        [[], [0], [], [1], [], [0]]
        """
        return [
            fragment
            for fragment in range(self.fragments)
            if step % self.every == (fragment + 1) * self.every // self.fragments % self.every
        ]


def mean_of_weights(every: int, bits: int = 32) -> Method:
    """Return local SGD."""
    return Method(every, bits)


def diloco(every: int, bits: int = 32, rate: float = 0.7, momentum: float = 0.9) -> Method:
    """Return DiLoCo, with its authors' outer step."""
    return Method(every, bits, rate, momentum)


def streaming(every: int, bits: int = 32, fragments: int = 4, behind: int = 1, **other) -> Method:
    """Return Streaming DiLoCo; by default with DiLoCo's outer step, and half of each on arrival."""
    outer = {"rate": 0.7, "momentum": 0.9, "mix": 0.5 if behind else 0.0, **other}
    return Method(every, bits, fragments=fragments, behind=behind, **outer)


class Site:
    """What one site holds between exchanges.

    Parameters
    ----------
    weights
        Where all sites start: float32, shape (n,). Copied.
    method
        The same at all sites.

    Attributes
    ----------
    agreed
        θ, the same at all sites.

    Examples
    --------
    >>> method = Method(every=1)
    >>> sites = [Site(np.zeros(2), method) for _ in range(2)]
    >>> own = [np.array([1.0, 0.0]), np.array([3.0, 4.0])]
    >>> offers = {i: site.offer(own[i], 0) for i, site in enumerate(sites)}
    >>> [site.merge(own[i], 0, offers).tolist() for i, site in enumerate(sites)]
    [[2.0, 2.0], [2.0, 2.0]]
    """

    def __init__(self, weights: np.ndarray, method: Method):
        self.method, self.agreed = method, np.array(weights, np.float32)
        self.velocity = np.zeros_like(self.agreed)
        if self.agreed.ndim != 1 or self.agreed.size < method.fragments:
            raise LocalError(f"weights must be one vector of at least {method.fragments} numbers")
        self.parts = [
            slice(int(part[0]), int(part[-1]) + 1)
            for part in np.array_split(np.arange(self.agreed.size), method.fragments)
        ]
        self.codes = [Feedback(Blocks(method.bits)) for _ in self.parts]

    def offer(self, weights: np.ndarray, fragment: int) -> bytes:
        """Return the outer gradient of a fragment, as it is sent."""
        part, code = self.parts[fragment], self.codes[fragment]
        went = self.agreed[part] - np.asarray(weights, np.float32)[part]
        return code.encode(went) if self.method.feedback else code.code.encode(went)

    def merge(self, weights: np.ndarray, fragment: int, offers: Mapping[int, bytes]) -> np.ndarray:
        """Make the outer step of a fragment; return this site's new weights.

        Parameters
        ----------
        weights
            This site's own now.
        fragment
            Which.
        offers
            From each site that took part, by its number; not empty.

        Raises
        ------
        LocalError
            If nobody took part.
        """
        if not offers:
            raise LocalError("an outer step needs the outer gradient of at least one site")
        part, code, m = self.parts[fragment], self.codes[fragment].code, self.method
        count = part.stop - part.start
        mean = sum(code.decode(offers[site], count) for site in sorted(offers)) / len(offers)
        self.velocity[part] = m.momentum * self.velocity[part] + mean
        self.agreed[part] -= m.rate * (mean + m.momentum * self.velocity[part])
        mine = np.array(weights, np.float32)
        mine[part] = m.mix * mine[part] + (1 - m.mix) * self.agreed[part]
        return mine

    def adopt(
        self,
        weights: np.ndarray,
        agreed: np.ndarray,
        velocity: np.ndarray,
        since: np.ndarray | None = None,
    ) -> np.ndarray:
        """Come (back) to the others: take what they agreed on, keep the way that one went.

        Parameters
        ----------
        weights
            This site's own now.
        agreed, velocity
            The others'.
        since
            This site's weights when it was last heard, if the others made an outer step with that
            and it missed the step; by default it went all the way alone.

        Returns
        -------
        ndarray
            This site's new weights.
        """
        went = np.asarray(weights, np.float32) - (self.agreed if since is None else since)
        self.agreed, self.velocity = np.array(agreed), np.array(velocity)
        return self.agreed + went

    def state_dict(self) -> dict:
        """Return all that a checkpoint needs beside the site's own training."""
        owed = [None if c.owed is None else torch.from_numpy(c.owed.copy()) for c in self.codes]
        both = (torch.from_numpy(a.copy()) for a in (self.agreed, self.velocity))
        return {"method": asdict(self.method), "owed": owed, "agreed and velocity": list(both)}

    def load_state_dict(self, state: dict) -> None:
        """Go on from a checkpoint.

        Raises
        ------
        LocalError
            If it is of another method or model.
        """
        agreed, velocity = (a.numpy().copy() for a in state["agreed and velocity"])
        if state["method"] != asdict(self.method) or agreed.size != self.agreed.size:
            raise LocalError("the saved state is of another method or model: resume with the same")
        self.agreed, self.velocity = agreed, velocity
        for code, owed in zip(self.codes, state["owed"], strict=True):
            code.owed = None if owed is None else owed.numpy().copy()
