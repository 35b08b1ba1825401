"""The rhythm of a job's traffic: when it sends, and the period that a counter shows of it.

A step's time line gives the job as phases (:func:`phases_of`): where no network stream works, a
phase that only computes; where one does, a phase that sends at its rate beside what it computes.
Counters, real or simulated, give bytes in equal intervals; their autocorrelation has a peak at each
multiple of the period.

Left out: streams of one rank that share a link, which count as one that sends; periods that drift.
"""

from itertools import pairwise

import numpy as np

from tokenlife.jobs.multijob import JobError, Phase
from tokenlife.jobs.timeline import COMPUTE, Timeline

_NEARLY = 0.75  # of the highest peak: lower ones between are not whole steps


def phases_of(timeline: Timeline, rank: int, rate_Bps: float) -> tuple[Phase, ...]:
    """Return a step of one rank as phases.

    Parameters
    ----------
    timeline
        Of a step.
    rank
        Whose.
    rate_Bps
        Bytes that one of its network streams sends in a second while it works.

    Examples
    --------
    >>> from tokenlife.jobs.timeline import Task, play
    >>> tasks = [Task("b", 0, "compute", 3), Task("g", 0, "gradients", 2),
    ...          Task("u", 0, "compute", 1, after=("g",))]
    >>> [(p.compute_s, p.bytes_) for p in phases_of(play(tasks), 0, 1e9)]
    [(2.0, 2000000000.0), (2.0, 0.0)]
    """
    mine = [
        (start, finish, task.stream != COMPUTE)
        for task, start, finish in zip(
            timeline.tasks, timeline.start_s, timeline.finish_s, strict=True
        )
        if task.rank == rank and finish > start
    ]
    if not mine:
        raise JobError(f"rank {rank} does nothing in this time line")
    ends = [moment for start, finish, _ in mine for moment in (start, finish)]
    edges = np.unique([timeline.start_s.min(), timeline.finish_s.max(), *ends])
    phases: list[Phase] = []
    sent_before = None
    for left, right in pairwise(edges):
        sends = any(start <= left and right <= finish for start, finish, net in mine if net)
        busy = any(start <= left and right <= finish for start, finish, net in mine if not net)
        length = float(right - left)
        # While the job sends and does not compute it waits for the network; else it has its time.
        now = Phase(length if busy or not sends else 0.0, length * rate_Bps * sends)
        if phases and sends == sent_before:
            last = phases.pop()
            now = Phase(last.compute_s + now.compute_s, last.bytes_ + now.bytes_)
        phases.append(now)
        sent_before = sends
    return tuple(phases)


def sample(edges_s: np.ndarray, Bps: np.ndarray, interval_s: float) -> np.ndarray:
    """Return the bytes that a counter would see in each interval of equal length.

    Parameters
    ----------
    edges_s, Bps
        Bytes per second between edges; shapes (spans + 1,), (spans,).
    interval_s
        Between two looks.

    Examples
    --------
    >>> sample(np.array([0.0, 1.0, 3.0]), np.array([4.0, 1.0]), 0.5).tolist()
    [2.0, 2.0, 0.5, 0.5, 0.5, 0.5]
    """
    total = np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * Bps)])
    looks = np.arange(int((edges_s[-1] - edges_s[0]) / interval_s + 1e-9) + 1) * interval_s
    return np.diff(np.interp(edges_s[0] + looks, edges_s, total))


def autocorrelation(samples: np.ndarray) -> np.ndarray:
    """Return how samples correlate with themselves so many intervals later; 1 at zero.

    Each lag is a sum over what overlaps, divided by that of lag zero: so it fades with the lag.

    Examples
    --------
    >>> autocorrelation(np.array([1.0, 0.0, 1.0, 0.0])).tolist()
    [1.0, -0.75, 0.5, -0.25]
    """
    x = np.asarray(samples, float) - np.mean(samples)
    if len(x) < 2 or not x.any():
        raise JobError("an autocorrelation needs two samples that differ")
    power = np.abs(np.fft.rfft(x, 2 * len(x))) ** 2
    found = np.fft.irfft(power)[: len(x)]
    return np.round(found / found[0], 12)


def spectrum(samples: np.ndarray, interval_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return frequencies in hertz, and the share of the samples' variance at each; no constant.

    Examples
    --------
    >>> frequencies, shares = spectrum(np.array([1.0, 0.0] * 4), 0.5)
    >>> float(frequencies[shares.argmax()]), float(shares.sum())
    (1.0, 1.0)
    """
    x = np.asarray(samples, float) - np.mean(samples)
    power = np.abs(np.fft.rfft(x)) ** 2
    power[1 : (len(x) + 1) // 2] *= 2  # all but the highest of an even number stand for two
    return np.fft.rfftfreq(len(x), interval_s)[1:], power[1:] / power[1:].sum()


def period_s(samples: np.ndarray, interval_s: float) -> float:
    """Return the period of a counter, from nothing but its samples.

    The earliest peak of the autocorrelation that is nearly as high as the highest, beyond the first
    lag at which it is negative; then the peaks near twice that lag, four times, and so on: each
    halves what an interval rounds off. A burst must last a few intervals; bursts within a step that
    are as regular as the steps pass for steps.

    Raises
    ------
    JobError
        If the samples hold no two periods.

    Examples
    --------
    >>> on_off = sample(np.arange(41) * 1.0, np.tile([1.0, 0.0, 0.0, 0.0], 10), 0.13)
    >>> round(period_s(on_off, 0.13), 1)
    4.0
    """
    r = autocorrelation(samples)
    half = r[: len(r) // 2]
    below = np.flatnonzero(half < 0)
    if not len(below) or half[below[0] :].max() <= 0:
        raise JobError("no period: the samples must hold at least two of it")
    late = half[below[0] :]
    first = int((late >= _NEARLY * late.max()).argmax())
    down = np.flatnonzero(np.diff(late[first:]) < 0)
    period, times = float(below[0] + first + (down[0] if len(down) else 0)), 1
    while (guess := 2 * times * period) < len(half) - 1:
        times *= 2
        reach = max(1, int(period / 4))
        first = round(guess) - reach
        peak = first + int(r[first : round(guess) + reach + 1].argmax())
        period = peak / times
    return period * interval_s
