"""A rank's stream of micro-batches for PyTorch, which stops and resumes at any micro-batch.

:class:`TokenBatches` is an ``IterableDataset`` over a token file. Place p of the global order is
row π(p mod rows) of epoch p // rows, π being that epoch's shuffle: the stream never ends, and every
row comes once in each epoch. A micro-batch that crosses the end of an epoch takes rows of both.

Where a run stands is one number, the sequences consumed by all ranks together, so a state saved on
one number of ranks loads on another. It is counted where micro-batches are *used*, not where they
are made: worker processes run ahead, and what they have made but nobody used is made again after
resuming. Hence worker processes only through :meth:`TokenBatches.loader`, which counts in the main
process; a plain ``DataLoader`` with workers is refused.

With ``workers`` processes, worker w makes micro-batches w, w + workers, … and they are handed out
in turn: the stream is the same for any number of workers.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tokenlife.corpus.batch import make_batch
from tokenlife.corpus.order import shuffled
from tokenlife.corpus.packing import Packing
from tokenlife.corpus.sharding import BatchLayout, ResumeError
from tokenlife.corpus.tokenfile import TokenFile

# What must not change between a saved state and the run that loads it; the layout may.
_SAME = ("content", "sequence_length", "packing", "seed", "global_batch")


class WorkerError(ResumeError):
    """Worker processes started around :meth:`TokenBatches.loader`."""


class TokenBatches(IterableDataset):
    """The micro-batches of one data-parallel rank, from a packed token file.

    Parameters
    ----------
    file
        The token file.
    packing
        How its documents lie in rows; made from ``file.lengths``.
    layout
        How a global batch is dealt out.
    rank
        This rank on the data-parallel axis.
    seed
        Of the shuffle of rows; the same on all ranks.
    steps
        Stop after this many whole steps, counted from the start of training; ``None``: never.

    Raises
    ------
    RankError
        If the layout has no such rank.

    Examples
    --------
    >>> import tempfile
    >>> from tokenlife.corpus import Document, packing, tokenfile
    >>> from tokenlife.tokenizer import vocabularies
    >>> notes = [Document(str(i), f"note {i}", "", "English", "") for i in range(50)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = tokenfile.write_tokens(f"{folder}/notes", notes, vocabularies.load("book"))
    ...     batches = TokenBatches(file, packing.chop(file.lengths, 16), BatchLayout(4, 2, ranks=2))
    ...     first = next(iter(batches))
    >>> first["ids"].shape, batches.state_dict()["consumed"]
    (torch.Size([2, 16]), 4)
    """

    def __init__(
        self,
        file: TokenFile,
        packing: Packing,
        layout: BatchLayout,
        rank: int = 0,
        *,
        seed: int = 0,
        steps: int | None = None,
    ):
        super().__init__()
        layout.check_rank(rank)
        self.file, self.packing, self.layout = file, packing, layout
        self.rank, self.seed, self.steps = rank, seed, steps
        self._consumed = 0
        self._counted_outside = False

    def rows(self, places: range) -> np.ndarray:
        """Return the rows of the packing that stand at places of the global order."""
        n = self.packing.n_rows
        epochs = np.array(places) // n
        rows = np.empty(len(places), np.int64)
        for epoch in np.unique(epochs):
            here = np.flatnonzero(epochs == epoch)
            rows[here] = shuffled(np.array(places)[here] % n, n, seed=self.seed, epoch=int(epoch))
        return rows

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield micro-batches from where the state stands.

        Each is a dict of the arrays of :class:`~tokenlife.corpus.batch.Batch` as tensors.
        """
        worker = get_worker_info()
        if worker is not None and not self._counted_outside:
            raise WorkerError("start worker processes with TokenBatches.loader(workers=…)")
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        after, per_micro_step = self._consumed, self.layout.micro_step_batch
        micro_step = first
        while self.steps is None or (
            after + micro_step * per_micro_step < self.steps * self.layout.global_batch
        ):
            places = self.layout.places(self.rank, micro_step, after)
            batch = make_batch(self.file, self.packing, self.rows(places))
            if worker is None:
                self._consumed = after + (micro_step + 1) * per_micro_step
            yield {name: torch.from_numpy(array) for name, array in vars(batch).items()}
            micro_step += stride

    def loader(self, workers: int = 0) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the same stream, made by worker processes.

        Parameters
        ----------
        workers
            Processes that make micro-batches ahead; 0 makes them in this one.
        """
        if workers == 0:
            yield from self
            return
        after = self._consumed
        self._counted_outside = True
        try:
            source = DataLoader(self, batch_size=None, num_workers=workers)
            for micro_step, batch in enumerate(source):
                self._consumed = after + (micro_step + 1) * self.layout.micro_step_batch
                yield batch
        finally:
            self._counted_outside = False

    def state_dict(self) -> dict:
        """Return where this stream stands: plain values, the same on every rank."""
        return {
            "consumed": self._consumed,
            "content": self.file.content.hex(),
            "sequence_length": self.packing.sequence_length,
            "packing": self.packing.fingerprint,
            "seed": self.seed,
            "global_batch": self.layout.global_batch,
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue where a saved state stands, on this or another number of ranks.

        Raises
        ------
        ResumeError
            If the state is of other data, another order or another global batch, or stands inside
            a step where this layout's micro-steps cannot take over.
        """
        own = self.state_dict()
        missing = [name for name in own if name not in state]
        if missing:
            raise ResumeError(f"no saved state: {', '.join(missing)} is missing")
        for name in _SAME:
            if state[name] != own[name]:
                raise ResumeError(
                    f"the saved state has {name} {state[name]!r}, this run has {own[name]!r}; "
                    "resume with the same data, packing, seed and global batch"
                )
        self.layout.check_resume(state["consumed"])
        self._consumed = state["consumed"]
