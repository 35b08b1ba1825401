"""Merging one piece: from bytes to tokens, the earliest-learnt pair first.

The rule of byte-pair encoding: look at all neighbours, merge the pair of lowest rank (the leftmost
one if several have it), repeat until no neighbours have a rank. Scanning all neighbours at each
step costs n² for a piece of n bytes. Here a heap holds the candidates and a doubly linked list the
survivors: n log n, so a megabyte without a space takes seconds. ``naive`` has the n² version.

Two rules say what the rank of a pair is, and they are not the same:

``by_token``  (tiktoken) the rank of a pair is the id of the token it spells, however that token was
              once made.
``by_pair``   (Hugging Face ``tokenizers``) only the listed pairs merge, in the order of the list.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

Rank = Callable[[int, int], int | None]


def by_token(ids: dict[bytes, int], tokens: dict[int, bytes]) -> Rank:
    """Return tiktoken's rule: rank is the id of the joined bytes.

    Examples
    --------
    >>> rank = by_token({b"a": 0, b"b": 1, b"ab": 2}, {0: b"a", 1: b"b", 2: b"ab"})
    >>> rank(0, 1), rank(1, 0)
    (2, None)
    """
    get = ids.get
    return lambda left, right: get(tokens[left] + tokens[right])


def by_pair(merges: Sequence[tuple[int, int]]) -> Rank:
    """Return Hugging Face's rule: rank is the pair's place in the list of merges.

    Examples
    --------
    >>> rank = by_pair([(0, 1), (2, 2)])
    >>> rank(2, 2), rank(1, 0)
    (1, None)
    """
    # The first of two equal pairs would be overwritten; the later one counts in `tokenizers` too.
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    return lambda left, right: ranks.get((left, right))


def merge(symbols: Sequence[int], rank: Rank, product: Callable[[int], int]) -> list[int]:
    """Merge a piece until no pair has a rank.

    Parameters
    ----------
    symbols
        Ids of the piece's single bytes.
    rank
        ``(left id, right id)`` → rank, or ``None`` if the two do not merge.
    product
        rank → id of the merged token.

    Examples
    --------
    >>> rank = by_pair([(0, 0), (1, 0)])            # aa first, then aa+a
    >>> merge([0, 0, 0, 0, 0], rank, lambda r: r + 1)
    [1, 2]
    """
    n = len(symbols)
    symbols: list[int | None] = list(symbols)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    # ranks[i]: rank of the pair that starts at i now. A heap entry that says otherwise is stale.
    ranks = [rank(left, right) for left, right in pairwise(symbols)] + [None]
    heap = [(r, i) for i, r in enumerate(ranks) if r is not None]
    heapify(heap)
    while heap:
        r, i = heappop(heap)
        if ranks[i] != r:
            continue
        j = after[i]
        k = after[i] = after[j]
        symbols[i], symbols[j], ranks[j] = product(r), None, None
        if k < n:
            before[k] = i
            ranks[i] = renewed = rank(symbols[i], symbols[k])
            if renewed is not None:
                heappush(heap, (renewed, i))
        else:
            ranks[i] = None
        h = before[i]
        if h >= 0:
            ranks[h] = renewed = rank(symbols[h], symbols[i])
            if renewed is not None:
                heappush(heap, (renewed, h))
    return [symbol for symbol in symbols if symbol is not None]
