"""Our schedules beside gloo's own collectives, on loopback: 4 ranks, in one session, in turn."""

import statistics
from collections import defaultdict

from harness import row
from tokenlife import lab
from tokenlife.units import format_bytes

RANKS = 4
TURNS = 6
SIZES = [1 << 20, 4 << 20, 16 << 20]
REACH = {"all_reduce": "≥ 0.9", "reduce_scatter": "> 1"}


def main() -> None:
    """Time each pair of jobs A B A B …, so that a drift of the machine hits both."""
    cases = [(kind, bytes_) for kind in REACH for bytes_ in SIZES]
    jobs = [
        lab.Job(kind, bytes_, "ring", engine, repeats=7)
        for kind, bytes_ in cases
        for _ in range(TURNS)
        for engine in ("ours", "gloo")
    ]
    times = defaultdict(list)
    with lab.Team(lab.VirtualCluster(RANKS).on_loopback()) as team:
        for result in team.run(jobs):
            key = result.job.kind, result.job.bytes_, result.engine
            times[key] += result.measured.times
    for kind, bytes_ in cases:
        ours, gloo = (statistics.median(times[kind, bytes_, e]) for e in ("ours", "gloo"))
        row(f"{kind} of {format_bytes(bytes_)}, {RANKS} ranks", ours, gloo, "gloo", REACH[kind])


if __name__ == "__main__":
    main()
