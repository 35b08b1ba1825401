"""Chapter 08's tensor parallelism, run on ranks: its own functions, calls, bytes and memory."""

from collections import Counter
from dataclasses import replace

import pytest
from chapter import functions
from small_configs import SMALL_LLAMA
from tokenlife import lab
from tokenlife.lab.gloo import gloo_seconds, gloo_sends_of
from tokenlife.parallel import Plan, communication
from tokenlife.parallel.memory import memory
from tokenlife.transformer import ModelConfig

SIZES = SMALL_LLAMA | {"head_dim": 8}
SMALL = ModelConfig.from_hf(SIZES, "small")
ROWS, LENGTH = 2, 32
IDS = [[(7 * r + 3 * i * i + i) % 128 for i in range(LENGTH + 1)] for r in range(ROWS)]
BLOCK = {"hidden": 48, "width": 96, "heads": 8}


@pytest.fixture(scope="module")
def page():
    return functions("08_tensor_parallel")


@pytest.fixture(scope="module")
def pair():
    try:
        with lab.VirtualCluster(2) as cluster, lab.Team(cluster) as team:
            yield team
    except lab.LabUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=[2, 4])
def ranks(request, pair, team):
    return {2: pair, 4: team}[request.param], request.param


def plan_of(tp: int, sequence: bool, **others) -> Plan:
    return Plan(
        tp=tp, sequence_parallel=sequence, regather=False, sequence=LENGTH, micro_batch=ROWS,
        recipe="float32", **others,
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_two_functions_make_split_blocks_whole(page, ranks, dtype, tolerance):
    team, _ = ranks
    for found in team.call(page.halves, **BLOCK, kv_heads=4, dtype=dtype):
        for block in ("mlp", "attention"):
            assert max(found[block]["errors"].values()) <= tolerance
            # One sum of the stream forward and one backward, and none for the weights.
            assert [call["count"] for call in found[block]["calls"]] == [2]


def test_ranks_that_share_a_head_of_keys_owe_one_more_sum(page, team):
    for found in team.call(page.halves, **BLOCK, kv_heads=2, dtype="float64"):
        errors = found["attention"]["errors"]
        assert min(errors.pop("key"), errors.pop("value")) > 0.01
        assert max(errors.values()) <= 1e-12 and {"key, summed", "value, summed"} <= set(errors)


def seen(found: dict) -> Counter:
    return Counter(
        {(phase, c["kind"], tuple(c["group"]), c["bytes"]): c["count"]
         for phase in ("forward", "backward") for c in found[phase]}
    )  # fmt: skip


@pytest.mark.parametrize("sequence", [False, True])
def test_each_phase_calls_what_the_library_says(page, ranks, sequence):
    team, tp = ranks
    norms = 2 * SMALL.layers + 1
    for rank, found in enumerate(team.call(page.split_step, sizes=SIZES, ids=IDS,
                                           sequence=sequence)):  # fmt: skip
        assert found["loss"] == pytest.approx(found["alone"], rel=1e-6)
        assert found["gradient"] < 2e-5
        wanted = Counter()
        for op in communication(SMALL, plan_of(tp, sequence), rank):
            parts = norms if op.after == "the gradients" else 1  # PyTorch sums norm by norm
            wanted[op.phase, op.kind, op.group, op.bytes_ // parts] += op.count * parts
        assert seen(found) == wanted
        calls = found["forward"] + found["backward"]
        assert found["payload_bytes"] == sum(gloo_sends_of(calls, rank))


def test_products_that_each_prepare_their_input_sum_more_and_compute_the_same(page, team):
    shared, each = (
        team.call(page.split_step, sizes=SIZES, ids=IDS, sequence=False, at_once=at_once)[0]
        for at_once in (True, False)
    )
    more = seen(each) - seen(shared)
    stream = 4 * ROWS * LENGTH * SMALL.hidden
    assert more == {("backward", "all_reduce", (0, 1, 2, 3), stream): 3 * SMALL.layers}
    assert each["loss"] == pytest.approx(shared["loss"], rel=1e-6) and each["gradient"] < 2e-5


@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_keeps_what_the_library_says(page, ranks, sequence):
    team, tp = ranks
    few, many = (
        team.call(page.kept_bytes, sizes=SIZES, ids=IDS, sequence=sequence, layers=layers)
        for layers in (1, 2)
    )
    modelled = [
        int(memory(replace(SMALL, layers=n), plan_of(tp, sequence))["activations"]) for n in (1, 2)
    ]
    assert {b - a for a, b in zip(few, many, strict=True)} == {modelled[1] - modelled[0]}


def test_the_work_alone_is_that_of_one_rank_and_sends_nothing(page, pair):
    halved = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    thin = SIZES | {key: SIZES[key] // 2 for key in halved}
    times = pair.call(
        page.timed_steps, sizes=SIZES, thin=thin, sequences=1, ways={"tensor": False}, repeats=2
    )
    assert all(len(t) == 2 and min(t) > 0 for one in times for t in one.values())
    calls = {"all_reduce", "all_gather", "reduce_scatter"}
    assert set(times[0]) == calls | {"tensor, own", "tensor, all"}


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_call_takes_its_bytes_in_frames_over_the_rate(kind):
    rate_bps, bytes_ = 1e8, 8_000_000
    payload = bytes_ * (1 if kind != "all_gather" else 0.5)
    least = 8 * payload / rate_bps
    # At full frames headers are 66 bytes on 1,448; a link also carries acknowledgements.
    assert 1.04 * least < gloo_seconds(kind, 2, bytes_, rate_bps) < 1.09 * least
    assert (
        gloo_seconds(kind, 2, bytes_, 2 * rate_bps) == gloo_seconds(kind, 2, bytes_, rate_bps) / 2
    )
