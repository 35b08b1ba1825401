"""Serving: a pass's communication, requests, and the simulated server against what must hold."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.catalog import read_reference
from tokenlife.costs.memory import kv_bytes_per_token
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.serving import (
    Engine,
    Server,
    ServingError,
    disaggregated,
    poisson,
    read_trace,
    requests,
    simulate,
)
from tokenlife.jobs.traffic import sent
from tokenlife.parallel import Plan, PlanError
from tokenlife.parallel.inference import kv_bytes, pass_demands, pass_ops
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.generate import Request, serve
from tokenlife.transformer.model import Decoder

LLAMA = ModelConfig.load("llama-3.1-70b")
BLOOM = ModelConfig.load("bloom-176b")
DEEPSEEK = ModelConfig.load("deepseek-v3")


class Fixed:
    """A pass takes a constant, plus something for each prompt token and row."""

    def __init__(self, base, token=0.0, row=0.0):
        self.base, self.token, self.row = base, token, row

    def seconds(self, tokens, pairs, rows, context, sampled=None):
        return self.base + self.token * tokens + self.row * rows + 0.0 * np.asarray(context)


# ---- communication -------------------------------------------------------------------------


def test_tensor_parallel_volume_is_that_of_pope():
    """1D weight-stationary: 2·B·L·E numbers a block, without the ring's (n − 1)/n."""
    plan, tokens = Plan(tp=8), 64
    (op,) = [d for d in pass_demands(LLAMA, plan, tokens, 0) if d.count and d.kind == "all_reduce"]
    blocks = op.count - 1  # one more for the embedding
    assert blocks == 2 * LLAMA.layers
    assert sent(op, plan)[1] / (7 / 8) == 2 * tokens * LLAMA.hidden * 2


def test_logits_are_gathered_of_the_drawn_tokens_only():
    ops = pass_ops(LLAMA, Plan(tp=8), tokens=1000, sampled=3)
    (gather,) = [op for op in ops if op.kind == "all_gather"]
    assert gather.bytes_ == 3 * LLAMA.vocab * 2 and len(gather.group) == 8
    assert {op.phase for op in ops} == {"forward"}


def test_a_pipeline_sends_once_between_stages_and_draws_at_its_end():
    plan = Plan(tp=8, pp=2)
    first, last = (pass_ops(LLAMA, plan, 16, 16, rank) for rank in (0, 8))
    assert [op.bytes_ for op in first if op.kind == "send"] == [16 * LLAMA.hidden * 2]
    assert not [op for op in last if op.kind == "send"]
    assert [op.kind for op in first].count("all_gather") == 0
    assert [op.kind for op in last].count("all_gather") == 1


def test_deepseeks_own_sum_of_its_all_to_all():
    """32 tokens, 1 B out and 2 B back; they count 9 experts (one shared) of 7,000 numbers."""
    plan = Plan(dp=32, ep=32, dispatch="fp8")
    ops = [d for d in pass_demands(DEEPSEEK, plan, 32, 0) if d.kind == "all_to_all" and d.count]
    ours = sum(d.bytes_ for d in ops) / 50e9
    table = read_reference("05_deepseek_v3").set_index("quantity").value
    published = float(table["EP dispatch+combine time"]) * 1e-6
    assert ours * (9 / 8) * (7000 / DEEPSEEK.hidden) == pytest.approx(published, rel=1e-9)
    assert sum(d.count for d in ops) == 2 * 58  # the first three layers are dense


@pytest.mark.parametrize("name, plan", [("llama-3.1-405b", Plan(tp=8, pp=4)),
                                        ("llama-3.1-70b", Plan(tp=4, pp=3))])  # fmt: skip
def test_ranks_hold_the_whole_cache_together(name, plan):
    config = ModelConfig.load(name)
    held = sum(kv_bytes(config, plan, 777, stage) * plan.tp for stage in range(plan.pp))
    assert held == pytest.approx(777 * kv_bytes_per_token(config), rel=1e-12)


def test_a_latent_cache_lies_whole_on_every_rank():
    plan = Plan(tp=4, dp=4, ep=4, sequence_parallel=True)
    assert kv_bytes(DEEPSEEK, plan, 10) == 10 * kv_bytes_per_token(DEEPSEEK)


def test_what_cannot_be_served_is_refused():
    with pytest.raises(PlanError, match="does not divide"):
        pass_ops(LLAMA, Plan(tp=3), 8, 8)
    with pytest.raises(PlanError, match="context parallelism"):
        pass_ops(LLAMA, Plan(cp=2), 8, 8)
    with pytest.raises(PlanError, match="one token at least"):
        pass_ops(LLAMA, Plan(tp=2), 0, 0)


# ---- time of a pass --------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [Plan(tp=8), Plan(tp=16), Plan(tp=8, pp=2)])
def test_the_affine_communication_is_that_of_the_operations(plan):
    engine = Engine(BLOOM, plan, Cluster.load("dgx-h100"))
    base, token, draw = engine._network
    for tokens, drawn in ((8, 8), (512, 3), (4096, 1)):
        straight = engine.communication_s(tokens, drawn)
        assert base + token * tokens + draw * drawn == pytest.approx(straight, rel=1e-9)


def test_more_ranks_pay_latency_and_leaving_the_node_pays_more():
    cluster = Cluster.load("dgx-h100")
    step = [Engine(BLOOM, Plan(tp=tp), cluster).communication_s(1, 1) for tp in (1, 2, 8, 16)]
    assert step[0] == 0 < step[1] < step[2] < step[3]
    rounds = (2 * BLOOM.layers + 1) * 2 * 7 + 7  # two ring halves each, one gather
    assert step[2] > rounds * cluster.levels[0].latency_s


# ---- the server ------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_row_of_equal_prompts_is_an_md1_queue(load):
    """Pollaczek and Khinchine; DistServe's TTFT: D + R·D²/(2(1 − R·D))."""
    service_s, count = 0.1, 60_000
    rate = load / service_s
    asked = requests(poisson(count, rate, seed=4), np.full(count, 64), 1)
    got = simulate(asked, Fixed(service_s), Server(rows=1))
    expected = service_s + rate * service_s**2 / (2 * (1 - load))
    assert got.table.ttft_s.mean() == pytest.approx(expected, rel=0.03)
    assert got.utilisation == pytest.approx(load, rel=0.02)


many = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=25
)


@given(many, st.sampled_from(["continuous", "chunked"]), st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=120, deadline=None)
def test_every_token_is_read_written_and_sent_once(asked, policy, rows, instances):
    asked = requests(*zip(*asked, strict=True))
    server = Server(rows, 200, policy, chunk=8)
    got = simulate(asked, Fixed(0.01, 0.001, 0.002), server, instances)
    assert got.counts["prompt"] == asked.prompt.sum()
    assert got.counts["decode"] == (asked.output - 1).sum()
    assert got.counts["drawn"] == asked.output.sum()
    table = got.table
    assert (table.arrival_s.to_numpy() == asked.arrival_s.to_numpy()).all()
    assert (table.ttft_s > 0).all() and (table.stalled_s > -1e-9).all()
    ends = table.arrival_s + table.ttft_s + table.tpot_s * np.maximum(asked.output - 1, 1)
    assert np.allclose(ends, table.end_s)
    apart = disaggregated(asked, (Fixed(0.01, 0.001), server, instances),
                          (Fixed(0.01), Server(rows, 200), 1), 7.0, 1e4)  # fmt: skip
    assert apart.counts["kv_bytes"] == 7.0 * asked.prompt[asked.output > 1].sum()
    assert apart.counts["decode"] == (asked.output - 1).sum()
    assert (apart.table.sent_s[asked.output > 1] > 0).all()


def test_decode_steps_priced_together_are_those_priced_one_by_one(monkeypatch):
    asked = requests(poisson(60, 3.0, 1), np.full(60, 300), np.arange(60) % 40 + 1)
    engine = Engine(LLAMA, Plan(tp=8), Cluster.load("dgx-h100"))
    together = simulate(asked, engine, Server(8)).table
    monkeypatch.setattr("tokenlife.jobs.serving.server.SEGMENT", 1)
    single = simulate(asked, engine, Server(8)).table
    np.testing.assert_allclose(together.end_s, single.end_s, rtol=1e-9)


def test_chunks_shorten_the_stall_and_a_prefix_cache_the_prompt():
    asked = requests(poisson(300, 6.0, 2), np.full(300, 2000), 100)
    engine = Fixed(0.01, 1e-5)
    whole, parts = (simulate(asked, engine, Server(32, policy=p, chunk=256))
                    for p in ("continuous", "chunked"))  # fmt: skip
    assert parts.table.tpot_s.quantile(0.99) < whole.table.tpot_s.quantile(0.99)
    hit = simulate(asked.assign(cached=1500), engine, Server(32))
    assert hit.counts["prompt"] == 300 * 500
    assert hit.table.ttft_s.mean() < whole.table.ttft_s.mean()


def test_beyond_saturation_is_said_and_ends():
    asked = requests(poisson(2000, 50.0, 3), np.full(2000, 10), 1)
    got = simulate(asked, Fixed(0.1), Server(rows=1))
    assert got.utilisation > 4 and "beyond saturation" in got.says
    assert len(got.table) == 2000


@pytest.mark.parametrize("bad", [([-1.0], 5, 5), ([0.0], 0, 5), ([0.0], 5, 5, 5), ([], 5, 5)])
def test_requests_that_cannot_be(bad):
    with pytest.raises(ServingError):
        requests(*bad)


def test_a_request_larger_than_the_caches():
    with pytest.raises(ServingError, match="never fits"):
        simulate(requests([0.0], 90, 20), Fixed(1), Server(1, kv_tokens=100))


def test_both_trace_formats(tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,4808,10\n"
        "2023-11-16 18:17:04.47,110,27\n"
    )
    got = read_trace(azure)
    assert got.arrival_s.tolist() == [0.0, 0.5] and got.prompt.tolist() == [4808, 110]
    mooncake = tmp_path / "mooncake.jsonl"
    lines = [(0, 1100, 5, [1, 2, 3]), (250, 1500, 7, [1, 2, 4])]
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    mooncake.write_text("\n".join(json.dumps(dict(zip(keys, x, strict=True))) for x in lines))
    got = read_trace(mooncake, cache_blocks=10)
    assert got.cached.tolist() == [0, 1024] and got.arrival_s.tolist() == [0.0, 0.25]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ServingError, match="is no trace"):
        read_trace(tmp_path / "other.csv")


class Replayed:
    """The passes of a real run, in their order: what the server took, not what a model says."""

    def __init__(self, passes):
        self.passes = [(p.kind, len(p.requests), p.end_s - p.start_s) for p in passes]

    def seconds(self, tokens, pairs, rows, context, sampled=None):
        if not np.ndim(context) and not tokens:  # the load's own question
            return 0.0
        kind, members, took = self.passes.pop(0)
        assert (kind, members) == (("prefill", sampled) if np.any(tokens) else ("decode", rows))
        return took + 0.0 * np.asarray(context)


def test_a_real_server_is_replayed_pass_by_pass(monkeypatch):
    """The same joins, in the same passes, so the same times but for what runs between passes."""
    monkeypatch.setattr("tokenlife.jobs.serving.server.SEGMENT", 1)
    monkeypatch.setattr("tokenlife.jobs.serving.server.utilisation", lambda *a: 0.0)
    torch.manual_seed(0)
    model = Decoder(ModelConfig.load("running-gpt")).eval()
    shape = [(3 + i % 5, 2 + 3 * i % 7) for i in range(12)]
    queue = [Request(tuple(range(1, 1 + p)), o) for p, o in shape]
    done, passes = serve(model, queue, rows=4)
    asked = requests(np.zeros(12), *(np.array(c) for c in zip(*shape, strict=True)))
    replay = Replayed(passes)
    table = simulate(asked, replay, Server(rows=4)).table
    assert not replay.passes
    idle_s = passes[-1].end_s - sum(p.end_s - p.start_s for p in passes)
    for got, real in zip(table.itertuples(), done, strict=True):
        assert -1e-9 <= real.ttft_s - got.ttft_s <= idle_s + 1e-9
        assert -1e-9 <= real.times_s[-1] - got.end_s <= idle_s + 1e-9
