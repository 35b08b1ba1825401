"""A schedule's messages as flows: each with its path, its bytes, its start and its finish.

The model is the simplest that is honest: rounds follow one another, a round ends when its fullest
link has drained, and a flow ends when the fullest link of its own path has. A link's load counts
frames with their preambles and gaps.

Left out so far: propagation and switch latency, acknowledgements that share a link with data, and
the fair sharing of links between flows of different length.
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.collectives.schedule import Schedule
from tokenlife.network.topology import Topology
from tokenlife.wire.framing import PacketFormat


@dataclass(frozen=True, slots=True)
class Flow:
    """One message on its way.

    Attributes
    ----------
    src, dst
        Hosts.
    path
        Links of the topology, in order.
    bytes_
        Payload.
    start_s, finish_s
        Seconds from the start of the collective.
    """

    src: int
    dst: int
    path: tuple[int, ...]
    bytes_: int
    start_s: float
    finish_s: float

    @property
    def rate_Bps(self) -> float:
        """Payload bytes per second, averaged over the flow's life."""
        return self.bytes_ / (self.finish_s - self.start_s)

    @property
    def link_bytes(self) -> int:
        """Payload bytes summed over the links of the path."""
        return self.bytes_ * len(self.path)


def place(
    schedule: Schedule, items: int, item_bytes: int, topology: Topology, packets: PacketFormat
) -> tuple[Flow, ...]:
    """Lay the messages of a schedule over a topology, rank r on host r.

    Parameters
    ----------
    schedule
        The collective.
    items, item_bytes
        The buffer of each rank: how many numbers, and the bytes of one.
    topology
        With at least as many hosts as the schedule has ranks.
    packets
        How messages are framed; it decides how long a link is busy.

    Returns
    -------
    tuple of Flow
        In order of start; empty messages make no flow.

    Examples
    --------
    >>> from tokenlife.collectives import ring_all_reduce
    >>> from tokenlife.network.topology import single_switch
    >>> from tokenlife.wire import tcp_over_ethernet
    >>> flows = place(ring_all_reduce(2), 724, 4, single_switch(2, 1e9), tcp_over_ethernet(1500))
    >>> len(flows), flows[0].bytes_, flows[0].path, flows[0].finish_s
    (4, 1448, (0, 3), 1.2304e-05)
    """
    offsets = schedule.chunk_offsets(items) * item_bytes
    flows, now = [], 0.0
    for index in range(len(schedule.rounds)):
        src, dst, size, _ = (column.tolist() for column in schedule.messages(index, offsets))
        messages = [
            (pair, topology.path(*pair), bytes_)
            for pair, bytes_ in zip(zip(src, dst, strict=True), size, strict=True)
            if bytes_
        ]
        load_bytes = np.zeros(topology.links)
        for _, path, bytes_ in messages:
            load_bytes[list(path)] += packets.frame(bytes_).wire_bytes
        drain_s = 8 * load_bytes / topology.link_bps
        flows += [
            Flow(*pair, path, bytes_, now, now + float(drain_s[list(path)].max()))
            for pair, path, bytes_ in messages
        ]
        now += float(drain_s.max())
    return tuple(flows)
