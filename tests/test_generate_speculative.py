"""Speculative decoding: the same distribution as plain sampling, and its formula."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.generate import (
    LookupDraft,
    ModelDraft,
    RequestError,
    Sampler,
    expected_speedup,
    expected_tokens,
    generate,
    judge,
    speculate,
)
from tokenlife.transformer.model import Decoder

pytestmark = pytest.mark.usefixtures("one_thread")


HF = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 64}


def tiny(vocab: int, seed: int, layers: int = 1, std: float = 0.7) -> Decoder:
    torch.manual_seed(seed)
    config = ModelConfig.from_hf(HF | {"vocab_size": vocab, "n_layer": layers}, f"tiny {seed}")
    model = Decoder(config).double()
    model.reset_parameters(std=std)
    return model.eval()


TARGET, SMALL = tiny(29, 1, layers=2), tiny(29, 2)
DRAFTS = {
    "itself": lambda: ModelDraft(TARGET),
    "another model": lambda: ModelDraft(SMALL),
    "another model, greedy": lambda: ModelDraft(SMALL, Sampler()),
    "itself, hotter": lambda: ModelDraft(TARGET, Sampler(2.5)),
    "lookup": lambda: LookupDraft(),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("proposals", [1, 3, 7])
def test_greedy_text_is_the_same_token_by_token(draft, proposals):
    for seed in range(4):
        prompt = [seed, 5, 6, 7, 5, 6]
        run = speculate(TARGET, DRAFTS[draft](), prompt, 30, proposals=proposals)
        assert list(run.ids) == generate(TARGET, [prompt], 30)[0]
        assert 1 + sum(step.accepted + 1 for step in run.steps) == 30


def test_a_pass_gains_what_was_kept():
    assert speculate(TARGET, DRAFTS["itself"](), [1, 2], 1).tokens_per_pass == 0.0
    text = generate(TARGET, [[1, 2]], 6)[0]
    stop = text[2]
    run = speculate(TARGET, DRAFTS["itself"](), [1, 2], 6, stop_ids=[stop], proposals=5)
    assert 1 + sum(step.gained for step in run.steps) == len(run.ids) == text.index(stop) + 1


@pytest.mark.parametrize("draft", DRAFTS)
def test_stop_ids_stop_at_once(draft):
    prompt = [1, 2, 3]
    plain = generate(TARGET, [prompt], 30)[0]
    for stop in dict.fromkeys(plain):
        run = speculate(TARGET, DRAFTS[draft](), prompt, 30, stop_ids=[stop], proposals=5)
        assert list(run.ids) == plain[: plain.index(stop) + 1]


def test_a_draft_equal_to_the_target_is_always_accepted():
    run = speculate(TARGET, ModelDraft(TARGET), [1], 41, Sampler(1.0, seed=3), proposals=4)
    assert run.acceptance == 1
    assert run.tokens_per_pass == 5 == expected_tokens(1, 4)
    assert all(chance == pytest.approx(1) for step in run.steps for chance in step.chances)


DISTRIBUTIONS = st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any)


@settings(max_examples=200, deadline=None)
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_accepted_and_replaced_together_make_the_target(p, q):
    """The rule by enumeration: judge is given every proposal and a fine grid of random numbers."""
    p, q = (torch.tensor(w, dtype=torch.float64) / sum(w) for w in (p, q))
    accept = torch.where(q > 0, (p / q).clamp(max=1), 0)
    rest = (p - q).clamp(min=0)
    refused = 1 - (q * accept).sum()
    made = q * accept + (refused * rest / rest.sum() if rest.sum() > 1e-12 else 0)
    torch.testing.assert_close(made, p)
    # And judge follows that rule: acceptance at the edge of u, replacement inside the rest only.
    for x in range(5):
        if q[x] == 0:
            continue
        for seed in range(6):
            u = float(
                torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            )
            after = torch.eye(5, dtype=torch.float64)[:1]
            taken, last = judge(
                [x], torch.cat((p[None], after)), q[None], torch.Generator().manual_seed(seed)
            )
            assert taken == (u < accept[x])
            assert last == 0 if taken else rest[last] > 0


@pytest.mark.parametrize("draft", ["another model", "itself, hotter", "lookup", "greedy"])
def test_the_output_is_distributed_as_plain_sampling(draft):
    """χ² over all texts of three tokens from a vocabulary of four, against exact probabilities."""
    vocab, new, runs = 4, 3, 1000
    target, other = tiny(vocab, 5, std=0.5), tiny(vocab, 6, std=0.5)
    make = {
        "another model": lambda: ModelDraft(other),
        "itself, hotter": lambda: ModelDraft(target, Sampler(3.0)),
        "lookup": lambda: LookupDraft(),
        "greedy": lambda: ModelDraft(other, Sampler()),
    }[draft]
    prompt = [0, 1, 2, 0, 1]
    texts = list(itertools.product(range(vocab), repeat=new))
    plain = Sampler(1.3, top_p=0.97)
    with torch.inference_mode():
        read = torch.tensor([[*prompt, *text] for text in texts])
        p = plain.probabilities(target(read)[:, len(prompt) - 1 : -1])
    chance = p.gather(-1, torch.tensor(texts)[..., None])[..., 0].prod(-1).numpy()
    assert chance.sum() == pytest.approx(1)

    counts: Counter = Counter()
    accepted = judged = 0
    for seed in range(runs):
        sampler = Sampler(1.3, top_p=0.97, seed=seed)
        run = speculate(target, make(), prompt, new, sampler, proposals=2)
        counts[run.ids] += 1
        accepted += sum(step.accepted for step in run.steps)
        judged += sum(len(step.chances) for step in run.steps)
    assert 0 < accepted < judged, "the test must see both acceptance and refusal"
    observed = np.array([counts[text] for text in texts])
    assert observed[chance == 0].sum() == 0
    frequent = chance * runs >= 5
    expected = np.append(chance[frequent] * runs, chance[~frequent].sum() * runs)
    seen = np.append(observed[frequent], observed[~frequent].sum())
    chi_square = ((seen - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    freedom = len(expected) - 1
    # Wilson and Hilferty's normal approximation: 3.5 standard deviations.
    z = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    assert z < 3.5


def test_tokens_per_pass_follow_the_formula_when_acceptance_is_even():
    """Where target and draft do not look at the text, every proposal has the same chance."""
    target, draft = tiny(6, 7, std=0.0), tiny(6, 8, std=0.0)
    torch.manual_seed(0)
    for model in (target, draft):
        # Zero weights but for the last bias-like path: the final norm's bias times the embedding.
        model.final_norm.weight.data.zero_()
        model.final_norm.bias.data.normal_()
        model.token_embedding.weight.data.normal_(std=0.4)
    run_steps = []
    for seed in range(30):
        run = speculate(target, ModelDraft(draft), [0], 60, Sampler(1.0, seed=seed), proposals=3)
        run_steps += [step for step in run.steps if step.proposed == 3]
    alpha = run_steps[0].chances[0]
    assert all(c == pytest.approx(alpha) for step in run_steps for c in step.chances)
    assert 0.4 < alpha < 0.95
    gained = np.array([step.accepted + 1 for step in run_steps])
    expected = expected_tokens(alpha, 3)
    assert abs(gained.mean() - expected) < 4 * gained.std() / len(gained) ** 0.5


def test_the_formulas():
    for alpha in (0.0, 0.3, 0.9):
        series = sum(alpha**i for i in range(6))
        assert expected_tokens(alpha, 5) == pytest.approx(series)
    assert expected_speedup(0.7, 3, 0.0) == expected_tokens(0.7, 3)
    assert expected_speedup(0.0, 3, 0.1) < 1


@pytest.mark.parametrize(
    ("ids", "offered"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1]),
        ([1, 2, 3, 9, 7, 2, 3, 8, 4, 2, 3], [8, 4]),  # the latest place wins
        ([1, 2, 3, 5, 7, 3, 8, 4, 2, 3], [5, 7]),  # but a longer match before it
        ([1, 2], []),
        ([4], []),
        ([6, 6], [6]),
    ],
)
def test_lookup_finds_the_latest_longest_match(ids, offered):
    assert LookupDraft.find(ids, 2, longest=2) == offered


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: speculate(TARGET, LookupDraft(), []), "an empty prompt"),
        (lambda: speculate(TARGET, LookupDraft(), [1], proposals=0), "proposals must be a whole"),
        (lambda: speculate(TARGET, LookupDraft(), [1], 900), "a prompt of 1 tokens and 900 new"),
        (
            lambda: speculate(TARGET, ModelDraft(tiny(30, 0)), [1]),
            "tiny 0 has 30 ids and tiny 1 has 29; a draft needs the target's vocabulary",
        ),
        (lambda: LookupDraft(2, 3), "shortest must be at least 1 and at most longest"),
    ],
)
def test_bad_speculation(call, line):
    with pytest.raises(RequestError) as error:
        call()
    assert str(error.value).startswith(line)
