"""Pricing many collectives at once, and a ring of 16,384 ranks that is never all in memory."""

import statistics
import sys
import tracemalloc

import numpy as np
from harness import row, seconds, side_by_side
from tokenlife.collectives import algorithm, algorithms, build
from tokenlife.collectives.cost import Hockney, price, price_grid

LINKS = Hockney(2e-6, 2e-11, 2e-12)
POINTS, RANKS, WATCHED = 100_000, 16_384, 64


def grid() -> None:
    """Time 10⁵ closed forms in one table, beside the same points in a loop."""
    kind = "all_reduce"
    ranks = list(range(2, 66))
    chosen = [a for a in algorithms(kind) if a.supports(3, **a.options)]
    per_size = sum(a.supports(n, **a.options) for a in chosen for n in ranks)
    sizes = np.unique(np.geomspace(64, 1 << 30, -(-POINTS // per_size) + 16).astype(int))
    table = price_grid(kind, ranks, sizes, LINKS, chosen)
    assert len(table) >= POINTS, f"{len(table)} points"

    few = table.sample(1000, random_state=0)

    def loop():
        for point in few.itertuples():
            each = algorithm(kind, point.algorithm)
            LINKS.terms_s(each.terms(point.ranks, point.bytes, **each.options))

    ours_s, loop_s = side_by_side(lambda: price_grid(kind, ranks, sizes, LINKS, chosen), loop)
    row(
        f"price: {len(table):,} closed forms", ours_s, loop_s * len(table) / 1000, "one by one",
        "< 1 s",
    )  # fmt: skip
    if ours_s >= 1:
        sys.exit(f"bench: {len(table):,} points took {ours_s:.2f} s, not under 1 s")


def lazy_ring() -> None:
    """Build a ring of 16,384 ranks and price its first rounds; the rest cost the same each."""
    tracemalloc.start()
    build_s = seconds(lambda: build("all_reduce", "ring", RANKS))
    ring = build("all_reduce", "ring", RANKS)
    first = ring.renamed(rounds=ring.rounds[:WATCHED])
    price(first, RANKS, 4, LINKS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    price_s = statistics.median(seconds(lambda: price(first, RANKS, 4, LINKS)) for _ in range(3))
    sends = len(ring.rounds) * RANKS
    print(
        f"ring of {RANKS:,} ranks: built in {build_s * 1e6:.0f} µs, {sends:.1e} sends; "
        f"peak {peak / 1e6:.1f} MB; a round is priced in {price_s / WATCHED * 1e3:.2f} ms, "
        f"all {len(ring.rounds):,} in about {price_s / WATCHED * len(ring.rounds):.0f} s",
        flush=True,
    )
    if peak > 100e6:
        sys.exit("bench: the ring was not built lazily")


if __name__ == "__main__":
    grid()
    lazy_ring()
