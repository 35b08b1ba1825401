"""Rows of a packing become what a model reads: ids, labels, masks, positions, boundaries.

The label of a place is the next id of the same document. Nothing follows a document's last id (its
end-of-text), nor a padding place: those labels are :data:`IGNORE`, which PyTorch's cross-entropy
leaves out. Where a document is cut at the end of a row, the label of the row's last place is still
the document's next id, read from the file: no prediction is lost by cutting, only its context.

Positions count from 0 in each piece, and ``cu_seqlens`` lists where pieces start in the flattened
batch, as variable-length attention kernels take it: with both, a token sees its own document only.

Left out: masking prompts or turns of a dialogue, which needs more than text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenlife.corpus.packing import Packing
from tokenlife.corpus.tokenfile import TokenFile

IGNORE = -100  # torch.nn.functional.cross_entropy's own default
PADDING = -1


@dataclass(frozen=True)
class Batch:
    """A packed batch: arrays of shape (sequences, sequence_length), but for ``cu_seqlens``.

    Attributes
    ----------
    ids
        int64, what the model reads. Padding holds 0 and is never a label.
    labels
        int64, the next id of the same document, or :data:`IGNORE`.
    positions
        int64, from 0 in each piece.
    documents
        int64, the document's number in the token file, or :data:`PADDING`.
    cu_seqlens
        int32, where each piece (or run of padding) starts in the flattened batch, and its end.
    """

    ids: np.ndarray
    labels: np.ndarray
    positions: np.ndarray
    documents: np.ndarray
    cu_seqlens: np.ndarray

    @property
    def loss_mask(self) -> np.ndarray:
        """Where a prediction counts: bool, same shape as ``ids``."""
        return self.labels != IGNORE


def make_batch(file: TokenFile, packing: Packing, rows: Sequence[int] | np.ndarray) -> Batch:
    """Fill the given rows of a packing with ids from a token file.

    Parameters
    ----------
    file
        The file whose ``lengths`` were packed.
    packing
        Made by :func:`~tokenlife.corpus.packing.chop` or its kin.
    rows
        Which rows, in the order wanted.

    Examples
    --------
    >>> import tempfile
    >>> from tokenlife.corpus import Document, packing, tokenfile
    >>> from tokenlife.tokenizer import vocabularies
    >>> notes = [Document(text, text, "", "English", "") for text in ("To be", "or not")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = tokenfile.write_tokens(f"{folder}/notes", notes, vocabularies.load("book"))
    ...     batch = make_batch(file, packing.chop(file.lengths, 8), [0])
    >>> batch.documents.tolist(), batch.positions.tolist(), batch.cu_seqlens.tolist()
    ([[0, 0, 0, 1, 1, 1, -1, -1]], [[0, 1, 2, 0, 1, 2, 0, 1]], [0, 3, 6, 8])
    >>> bool((batch.labels[batch.loss_mask] == batch.ids[0, [1, 2, 4, 5]]).all())
    True
    """
    rows = np.asarray(rows, dtype=np.int64)
    size = packing.sequence_length
    shape = (len(rows), size)
    ids = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORE, np.int64)
    positions = np.zeros(shape, np.int64)
    documents = np.full(shape, PADDING, np.int64)

    # The pieces of all rows, one after the other, then one entry for each id of each piece.
    pieces, row = _spread(packing.first[rows], packing.first[rows + 1] - packing.first[rows])
    length = packing.length[pieces]
    inside, piece = _spread(np.zeros_like(length), length)
    before = np.cumsum(length) - length
    fill = np.bincount(row, length, minlength=len(rows)).astype(np.int64)
    place = row * size + before - (np.cumsum(fill) - fill)[row]  # where each piece starts

    at = place[piece] + inside
    document = packing.document[pieces][piece]
    source = (file.starts[packing.document[pieces]] + packing.start[pieces])[piece] + inside
    has_next = source + 1 < file.starts[document + 1]
    ids.flat[at] = file.tokens[source]
    labels.flat[at[has_next]] = file.tokens[source[has_next] + 1]
    positions.flat[at] = inside
    documents.flat[at] = document

    padded = np.flatnonzero(fill < size)
    padding_at = padded * size + fill[padded]
    run, which = _spread(np.zeros_like(padded), size - fill[padded])
    positions.flat[padding_at[which] + run] = run
    boundaries = np.concatenate((place, padding_at, [len(rows) * size]))
    return Batch(ids, labels, positions, documents, np.sort(boundaries).astype(np.int32))


def _spread(start: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join the ranges start … start + count; say which range each number comes from.

    Examples
    --------
    >>> [part.tolist() for part in _spread(np.array([5, 0]), np.array([2, 3]))]
    [[5, 6, 0, 1, 2], [0, 0, 1, 1, 1]]
    """
    which = np.repeat(np.arange(len(count)), count)
    return np.arange(count.sum()) - (np.cumsum(count) - count - start)[which], which
