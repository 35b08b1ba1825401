"""Memory over time: every tensor that torch makes, from its first operation to its last reference.

Between Python and its kernels torch lets a *dispatch mode* see each operation. Here it notes the
storage of each result when it first appears, and a weak reference notes when it goes. So the bytes
that live tensors take are known after every operation of a step, on a CPU as on a GPU, and each
storage gets a kind:

``weights``, ``gradients``, ``optimiser``
    those of the model's parameters, of their ``.grad``, and of the optimiser's states;
``activations``
    those that autograd kept for the backward pass;
``batch``
    ids and labels;
``temporary``
    all others: results inside a stage, gradients of activations on their way back.

Left out: what a kernel takes and gives back while it runs, and what the allocator keeps in reserve.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = ("weights", "gradients", "optimiser", "activations", "batch", "temporary")


@dataclass(frozen=True)
class Sample:
    """Bytes that live after one operation.

    Attributes
    ----------
    operation
        Counted from 0.
    phase
        ``forward``, ``backward``, ``optimiser``: what the caller named.
    bytes_
        By kind.
    """

    operation: int
    phase: str
    bytes_: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(self.bytes_.values())


@dataclass
class _Life:
    """A storage: its size, when it came and went, and what it turned out to be."""

    bytes_: int
    born: int
    died: int | None = None
    kind: str = "temporary"


@dataclass
class MemoryTrace(TorchDispatchMode):
    """Follow the tensors of a training step.

    Parameters
    ----------
    model
        Its weights count as alive from the start, and its gradients are found after the step.
    optimiser
        Its states are found after the step.
    batch
        Tensors that were there before.

    Examples
    --------
    >>> model = nn.Linear(100, 10)
    >>> trace = MemoryTrace(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> with trace.following(), trace.phase("forward"):
    ...     loss = model(torch.ones(2, 100)).sum()
    >>> trace.samples()[-1].bytes_["weights"]
    4040
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    batch: Iterable[Tensor] = ()
    _lives: dict[int, _Life] = field(default_factory=dict, init=False)
    _gone: list[_Life] = field(default_factory=list, init=False)
    _phases: list[str] = field(default_factory=list, init=False)
    _phase: str = field(default="", init=False)

    def __post_init__(self):
        super().__init__()
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            self._meet(tensor).kind = "weights"
        for tensor in self.batch:
            self._meet(tensor).kind = "batch"
        self._mark_states()

    @contextmanager
    def following(self) -> Iterator["MemoryTrace"]:
        """Follow all that happens inside, and then give every storage its kind."""
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor), self:
            yield self
        self._mark_states()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name the part of the step that runs inside."""
        before, self._phase = self._phase, name
        try:
            yield
        finally:
            # What the phase leaves behind is known once its own names are gone.
            self._mark_states()
            self._phase = before

    def samples(self) -> list[Sample]:
        """Return the live bytes by kind after each operation."""
        changes = [dict.fromkeys(KINDS, 0) for _ in range(len(self._phases) + 1)]
        for life in (*self._gone, *self._lives.values()):
            changes[life.born][life.kind] += life.bytes_
            if life.died is not None:
                changes[min(life.died, len(self._phases))][life.kind] -= life.bytes_
        now, found = dict.fromkeys(KINDS, 0), []
        for operation, phase in enumerate(self._phases):
            now = {kind: now[kind] + changes[operation][kind] for kind in KINDS}
            found.append(Sample(operation, phase, now))
        return found

    def peak(self) -> Sample:
        """Return the first moment at which most bytes live."""
        return max(self.samples(), key=lambda sample: sample.total)

    # ---- watching -----------------------------------------------------------------------------

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._meet(leaf)
        self._phases.append(self._phase)
        return result

    def _meet(self, tensor: Tensor) -> _Life:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._lives:
            self._lives[key] = _Life(storage.nbytes(), len(self._phases))
            weakref.finalize(storage, self._part, key).atexit = False
        return self._lives[key]

    def _part(self, key: int) -> None:
        life = self._lives.pop(key, None)
        if life is not None:
            life.died = len(self._phases)
            self._gone.append(life)

    def _save(self, tensor: Tensor) -> Tensor:
        life = self._meet(tensor)
        if life.kind == "temporary":
            life.kind = "activations"
        return tensor

    def _mark_states(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                self._meet(parameter.grad).kind = "gradients"
        for state in self.optimiser.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    self._meet(value).kind = "optimiser"
