"""Sampling against brute force over whole distributions, and against transformers' filters."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.transformer.generate import Sampler, SamplingError, draw
from tokenlife.transformer.generate.sampling import uniform

# Eighths, so that ties are ties, before and after the largest is subtracted.
LOGITS = st.lists(st.integers(-64, 64).map(lambda i: i / 8), min_size=1, max_size=12)
SAMPLERS = st.builds(
    Sampler,
    temperature=st.floats(0.1, 4),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)


def brute_force(logits: list[float], s: Sampler) -> list[float]:
    """The same filters, id by id, in plain Python."""
    weight = [math.exp((x - max(logits)) / s.temperature) for x in logits]
    kept = set(range(len(logits)))
    if s.top_k:
        edge = sorted(logits, reverse=True)[: s.top_k][-1]
        kept = {i for i in kept if logits[i] >= edge}
    if s.top_p < 1:
        total, reached, chosen = sum(weight[i] for i in kept), 0.0, set()
        for i in sorted(kept, key=lambda i: (-logits[i], i)):
            if chosen and reached / total >= s.top_p:
                break
            chosen.add(i)
            reached += weight[i]
        kept = chosen
    if s.min_p:
        kept = {i for i in kept if weight[i] >= s.min_p}
    total = sum(weight[i] for i in kept)
    return [weight[i] / total if i in kept else 0.0 for i in range(len(logits))]


def near_an_edge(logits: list[float], s: Sampler) -> bool:
    """Whether rounding could move an id across the edge of a filter."""
    weight = [math.exp((x - max(logits)) / s.temperature) for x in logits]
    if any(abs(w - s.min_p) < 1e-9 for w in weight):
        return True
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    for count in range(1, len(order) + 1):
        total = sum(weight[i] for i in order[:count])
        sums = [sum(weight[i] for i in order[:n]) / total for n in range(1, count + 1)]
        if any(abs(x - s.top_p) < 1e-9 for x in sums):
            return True
    return False


@settings(max_examples=400, deadline=None)
@given(LOGITS, SAMPLERS)
def test_the_distribution_is_that_of_brute_force(logits, sampler):
    if near_an_edge(logits, sampler):
        return
    ours = sampler.probabilities(torch.tensor(logits, dtype=torch.float64))
    assert ours.tolist() == pytest.approx(brute_force(logits, sampler), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), SAMPLERS)
def test_the_filters_are_those_of_transformers(seed, sampler):
    judge = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed)).double()
    chain = [judge.TemperatureLogitsWarper(sampler.temperature)]
    if sampler.top_k:
        chain.append(judge.TopKLogitsWarper(sampler.top_k))
    if sampler.top_p < 1:
        chain.append(judge.TopPLogitsWarper(sampler.top_p))
    if sampler.min_p:
        chain.append(judge.MinPLogitsWarper(sampler.min_p))
    theirs = logits
    for warper in chain:
        theirs = warper(None, theirs)
    torch.testing.assert_close(sampler.probabilities(logits), theirs.softmax(-1))


def test_draws_follow_the_distribution():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -9.0])
    sampler = Sampler(temperature=0.8, top_k=4, seed=3)
    expected = sampler.probabilities(logits)
    generator = sampler.generator()
    draws = 20_000
    counts = torch.bincount(
        torch.tensor([sampler.sample(logits, generator) for _ in range(draws)]), minlength=5
    )
    assert counts[4] == 0
    chi_square = ((counts - draws * expected) ** 2 / (draws * expected))[:4].sum()
    assert chi_square < 16.27  # p = 0.001 at 3 degrees of freedom


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0, 1, exclude_max=True))
def test_an_id_of_probability_zero_is_never_drawn(weights, at):
    if sum(weights) <= 1e-100:
        return
    assert weights[draw(torch.tensor(weights, dtype=torch.float64), at)] > 0


def test_a_seed_says_everything():
    logits = torch.randn(100, generator=torch.Generator().manual_seed(0))
    run = [
        [s.sample(logits, g) for _ in range(20)]
        for s in (Sampler(1.0, seed=5), Sampler(1.0, seed=5), Sampler(1.0, seed=6))
        for g in [s.generator()]
    ]
    assert run[0] == run[1] != run[2]
    assert uniform(Sampler(seed=5).generator()) != uniform(Sampler(seed=6).generator())


def test_greedy_takes_the_first_of_the_likeliest():
    logits = torch.tensor([1.0, 3.0, 3.0])
    greedy = Sampler()
    assert greedy.sample(logits, greedy.generator()) == 1
    assert greedy.probabilities(logits).tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature):
    assert Sampler(temperature).probabilities(torch.tensor([1.0, 3.0])).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        ({"temperature": -1}, "temperature must be a number of at least 0, not -1"),
        ({"temperature": math.nan}, "temperature must be a number of at least 0, not nan"),
        ({"temperature": math.inf}, "temperature must be a number of at least 0, not inf"),
        ({"top_k": -2}, "top_k must be a whole number of at least 0, not -2"),
        ({"top_k": 1.5}, "top_k must be a whole number of at least 0, not 1.5"),
        ({"top_p": 1.1}, "top_p must be above 0 and at most 1, not 1.1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"min_p": -0.1}, "min_p must be between 0 and 1, not -0.1"),
        ({"seed": -1}, "seed must be a whole number of at least 0, below 2⁶³, not -1"),
        ({"seed": 2**64}, f"seed must be a whole number of at least 0, below 2⁶³, not {2**64}"),
        ({"min_p": True}, "min_p must be between 0 and 1, not True"),
        ({"top_p": "a"}, "top_p must be above 0 and at most 1, not 'a'"),
    ],
)
def test_bad_numbers(numbers, line):
    with pytest.raises(SamplingError) as error:
        Sampler(**numbers)
    assert str(error.value) == line


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0, top_p=0.5)])
def test_broken_logits(bad, sampler):
    with pytest.raises(SamplingError, match="NaN or infinity"):
        sampler.sample(torch.tensor([0.0, bad]), sampler.generator())
    with pytest.raises(SamplingError, match="NaN or infinity"):
        sampler.sample(torch.tensor([-math.inf, -math.inf]), sampler.generator())
    assert sampler.sample(torch.tensor([-math.inf, 0.0]), sampler.generator()) == 1
