"""PyTorch's own parallelism on our decoder: one call for each strategy.

Each function changes a model in place, as PyTorch's users would, and what it then sends is what is
to be compared with :mod:`tokenlife.parallel`. Nothing here communicates by code of ours.

Left out: pipelines, whose stages chapter 9 cuts, and what PyTorch does not offer on a CPU.
"""

import contextlib
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
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
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
        A decoder; changed in place and returned. Its logits stay split: :func:`step` takes them.
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


def step(network: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Go forward and backward on sequences; return the mean loss of this rank's tokens.

    Parameters
    ----------
    network
        A decoder, under any strategy.
    ids
        Shape (rows, length + 1): each token but the last is asked for the next.
    """
    logits = network(ids[:, :-1])
    cut = isinstance(logits, DTensor)
    with loss_parallel() if cut else contextlib.nullcontext():
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
    loss = loss.detach()
    return loss.full_tensor() if cut else loss


def finish_gradients(network: nn.Module) -> None:
    """Carry out the sums that a split model still owes after the last micro-batch's backward."""
    for weight in network.parameters():
        if isinstance(weight.grad, DTensor):
            weight.grad = weight.grad.redistribute(placements=weight.placements)


def whole_gradients(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of the whole model, each on every rank; this communicates."""
    return {
        name.removeprefix("module."): weight.grad.full_tensor()
        if isinstance(weight.grad, DTensor)
        else weight.grad
        for name, weight in network.named_parameters()
    }


def gradient_errors(network: nn.Module, alone: nn.Module) -> dict[str, float]:
    """Return how far each gradient is from that of one process, over the largest of its tensor."""
    right = dict(alone.named_parameters())
    return {
        name: float((grad - right[name].grad).abs().max() / right[name].grad.abs().max())
        for name, grad in whole_gradients(network).items()
    }
