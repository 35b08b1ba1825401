"""A batch of requests in flight: prefill, decode, join and leave.

Prefill reads a whole prompt in one pass and fills its row of the key–value cache; decode reads one
token of every row and gives the next. Between two passes a request may join a free row or leave its
own: rows in use stand side by side at the front of the cache, and when one in the middle is done
the last moves into its place. Prompts of different length are prefilled together with padding on
the right, which the causal rule hides and the next tokens overwrite.

The batch changes the shapes of the products and so the order of their sums: logits differ from
those of a request alone by rounding, and a draw or an argmax as close to an edge as that may fall
on its other side.

Left out: pages (vLLM; here each row owns its capacity), prompts read in chunks between decode steps
(Sarathi), prefixes shared between requests.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from tokenlife.errors import TokenlifeError
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.generate.sampling import GREEDY, Sampler
from tokenlife.transformer.model import Decoder


class RequestError(TokenlifeError, ValueError):
    """A request that this model or this batch cannot serve."""


@dataclass(frozen=True)
class Request:
    """What somebody asks of a model.

    Attributes
    ----------
    prompt
        Token ids, one at least.
    max_new_tokens
        How many ids to generate at most.
    sampler
        How each is chosen.
    stop_ids
        Ids that end the text; the one that did is the last id returned.
    arrival_s
        When the request comes, on the server's clock.

    Raises
    ------
    RequestError
        If the prompt is empty or a number is out of range.

    Examples
    --------
    >>> Request(prompt=())
    Traceback (most recent call last):
        ...
    tokenlife.transformer.generate.batch.RequestError: an empty prompt; a model needs one token at \
least to go on from, such as the vocabulary's start token
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 64
    sampler: Sampler = GREEDY
    stop_ids: frozenset[int] = frozenset()
    arrival_s: float = 0.0

    def __post_init__(self):
        try:
            object.__setattr__(self, "prompt", tuple(map(operator.index, self.prompt)))
        except TypeError:
            raise RequestError(
                f"a prompt must be a sequence of token ids, not {self.prompt!r:.40}"
            ) from None
        object.__setattr__(self, "stop_ids", frozenset(self.stop_ids))
        if not self.prompt:
            raise RequestError(
                "an empty prompt; a model needs one token at least to go on from, "
                "such as the vocabulary's start token"
            )
        if not isinstance(self.max_new_tokens, int) or self.max_new_tokens < 1:
            raise RequestError(
                f"max_new_tokens must be a whole number above 0, not {self.max_new_tokens!r}"
            )
        if not 0 <= self.arrival_s < math.inf:
            raise RequestError(f"arrival_s must be at least 0 and finite, not {self.arrival_s!r}")

    @property
    def slots(self) -> int:
        """Positions it takes in the cache: the last id is given out, but never read."""
        return len(self.prompt) + self.max_new_tokens - 1

    def check(self, model: Decoder, capacity: int) -> None:
        """Refuse a request that does not fit.

        Raises
        ------
        RequestError
            If it needs more than the model's positions or the cache's capacity, or holds an id
            that the model does not know.
        """
        config = model.config
        limits = {f"capacity of {capacity} tokens a row": capacity}
        if config.position.kind != "alibi":
            limits[f"{config.positions} positions of {config.name}"] = config.positions
        for what, limit in limits.items():
            if len(self.prompt) > limit:
                raise RequestError(f"a prompt of {len(self.prompt)} tokens exceeds the {what}")
            if self.slots > limit:
                raise RequestError(
                    f"a prompt of {len(self.prompt)} tokens and {self.max_new_tokens} new ones "
                    f"exceed the {what}; ask for {limit - len(self.prompt) + 1} at most"
                )
        for bad in (min(self.prompt), max(self.prompt)):
            if not 0 <= bad < config.vocab:
                raise RequestError(
                    f"no token {bad} in {config.name}; ids run from 0 to {config.vocab - 1}"
                )


@dataclass
class Row:
    """A request in flight: what it asked, and what it has been given so far."""

    key: int
    request: Request
    ids: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.generator = self.request.sampler.generator()

    def take(self, logits: torch.Tensor) -> int:
        """Choose the next id."""
        self.ids.append(self.request.sampler.sample(logits, self.generator))
        return self.ids[-1]

    @property
    def done(self) -> bool:
        """Whether its last id ended it."""
        return len(self.ids) >= self.request.max_new_tokens or self.ids[-1] in self.request.stop_ids


class Batch:
    """Rows of one cache, and the two passes over them.

    Parameters
    ----------
    model
        Any decoder.
    rows
        Requests in flight at most.
    capacity
        Tokens that each may grow to.

    Attributes
    ----------
    rows
        The requests in flight, in the order of their rows in ``cache``.
    finished
        Rows that have left.

    Examples
    --------
    >>> from tokenlife.transformer import ModelConfig
    >>> batch = Batch(Decoder(ModelConfig.load("running-gpt")), rows=2, capacity=16)
    >>> first = batch.join({0: Request((1, 2, 3), max_new_tokens=2), 1: Request((4,), 3)})
    >>> len(first), len(batch.step()), len(batch.step()), batch.rows
    (2, 2, 1, [])
    """

    def __init__(self, model: Decoder, rows: int, capacity: int):
        self.model = model
        self.cache = KVCache(model.config, rows, capacity, model.device, model.dtype)
        self.rows: list[Row] = []
        self.finished: list[Row] = []

    @property
    def free(self) -> int:
        """Rows without a request."""
        return self.cache.batch - len(self.rows)

    def join(self, requests: dict[int, Request]) -> dict[int, int]:
        """Prefill new requests together and return the first id of each, by their keys.

        Raises
        ------
        RequestError
            If one does not fit, or there are more than free rows.
        """
        if len(requests) > self.free:
            raise RequestError(f"{len(requests)} requests do not fit {self.free} free rows")
        for request in requests.values():
            request.check(self.model, self.cache.capacity)
        start = len(self.rows)
        new = [Row(key, request) for key, request in requests.items()]
        self.rows += new
        part = self.cache.rows(start, len(self.rows))
        part.set_lengths([0] * len(new))
        return self._deal(new, prefill(self.model, [r.prompt for r in requests.values()], part))

    def step(self) -> dict[int, int]:
        """Decode one id for every row and return them by key."""
        ids = torch.tensor([[row.ids[-1]] for row in self.rows], device=self.model.device)
        part = self.cache.rows(0, len(self.rows))
        with torch.inference_mode():
            logits = self.model(ids, cache=part)[:, -1]
        return self._deal(list(self.rows), logits)

    def _deal(self, rows: Iterable[Row], logits: torch.Tensor) -> dict[int, int]:
        dealt = {row.key: row.take(one) for row, one in zip(rows, logits, strict=True)}
        # From the last down, so that the row moved into a hole is one that stays.
        for place in reversed(range(len(self.rows))):
            if self.rows[place].done:
                self._leave(place)
        return dealt

    def _leave(self, place: int) -> None:
        self.finished.append(self.rows[place])
        last = len(self.rows) - 1
        if place != last:
            cache, held = self.cache, int(self.cache.lengths[last])
            for memory in (cache.keys, cache.values):
                if memory is not None:
                    memory[:, place, :, :held] = memory[:, last, :, :held]
            cache.lengths[place] = held
            self.rows[place] = self.rows[last]
        del self.rows[last]


@torch.inference_mode()
def prefill(model: Decoder, prompts: Sequence[Sequence[int]], cache: KVCache) -> torch.Tensor:
    """Read prompts, right-padded to the longest, and return the logits after each: (B, V).

    Only the last token of a prompt goes through the head: the logits of the others would take
    (B, S, V) numbers, more than everything else together.
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    longest = int(lengths.max())
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    ids = ids.to(model.device)
    mask = None
    if int(lengths.min()) < longest:
        mask = (torch.arange(longest) < lengths[:, None]).to(model.device)
    x = model.hidden_states(ids, cache=cache, mask=mask)
    return model.head(x[torch.arange(len(prompts)), lengths - 1])
