"""The same tokeniser in its most readable form: every count made anew, no index, no cache.

Read this first. Training recounts all pairs of the corpus at each merge; encoding scans a piece for
its best pair at each merge. Both are right, and slow in an instructive way: training costs
(merges × corpus), and a long piece costs the square of its length. ``bpe``, ``merge`` and
``tokenizer`` give the same results; the tests hold them equal, ``make bench`` says by how much they
are faster.

It is the algorithm of minbpe's regex tokeniser (Karpathy 2024), with the tie rule of ``bpe``.
"""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tokenlife.tokenizer.bpe import Pair, join
from tokenlife.tokenizer.byte_alphabet import byte_order
from tokenlife.tokenizer.pretokenize import Pretokenizer


def base_ids(piece: str) -> list[int]:
    """Return the ids of the single bytes of a piece.

    Examples
    --------
    >>> base_ids("!é")
    [0, 127, 102]
    """
    return [byte_order().index(byte) for byte in piece.encode()]


def train(texts: Iterable[str], n_merges: int, cut: Pretokenizer) -> list[Pair]:
    """Learn merges: count all pairs, merge the most frequent, repeat.

    Examples
    --------
    >>> from tokenlife.tokenizer import bpe, pretokenizer
    >>> cut, texts = pretokenizer("gpt2"), ["a rose is a rose is a rose"]
    >>> train(texts, 6, cut) == bpe.learn_merges(bpe.count_pieces(texts, cut), 6)
    True
    """
    words = [base_ids(piece) for text in texts for piece in cut.split(text)]
    merges = []
    while len(merges) < n_merges:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts:
            break
        # The most frequent pair; of equals, the smallest.
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        words = [join(word, best, 256 + len(merges)) for word in words]
        merges.append(best)
    return merges


def encode(text: str, merges: list[Pair], cut: Pretokenizer) -> list[int]:
    """Encode text: in each piece, merge the earliest-learnt pair until none is left.

    Examples
    --------
    >>> from tokenlife.tokenizer import pretokenizer
    >>> encode("aaa", [(64, 64)], pretokenizer("gpt2"))
    [256, 64]
    """
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    ids = []
    for piece in cut.split(text):
        word = base_ids(piece)
        while len(word) > 1:
            best = min(pairwise(word), key=lambda pair: ranks.get(pair, math.inf))
            if best not in ranks:
                break
            word = join(word, best, 256 + ranks[best])
        ids += word
    return ids


def decode(ids: list[int], merges: list[Pair]) -> bytes:
    """Decode ids: unfold each merge back into the two ids it joined.

    Examples
    --------
    >>> decode([256, 64], [(64, 64)])
    b'aaa'
    """
    tokens = [bytes([byte]) for byte in byte_order()]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    return b"".join(tokens[id_] for id_ in ids)
