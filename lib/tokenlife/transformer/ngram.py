"""N-gram models with modified Kneser–Ney smoothing: what a transformer has to beat.

An n-gram model guesses the next token from the n − 1 before it, by counting. Counts of long
contexts are few, so each order is mixed with the one below it: a discount is taken from every
count, and what was taken goes to the shorter context. Kneser and Ney's idea is what the shorter
context counts: not how often a token was seen, but after how many *different* tokens. Chen and
Goodman [1]_ give three discounts (for counts of 1, 2, and 3 or more), each estimated from the
counts of counts; theirs was the best smoother of all they compared. Below the unigram stands the
uniform distribution over the vocabulary, so nothing is impossible.

Everything is arrays: an n-gram is one 64-bit number, a table is a sorted array of them, a look-up
is a binary search. No n-gram crosses from one document into the next. At a document's start, where
the context is shorter than n − 1, the shorter context answers.

Left out: pruning, and orders whose n-grams do not fit 64 bits.

References
----------
.. [1] S. Chen and J. Goodman, "An empirical study of smoothing techniques for language modeling",
   1998, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenlife.errors import TokenlifeError


class NgramError(TokenlifeError, ValueError):
    """An n-gram model that cannot be fitted, or tokens it cannot read."""


@dataclass(frozen=True)
class _Order:
    """One order: its n-grams with what they keep of their counts, and what its contexts give away.

    ``grams`` and ``contexts`` are sorted; ``kept`` is (count − discount) / total of its context,
    ``given`` is the share that a context hands to the order below.
    """

    grams: np.ndarray
    kept: np.ndarray
    contexts: np.ndarray
    given: np.ndarray


class Ngram:
    """An interpolated n-gram model, fitted on documents of token ids.

    Parameters
    ----------
    documents
        Ids of each document, its end-of-text included.
    vocab
        Number of ids.
    order
        n: how many tokens an n-gram has; 1 looks at no context.

    Raises
    ------
    NgramError
        If there is nothing to learn from, an id is out of range, or n-grams do not fit 64 bits.

    Examples
    --------
    >>> model = Ngram([[0, 1, 0, 1, 0, 1, 2]], vocab=4, order=2)
    >>> int(model.distribution([0]).argmax()), round(float(model.distribution([0]).sum()), 6)
    (1, 1.0)
    """

    def __init__(self, documents: Sequence[Sequence[int] | np.ndarray], vocab: int, order: int):
        if order < 1 or vocab < 1 or vocab**order >= 2**63:
            raise NgramError(
                f"no {order}-grams over {vocab} ids: order and vocabulary must be above 0 and "
                "vocab ** order below 2 ** 63"
            )
        self.vocab, self.order = vocab, order
        ids, inside = _join(documents, vocab)
        if not len(ids):
            raise NgramError("no tokens to learn from; give at least one document")
        # The highest order counts what was seen, the ones below count what they were seen after.
        grams, counts = np.unique(_keys(ids, inside, vocab, order), return_counts=True)
        orders = [_discounted(grams, counts, vocab)] if len(grams) else [_nothing()]
        for lower in range(order - 1, 0, -1):
            grams, counts = np.unique(grams % vocab**lower, return_counts=True)
            orders.insert(0, _discounted(grams, counts, vocab) if len(grams) else _nothing())
        self._orders = orders

    def probabilities(self, documents: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
        """Return the probability of each token but every document's first, in one array.

        Parameters
        ----------
        documents
            Ids of each document. A document's first token is context only: a language model that
            reads from left to right makes no guess of it either.

        Returns
        -------
        numpy.ndarray
            Shape (tokens − documents,), each above 0.
        """
        ids, inside = _join(documents, self.vocab)
        chance = np.full(len(ids), 1 / self.vocab)
        for n, table in enumerate(self._orders, start=1):
            at = np.flatnonzero(inside >= n - 1)
            keys = _keys(ids, inside, self.vocab, n)
            chance[at] = self._interpolate(table, keys, chance[at])
        return chance[inside > 0]

    def distribution(self, context: Sequence[int]) -> np.ndarray:
        """Return the probability of every id after a context: shape (vocab,), sum 1."""
        chance = np.full(self.vocab, 1 / self.vocab)
        every = np.arange(self.vocab, dtype=np.int64)
        for n, table in enumerate(self._orders, start=1):
            if n - 1 > len(context):
                break
            key = 0
            for id_ in list(context)[len(context) - (n - 1) :]:
                key = key * self.vocab + int(id_)
            chance = self._interpolate(table, key * self.vocab + every, chance)
        return chance

    def _interpolate(self, table: _Order, keys: np.ndarray, below: np.ndarray) -> np.ndarray:
        # A context that was never met keeps nothing and gives everything: the order below answers.
        kept = _find(table.grams, table.kept, keys, 0.0)
        return kept + _find(table.contexts, table.given, keys // self.vocab, 1.0) * below


def cross_entropy(model: Ngram, documents: Sequence[Sequence[int] | np.ndarray]) -> float:
    """Return the mean cost of a token of unseen documents, in bits (first tokens left out).

    Raises
    ------
    NgramError
        If no document has a second token.

    Examples
    --------
    >>> model = Ngram([[0, 1] * 500], vocab=2, order=2)
    >>> cross_entropy(model, [[0, 1] * 10]) < 0.01
    True
    """
    chances = model.probabilities(documents)
    if not len(chances):
        raise NgramError("nothing to predict: give documents of at least two tokens")
    return float(-np.log2(chances).mean())


def _join(documents: Sequence, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """All ids in a line, and how far each stands from its document's start."""
    arrays = [np.asarray(document, dtype=np.int64) for document in documents]
    ids = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab):
        raise NgramError(f"ids must lie in 0 to {vocab - 1}, not {ids.min()} to {ids.max()}")
    inside = [np.arange(len(array)) for array in arrays]
    return ids, np.concatenate(inside) if inside else ids


def _keys(ids: np.ndarray, inside: np.ndarray, vocab: int, n: int) -> np.ndarray:
    """Return the n-gram that ends at each place that has n − 1 places of its document before it."""
    at = np.flatnonzero(inside >= n - 1)
    keys = np.zeros(len(at), np.int64)
    for back in range(n - 1, -1, -1):
        keys = keys * vocab + ids[at - back]
    return keys


def _discounted(grams: np.ndarray, counts: np.ndarray, vocab: int) -> _Order:
    discounts = _discounts(counts)[np.minimum(counts, 3)]
    contexts, which = np.unique(grams // vocab, return_inverse=True)
    total = np.bincount(which, counts)
    return _Order(
        grams,
        (counts - discounts) / total[which],
        contexts,
        np.bincount(which, discounts) / total,
    )


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Return what is taken from counts of 0, 1, 2, and ≥ 3 (Chen and Goodman, equation 26)."""
    met = np.bincount(np.minimum(counts, 5), minlength=6)[1:5].astype(float)
    if not met.all():  # too small a sample for the estimate: half of each count of one
        return np.array([0.0, 0.5, 0.5, 0.5])
    share = met[0] / (met[0] + 2 * met[1])
    estimated = [n - (n + 1) * share * met[n] / met[n - 1] for n in (1, 2, 3)]
    return np.array([0.0, *np.clip(estimated, 0.05, (0.95, 1.95, 2.95))])


def _nothing() -> _Order:
    empty = np.empty(0, np.int64)
    return _Order(empty, np.empty(0), empty, np.empty(0))


def _find(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray, default: float) -> np.ndarray:
    if not len(keys):
        return np.full(len(wanted), default)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], default)
