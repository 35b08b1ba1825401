"""Chapter 09's pipelines, run on ranks: loss, gradients, calls and bytes; its own functions."""

import pytest
from chapter import functions
from tokenlife import lab
from tokenlife.lab.result import GLOO_HEADER
from tokenlife.parallel import Plan, communication
from tokenlife.parallel.schedules import pipeline_schedule
from tokenlife.transformer import ModelConfig

SIZES = {
    "model_type": "llama", "num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128,
    "max_position_embeddings": 32, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
SMALL = ModelConfig.from_hf(SIZES, "small")
ROWS, LENGTH, TOLERANCE = 2, 32, 1e-5  # of 32-bit sums in another order
EDGES = {2: [0, 3, 5], 4: [0, 2, 3, 4, 5]}  # as the library deals layers: the first chunks larger


@pytest.fixture(scope="module")
def page():
    return functions("09_pipeline_parallel")


@pytest.fixture(scope="module")
def pair():
    with lab.VirtualCluster(2) as cluster, lab.Team(cluster) as team:
        yield team


def ids(rows: int) -> list[list[int]]:
    return [[(7 * r + 3 * i * i + i) % 128 for i in range(LENGTH + 1)] for r in range(rows)]


def plan_of(name: str, stages: int, micro_batches: int, **others) -> Plan:
    asked = {"global_batch": ROWS * micro_batches, "virtual": chunks(name)} | others
    return Plan(
        pp=stages, schedule=name, micro_batch=ROWS, sequence=LENGTH, recipe="float32", **asked
    )


def chunks(name: str) -> int:
    return 2 if name in ("interleaved", "zb-v") else 1


def foretold(plan: Plan, rank: int) -> dict:
    calls = {}
    for op in communication(SMALL, plan, rank):
        key = op.kind, op.group, op.bytes_
        calls[key] = calls.get(key, 0) + op.count
    return calls


def seen(found: dict) -> dict:
    return {(c["kind"], tuple(c["group"]), c["bytes"]): c["count"] for c in found["calls"]}


def check(on_each: list[dict], plan: Plan) -> None:
    """Hold loss, gradients, calls and the bytes of sends on all ranks."""
    assert sum(f["loss"] for f in on_each) == pytest.approx(on_each[0]["alone"], rel=TOLERANCE)
    calls = [foretold(plan, rank) for rank in range(len(on_each))]
    for rank, found in enumerate(on_each):
        assert found["gradient"] <= TOLERANCE
        assert seen(found) == calls[rank]
        out = sum(calls[rank].values())
        comes = sum(n for each in calls for (_, group, _), n in each.items() if group[1] == rank)
        data = sum(bytes_ * n for (_, _, bytes_), n in calls[rank].items())
        assert found["payload_bytes"] == data + GLOO_HEADER * (2 * out + comes)


@pytest.mark.parametrize(("name", "micro_batches"), [("gpipe", 3), ("1f1b", 3), ("interleaved", 4)])
@pytest.mark.parametrize("early", [True, False])
def test_the_pages_pipeline_is_one_process(page, pair, name, micro_batches, early):
    found = pair.call(
        page.train_step, sizes=SIZES, ids=ids(ROWS * micro_batches), early=early, repeats=1,
        schedule=pipeline_schedule(name, 2, micro_batches), edges=EDGES[2 * chunks(name)],
    )  # fmt: skip
    check(found, plan_of(name, 2, micro_batches))
    assert all(len(logs) == 2 * micro_batches * chunks(name) for f in found for logs in f["logs"])


def test_a_layer_left_out_is_noticed(page, pair):
    found = pair.call(
        page.train_step, sizes=SIZES, ids=ids(4), schedule=pipeline_schedule("1f1b", 2, 2),
        edges=[1, 3, 5],
    )  # fmt: skip
    assert max(each["gradient"] for each in found) > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("theirs", "name"),
    [("1F1B", "1f1b"), ("InterleavedZeroBubble", "interleaved"), ("ZBVZeroBubble", "zb-v"),
     ("DualPipeV", "zb-v")],
)  # fmt: skip
def test_torchs_pipelines_send_what_the_library_says(page, pair, theirs, name):
    found = pair.call(
        page.torch_step, sizes=SIZES, ids=ids(ROWS * 4), name=theirs, micro=4,
        edges=EDGES[2 * chunks(name)], folded=name == "zb-v",
    )  # fmt: skip
    check(found, plan_of(name, 2, 4))
    for each in found:  # the first step also votes (4 bytes) and describes shapes (8, and more)
        more = {k: n - seen(each).get(k, 0) for k, n in seen(each["first"]).items()}
        more = {bytes_: n for (_, _, bytes_), n in more.items() if n}
        borders = more.pop(4)
        assert more.pop(8) == borders == sum(more.values())
        assert all(100 < bytes_ < 300 for bytes_ in more)


def test_with_data_and_with_tensor_parallelism(page):
    with lab.VirtualCluster(4) as cluster, lab.Team(cluster) as team:
        for axis, micro in (("dp", 2), ("tp", 4)):
            found = team.call(
                page.combined_step, sizes=SIZES, ids=ids(ROWS * 4), micro=micro, edges=EDGES[2],
                axis=axis,
            )  # fmt: skip
            plan = plan_of("1f1b", 2, 4, **{axis: 2})
            for rank, each in enumerate(found):
                assert each["gradient"] <= TOLERANCE
                assert seen(each) == foretold(plan, rank)
            last = [each["loss"] for each in found[2:]]
            loss = sum(last) if axis == "dp" else last[0]
            assert loss == pytest.approx(found[0]["alone"], rel=TOLERANCE)
