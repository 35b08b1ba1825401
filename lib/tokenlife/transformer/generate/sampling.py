"""From logits to one token id: greedy, temperature, top-k, top-p, min-p.

The model: logits become a distribution by softmax; filters set some of it to zero; one uniform
number picks an id where the cumulative sum passes it. One uniform number a token, from a generator
that belongs to one request alone: so a request draws the same ids whether it runs alone or in a
batch, early or late.

The filters act in the order temperature, top-k, top-p, min-p, each on what the one before it left,
as most serving systems do. Top-p (nucleus) sampling is by Holtzman et al., "The Curious Case of
Neural Text Degeneration" (2020); min-p by Nguyen et al., "Turning Up the Heat" (2024).

Left out: penalties for repetition, grammars, beam search.
"""

import math
from dataclasses import dataclass

import torch

from tokenlife.errors import TokenlifeError


class SamplingError(TokenlifeError, ValueError):
    """Sampler numbers that make no distribution, or logits that are none."""


def draw(probabilities: torch.Tensor, uniform: float) -> int:
    """Pick an id by inverting the cumulative sum.

    Parameters
    ----------
    probabilities
        (V,), not negative, of any positive sum.
    uniform
        A number in [0, 1).

    Returns
    -------
    int
        The first id whose cumulative probability exceeds ``uniform`` of the whole; an id of
        probability 0 is never picked.

    Examples
    --------
    >>> p = torch.tensor([0.25, 0.0, 0.75])
    >>> draw(p, 0.0), draw(p, 0.2499), draw(p, 0.25), draw(p, 0.999)
    (0, 0, 2, 2)
    """
    cumulative = probabilities.double().cumsum(-1)
    return int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen.

    Attributes
    ----------
    temperature
        Logits are divided by it; 0 means greedy: the likeliest id, always.
    top_k
        Keep the k likeliest ids (and what ties with the last of them); 0 keeps all.
    top_p
        Keep the fewest likeliest ids whose probabilities reach this sum; 1 keeps all.
    min_p
        Keep ids at least this fraction as likely as the likeliest; 0 keeps all.
    seed
        Of the request's own random numbers.

    Raises
    ------
    SamplingError
        If a number is outside its range.

    Examples
    --------
    >>> logits = torch.tensor([0.7, 0.2, 0.1]).log()
    >>> Sampler(temperature=1, top_p=0.8).probabilities(logits).round(decimals=3)
    tensor([0.7780, 0.2220, 0.0000], dtype=torch.float64)
    >>> sampler = Sampler(temperature=1, seed=7)
    >>> generator = sampler.generator()
    >>> [sampler.sample(logits, generator) for _ in range(8)]
    [0, 0, 1, 0, 2, 1, 0, 0]
    >>> Sampler(top_p=0)
    Traceback (most recent call last):
        ...
    tokenlife.transformer.generate.sampling.SamplingError: top_p must be above 0 and at most 1, \
not 0
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self):
        whole, number = "a whole number of at least 0", "a number of at least 0"
        rules = {
            "temperature": (int | float, lambda x: 0 <= x < math.inf, number),
            "top_k": (int, lambda x: x >= 0, whole),
            "top_p": (int | float, lambda x: 0 < x <= 1, "above 0 and at most 1"),
            "min_p": (int | float, lambda x: 0 <= x <= 1, "between 0 and 1"),
            "seed": (int, lambda x: 0 <= x < 2**63, f"{whole}, below 2⁶³"),
        }
        for name, (kind, fits, rule) in rules.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or not fits(value):
                raise SamplingError(f"{name} must be {rule}, not {value!r}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest id is always taken."""
        return self.temperature == 0

    def generator(self) -> torch.Generator:
        """Return the random numbers of one request, from their start.

        On the CPU always, so that a seed means the same on every device.
        """
        return torch.Generator().manual_seed(self.seed)

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the distribution that an id is drawn from.

        Parameters
        ----------
        logits
            (…, V).

        Returns
        -------
        torch.Tensor
            (…, V), float64, each row of sum 1; greedy puts all on one id.

        Raises
        ------
        SamplingError
            If a row holds NaN or +∞, or nothing above −∞.
        """
        # The largest logit tells all: NaN if any is NaN, −∞ only if all are.
        if not torch.isfinite(logits.amax(-1)).all():
            raise SamplingError(
                "logits hold NaN or infinity; the weights or the inputs of the model are broken"
            )
        # float64: a sum over 10⁵ float32 weights is off by more than many of them weigh.
        scores = logits.double()
        if self.greedy:
            return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
        # The largest becomes 0 first: a tiny temperature then sends the rest to −∞, not all to ∞.
        scores = (scores - scores.amax(-1, keepdim=True)) / self.temperature
        if self.top_k:
            least = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1:]
            scores = scores.masked_fill(scores < least, -math.inf)
        if self.top_p < 1:
            ordered, order = scores.sort(descending=True, stable=True)
            weights = ordered.softmax(-1)
            # An id stays while those likelier than it have not reached the sum.
            reached = weights.cumsum(-1) - weights >= self.top_p
            reached[..., 0] = False
            scores = scores.masked_fill(reached.gather(-1, order.argsort(-1)), -math.inf)
        if self.min_p:
            scores = scores.masked_fill(scores < math.log(self.min_p), -math.inf)
        return scores.softmax(-1)

    def sample(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """Draw one id.

        Parameters
        ----------
        logits
            (V,).
        generator
            Of :meth:`generator`; one number is taken from it (none when greedy).
        """
        if self.greedy:
            largest, place = logits.max(-1)
            if not torch.isfinite(largest):
                return draw(self.probabilities(logits), 0.0)  # raises
            return int(place)
        return draw(self.probabilities(logits), uniform(generator))


GREEDY = Sampler()


def uniform(generator: torch.Generator) -> float:
    """Take one number in [0, 1) from a request's generator."""
    return float(torch.rand((), dtype=torch.float64, generator=generator))
