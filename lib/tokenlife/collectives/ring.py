"""The ring: each rank talks only to the next one, and every link is busy in every round.

An all-reduce of S bytes over n ranks is a reduce-scatter followed by an all-gather, n − 1 rounds
each, of chunks of S/n. Every rank sends 2(n − 1)/n · S, which no algorithm without help from the
network can better [1]_. The price is 2(n − 1) rounds of latency.

With two ports the blocks run both ways around, and half the rounds are enough. With more, several
rings of different strides carry a share of the buffer each.

References
----------
.. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
   workstations", J. Parallel Distrib. Comput. 69(2), 2009.
"""

from itertools import islice
from math import gcd

import numpy as np

from tokenlife.collectives.compose import GATHERS, registered
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule, ScheduleError
from tokenlife.collectives.terms import Terms, all_but_own, others

_SOURCE = "P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69(2), 2009"


def _shifts(ranks: int, first: int, *, reduce: bool) -> LazyRounds:
    """Return n − 1 rounds to the next rank; in round t rank r sends chunk r − first − t."""
    rank = np.arange(ranks)

    def shift(step: int) -> Round:
        return Round.columns(rank, (rank + 1) % ranks, (rank - first - step) % ranks, reduce=reduce)

    return LazyRounds(ranks - 1, shift)


def _adding(ranks, bytes_) -> Terms:
    sent = (ranks - 1) / ranks * bytes_
    return Terms(ranks - 1, sent, sent)


@registered("reduce_scatter", "ring", _adding, _SOURCE)
def ring_reduce_scatter(ranks: int) -> Schedule:
    """Build the ring reduce-scatter: every block passes all ranks and grows; least bytes."""
    return Schedule("reduce_scatter", "ring", ranks, ranks, _shifts(ranks, 1, reduce=True))


@registered("all_gather", "ring", all_but_own(others), _SOURCE)
def ring_all_gather(ranks: int) -> Schedule:
    """Build the ring all-gather: every block travels once around; least bytes."""
    return Schedule("all_gather", "ring", ranks, ranks, _shifts(ranks, 0, reduce=False))


def _both(ranks, bytes_) -> Terms:
    return _adding(ranks, bytes_) + all_but_own(others)(ranks, bytes_)


@registered("all_reduce", "ring", _both, _SOURCE)
def ring_all_reduce(ranks: int) -> Schedule:
    """Build the ring all-reduce: a ring reduce-scatter, then a ring all-gather; least bytes.

    Parameters
    ----------
    ranks
        Size of the group, at least 1.

    Examples
    --------
    >>> schedule = ring_all_reduce(4)
    >>> len(schedule.rounds), schedule.bytes_sent_per_rank(items=1000, item_bytes=4).tolist()
    (6, [6000, 6000, 6000, 6000])
    """
    if ranks < 1:
        raise ScheduleError(f"a ring needs at least one rank, not {ranks}")
    rounds = _shifts(ranks, 1, reduce=True) + _shifts(ranks, 0, reduce=False)
    return Schedule("all_reduce", "ring", ranks, ranks, rounds)


def _half_around(ranks, bytes_) -> Terms:
    return Terms(ranks // 2, ranks // 2 * bytes_ / ranks)


@registered(GATHERS, "bidirectional_ring", _half_around, _SOURCE)
def bidirectional_all_gather(ranks: int) -> Schedule:
    """Build the bidirectional ring: both ways around at once; half the rounds, at two ports."""
    rank = np.arange(ranks)

    def shift(step: int) -> Round:
        # With an even number the farthest rank is reached from one side only.
        ways = (1, -1) if 2 * step + 2 < ranks else (1,)
        src = np.tile(rank, len(ways))
        way = np.repeat(ways, ranks)
        return Round.columns(src, (src + way) % ranks, (src - way * step) % ranks, reduce=False)

    rounds = LazyRounds(ranks // 2, shift)
    return Schedule("all_gather", "bidirectional_ring", ranks, ranks, rounds, ports=2)


def _strides(ranks: int, most: int) -> list[int]:
    return list(islice((s for s in range(1, ranks) if gcd(s, ranks) == 1), most))


def _channel_terms(ranks, bytes_, channels: int) -> Terms:
    return Terms(ranks - 1, (ranks - 1) / ranks * bytes_ / channels)


_CHANNELS = {
    "supports": lambda ranks, channels: len(_strides(ranks, channels)) == channels,
    "counts": "as many strides without a common factor with it as there are `channels`",
}


@registered(GATHERS, "ring_channels", _channel_terms, _SOURCE, **_CHANNELS)
def ring_channels_all_gather(ranks: int, channels: int = 2) -> Schedule:
    """Build several rings: one for each port, of different strides, with a share of every block.

    Ring c joins ranks s apart, where s is the c-th stride without a common factor with the ranks:
    the rings share no link.

    Parameters
    ----------
    ranks, channels
        Size of the group, and rings.
    """
    rank = np.tile(np.arange(ranks), channels)
    ring = np.repeat(np.arange(channels), ranks)
    stride = np.array(_strides(ranks, channels))[ring]

    def shift(step: int) -> Round:
        chunk = (rank - step * stride) % ranks * channels + ring
        return Round.columns(rank, (rank + stride) % ranks, chunk, reduce=False)

    rounds = LazyRounds(ranks - 1, shift)
    return Schedule(
        "all_gather", "ring_channels", ranks, ranks, rounds, pieces=channels, ports=channels
    )
