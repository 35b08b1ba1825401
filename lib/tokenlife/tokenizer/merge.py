"""Merging one piece: from bytes to tokens, the earliest-learnt pair first.

The rule of byte-pair encoding: look at all neighbours, merge the pair of lowest rank (the leftmost
one if several have it), repeat until no neighbours have a rank. Looking at all neighbours each time
costs n² for a piece of n bytes. That is the fastest way while a piece is a word; for a longer one,
a heap holds the candidates and a doubly linked list the survivors: n log n, so that a megabyte
without a space takes seconds.

Two rules say what the rank of a pair is, and they are not the same:

- ``by_token`` (tiktoken): the rank of a pair is the id of the token it spells, however that token
  was once made.
- ``by_pair`` (Hugging Face ``tokenizers``): only the listed pairs merge, in the order of the list.
"""

import sys
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

Rank = Callable[[int, int], int]
NEVER = sys.maxsize  # the rank of a pair that does not merge
_SCANNED = 100  # bytes up to which scanning is the faster way; both ways give the same tokens


def by_token(ids: dict[bytes, int], tokens: dict[int, bytes]) -> Rank:
    """Return tiktoken's rule: rank is the id of the joined bytes.

    Examples
    --------
    >>> rank = by_token({b"a": 0, b"b": 1, b"ab": 2}, {0: b"a", 1: b"b", 2: b"ab"})
    >>> rank(0, 1), rank(1, 0) == NEVER
    (2, True)
    """
    get = ids.get
    return lambda left, right: get(tokens[left] + tokens[right], NEVER)


def by_pair(merges: Sequence[tuple[int, int]]) -> Rank:
    """Return Hugging Face's rule: rank is the pair's place in the list of merges.

    Examples
    --------
    >>> rank = by_pair([(0, 1), (2, 2)])
    >>> rank(2, 2), rank(1, 0) == NEVER
    (1, True)
    """
    # Were a pair listed twice, the later place would count, as in `tokenizers`.
    get = {pair: rank for rank, pair in enumerate(merges)}.get
    return lambda left, right: get((left, right), NEVER)


def merge(symbols: Sequence[int], rank: Rank, product: Callable[[int], int]) -> list[int]:
    """Merge a piece until no pair has a rank.

    Parameters
    ----------
    symbols
        Ids of the piece's single bytes.
    rank
        ``(left id, right id)`` → rank, or :data:`NEVER`.
    product
        rank → id of the merged token.

    Examples
    --------
    >>> rank = by_pair([(0, 0), (1, 0)])            # aa first, then aa+a
    >>> merge([0, 0, 0, 0, 0], rank, lambda r: r + 1)
    [1, 2]
    """
    way = scan if len(symbols) <= _SCANNED else pick
    return way(list(symbols), rank, product)


def scan(symbols: list[int], rank: Rank, product: Callable[[int], int]) -> list[int]:
    """Merge by looking for the lowest rank among all neighbours each time.

    Examples
    --------
    >>> scan([0, 0, 0, 0, 0], by_pair([(0, 0), (1, 0)]), lambda r: r + 1)
    [1, 2]
    """
    ranks = [rank(left, right) for left, right in pairwise(symbols)]
    while ranks and (lowest := min(ranks)) != NEVER:
        i = ranks.index(lowest)
        symbols[i : i + 2] = [product(lowest)]
        del ranks[i]
        if i < len(ranks):
            ranks[i] = rank(symbols[i], symbols[i + 1])
        if i:
            ranks[i - 1] = rank(symbols[i - 1], symbols[i])
    return symbols


def pick(symbols: list[int], rank: Rank, product: Callable[[int], int]) -> list[int]:
    """Merge by taking the lowest rank from a heap; what has changed since is skipped.

    Examples
    --------
    >>> pick([0, 0, 0, 0, 0], by_pair([(0, 0), (1, 0)]), lambda r: r + 1)
    [1, 2]
    """
    n = len(symbols)
    before, after = list(range(-1, n - 1)), list(range(1, n + 1))
    # ranks[i]: rank of the pair that starts at i now. A heap entry that says otherwise is stale.
    ranks = [rank(left, right) for left, right in pairwise(symbols)] + [NEVER]
    heap = [(r, i) for i, r in enumerate(ranks) if r != NEVER]
    heapify(heap)
    gone = -1
    while heap:
        r, i = heappop(heap)
        if ranks[i] != r:
            continue
        j = after[i]
        k = after[i] = after[j]
        symbols[i], symbols[j], ranks[i], ranks[j] = product(r), gone, NEVER, NEVER
        if k < n:
            before[k] = i
            ranks[i] = rank(symbols[i], symbols[k])
            if ranks[i] != NEVER:
                heappush(heap, (ranks[i], i))
        if (h := before[i]) >= 0:
            ranks[h] = rank(symbols[h], symbols[i])
            if ranks[h] != NEVER:
                heappush(heap, (ranks[h], h))
    return [symbol for symbol in symbols if symbol != gone]
