"""Drafts for speculative decoding: what guesses the next few tokens cheaply.

:class:`ModelDraft` is a smaller decoder over the same vocabulary. :class:`LookupDraft` is no model
at all: it finds the latest earlier place where the last few tokens stood, and proposes what came
after them (prompt lookup, Saxena 2023), which pays where a text repeats its prompt: quotations,
code, summaries. Its distribution is 1 on each token that it proposes.
"""

from typing import Protocol

import torch

from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.generate.batch import Request, RequestError
from tokenlife.transformer.generate.sampling import Sampler, draw, uniform
from tokenlife.transformer.model import Decoder


class Draft(Protocol):
    """What ``speculate`` asks of a draft."""

    def start(self, model: Decoder, request: Request) -> None:
        """Make ready for a request to this target."""

    def propose(
        self, ids: list[int], count: int, generator: torch.Generator
    ) -> tuple[list[int], torch.Tensor]:
        """Propose up to ``count`` ids after ``ids``, and say of what distributions they were drawn.

        Returns
        -------
        tuple
            n ≤ count ids, and (n, V) float64 on the CPU.
        """


class ModelDraft:
    """A decoder that drafts for a larger one.

    Parameters
    ----------
    model
        The smaller decoder.
    sampler
        How it chooses; ``None``: as the target does, which accepts most.
    """

    def __init__(self, model: Decoder, sampler: Sampler | None = None):
        self.model, self.own = model, sampler

    def start(self, model: Decoder, request: Request) -> None:
        """Take a cache.

        Raises
        ------
        RequestError
            If the draft has another vocabulary, or too few positions.
        """
        ours, theirs = self.model.config, model.config
        if ours.vocab != theirs.vocab:
            raise RequestError(
                f"{ours.name} has {ours.vocab} ids and {theirs.name} has {theirs.vocab}; "
                "a draft needs the target's vocabulary"
            )
        request.check(self.model, request.slots)
        self.sampler = self.own or request.sampler
        self.cache = KVCache(ours, 1, request.slots, self.model.device, self.model.dtype)
        self.held: list[int] = []

    @torch.inference_mode()
    def propose(self, ids, count, generator):
        """Decode ``count`` ids one by one; see :class:`Draft`."""
        offered: list[int] = []
        rows = []
        # What was proposed last time and refused is still in the cache.
        same = _common(self.held, ids)
        self.cache.set_lengths([same])
        unread = ids[same:]
        while len(offered) < count:
            read = torch.tensor([unread], device=self.model.device)
            x = self.model.hidden_states(read, cache=self.cache)
            q = self.sampler.probabilities(self.model.head(x[:, -1])[0]).cpu()
            offered.append(draw(q, uniform(generator)))
            rows.append(q)
            unread = offered[-1:]
        self.held = [*ids, *offered][: int(self.cache.lengths[0])]
        vocab = self.model.config.vocab
        return offered, torch.stack(rows) if rows else torch.empty(0, vocab, dtype=torch.float64)


class LookupDraft:
    """Proposes what followed the last tokens when they stood in the text before.

    Parameters
    ----------
    longest, shortest
        How many of the last tokens must match; the longest match is tried first.

    Examples
    --------
    >>> LookupDraft.find([5, 6, 7, 8, 1, 5, 6], count=3, longest=3)
    [7, 8, 1]
    """

    def __init__(self, longest: int = 3, shortest: int = 1):
        if not 1 <= shortest <= longest:
            raise RequestError(
                f"shortest must be at least 1 and at most longest, not {shortest} and {longest}"
            )
        self.longest, self.shortest = longest, shortest

    def start(self, model: Decoder, request: Request) -> None:
        """Note the vocabulary."""
        self.vocab = model.config.vocab

    def propose(self, ids, count, generator):
        """Look up; see :class:`Draft`. Takes no random number."""
        offered = self.find(ids, count, self.longest, self.shortest)
        rows = torch.zeros(len(offered), self.vocab, dtype=torch.float64)
        rows[range(len(offered)), offered] = 1
        return offered, rows

    @staticmethod
    def find(ids: list[int], count: int, longest: int, shortest: int = 1) -> list[int]:
        """Return what followed the latest earlier occurrence of the last tokens, or nothing."""
        for width in range(min(longest, len(ids) - 1), shortest - 1, -1):
            last = ids[-width:]
            for start in range(len(ids) - width - 1, -1, -1):
                if ids[start : start + width] == last:
                    return ids[start + width : start + width + count]
        return []


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common beginning, less than all of ``b``: one token must be left to read."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b) - 1)
