"""Chapter 11 in the lab: a mixture whose experts lie on four ranks, beside one process."""

import numpy as np
import pytest
from chapter import functions
from tokenlife.lab.result import GLOO_HEADER
from tokenlife.parallel import Plan, communication
from tokenlife.transformer import ModelConfig

RANKS, ROWS, LENGTH = 4, 3, 32
SIZES = {
    "model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "vocab_size": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
cells = functions("11_expert_parallel")


@pytest.fixture(scope="module")
def found(team):
    ids = [(7 * i * i + 3 * i) % 128 for i in range(2000)]
    return team.call(
        cells.train, sizes=SIZES, ids=ids, steps=8, rate=3e-3, balance=0.0, length=LENGTH, rows=ROWS
    )


def _visits(found) -> np.ndarray:
    """Visits of the last step: (layers, from rank, to rank)."""
    return np.array([rank["counts"][-1] for rank in found]).sum(-1).transpose(1, 0, 2)


def test_loss_and_gradients_are_those_of_one_process(found):
    for rank in found:
        assert rank["losses"][-1] == pytest.approx(rank["alone"], rel=1e-6)
        assert rank["gradient"] < 1e-5
        assert rank["losses"][-1] < rank["losses"][0]


def test_calls_are_the_library_s_and_their_mean_is_the_even_volume(found):
    config = ModelConfig.from_hf(SIZES, "small mixture")
    plan = Plan(dp=RANKS, ep=RANKS, micro_batch=ROWS, sequence=LENGTH, recipe="float32")
    ops = communication(config, plan, axis="ep")
    (even,) = {op.bytes_ for op in ops}
    visits = _visits(found)
    assert visits.std(axis=1).max() > 0  # somebody is preferred: else the test says nothing
    calls = []
    for rank, one in enumerate(found):
        seen = [c["bytes"] for c in one["calls"] for _ in range(c["count"])]
        for _ in range(config.layers):
            seen.remove(config.moe.experts * 8)  # the numbers of rows
        assert len(seen) == sum(op.count for op in ops)
        leave = [n * 256 for m in visits for n in 2 * [m[rank].sum(), m[:, rank].sum()]]
        assert sorted(seen) == sorted(leave)
        calls += seen
    assert np.mean(calls) == even


def test_the_sockets_carry_the_visits_that_leave(found):
    for rank, one in enumerate(found):
        visits = sum(2 * (m[rank].sum() + m[:, rank].sum() - 2 * m[rank, rank])
                     for m in _visits(found))  # fmt: skip
        layers, others, own = 2, RANKS - 1, 2
        payload = visits * 256 + layers * others * own * 8
        payload += layers * 5 * others * 3 * GLOO_HEADER
        assert one["payload_bytes"] == pytest.approx(payload, rel=0.005)
