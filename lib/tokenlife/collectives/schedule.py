"""A collective algorithm as data: who sends which chunks to whom, in which round.

The buffer of each rank is cut into *blocks*, as the definition of the collective asks (one for each
rank, or one in all), and a block into *pieces*, as the algorithm asks; a piece is a chunk. In a
round all sends happen at once, each reading what its rank held before the round. The same schedule
is run on arrays (``verify``), priced (``cost``), placed on a topology (``network``), and sent for
real (``lab``).

Rounds may be lazy: a ring over 16,384 ranks has 5·10⁸ sends, and nobody needs them all at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenlife.errors import TokenlifeError


class ScheduleError(TokenlifeError, ValueError):
    """A schedule that cannot be built, or does not do what its collective is defined to do."""


@dataclass(frozen=True, slots=True)
class Send:
    """A run of neighbouring chunks from one rank to another.

    Attributes
    ----------
    src, dst
        Ranks of the group, from 0; from ``Schedule.ranks`` on, switches.
    chunk
        The first chunk.
    reduce
        Whether the receiver adds the chunks to its own, or replaces its own by them.
    count
        How many neighbouring chunks.
    """

    src: int
    dst: int
    chunk: int
    reduce: bool
    count: int = 1


@dataclass(frozen=True, eq=False)
class Round:
    """The sends of one round, as columns of equal length.

    Attributes
    ----------
    src, dst, chunk, count, reduce
        As in :class:`Send`; shape (sends,).

    Examples
    --------
    >>> both = Round.of([Send(0, 1, 0, True), Send(1, 0, 0, True)])
    >>> len(both), both.src.tolist(), list(both)[1]
    (2, [0, 1], Send(src=1, dst=0, chunk=0, reduce=True, count=1))
    """

    src: np.ndarray
    dst: np.ndarray
    chunk: np.ndarray
    count: np.ndarray
    reduce: np.ndarray

    @classmethod
    def of(cls, sends: Sequence[Send]) -> "Round":
        """Make a round of single sends."""
        rows = [(s.src, s.dst, s.chunk, s.count, s.reduce) for s in sends]
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 5)
        return cls(*table.T[:4], table[:, 4].astype(bool))

    @classmethod
    def columns(cls, src, dst, chunk, *, reduce, count=1) -> "Round":
        """Make a round of columns; what is one number for all sends is repeated."""
        columns = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in (src, dst, chunk, count)))
        reduce = np.broadcast_to(np.asarray(reduce, bool), columns[0].shape)
        return cls(*(np.atleast_1d(c) for c in (*columns, reduce)))

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[Send]:
        columns = (self.src, self.dst, self.chunk, self.reduce, self.count)
        return (Send(*row) for row in zip(*(c.tolist() for c in columns), strict=True))

    def single_chunks(self) -> tuple[np.ndarray, ...]:
        """Return src, dst, chunk and reduce with runs written out, one row for each chunk."""
        rows = np.repeat(np.arange(len(self)), self.count)
        first = np.cumsum(self.count) - self.count
        chunk = self.chunk[rows] + np.arange(len(rows)) - first[rows]
        return self.src[rows], self.dst[rows], chunk, self.reduce[rows]


class LazyRounds(Sequence):
    """Rounds that are built when they are asked for, and not kept.

    Examples
    --------
    >>> rounds = LazyRounds(10**9, lambda step: Round.of([Send(0, 1, step, False)]))
    >>> len(rounds), list(rounds[-1])[0].chunk
    (1000000000, 999999999)
    """

    def __init__(self, length: int, build: Callable[[int], Round]):
        self._range, self._build = range(length), build

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index):
        if isinstance(index, slice):
            chosen = self._range[index]
            return LazyRounds(len(chosen), lambda i: self._build(chosen[i]))
        return self._build(self._range[index])

    def __add__(self, other: Sequence) -> "LazyRounds":
        """Return these rounds and then the others."""
        mine = len(self)
        return LazyRounds(
            mine + len(other), lambda i: self._build(i) if i < mine else other[i - mine]
        )


@dataclass(frozen=True, eq=False)
class Schedule:
    """The rounds of one algorithm for one collective and one number of ranks.

    Attributes
    ----------
    kind
        The collective, a key of ``DEFINITIONS``.
    algorithm
        Its name.
    ranks
        Size of the group.
    blocks
        Blocks that the buffer of one rank is cut into.
    rounds
        The rounds, in order; tuples of :class:`Send` become a :class:`Round` each.
    pieces
        Chunks in one block.
    root
        The rank that a rooted collective starts from or ends at.
    switches
        Nodes after the ranks that can hold and add chunks, but own no data.
    ports
        Messages that one rank may send, and receive, in one round.
    counts
        For an uneven all-to-all: items from rank i to rank j; shape (ranks, ranks).

    Notes
    -----
    In an all-to-all each rank holds its own blocks: chunk ``(src · ranks + dst) · pieces + piece``.
    Otherwise chunk ``block · pieces + piece``.

    Examples
    --------
    >>> swap = Schedule("all_reduce", "swap", 2, 1, ((Send(0, 1, 0, True), Send(1, 0, 0, True)),))
    >>> swap.bytes_sent_per_rank(items=3, item_bytes=4).tolist()
    [12, 12]
    """

    kind: str
    algorithm: str
    ranks: int
    blocks: int
    rounds: Sequence[Round]
    pieces: int = 1
    root: int = 0
    switches: int = 0
    ports: int = 1
    counts: np.ndarray | None = None

    def __post_init__(self):
        if not isinstance(self.rounds, LazyRounds):
            rounds = tuple(r if isinstance(r, Round) else Round.of(r) for r in self.rounds)
            object.__setattr__(self, "rounds", rounds)

    @property
    def nodes(self) -> int:
        """Ranks and switches."""
        return self.ranks + self.switches

    @property
    def chunks(self) -> int:
        """Chunks that the schedule tells apart."""
        return self.blocks * self.pieces * (self.ranks if self.kind == "all_to_all" else 1)

    def renamed(self, **changes) -> "Schedule":
        """Return the same schedule with other attributes."""
        return replace(self, **changes)

    def chunk_items(self, items: int) -> np.ndarray:
        """Return the items in each chunk of a buffer of ``items``; shape (chunks,).

        As even as can be: the first blocks are larger by one, and so are the first pieces.

        Examples
        --------
        >>> Schedule("all_reduce", "none", 3, 3, ()).chunk_items(10).tolist()
        [4, 3, 3]
        """
        if items < 0:
            raise ScheduleError(f"a buffer cannot have {items} items")
        if self.counts is not None:
            sizes = np.asarray(self.counts, dtype=np.int64).reshape(-1)
        else:
            sizes = even_cut(np.array([items]), self.blocks)
            if self.kind == "all_to_all":
                sizes = np.tile(sizes, self.ranks)
        return even_cut(sizes, self.pieces)

    def chunk_offsets(self, items: int) -> np.ndarray:
        """Return where each chunk starts, counted in items, and the end; shape (chunks + 1,)."""
        return np.concatenate([[0], np.cumsum(self.chunk_items(items))])

    def messages(self, index: int, offsets: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the messages of a round: the sends between two nodes travel as one.

        Parameters
        ----------
        index
            The round.
        offsets
            Of the chunks, as :meth:`chunk_offsets` gives them, in any unit.

        Returns
        -------
        src, dst, size, reduced
            Shape (messages,); sizes in the unit of the offsets, ``reduced`` the part to be added.
        """
        sends = self.rounds[index]
        sizes = offsets[sends.chunk + sends.count] - offsets[sends.chunk]
        pairs, which = np.unique(sends.src * self.nodes + sends.dst, return_inverse=True)
        size = np.zeros(len(pairs), sizes.dtype)
        np.add.at(size, which, sizes)
        reduced = np.zeros(len(pairs), sizes.dtype)
        np.add.at(reduced, which, sizes * sends.reduce)
        return pairs // self.nodes, pairs % self.nodes, size, reduced

    def bytes_sent_per_node(self, items: int, item_bytes: int) -> np.ndarray:
        """Return the payload that each rank and each switch sends, in bytes; shape (nodes,)."""
        offsets = self.chunk_offsets(items) * item_bytes
        sent = np.zeros(self.nodes, dtype=np.int64)
        for sends in self.rounds:
            np.add.at(sent, sends.src, offsets[sends.chunk + sends.count] - offsets[sends.chunk])
        return sent

    def bytes_sent_per_rank(self, items: int, item_bytes: int) -> np.ndarray:
        """Return the payload that each rank sends, in bytes; shape (ranks,)."""
        return self.bytes_sent_per_node(items, item_bytes)[: self.ranks]


def even_cut(sizes: np.ndarray, parts: int) -> np.ndarray:
    """Cut each size into ``parts`` whole numbers, the first ones larger by one.

    Examples
    --------
    >>> even_cut(np.array([10, 4]), 3).tolist()
    [4, 3, 3, 2, 1, 1]
    """
    share, rest = np.divmod(np.asarray(sizes, dtype=np.int64)[:, None], parts)
    return (share + (np.arange(parts) < rest)).reshape(-1)
