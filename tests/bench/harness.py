"""Side-by-side timing: two things in one run, in turn, and the ratio of their medians.

``make bench`` names a file in ``TOKENLIFE_BENCH``, to which each row is added; run as a program,
this keeps them as the record that the scoreboard shows.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path


def seconds(function: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def side_by_side(ours: Callable, peer: Callable, rounds: int = 5) -> tuple[float, float]:
    """Median seconds of each, called A B A B … so that a drift of the machine hits both."""
    times = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)


def row(what: str, ours_s: float, peer_s: float, peer: str, reach: str) -> None:
    """Print one line of `make bench`."""
    ratio = peer_s / ours_s
    print(
        f"{what:<44} ours {ours_s:9.4f} s   {peer:<22} {peer_s:9.4f} s   {ratio:8.3f}×"
        f"   to reach: {reach}",
        flush=True,
    )
    if place := os.environ.get("TOKENLIFE_BENCH"):
        found = {"what": what, "ours_s": ours_s, "peer": peer, "ratio": ratio, "reach": reach}
        with Path(place).open("a") as rows:
            print(json.dumps(found), file=rows)


def keep(place: str) -> None:
    """Make the record out of the rows; it is of that day and machine, whatever the code becomes."""
    from tokenlife.catalog import data_dir
    from tokenlife.provenance import write_record

    rows = [json.loads(line) for line in Path(place).read_text().splitlines()]
    write_record(data_dir() / "results" / "bench.json", {"rows": rows}, parts=[])


if __name__ == "__main__":
    keep(sys.argv[1])
