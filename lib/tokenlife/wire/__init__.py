"""Packets: how a message is cut, what each layer adds to it, and frames read back."""

from tokenlife.wire.decode import TcpFrames
from tokenlife.wire.framing import Framing, FramingError, PacketFormat, tcp_over_ethernet
from tokenlife.wire.pcap import write_pcap

__all__ = [
    "Framing",
    "FramingError",
    "PacketFormat",
    "TcpFrames",
    "tcp_over_ethernet",
    "write_pcap",
]
