"""Plans, and what each dimension asks of the network: against torch's own calls and the papers."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_calls import BATCH, BUCKET_BYTES, LENGTH, SIZES
from small_configs import small_config
from tokenlife.costs import count_parameters
from tokenlife.parallel import Plan, PlanError, Plans, communication, data_parallel_ops, ddp_buckets
from tokenlife.parallel.memory import in_flight, memory
from tokenlife.parallel.ranks import AXES, AXIS_OF
from tokenlife.parallel.shards import hold, layers_on
from tokenlife.transformer import ModelConfig

SMALL = ModelConfig.from_hf(SIZES, "small")
GPT3 = replace(ModelConfig.load("gpt3-175b"), vocab=51200)  # padded, as Megatron does
DEEPSEEK = ModelConfig.load("deepseek-v3")


# ---- ranks ------------------------------------------------------------------------------


@st.composite
def plans(draw):
    tp, cp, dp, pp = (draw(st.integers(1, 4)) for _ in range(4))
    divisors = [d for d in range(1, tp * cp * dp + 1) if tp * cp * dp % d == 0]
    etp = draw(st.sampled_from(divisors))
    ep = draw(st.sampled_from([d for d in divisors if (tp * cp * dp) % (d * etp) == 0]))
    return Plan(
        tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp,
        ep_node=draw(st.sampled_from([d for d in range(1, ep + 1) if ep % d == 0])),
        replicate=draw(st.sampled_from([d for d in range(1, dp + 1) if dp % d == 0])),
        order=tuple(draw(st.permutations(AXES))),
    )  # fmt: skip


@settings(deadline=None)
@given(plans())
def test_ranks_and_coordinates_are_inverse_in_any_order(plan):
    assert [plan.rank(**plan.coordinates(r)) for r in range(plan.world)] == list(range(plan.world))


@settings(deadline=None)
@given(plans())
def test_groups_of_every_name_partition_the_ranks(plan):
    for name in AXIS_OF:
        groups = plan.groups(name)
        if name in ("pp_next", "pp_previous", "cp_next", "ends"):
            continue
        assert sorted(r for group in groups for r in group) == list(range(plan.world)), name
        assert {len(group) for group in groups} == {plan.size(name)}, name
        assert all(plan.group(name, r) == group for group in groups for r in group), name


@settings(deadline=None)
@given(plans())
def test_groups_lie_inside_each_other(plan):
    for rank in (0, plan.world - 1):
        at = plan.coordinates(rank)
        for outer, parts in (
            ("dp_cp", ("shard", "replicate")),
            ("ep", ("ep_intra", "ep_inter")),
        ):
            outside = set(plan.group(outer, rank))
            inside = [set(plan.group(part, rank)) for part in parts]
            assert all(part <= outside for part in inside)
            assert inside[0] & inside[1] == {rank}
            assert len(inside[0]) * len(inside[1]) == len(outside)
        stage = {r for r in range(plan.world) if plan.coordinates(r)["pp"] == at["pp"]}
        experts = [set(plan.group(name, rank)) for name in ("etp", "ep", "edp")]
        assert set.union(*experts) <= stage
        assert np.prod([len(group) for group in experts]) == len(stage)


@settings(deadline=None)
@given(plans())
def test_a_send_goes_to_the_next_stage_and_comes_back(plan):
    for rank in range(plan.world):
        _, to = plan.group("pp_next", rank)
        assert plan.group("pp_previous", to) == (to, rank)
        assert plan.coordinates(to) == plan.coordinates(rank) | {
            "pp": (plan.coordinates(rank)["pp"] + 1) % plan.pp
        }


def test_a_plan_of_any_size_is_read_or_refused_at_once():
    """To write all divisors down, as was done once, takes minutes for such numbers."""
    Plan(dp=10**9 + 7)
    with pytest.raises(PlanError, match="does not divide tp × cp × dp = 1; 1 would"):
        Plan(ep=10**12)


def test_llama_3_counts_pipeline_before_data():
    plan = Plan(tp=8, pp=16, dp=128, order=("tp", "cp", "pp", "dp"))
    assert plan.groups("pp")[0] == tuple(range(0, 128, 8))
    assert plan.groups("dp")[0] == tuple(range(0, 16384, 128))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tp": 3}, "tp=3 does not divide the 8 heads of small; 1, 2, 4 would"),
        ({"tp": 8}, "tp=8 does not divide the 4 key-value heads of small; 1, 2, 4 would"),
        ({"pp": 4}, "4 pipeline chunks are more than the 3 layers of small"),
        ({"dp": 2, "ep": 2}, "ep=2 does not divide the 1 experts of small; 1 would"),
        ({"sequence": 65}, "a sequence of 65 tokens is outside small's 1 to 64"),
        ({"sequence": 0}, "a sequence of 0 tokens is outside small's 1 to 64"),
        ({"cp": 3}, "a sequence of 32 tokens cannot be cut into 6 equal parts.* 36 can"),
        ({"cp": 8, "cp_method": "ulysses"}, "ulysses cannot deal 4 heads of keys to 8 ranks"),
        ({"gpus": 6, "dp": 4}, "tp 1 × cp 1 × dp 4 × pp 1 = 4 ranks, but there are 6 GPUs"),
        ({"dp": 4, "global_batch": 6}, "6 is no multiple of dp × micro-batch = 4; 8 would be"),
        ({"dp": 4, "replicate": 3}, "replicate=3 does not divide dp=4; 1, 2, 4 would"),
        ({"ep": 3, "dp": 4}, "ep × expert-tp = 3 does not divide tp × cp × dp = 4"),
        ({"zero": 4}, "zero must be 0 to 3, not 4"),
        ({"pp": 2, "virtual": 2}, "1f1b does not run 2 virtual stages"),
        ({"pp": 2, "virtual": 2, "schedule": "interleaved"}, "multiple of pp=2 micro-batches"),
        ({"schedule": "2f2b"}, "no schedule '2f2b'; known: gpipe, 1f1b"),
        ({"dp": True}, "dp must be a whole number above 0, not True"),
        ({"order": ("tp",)}, "order must name tp, cp, dp, pp once each"),
    ],
)
def test_what_cannot_be_gets_one_clear_line(given, says):
    gpus = given.pop("gpus", None)
    with pytest.raises(PlanError, match=says) as error:
        Plan(**{"sequence": LENGTH} | given).check(SMALL, gpus)
    assert "\n" not in str(error.value)


def test_mixtures_have_rules_of_their_own():
    with pytest.raises(PlanError, match="ep=7 does not divide the 256 experts of deepseek-v3"):
        Plan(dp=7, ep=7, sequence=32).check(DEEPSEEK)
    with pytest.raises(PlanError, match="need sequence parallelism"):
        Plan(tp=2, sequence=32).check(DEEPSEEK)
    with pytest.raises(PlanError, match="or a vocabulary padded to 50258"):
        Plan(tp=2, sequence=32).check(replace(GPT3, vocab=50257))


def test_a_plan_is_read_and_written():
    plan = Plan.parse("dp=4, tp=2,schedule=gpipe,order=tp-cp-pp-dp,sequence_parallel=1")
    assert plan == Plan(
        dp=4, tp=2, schedule="gpipe", order=("tp", "cp", "pp", "dp"), sequence_parallel=True
    )
    assert Plan.parse(str(Plan(dp=4, tp=2))) == Plan(dp=4, tp=2)


def test_layers_are_dealt_in_order_and_uneven_stages_are_allowed():
    llama = ModelConfig.load("llama-3.1-405b")
    for plan in (Plan(pp=16), Plan(pp=16, balance=True), Plan(pp=5, virtual=2, schedule="zb-v")):
        dealt = [layers_on(llama, plan, stage) for stage in range(plan.pp)]
        assert sum(layers.dense for layers in dealt) == llama.layers
        assert sum(layers.first for layers in dealt) == sum(layers.last for layers in dealt) == 1
    counts = [layers_on(llama, Plan(pp=16, balance=True), stage).dense for stage in range(16)]
    assert counts == [7, *[8] * 14, 7]  # Llama 3 took a layer from the first and the last stage
    assert layers_on(DEEPSEEK, Plan(pp=16), 0)[:2] == (3, 1)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral", "deepseek_v3", "qwen3_moe"])
def test_every_parameter_is_held_by_someone(family):
    config = replace(ModelConfig.from_hf(small_config(family), family), layers=4)
    plan = Plan(pp=2, tp=2, dp=2, ep=2, etp=1)
    experts = others = extra = 0
    for stage in range(2):
        held = hold(config, plan, stage)
        mine = held.parameters()
        whole = sum(unit.whole * unit.times for unit in held.units)
        experts += mine[0] * plan.ep
        others += (mine[1] - whole) * plan.tp + whole
        extra += held.layers.last * config.tied * config.vocab * config.hidden
    odd = config.vocab % 2  # rows that two ranks cannot share
    assert abs(experts + others - extra - count_parameters(config)) <= 2 * odd * config.hidden


# ---- equal to torch ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_calls():
    script = Path(__file__).with_name("parallel_calls.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def modelled(**plan) -> Counter:
    plan = Plan(**{"sequence": LENGTH, "micro_batch": BATCH, "recipe": "float32"} | plan)
    found = Counter()
    for op in communication(SMALL, plan):
        found[op.kind, op.bytes_] += op.count
    return found


def seen(calls) -> Counter:
    return Counter({(kind, bytes_): count for kind, bytes_, count in calls})


def test_ddp_fills_its_buckets_as_modelled(torch_calls):
    first, second, came = torch_calls["ddp"]
    assert first == [sum(came)], "torch sends everything at once in its first step"
    assert second == ddp_buckets(came[::-1], BUCKET_BYTES)
    assert len(second) > 5
    plan = Plan(dp=8, bucket_bytes=BUCKET_BYTES)
    ops = data_parallel_ops(plan, [size // 4 for size in came[::-1]])
    assert [op.bytes_ for op in ops] == second


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("zero 3", {"dp": 8, "zero": 3, "global_batch": 16 * BATCH}),
        ("zero 2", {"dp": 8, "zero": 2, "global_batch": 16 * BATCH}),
        ("hybrid", {"dp": 8, "zero": 3, "replicate": 2}),
        ("tensor", {"tp": 4, "global_batch": 2 * BATCH}),
    ],
)
def test_calls_and_bytes_are_equal_to_those_of_torch(torch_calls, name, plan):
    assert modelled(**plan) == seen(torch_calls[name])


@pytest.mark.parametrize(
    ("name", "plan", "times"),
    [
        ("sequence", {"tp": 4, "global_batch": 2 * BATCH}, 1),
        ("zero 3 x sequence", {"tp": 4, "dp": 2, "zero": 3, "global_batch": 4 * BATCH}, 2),
    ],
)
def test_sequence_parallel_calls_are_equal_but_for_joined_norms(torch_calls, name, plan, times):
    # Megatron sums the gradients of all norms in one call, torch in one for each norm.
    mine = modelled(sequence_parallel=True, regather=False, **plan)
    norm, norms = SMALL.hidden * 4, 2 * SMALL.layers + 1
    assert mine.pop(("all_reduce", norm * norms)) == times
    mine["all_reduce", norm] += norms * times
    assert mine == seen(torch_calls[name])


def test_torch_asks_more_where_each_product_has_its_own_input(torch_calls):
    mine, theirs = modelled(tp=4, global_batch=2 * BATCH), seen(torch_calls["one by one"])
    stream = BATCH * LENGTH * SMALL.hidden * 4
    three_more = 3 * SMALL.layers * 2  # query, key, value, gate, up: 5 sums backward, not 2
    assert theirs["all_reduce", stream] == mine["all_reduce", stream] + three_more


# ---- equal to the papers -----------------------------------------------------------------


def one(config, plan, rank=0, **wanted):
    ops = [
        op
        for op in communication(config, plan, rank)
        if all(getattr(op, name) == value for name, value in wanted.items())
    ]
    assert len(ops) == 1, ops
    return ops[0]


def test_megatron_tensor_parallel_volume():
    """SC'21, section 3.2: 8·b·s·h·(t − 1)/t numbers a layer, device and micro-batch."""
    b, s, h, t, layers = 2, 2048, GPT3.hidden, 8, 12
    plan = Plan(tp=t, pp=8, micro_batch=b, sequence=s)
    ops = communication(GPT3, plan, plan.rank(pp=3), axis="tp")
    sent = sum(2 * (t - 1) / t * op.items * op.count for op in ops)
    assert sent / layers == 8 * b * s * h * (t - 1) / t


def test_sequence_parallelism_moves_as_much_and_once_more_with_regather():
    """Korthikanti et al.: the volume of all-reduces, and one all-gather more backward."""
    plan = Plan(tp=8, pp=8, sequence=2048, sequence_parallel=True)
    rank = plan.rank(pp=3)

    def halves(plan):
        ops = communication(GPT3, plan, rank, axis="tp")
        return sum(op.count * (1 + (op.kind == "all_reduce")) for op in ops if op.bytes_ > 2**22)

    plain = halves(replace(plan, sequence_parallel=False))
    assert halves(replace(plan, regather=False)) == plain == 8 * 12
    assert halves(plan) == plain + 2 * 12


def test_megatron_pipeline_volume():
    """SC'21, sections 3.2 and 4.1: b·s·h numbers each way, v times interleaved, 1/t of it split."""
    b, s, h = 1, 2048, GPT3.hidden
    plan = Plan(tp=8, pp=8, micro_batch=b, sequence=s, global_batch=16)
    rank = plan.rank(pp=3)
    for phase in ("forward", "backward"):
        op = one(GPT3, plan, rank, axis="pp", kind="send", phase=phase)
        assert (op.items, op.count) == (b * s * h, 16)
        wide = replace(plan, virtual=3, schedule="interleaved")
        assert one(GPT3, wide, rank, axis="pp", phase=phase).count == 3 * 16
        split = replace(plan, sequence_parallel=True)
        assert one(GPT3, split, rank, axis="pp", phase=phase).items == b * s * h // 8


def test_first_and_last_stage_sum_a_tied_embedding():
    plan = Plan(tp=8, pp=8, sequence=2048)
    op = one(GPT3, plan, plan.rank(tp=2), axis="pp", kind="all_reduce")
    assert op.group == (2, plan.rank(tp=2, pp=7))
    assert op.items == GPT3.vocab * GPT3.hidden // 8
    assert not communication(GPT3, Plan(sequence=8))


@pytest.mark.parametrize(("zero", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_moves_two_or_three_times_the_parameters(zero, volume):
    """Rajbhandari et al., section 7: 2Ψ, and 3Ψ when weights are sharded too."""
    plan = Plan(dp=64, zero=zero, recipe="mixed", sequence=1024)
    parameters = hold(GPT3, plan, 0).parameters()[1]
    ops = communication(GPT3, plan, axis="dp")
    moved = sum(op.items * op.count * (1 + (op.kind == "all_reduce")) for op in ops)
    assert moved == volume * parameters


@pytest.mark.parametrize(
    ("ranks", "printed"),
    [
        (4, ("52.5", "41.3", "30")),
        (16, ("35.6", "21.6", "7.5")),
        (64, ("31.4", "16.6", "1.88")),
        (256, ("30.4", "15.4", "0.47")),
        (1024, ("30.1", "15.1", "0.12")),
    ],
)
def test_zero_memory_table(ranks, printed):
    """Rajbhandari et al., table 1, 7.5 billion parameters: GB for ZeRO 1, 2, 3 as printed."""
    gpt2 = ModelConfig.load("gpt2")
    scale = 7.5e9 / count_parameters(gpt2) / 1e9
    for zero, cell in enumerate(printed, 1):
        held = memory(gpt2, Plan(dp=ranks, zero=zero, recipe="mixed", sequence=1))
        digit = 10.0 ** -len(cell.partition(".")[2])
        states = (held["total"] - held["activations"]) * scale
        assert states == pytest.approx(float(cell), abs=0.51 * digit)


def test_megatron_memory_of_states():
    """Korthikanti et al., figure 1: 45.5625 GiB of parameters and optimiser, 175B on 8 × 8."""
    held = memory(GPT3, Plan(tp=8, pp=8, sequence=2048), stage=3)
    states = held["weights"] + held["gradients"] + held["optimiser"]
    # The figure counts matrices alone: 12·h² a layer, at 18 bytes.
    assert states / 2**30 == pytest.approx(45.5625, rel=5e-4)


def test_what_tensor_parallelism_leaves_whole_and_sequence_parallelism_splits():
    """Korthikanti et al., equations 2 and 4: sbh·(10 + 24/t + …), and all of it over t.

    Two of their ten bytes are dropout masks, which our layers do not have; instead they keep mean
    and deviation of both norms, in 32 bits.
    """

    def layer(**plan):
        plan = Plan(pp=8, sequence=2048, global_batch=64, attention="naive", **plan)
        return memory(GPT3, plan, 3)["activations"] / (12 * in_flight(plan, 3))

    alone, split, both = layer(), layer(tp=8), layer(tp=8, sequence_parallel=True)
    whole = (8 * split - alone) / 7
    assert whole == 2048 * (8 * GPT3.hidden + 2 * 2 * 4)
    assert both == alone / 8


def test_recomputation_drops_the_core_or_all_but_the_stream():
    plan = Plan(tp=8, pp=8, sequence=2048, global_batch=64, attention="naive", micro_batch=2)
    none, selective, full = (
        memory(GPT3, replace(plan, recompute=how), 3)["activations"]
        for how in ("none", "selective", "full")
    )
    layers, rows = 12 * in_flight(plan, 3), 2 * GPT3.attention.heads // 8 * 2048
    assert none - selective == (layers - 1) * rows * 2048 * 2  # one layer's core is whole again
    stream = 2 * 2048 * GPT3.hidden * 2
    assert full == layers * stream + none // layers - stream


@pytest.mark.parametrize(("cp", "dp", "sequence"), [(1, 128, 8192), (16, 8, 131072)])
def test_llama_3_layouts(cp, dp, sequence):
    """Llama 3, table 4: 16,384 GPUs and 16M tokens a step, in both."""
    config = ModelConfig.load("llama-3.1-405b")
    plan = Plan(
        tp=8, cp=cp, pp=16, dp=dp, sequence=sequence, global_batch=16 * dp, zero=2,
        sequence_parallel=True, balance=True, order=("tp", "cp", "pp", "dp"),
    )  # fmt: skip
    assert plan.check(config, 16384).tokens_per_step == 2**24
    if cp == 1:
        assert not communication(config, plan, axis="cp")
        return
    # Keys and values are gathered whole: 2 · 8 heads · 128 numbers a token, split over tp.
    op = one(config, plan, plan.rank(pp=3), axis="cp", phase="forward")
    assert op.bytes_ == sequence * 2 * 8 * 128 * 2 // 8
    assert (op.kind, len(op.group), op.count) == ("all_gather", 16, 8 * plan.micro_batches)


def test_ring_attention_hops():
    plan = Plan(cp=4, cp_method="ring", sequence=64)
    block = 2 * 4 * 8 * 16  # keys and values, 4 heads, 8 numbers, 64 / 4 tokens
    ops = communication(SMALL, plan, 3, axis="cp")
    assert {op.group for op in ops} == {(3, 0)} and {op.items for op in ops} == {block}
    hops = [(op.phase, op.count // SMALL.layers) for op in ops]
    assert hops == [("forward", 3), ("backward", 3), ("backward", 4)]


def test_ulysses_changes_heads_for_tokens():
    plan = Plan(cp=4, cp_method="ulysses", sequence=64)
    ops = communication(SMALL, plan, axis="cp")
    per_token = SMALL.attention.head_dim * (8 + 4 + 4 + 8)
    forward = [op for op in ops if op.phase == "forward"]
    assert sum(op.items for op in forward) == 64 // 4 * per_token
    assert {op.kind for op in ops} == {"all_to_all"} and len(ops) == 8


def test_deepseek_dispatch_and_combine():
    """Zhao et al. 2025, section 2.3.2: (1 B + 2 B) · 32 tokens · 9 experts · 7K in 120.96 µs.

    Their nine are eight routed and one shared; their 7K are 7,000 of 7,168.
    """
    plan = Plan(dp=64, ep=64, dispatch="fp8", sequence=32)
    dispatch, combine = (
        one(DEEPSEEK, plan, axis="ep", phase="forward", after=after)
        for after in ("dispatch", "combine")
    )
    assert dispatch.bytes_ == 32 * 8 * 7168 and combine.bytes_ == 2 * dispatch.bytes_
    both = (dispatch.bytes_ + combine.bytes_) * 9 / 8 * 7000 / 7168
    assert both / 50e9 == pytest.approx(120.96e-6, rel=1e-9)
    assert dispatch.count == DEEPSEEK.layers - DEEPSEEK.moe.first_dense


def test_node_limited_routing_sends_a_token_once_to_a_node():
    plan = Plan(dp=64, ep=64, ep_node=8, sequence=4096)
    ops = communication(DEEPSEEK, plan, axis="ep")
    across = [op for op in ops if len(op.group) == 8 and op.group[1] == 8]
    inside = [op for op in ops if op.group == tuple(range(8))]
    assert len(across) == len(inside) == 4
    assert {op.items for op in across} == {4096 * 7168 * DEEPSEEK.moe.top_groups}
    assert {op.items for op in inside} == {4096 * 7168 * 8}


def test_split_experts_gather_what_they_receive():
    config = ModelConfig.load("mixtral-8x7b")
    plan = Plan(tp=2, dp=4, ep=4, sequence=64, sequence_parallel=True)
    ops = [op for op in communication(config, plan, axis="ep") if op.phase == "forward"]
    kinds = {op.kind: op.items for op in ops}
    visits = 64 // 2 * config.moe.top_k * config.hidden
    assert kinds == {
        "all_to_all": visits, "all_gather": 2 * visits, "reduce_scatter": 2 * visits,
    }  # fmt: skip
    assert [op.group for op in ops if op.kind == "all_to_all"] == [(0, 2, 4, 6)] * 2


# ---- any plan ----------------------------------------------------------------------------


@st.composite
def jobs(draw):
    config = draw(st.sampled_from((SMALL, replace(SMALL, layers=8, tied=True), MIXTURE)))
    tp, cp, dp = (draw(st.sampled_from((1, 2))) for _ in range(3))
    pp = draw(st.sampled_from((1, 2, 3)))
    return config, Plan(
        tp=tp, cp=cp, dp=dp, pp=pp, zero=draw(st.integers(0, 3)),
        ep=draw(st.sampled_from((1, 2))) if config is MIXTURE and dp * cp > 1 else 1,
        micro_batch=draw(st.sampled_from((1, 2))), global_batch=2 * dp * 2 * pp, sequence=32,
        sequence_parallel=config is MIXTURE or draw(st.booleans()),
        cp_method=draw(st.sampled_from(("ring", "all_gather"))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        schedule=draw(st.sampled_from(("1f1b", "gpipe", "zb-h1"))),
        bucket_bytes=draw(st.sampled_from((0, 10_000))),
    )  # fmt: skip


MIXTURE = ModelConfig.from_hf(
    SIZES | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}, "mixture"
)


@settings(deadline=None)
@given(jobs())
def test_members_of_a_group_ask_for_the_same(job):
    config, plan = job
    for axis in ("tp", "cp", "ep", "dp"):
        asked = {rank: communication(config, plan, rank, axis) for rank in range(plan.world)}
        for rank, ops in asked.items():
            for op in ops:
                assert rank in op.group
                if op.kind != "send":
                    assert all(op in asked[other] for other in op.group)


@settings(deadline=None)
@given(jobs())
def test_what_one_stage_sends_forward_the_next_sends_back(job):
    config, plan = job
    sends = [op for r in range(plan.world) for op in communication(config, plan, r, "pp")]
    forward = Counter({op.group: op.bytes_ * op.count for op in sends if op.phase == "forward"})
    back = {op.group[::-1]: op.bytes_ * op.count for op in sends if op.kind == "send"
            and op.phase == "backward"}  # fmt: skip
    assert forward == back


@settings(deadline=None)
@given(jobs())
def test_more_sharding_never_holds_more(job):
    config, plan = job
    held = [memory(config, replace(plan, zero=zero))["total"] for zero in range(4)]
    assert held == sorted(held, reverse=True)
    kept = [
        memory(config, replace(plan, recompute=how))["activations"]
        for how in ("none", "selective", "full")
    ]
    assert kept[1] <= kept[0]


@settings(deadline=None)
@given(st.lists(jobs(), min_size=1, max_size=4))
def test_many_plans_are_legal_exactly_where_one_is(found):
    config = found[0][0]
    columns = {
        name: [getattr(plan, name) for _, plan in found]
        for name in ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "global_batch")
    }
    columns["tp"] = [tp * 3 if i % 2 else tp for i, tp in enumerate(columns["tp"])]
    legal = Plans(**columns, sequence=32, sequence_parallel=True).legal(config)
    for i, verdict in enumerate(legal):
        values = {name: values[i] for name, values in columns.items()}
        try:
            Plan(**values, sequence=32, sequence_parallel=True).check(config)
            assert verdict
        except PlanError:
            assert not verdict
