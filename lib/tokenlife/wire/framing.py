"""How a message becomes packets, counted to the byte.

TCP over IPv4 over Ethernet. A message is one write to the socket: it fills ⌈bytes / MSS⌉ segments,
all full but the last. Every segment carries the same headers; every frame also occupies the link
with a preamble and an inter-frame gap that no capture shows. Header lengths are those of the
standards: Ethernet (IEEE 802.3-2022, clauses 3 and 4), IPv4 (RFC 791), TCP (RFC 9293), its
timestamp option (RFC 7323), padded to a multiple of 4.

The receiver acknowledges every second segment (RFC 9293, §3.8.6.3, asks for at least that) and the
last. That is a model: a real receiver merges acknowledgements when it is busy.

Left out: connection set-up and tear-down, retransmissions, and data that travels with the
acknowledgements.
"""

from dataclasses import dataclass

from tokenlife.errors import TokenlifeError

ETHERNET_HEADER = 14  # two addresses and the type
FRAME_CHECK = 4
PREAMBLE = 8  # with the start-of-frame delimiter
INTERFRAME_GAP = 12
SMALLEST_FRAME = 64  # header to frame check, padded if need be
IPV4_HEADER = 20
TCP_HEADER = 20
TCP_TIMESTAMPS = 12
SMALLEST_IPV4_MTU = 68  # RFC 791
LARGEST_IPV4_PACKET = 65_535


class FramingError(TokenlifeError, ValueError):
    """An MTU or a message that cannot be framed."""


@dataclass(frozen=True)
class Framing:
    """What one message costs on one link.

    Attributes
    ----------
    payload_bytes
        The message.
    packets
        Frames that carry it.
    header_bytes
        By layer, over all packets.
    padding_bytes
        Added to frames that would be too short.
    silent_bytes
        Preambles and gaps of these frames: time on the link that no capture shows.
    acknowledgements
        Frames in the other direction.
    acknowledgement_bytes
        Bytes of those frames.
    acknowledgement_silent_bytes
        Preambles and gaps of those.
    """

    payload_bytes: int
    packets: int
    header_bytes: dict[str, int]
    padding_bytes: int
    silent_bytes: int
    acknowledgements: int
    acknowledgement_bytes: int
    acknowledgement_silent_bytes: int

    @property
    def frame_bytes(self) -> int:
        """Bytes of the frames that carry the message, as a capture with frame checks shows them."""
        return self.payload_bytes + sum(self.header_bytes.values()) + self.padding_bytes

    @property
    def wire_bytes(self) -> int:
        """Bytes that the message occupies in its own direction, preambles and gaps included."""
        return self.frame_bytes + self.silent_bytes

    @property
    def goodput_ratio(self) -> float:
        """Payload per byte of the link's time in the message's direction."""
        return self.payload_bytes / self.wire_bytes if self.wire_bytes else 0.0


@dataclass(frozen=True)
class PacketFormat:
    """The layers around a segment's payload.

    Attributes
    ----------
    mtu
        Largest IP packet, bytes.
    headers
        (layer, bytes per packet) from the outside in; the frame check stands last.

    Examples
    --------
    >>> tcp_over_ethernet(1500).payload_per_packet
    1448
    >>> framing = tcp_over_ethernet(1500).frame(1_000_000)
    >>> framing.packets, framing.frame_bytes, round(framing.goodput_ratio, 4)
    (691, 1048370, 0.9415)
    """

    mtu: int
    headers: tuple[tuple[str, int], ...]

    @property
    def overhead_per_packet(self) -> int:
        """Header bytes of one packet, over all layers."""
        return sum(size for _, size in self.headers)

    @property
    def payload_per_packet(self) -> int:
        """The maximum segment size: what is left of the MTU inside IP and TCP."""
        return self.mtu - (self.overhead_per_packet - ETHERNET_HEADER - FRAME_CHECK)

    def frame_sizes(self, message_bytes: int) -> tuple[int, int, int]:
        """Return (full frames, bytes of a full frame, bytes of the last, shorter one or 0)."""
        full, rest = divmod(message_bytes, self.payload_per_packet)
        last = max(rest + self.overhead_per_packet, SMALLEST_FRAME) if rest else 0
        return full, max(self.payload_per_packet + self.overhead_per_packet, SMALLEST_FRAME), last

    def frame(self, message_bytes: int) -> Framing:
        """Frame one message.

        Parameters
        ----------
        message_bytes
            Payload; 0 sends nothing.

        Raises
        ------
        FramingError
            If the size is negative.
        """
        if message_bytes < 0:
            raise FramingError(f"a message cannot have {message_bytes} bytes")
        full, full_size, last_size = self.frame_sizes(message_bytes)
        packets = full + (last_size > 0)
        bare = message_bytes + packets * self.overhead_per_packet
        acknowledgements = -(-packets // 2)
        return Framing(
            payload_bytes=message_bytes,
            packets=packets,
            header_bytes={layer: packets * size for layer, size in self.headers},
            padding_bytes=full * full_size + last_size - bare,
            silent_bytes=packets * (PREAMBLE + INTERFRAME_GAP),
            acknowledgements=acknowledgements,
            acknowledgement_bytes=acknowledgements * max(self.overhead_per_packet, SMALLEST_FRAME),
            acknowledgement_silent_bytes=acknowledgements * (PREAMBLE + INTERFRAME_GAP),
        )


def tcp_over_ethernet(mtu: int) -> PacketFormat:
    """Return the format of a TCP segment with timestamps over IPv4 over Ethernet.

    Parameters
    ----------
    mtu
        Largest IP packet: 1500 on ordinary Ethernet, 9000 with jumbo frames.

    Raises
    ------
    FramingError
        If the MTU is below IPv4's least of 68, or above what IPv4 can number.

    Examples
    --------
    >>> tcp_over_ethernet(20)
    Traceback (most recent call last):
        ...
    tokenlife.wire.framing.FramingError: an MTU of 20 is outside IPv4's 68 to 65535
    """
    if not SMALLEST_IPV4_MTU <= mtu <= LARGEST_IPV4_PACKET:
        raise FramingError(
            f"an MTU of {mtu} is outside IPv4's {SMALLEST_IPV4_MTU} to {LARGEST_IPV4_PACKET}"
        )
    return PacketFormat(
        mtu,
        (
            ("ethernet header", ETHERNET_HEADER),
            ("ip header", IPV4_HEADER),
            ("tcp header", TCP_HEADER),
            ("tcp timestamps", TCP_TIMESTAMPS),
            ("frame check", FRAME_CHECK),
        ),
    )
