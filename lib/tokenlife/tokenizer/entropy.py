"""How many bits a token carries, against how many it takes on a wire.

Entropy is a property of a source, and nobody has the source: there is only a sample. What is
computed here, and on which side of the truth it errs:

``plug_in``
    entropy of the observed frequencies; **too low**, since a rare token that was not met counts as
    impossible;
``miller_madow``
    the same with the first term of that error added back, (K − 1) / 2N nats for K distinct tokens
    among N; good while N is much larger than K;
``conditional_entropy``
    of a token given the n − 1 before it, plug-in; far too low as soon as most contexts were met
    once (in the limit it says 0 bits);
``cross_entropy``
    cost of unseen text under an n-gram model learnt from other text; **too high**, as every real
    model is. It is a size that can really be reached.

The truth for a given n lies between the last two. To compare vocabularies, divide by bytes: a
longer token carries more, so bits per token do not compare.

Sources: Shannon 1951; Miller 1955; Witten and Bell 1991 (method C, for the n-gram model).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenlife.tokenizer import codes
from tokenlife.tokenizer.encoding import Encoding
from tokenlife.tokenizer.errors import EmptyCorpus


def _observed(ids: Sequence[int]) -> np.ndarray:
    counts = np.unique(np.asarray(ids), return_counts=True)[1]
    if not counts.size:
        raise EmptyCorpus("no tokens: entropy needs a sample")
    return counts


def _entropy(counts: np.ndarray) -> float:
    shares = counts / counts.sum()
    return max(0.0, float(-(shares * np.log2(shares)).sum()))


def plug_in(ids: Sequence[int]) -> float:
    """Return the entropy of the observed frequencies, in bits per token.

    Raises
    ------
    EmptyCorpus
        If there are no tokens.

    Examples
    --------
    >>> plug_in([1, 2, 3, 4]), plug_in([7, 7, 7])
    (2.0, 0.0)
    """
    return _entropy(_observed(ids))


def miller_madow(ids: Sequence[int]) -> float:
    """Return the plug-in entropy with its first-order bias removed, in bits per token.

    Examples
    --------
    >>> miller_madow([1, 2, 3, 4]) > plug_in([1, 2, 3, 4])
    True
    """
    counts = _observed(ids)
    return _entropy(counts) + float(counts.size - 1) / (2 * int(counts.sum()) * math.log(2))


def conditional_entropy(ids: Sequence[int], n: int) -> float:
    """Return the plug-in entropy of a token given the ``n - 1`` before it, in bits per token.

    Examples
    --------
    >>> conditional_entropy([0, 1] * 50, 2)         # the next token is certain
    0.0
    """
    ids = np.asarray(ids)
    contexts = np.zeros(len(ids) - n + 1, dtype=np.int64)
    for k in range(n - 1):
        contexts = _renumber(contexts, ids[k : len(ids) - n + 1 + k])
    whole = _renumber(contexts, ids[n - 1 :])
    return max(0.0, plug_in(whole) - plug_in(contexts))


def _renumber(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Replace each distinct pair of two arrays by a number of its own."""
    pairs = first.astype(np.int64) * (int(second.max(initial=0)) + 1) + second
    return np.unique(pairs, return_inverse=True)[1]


def cross_entropy(known: Sequence[int], unseen: Sequence[int], n_vocab: int, n: int) -> float:
    """Return the cost of unseen tokens under an n-gram model of known ones, in bits per token.

    The model backs off by Witten and Bell's method: a context followed by ``t`` distinct tokens in
    ``c`` places gives the shorter context a share of ``t / (c + t)``. Below the unigram stands the
    uniform distribution over the vocabulary, so nothing is impossible.

    Parameters
    ----------
    known, unseen
        Ids to learn from and to pay for.
    n_vocab
        Number of ids.
    n
        Order: 1 looks at no context.

    Examples
    --------
    >>> cross_entropy([0, 1] * 500, [0, 1] * 10, 2, 2) < 0.1
    True
    """
    if not len(unseen) or not len(known):
        raise EmptyCorpus("no tokens: cross-entropy needs known and unseen ones")
    known, unseen = tuple(known), tuple(unseen)
    grams: Counter[tuple] = Counter()
    for order in range(1, n + 1):
        grams.update(zip(*(known[k:] for k in range(order)), strict=False))
    # How often each context was met with something after it, and with how many different tokens.
    times, distinct = Counter(), Counter()
    for gram, count in grams.items():
        times[gram[:-1]] += count
        distinct[gram[:-1]] += 1
    bits = 0.0
    for i in range(len(unseen)):
        chance = 1 / n_vocab
        for start in range(i, max(-1, i - n), -1):
            gram = unseen[start : i + 1]
            if not (c := times[gram[:-1]]):
                break  # a longer context was never met either
            t = distinct[gram[:-1]]
            chance = (grams[gram] + t * chance) / (c + t)
        bits -= math.log2(chance)
    return bits / len(unseen)


def unigram_counts(ids: Sequence[int], n_vocab: int) -> np.ndarray:
    """Count each id, and add one, so that a code built on the counts can write every id.

    Examples
    --------
    >>> unigram_counts([0, 2, 2], 4)
    array([2, 1, 3, 1])
    """
    return np.bincount(np.asarray(ids, dtype=np.int64), minlength=n_vocab) + 1


def code_length(ids: Sequence[int], counts: np.ndarray) -> float:
    """Return the ideal length of ids under given counts, in bits: the sum of ``-log2(share)``.

    Examples
    --------
    >>> code_length([0, 1], np.array([2, 2]))
    2.0
    """
    counts = np.asarray(counts)
    return float(np.log2(counts.sum() / counts[np.asarray(ids, dtype=np.int64)]).sum())


@dataclass(frozen=True)
class Representation:
    """One way to write a text down: its name, its bits, and what it assumes."""

    name: str
    bits: float
    note: str


def representations(
    encoding: Encoding, n_vocab: int, counts: np.ndarray | None = None
) -> list[Representation]:
    """List the sizes of one text in every form of this module.

    Parameters
    ----------
    encoding
        The text and its ids.
    n_vocab
        Number of ids of the vocabulary.
    counts
        Counts of the ids in a corpus (:func:`unigram_counts`); with them the entropy code and its
        ideal length are listed too.

    Examples
    --------
    >>> e = Encoding("hi", "book", (71,), (b"hi",), ((0, 2),))
    >>> [(r.name, r.bits) for r in representations(e, 4096)][:4]
    [('UTF-8', 16), ('uint32 ids', 32), ('uint16 ids', 16), ('varint ids', 8)]
    """
    ids, raw = encoding.ids, encoding.text.encode()
    rows = [
        Representation("UTF-8", 8 * len(raw), "the text itself"),
        Representation("uint32 ids", 32 * len(ids), "how frameworks hold them (or 64 bits)"),
    ]
    if codes.fixed_width(n_vocab).itemsize == 2:
        rows.append(Representation("uint16 ids", 16 * len(ids), "token files, if V ≤ 65,536"))
    rows += [
        Representation("varint ids", 8 * len(codes.varint(ids)), "seven bits a byte"),
        Representation("log₂ V", len(ids) * math.log2(n_vocab), "all ids equally likely"),
    ]
    if counts is not None:
        coded = codes.arithmetic_encode(ids, counts)
        rows += [
            Representation("unigram, ideal", code_length(ids, counts), "−log₂ of each id's share"),
            Representation("unigram, coded", 8 * len(coded), "arithmetic code, table not sent"),
        ]
    for method in ("gzip", "zstd"):
        size = 8 * len(codes.compress(raw, method))
        rows.append(Representation(f"{method} of UTF-8", size, "alone, header included"))
    return rows
