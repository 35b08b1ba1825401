"""The order of training: a shuffle that needs no memory, and a split that cannot leak.

The shuffle is a keyed permutation of 0 … n−1, computed place by place: a Feistel network on the
smallest even number of bits that holds n, walked until it lands below n [1]_. So any place of any
epoch can be asked for at once, on any rank, with nothing stored: a resumed run, or one on another
number of ranks, sees the very same order. It uses 64-bit integer arithmetic only, hence is the same
on every machine and in every version of NumPy (whose own generators may change their streams).

The split sends a document to the held-out part by a hash of its normalised text. Adding or removing
other documents moves none, and exact copies always fall on the same side. Near-duplicates may not:
remove them first (:mod:`tokenlife.corpus.dedup`).

References
----------
.. [1] J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from collections.abc import Sequence

import numpy as np

from tokenlife.corpus.dedup import fingerprint
from tokenlife.corpus.documents import Document
from tokenlife.corpus.mixing import GOLDEN, mix
from tokenlife.errors import TokenlifeError

_ROUNDS = 8


class OrderError(TokenlifeError, ValueError):
    """A place outside the order, or a fraction outside 0 to 1."""


def shuffled(places: np.ndarray | Sequence[int] | int, n: int, *, seed: int, epoch: int = 0):
    """Return what stands at the given places of the shuffled order of 0 … n−1.

    Parameters
    ----------
    places
        One place or many, each in 0 … n−1.
    n
        How many things are shuffled.
    seed, epoch
        Whole numbers from 0; each pair gives an order of its own.

    Returns
    -------
    numpy.ndarray of int64
        Same shape as ``places``.

    Raises
    ------
    OrderError
        If a place is not in 0 … n−1.

    Examples
    --------
    >>> shuffled(range(10), 10, seed=0).tolist()
    [6, 1, 0, 2, 8, 4, 3, 5, 9, 7]
    >>> int(shuffled(10**9, 10**12, seed=0, epoch=1)) < 10**12
    True
    """
    at = np.atleast_1d(np.asarray(places, dtype=np.int64))
    if at.size and (at.min() < 0 or at.max() >= n):
        raise OrderError(f"places must lie in 0 to {n - 1}, not {at.min()} to {at.max()}")
    half = np.uint64(max(3, ((n - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    with np.errstate(over="ignore"):  # 64-bit arithmetic is meant to wrap
        root = mix(mix(np.array([seed], np.uint64) + GOLDEN) ^ np.array([epoch], np.uint64))
        keys = mix(root + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * GOLDEN)
        found = at.astype(np.uint64).ravel()
        walking = np.arange(found.size)
        while walking.size:
            x = found[walking]
            left, right = x >> half, x & mask
            for key in keys:
                left, right = right, left ^ (mix(right + key) & mask)
            found[walking] = (left << half) | right
            walking = walking[found[walking] >= np.uint64(n)]
    return found.astype(np.int64).reshape(np.shape(places))


def split(
    documents: Sequence[Document], held_out: float, *, seed: int = 0
) -> tuple[list[Document], list[Document]]:
    """Split documents into a training part and a held-out part.

    Parameters
    ----------
    documents
        What to split; order is kept.
    held_out
        Wanted fraction of the documents, 0 to 1. The real fraction varies about it, as each
        document is drawn on its own.
    seed
        Another seed draws another held-out part.

    Returns
    -------
    (train, held_out)

    Raises
    ------
    OrderError
        If the fraction is not in 0 to 1.

    Examples
    --------
    >>> notes = [Document(str(i), f"note {i}", "", "", "") for i in range(1000)]
    >>> train, test = split(notes, 0.1)
    >>> len(train), len(test), set(split(notes[:500], 0.1)[1]) <= set(test)
    (909, 91, True)
    """
    if not 0 <= held_out <= 1:
        raise OrderError(f"the held-out fraction must lie in 0 to 1, not {held_out}")
    parts: tuple[list[Document], list[Document]] = ([], [])
    for document in documents:
        draw = int.from_bytes(fingerprint(document.text, seed=seed)[:8], "little") / 2**64
        parts[draw < held_out].append(document)
    return parts
