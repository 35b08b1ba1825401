"""PyTorch's strategies really run: they compute what one process does, and send what we say."""

from collections import Counter

import pytest
from tokenlife import lab
from tokenlife.lab.gloo import gloo_sends
from tokenlife.parallel import Plan, communication
from tokenlife.parallel.data import data_parallel_ops
from tokenlife.transformer import ModelConfig

RANKS, BATCH, LENGTH, BUCKET_BYTES = 4, 8, 64, 60_000
SIZES = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 128,
    "max_position_embeddings": LENGTH, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
SMALL = ModelConfig.from_hf(SIZES, "small")
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


@pytest.fixture(scope="module")
def team():
    try:
        with lab.VirtualCluster(RANKS) as cluster, lab.Team(cluster) as team:
            yield team
    except lab.LabUnavailable as error:
        pytest.skip(str(error))


def train(here, sizes, ids, plan, bucket_bytes):
    """Take a step with a strategy, on this rank's part of the batch; then the whole step alone."""
    import contextlib

    import torch
    import torch.distributed as dist
    from tokenlife.lab import strategies
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer import ModelConfig
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.nn.functional import cross_entropy

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

    def step(model, ids):
        with loss_parallel() if tp > 1 and model is network else contextlib.nullcontext():
            logits = model(ids[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
        return loss.detach()

    for _ in range(2):  # DDP learns in which order gradients come, then makes its buckets
        step(network, mine)
        network.zero_grad()
        came.clear()
    with here.counted() as sent, Calls() as calls:
        loss = step(network, mine)
        strategies.finish_gradients(network)
    if isinstance(loss, DTensor):
        loss = loss.full_tensor()
    loss = loss.clone()
    dist.all_reduce(loss)
    alone = strategies.model(config)
    right = step(alone, ids)
    errors = {
        name: float((grad - alone.get_parameter(name).grad).abs().max())
        / float(alone.get_parameter(name).grad.abs().max())
        for name, grad in strategies.whole_gradients(network).items()
    }
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
    found = team.call(train, sizes=SIZES, ids=ids, plan=asked, bucket_bytes=BUCKET_BYTES)
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
        payload = sum(
            count * int(sum(gloo_sends(kind, len(group), size))[group.index(rank)])
            for (kind, group, size), count in seen.items()
        )
        assert one["payload_bytes"] == payload
