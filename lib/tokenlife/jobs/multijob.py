"""Several jobs on one fabric: a fluid simulation of periodic jobs that share links.

A job repeats a step, and a step is a row of phases. A phase computes for some time and sends some
bytes over the job's flows; both begin together, and the next phase begins when both are over.
Whoever sends shares the links by one of five rules, looked at again whenever something begins or
ends: max–min fair between flows; or in an order of jobs, where the first takes what it needs to
end all its flows together, the next what is left, and what nobody needed is given out in the same
order [1]_.

Left out: packets, latency, the time that congestion control takes, and a phase that could begin
before all of the last one is over.

References
----------
.. [1] M. Chowdhury, Y. Zhong, I. Stoica, "Efficient coflow scheduling with Varys", SIGCOMM 2014.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenlife.errors import TokenlifeError
from tokenlife.network import Routes, max_min

ORDERS = ("fair", "fifo", "priority", "srpt", "sebf")
_NOTHING = 1e-9  # relative: bytes and rates that only rounding left over


class JobError(TokenlifeError, ValueError):
    """Jobs that cannot be, or that can never go on."""


@dataclass(frozen=True)
class Phase:
    """A part of a step.

    Attributes
    ----------
    compute_s
        Seconds of compute.
    bytes_
        That each flow of the job sends meanwhile, as the links carry them.
    """

    compute_s: float
    bytes_: float = 0.0


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes
    ----------
    phases
        Of a step, in order.
    flows
        Which flows of the routes are its own.
    steps
        How many it takes; one makes it a coflow.
    start_s
        When the first begins.
    priority
        For the order ``priority``: the least goes first.
    weights
        What each flow sends, times the bytes of a phase; 1 where not given.
    """

    phases: tuple[Phase, ...]
    flows: tuple[int, ...]
    steps: int = 1
    start_s: float = 0.0
    priority: float = 0.0
    weights: tuple[float, ...] | None = None

    def __post_init__(self):
        numbers = [self.start_s, *(self.weights or ())]
        numbers += [v for phase in self.phases for v in (phase.compute_s, phase.bytes_)]
        if not all(0 <= v < math.inf for v in numbers):
            raise JobError("times, bytes and weights of a job are numbers of zero or more")
        if not any(p.compute_s or (p.bytes_ and self.flows) for p in self.phases):
            raise JobError("a step must take some time: give it a phase that computes or sends")
        if self.weights and len(self.weights) != len(self.flows):
            raise JobError(f"{len(self.flows)} flows need as many weights, not {len(self.weights)}")
        if any(p.bytes_ for p in self.phases) and not self.flows:
            raise JobError("a job that sends needs flows")


@dataclass(frozen=True, eq=False)
class Played:
    """What happened.

    Attributes
    ----------
    finish_s
        For each job the ends of its steps; shape (steps,) each.
    start_s
        For each job the start of its first.
    edges_s
        When rates changed; shape (spans + 1,).
    flow_bps
        Rates between the edges; shape (spans, flows).
    """

    finish_s: tuple[np.ndarray, ...]
    start_s: tuple[float, ...]
    edges_s: np.ndarray
    flow_bps: np.ndarray

    def step_s(self, job: int) -> np.ndarray:
        """Return how long each step of a job took; shape (steps,)."""
        return np.diff(self.finish_s[job], prepend=self.start_s[job])

    def sent_bytes(self) -> np.ndarray:
        """Return what each flow has sent; shape (flows,)."""
        return np.diff(self.edges_s) @ self.flow_bps / 8


def alone_s(job: Job, routes: Routes, link_bps: np.ndarray) -> float:
    """Return the step time of a job that shares nothing: its fullest link sets the pace.

    Examples
    --------
    >>> one = Routes(1, np.array([0]), np.array([0]), np.ones(1))
    >>> alone_s(Job((Phase(2.0), Phase(0.0, 1e9)), (0,)), one, np.array([8e9]))
    3.0
    """
    return sum(
        max(p.compute_s, _bottleneck_s(_need(job, p.bytes_, routes), routes, link_bps))
        for p in job.phases
    )


def play_jobs(
    jobs: Sequence[Job], routes: Routes, link_bps: np.ndarray, order: str = "fair"
) -> Played:
    """Let jobs run until all have taken their steps.

    Parameters
    ----------
    jobs
        No two share a flow.
    routes, link_bps
        The flows on links, and the rates of these; shape (links,).
    order
        ``fair``: by flow, max–min. Or by job: ``fifo``, who began to send first; ``priority``;
        ``srpt``, the fewest bytes left; ``sebf``, the least time that its fullest link needs.

    Raises
    ------
    JobError
        For an order that is not known, flows that are not there or twice, or a link without a rate.

    Examples
    --------
    >>> one = Routes(2, np.array([0, 1]), np.array([0, 0]), np.ones(2))
    >>> pair = [Job((Phase(2.0), Phase(0.0, 1e9)), (k,), steps=3) for k in (0, 1)]
    >>> play_jobs(pair, one, np.array([8e9])).step_s(0).tolist()
    [4.0, 4.0, 4.0]
    >>> play_jobs(pair, one, np.array([8e9]), "fifo").step_s(1).tolist()
    [4.0, 3.0, 3.0]
    """
    used = [f for job in jobs for f in job.flows]
    if order not in ORDERS:
        raise JobError(f"no order {order!r}; there are {', '.join(ORDERS)}")
    if len(set(used)) < len(used) or not set(used) <= set(range(routes.flows)):
        raise JobError(f"each job needs flows of its own, of 0 to {routes.flows - 1}")
    link_bps = np.asarray(link_bps, float)
    count = len(jobs)
    place = np.full(count, -1)  # phases taken so far
    until = np.array([job.start_s for job in jobs])  # when its compute is over
    begun = until.copy()  # when its phase began
    need = np.zeros(routes.flows)  # bits still to send
    floor = np.zeros(routes.flows)  # below which rounding is all there is
    ends: list[list[float]] = [[] for _ in jobs]
    edges, rates_seen, now = [0.0], [], 0.0
    flows = [np.array(job.flows, int) for job in jobs]
    running = np.ones(count, bool)
    while running.any():
        for j in np.flatnonzero(running):
            while running[j] and until[j] <= now and not need[flows[j]].any():
                place[j] += 1
                step, index = divmod(int(place[j]), len(jobs[j].phases))
                if step and not index:
                    ends[j].append(now)
                if step == jobs[j].steps:
                    running[j] = False
                    break
                phase = jobs[j].phases[index]
                need += _need(jobs[j], phase.bytes_, routes)
                floor[flows[j]] = need[flows[j]] * _NOTHING
                begun[j], until[j] = now, now + phase.compute_s
        if not running.any():
            break
        active = need > 0
        rates = _rates(order, jobs, flows, need, begun, routes, link_bps)
        if np.any(active) and rates[active].max() <= 0:
            raise JobError("a flow has a link without a rate: it will never end")
        going = active & (rates > 0)
        step_s = (need[going] / rates[going]).min(initial=np.inf)
        soon = until[running & (until > now)].min(initial=np.inf)
        # Compute that ends with a flow ends with it, whatever rounding says.
        later = soon if soon <= now + step_s * (1 + _NOTHING) else now + step_s
        need = np.maximum(need - rates * (later - now), 0)
        need[need <= floor] = 0
        now = float(later)
        edges.append(now)
        rates_seen.append(rates)
    starts = tuple(job.start_s for job in jobs)
    seen = np.array(rates_seen).reshape(-1, routes.flows)
    return Played(tuple(map(np.array, ends)), starts, np.array(edges), seen)


def _need(job: Job, bytes_: float, routes: Routes) -> np.ndarray:
    """Return the bits that each flow has to send; shape (flows,)."""
    need = np.zeros(routes.flows)
    need[list(job.flows)] = 8 * bytes_ * np.array(job.weights or 1.0)
    return need


def _bottleneck_s(need: np.ndarray, routes: Routes, link_bps: np.ndarray) -> float:
    """Return the time in which the fullest link passes all that is needed of it."""
    load = routes.load(len(link_bps), need)
    wanted = load > 0
    with np.errstate(divide="ignore"):
        return float((load[wanted] / link_bps[wanted]).max(initial=0.0))


def _rates(order, jobs, flows, need, begun, routes, link_bps) -> np.ndarray:
    """Return the rates of all flows that still have to send."""
    active = need > 0
    if order == "fair":
        return max_min(routes, link_bps, active)
    wants = {}
    for j in range(len(jobs)):
        if active[flows[j]].any():
            wants[j] = np.zeros(routes.flows)
            wants[j][flows[j]] = need[flows[j]]
    key = {
        "fifo": lambda j: begun[j],
        "priority": lambda j: jobs[j].priority,
        "srpt": lambda j: wants[j].sum(),
        "sebf": lambda j: _bottleneck_s(wants[j], routes, link_bps),
    }[order]
    rates, left = np.zeros(routes.flows), link_bps.copy()

    def take(more: np.ndarray) -> None:
        nonlocal rates, left
        rates = rates + more
        left = left - routes.load(len(left), more)
        left[left < link_bps * _NOTHING] = 0

    ranked = sorted(wants, key=key)
    for j in ranked:
        time_s = _bottleneck_s(wants[j], routes, left)
        if time_s < math.inf:
            take(wants[j] / time_s)
    for j in ranked:
        if left.any():
            take(max_min(routes, left, wants[j] > 0))
    return rates


def two_equal_jobs_s(compute_s: float, send_s: float, offset_s: float) -> float:
    """Return the step time of two equal jobs on one fair link, in closed form.

    Where they overlap each is half as fast, so the second ends as much later as it began: fair
    sharing keeps their offset for ever.

    Parameters
    ----------
    compute_s, send_s
        Of a step alone, one after the other.
    offset_s
        From where the first sends to where the second does; from 0 to a step alone.

    Examples
    --------
    >>> [two_equal_jobs_s(2.0, 1.0, offset) for offset in (0.0, 0.5, 1.0, 1.5)]
    [4.0, 3.5, 3.0, 3.0]
    """
    alone = compute_s + send_s
    if not 0 <= offset_s <= alone:
        raise JobError(f"an offset is of 0 to {alone:g} seconds, not {offset_s:g}")
    near = min(offset_s, alone - offset_s)
    return max(alone, 2 * send_s, alone + send_s - near)
