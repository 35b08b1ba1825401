"""New schedules from old ones: run them backwards, one after the other, or in overlapping copies.

Run an all-gather backwards, let each receiver add instead of copy, and it is a reduce-scatter: the
tree along which a block spreads from its owner becomes the tree along which its sum comes home. In
the same way a broadcast becomes a reduce and a scatter a gather. This holds for every schedule in
which no rank is given a block twice. And a reduce-scatter followed by an all-gather is an
all-reduce, so one builder brings a *family* of three algorithms.
"""

from collections.abc import Callable

import numpy as np

from tokenlife.collectives.registry import Algorithm, register
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule, ScheduleError
from tokenlife.collectives.terms import Terms


def reverse(schedule: Schedule, kind: str) -> Schedule:
    """Run a schedule backwards.

    Parameters
    ----------
    schedule
        An all-gather, broadcast, scatter or gather in which no rank is given a chunk twice.
    kind
        What it becomes; receivers add where this is a reduction.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_gather
    >>> from tokenlife.collectives.verify import verify
    >>> verify(reverse(ring_all_gather(5), "reduce_scatter"))
    """
    reduce, last = "reduce" in kind, len(schedule.rounds) - 1

    def back(index: int) -> Round:
        sends = schedule.rounds[last - index]
        return Round.columns(sends.dst, sends.src, sends.chunk, reduce=reduce, count=sends.count)

    return schedule.renamed(kind=kind, rounds=LazyRounds(last + 1, back))


def then(first: Schedule, second: Schedule, kind: str, **changes) -> Schedule:
    """Run one schedule after another on the same chunks, as one of another kind."""
    return first.renamed(kind=kind, rounds=lazy(first) + lazy(second), **changes)


def lazy(schedule: Schedule) -> LazyRounds:
    """Return the rounds of a schedule as lazy ones, which can be joined."""
    return LazyRounds(len(schedule.rounds), schedule.rounds.__getitem__)


def pipelined(schedule: Schedule, pieces: int) -> Schedule:
    """Cut each chunk into pieces; piece p runs through the whole schedule p rounds late.

    Stages that use different links, like those of a hierarchy, then work side by side. A rank needs
    as many ports as there are pieces under way.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_gather
    >>> from tokenlife.collectives.verify import verify
    >>> halves = pipelined(ring_all_gather(4), 2)
    >>> verify(halves, once=True)
    >>> len(halves.rounds), halves.ports
    (4, 2)
    """
    if pieces < 1:
        raise ScheduleError(f"pieces must be at least 1, not {pieces}")
    length = len(schedule.rounds)

    def overlap(index: int) -> Round:
        # Round t of piece p runs at t + p.
        parts = [
            (schedule.rounds[index - piece].single_chunks(), piece)
            for piece in range(max(0, index - length + 1), min(pieces, index + 1))
        ]
        src, dst, chunk, reduce = (
            np.concatenate(columns)
            for columns in zip(
                *((src, dst, chunk * pieces + p, red) for (src, dst, chunk, red), p in parts),
                strict=True,
            )
        )
        return Round.columns(src, dst, chunk, reduce=reduce)

    return schedule.renamed(
        rounds=LazyRounds(length + pieces - 1 if length else 0, overlap),
        pieces=schedule.pieces * pieces,
        ports=schedule.ports * max(1, min(pieces, length)),
    )


def runs(src, dst, first, count, ranks: int) -> Round:
    """Make a round of copies of ``count`` blocks from ``first`` on, counted around the group.

    Arrays of equal shape. A run that passes the last block goes on at block 0, as a second send in
    the same message.
    """
    first = first % ranks
    head = np.minimum(count, ranks - first)
    src, dst = np.tile(src, 2), np.tile(dst, 2)
    first, count = np.concatenate([first, 0 * first]), np.concatenate([head, count - head])
    keep = count > 0
    return Round.columns(src[keep], dst[keep], first[keep], reduce=False, count=count[keep])


def family(
    kinds: tuple[str, ...],
    name: str,
    build: Callable[..., Schedule],
    terms: Callable[..., Terms],
    *says_and_source: str,
    **fields,
) -> None:
    """Register an algorithm, its reverse, and an all-reduce: the reverse and then itself.

    Parameters
    ----------
    kinds
        :data:`GATHERS` or :data:`TREES`, or the first two of them.
    name, build, terms, says_and_source, **fields
        As in :class:`~tokenlife.collectives.registry.Algorithm`, for the first of the three.
    """

    def back(ranks, **options):
        return reverse(build(ranks, **options), kinds[1])

    def both(ranks, **options):
        return then(back(ranks, **options), build(ranks, **options), "all_reduce")

    def adds(ranks, bytes_, **options):
        there = terms(ranks, bytes_, **options)
        # In an all-gather each rank is given, on all ports, every block but its own.
        received = (ranks - 1) / ranks * bytes_ if kinds[0] == "all_gather" else there.sent_bytes
        return Terms(there.rounds, there.sent_bytes, received)

    def sums(ranks, bytes_, **options):
        return adds(ranks, bytes_, **options) + terms(ranks, bytes_, **options)

    for kind, builder, price in zip(kinds, (build, back, both), (terms, adds, sums), strict=False):
        register(Algorithm(kind, name, builder, price, *says_and_source, **fields))


GATHERS = ("all_gather", "reduce_scatter", "all_reduce")
TREES = ("broadcast", "reduce", "all_reduce")
