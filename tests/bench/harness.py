"""Side-by-side timing: two things in one run, in turn, and the ratio of their medians."""

import statistics
import time
from collections.abc import Callable


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
