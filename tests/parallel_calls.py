"""What torch's own parallel machinery calls: one process stands for rank 0 of a larger job.

Run as a script: prints JSON, for each strategy a list of [kind, bytes of the whole buffer, calls].
Torch's fake process group moves nothing, so only the calls mean something.
"""

import json
import sys
import warnings
from collections import Counter

import torch
import torch.distributed as dist
from small_configs import SMALL_LLAMA
from tokenlife.lab import strategies
from tokenlife.lab.calls import Calls
from tokenlife.transformer import ModelConfig
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

SIZES = SMALL_LLAMA | {"num_hidden_layers": 3}
BATCH, LENGTH, BUCKET_BYTES = 2, 32, 50_000


CONFIG = ModelConfig.from_hf(SIZES, "small")


def calls(run) -> list:
    with Calls() as calls:
        run()
    seen = Counter()
    for (kind, _, size), count in calls.seen.items():
        seen[kind, size] += count
    return sorted([*key, count] for key, count in seen.items())


def loss(network):
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    return network(ids).sum()


def ddp() -> list:
    """Buckets of torch's first step and of its second; bytes of gradients as they come."""
    network = strategies.replicated(strategies.model(CONFIG), BUCKET_BYTES)
    seen, came = [], []
    for weight in network.parameters():
        weight.register_post_accumulate_grad_hook(lambda w: came.append(w.numel() * w.itemsize))

    def hook(state, bucket):
        seen.append(bucket.buffer().numel() * bucket.buffer().element_size())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    network.register_comm_hook(None, hook)
    steps = []
    for _ in range(2):
        seen.clear(), came.clear()
        loss(network).backward()
        steps.append(list(seen))
    return [*steps, came]


def fsdp(zero: int, shape: tuple[int, ...], micro_batches: int) -> list:
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    network = strategies.sharded(strategies.model(CONFIG), mesh, zero)
    network.set_reshard_after_backward(zero == 3)

    def step():
        for _ in range(micro_batches):
            loss(network).backward()

    return calls(step)


def tensor(sequence: bool, tp: int, micro_batches: int, at_once: bool = True, dp: int = 1) -> list:
    """Tensor parallelism; ``at_once``: one input for all column-split products of a block."""
    grid = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    network = strategies.split(strategies.model(CONFIG), grid["tp"], sequence, at_once)
    if dp > 1:
        strategies.sharded(network, grid["dp"], zero=3)
    ids = torch.zeros(BATCH, LENGTH + 1, dtype=torch.long)

    def step():
        for _ in range(micro_batches):
            strategies.step(network, ids)
        strategies.finish_gradients(network)

    return calls(step)


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = {}
    for name, world, run in (
        ("ddp", 8, ddp),
        ("zero 3", 8, lambda: fsdp(3, (8,), 2)),
        ("zero 2", 8, lambda: fsdp(2, (8,), 2)),
        ("hybrid", 8, lambda: fsdp(3, (2, 4), 1)),
        ("tensor", 4, lambda: tensor(False, 4, 2)),
        ("one by one", 4, lambda: tensor(False, 4, 2, at_once=False)),
        ("sequence", 4, lambda: tensor(True, 4, 2)),
        ("zero 3 x sequence", 8, lambda: tensor(True, 4, 2, dp=2)),
    ):
        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
        found[name] = run()
        dist.destroy_process_group()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
