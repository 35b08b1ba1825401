"""New schedules from old ones: run them backwards, one after the other, or in overlapping copies.

Run an all-gather backwards, let each receiver add instead of copy, and it is a reduce-scatter: the
tree along which a block spreads from its owner becomes the tree along which its sum comes home. In
the same way a broadcast becomes a reduce and a scatter a gather. This holds for every schedule in
which no rank is given a block twice. And a reduce-scatter followed by an all-gather is an
all-reduce, so one builder brings three algorithms.
"""

from collections.abc import Callable
from dataclasses import replace
from inspect import getdoc, signature

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
        under_way = range(max(0, index - length + 1), min(pieces, index + 1))
        parts = [schedule.rounds[index - piece].single_chunks() for piece in under_way]
        src, dst, chunk, reduce = (np.concatenate(column) for column in zip(*parts, strict=True))
        piece = np.repeat(under_way, [len(part[0]) for part in parts])
        return Round.columns(src, dst, chunk * pieces + piece, reduce=reduce)

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


GATHERS = ("all_gather", "reduce_scatter", "all_reduce")
TREES = ("broadcast", "reduce", "all_reduce")
SCATTERS = ("scatter", "gather")


def registered(kinds: str | tuple[str, ...], name: str, terms: Callable, source: str, **fields):
    """Decorate a builder: register it, and what it is backwards.

    The first line of its docstring, after a colon if there is one, is what the algorithm says; its
    keywords are its options.

    Parameters
    ----------
    kinds
        Its collective; or :data:`GATHERS`, :data:`TREES`, :data:`SCATTERS` or the first two of
        them, to register the reverse as the second and, as the third, the one after the other.
    name, terms, source, **fields
        As in :class:`~tokenlife.collectives.registry.Algorithm`; terms are those of the first, and
        are given all options.
    """
    kinds = (kinds,) if isinstance(kinds, str) else kinds

    def enter(build: Callable[..., Schedule]) -> Callable[..., Schedule]:
        takes = {p.name: p.default for p in signature(build).parameters.values()}
        options = {key: takes[key] for key in takes if key not in ("ranks", "root")}

        def back(ranks, **asked):
            return reverse(build(ranks, **asked), kinds[1])

        def both(ranks, **asked):
            return then(back(ranks, **asked), build(ranks, **asked), kinds[2])

        def price(ranks, bytes_, **asked):
            return terms(ranks, bytes_, **{**options, **asked})

        def adds(ranks, bytes_, **asked):
            there = price(ranks, bytes_, **asked)
            # In an all-gather each rank is given, on all ports, every block but its own.
            given = (ranks - 1) / ranks * bytes_ if kinds[0] == "all_gather" else there.sent_bytes
            return Terms(there.rounds, there.sent_bytes, given * ("reduce" in kinds[1]))

        def sums(ranks, bytes_, **asked):
            return adds(ranks, bytes_, **asked) + price(ranks, bytes_, **asked)

        says = getdoc(build).splitlines()[0].split(": ", 1)[-1].rstrip(".")
        ways = ((build, price, ""), (back, adds, "; backwards"), (both, sums, "; back, then forth"))
        for kind, (builder, form, way) in zip(kinds, ways, strict=False):
            entry = Algorithm(kind, name, builder, form, says + way, source, **fields)
            register(replace(entry, options=options))
        return build

    return enter
