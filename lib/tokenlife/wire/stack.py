"""Transports: the packets that carry one message, with the layers around each.

A :class:`Stack` is the headers from the outside in, then what follows the payload. An RDMA write
is one message: its first packet alone carries the RETH (address, key, length), its last asks for
the one acknowledgement. TCP is a stream: all segments alike, an acknowledgement for every second.

``mtu`` is the IP packet for ``tcp`` and the payload of a packet (the path MTU) for ``rocev2`` and
``ib``. Under VXLAN it stays that of the inner packet: the outer one is longer.

Lengths: IEEE 802.3-2022, 802.1Q-2022 and 802.1AE-2018 (SecTAG with its SCI); RFC 791, 768, 8200,
9293, 7323 and 7348; InfiniBand Architecture Specification 1, §7.7, §9 and annex A17 (RoCEv2).

Left out: congestion and pause frames, retransmissions, atomic and read operations, and the
delimiters between InfiniBand packets, which belong to its physical layer.
"""

from dataclasses import dataclass, field

from tokenlife.wire.framing import (
    INTERFRAME_GAP,
    LARGEST_IPV4_PACKET,
    PREAMBLE,
    SMALLEST_FRAME,
    SMALLEST_IPV4_MTU,
    Framing,
    FramingError,
)
from tokenlife.wire.layers import LAYERS

TRANSPORTS = ("tcp", "rocev2", "ib")
PATH_MTUS = (256, 512, 1024, 2048, 4096)
LARGEST_RDMA_MESSAGE = 1 << 31
SMALLEST_IPV6_MTU = 1280  # RFC 8200, §5


@dataclass(frozen=True)
class Packet:
    """Packets that are alike.

    Attributes
    ----------
    name
        ``first``, ``middle``, ``last``, ``only``, ``acknowledgement``.
    count
        How many.
    payload_bytes
        Of the message, in each.
    layers
        (layer, bytes) from the outside in, without the payload.
    padding_bytes
        To a multiple of four (RDMA) and to Ethernet's smallest frame.
    silent_bytes
        Preamble and gap.
    """

    name: str
    count: int
    payload_bytes: int
    layers: tuple[tuple[str, int], ...]
    padding_bytes: int
    silent_bytes: int

    @property
    def frame_bytes(self) -> int:
        """From the first header to the last check."""
        return self.payload_bytes + self.padding_bytes + sum(size for _, size in self.layers)


@dataclass(frozen=True)
class Stack:
    """A transport with its options.

    Parameters
    ----------
    transport
        ``tcp``, ``rocev2`` (RDMA write over UDP) or ``ib`` (RDMA write on InfiniBand).
    mtu
        See above.
    vlan, ipv6, vxlan, macsec
        What else stands around it; InfiniBand has none of them.

    Raises
    ------
    FramingError
        If the transport, the MTU or the options cannot be.

    Examples
    --------
    >>> tcp = Stack("tcp", 1500).frame(1_000_000)
    >>> tcp.packets, tcp.wire_bytes, round(tcp.goodput_ratio, 4)
    (691, 1062190, 0.9415)
    >>> [(p.name, p.count, p.frame_bytes) for p in Stack("rocev2", 1024).packets(2500)]
    [('first', 1, 1102), ('middle', 1, 1086), ('last', 1, 514)]
    """

    transport: str
    mtu: int
    vlan: bool = False
    ipv6: bool = False
    vxlan: bool = False
    macsec: bool = False
    rdma: bool = field(init=False, repr=False)

    def __post_init__(self):
        if self.transport not in TRANSPORTS:
            raise FramingError(
                f"no transport {self.transport!r}; there are {', '.join(TRANSPORTS)}"
            )
        object.__setattr__(self, "rdma", self.transport != "tcp")
        extras = [name for name in ("vlan", "ipv6", "vxlan", "macsec") if getattr(self, name)]
        if self.transport == "ib" and extras:
            raise FramingError(f"InfiniBand has no {extras[0]}: that belongs to Ethernet")
        if self.rdma and self.mtu not in PATH_MTUS:
            raise FramingError(
                f"an RDMA path MTU is one of {', '.join(map(str, PATH_MTUS))}, not {self.mtu}"
            )
        least = SMALLEST_IPV6_MTU if self.ipv6 else SMALLEST_IPV4_MTU
        most = LARGEST_IPV4_PACKET - (sum(n for _, n in self._tunnel()) if self.vxlan else 0)
        if not self.rdma and not least <= self.mtu <= most:
            raise FramingError(
                f"an MTU of {self.mtu} is outside {least} to {most} for IPv{6 if self.ipv6 else 4}"
                + (" inside VXLAN" if self.vxlan else "")
            )

    def _ip(self) -> str:
        return "ipv6 header" if self.ipv6 else "ip header"

    def _tunnel(self) -> list[tuple[str, int]]:
        """Return what VXLAN puts between the outer Ethernet header and the inner packet."""
        names = (self._ip(), "udp header", "vxlan header", "ethernet header")
        return [(f"outer {n}" if i < 2 else n, LAYERS[n].bytes) for i, n in enumerate(names)]

    def layers(self, *inner: str) -> tuple[tuple[str, int], ...]:
        """Return (layer, bytes) around a payload, those after it last, ``inner`` headers inside."""
        if self.transport == "ib":
            names = ["lrh", "bth", *inner, "icrc", "vcrc"]
            return tuple((name, LAYERS[name].bytes) for name in names)
        ethernet = "outer ethernet header" if self.vxlan else "ethernet header"
        found = [(ethernet, LAYERS["ethernet header"].bytes)]
        tags = {"macsec tag": self.macsec, "vlan tag": self.vlan}
        found += [(name, LAYERS[name].bytes) for name, wanted in tags.items() if wanted]
        found += self._tunnel() if self.vxlan else []
        names = [self._ip()]
        names += ["udp header", "bth", *inner, "icrc"] if self.rdma else ["tcp header", *inner]
        names += ["macsec check", "frame check"] if self.macsec else ["frame check"]
        return tuple(found) + tuple((name, LAYERS[name].bytes) for name in names)

    @property
    def payload_per_packet(self) -> int:
        """Bytes of the message in a full packet."""
        if self.rdma:
            return self.mtu
        names = (self._ip(), "tcp header", "tcp timestamps")
        return self.mtu - sum(LAYERS[name].bytes for name in names)

    def _packet(self, name: str, count: int, payload: int, *inner: str) -> Packet:
        layers, ethernet = self.layers(*inner), self.transport != "ib"
        padding = -payload % 4 if self.rdma else 0
        bare = payload + padding + sum(size for _, size in layers)
        padding += max(0, SMALLEST_FRAME - bare) if ethernet else 0
        silent = PREAMBLE + INTERFRAME_GAP if ethernet else 0
        return Packet(name, count, payload, layers, padding, silent)

    def packets(self, message_bytes: int) -> list[Packet]:
        """Return the packets of one message in order, alike ones together.

        Parameters
        ----------
        message_bytes
            0 sends nothing; an RDMA message has at most 2 GiB.

        Raises
        ------
        FramingError
            If the message cannot be.
        """
        if message_bytes < 0:
            raise FramingError(f"a message cannot have {message_bytes} bytes")
        if self.rdma and message_bytes > LARGEST_RDMA_MESSAGE:
            raise FramingError(
                f"an RDMA message has at most {LARGEST_RDMA_MESSAGE} bytes, not {message_bytes}"
            )
        size = self.payload_per_packet
        count, last = -(-message_bytes // size), (message_bytes - 1) % size + 1
        head, tail = (("reth",), ()) if self.rdma else (("tcp timestamps",),) * 2
        if count < 2:
            return [self._packet("only", 1, last, *head)] * count
        found = [self._packet("first", 1, size, *head)]
        found += [self._packet("middle", count - 2, size, *tail)] * (count > 2)
        return [*found, self._packet("last", 1, last, *tail)]

    def acknowledgements(self, packets: int) -> Packet:
        """Return the acknowledgements of a message of so many packets."""
        count = min(packets, 1) if self.rdma else -(-packets // 2)
        return self._packet("acknowledgement", count, 0, "aeth" if self.rdma else "tcp timestamps")

    def frame(self, message_bytes: int) -> Framing:
        """Count one message's packets, as :meth:`packets`."""
        groups = self.packets(message_bytes)
        every = self.layers("reth" if self.rdma else "tcp timestamps")
        header_bytes = dict.fromkeys((name for name, _ in every), 0)
        for group in groups:
            for name, size in group.layers:
                header_bytes[name] += group.count * size
        packets = sum(g.count for g in groups)
        acks = self.acknowledgements(packets)
        return Framing(
            payload_bytes=message_bytes,
            packets=packets,
            header_bytes=header_bytes,
            padding_bytes=sum(g.count * g.padding_bytes for g in groups),
            silent_bytes=sum(g.count * g.silent_bytes for g in groups),
            acknowledgements=acks.count,
            acknowledgement_bytes=acks.count * acks.frame_bytes,
            acknowledgement_silent_bytes=acks.count * acks.silent_bytes,
        )
