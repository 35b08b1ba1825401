"""PyTorch's strategies really run: they compute what one process does, and send what we say."""

from collections import Counter

import pytest
from small_configs import SMALL_LLAMA
from tokenlife.lab.gloo import gloo_sends_of
from tokenlife.parallel import Plan, communication
from tokenlife.parallel.data import data_parallel_ops
from tokenlife.transformer import ModelConfig

RANKS, BATCH, LENGTH, BUCKET_BYTES = 4, 8, 64, 60_000
SMALL = ModelConfig.from_hf(SMALL_LLAMA, "small")
STRATEGIES = {
    "ddp": {"dp": 4},
    "zero 2": {"dp": 4, "zero": 2},
    "zero 3": {"dp": 4, "zero": 3},
    "hybrid": {"dp": 4, "zero": 3, "replicate": 2},
    "tensor": {"tp": 4},
    "sequence": {"tp": 4, "sequence_parallel": True, "regather": False},
    "zero 3 x tensor": {"dp": 2, "tp": 2, "zero": 3},
    "zero 3 x sequence": {
        "dp": 2, "tp": 2, "zero": 3, "sequence_parallel": True, "regather": False,
    },
}  # fmt: skip


def train(here, sizes, ids, plan, bucket_bytes):
    """Take a step with a strategy, on this rank's part of the batch; then the whole step alone."""
    import torch
    import torch.distributed as dist
    from tokenlife.lab import strategies
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer import ModelConfig
    from torch.distributed.device_mesh import init_device_mesh

    config, ids = ModelConfig.from_hf(sizes, "small"), torch.tensor(ids)
    dp, tp, zero, copies = (plan.get(k, 1) for k in ("dp", "tp", "zero", "replicate"))
    grid = init_device_mesh(
        "cpu", (copies, dp // copies, tp), mesh_dim_names=("replicate", "shard", "tp")
    )
    rows, part = len(ids) // dp, here.rank // tp
    mine = ids[rows * part : rows * (part + 1)]
    network = strategies.model(config)
    if tp > 1:
        strategies.split(network, grid["tp"], plan.get("sequence_parallel", False))
    if zero >= 2:
        axes = ("replicate", "shard") if copies > 1 else "shard"
        strategies.sharded(network, grid[axes], zero)
    elif dp > 1:
        network = strategies.replicated(network, bucket_bytes)
    came = []
    for weight in network.parameters():
        weight.register_post_accumulate_grad_hook(lambda w: came.append(w.numel()))

    for _ in range(2):  # DDP learns in which order gradients come, then makes its buckets
        strategies.step(network, mine)
        network.zero_grad()
        came.clear()
    with here.counted() as sent, Calls() as calls:
        loss = strategies.step(network, mine)
        strategies.finish_gradients(network)
    dist.all_reduce(loss)
    alone = strategies.model(config)
    right = strategies.step(alone, ids)
    errors = strategies.gradient_errors(network, alone)
    return {
        "loss": float(loss) / here.ranks, "alone": float(right), "errors": errors,
        "calls": calls.rows(), "came": came, **sent,
    }  # fmt: skip


def sum_each_norm_for_itself(wanted):
    """Megatron sums the gradients of all norms in one call, PyTorch in one for each norm."""
    norm, norms = SMALL.hidden * 4, 2 * SMALL.layers + 1
    for kind, group, size in list(wanted):
        if size == norm * norms:
            wanted[kind, group, norm] += norms * wanted.pop((kind, group, size))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_computes_the_same_and_sends_what_the_library_says(team, name):
    asked = STRATEGIES[name]
    ids = [[(7 * i * i + 3 * i * b + b) % 128 for i in range(LENGTH + 1)] for b in range(BATCH)]
    found = team.call(train, sizes=SMALL_LLAMA, ids=ids, plan=asked, bucket_bytes=BUCKET_BYTES)
    plan = Plan(
        **asked, sequence=LENGTH, micro_batch=BATCH // asked.get("dp", 1), recipe="float32",
        bucket_bytes=BUCKET_BYTES,
    )  # fmt: skip
    for rank, one in enumerate(found):
        assert one["loss"] == pytest.approx(one["alone"], rel=1e-6)
        assert len(one["errors"]) == 3 + 9 * SMALL.layers
        assert max(one["errors"].values()) < 2e-5
        seen = Counter()
        for call in one["calls"]:
            seen[call["kind"], tuple(call["group"]), call["bytes"]] += call["count"]
        wanted = Counter()
        ops = communication(SMALL, plan, rank)
        if name == "ddp":  # its buckets follow the order in which gradients come
            ops = data_parallel_ops(plan, one["came"][::-1])
        for op in ops:
            wanted[op.kind, op.group, op.bytes_] += op.count
        if asked.get("sequence_parallel"):
            sum_each_norm_for_itself(wanted)
        assert seen == wanted
        assert one["payload_bytes"] == sum(gloo_sends_of(one["calls"], rank))
