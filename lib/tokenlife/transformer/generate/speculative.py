"""Speculative decoding: a cheap draft proposes several tokens, one pass of the target judges them.

The target reads the last token and k proposals in one pass, which costs little more than reading
one while the pass is bound by memory. With p the target's distribution and q the draft's, proposal
x is accepted with probability min(1, p(x)/q(x)); the first refused one is replaced by a draw from
max(0, p − q), scaled to sum 1; if all are accepted one more token comes free. What comes out is
distributed exactly as if the target had been sampled alone, whatever the draft: a bad draft costs
time, not quality. Greedy text stays the same token by token.

Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); Chen
et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023).

Left out: batches (rows would accept different numbers), trees of proposals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.generate.batch import Request, RequestError, prefill
from tokenlife.transformer.generate.drafts import Draft
from tokenlife.transformer.generate.sampling import GREEDY, Sampler, draw, uniform
from tokenlife.transformer.model import Decoder


@dataclass(frozen=True)
class Step:
    """One pass of the target.

    Attributes
    ----------
    proposed
        Tokens that the draft offered.
    accepted
        How many of them, from the first on, were taken.
    chances
        For each proposal that was judged (up to the first refused one): Σ min(p, q), the
        probability that a token drawn from the draft there is accepted.
    gained
        Tokens of text that the pass gave: those accepted and one of its own, up to a stop id.
    """

    proposed: int
    accepted: int
    chances: tuple[float, ...]
    gained: int


@dataclass(frozen=True)
class Speculation:
    """What speculative decoding gave: the new ids, and each pass that made them."""

    ids: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def acceptance(self) -> float:
        """Share of the judged proposals that were accepted: the α of the formulas."""
        judged = sum(len(step.chances) for step in self.steps)
        return sum(step.accepted for step in self.steps) / judged if judged else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Tokens gained by a pass of the target; 0 where there was none."""
        return sum(step.gained for step in self.steps) / len(self.steps) if self.steps else 0.0


def expected_tokens(acceptance: float, proposals: int) -> float:
    """Return the tokens a pass is expected to give, if each proposal is accepted alike.

    (1 − α^(k+1)) / (1 − α): equation 1 of Leviathan et al. Real acceptance varies from place to
    place; where it does, this is an estimate.

    Examples
    --------
    >>> expected_tokens(0.8, 4), expected_tokens(0.0, 4), expected_tokens(1.0, 4)
    (3.361..., 1.0, 5.0)
    """
    if acceptance == 1:
        return proposals + 1.0
    return (1 - acceptance ** (proposals + 1)) / (1 - acceptance)


def expected_speedup(acceptance: float, proposals: int, draft_cost: float) -> float:
    """Return the expected gain in time over plain decoding (theorem 3.8 of Leviathan et al.).

    Parameters
    ----------
    acceptance, proposals
        α and k.
    draft_cost
        Time of one pass of the draft over one of the target. The target's pass over k + 1 tokens
        is taken to cost no more than over one.

    Examples
    --------
    >>> expected_speedup(0.8, 4, draft_cost=0.05)
    2.801...
    """
    return expected_tokens(acceptance, proposals) / (proposals * draft_cost + 1)


def judge(
    proposals: Sequence[int],
    target: torch.Tensor,
    draft: torch.Tensor,
    generator: torch.Generator,
) -> tuple[int, int]:
    """Accept proposals from the first on, and choose the token after them.

    Parameters
    ----------
    proposals
        n ids drawn from ``draft``.
    target
        (n + 1, V): the target's distribution at each proposal, and after the last.
    draft
        (n, V): the draft's.
    generator
        Of the request.

    Returns
    -------
    tuple
        How many proposals are accepted, and the id that follows.

    Examples
    --------
    >>> sure = torch.eye(3, dtype=torch.float64)
    >>> judge([0, 2], sure, sure[[0, 2]], torch.Generator())  # the second should have been a 1
    (1, 1)
    """
    for place, x in enumerate(proposals):
        p, q = target[place], draft[place]
        if uniform(generator) * q[x] >= p[x]:
            return place, draw((p - q).clamp(min=0), uniform(generator))
    return len(proposals), draw(target[-1], uniform(generator))


@torch.inference_mode()
def speculate(
    model: Decoder,
    draft: Draft,
    prompt: Sequence[int],
    max_new_tokens: int = 64,
    sampler: Sampler = GREEDY,
    stop_ids: Sequence[int] = (),
    proposals: int = 4,
) -> Speculation:
    """Continue one prompt with a draft's help.

    Parameters
    ----------
    model
        The target.
    draft
        Of ``tokenlife.transformer.generate.drafts``.
    prompt, max_new_tokens, sampler, stop_ids
        As for ``generate``.
    proposals
        Tokens that the draft may offer before each pass (k).

    Raises
    ------
    RequestError
        If the prompt does not fit, or ``proposals`` is less than 1.

    Examples
    --------
    >>> from tokenlife.transformer import ModelConfig
    >>> from tokenlife.transformer.generate import ModelDraft, generate
    >>> model = Decoder(ModelConfig.load("running-gpt"))
    >>> run = speculate(model, ModelDraft(model), [1, 2, 3], max_new_tokens=10)
    >>> list(run.ids) == generate(model, [[1, 2, 3]], 10)[0], run.acceptance, len(run.steps)
    (True, 1.0, 2)
    """
    request = Request(prompt, max_new_tokens, sampler, frozenset(stop_ids))
    request.check(model, request.slots)
    if not isinstance(proposals, int) or proposals < 1:
        raise RequestError(f"proposals must be a whole number above 0, not {proposals!r}")
    cache = KVCache(model.config, 1, request.slots, model.device, model.dtype)
    generator = sampler.generator()
    draft.start(model, request)

    ids = list(request.prompt)
    ids.append(sampler.sample(prefill(model, [ids], cache)[0], generator))
    end = len(request.prompt) + max_new_tokens
    steps: list[Step] = []
    while len(ids) < end and ids[-1] not in request.stop_ids:
        # The pass gives one token more than it accepts, so never offer the last one.
        offered, q = draft.propose(ids, min(proposals, end - len(ids) - 1), generator)
        read = torch.tensor([[ids[-1], *offered]], device=model.device)
        p = sampler.probabilities(model(read, cache=cache)[0]).cpu()
        accepted, last = judge(offered, p, q, generator)
        judged = min(accepted + 1, len(offered))
        chances = tuple(torch.minimum(p[:judged], q[:judged]).sum(-1).tolist())
        new = _until_stop([*offered[:accepted], last], request.stop_ids)
        steps.append(Step(len(offered), accepted, chances, len(new)))
        ids += new
        # The cache holds refused proposals too: forget all that is not text.
        cache.set_lengths([len(ids) - 1])
    return Speculation(tuple(ids[len(request.prompt) :]), tuple(steps))


def _until_stop(ids: list[int], stop_ids: frozenset[int]) -> list[int]:
    for place, id_ in enumerate(ids):
        if id_ in stop_ids:
            return ids[: place + 1]
    return ids
