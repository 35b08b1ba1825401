"""The whole account: no byte lost for any job, and totals equal to messages laid out one by one."""

import json
import math
import re
from collections import Counter, defaultdict
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from test_parallel import MIXTURE, SMALL, jobs
from tokenlife import cli
from tokenlife.catalog import model_names, read_reference, running
from tokenlife.collectives import ScheduleError, build
from tokenlife.costs import count_parameters
from tokenlife.jobs import trace
from tokenlife.jobs.account import CACHE, frame, writes
from tokenlife.jobs.bills import Serving, serving, training
from tokenlife.jobs.cluster import Cluster, Level
from tokenlife.jobs.messages import census, payload
from tokenlife.jobs.systems import systems
from tokenlife.jobs.traffic import AXES, rows, sweep
from tokenlife.ledger import BALANCED, LEVELS, Ledger
from tokenlife.ledger import Level as Of
from tokenlife.network import place, single_switch
from tokenlife.parallel import Plan, PlanError, communication, shards
from tokenlife.parallel.inference import kv_bytes, pass_ops
from tokenlife.transformer import ModelConfig
from tokenlife.wire import tcp_over_ethernet
from tokenlife.wire.framing import INTERFRAME_GAP, PREAMBLE
from tokenlife.wire.stack import PATH_MTUS, Stack

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = {
    "all_reduce": ["ring", "recursive_doubling", "halving_doubling", "double_tree", "linear",
                   "nvls", "switch_tree"],
    "all_gather": ["ring", "bruck", "linear", "nvls"],
    "reduce_scatter": ["ring", "bruck", "pat", "nvls"],
    "all_to_all": ["linear", "bruck"],
}  # fmt: skip
algorithms = st.fixed_dictionaries({kind: st.sampled_from(n) for kind, n in NAMES.items()})
stacks = st.one_of(
    st.builds(Stack, st.just("tcp"), st.integers(68, 65_535)),
    st.builds(Stack, st.sampled_from(["rocev2", "ib"]), st.sampled_from(PATH_MTUS)),
    st.builds(Stack, st.just("rocev2"), st.just(1024), vlan=st.booleans(), vxlan=st.booleans()),
)


@st.composite
def networks(draw):
    """One switch, or nodes inside it, or two more levels of any depth."""
    sizes = [draw(st.integers(1, 6))]
    for _ in range(draw(st.integers(0, 2))):
        sizes.append(sizes[-1] * draw(st.integers(2, 4)))
    sizes.append(10**6)
    sizes = sizes[draw(st.integers(0, 1)) :] if len(sizes) > 2 else sizes
    links = draw(st.lists(st.integers(1, 4), min_size=len(sizes), max_size=len(sizes)))
    return tuple(
        Level(f"level {i}", size, 1e9, 0.0, links=2 * n)
        for i, (size, n) in enumerate(zip(sizes, links, strict=True))
    )


def close(account, axis=None) -> Ledger:
    """The ledger refuses a lost byte; this makes one."""
    return Ledger((*(Of(name, 0, "derived") for name in LEVELS[:4]), *account.levels(axis)))


def hold(account):
    """Whole and parts close, and the parts add up to the whole at every level."""
    whole = close(account)
    parts = [close(account, axis) for axis in account.axes]
    for name in LEVELS[4:]:
        assert whole[name].bytes_ == sum(part[name].bytes_ for part in parts), name
    assert all(t.bytes_ >= 0 for name in ("packets", "bits") for t in whole[name].terms)
    assert account.card_bits() == sum(map(account.card_bits, account.axes))
    return whole


# ---- every byte of any job ----------------------------------------------------------------------


@SLOW
@given(jobs(), networks(), stacks, algorithms, st.sampled_from(["", "bf16"]))
def test_no_byte_of_a_training_step_is_lost(job, levels, stack, chosen, narrow):
    config, plan = job
    plan = replace(plan, communication=narrow)
    account = training(config, plan, levels, stack, chosen)
    ledger = hold(account)
    (*_, last) = ledger["bits"].terms
    assert (last.bytes_ == 0) == (stack.transport == "ib" or not ledger["flows"].bytes_)


@SLOW
@given(
    st.sampled_from([SMALL, MIXTURE]), networks(), stacks, algorithms,
    st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(1, 4),
    st.integers(0, 9), st.integers(0, 5), st.booleans(), st.sampled_from(["", "fp8"]),
)  # fmt: skip
def test_no_byte_of_a_served_batch_is_lost(
    config, levels, stack, chosen, dp, tp, pp, batch, prompt, new, moved, narrow
):
    ep = {1: dp, 2: 1, 4: 1}[tp] if config.moe and config.moe.experts % dp == 0 else 1
    plan = Plan(dp=dp, tp=tp, pp=pp, ep=ep, micro_batch=batch, dispatch=narrow,
                sequence_parallel=config.moe is not None)  # fmt: skip
    try:
        asked = Serving(prompt, new, moved and prompt > 0)
        account = serving(config, plan, levels, stack, asked, chosen)
    except PlanError:
        assume(False)
    hold(account)
    assert account.tokens == dp * batch * (prompt + new)
    if asked.moved:
        each = sum(math.ceil(kv_bytes(config, plan, prompt, s)) for s in range(pp))
        assert sum(m.total for m in account.of(CACHE)) == each * batch * dp * tp


@SLOW
@given(
    st.sampled_from(model_names()), st.sampled_from(["llama3-24k", "dgx-h100", "dgx-a100-selene"]),
    st.sampled_from([1, 2, 16]), st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 8]), st.integers(0, 3), st.booleans(), algorithms,
)  # fmt: skip
def test_no_byte_of_a_named_model_is_lost(name, where, dp, tp, pp, ep, zero, split, chosen):
    config, cluster = ModelConfig.load(name), Cluster.load(where)
    sizes = {"dp": dp, "tp": tp, "pp": pp, "ep": ep if config.moe else 1, "zero": zero}
    try:
        plan = Plan(**sizes, global_batch=2 * dp, sequence=64, sequence_parallel=split)
        account = training(config, plan, cluster.levels, Stack(cluster.transport, 4096), chosen)
        served = serving(config, plan, cluster.levels, Stack("tcp", 9000), Serving(64, 3, True))
    except PlanError:  # heads or experts that cannot be dealt so
        assume(False)
    hold(account)
    hold(served)


# ---- against messages laid out one by one -------------------------------------------------------


def laid_out(ops_of, world, levels, stack, chosen):
    """Lay out every message of every group, in other words than the library's.

    Each group is performed once: by its first member, who lists it among its operations.
    """
    sums = defaultdict(Counter)
    for rank in range(world):
        for op in (op for op in ops_of(rank) if op.group[0] == rank):
            on = sums[op.axis]
            on["communication"] += op.handed_over_bytes
            if op.kind == "send":
                sends = [(*op.group, op.bytes_)]
            else:
                schedule = build(op.kind, chosen[op.kind], len(op.group))
                offsets = schedule.chunk_offsets(op.items) * op.item_bytes
                sends = [
                    (op.group[src], op.group[dst], size)
                    for i in range(len(schedule.rounds))
                    for src, dst, size, _ in zip(*schedule.messages(i, offsets), strict=True)
                ]
            for src, dst, size in sends:
                if not size:
                    continue
                on["messages"] += int(size) * op.count
                inside = next(i for i, lv in enumerate(levels) if src // lv.gpus == dst // lv.gpus)
                links = 0 if inside == 0 and len(levels) > 1 else levels[inside].links
                on["flows"] += int(size) * op.count * links
                packets = stack.packets(int(size))
                packets.append(stack.acknowledgements(sum(p.count for p in packets)))
                for p in packets:
                    on["packets"] += p.count * p.frame_bytes * op.count * links
                    silent = 0 if stack.transport == "ib" else PREAMBLE + INTERFRAME_GAP
                    on["bits"] += p.count * (p.frame_bytes + silent) * op.count * links
    return sums


PLAIN = {kind: [n for n in names if n not in ("nvls", "switch_tree")]
         for kind, names in NAMES.items()}  # fmt: skip
plain = st.fixed_dictionaries({kind: st.sampled_from(n) for kind, n in PLAIN.items()})


@SLOW
@given(jobs(), networks(), stacks, plain)
def test_a_training_step_is_what_its_messages_are(job, levels, stack, chosen):
    config, plan = job
    account = training(config, plan, levels, stack, chosen)
    sums = laid_out(lambda r: communication(config, plan, r), plan.world, levels, stack, chosen)
    assert set(sums) == set(account.axes)
    for axis, found in sums.items():
        for level in account.levels(axis):
            assert level.bytes_ == found[level.name], (axis, level.name)


@SLOW
@given(
    st.sampled_from([SMALL, MIXTURE]), networks(), stacks, plain, st.integers(1, 3),
    st.sampled_from([1, 2, 4]), st.integers(1, 2), st.integers(1, 5), st.integers(2, 4),
)  # fmt: skip
def test_a_served_batch_is_what_its_messages_are(
    config, levels, stack, chosen, dp, tp, pp, prompt, new
):
    plan = Plan(dp=dp, tp=tp, pp=pp, micro_batch=2, sequence_parallel=config.moe is not None)
    account = serving(config, plan, levels, stack, Serving(prompt, new), chosen)

    def ops(rank):
        once = pass_ops(config, plan, 2 * prompt, 2, rank)
        each = pass_ops(config, plan, 2, 2, rank)
        return (*once, *(replace(op, count=op.count * (new - 1)) for op in each))

    for axis, found in laid_out(ops, plan.world, levels, stack, chosen).items():
        for level in account.levels(axis):
            assert level.bytes_ == found[level.name], (axis, level.name)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_flows_of_the_network_are_the_account_s(ranks):
    step = trace("some words", plan=Plan(dp=ranks))
    op = communication(step.config, step.plan, 0)[0]
    star = single_switch(ranks, 1e9)
    flows = place(build("all_reduce", "ring", ranks), op.items, 4, star, tcp_over_ethernet(1500))
    assert step.ledger["messages"].bytes_ == sum(f.bytes_ for f in flows)
    assert step.ledger["flows"].bytes_ == sum(f.link_bytes for f in flows)
    assert step.communication_s == pytest.approx(flows[-1].finish_s)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("items", [0, 1, 32, 33, 100])
def test_a_ring_in_closed_form_is_the_ring_laid_out(kind, ranks, items):
    schedule = build(kind, "ring", ranks)
    offsets = schedule.chunk_offsets(items) * 4
    seen = Counter(
        message
        for i in range(len(schedule.rounds))
        for message in zip(*(c.tolist() for c in schedule.messages(i, offsets)[:3]), strict=True)
        if message[2]
    )
    src, dst, size, count = (c.tolist() for c in census(kind, "ring", ranks, items, 4))
    assert dict(zip(zip(src, dst, size, strict=True), count, strict=True)) == seen
    assert payload(kind, "ring", ranks, items, 4)[0] == sum(k[2] * n for k, n in seen.items())


# ---- beside what the book says elsewhere --------------------------------------------------------


@pytest.mark.parametrize("job", running()["large"], ids=lambda job: "-".join(job["axes"]))
def test_the_large_jobs_send_what_the_traffic_command_says(job):
    config, cluster = ModelConfig.load(job["model"]), Cluster.load(job["cluster"])
    plan = Plan(**{k: tuple(v) if isinstance(v, list) else v for k, v in job["plan"].items()})
    account = training(config, plan, cluster.levels, Stack(cluster.transport, 4096))
    hold(account)
    table, each = sweep(config, plan).iloc[0], dict.fromkeys(AXES, 0)
    for row in rows(config, plan):
        share = plan.world // plan.pp * len(row.stages)
        each[row.demand.axis] += round(row.sent_bytes * share) * row.demand.count
    for axis in AXES:
        sent = account.levels(axis)[1].bytes_
        assert sent == each[axis]
        assert sent == pytest.approx(table[axis] * plan.world, rel=1e-12)


def test_a_node_keeps_what_tensor_parallelism_says():
    config, cluster = ModelConfig.load("llama-3.1-8b"), Cluster.load("dgx-h100")
    stack = Stack("ib", 4096)
    inside = training(config, Plan(tp=8, sequence=1024), cluster.levels, stack)
    assert inside.card_bits() == 0 and inside.node_bytes() == inside.levels()[1].bytes_
    across = training(config, Plan(dp=16, sequence=1024), cluster.levels, stack)
    # Of a ring over two nodes two edges of sixteen leave a node.
    sent = across.levels()[1].bytes_
    assert across.node_bytes() == pytest.approx(sent * 14 / 16, rel=1e-6)


def test_switches_that_add_spare_the_cards():
    config, plan = ModelConfig.load("gpt2"), Plan(dp=16, sequence=64)
    star = (Level("switch", 16, 1e9, 0.0),)
    ring = training(config, plan, star, Stack("rocev2", 4096))
    tree = training(config, plan, star, Stack("rocev2", 4096), {"all_reduce": "switch_tree"})
    assert tree.card_bits() / ring.card_bits() == pytest.approx(16 / 30, rel=1e-3)
    names = {t.name: t.bytes_ for t in tree.levels()[1].terms}
    assert names["sums and copies in the network"] < 0
    assert {t.name for t in tree.levels()[2].terms} == {"sent by switches", "hops"}


def test_what_travels_narrow_is_a_term():
    config, star = ModelConfig.load("gpt2"), (Level("switch", 16, 1e9, 0.0),)
    wide = training(config, Plan(dp=4, sequence=64), star, Stack("tcp", 1500))
    narrow = training(config, Plan(dp=4, sequence=64, communication="bf16"), star,
                      Stack("tcp", 1500))  # fmt: skip
    assert narrow.levels()[0].bytes_ == wide.levels()[0].bytes_
    assert narrow.levels()[1].bytes_ * 2 == wide.levels()[1].bytes_
    assert narrow.levels()[1].terms[0].name == "compression"


@given(st.integers(1, 2**34), stacks)
def test_writes_of_any_size_are_framed(size, stack):
    assert sum(bytes_ * times for bytes_, times in writes(stack, size)) == size
    framing = frame(stack, size)
    assert framing.payload_bytes == size
    assert framing.packets >= math.ceil(size / stack.payload_per_packet)


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(PlanError, match="reads or writes one token"):
        Serving(0, 0)
    with pytest.raises(PlanError, match="a cache moves after"):
        Serving(0, 4, True)
    with pytest.raises(ScheduleError, match="too many messages"):
        census("all_reduce", "linear", 2**20, 4, 4)
    star = (Level("switch", 16, 1e9, 0.0),)
    with pytest.raises(ScheduleError, match="no algorithm 'square'"):
        training(SMALL, Plan(dp=2, sequence=8), star, Stack("tcp", 1500), {"all_reduce": "square"})


# ---- known systems ------------------------------------------------------------------------------

KNOWN = {system.name: system for system in systems()}


def test_there_are_a_dozen_systems_with_a_source_and_what_is_not_known():
    assert len(KNOWN) >= 12
    assert {bool(s.asked) for s in KNOWN.values()} == {True, False}
    for system in KNOWN.values():
        assert system.source and system.unknown and system.layout in ("published", "taken here")


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_system_closes_as_it_is_taken_and_as_it_may_be(name):
    system = KNOWN[name]
    for account in system.possible():
        close(account)
    hold(system.taken)
    taken, least, most = system.card_bits_per_token
    assert 0 <= least <= taken <= most
    assert system.taken.card_bits() / system.taken.tokens == taken


def test_known_systems_have_the_ranks_and_tokens_that_their_papers_print():
    deepseek = KNOWN["DeepSeek-V3, 2,048 H800s"]
    assert deepseek.plans[0].world == 2048
    table = read_reference("05_deepseek_v3")
    printed = table[table.quantity == "tokens/day / 86400 * 19.926"].value.astype(float).item()
    assert deepseek.taken.tokens == pytest.approx(printed, rel=1e-3)
    herd = KNOWN["Llama 3 405B, 16,384 H100s"]
    assert herd.plans[0].world == running()["big"]["gpus"]
    assert herd.taken.tokens == 2**24  # "16M tokens per batch", Table 4
    scale = KNOWN["GPT-3 175B, 12,288 A100s"]
    assert scale.plans[0].world == scale.cluster.gpus


def test_a_dense_model_s_gradients_cost_what_arithmetic_says():
    """Llama 3: reduce-scatter of 4 and all-gather of 2 bytes a weight, in each of 128 shards."""
    herd = KNOWN["Llama 3 405B, 16,384 H100s"]
    sent = herd.taken.levels("dp")[1].bytes_
    held = sum(sum(shards.hold(herd.config, herd.plans[0], s).parameters()) for s in range(16))
    assert sent == 8 * 127 * 6 * held
    assert 8 * held == pytest.approx(count_parameters(herd.config), rel=1e-3)


# ---- the command --------------------------------------------------------------------------------

CALLS = [
    ["--plan", "dp=2,tp=2,sequence=64", "--transport", "rocev2"],
    ["--model", "llama-3.1-8b", "--plan", "dp=4,tp=8,pp=2,zero=1,global_batch=8,sequence=256",
     "--cluster", "dgx-h100"],
    ["--model", "llama-3.1-8b", "--plan", "tp=8,micro_batch=4", "--cluster", "dgx-h100",
     "--serve", "--new", "8", "--move-cache"],
    ["--model", "deepseek-v3", "--plan", "dp=2", "--vocabulary", "deepseek"],
    ["--plan", "dp=4", "--algorithm", "all_reduce=halving_doubling", "--mtu", "9000"],
]  # fmt: skip


@pytest.mark.parametrize("options", CALLS, ids=lambda o: " ".join(o)[:40])
def test_the_command_says_the_same_as_table_json_and_page(options, capsys, tmp_path):
    file = tmp_path / "bill.html"
    assert cli.main(["trace", "some <words>", *options]) == 0
    table = capsys.readouterr().out
    assert cli.main(["trace", "some <words>", *options, "--json", "--html", str(file)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [level["level"] for level in data["levels"]] == list(LEVELS)
    for above, level in zip(data["levels"], data["levels"][1:], strict=False):
        if level["level"] in BALANCED:
            assert level["bytes"] == above["bytes"] + sum(level["overheads"].values())
        assert f"{level['bytes']:,}" in table
    wire = data["levels"][-1]["bytes"]
    assert data["wire_bits"] == 8 * wire
    assert data["wire_bits_per_token"] == 8 * wire / data["tokens_per_step"]
    assert wire == sum(axis["bits"] for axis in data["per_axis"].values())
    page = file.read_text()
    assert "some &lt;words&gt;" in page and "<words>" not in page
    assert all(f"{level['bytes']:,}" in page for level in data["levels"])


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.attributes = Counter(), []

    def handle_starttag(self, tag, attrs):
        self.seen[tag] += 1
        self.attributes += [(tag, *pair) for pair in attrs]


def test_the_page_stands_alone_and_is_marked_up_for_all(tmp_path):
    file = tmp_path / "bill.html"
    assert cli.main(["trace", "--html", str(file)]) == 0
    text, tags = file.read_text(), Tags()
    tags.feed(text)
    assert (
        not tags.seen["script"] and not tags.seen["img"] and not re.search(r"https?:|url\(", text)
    )
    assert not [a for a in tags.attributes if a[1] in ("src", "href")]
    assert tags.seen["h1"] == tags.seen["main"] == tags.seen["title"] == 1
    assert tags.seen["caption"] == tags.seen["table"] == 2
    assert ("html", "lang", "en") in tags.attributes
    assert {a[2] for a in tags.attributes if a[1] == "scope"} == {"row", "col"}
    assert "prefers-color-scheme" in text and "color-scheme" in text


def test_numbers_of_the_account_are_whole():
    step = trace("some words", plan=Plan(dp=3, tp=2))
    for level in step.ledger.levels:
        assert type(level.bytes_) is int
        assert all(type(term.bytes_) is int for term in level.terms)
    assert not any(isinstance(m.count, np.integer) for m in step.account.messages)
