"""Hosts, switches, and the one-way links between them, as arrays.

A cable is two links, one in each direction. Hosts are numbered first, switches after them.
"""

from dataclasses import dataclass, replace

import numpy as np

from tokenlife.errors import TokenlifeError


class TopologyError(TokenlifeError, ValueError):
    """A topology that cannot be, or a path that does not exist."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A network.

    Attributes
    ----------
    name
        What kind it is.
    hosts
        Number of hosts: nodes 0 … hosts − 1.
    link_src, link_dst
        The nodes of each link; shape (links,).
    link_bps
        The rate of each link in bits per second; shape (links,). A link of rate zero is cut.
    transit
        Whether hosts pass on what is not for them, as in a torus.
    link_cost
        What routing counts a link as, 2 where not given; links of an NVLink domain count 1, so that
        they are preferred to a switch outside.

    Examples
    --------
    >>> star = single_switch(3, 1e9)
    >>> star.links, star.path(0, 2)
    (6, (0, 5))
    """

    name: str
    hosts: int
    link_src: np.ndarray
    link_dst: np.ndarray
    link_bps: np.ndarray
    transit: bool = False
    link_cost: np.ndarray | None = None

    def __post_init__(self):
        if self.hosts < 1 or not self.links or np.any(~(self.link_bps >= 0)):
            raise TopologyError(f"{self.name} needs hosts, links and rates of zero or more")
        if self.link_cost is None:
            object.__setattr__(self, "link_cost", np.full(self.links, 2))

    @property
    def nodes(self) -> int:
        """Number of hosts and switches."""
        return int(max(self.link_src.max(), self.link_dst.max(), self.hosts - 1)) + 1

    @property
    def between_switches(self) -> np.ndarray:
        """Whether each link joins two switches; shape (links,)."""
        return (self.link_src >= self.hosts) & (self.link_dst >= self.hosts)

    def degraded(self, links, factor: float) -> "Topology":
        """Return the topology with some links at ``factor`` of their rate; 0 cuts them.

        Examples
        --------
        >>> single_switch(2, 1e9).degraded([0], 0.5).link_bps.tolist()
        [500000000.0, 1000000000.0, 1000000000.0, 1000000000.0]
        """
        links = np.atleast_1d(links)
        if factor < 0 or np.any(links < 0) or np.any(links >= self.links):
            raise TopologyError(f"a factor is zero or more and a link one of {self.links}")
        rates = self.link_bps.copy()
        rates[links] *= factor
        return replace(self, link_bps=rates)

    @property
    def links(self) -> int:
        """Number of one-way links."""
        return len(self.link_src)

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the links from one host to another, the fewest that do.

        Raises
        ------
        TopologyError
            If there is no such host, or no way.
        """
        for host in (src, dst):
            if not 0 <= host < self.hosts:
                raise TopologyError(f"no host {host}: {self.name} has 0 to {self.hosts - 1}")
        reached_by: dict[int, int] = {src: -1}
        frontier = [src]
        while frontier and dst not in reached_by:
            out = np.flatnonzero(np.isin(self.link_src, frontier))
            frontier = []
            for link in out.tolist():
                node = int(self.link_dst[link])
                if node not in reached_by:
                    reached_by[node] = link
                    frontier.append(node)
        if dst not in reached_by:
            raise TopologyError(f"no way from host {src} to host {dst} in {self.name}")
        path = []
        while dst != src:
            path.append(reached_by[dst])
            dst = int(self.link_src[path[-1]])
        return tuple(reversed(path))


def single_switch(hosts: int, rate_bps: float) -> Topology:
    """Return hosts around one switch: link h goes up from host h, link hosts + h comes down to it.

    Parameters
    ----------
    hosts
        At least 1.
    rate_bps
        Rate of every link in each direction, bits per second.

    Raises
    ------
    TopologyError
        If there are no hosts or no rate.
    """
    if hosts < 1 or rate_bps <= 0:
        raise TopologyError(f"a switch needs hosts and a rate, not {hosts} at {rate_bps} bit/s")
    host, switch = np.arange(hosts), np.full(hosts, hosts)
    return Topology(
        name="single switch",
        hosts=hosts,
        link_src=np.concatenate([host, switch]),
        link_dst=np.concatenate([switch, host]),
        link_bps=np.full(2 * hosts, float(rate_bps)),
    )
