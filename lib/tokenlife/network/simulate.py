"""Flows in time: whoever sends shares the links max–min fairly, until the next flow ends or starts.

A flow occupies its path from its start until its last byte has left; it ends when that byte has
passed all hops. A message waits until its sender has finished, and received, all messages of the
last round that it took part in. With ``barrier`` a round waits for the whole last one instead, and
rounds of the same messages are simulated once.

Left out: packets, queues, acknowledgements, losses, the time that congestion control takes to find
the fair rates, and adding.
"""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from tokenlife.collectives.schedule import Schedule
from tokenlife.network.fairshare import max_min
from tokenlife.network.routing import Routes, entries, route
from tokenlife.network.topology import Topology, TopologyError

_TOGETHER = 1e-9  # relative: flows that end this close end together


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a simulation says.

    Attributes
    ----------
    time_s
        When the last flow has ended.
    link_bytes
        Bytes on each link; shape (links,).
    start_s, finish_s
        Of each flow, or of each round where rounds were barriers.
    """

    time_s: float
    link_bytes: np.ndarray
    start_s: np.ndarray
    finish_s: np.ndarray

    def utilisation(self, topology: Topology) -> np.ndarray:
        """Return the share of the time that each link was busy; shape (links,)."""
        capacity = topology.link_bps * self.time_s
        busy = np.zeros(topology.links)
        return np.divide(8 * self.link_bytes, capacity, out=busy, where=capacity > 0)

    def stragglers(self, factor: float = 1.5) -> np.ndarray:
        """Return the flows that took more than ``factor`` times the median."""
        took = self.finish_s - self.start_s
        return np.flatnonzero(took > factor * np.median(took))


def simulate_flows(
    topology: Topology,
    routes: Routes,
    bytes_: np.ndarray,
    start_s: np.ndarray | float = 0.0,
    latency_s: np.ndarray | float = 0.0,
    after: tuple[np.ndarray, np.ndarray] | None = None,
) -> Outcome:
    """Simulate flows.

    Parameters
    ----------
    topology, routes
        The network, and the flows on its links.
    bytes_
        Of each flow, as the link carries them; shape (flows,).
    start_s
        Each flow's earliest start.
    latency_s
        From the last byte out to the last byte in, for each flow.
    after
        Pairs (flow, flow that it waits for), as two columns.

    Examples
    --------
    >>> from tokenlife.network.topology import single_switch
    >>> star = single_switch(3, 8e9)
    >>> simulate_flows(star, route(star, [0, 1], [2, 2]), np.array([1000, 3000])).finish_s.tolist()
    [2e-06, 4e-06]
    """
    flows = routes.flows
    start, latency = (np.broadcast_to(v, flows).astype(float) for v in (start_s, latency_s))
    left = 8.0 * np.asarray(bytes_)
    small = _TOGETHER * np.maximum(left, 1e-30)
    waits = np.zeros(flows, np.int64)
    first = freed = np.zeros(flows + 1, np.int64)
    if after is not None:
        order = np.argsort(after[1], kind="stable")
        freed = np.asarray(after[0])[order]
        first = np.concatenate([[0], np.cumsum(np.bincount(after[1], minlength=flows))])
        waits = np.bincount(freed, minlength=flows)
    begins: dict[float, list[int]] = {}
    clock: list[float] = []

    def enter(ready) -> None:
        for f in ready.tolist():
            if start[f] not in begins:
                begins[start[f]] = []
                heappush(clock, start[f])
            begins[start[f]].append(f)

    enter(np.flatnonzero(waits == 0))
    finish, active, now = np.full(flows, np.nan), np.zeros(flows, bool), 0.0
    while clock or active.any():
        ids = np.flatnonzero(active)
        rates = max_min(routes, topology.link_bps, active)[ids] if len(ids) else np.zeros(0)
        if len(ids) and rates.min() <= 0:
            raise TopologyError(f"flow {ids[rates.argmin()]} has a link without a rate")
        step = (left[ids] / rates).min() if len(ids) else np.inf
        if clock and clock[0] <= now + step * (1 + _TOGETHER):
            step = max(clock[0] - now, 0.0)
        left[ids] -= rates * step
        now += step
        while clock and clock[0] <= now * (1 + 1e-12):
            active[begins.pop(heappop(clock))] = True
        ids = np.flatnonzero(active)
        ended = ids[left[ids] <= small[ids]]
        active[ended] = False
        finish[ended] = now + latency[ended]
        if after is not None and len(ended):
            which, into = entries((first, freed), ended)
            np.maximum.at(start, into, finish[ended][which])
            np.subtract.at(waits, into, 1)
            enter(np.unique(into[waits[into] == 0]))
    if np.isnan(finish).any():
        raise TopologyError("flows wait for one another in a circle")
    load = routes.load(topology.links, np.asarray(bytes_, float))
    return Outcome(float(finish.max(initial=0.0)), load, start, finish)


def simulate(
    schedule: Schedule,
    items: int,
    item_bytes: int,
    topology: Topology,
    *,
    how: str = "ecmp",
    flowlets: int = 1,
    alpha_s: float = 0.0,
    hop_s: float = 0.0,
    barrier: bool = True,
    placement: np.ndarray | None = None,
) -> Outcome:
    """Simulate a schedule on a topology.

    Parameters
    ----------
    schedule, items, item_bytes
        The collective; items in the buffer of a rank, and bytes in each.
    topology
        With a host for every rank.
    how, flowlets
        Routing, as :func:`~tokenlife.network.routing.route` takes it.
    alpha_s, hop_s
        Seconds of a message at its ends, and on each link it passes.
    barrier
        Whether a round waits for the whole last one; equal rounds then count once.
    placement
        The host of each rank; rank r on host r where not given.

    Examples
    --------
    >>> from tokenlife.collectives import ring_all_reduce
    >>> from tokenlife.network.topology import single_switch
    >>> simulate(ring_all_reduce(4), 4000, 1, single_switch(4, 8e9), hop_s=1e-6).time_s
    1.8e-05
    """
    if schedule.nodes > topology.hosts:
        raise TopologyError(
            f"{schedule.nodes} ranks need as many hosts; {topology.name} has {topology.hosts}"
        )
    hosts = np.arange(schedule.nodes) if placement is None else np.asarray(placement)
    offsets = schedule.chunk_offsets(items) * item_bytes

    def routed(src, dst):
        routes = route(topology, hosts[src], hosts[dst], how, flowlets=flowlets)
        return routes, alpha_s + hop_s * routes.hops()

    indices = range(len(schedule.rounds))
    if barrier:
        outcomes, ends, load = {}, np.zeros(len(indices)), np.zeros(topology.links)
        last = key = None
        for index in indices:
            sends = schedule.rounds[index]
            sizes = offsets[sends.chunk + sends.count] - offsets[sends.chunk]
            now = (sends.src, sends.dst, sizes)
            if last is None or not all(map(np.array_equal, now, last)):
                last, key = now, tuple(column.tobytes() for column in now)
            if key not in outcomes:
                src, dst, size = _messages(schedule, index, offsets)
                routes, latency = routed(src, dst)
                outcomes[key] = simulate_flows(topology, routes, size, 0.0, latency), []
            outcomes[key][1].append(index)
        for outcome, at in outcomes.values():
            ends[at] = outcome.time_s
            load += outcome.link_bytes * len(at)
        finish = np.cumsum(ends)
        return Outcome(float(ends.sum()), load, finish - ends, finish)
    rounds = (_messages(schedule, index, offsets) for index in indices)
    columns, after, last, count = [], [], [np.zeros(0, np.int64)] * schedule.nodes, 0
    for src, dst, size in rounds:
        ids = count + np.arange(len(src))
        columns.append((src, dst, size))
        after += [(f, w) for f, s in zip(ids, src, strict=True) for w in last[s]]
        for node in np.unique(np.concatenate([src, dst])):
            last[node] = ids[(src == node) | (dst == node)]
        count += len(src)
    src, dst, size = (np.concatenate(c) for c in zip(*columns, strict=True))
    routes, latency = routed(src, dst)
    pairs = np.array(after, np.int64).reshape(-1, 2)
    return simulate_flows(topology, routes, size, 0.0, latency, (pairs[:, 0], pairs[:, 1]))


def _messages(schedule: Schedule, index: int, offsets: np.ndarray) -> tuple[np.ndarray, ...]:
    src, dst, size, _ = schedule.messages(index, offsets)
    some = size > 0
    return src[some], dst[some], size[some]
