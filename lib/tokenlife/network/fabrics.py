"""Fabrics by their parameters: trees, rails, dragonflies, tori, and NVLink domains under them.

A fabric is built as arrays of cables; 32,768 hosts take a fraction of a second. Switches have as
many ports as the parameters ask for; whether such a switch can be bought is left out.

Sources: M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network
architecture", SIGCOMM 2008 (fat tree); J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-driven,
highly-scalable dragonfly topology", ISCA 2008; W. Wang et al., "Rail-only: a low-cost
high-performance network for training LLMs with trillion parameters", HOTI 2024.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod

import numpy as np

from tokenlife.network.topology import Topology, TopologyError, single_switch
from tokenlife.units import parse_rate


def _wired(name: str, hosts: int, cables: list[tuple], *, transit: bool = False) -> Topology:
    """Make a topology of cables (nodes, nodes, rate); all links one way come first."""
    if hosts < 1 or any(not rate > 0 for _, _, rate in cables):
        raise TopologyError(f"{name} needs at least one host and rates above zero")
    a, b, rate = (
        np.concatenate([np.broadcast_to(cable[i], np.shape(cable[0])) for cable in cables])
        for i in range(3)
    )
    ends = np.concatenate([a, b]), np.concatenate([b, a])
    return Topology(name, hosts, *ends, np.tile(rate.astype(float), 2), transit)


def _grid(*sizes: int) -> list[np.ndarray]:
    return [axis.ravel() for axis in np.meshgrid(*map(np.arange, sizes), indexing="ij")]


def leaf_spine(
    hosts: int, rate_bps: float, per_leaf: int = 32, oversubscription: int = 1
) -> Topology:
    """Build two tiers: each leaf has a cable to every spine.

    Parameters
    ----------
    hosts, rate_bps
        Hosts, and the rate of every cable in bits per second.
    per_leaf
        Hosts of a leaf.
    oversubscription
        Cables to the hosts of a leaf for each one to the spines; divides ``per_leaf``.

    Examples
    --------
    >>> fabric = leaf_spine(64, 4e11, oversubscription=4)
    >>> fabric.nodes - fabric.hosts, fabric.links
    (10, 160)
    """
    per_leaf = min(per_leaf, hosts)
    if min(hosts, per_leaf, oversubscription) < 1 or per_leaf % oversubscription:
        raise TopologyError(
            f"hosts of a leaf ({per_leaf}) must be a multiple of oversubscription"
            f" ({oversubscription})"
        )
    leaves, host = ceil(hosts / per_leaf), np.arange(hosts)
    leaf, spine = _grid(leaves, per_leaf // oversubscription)
    down = (host, hosts + host // per_leaf, rate_bps)
    return _wired("leaf–spine", hosts, [down, (hosts + leaf, hosts + leaves + spine, rate_bps)])


def fat_tree(
    hosts: int, rate_bps: float, radix: int | None = None, oversubscription: int = 1
) -> Topology:
    """Build the 3-tier fat tree of switches with ``radix`` ports; the fewest that do by default.

    Each pod has radix/2 switches of either kind, radix²/4 hosts, and each upper switch radix/2
    cables to the core, divided by ``oversubscription``.

    Examples
    --------
    >>> fabric = fat_tree(16, 1e11)
    >>> fabric.nodes - fabric.hosts, fabric.links // 2
    (20, 48)
    """
    radix = radix or next(k for k in range(2, 10**4, 2) if k**3 // 4 >= hosts)
    half = radix // 2
    if radix % 2 or half**2 * radix < hosts or half % oversubscription:
        raise TopologyError(
            f"switches of {radix} ports hold {radix**3 // 4} hosts in three tiers, not {hosts},"
            f" and divide {half} cables by the oversubscription"
        )
    host, pods = np.arange(hosts), ceil(hosts / half**2)
    edge, upper = hosts, hosts + pods * half
    core = upper + pods * half
    pod, low, high = _grid(pods, half, half)
    from_pod, from_high, up = _grid(pods, half, half // oversubscription)
    cables = [
        (host, edge + host // half, rate_bps),
        (edge + pod * half + low, upper + pod * half + high, rate_bps),
        (upper + from_pod * half + from_high, core + from_high * half + up, rate_bps),
    ]
    return _wired("fat tree", hosts, cables)


def rails(
    hosts: int,
    rate_bps: float,
    node: int = 8,
    nvlink_bps: float = 0.0,
    oversubscription: int = 1,
    spine: int = 1,
) -> Topology:
    """Build rails: GPU g of every node on switch g, nodes joined inside by an NVLink domain.

    With ``spine=1`` the rails meet in spines (rail-optimised). With 0 they do not (rail-only), and
    what changes the rail passes through another GPU of the node. ``nvlink_bps`` is nine times the
    rate by default, the ratio of an eight-GPU node of the H100's time.
    """
    if node < 1 or hosts % node or oversubscription < 1:
        raise TopologyError(f"{hosts} hosts do not fill nodes of {node}")
    host, per_rail = np.arange(hosts), hosts // node
    cables = [(host, hosts + host % node, rate_bps)]
    if spine:
        spines = min(per_rail, 64)
        rail, top = _grid(node, spines)
        trunk = rate_bps * per_rail / spines / oversubscription
        cables.append((hosts + rail, hosts + node + top, trunk))
    name = "rail-optimised" if spine else "rail-only"
    bare = _wired(name, hosts, cables, transit=not spine)
    return with_domains(bare, node, nvlink_bps or 9 * rate_bps) if node > 1 else bare


def dragonfly(hosts: int, rate_bps: float, per_router: int | None = None) -> Topology:
    """Build a balanced dragonfly: p hosts and p far cables to a router, 2p routers to a group.

    Groups are complete inside, and each has one cable to every other one. Routing is the shortest;
    the detours of Valiant's method are left out.
    """
    p = per_router or next(p for p in range(1, 10**3) if 2 * p * p * (2 * p * p + 1) >= hosts)
    a, ports = 2 * p, 2 * p * p
    if hosts > ports * (ports + 1):
        raise TopologyError(f"a dragonfly of {p} hosts to a router holds {ports * (ports + 1)}")
    groups = ports + 1
    host = np.arange(hosts)
    group, one, other = _grid(groups, a, a)
    near = one < other
    left, port = _grid(groups, ports)
    right = (left + port + 1) % groups
    far = left < right
    cables = [
        (host, hosts + host // p, rate_bps),
        ((hosts + group * a + one)[near], (hosts + group * a + other)[near], rate_bps),
        (
            (hosts + left * a + port // p)[far],
            (hosts + right * a + (ports - 1 - port) // p)[far],
            rate_bps,
        ),
    ]
    return _wired("dragonfly", hosts, cables)


def torus(shape: tuple[int, ...], rate_bps: float) -> Topology:
    """Build a torus: hosts are its nodes, each with a cable to the next one along every axis.

    Examples
    --------
    >>> torus((4, 4), 1e11).links
    64
    """
    if min(shape, default=0) < 1 or prod(shape) < 2:
        raise TopologyError(f"a torus has at least two hosts and no empty side, not {shape}")
    host = np.arange(prod(shape)).reshape(shape)
    # Of two nodes on an axis the next one is also the last one: one cable, not two.
    cables = [
        (
            (host if size > 2 else host.take([0], axis)).ravel(),
            (np.roll(host, -1, axis) if size > 2 else host.take([1], axis)).ravel(),
            rate_bps,
        )
        for axis, size in enumerate(shape)
        if size > 1
    ]
    return _wired(f"torus {'×'.join(map(str, shape))}", host.size, cables, transit=True)


def with_domains(fabric: Topology, node: int, nvlink_bps: float) -> Topology:
    """Put every ``node`` neighbouring hosts on an NVSwitch of their own."""
    if node < 2 or not nvlink_bps > 0:
        raise TopologyError(f"a domain has two hosts and a rate, not {node} at {nvlink_bps}")
    host = np.arange(fabric.hosts)
    switch = fabric.nodes + host // node
    return replace(
        fabric,
        name=f"{fabric.name}, NVLink domains of {node}",
        link_src=np.concatenate([fabric.link_src, host, switch]),
        link_dst=np.concatenate([fabric.link_dst, switch, host]),
        link_bps=np.concatenate([fabric.link_bps, np.full(2 * fabric.hosts, float(nvlink_bps))]),
        link_cost=np.concatenate([fabric.link_cost, np.full(2 * fabric.hosts, 1)]),
    )


def _torus(hosts: int, rate_bps: float, sides: int) -> Topology:
    side = round(hosts ** (1 / sides))
    if side**sides != hosts:
        raise TopologyError(f"{hosts} hosts are no torus of {sides} equal sides")
    return torus((side,) * sides, rate_bps)


FABRICS: dict[str, Callable[..., Topology]] = {
    "single-switch": single_switch,
    "leaf-spine": leaf_spine,
    "fat-tree": fat_tree,
    "rail-optimised": rails,
    "rail-only": lambda hosts, rate_bps, **more: rails(hosts, rate_bps, spine=0, **more),
    "dragonfly": dragonfly,
    "torus-2d": lambda hosts, rate_bps: _torus(hosts, rate_bps, 2),
    "torus-3d": lambda hosts, rate_bps: _torus(hosts, rate_bps, 3),
}


def parse_topology(text: str, hosts: int, rate_bps: float) -> Topology:
    """Build what a text says, like ``leaf-spine:hosts=64,oversubscription=4``.

    Parameters
    ----------
    text
        A name of ``FABRICS``, then its parameters; ``rate`` is a rate, ``domain`` and ``nvlink``
        put NVLink domains under it, the others are whole numbers.
    hosts, rate_bps
        Where the text does not say.

    Examples
    --------
    >>> parse_topology("fat-tree:hosts=16,rate=400Gbps", 2, 1e9).links
    96
    """
    name, _, rest = text.partition(":")
    if name not in FABRICS:
        raise TopologyError(f"no topology {name!r}; there are {', '.join(FABRICS)}")
    given = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    rate_bps = parse_rate(given.pop("rate", rate_bps))
    nvlink = parse_rate(given.pop("nvlink", 9 * rate_bps))
    try:
        numbers = {"hosts": hosts} | {k.replace("-", "_"): int(v) for k, v in given.items()}
        domain = numbers.pop("domain", 0)
        fabric = FABRICS[name](rate_bps=rate_bps, **numbers)
    except (TypeError, ValueError) as error:
        if isinstance(error, TopologyError):
            raise
        raise TopologyError(f"cannot read {text!r}: write name:hosts=64,rate=400Gbps") from error
    return with_domains(fabric, domain, nvlink) if domain else fabric
