"""The ring: each rank talks only to the next one, and every link is busy in every round.

An all-reduce of S bytes over n ranks is a reduce-scatter followed by an all-gather, n − 1 rounds
each, of chunks of S/n. Every rank sends 2(n − 1)/n · S, which no algorithm without help from the
network can better [1]_. The price is 2(n − 1) rounds of latency.

References
----------
.. [1] P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
   workstations", J. Parallel Distrib. Comput. 69(2), 2009.
"""

from tokenlife.collectives.schedule import Schedule, ScheduleError, Send


def ring_all_reduce(ranks: int) -> Schedule:
    """Build the ring all-reduce.

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

    def shift(step: int, reduce: bool) -> tuple[Send, ...]:
        # Chunk c starts at rank c and moves one rank a round; it is whole at rank c − 1.
        return tuple(
            Send(rank, (rank + 1) % ranks, (rank - step) % ranks, reduce) for rank in range(ranks)
        )

    reduce_scatter = [shift(step, reduce=True) for step in range(ranks - 1)]
    all_gather = [shift(step, reduce=False) for step in range(-1, ranks - 2)]
    return Schedule("all_reduce", "ring", ranks, ranks, tuple(reduce_scatter + all_gather))
