"""Which links a flow takes: shortest paths, and what to do where several are equally short.

``ecmp`` picks one next hop at every switch by a hash of the flow's 5-tuple; the hash is a CRC-32,
mixed with the number of the switch, or all switches would choose alike. ``spray`` splits a flow
evenly over all next hops, packet by packet; here as a fluid. ``first`` always takes the first.
A flow of several flowlets, bursts with pauses between them that a switch may hash anew, is as many
equal parts that each take a path by a hash of their own.

Left out: flowlets that look where there is room, adaptive routing, detours, and the reordering that
spraying brings.
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from tokenlife.network.topology import Topology, TopologyError
from tokenlife.wire.layers import ROCE_PORT

_FAR = np.iinfo(np.int32).max // 2
_UDP = 17


@dataclass(frozen=True, eq=False)
class Routes:
    """Flows on links, as rows: flow f puts ``share`` of its bytes on ``link``.

    Attributes
    ----------
    flows
        Number of flows.
    flow, link, share
        Shape (rows,), in order of flows.
    """

    flows: int
    flow: np.ndarray
    link: np.ndarray
    share: np.ndarray

    def hops(self) -> np.ndarray:
        """Return how many links a byte of each flow passes; shape (flows,)."""
        return np.bincount(self.flow, self.share, self.flows)

    def load(self, links: int, bytes_: np.ndarray) -> np.ndarray:
        """Return the bytes on each link; shape (links,)."""
        return np.bincount(self.link, self.share * bytes_[self.flow], links)


def five_tuple_hash(src, dst, source_port) -> np.ndarray:
    """Hash flows as a switch does: addresses, ports and protocol, by CRC-32; shape (flows,).

    Hosts have the addresses 10.0.0.0 and on; the destination port is RoCEv2's.

    Examples
    --------
    >>> len(set(five_tuple_hash([0, 0], [1, 1], [50000, 50001]).tolist()))
    2
    """
    columns = (np.asarray(c).tolist() for c in np.broadcast_arrays(src, dst, source_port))
    net = 10 << 24
    return np.array(
        [
            zlib.crc32(struct.pack("!IIHHB", net + s, net + d, port & 0xFFFF, ROCE_PORT, _UDP))
            for s, d, port in zip(*columns, strict=True)
        ],
        dtype=np.uint64,
    )


def route(
    topology: Topology,
    src,
    dst,
    how: str = "ecmp",
    source_port: np.ndarray | int = 0xC000,
    flowlets: int = 1,
) -> Routes:
    """Route flows.

    Parameters
    ----------
    topology
        The network; links of rate zero are not used.
    src, dst
        Hosts; shape (flows,).
    how
        ``ecmp``, ``spray`` or ``first``.
    source_port
        What tells flows between the same hosts apart.
    flowlets
        Of each flow, with ``ecmp``.

    Raises
    ------
    TopologyError
        For a host that is not there, a flow to itself, or no way.

    Examples
    --------
    >>> from tokenlife.network.topology import single_switch
    >>> route(single_switch(3, 1e9), [0, 1], [2, 2]).link.tolist()
    [0, 5, 1, 5]
    """
    if how not in ("ecmp", "spray", "first"):
        raise TopologyError(f"routing is ecmp, spray or first, not {how!r}")
    if flowlets < 1 or (flowlets > 1 and how != "ecmp"):
        raise TopologyError(f"flowlets are 1 or more, and hashed (ecmp), not {flowlets} by {how}")
    src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    if flowlets > 1:
        port = np.broadcast_to(source_port, src.shape)
        parts = (np.repeat(each, flowlets) for each in (src, dst))
        # A hash of its own: ports that no other flow of the same hosts is likely to have.
        ports = (port[:, None] + 257 * np.arange(flowlets)) % 2**16
        whole = route(topology, *parts, how, ports.ravel())
        return Routes(len(src), whole.flow // flowlets, whole.link, whole.share / flowlets)
    ends = np.concatenate([src, dst])
    if np.any((ends < 0) | (ends >= topology.hosts)) or np.any(src == dst):
        raise TopologyError(f"flows join two different hosts of 0 to {topology.hosts - 1}")
    graph = _Graph(topology)
    hashed = five_tuple_hash(src, dst, source_port) if how == "ecmp" else None
    # Hosts behind the same switch are reached alike but for the last link.
    last = graph.only_link_in[dst]
    target = np.where(last >= 0, topology.link_src[last], dst)
    rows = []
    order = np.argsort(target, kind="stable")
    cuts = np.flatnonzero(np.diff(target[order])) + 1
    for flows in np.split(order, cuts) if len(order) else ():
        rows += _walk(topology, graph, flows, src, int(target[flows[0]]), how, hashed)
    tails = np.flatnonzero(last >= 0)
    rows.append((tails, last[tails], np.ones(len(tails))))
    flow, link, share = (np.concatenate(column) for column in zip(*rows, strict=True))
    order = np.argsort(flow, kind="stable")
    return Routes(len(src), flow[order], link[order], share[order])


class _Graph:
    """Links in order of their ends, and the links that lead on from what may pass traffic on."""

    def __init__(self, topology: Topology):
        usable = np.flatnonzero(topology.link_bps > 0)
        passing = usable
        if not topology.transit:
            passing = usable[topology.link_src[usable] >= topology.hosts]
        self.out = self._index(topology.link_src, usable, topology.nodes)
        self.into = self._index(topology.link_dst, passing, topology.nodes)
        self.only_link_in = np.full(topology.nodes, -1)
        if not topology.transit:
            first, links = self._index(topology.link_dst, usable, topology.nodes)
            single = np.flatnonzero(np.diff(first)[: topology.hosts] == 1)
            from_switch = topology.link_src[links[first[single]]] >= topology.hosts
            self.only_link_in[single[from_switch]] = links[first[single[from_switch]]]

    @staticmethod
    def _index(ends, links, nodes):
        order = links[np.argsort(ends[links], kind="stable")]
        return np.concatenate([[0], np.cumsum(np.bincount(ends[links], minlength=nodes))]), order


def entries(index: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return, for rows of an index (where each begins, entries), whose each entry is, and which."""
    first, every = index
    counts = first[rows + 1] - first[rows]
    which = np.repeat(np.arange(len(rows)), counts)
    return which, every[
        first[rows][which] + np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
    ]


def _distances(topology: Topology, graph: _Graph, target: int) -> np.ndarray:
    far = np.full(len(graph.only_link_in), _FAR)
    far[target] = 0
    frontier = np.array([target])
    while len(frontier):
        which, links = entries(graph.into, frontier)
        nodes = topology.link_src[links]
        reach = far[frontier][which] + topology.link_cost[links]
        better = reach < far[nodes]
        np.minimum.at(far, nodes[better], reach[better])
        reached = np.zeros(len(far), bool)
        reached[nodes[better]] = True
        frontier = np.flatnonzero(reached)
    return far


def _walk(topology, graph, flows, src, target, how, hashed) -> list[tuple]:
    far = _distances(topology, graph, target)
    at, share, rows = src[flows], np.ones(len(flows)), []
    while True:
        going = at != target
        flows, at, share = flows[going], at[going], share[going]
        if not len(flows):
            return rows
        which, links = entries(graph.out, at)
        nodes = topology.link_dst[links]
        # A host that passes nothing on is never on the way.
        closed = (nodes < topology.hosts) & (nodes != target) & (not topology.transit)
        reach = np.where(closed, _FAR, far[nodes]) + topology.link_cost[links]
        best = np.full(len(at), _FAR)
        np.minimum.at(best, which, reach)
        if best.max() >= _FAR:
            lost = int(flows[best.argmax()])
            raise TopologyError(f"no way from host {src[lost]} towards {target} in {topology.name}")
        keep = reach == best[which]
        which, links = which[keep], links[keep]
        ways = np.bincount(which, minlength=len(at))
        if how != "spray":
            turn = np.zeros(len(at), np.int64)
            if how == "ecmp":
                turn = (_mixed(hashed[flows], at) % ways.astype(np.uint64)).astype(np.int64)
            links = links[np.cumsum(ways) - ways + turn]
            which, ways = np.arange(len(at)), np.ones(len(at))
        part = share[which] / ways[which]
        rows.append((flows[which], links, part))
        # Parts of a flow that meet again go on as one.
        key = flows[which] * len(far) + topology.link_dst[links]
        key, where = np.unique(key, return_inverse=True)
        flows, at, share = key // len(far), key % len(far), np.bincount(where, part)


def _mixed(hashed: np.ndarray, switch: np.ndarray) -> np.ndarray:
    """Mix hash and switch, by the finaliser of SplitMix64 (Steele, Lea, Flood, 2014)."""
    z = hashed + (switch.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def colliding(routes: Routes, topology: Topology) -> int:
    """Count the flows that share a link between switches with another flow."""
    inner = topology.between_switches[routes.link]
    crowd = np.bincount(routes.link[inner], minlength=topology.links)
    return len(np.unique(routes.flow[inner][crowd[routes.link[inner]] > 1]))


def expected_colliding(flows, paths):
    """Return how many of ``flows`` share one of ``paths``, each chosen evenly: n(1 − (1 − 1/m)ⁿ⁻¹).

    Examples
    --------
    >>> expected_colliding(2, 2)
    1.0
    """
    return flows * (1 - (1 - 1 / paths) ** (flows - 1))
