"""The shortest all-gather that a small topology allows, found by a solver.

A schedule of T rounds is a choice, for each round, link and chunk, of whether the link carries the
chunk: an integer program on the network expanded in time [1]_. In a round a link carries one chunk
at most, from a host that held it when the round began, along one fixed path. The least T for which
the program has a solution is the least number of rounds; among those schedules the solver takes one
with the fewest bytes on links.

Left out: chunks cut finer than a host's own block, which may save a fraction of a round; links of
different rates; switches that copy. Programs grow with hosts³ · T: a solver's patience ends at
about a dozen hosts.

References
----------
.. [1] Z. Cai, Z. Liu, S. Maleki, et al., "Synthesizing optimal collective algorithms", PPoPP 2021.
"""

from math import ceil

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tokenlife.collectives.schedule import Schedule, Send
from tokenlife.network.synthesise import pairs_of, schedule_of
from tokenlife.network.topology import Topology, TopologyError

MOST_HOSTS = 12


def optimal_all_gather(topology: Topology, limit_s: float = 60.0) -> Schedule:
    """Find an all-gather of the fewest rounds, and of the fewest bytes on links among those.

    Parameters
    ----------
    topology
        With 2 to ``MOST_HOSTS`` hosts.
    limit_s
        Seconds that the solver may take for each number of rounds.

    Raises
    ------
    TopologyError
        If there are too many hosts, or the solver runs out of time.

    Examples
    --------
    >>> from tokenlife.collectives import verify
    >>> from tokenlife.network.fabrics import torus
    >>> found = optimal_all_gather(torus((2, 3), 1e11))
    >>> verify(found)
    >>> len(found.rounds)
    2
    """
    hosts = topology.hosts
    if not 2 <= hosts <= MOST_HOSTS:
        raise TopologyError(f"a solver is asked for 2 to {MOST_HOSTS} hosts, not {hosts}")
    src, dst, paths = pairs_of(topology)
    into = np.bincount(topology.link_dst[topology.link_dst < hosts], minlength=hosts)
    for rounds in range(ceil((hosts - 1) / into.min()), hosts * hosts):
        found = _program(topology, src, dst, paths, rounds, limit_s)
        if found is not None:
            made = [
                [Send(int(src[p]), int(dst[p]), int(c), reduce=False) for p, c in np.argwhere(sent)]
                for sent in found
            ]
            return schedule_of(made, hosts, "optimal")
    raise TopologyError(f"no all-gather on {topology.name}")


def _program(topology, src, dst, paths, rounds, limit_s) -> np.ndarray | None:
    """Return what is sent, shape (rounds, pairs, chunks), or None where it cannot be in time."""
    hosts, pairs = topology.hosts, len(src)
    round_, pair, chunk = np.indices((rounds, pairs, hosts))
    sent = np.arange(round_.size).reshape(round_.shape)
    held = round_.size + np.arange((rounds + 1) * hosts * hosts).reshape(rounds + 1, hosts, hosts)
    before, after = held[:-1], held[1:]  # (rounds, host, chunk)

    # Three kinds of rules: (columns, factor, rows) of their parts, and what each row may come to.
    number = np.arange(before.size).reshape(before.shape)
    p, link = np.array([(p, link) for p, path in enumerate(paths) for link in path.tolist()]).T
    slot = np.arange(rounds)[:, None, None] * topology.links + link[None, :, None]
    rules = [
        # Only what was held when the round began is sent.
        ([(sent, 1, sent), (before[round_, src[pair], chunk], -1, sent)], sent.size, 0),
        # What is held after the round was held before, or came.
        ([(after, 1, number), (before, -1, number), (sent, -1, number[round_, dst[pair], chunk])],
         number.size, 0),
        # A link carries one chunk in a round.
        ([(sent[:, p, :], 1, np.broadcast_to(slot, (rounds, len(p), hosts)))],
         rounds * topology.links, 1),
    ]  # fmt: skip

    size = sent.size + held.size
    least, most = np.zeros(size), np.ones(size)
    most[held[0]] = np.eye(hosts)
    least[held[-1]] = 1
    cost = np.zeros(size)
    cost[sent] = np.array([len(path) for path in paths])[pair]
    constraints = [
        LinearConstraint(_matrix(parts, (rows, size)), -np.inf, np.full(rows, high))
        for parts, rows, high in rules
    ]
    found = milp(
        cost,
        integrality=np.ones(size),
        bounds=Bounds(least, most),
        constraints=constraints,
        options={"time_limit": limit_s},
    )
    if found.status == 1:
        raise TopologyError(
            f"{rounds} rounds on {topology.name} were neither found nor ruled out in {limit_s:g} s"
        )
    return None if found.x is None else found.x[sent] > 0.5


def _matrix(parts, shape):
    columns, factors, rows = (
        np.concatenate([np.broadcast_to(part[k], part[0].shape).ravel() for part in parts])
        for k in range(3)
    )
    return coo_array((factors.astype(float), (rows, columns)), shape=shape).tocsr()
