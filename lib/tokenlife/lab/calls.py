"""Which collectives a program really calls: seen where PyTorch dispatches them.

:class:`Calls` stands between a program and its operators, as PyTorch's own ``CommDebugMode`` does,
and notes of each collective and send its kind, its group and the bytes of its buffer. A call made
while another is being carried out is noted too; what a library does on the wire is not a call.

Left out: ``recv``, which is the other end of a send; barriers; exchanges of Python objects through
a store.
"""

import contextlib
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KINDS = {
    "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce", "all_reduce_coalesced": "all_reduce",
    "allgather_": "all_gather", "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather", "all_gather_into_tensor_out": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather", "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter", "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all", "all_to_all_single": "all_to_all",
    "broadcast": "broadcast", "broadcast_": "broadcast", "send": "send",
}  # fmt: skip


class Calls(TorchDispatchMode):
    """Counts collectives while it is entered.

    Attributes
    ----------
    seen
        A counter: (kind, ranks of the group, bytes of the whole buffer per rank, as nccl-tests
        counts it) → calls. Of a send the two ranks.
    """

    def __init__(self):
        super().__init__()
        self.seen: Counter[tuple[str, tuple[int, ...], int]] = Counter()

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # let it become collectives and local work first
        result = call(*args, **(kwargs or {}))
        name = call.overloadpacket.__name__
        if call.namespace in ("c10d", "_c10d_functional") and name in _KINDS:
            kind = _KINDS[name]
            members = _members(tree_leaves((args, kwargs)))
            if kind == "send":
                members = dist.get_rank(), members[args[2]]
            # The whole buffer is the larger side; of an all-to-all the side that leaves.
            sides = (*args, *(kwargs or {}).values(), result)
            if kind == "all_to_all":
                sides = (args[name != "all_to_all_single"],)
            size = max(map(_bytes, sides))
            self.seen[kind, members, size] += 1
        return result

    def rows(self) -> list[dict]:
        """Return what was seen as plain values: ``kind``, ``group``, ``bytes``, ``count``."""
        return [
            {"kind": kind, "group": list(group), "bytes": size, "count": count}
            for (kind, group, size), count in sorted(self.seen.items())
        ]


def _bytes(what) -> int:
    tensors = [leaf for leaf in tree_leaves(what) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _members(leaves: list) -> tuple[int, ...]:
    """Return the ranks of the process group among the arguments of a call."""
    for leaf in leaves:
        with contextlib.suppress(RuntimeError, TypeError):  # the kind of sum is of these types too
            if isinstance(leaf, torch.ScriptObject):
                return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(leaf)))
            if isinstance(leaf, str):
                return tuple(dist.get_process_group_ranks(_resolve_process_group(leaf)))
    return ()
