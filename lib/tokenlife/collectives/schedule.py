"""A collective algorithm as data: who sends which chunk to whom, in which round.

The buffer of each rank is cut into chunks at item boundaries. In a round all sends happen at once,
each reading what its rank held before the round. The same schedule is run on arrays (``verify``),
placed on a topology (``network``), and sent for real (``lab``).
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.errors import TokenlifeError


class ScheduleError(TokenlifeError, ValueError):
    """A schedule that does not do what its collective is defined to do."""


@dataclass(frozen=True, slots=True)
class Send:
    """One message.

    Attributes
    ----------
    src, dst
        Ranks of the group, from 0.
    chunk
        Which chunk of the buffer.
    reduce
        Whether the receiver adds the chunk to its own, or replaces its own by it.
    """

    src: int
    dst: int
    chunk: int
    reduce: bool


@dataclass(frozen=True)
class Schedule:
    """The rounds of one algorithm for one collective and one number of ranks.

    Attributes
    ----------
    kind
        The collective, as in ``CommOp.kind``.
    algorithm
        Its name.
    ranks
        Size of the group.
    chunks
        Pieces that the buffer is cut into.
    rounds
        For each round its sends.

    Examples
    --------
    >>> swap = Schedule("all_reduce", "swap", 2, 1, ((Send(0, 1, 0, True), Send(1, 0, 0, True)),))
    >>> swap.bytes_sent_per_rank(items=3, item_bytes=4).tolist()
    [12, 12]
    """

    kind: str
    algorithm: str
    ranks: int
    chunks: int
    rounds: tuple[tuple[Send, ...], ...]

    def chunk_items(self, items: int) -> np.ndarray:
        """Return the items in each chunk: as even as can be, the first ones larger by one.

        Examples
        --------
        >>> Schedule("all_reduce", "none", 3, 3, ()).chunk_items(10).tolist()
        [4, 3, 3]
        """
        sizes = np.full(self.chunks, items // self.chunks, dtype=np.int64)
        sizes[: items % self.chunks] += 1
        return sizes

    def chunk_slices(self, items: int) -> list[slice]:
        """Return where each chunk lies in a buffer of ``items`` items."""
        ends = np.cumsum(self.chunk_items(items)).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def bytes_sent_per_rank(self, items: int, item_bytes: int) -> np.ndarray:
        """Return the payload that each rank sends, in bytes; shape (ranks,)."""
        sizes = self.chunk_items(items) * item_bytes
        sent = np.zeros(self.ranks, dtype=np.int64)
        for sends in self.rounds:
            for send in sends:
                sent[send.src] += sizes[send.chunk]
        return sent
