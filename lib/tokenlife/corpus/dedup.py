"""Copies and near-copies: found by hashing, removed before anything is split or counted.

Exact copies share the hash of their normalised text (Unicode NFKC, lower case, runs of white space
as one space). Near-copies share most of their *shingles*: all substrings of :data:`SHINGLE`
characters. Their overlap is Jaccard's index, the shared shingles over all shingles of both.
Characters, not words: Thai and Chinese put no spaces between words.

Comparing every pair would cost a square. MinHash [1]_ draws a short signature from each set such
that two signatures agree in a place with a probability close to Jaccard's index; the signature is
cut into bands [2]_, and only documents that agree in a whole band are compared. One hash feeds all
places: each takes the smallest hash of its own share of the range, an empty one borrows from its
neighbour [3]_. Every candidate pair is then checked on the full sets, so nothing is removed on a
guess. A pair at Jaccard J is missed with probability near (1 − J^rows)^bands: 5 · 10⁻⁸ at 0.8.

Left out: copied passages inside otherwise different documents (suffix arrays find those), and
meaning: a translation is no copy here.

References
----------
.. [1] A. Broder, "On the resemblance and containment of documents", 1997.
.. [2] J. Leskovec, A. Rajaraman, J. Ullman, "Mining of massive datasets", chapter 3.
.. [3] A. Shrivastava and P. Li, "Densifying one permutation hashing via rotation for fast near
   neighbor search", ICML 2014.
"""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tokenlife.corpus.documents import Document
from tokenlife.corpus.mixing import GOLDEN, mix
from tokenlife.errors import TokenlifeError

SHINGLE = 12
THRESHOLD = 0.8
BANDS, ROWS = 32, 4


class DedupError(TokenlifeError, ValueError):
    """A threshold outside 0 to 1."""


def normalise(text: str) -> str:
    r"""Reduce a text to what counts as the same: NFKC, lower case, single spaces.

    Examples
    --------
    >>> normalise("Ｔo  be,\n\tor not")
    'to be, or not'
    """
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text).lower()).strip()


def fingerprint(text: str, *, seed: int = 0) -> bytes:
    r"""Return 16 bytes that two texts share when they are the same after :func:`normalise`.

    Examples
    --------
    >>> fingerprint("To be") == fingerprint("to  be\n"), len(fingerprint(""))
    (True, 16)
    """
    data = normalise(text).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16, salt=seed.to_bytes(8, "little")).digest()


def shingles(text: str) -> np.ndarray:
    """Return the sorted 64-bit hashes of a text's shingles (of the whole text, if it is shorter).

    Examples
    --------
    >>> len(shingles("To be, or not to be")), len(shingles("be"))
    (8, 1)
    """
    codes = np.frombuffer(
        normalise(text).encode("utf-32-le", "surrogatepass"), dtype=np.uint32
    ).astype(np.uint64)
    width = min(SHINGLE, max(len(codes), 1))
    count = len(codes) - width + 1
    if count < 1:
        return np.zeros(1, np.uint64)  # the empty text: one shingle, itself
    hashes = np.zeros(count, np.uint64)
    for i in range(width):  # a polynomial in an odd base, modulo 2^64
        hashes = hashes * GOLDEN + codes[i : i + count] + np.uint64(1)
    return np.unique(mix(hashes))


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Return the shared part of two sorted shingle sets: intersection over union.

    Examples
    --------
    >>> jaccard(np.array([1, 2, 3]), np.array([2, 3, 4]))
    0.5
    """
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / (len(a) + len(b) - shared)


def signature(hashes: np.ndarray) -> np.ndarray:
    """Return the MinHash signature of a shingle set: ``BANDS * ROWS`` 64-bit numbers.

    Two signatures agree in a place with a probability close to the sets' Jaccard index.
    """
    places = BANDS * ROWS
    place = (hashes % np.uint64(places)).astype(np.int64)
    smallest = np.full(places, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(smallest, place, hashes)
    filled = np.flatnonzero(np.bincount(place, minlength=places))
    # An empty place takes the value of the next filled one, going round.
    source = filled[np.searchsorted(filled, np.arange(places)) % len(filled)]
    return smallest[source]


@dataclass(frozen=True)
class Copy:
    """A document that was removed, the one kept in its stead, and how alike they are.

    ``similarity`` is 1 for an exact copy, else Jaccard's index of the two.
    """

    removed: str
    kept: str
    similarity: float
    exact: bool


def deduplicate(
    documents: Sequence[Document], threshold: float = THRESHOLD
) -> tuple[list[Document], list[Copy]]:
    """Remove exact copies, then near-copies; of a set of copies the first document stays.

    A document goes if it is at least ``threshold`` alike to a document that stays. Being alike is
    not transitive, so this compares with the kept ones only: no chain of small changes can remove
    a document that resembles nothing kept.

    Parameters
    ----------
    documents
        In the order of preference.
    threshold
        Smallest Jaccard index, above 0 and up to 1, that makes two documents near-copies.

    Returns
    -------
    (kept, copies)
        The documents that stay, in order, and one :class:`Copy` for each that goes.

    Raises
    ------
    DedupError
        If the threshold is not in (0, 1].

    Examples
    --------
    >>> note = lambda name, text: Document(name, text, "", "English", "")
    >>> kept, copies = deduplicate([note("a", "To be, or not to be: that is the question."),
    ...     note("b", "TO BE, or not to be: that is the question."),
    ...     note("c", "To be, or not to be: that is the question?"), note("d", "Light.")])
    >>> [d.name for d in kept], [(c.removed, c.kept, c.exact) for c in copies]
    (['a', 'd'], [('b', 'a', True), ('c', 'a', False)])
    """
    if not 0 < threshold <= 1:
        raise DedupError(f"the threshold must lie above 0 and up to 1, not {threshold}")
    copies: list[Copy] = []
    first: dict[bytes, Document] = {}
    for document in documents:
        original = first.setdefault(fingerprint(document.text), document)
        if original is not document:
            copies.append(Copy(document.name, original.name, 1.0, exact=True))
    unique = list(first.values())

    alike = _near_pairs([document.text for document in unique], threshold)
    kept: list[Document] = []
    removed: set[int] = set()
    for i, document in enumerate(unique):
        nearest = max(
            ((similarity, -j) for j, similarity in alike[i].items() if j not in removed),
            default=None,
        )
        if nearest is None:
            kept.append(document)
        else:
            removed.add(i)
            copies.append(Copy(document.name, unique[-nearest[1]].name, nearest[0], exact=False))
    return kept, copies


def _near_pairs(texts: Sequence[str], threshold: float) -> list[dict[int, float]]:
    """For each text: the earlier ones it is at least ``threshold`` alike to, with the index."""
    signatures = [signature(shingles(text)) for text in texts]
    bands: dict[tuple, list[int]] = defaultdict(list)
    for i, places in enumerate(signatures):
        for band, values in enumerate(places.reshape(BANDS, ROWS)):
            bands[band, values.tobytes()].append(i)
    candidates = sorted({pair for group in bands.values() for pair in combinations(group, 2)})

    # Shingle sets are made again for the few that need them rather than kept for all.
    sets = {i: shingles(texts[i]) for i in sorted({i for pair in candidates for i in pair})}
    alike: list[dict[int, float]] = [{} for _ in texts]
    for i, j in candidates:
        similarity = jaccard(sets[i], sets[j])
        if similarity >= threshold:
            alike[j][i] = similarity
    return alike
