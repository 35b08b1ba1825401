"""Packets: how a message is cut, and what each layer adds to it."""

from tokenlife.wire.framing import Framing, FramingError, PacketFormat, tcp_over_ethernet

__all__ = ["Framing", "FramingError", "PacketFormat", "tcp_over_ethernet"]
