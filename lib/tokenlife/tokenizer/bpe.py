"""Training byte-level BPE: count pairs once, then keep the counts up to date.

The method: start from bytes; merge the most frequent pair of neighbours into a new token; repeat.
Recounting all pairs at each of thousands of merges is what makes the plain version slow (see
``naive``). Here

* each distinct piece is held once, with its number of occurrences;
* for each pair, its count and the pieces that hold it are kept, so that a merge touches only those;
* a heap proposes the most frequent pair; a proposal whose count is out of date is put back.

**The rule for ties.** Of pairs with equal counts, the one with the smallest left id merges first,
then the one with the smallest right id; the base ids follow ``byte_alphabet.byte_order``. It is the
rule of Hugging Face's trainer, and with the same cut the merges are equal to its.

Counts are of neighbouring places, so "aaaa" holds the pair (a, a) three times though only two can
merge. Pieces do not cross the pre-tokeniser's cuts, and no pair crosses two pieces.

Source: Sennrich et al. 2016, section 3.2; the incremental counts follow the end of that section.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from tokenlife.tokenizer.byte_alphabet import byte_order
from tokenlife.tokenizer.errors import EmptyCorpus, TrainingError, TrainingStopped
from tokenlife.tokenizer.pretokenize import Pretokenizer, pretokenizer
from tokenlife.tokenizer.tokenizer import Tokenizer

Pair = tuple[int, int]


def count_pieces(texts: Iterable[str], cut: Pretokenizer) -> Counter[str]:
    """Count the distinct pieces of a corpus.

    Examples
    --------
    >>> count_pieces(["a rose is a rose"], pretokenizer("gpt2"))
    Counter({' rose': 2, 'a': 1, ' is': 1, ' a': 1})
    """
    pieces = Counter()
    for text in texts:
        pieces.update(cut.split(cut.normalize(text)))
    return pieces


def learn_merges(pieces: Mapping[str, int], n_merges: int) -> list[Pair]:
    """Learn merges from counted pieces.

    Parameters
    ----------
    pieces
        Piece → number of occurrences.
    n_merges
        How many merges; fewer come back if no pair is left.

    Returns
    -------
    list of (int, int)
        Merge ``n`` joins these two ids into id ``256 + n``.

    Examples
    --------
    >>> from tokenlife.tokenizer.byte_alphabet import byte_order
    >>> merges = learn_merges({"aaaa": 1, "ab": 2}, 3)
    >>> a, b = byte_order().index(97), byte_order().index(98)
    >>> merges == [(a, a), (a, b), (256, 256)]
    True
    """
    base = {byte: id_ for id_, byte in enumerate(byte_order())}
    words = [[base[byte] for byte in piece.encode()] for piece in pieces]
    times = list(pieces.values())
    counts, where = _count_pairs(words, times)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapify(heap)
    merges: list[Pair] = []
    while heap and len(merges) < n_merges:
        negative, pair = heappop(heap)
        count = counts[pair]
        if -negative != count:
            if count > 0:
                heappush(heap, (-count, pair))
            continue
        new = len(base) + len(merges)
        merges.append(pair)
        grown = set()
        for n in where.pop(pair):
            word, time = words[n], times[n]
            merged = join(word, pair, new)
            if len(merged) == len(word):
                continue  # a stale place: an earlier merge took the pair away
            for old in pairwise(word):
                counts[old] -= time
            for fresh in pairwise(merged):
                counts[fresh] += time
                if new in fresh:
                    where[fresh].add(n)
                    grown.add(fresh)
            words[n] = merged
        del counts[pair]
        for fresh in grown:
            heappush(heap, (-counts[fresh], fresh))
    return merges


def _count_pairs(words: list[list[int]], times: list[int]):
    counts, where = defaultdict(int), defaultdict(set)
    for n, word in enumerate(words):
        for pair in pairwise(word):
            counts[pair] += times[n]
            where[pair].add(n)
    return counts, where


def join(symbols: Sequence[int], pair: Pair, new: int) -> list[int]:
    """Replace each occurrence of ``pair``, from the left, by ``new``.

    Examples
    --------
    >>> join([5, 5, 5, 7], (5, 5), 256)
    [256, 5, 7]
    """
    left, right = pair
    joined, i, last = [], 0, len(symbols) - 1
    while i <= last:
        if i < last and symbols[i] == left and symbols[i + 1] == right:
            joined.append(new)
            i += 2
        else:
            joined.append(symbols[i])
            i += 1
    return joined


def train(
    texts: Iterable[str],
    *,
    n_vocab: int | None = None,
    n_merges: int | None = None,
    pattern: str | Pretokenizer = "gpt2",
    special: Sequence[str] = (),
    name: str = "trained",
) -> Tokenizer:
    """Train a byte-level BPE tokeniser.

    Parameters
    ----------
    texts
        The corpus; pieces do not cross from one text to the next.
    n_vocab, n_merges
        The size: give one. ``n_vocab`` counts the 256 bytes and the special tokens.
    pattern
        A name of ``pretokenize.PATTERNS``, or a cut of your own.
    special
        Special tokens; they take the last ids.
    name
        What to call the vocabulary.

    Raises
    ------
    EmptyCorpus
        If the texts hold nothing.
    TrainingError
        If the size asked for is impossible.

    Warns
    -----
    TrainingStopped
        If no pair was left before the size was reached; the tokeniser is then smaller.

    Examples
    --------
    >>> tokenizer = train(["low lower lowest"], n_merges=3)
    >>> tokenizer.encoding(" lower").pieces
    (b' low', b'e', b'r')
    """
    if isinstance(texts, str):
        texts = [texts]
    if (n_vocab is None) == (n_merges is None):
        raise TrainingError("give either n_vocab or n_merges")
    wanted = n_merges if n_vocab is None else n_vocab - 256 - len(special)
    if wanted < 0:
        raise TrainingError(
            f"{wanted} merges asked; n_vocab must cover 256 bytes and special tokens"
        )
    cut = pretokenizer(pattern) if isinstance(pattern, str) else pattern
    pieces = count_pieces(texts, cut)
    if not pieces:
        raise EmptyCorpus("the corpus is empty: there is nothing to learn merges from")
    merges = learn_merges(pieces, wanted)
    if len(merges) < wanted:
        warnings.warn(
            f"training stopped after {len(merges)} of {wanted} merges: no pair is left",
            TrainingStopped,
            stacklevel=2,
        )
    return assemble(merges, cut, special, name)


def assemble(
    merges: Sequence[Pair], cut: Pretokenizer, special: Sequence[str] = (), name: str = "trained"
) -> Tokenizer:
    """Make a tokeniser of learnt merges: 256 bytes, the merges' tokens, the special tokens.

    Examples
    --------
    >>> assemble([(64, 65)], pretokenizer("gpt2")).decode([256])
    'ab'
    """
    tokens = [bytes([byte]) for byte in byte_order()]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    ids = {token: id_ for id_, token in enumerate(tokens)}
    markers = {text: len(tokens) + n for n, text in enumerate(special)}
    return Tokenizer(name, ids, cut, markers, merges)
