"""Measuring what the formulas say: FLOPs by torch's own counter, bytes by autograd's own hooks."""

import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def counted_flops(run: Callable[..., object], *args) -> int:
    """Count the FLOPs of the matrix products that torch does in ``run(*args)``.

    On a CPU the counter returns 0 for ``scaled_dot_product_attention``, and it never knows that
    half of a square is masked.

    Examples
    --------
    >>> counted_flops(nn.Linear(3, 5), torch.ones(7, 3))
    210
    """
    with FlopCounterMode(display=False) as counter:
        run(*args)
    return counter.get_total_flops()


class _Held:
    """A tensor in autograd's hands: gone as soon as autograd lets go of it."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor


def saved_bytes(model: nn.Module, *args, run: Callable[..., object] | None = None) -> int:
    """Count the bytes that autograd keeps after ``model(*args)`` for the backward pass.

    Where ``run`` is given, ``run(*args)`` is called in its place.

    A storage that several operations keep counts once; the model's parameters and buffers do not
    count, since they are there anyway.

    Examples
    --------
    >>> saved_bytes(nn.Linear(3, 5), torch.ones(7, 3))
    84
    """
    owned = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    held: weakref.WeakSet[_Held] = weakref.WeakSet()

    def keep(tensor: torch.Tensor) -> _Held:
        item = _Held(tensor)
        held.add(item)
        return item

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda item: item.tensor):
        result = (run or model)(*args)  # named, so that its graph lives until the count
    storages = [item.tensor.untyped_storage() for item in held]
    kept = {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in owned}
    del result
    return sum(kept.values())
