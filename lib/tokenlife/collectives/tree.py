"""Trees: what one rank has, two have a round later; the rounds grow like log n.

A tree is an edge into each node but its root, and the round in which that edge first carries. Cut
the buffer into pieces, and an edge carries the next piece every ``period`` rounds, so that all
levels work at once. A tree of one child per node is a chain: n − 1 rounds to fill, then every link
is always busy.

In a binary tree half of the ranks are leaves, which receive and never send. The double tree [1]_
uses both halves of every port: half of the buffer runs down one tree, half down another whose inner
nodes are the leaves of the first.

References
----------
.. [1] P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast,
   reduction and scan", Parallel Computing 35(12), 2009.
"""

from functools import partial
from itertools import pairwise

import numpy as np

from tokenlife.collectives.compose import SCATTERS, TREES, registered, runs
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms, all_but_own, log2_down, log2_up, whole_buffers

_THAKUR = "R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005"
_SANDERS = "P. Sanders, J. Speck, J. L. Träff, Parallel Computing 35(12), 2009"


def stream(src, dst, first, period: int, pieces: int, offset=0, reduce=False) -> LazyRounds:
    """Return the rounds of edges that each carry ``pieces`` chunks, one every ``period`` rounds.

    Parameters
    ----------
    src, dst, first
        Ends of each edge, and the round of its first chunk; shape (edges,).
    period, pieces
        Rounds from one chunk to the next, and chunks.
    offset
        The first chunk of each edge.
    reduce
        Whether the receivers of an edge add.
    """
    offset, reduce = (np.broadcast_to(value, first.shape) for value in (offset, reduce))

    def carry(index: int) -> Round:
        piece, rest = np.divmod(index - first, period)
        on = (rest == 0) & (piece >= 0) & (piece < pieces)
        return Round.columns(src[on], dst[on], (offset + piece)[on], reduce=reduce[on])

    length = first.max() + period * (pieces - 1) + 1 if len(first) else 0
    return LazyRounds(int(length), carry)


@registered(TREES, "binomial", whole_buffers(log2_up), _THAKUR)
def binomial_broadcast(ranks: int, root: int = 0) -> Schedule:
    """Build the binomial broadcast: whoever has the buffer sends it on; fewest rounds."""
    node = np.arange(1, ranks)
    level = log2_down(node)
    src, dst = ((v + root) % ranks for v in (node - (1 << level), node))
    return Schedule("broadcast", "binomial", ranks, 1, stream(src, dst, level, 1, 1), root=root)


@registered(SCATTERS, "binomial", all_but_own(log2_up), _THAKUR)
def binomial_scatter(ranks: int, root: int = 0) -> Schedule:
    """Build the binomial scatter: whoever has blocks for others gives away half of them."""
    levels = int(log2_up(ranks))

    def halve(step: int) -> Round:
        reach = 1 << (levels - 1 - step)
        node = np.arange(0, ranks - reach, 2 * reach)
        count = np.minimum(reach, ranks - node - reach)
        src, dst = ((v + root) % ranks for v in (node, node + reach))
        return runs(src, dst, dst, count, ranks)

    return Schedule("scatter", "binomial", ranks, ranks, LazyRounds(levels, halve), root=root)


def _starts(most: int, fan: int) -> np.ndarray:
    """Return the first node of each level of a tree with ``fan`` children, counted by level."""
    starts = [0]
    while starts[-1] < most:
        starts.append(starts[-1] * fan + 1)
    return np.array(starts)


def _tree_terms(ranks, bytes_, fan: int, pieces: int) -> Terms:
    starts = _starts(np.max(ranks), fan)
    deepest = np.searchsorted(starts, ranks - 1, side="right") - 1
    # The last level may have fewer nodes than its parents could have children.
    last = np.minimum(fan, ranks - starts[deepest])
    rounds = np.minimum(fan, ranks - 1) * (deepest + pieces - 2) + last
    rounds = np.where(ranks > 1, rounds, 0)
    return Terms(rounds, rounds * bytes_ / pieces)


@registered(TREES, "tree", _tree_terms, _THAKUR)
def tree_broadcast(ranks: int, root: int = 0, fan: int = 2, pieces: int = 1) -> Schedule:
    """Build the tree: every node sends on to its children, piece after piece.

    A node sends each piece to its children one after the other: ``fan`` rounds for each level.

    Parameters
    ----------
    ranks, root
        Size of the group, and where the buffer is.
    fan
        Children of a node; 1 makes a chain.
    pieces
        Pieces of the buffer, which follow each other down the tree.
    """
    node = np.arange(1, ranks)
    period = max(1, min(fan, ranks - 1))
    level = np.searchsorted(_starts(ranks, fan), node, side="right") - 1
    src, dst = ((v + root) % ranks for v in ((node - 1) // fan, node))
    rounds = stream(src, dst, period * (level - 1) + (node - 1) % fan, period, pieces)
    return Schedule("broadcast", "tree", ranks, 1, rounds, pieces, root)


@registered(TREES, "chain", partial(_tree_terms, fan=1), _THAKUR)
def chain_broadcast(ranks: int, root: int = 0, pieces: int = 1) -> Schedule:
    """Build the chain: from neighbour to neighbour, piece after piece; for very long buffers."""
    return tree_broadcast(ranks, root, 1, pieces).renamed(algorithm="chain")


def _double_terms(ranks, bytes_, pieces: int) -> Terms:
    rounds = np.where(ranks > 1, 2 * (log2_down(np.maximum(ranks - 1, 1)) + pieces), 0)
    return Terms(rounds, rounds * bytes_ / (2 * pieces))


@registered(TREES, "double_tree", _double_terms, _SANDERS)
def double_tree_broadcast(ranks: int, root: int = 0, pieces: int = 1) -> Schedule:
    """Build the double tree: half of the buffer down each of two trees, at full bandwidth.

    The root feeds two binary trees over the other ranks, in turn. Node v of one tree is node
    n − 2 − v of the other, so nobody has children in both. A level takes two rounds, one for each
    child; a rank must not hear from both parents in the same one, so edges take even and odd
    rounds as :func:`_parities` finds them.

    Parameters
    ----------
    ranks, root
        Size of the group, and where the buffer is.
    pieces
        Pieces of each half.
    """
    others = ranks - 1
    node = np.arange(others)
    parent = np.where(node > 0, (node - 1) // 2, -1)
    child = np.concatenate([node, others - 1 - node])
    parent = np.concatenate([parent, np.where(parent < 0, -1, others - 1 - parent)])
    first = np.tile(2 * log2_down(node + 1), 2) + _parities(parent, child)
    # Node −1 is the root.
    src, dst = ((v + root + 1) % ranks for v in (parent, child))
    rounds = stream(src, dst, first, 2, pieces, np.repeat([0, pieces], others))
    return Schedule("broadcast", "double_tree", ranks, 1, rounds, 2 * pieces, root)


def _parities(parent: np.ndarray, child: np.ndarray) -> np.ndarray:
    """Give each edge 0 or 1, so that no node sends twice, or is sent to twice, in the same half.

    A node has at most two edges out and at most two in, so edges that exclude each other form paths
    and even rings: walking along them in turn always works.
    """
    rivals = [[] for _ in child]
    for ends in (parent, child):
        order = np.argsort(ends, kind="stable")
        for a, b in pairwise(order):
            if ends[a] == ends[b]:
                rivals[a].append(b)
                rivals[b].append(a)
    half = np.full(len(child), -1)
    for start in range(len(child)):
        walk = [(start, 0)]
        while walk:
            edge, turn = walk.pop()
            if half[edge] < 0:
                half[edge] = turn
                walk += [(rival, 1 - turn) for rival in rivals[edge]]
    return half
