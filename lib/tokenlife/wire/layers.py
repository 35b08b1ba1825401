"""Header layouts, bit by bit, and a frame shown byte by byte with the layer that owns each.

A layer is a name and its fields in order, (field, bits). The sources of the layouts stand in
:mod:`tokenlife.wire.stack`. ``dissect`` reads what the book sends: Ethernet with VLAN tags, IPv4,
IPv6, TCP, UDP, and on its port RoCEv2's base and extended headers of an RDMA write and its
acknowledgement. What it does not know it calls ``payload``.
"""

from dataclasses import dataclass

from tokenlife.wire.framing import FramingError

ROCE_PORT = 4791  # UDP; IANA
_RETH, _AETH = (6, 10, 11), (17,)  # opcodes: write first, write only (with immediate); acknowledge


@dataclass(frozen=True)
class Layer:
    """A header: its name and its fields, (name, bits) in order."""

    name: str
    fields: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """Length of the whole."""
        return sum(bits for _, bits in self.fields) // 8


_LAYOUTS = {
    "ethernet header": "destination 48, source 48, type 16",
    "vlan tag": "priority 3, drop eligible 1, vlan 12, type 16",
    "macsec tag": "control 8, short length 8, packet number 32, channel 64, type 16",
    "ip header": "version 4, header length 4, service class 6, congestion 2, total length 16, "
    "identification 16, flags 3, fragment offset 13, time to live 8, protocol 8, checksum 16, "
    "source 32, destination 32",
    "ipv6 header": "version 4, traffic class 8, flow label 20, payload length 16, next header 8, "
    "hop limit 8, source 128, destination 128",
    "tcp header": "source port 16, destination port 16, sequence number 32, acknowledgement 32, "
    "data offset 4, reserved 4, flags 8, window 16, checksum 16, urgent pointer 16",
    "tcp timestamps": "padding 16, kind 8, length 8, value 32, echo 32",
    "udp header": "source port 16, destination port 16, length 16, checksum 16",
    "vxlan header": "flags 8, reserved 24, network 24, reserved 8",
    "lrh": "virtual lane 4, link version 4, service level 4, reserved 2, next header 2, "
    "destination 16, reserved 5, length 11, source 16",
    "bth": "opcode 8, solicited 1, migrated 1, pad count 2, version 4, partition 16, fecn 1, "
    "becn 1, reserved 6, queue pair 24, ask acknowledgement 1, reserved 7, sequence number 24",
    "reth": "virtual address 64, key 32, length 32",
    "aeth": "syndrome 8, message sequence number 24",
    "icrc": "check 32",
    "macsec check": "check 128",
    "vcrc": "check 16",
    "frame check": "check 32",
}


def _layer(name: str, text: str) -> Layer:
    pairs = (part.strip().rsplit(" ", 1) for part in text.split(","))
    return Layer(name, tuple((field, int(bits)) for field, bits in pairs))


LAYERS = {name: _layer(name, text) for name, text in _LAYOUTS.items()}


@dataclass(frozen=True)
class Span:
    """Bytes ``start`` to ``stop`` of a frame and the layer that owns them."""

    layer: str
    start: int
    stop: int

    def values(self, frame: bytes) -> list[tuple[str, int]]:
        """Return (field, value) of the layer; a layer without a layout has none."""
        layout = LAYERS.get(self.layer)
        if layout is None or layout.bytes != self.stop - self.start:
            return []
        number, left, found = int.from_bytes(frame[self.start : self.stop]), layout.bytes * 8, []
        for name, bits in layout.fields:
            left -= bits
            found.append((name, number >> left & (1 << bits) - 1))
        return found


def dissect(frame: bytes) -> list[Span]:
    """Say which layer owns which bytes of an Ethernet frame, each byte once.

    Parameters
    ----------
    frame
        As captured: from the destination address, without the frame check.

    Raises
    ------
    FramingError
        If the frame ends inside a header.

    Examples
    --------
    >>> dissect(bytes(12) + bytes.fromhex("88b5") + b"hello")
    [Span(layer='ethernet header', start=0, stop=14), Span(layer='payload', start=14, stop=19)]
    """
    spans: list[Span] = []

    def take(layer: str, size: int | None = None) -> bytes:
        start = spans[-1].stop if spans else 0
        stop = start + (LAYERS[layer].bytes if size is None else size)
        if stop > len(frame) or stop < start:
            raise FramingError(f"the frame of {len(frame)} bytes ends inside its {layer}")
        if stop > start:
            spans.append(Span(layer, start, stop))
        return frame[start:stop]

    def rest(end: int) -> int:
        return end - spans[-1].stop

    kind = int.from_bytes(take("ethernet header")[12:])
    while kind in (0x8100, 0x88A8):
        kind = int.from_bytes(take("vlan tag")[2:])
    end, protocol = len(frame), None
    if kind == 0x0800:
        head = take("ip header")
        end = spans[-1].start + int.from_bytes(head[2:4])
        take("ip options", (head[0] & 15) * 4 - len(head))
        protocol = head[9]
    elif kind == 0x86DD:
        head = take("ipv6 header")
        end, protocol = spans[-1].stop + int.from_bytes(head[4:6]), head[6]
    if protocol == 6:
        head = take("tcp header")
        options = (head[12] >> 4) * 4 - len(head)
        stamps = frame[spans[-1].stop :][:4] == bytes.fromhex("0101080a") and options == 12
        take("tcp timestamps" if stamps else "tcp options", options)
    elif protocol == 17 and int.from_bytes(take("udp header")[2:4]) == ROCE_PORT:
        head = take("bth")
        take("reth", None if head[0] in _RETH else 0)
        take("aeth", None if head[0] in _AETH else 0)
        pad = head[1] >> 4 & 3
        take("payload", rest(end) - pad - LAYERS["icrc"].bytes)
        take("padding", pad)
        take("icrc")
    take("payload", rest(end))
    take("padding", rest(len(frame)))
    return spans
