"""The thread: the running sentence from words to bits, closed to the byte at every level."""

import json
import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenlife import cli
from tokenlife.catalog import CatalogError, model_names, running
from tokenlife.collectives import Schedule, ScheduleError, Send, ring_all_reduce, run, verify
from tokenlife.costs import CostError, count_parameters, forward_stages
from tokenlife.errors import TokenlifeError
from tokenlife.jobs import TraceError, trace
from tokenlife.ledger import BALANCED, LEVELS, Ledger, LedgerError, Level, Term
from tokenlife.network import TopologyError, place, single_switch
from tokenlife.parallel import CommOp, Plan, PlanError, data_parallel_ops
from tokenlife.transformer import ConfigError, ModelConfig
from tokenlife.wire import FramingError, tcp_over_ethernet
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# ---- the ledger -------------------------------------------------------------------------------


def test_the_running_job_closes_to_the_byte():
    """Every level counted by hand here, in other words than the library's."""
    step = trace()
    bytes_ = {level.name: level.bytes_ for level in step.ledger.levels}
    parameters = (
        4096 * 128 + 256 * 128  # embeddings
        + 2 * (128 * 384 + 384 + 128 * 128 + 128 + 128 * 512 + 512 + 512 * 128 + 128)
        + 5 * 256
    )  # fmt: skip
    assert bytes_["text"] == len(running()["sentence"].encode()) == 69
    assert bytes_["ids"] == 2 * step.encoding.n_tokens
    assert bytes_["tensors"] == step.encoding.n_tokens * 128 * 4
    assert bytes_["operations"] == 4 * parameters
    assert bytes_["communication"] == 2 * 4 * parameters
    # Two ranks swap halves twice: what they send is what they handed over.
    assert bytes_["messages"] == bytes_["communication"]
    assert bytes_["flows"] == 2 * bytes_["messages"]
    # Four messages of half a gradient, each over two links.
    message = 2 * parameters
    packets = math.ceil(message / 1448)
    acknowledgements = math.ceil(packets / 2)
    crossings = 4 * 2
    assert bytes_["packets"] == crossings * (message + 70 * (packets + acknowledgements))
    assert bytes_["bits"] == bytes_["packets"] + crossings * 20 * (packets + acknowledgements)
    assert step.wire_bits_per_token == 8 * bytes_["bits"] / (2 * step.encoding.n_tokens)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    model=st.sampled_from(["running-gpt", "gpt2"]),
    ranks=st.integers(2, 24),
    mtu=st.integers(68, 65_535),
    text=st.text(min_size=1, max_size=40),
)
def test_every_ledger_closes(model, ranks, mtu, text):
    step = trace(text, model=model, plan=Plan(dp=ranks), mtu=mtu)
    levels = step.ledger.levels
    for above, level in pairwise(levels):
        if level.name in BALANCED:
            assert level.bytes_ - above.bytes_ == sum(term.bytes_ for term in level.terms)
    sent = 2 * (ranks - 1) * 4 * count_parameters(step.config)
    assert step.ledger["messages"].bytes_ == sent
    assert all(term.bytes_ >= 0 for term in levels[-1].terms + levels[-2].terms)


def test_a_ledger_refuses_a_lost_byte_and_a_missing_level():
    levels = [Level(name, 8, "given") for name in LEVELS]
    Ledger(tuple(levels))
    with pytest.raises(LedgerError, match="-1 B unaccounted for"):
        Ledger((*levels[:-1], Level("bits", 8, "given", (Term("gap", 1, "why"),))))
    with pytest.raises(LedgerError, match="needs the levels"):
        Ledger(tuple(levels[1:]))
    with pytest.raises(LedgerError, match="derivation"):
        Ledger((levels[0], Level("ids", 8, "given", (Term("x", 0, "y"),)), *levels[2:]))


# ---- operations: against torch ------------------------------------------------------------------


class Block(nn.Module):
    """A pre-norm GPT-2 block on the naive attention path, the reference for the counts."""

    def __init__(self, hidden: int, heads: int, ffn: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x, bias):
        b, s, d = x.shape
        q, k, v = (
            t.view(b, s, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) + bias
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, d)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.positions = nn.Embedding(config.positions, config.hidden)
        self.blocks = nn.ModuleList(
            Block(config.hidden, config.attention.heads, config.mlp.width)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length))
        bias = torch.full((length, length), -torch.inf).triu(1)
        for block in self.blocks:
            x = block(x, bias)
        return self.norm(x) @ self.tokens.weight.T


@pytest.fixture(scope="module")
def small() -> tuple[ModelConfig, Gpt, torch.Tensor]:
    sizes = {"n_layer": 3, "n_embd": 48, "n_head": 4, "n_positions": 32, "vocab_size": 99}
    config = ModelConfig.from_hf({"model_type": "gpt2"} | sizes, "tiny")
    torch.manual_seed(0)
    return config, Gpt(config), torch.randint(config.vocab, (2, 17))


def test_parameters_equal_torchs(small):
    config, model, _ = small
    assert count_parameters(config) == sum(p.numel() for p in model.parameters())


def test_weight_bytes_add_up_to_the_model_and_one_more_look_at_the_tied_table(small):
    config, _, _ = small
    weights = sum(stage.weight_bytes for stage in forward_stages(config, 1, 1))
    assert weights == 4 * (count_parameters(config) + config.vocab * config.hidden)


def test_flops_equal_torchs_counter(small):
    config, model, ids = small
    with FlopCounterMode(display=False) as counter:
        model(ids)
    assert counter.get_total_flops() == sum(s.flops for s in forward_stages(config, *ids.shape))


def test_activation_bytes_equal_what_autograd_saves(small):
    config, model, ids = small
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            saved[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        model(ids)
    measured = sum(storage.nbytes() for storage in saved.values())
    stages = forward_stages(config, *ids.shape)
    assert sum(stage.activation_bytes for stage in stages) == measured


def test_gpt2_is_counted_as_published():
    assert count_parameters(ModelConfig.load("gpt2")) == 124_439_808


# ---- the rooms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", model_names())
def test_every_named_model_loads(name):
    assert count_parameters(ModelConfig.load(name)) > 0


GPT2 = {"n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 8, "vocab_size": 9}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "llm9"}, "model_type 'llm9' is not known"),
        ({"model_type": "gpt2", "n_layer": 2}, "lacks n_embd, n_head, n_positions, vocab_size"),
        (GPT2 | {"n_embd": 10, "n_head": 3}, "3 heads do not divide"),
        (GPT2 | {"n_layer": -1}, "layers must be"),
        (GPT2 | {"n_embd": "8"}, "hidden size and attention heads must be"),
    ],
)
def test_bad_configs_get_one_clear_line(config, says):
    with pytest.raises(ConfigError, match=says):
        ModelConfig.from_hf({"model_type": "gpt2"} | config, "x")


def test_a_file_that_is_no_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[1]")
    with pytest.raises(CatalogError, match="no JSON object"):
        ModelConfig.load(path)
    path.write_text("{")
    with pytest.raises(CatalogError, match="not a readable config"):
        ModelConfig.load(path)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_ranks_and_coordinates_are_inverse_and_groups_are_a_partition(dp, tp, pp, cp):
    plan = Plan(dp=dp, tp=tp, pp=pp, cp=cp)
    assert [plan.rank(**plan.coordinates(r)) for r in range(plan.world)] == list(range(plan.world))
    for axis in ("dp", "tp", "pp", "cp"):
        groups = plan.groups(axis)
        assert sorted(r for group in groups for r in group) == list(range(plan.world))
        assert {len(group) for group in groups} == {getattr(plan, axis)}
    assert len(data_parallel_ops(plan, 10)) == (tp * pp * cp if dp > 1 else 0)


@pytest.mark.parametrize("text", ["dp=0", "dp=-1", "dp", "zz=2", "dp=2,dp=2", "dp=1.5", "dp=²"])
def test_bad_plans_get_one_clear_line(text):
    with pytest.raises(PlanError):
        Plan.parse(text)


def test_a_comm_op_is_cut_between_numbers():
    with pytest.raises(ValueError, match="no whole number"):
        CommOp("all_reduce", "dp", (0, 1), 10, 4, "backward")
    with pytest.raises(ValueError, match="no kind"):
        CommOp("all_to_none", "dp", (0, 1), 8, 4, "backward")


@pytest.mark.parametrize("ranks", range(1, 34))
@pytest.mark.parametrize("items", [1, 2, 31, 1000])
def test_the_ring_sums(ranks, items):
    verify(ring_all_reduce(ranks), once=True)
    own = np.random.default_rng(items).integers(-(10**9), 10**9, (ranks, items))
    assert (run(ring_all_reduce(ranks), own) == own.sum(axis=0)).all()


@pytest.mark.parametrize("ranks", [2, 3, 8, 33])
def test_the_ring_sends_what_is_least_and_no_port_twice_a_round(ranks):
    schedule = ring_all_reduce(ranks)
    assert len(schedule.rounds) == 2 * (ranks - 1)
    for sends in schedule.rounds:
        assert sorted(s.src for s in sends) == sorted(s.dst for s in sends) == list(range(ranks))
    sent = schedule.bytes_sent_per_rank(ranks * 10, 4)
    assert (sent == 2 * (ranks - 1) * 10 * 4).all()


def test_verify_finds_a_wrong_schedule():
    right = ring_all_reduce(3)
    wrong = Schedule("all_reduce", "wrong", 3, 3, right.rounds[:-1])
    with pytest.raises(ScheduleError, match="does not hold the sum"):
        verify(wrong)
    doubled = (Send(0, 1, 0, True),)
    with pytest.raises(ScheduleError, match="does not hold the sum"):
        verify(Schedule("all_reduce", "wrong", 3, 3, (*right.rounds, doubled)))


def test_a_round_reads_what_stood_before_it():
    swap = Schedule("all_reduce", "swap", 2, 1, ((Send(0, 1, 0, True), Send(1, 0, 0, True)),))
    assert run(swap, np.array([[1], [2]])).tolist() == [[3], [3]]


@given(st.integers(0, 10**7), st.integers(68, 65_535))
def test_framing_loses_no_byte(message, mtu):
    packets = tcp_over_ethernet(mtu)
    framing = packets.frame(message)
    full, full_size, last = packets.frame_sizes(message)
    assert full * full_size + last == framing.frame_bytes
    assert framing.packets == math.ceil(message / (mtu - 52))
    assert framing.padding_bytes == 0 or mtu < 98 or message % (mtu - 52) < 46
    assert 0 <= framing.goodput_ratio < 1


def test_framing_refuses_what_cannot_be_framed():
    with pytest.raises(FramingError, match="MTU of 67"):
        tcp_over_ethernet(67)
    with pytest.raises(FramingError, match="-1 bytes"):
        tcp_over_ethernet(1500).frame(-1)


def test_flows_carry_the_schedule_and_no_link_more_than_its_rate():
    ranks, items = 5, 10_007
    star, packets = single_switch(ranks, 1e9), tcp_over_ethernet(1500)
    schedule = ring_all_reduce(ranks)
    flows = place(schedule, items, 4, star, packets)
    assert sum(f.bytes_ for f in flows) == schedule.bytes_sent_per_rank(items, 4).sum()
    for start in {f.start_s for f in flows}:
        together = [f for f in flows if f.start_s == start]
        for link in range(star.links):
            crossing = [f for f in together if link in f.path]
            busy = sum(8 * packets.frame(f.bytes_).wire_bytes for f in crossing) / 1e9
            assert all(busy <= f.finish_s - f.start_s + 1e-15 for f in crossing)
    # A ring on a switch has no two messages on one link: the time is that of one chunk a round.
    chunk = 4 * math.ceil(items / ranks)
    assert flows[-1].finish_s == pytest.approx(
        8 * 8 * packets.frame(chunk).wire_bytes / 1e9, rel=1e-3
    )


def test_two_messages_share_a_link():
    incast = Schedule("all_reduce", "incast", 3, 1, ((Send(0, 2, 0, True), Send(1, 2, 0, True)),))
    alone = Schedule("all_reduce", "alone", 3, 1, ((Send(0, 2, 0, True),),))
    star, packets = single_switch(3, 1e9), tcp_over_ethernet(1500)
    both = place(incast, 1000, 4, star, packets)[-1].finish_s
    assert both == pytest.approx(2 * place(alone, 1000, 4, star, packets)[-1].finish_s)


def test_topologies_that_cannot_be():
    with pytest.raises(TopologyError):
        single_switch(0, 1e9)
    with pytest.raises(TopologyError, match="no host 3"):
        single_switch(3, 1e9).path(0, 3)


# ---- the command ---------------------------------------------------------------------------------


def test_trace_prints_every_level_and_json_says_the_same(capsys):
    assert cli.main(["trace", "some words"]) == 0
    table = capsys.readouterr().out
    assert all(f"\n{level}" in table for level in LEVELS)
    assert cli.main(["trace", "some words", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [level["level"] for level in data["levels"]] == list(LEVELS)
    assert data["levels"][0]["bytes"] == 10
    assert f"{data['wire_bits']:,} bits" in table
    above = 0
    for level in data["levels"]:
        if level["level"] in BALANCED:
            assert level["bytes"] == above + sum(level["overheads"].values())
        above = level["bytes"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["trace", ""], "empty text"),
        (["trace", "x", "--model", "gpt9"], "no model 'gpt9'"),
        (["trace", "x", "--model", "running-gpt", "--vocabulary", "gpt9"], "gpt9"),
        (["trace", "x", "--plan", "dp=1"], "sends nothing"),
        (["trace", "x", "--plan", "tp=3"], "tp=3 does not divide"),
        (["trace", "x", "--plan", "dp=2,zero=4"], "zero must be 0 to 3"),
        (["trace", "x", "--plan", "dp=200000"], "up to 131,072 ranks"),
        (["trace", "x", "--cluster", "nowhere"], "no cluster 'nowhere'"),
        (["trace", "x", "--cluster", "dgx-h100", "--link", "1000base-t"], "not both"),
        (["trace", "x", "--cluster", "dgx-h100", "--plan", "dp=4096"], "do not fit on the 2,048"),
        (["trace", "x", "--transport", "rocev2", "--mtu", "1500"], "path MTU is one of"),
        (["trace", "x", "--algorithm", "all_reduce"], "like all_reduce=ring"),
        (["trace", "x", "--algorithm", "all_reduce=square"], "no algorithm 'square'"),
        (["trace", "x", "--new", "3"], "--serve"),
        (["trace", "x", "--serve", "--new", "-1"], "reads or writes"),
        (["trace", "x", "--serve", "--plan", "dp=2"], "sends nothing"),
        (["trace", "x", "--html", "/no/such/folder/x.html"], "cannot write"),
        (["trace", "x", "--link", "string"], "no link 'string'"),
        (["trace", "x", "--mtu", "20"], "MTU of 20"),
        (["trace", "x " * 600, "--model", "running-gpt"], "positions"),
        (["trace", "tokens", "--vocabulary", "o200k"], "beyond the 4096 embedding rows"),
    ],
)
def test_bad_input_gets_one_line_and_exit_2(argv, says, capsys):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err


@pytest.mark.parametrize(
    "argv", [[], ["frobnicate"], ["trace", "x", "--mtu", "big"], ["trace", "--nope"]]
)
def test_a_wrong_call_gets_one_line_and_exit_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reader_that_stops_reading_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m tokenlife.cli trace | head -1",
        shell=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.startswith("'A token leaves")
    assert done.stderr == ""


def test_every_named_error_is_one_of_ours():
    for error in (LedgerError, ConfigError, PlanError, ScheduleError, FramingError, TopologyError,
                  CostError, TraceError, CatalogError):  # fmt: skip
        assert issubclass(error, TokenlifeError)
