"""Reduction in the network: switches add, so a rank sends its buffer once and receives it once.

A *switch tree*, like SHARP [1]_: each rank sends its buffer up, every switch adds what its ports
bring, and the sum comes back down. Cut into pieces, up and down are under way at once, and the time
is that of S bytes, not the 2S of a ring.

*NVLS*, the NVLink switch that adds [2]_: rank r asks the switch for the sum of block r, which reads
all ranks; then it writes the sum to a multicast address, and all ranks receive it. S + S/n in each
direction. Alone, the halves are a reduce-scatter and an all-gather.

A switch adds at the speed of its links: it pays no γ here. Left out: the buffers of a switch, which
limit how many pieces can be under way.

References
----------
.. [1] R. L. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC 2016.
.. [2] A. Ishii, R. Wells, "The NVLink-network switch", Hot Chips 34, 2022.
"""

from functools import partial

import numpy as np

from tokenlife.collectives.compose import pipelined, registered
from tokenlife.collectives.registry import Algorithm, register
from tokenlife.collectives.schedule import Round, Schedule
from tokenlife.collectives.terms import Terms
from tokenlife.collectives.tree import stream

_SHARP = "R. L. Graham et al., COMHPC 2016"
_NVLS = "A. Ishii, R. Wells, Hot Chips 34, 2022"


def _switch_tree_terms(ranks, bytes_, radix: int, pieces: int) -> Terms:
    levels, reach = 0 * ranks, 1
    while reach < np.max(ranks):
        levels, reach = levels + (reach < ranks), reach * radix
    rounds = np.where(levels > 0, 2 * levels + pieces - 1, 0)
    return Terms(rounds, rounds * bytes_ / pieces)


_RADIX = {"supports": lambda ranks, radix, pieces: radix > 1, "counts": "a `radix` above 1"}


@registered("all_reduce", "switch_tree", _switch_tree_terms, _SHARP, **_RADIX)
def switch_tree_all_reduce(ranks: int, radix: int = 64, pieces: int = 1) -> Schedule:
    """Build the switch tree: switches add on the way up and copy on the way down.

    Parameters
    ----------
    ranks
        Size of the group.
    radix
        Ports of a switch that lead down.
    pieces
        Pieces of the buffer, which follow each other.

    Examples
    --------
    >>> schedule = switch_tree_all_reduce(8, radix=4)
    >>> schedule.switches, len(schedule.rounds)
    (3, 4)
    """
    below, low, high, level = np.arange(ranks), [], [], []
    while len(below) > 1:
        above = below[-1] + 1 + np.arange(-(-len(below) // radix))
        level += [len(set(level))] * len(below)
        low, high = [*low, *below], [*high, *above[np.arange(len(below)) // radix]]
        below = above
    level = np.array(level, dtype=int)
    first = np.concatenate([level, 2 * level.max(initial=0) + 1 - level])
    up = np.arange(len(first)) < len(level)
    rounds = stream(np.array(low + high), np.array(high + low), first, 1, pieces, reduce=up)
    switches = len(set(high))
    return Schedule("all_reduce", "switch_tree", ranks, 1, rounds, pieces=pieces, switches=switches)


# What each rank exchanges with the switch in each round: up or down, its own block or all of them.
_STAGES = {
    "reduce_scatter": (("up", "all"), ("down", "own")),
    "all_gather": (("up", "own"), ("down", "all")),
    "all_reduce": (("up", "all"), ("down", "own"), ("up", "own"), ("down", "all")),
}


def nvls(kind: str, ranks: int, pieces: int = 1) -> Schedule:
    """Build a collective through one switch that adds and multicasts.

    Parameters
    ----------
    kind
        ``"reduce_scatter"``, ``"all_gather"`` or ``"all_reduce"``.
    ranks
        Size of the group.
    pieces
        Pieces of each block, which follow each other.
    """
    rank, rounds = np.arange(ranks), []
    for way, what in _STAGES[kind] if ranks > 1 else ():
        src, dst = (rank, ranks) if way == "up" else (ranks, rank)
        chunk, count = (rank, 1) if what == "own" else (0, ranks)
        adds = (way, what) == ("up", "all")
        rounds.append(Round.columns(src, dst, chunk, reduce=adds, count=count))
    schedule = Schedule(kind, "nvls", ranks, ranks, tuple(rounds), switches=1)
    # Two pieces on the same way between a rank and the switch are one message.
    return pipelined(schedule, pieces).renamed(ports=1)


def _nvls_terms(kind: str, ranks, bytes_, pieces: int = 1) -> Terms:
    stages, whole, share = _STAGES[kind], 0, 0
    rounds = len(stages) + pieces - 1
    for index in range(rounds):
        running = stages[max(0, index - pieces + 1) : index + 1]
        both = [[running.count((way, what)) for what in ("all", "own")] for way in ("up", "down")]
        whole, share = whole + max(both)[0], share + max(both)[1]
    many = ranks > 1
    return Terms(many * rounds, many * (whole + share / ranks) * bytes_ / pieces)


for _kind in _STAGES:
    register(
        Algorithm(
            _kind,
            "nvls",
            partial(nvls, _kind),
            partial(_nvls_terms, _kind),
            "the switch sums a block of all ranks, or multicasts the block of one",
            _NVLS,
            options={"pieces": 1},
            once=_kind != "all_reduce",
        )
    )
