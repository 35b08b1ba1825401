"""Documents of any length become rows of one length: by padding, by chopping, by best fit.

A model trains on rows of ``sequence_length`` ids; documents have their own lengths. A
:class:`Packing` says which piece of which document lies where in which row. Three ways to make one:

* :func:`pad`: a document starts a row of its own; what it does not fill is padding;
* :func:`chop`: documents in a line, cut every ``sequence_length`` ids (as GPT-2 and most since):
  no padding but in the last row, yet documents are cut wherever a row happens to end;
* :func:`best_fit`: a document longer than a row is cut into full rows, and the rests are packed as
  items into bins, largest first, each into the fullest row that still takes it [1]_: no document is
  cut that would fit.

In all three every id of every document lies in exactly one place, and the ids of a row are in the
order of their document. Rows are counted, not filled: filling is :mod:`tokenlife.corpus.batch`.

Left out: truncating documents (dropping what does not fit), and joining documents on one topic.

References
----------
.. [1] H. Ding et al., "Fewer truncations improve language modeling", ICML 2024.
"""

import hashlib
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenlife.corpus.tokenfile import EmptyCorpusError
from tokenlife.errors import TokenlifeError


class SequenceLengthError(TokenlifeError, ValueError):
    """A sequence too short to learn from: predicting needs an id and the one after it."""


@dataclass(frozen=True)
class Packing:
    """Which piece of which document lies in which row.

    Attributes
    ----------
    sequence_length
        Places in a row.
    n_documents
        Documents that were packed.
    first
        Index of each row's first piece, and the number of pieces: shape (rows + 1,).
    document, start, length
        For each piece: the document, where in it the piece starts, and its ids: shape (pieces,).

    Examples
    --------
    >>> packing = chop([5, 2, 3], 4)
    >>> packing.n_rows, packing.document.tolist(), packing.length.tolist()
    (3, [0, 0, 1, 2, 2], [4, 1, 2, 1, 2])
    """

    sequence_length: int
    n_documents: int
    first: np.ndarray
    document: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @property
    def n_rows(self) -> int:
        """Rows, the last possibly not full."""
        return len(self.first) - 1

    @property
    def n_tokens(self) -> int:
        """Places that hold an id of a document."""
        return int(self.length.sum())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of where every piece lies: 32 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.first, self.document, self.start, self.length):
            digest.update(np.ascontiguousarray(array, "<i8").tobytes())
        return digest.hexdigest()

    @property
    def padding_ratio(self) -> float:
        """Part of all places that hold no id of a document."""
        return 1 - self.n_tokens / (self.n_rows * self.sequence_length)

    @property
    def needless_cuts(self) -> int:
        """Cuts beyond those that a document longer than a row needs anyway."""
        total = np.bincount(self.document, self.length, minlength=self.n_documents)
        return len(self.length) - int(np.ceil(total / self.sequence_length).sum())

    def attention_pairs(self, within_documents: bool) -> int:
        """Count the (query, key) pairs of causal attention over all rows.

        Parameters
        ----------
        within_documents
            Whether a token looks only at its own piece, or at everything before it in its row,
            other documents and padding included.

        Examples
        --------
        >>> chop([2, 2], 4).attention_pairs(True), chop([2, 2], 4).attention_pairs(False)
        (6, 10)
        """
        n = self.length if within_documents else np.full(self.n_rows, self.sequence_length)
        n = n.astype(object) if n.max() > 1 << 24 else n.astype(np.int64)
        return int((n * (n + 1) // 2).sum())


def _check(lengths: Sequence[int] | np.ndarray, sequence_length: int) -> np.ndarray:
    if sequence_length < 2:
        raise SequenceLengthError(
            f"a sequence needs at least 2 tokens, an input and its label; not {sequence_length}"
        )
    lengths = np.asarray(lengths, dtype=np.int64)
    if lengths.size == 0 or lengths.min() < 1:
        raise EmptyCorpusError("no tokens to pack; give documents of at least one token")
    return lengths


def _from_pieces(sequence_length, n_documents, row, document, start, length) -> Packing:
    """Pieces sorted by row become a packing."""
    first = np.searchsorted(row, np.arange(row[-1] + 2))
    return Packing(sequence_length, n_documents, first, document, start, length)


def _in_rows(lengths: np.ndarray, sequence_length: int):
    """Cut each document every ``sequence_length`` ids: document, start and length of each piece."""
    pieces = -(-lengths // sequence_length)
    document = np.repeat(np.arange(len(lengths)), pieces)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * (
        sequence_length
    )
    return document, start, np.minimum(sequence_length, lengths[document] - start)


def pad(lengths: Sequence[int] | np.ndarray, sequence_length: int) -> Packing:
    """Give each document rows of its own; fill up with padding.

    Parameters
    ----------
    lengths
        Ids of each document.
    sequence_length
        Places in a row, at least 2.

    Raises
    ------
    SequenceLengthError, EmptyCorpusError

    Examples
    --------
    >>> pad([5, 2], 4).padding_ratio
    0.416...
    """
    lengths = _check(lengths, sequence_length)
    document, start, length = _in_rows(lengths, sequence_length)
    row = np.arange(len(document))
    return _from_pieces(sequence_length, len(lengths), row, document, start, length)


def chop(
    lengths: Sequence[int] | np.ndarray,
    sequence_length: int,
    order: Sequence[int] | np.ndarray | None = None,
) -> Packing:
    """Put documents in a line and cut it every ``sequence_length`` ids.

    Parameters
    ----------
    lengths
        Ids of each document.
    sequence_length
        Places in a row, at least 2.
    order
        A permutation: which document comes first, second, … in the line. As given if left out.

    Raises
    ------
    SequenceLengthError, EmptyCorpusError

    Examples
    --------
    >>> chop([5, 2, 3], 4, order=[2, 0, 1]).document.tolist()
    [2, 0, 0, 1]
    """
    lengths = _check(lengths, sequence_length)
    order = np.arange(len(lengths)) if order is None else np.asarray(order)
    ends = np.cumsum(lengths[order])
    starts = ends - lengths[order]
    cuts = np.union1d(starts, np.arange(0, ends[-1], sequence_length))
    place = np.searchsorted(starts, cuts, side="right") - 1
    return _from_pieces(
        sequence_length,
        len(lengths),
        row=cuts // sequence_length,
        document=order[place],
        start=cuts - starts[place],
        length=np.diff(cuts, append=ends[-1]),
    )


def best_fit(lengths: Sequence[int] | np.ndarray, sequence_length: int) -> Packing:
    """Pack what is left of each document after its full rows, largest first, where it fits best.

    Parameters
    ----------
    lengths
        Ids of each document.
    sequence_length
        Places in a row, at least 2.

    Raises
    ------
    SequenceLengthError, EmptyCorpusError

    Examples
    --------
    >>> packing = best_fit([5, 2, 3, 1], 4)
    >>> packing.n_rows, packing.needless_cuts, round(packing.padding_ratio, 3)
    (3, 0, 0.083)
    """
    lengths = _check(lengths, sequence_length)
    document, start, length = _in_rows(lengths, sequence_length)
    row = np.empty(len(document), np.int64)
    n_rows = 0
    open_rows: dict[int, list[int]] = defaultdict(list)  # free places → rows
    sizes: list[int] = []  # the keys of open_rows that have a row, sorted
    for piece in np.argsort(-length, kind="stable"):
        need = int(length[piece])
        at = bisect_left(sizes, need)
        if at == len(sizes):
            row[piece], free, n_rows = n_rows, sequence_length, n_rows + 1
        else:
            free = sizes[at]
            row[piece] = open_rows[free].pop()
            if not open_rows[free]:
                del sizes[at]
        left = free - need
        if left:
            if not open_rows[left]:
                insort(sizes, left)
            open_rows[left].append(int(row[piece]))
    by_row = np.argsort(row, kind="stable")
    return _from_pieces(
        sequence_length,
        len(lengths),
        row[by_row],
        document[by_row],
        start[by_row],
        length[by_row],
    )
