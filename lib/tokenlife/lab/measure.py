"""Running one job on one rank: warm up, time, and count one run more.

All ranks start a run at one moment that they agreed on, on a clock they share; over several hosts
there is no such clock, and a rank then counts from its own start. The counted run is not timed: it
waits for the last acknowledgement.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokenlife.lab import meter
from tokenlife.lab.job import Job
from tokenlife.wire import TcpFrames, write_pcap

SLACK_S = 2e-3  # between agreeing on a start and starting
SETTLE_S = 0.08  # a delayed acknowledgement takes up to 40 ms


@dataclass(frozen=True)
class Prepared:
    """A collective ready to run.

    Attributes
    ----------
    reset
        Fill the buffers; not timed.
    run
        Perform the collective once.
    result
        Return what the rank ended with as an array, to be compared with ``Job.end``.
    """

    reset: Callable[[], object]
    run: Callable[[], object]
    result: Callable[[], np.ndarray]


def measure(job: Job, prepared: Prepared, agree, where: dict) -> dict:
    """Run one job on this rank.

    Parameters
    ----------
    job
        What to do.
    prepared
        By an engine.
    agree
        Called with seconds, returns a moment so much later, the same on all ranks.
    where
        ``rank``, ``ranks``, ``interface``, ``delay`` (s or None), ``port`` (not to be counted),
        ``refill`` (s that the last run's empty token bucket takes to be full again).

    Returns
    -------
    dict
        ``start`` and ``end`` of each repeat, ``right``, and what one more run sent: ``sockets``,
        ``interface`` and, where asked for, ``capture``.
    """
    start, end = [], []
    pause = SLACK_S + 4 * (where["delay"] or 0) + where["refill"]
    for number in range(job.warmup + job.repeats):
        prepared.reset()
        time.sleep(max(0.0, agree(pause) - time.monotonic()))
        begin = time.monotonic()
        prepared.run()
        if number >= job.warmup:
            start.append(begin)
            end.append(time.monotonic())
    counted = _count(job, prepared, agree, where)
    wanted = job.end(where["rank"], where["ranks"])
    right = bool(np.array_equal(prepared.result(), wanted))
    return {"start": start, "end": end, "right": right, **counted}


def _count(job: Job, prepared: Prepared, agree, where: dict) -> dict:
    """Run once more between two readings of the counters, with time for the last to arrive."""
    calm = SETTLE_S + 4 * (where["delay"] or 0)
    prepared.reset()
    go = agree(2 * calm)
    time.sleep(max(0.0, go - calm / 2 - time.monotonic()))
    capturing = contextlib.nullcontext()
    if job.capture and where["interface"] == "eth0":  # on loopback everybody's frames pass
        full = isinstance(job.capture, str)
        capturing = meter.Capture(where["interface"], *((2048, 1 << 15) if full else ()))

    def counters() -> tuple[int, dict, dict]:
        """Read all at one moment: again, if meanwhile a frame has left."""
        while True:
            left = meter.interface(where["interface"])
            kept = 0 if capture is None else len(capture)
            if left == meter.interface(where["interface"]):
                return kept, left, meter.sockets(where["port"])

    with capturing as capture:
        before = counters()
        time.sleep(max(0.0, go - time.monotonic()))
        prepared.run()
        # What has been handed to the kernel may still wait there: the last to arrive decides.
        time.sleep(max(0.0, agree(calm) - time.monotonic()))
        after = counters()
        found = {
            "interface": meter.difference(after[1], before[1]),
            "sockets": meter.difference(after[2], before[2]),
        }
        if capture is not None:
            *columns, dropped = capture.read()
            frames, lengths, times_s, sent = (c[before[0] : after[0]] for c in columns)
            found["capture"] = TcpFrames.read(frames[sent], lengths[sent]).count()
            found["capture"]["dropped"] = dropped
            if isinstance(job.capture, str):
                path = Path(job.capture, f"rank{where['rank']}.pcap")
                write_pcap(path, frames, lengths, times_s)
    return found
