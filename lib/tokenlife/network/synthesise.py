"""Schedules made for a topology: in every round, as many wanted chunks as links can take.

A greedy matching on the network expanded in time, after TACOS [1]_: round by round, pairs of hosts,
nearest first, are given the chunk that the fewest hosts have, if no link of their path is taken.
An all-reduce is the all-gather run backwards, then forwards.

Left out: links of different rates (a round is as slow as its slowest link), chunks of a block on
their own ways, and the optimum, which needs a solver (:mod:`tokenlife.network.optimum`).

References
----------
.. [1] W. Won, M. Elavazhagan, S. Srinivasan, S. Gupta, T. Krishna, "TACOS: topology-aware
   collective algorithm synthesizer for distributed machine learning", MICRO 2024.
"""

import numpy as np

from tokenlife.collectives.compose import reverse, then
from tokenlife.collectives.schedule import Schedule, Send
from tokenlife.network.routing import route
from tokenlife.network.topology import Topology, TopologyError

MOST_HOSTS = 128


def synthesise(topology: Topology, kind: str = "all_gather", seed: int = 0) -> Schedule:
    """Make a schedule for all hosts of a topology.

    Parameters
    ----------
    topology
        With 2 to ``MOST_HOSTS`` hosts.
    kind
        ``all_gather``, ``reduce_scatter`` or ``all_reduce``.
    seed
        Orders pairs that are equally near.

    Examples
    --------
    >>> from tokenlife.collectives import verify
    >>> from tokenlife.network.fabrics import torus
    >>> made = synthesise(torus((3, 3), 1e11), "all_reduce")
    >>> verify(made)
    >>> len(made.rounds)
    6
    """
    hosts = topology.hosts
    if not 2 <= hosts <= MOST_HOSTS or kind not in ("all_gather", "reduce_scatter", "all_reduce"):
        raise TopologyError(
            f"makes all_gather, reduce_scatter and all_reduce for 2 to {MOST_HOSTS} hosts,"
            f" not {kind} for {hosts}"
        )
    src, dst, paths = pairs_of(topology)
    hops = [len(path) for path in paths]
    draw = np.random.default_rng(seed)
    held = np.eye(hosts, dtype=bool)
    rounds = []
    while not held.all():
        taken = np.zeros(topology.links, bool)
        coming, sends = held.copy(), []
        for pair in np.lexsort((draw.random(len(src)), hops)).tolist():
            wanted = held[src[pair]] & ~coming[dst[pair]]
            if taken[paths[pair]].any() or not wanted.any():
                continue
            chunk = int(np.where(wanted, coming.sum(0), hosts + 1).argmin())
            taken[paths[pair]] = coming[dst[pair], chunk] = True
            sends.append(Send(int(src[pair]), int(dst[pair]), chunk, reduce=False))
        held = coming
        rounds.append(sends)
    gather = schedule_of(rounds, hosts, "synthesised")
    if kind == "all_gather":
        return gather
    scatter = reverse(gather, "reduce_scatter")
    return scatter if kind == "reduce_scatter" else then(scatter, gather, "all_reduce")


def pairs_of(topology: Topology) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return all pairs of hosts, as sources and destinations, and the links of each one's path."""
    src, dst = np.nonzero(~np.eye(topology.hosts, dtype=bool))
    routes = route(topology, src, dst, "first")
    return src, dst, np.split(routes.link, np.cumsum(np.bincount(routes.flow))[:-1])


def schedule_of(rounds: list[list[Send]], hosts: int, name: str) -> Schedule:
    """Return the all-gather of these rounds, with as many ports as its busiest host needs."""
    ends = [[getattr(s, end) for s in sends] for sends in rounds for end in ("src", "dst")]
    ports = max(int(np.bincount(each).max()) for each in ends)
    return Schedule("all_gather", name, hosts, hosts, tuple(rounds), ports=ports)
