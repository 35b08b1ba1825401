"""PyTorch's own parallelism on our decoder: one call for each strategy.

Each function changes a model in place, as PyTorch's users would, and what it then sends is what is
to be compared with :mod:`tokenlife.parallel`. Nothing here communicates by code of ours.

Left out: pipelines, whose stages chapter 9 cuts, and what PyTorch does not offer on a CPU.
"""

from dataclasses import replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder


class HookedDecoder(Decoder):
    """Our decoder, whose head calls its module, so that PyTorch's hooks see it."""

    def head(self, x):
        """Return the logits of the last stream."""
        return self.unembedding(self.final_norm(x))


def model(config: ModelConfig, seed: int = 0) -> HookedDecoder:
    """Return a decoder with the same random weights on every rank.

    Parameters
    ----------
    config
        Whose embeddings must not be tied: their gradient would be two strategies' at once.
    seed
        Of the weights.
    """
    torch.manual_seed(seed)
    return HookedDecoder(config)


def replicated(network: nn.Module, bucket_bytes: int) -> DistributedDataParallel:
    """Wrap a model for data parallelism: gradients are summed in buckets while backward runs."""
    return DistributedDataParallel(network, bucket_cap_mb=bucket_bytes / 2**20)


def sharded(network: Decoder, mesh: DeviceMesh, zero: int) -> Decoder:
    """Shard a model with FSDP2: embedding, each block, and norm with head are units of their own.

    Parameters
    ----------
    network
        A decoder; changed in place and returned.
    mesh
        One axis to shard over, or two: copies, and shards in each.
    zero
        3 gathers the weights of a unit again for its backward pass, 2 keeps them after forward. To
        keep them from one micro-batch to the next, ``set_reshard_after_backward(False)``.
    """
    options = {"mesh": mesh, "reshard_after_forward": zero == 3}
    for unit in (network.token_embedding, *network.blocks):
        fully_shard(unit, **options)
    fully_shard([network.final_norm, network.unembedding], **options)
    fully_shard(network, **options)
    return network


def split(network: Decoder, mesh: DeviceMesh, sequence: bool, at_once: bool = True) -> Decoder:
    """Split the products of each layer: columns, then rows.

    Parameters
    ----------
    network
        A decoder; changed in place and returned. Its loss must be taken in ``loss_parallel``.
    mesh
        One axis, whose size divides the heads of keys.
    sequence
        Whether the stream between the products is split too, along the sequence.
    at_once
        Whether the products of a block that take one input share it. Where each prepares its own,
        each also sums its own gradient.
    """
    stream, ranks = Shard(1) if sequence else Replicate(), mesh.size()
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=stream)
    plan = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "unembedding": ColwiseParallel(
            input_layouts=stream, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    norms = ["final_norm"]
    for i, block in enumerate(network.blocks):
        sizes = block.attention.sizes
        block.attention.sizes = replace(
            sizes, heads=sizes.heads // ranks, kv_heads=sizes.kv_heads // ranks
        )
        names = {
            "attention.query": columns, "attention.key": columns, "attention.value": columns,
            "attention.out": rows, "mlp.gate": columns, "mlp.up": columns, "mlp.down": rows,
        }  # fmt: skip
        norms += [f"blocks.{i}.attention_norm", f"blocks.{i}.mlp_norm"]
        if at_once:
            for name, others in (("attention", (None,)), ("mlp", ())):
                names[name] = PrepareModuleInput(
                    input_layouts=(stream, *others),
                    desired_input_layouts=(Replicate(), *others),
                )
        plan |= {f"blocks.{i}.{name}": style for name, style in names.items()}
    if sequence:
        plan |= {name: SequenceParallel() for name in norms}
    parallelize_module(network, mesh, plan)
    return network


def finish_gradients(network: nn.Module) -> None:
    """Carry out the sums of gradients that are still owed, as an optimiser would meet them."""
    for weight in network.parameters():
        if isinstance(weight.grad, DTensor):
            weight.grad = weight.grad.redistribute(placements=weight.placements)


def whole_gradients(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of the whole model, each on every rank; this communicates."""
    whole = {}
    for name, weight in network.named_parameters():
        grad = weight.grad
        whole[name.removeprefix("module.")] = (
            grad.full_tensor() if isinstance(grad, DTensor) else grad
        )
    return whole
