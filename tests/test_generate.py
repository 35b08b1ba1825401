"""Generation: batched equal to one by one, queued equal to alone, and every refusal in one line."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_configs import FAMILIES, small_config
from tokenlife.errors import TokenlifeError
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.generate import (
    Batch,
    Request,
    RequestError,
    Sampler,
    generate,
    serve,
    stream,
)
from tokenlife.transformer.model import Decoder

pytestmark = pytest.mark.usefixtures("one_thread")


HOT = Sampler(temperature=1.0, top_p=0.95, seed=11)


def tiny(family: str = "llama", seed: int = 0) -> Decoder:
    """A small random decoder in float64, so that rounding decides nothing; weights large enough
    for every id to have its day."""
    torch.manual_seed(seed)
    model = Decoder(ModelConfig.from_hf(small_config(family, seed), family)).double()
    model.reset_parameters(std=0.3)
    return model.eval()


MODEL = tiny()


def by_definition(model: Decoder, prompt: list[int], new: int, sampler: Sampler) -> list[int]:
    """The whole text read again for each token: no cache, no batch."""
    ids, generator = list(prompt), sampler.generator()
    with torch.inference_mode():
        for _ in range(new):
            ids.append(sampler.sample(model(torch.tensor([ids]))[0, -1], generator))
    return ids[len(prompt) :]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampler", [Sampler(), HOT], ids=["greedy", "sampled"])
def test_a_ragged_batch_is_one_by_one_is_the_definition(family, sampler):
    model = tiny(family)
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9], [3, 1]]
    together = generate(model, prompts, 12, sampler)
    alone = [generate(model, [prompt], 12, sampler)[0] for prompt in prompts]
    assert together == alone
    assert together == [by_definition(model, prompt, 12, sampler) for prompt in prompts]
    assert len({tuple(ids) for ids in together}) > 1


def test_stop_ids_end_a_row_and_leave_the_others():
    prompts = [[1], [2], [3], [4]]
    free = generate(MODEL, prompts, 20, HOT)
    stop = free[1][4]
    ended = generate(MODEL, prompts, 20, HOT, stop_ids=[stop])
    for one, whole in zip(ended, free, strict=True):
        assert one == (whole[: whole.index(stop) + 1] if stop in whole else whole)
    assert len(ended[1]) <= 5


def test_each_prompt_may_have_its_own_sampler():
    samplers = [Sampler(1.0, seed=seed) for seed in range(3)]
    texts = generate(MODEL, [[7]] * 3, 8, samplers)
    assert texts == [generate(MODEL, [[7]], 8, sampler)[0] for sampler in samplers]
    assert texts[0] != texts[1]


def test_a_stream_gives_ids_before_all_are_computed():
    seen = []
    original = Batch.step
    ids = stream(MODEL, [1, 2], 6, HOT)
    first = next(ids)
    try:
        Batch.step = lambda self: seen.append(1) or original(self)
        assert [first, *ids] == generate(MODEL, [[1, 2]], 6, HOT)[0]
    finally:
        Batch.step = original
    assert len(seen) >= 5  # after the first, one pass for each id


class Ticks:
    """A clock on which each look takes a tick, and waiting takes no time."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        self.time += 0.25
        return self.time

    def wait_until(self, time_s):
        self.time = max(self.time, time_s)


REQUESTS = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(0, 60), min_size=1, max_size=9).map(tuple),
        max_new_tokens=st.integers(1, 9),
        sampler=st.builds(Sampler, temperature=st.sampled_from([0, 1.0]), seed=st.integers(0, 9)),
        stop_ids=st.frozensets(st.integers(0, 60), max_size=6),
        arrival_s=st.integers(0, 12).map(float),
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.integers(1, 4), st.sampled_from(["continuous", "static"]))
def test_a_queue_gives_each_what_it_would_get_alone(requests, rows, policy):
    done, passes = serve(MODEL, requests, rows, policy=policy, clock=Ticks)
    for request, got in zip(requests, done, strict=True):
        alone = generate(
            MODEL, [request.prompt], request.max_new_tokens, request.sampler, request.stop_ids
        )
        assert list(got.ids) == alone[0]
        assert got.request == request
        assert len(got.times_s) == len(got.ids)
        assert list(got.times_s) == sorted(got.times_s)
        assert request.arrival_s <= got.joined_s < got.times_s[0]
        assert got.latency_s >= got.ttft_s > 0
    assert max(len(p.requests) for p in passes) <= rows
    assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(passes))
    # First come, first served.
    order = sorted(range(len(requests)), key=lambda i: (requests[i].arrival_s, i))
    joined = [done[i].joined_s for i in order]
    assert joined == sorted(joined)
    # Each request is in one prefill, and in a decode for every token after the first.
    for i, got in enumerate(done):
        kinds = [p.kind for p in passes if i in p.requests]
        assert kinds == ["prefill"] + ["decode"] * (len(got.ids) - 1)


def test_continuous_lets_in_at_token_boundaries_and_static_does_not():
    requests = [Request((1,), 9), Request((2,), 2), Request((3,), 2, arrival_s=1.0)]
    first_in = {}
    for policy in ("continuous", "static"):
        done, _ = serve(MODEL, requests, rows=2, policy=policy, clock=Ticks)
        first_in[policy] = done[2].joined_s < done[0].times_s[-1]
    assert first_in == {"continuous": True, "static": False}


def test_no_row_idles_while_somebody_waits():
    requests = [Request((i + 1,), 3 + i % 4) for i in range(8)]
    done, passes = serve(MODEL, requests, rows=3, clock=Ticks)
    for p in passes:
        if p.kind == "decode":
            waiting = [c for c in done if c.joined_s > p.start_s]
            assert len(p.requests) == 3 or not waiting


def test_times_are_defined_by_arrival_and_tokens():
    done, _ = serve(MODEL, [Request((1,), 5), Request((1,), 1)], rows=1, clock=Ticks)
    first, second = done
    assert first.tpot_s == pytest.approx((first.times_s[-1] - first.times_s[0]) / 4)
    assert second.tpot_s == 0
    assert second.ttft_s == second.latency_s > first.latency_s  # it waited for the row


def test_wall_clock_waits_for_arrivals():
    done, _ = serve(MODEL, [Request((1,), 2, arrival_s=0.05)])
    assert done[0].joined_s >= 0.05


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: generate(MODEL, []), "no prompt; give a list of prompts"),
        (lambda: generate(MODEL, [[]]), "an empty prompt; a model needs one token at least"),
        (lambda: generate(MODEL, [1, 2]), "a prompt must be a sequence of token ids, not 1"),
        (lambda: generate(MODEL, [["a"]]), "a prompt must be a sequence of token ids"),
        (lambda: generate(MODEL, [[1]], 0), "max_new_tokens must be a whole number above 0, not 0"),
        (lambda: generate(MODEL, [[1]], 2.5), "max_new_tokens must be a whole number above 0"),
        (lambda: generate(MODEL, [[1]], 2, [Sampler()] * 2), "2 samplers for 1 prompts"),
        (lambda: generate(MODEL, [[-1]]), "no token -1 in llama; ids run from 0 to "),
        (lambda: generate(MODEL, [[5000]]), "no token 5000 in llama; ids run from 0 to "),
        (
            lambda: generate(MODEL, [[1] * (MODEL.config.positions + 1)], 1),
            f"a prompt of {MODEL.config.positions + 1} tokens exceeds the "
            f"{MODEL.config.positions} positions of llama",
        ),
        (
            lambda: stream(MODEL, [1] * (MODEL.config.positions - 2), 9),
            f"a prompt of {MODEL.config.positions - 2} tokens and 9 new ones exceed the "
            f"{MODEL.config.positions} positions of llama; ask for 3 at most",
        ),
        (lambda: serve(MODEL, []), "a server needs one request and one row at least"),
        (lambda: serve(MODEL, [Request((1,))], rows=0), "a server needs one request and one row"),
        (lambda: serve(MODEL, [Request((1,))], policy="x"), "policy 'x' is not known; known: "),
        (
            lambda: serve(MODEL, [Request((1, 2), 9)], capacity=8),
            "a prompt of 2 tokens and 9 new ones exceed the capacity of 8 tokens a row; "
            "ask for 7 at most",
        ),
        (lambda: Request((1,), arrival_s=float("nan")), "arrival_s must be at least 0 and finite"),
        (lambda: Request((1,), arrival_s=float("inf")), "arrival_s must be at least 0 and finite"),
        (lambda: Request("12"), "a prompt must be a sequence of token ids, not '12'"),
        (lambda: Request((1.5,)), "a prompt must be a sequence of token ids"),
        (
            lambda: Batch(MODEL, 1, 8).join({0: Request((1,), 2), 1: Request((1,), 2)}),
            "2 requests do not fit 1 free rows",
        ),
    ],
)
def test_bad_requests(call, line):
    with pytest.raises(RequestError) as error:
        call()
    assert isinstance(error.value, TokenlifeError)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_the_longest_request_that_fits_is_served():
    positions = MODEL.config.positions
    assert len(generate(MODEL, [[1] * positions], 1)[0]) == 1
    assert len(generate(MODEL, [[1] * (positions - 3)], 4)[0]) == 4
    # ALiBi has no longest text.
    assert len(generate(tiny("bloom"), [[1] * 70], 3)[0]) == 3
