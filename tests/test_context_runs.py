"""Chapter 10 in the lab: attention across ranks is one process's, calls and bytes the library's."""

import pytest
from chapter import functions
from small_configs import SMALL_LLAMA
from tokenlife.lab.gloo import gloo_sends
from tokenlife.parallel import Plan, communication
from tokenlife.transformer import ModelConfig

RANKS, LENGTH = 4, 512
SIZES = SMALL_LLAMA | {"max_position_embeddings": LENGTH, "tie_word_embeddings": True}
cells = functions("10_context_parallel")
METHODS = {"ring": True, "all_gather": True, "ulysses": False}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 8])
def test_output_and_gradients_are_those_of_one_process(team, method, balanced, kv_heads):
    if method == "ulysses" and balanced:
        pytest.skip("Ulysses takes the sequence in one order")
    shape = [2, 8, kv_heads, 128, 8]
    found = team.call(cells.compare, method=method, balanced=balanced, shape=shape, dtype="float64")
    assert max(max(rank.values()) for rank in found) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_a_step_of_a_model_its_calls_and_its_bytes(team, method):
    ids = [[(7 * i * i + 3 * i) % 128 for i in range(LENGTH + 1)]]
    found = team.call(
        cells.train_step, sizes=SIZES, ids=ids, method=method, balanced=METHODS[method]
    )
    config = ModelConfig.from_hf(SIZES, "small")
    plan = Plan(cp=RANKS, cp_method=method, sequence=LENGTH, recipe="float32", regather=False)
    for rank, one in enumerate(found):
        assert one["loss"] == pytest.approx(one["alone"], rel=1e-6)
        assert one["gradient"] < 1e-5
        wanted = {}
        for op in communication(config, plan, rank, axis="cp"):
            key = op.kind, op.group, op.bytes_
            wanted[key] = wanted.get(key, 0) + op.count
        seen = {(c["kind"], tuple(c["group"]), c["bytes"]): c["count"] for c in one["calls"]}
        assert seen == wanted
        payload = 0
        for (kind, group, size), count in wanted.items():
            sends = sum(gloo_sends(kind, len(group), size))
            # Along a ring of sends, for each message that leaves, one comes.
            payload += count * (sends.sum() if kind == "send" else sends[rank])
        assert one["payload_bytes"] == pytest.approx(payload, rel=0.005)


def test_zig_zag_gives_all_ranks_the_same_work(team):
    shape = [1, 2, 1, 256, 8]
    even, uneven = (
        [r["flops"] for r in team.call(cells.work, balanced=b, shape=shape, repeats=1)]
        for b in (True, False)
    )
    assert len(set(even)) == 1
    assert [flops / uneven[0] for flops in uneven] == [1, 2, 3, 4]
