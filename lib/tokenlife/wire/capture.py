"""Captures read from files: the classic pcap format and its successor pcapng.

pcap: a header, then for each frame a note of 16 bytes and what was kept; either byte order, micro-
or nanoseconds. pcapng (draft-ietf-opsawg-pcapng): blocks of type, length, body, length; sections,
interfaces and enhanced packets are read, others passed over. Only Ethernet captures are taken.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from tokenlife.wire.framing import FramingError

_PCAP = {0xA1B2C3D4: 1e-6, 0xA1B23C4D: 1e-9}
_SECTION, _INTERFACE, _PACKET, _ORDER, _ETHERNET = 0x0A0D0D0A, 1, 6, 0x1A2B3C4D, 1


@dataclass(frozen=True)
class Frame:
    """A frame: its time, its bytes that were kept, and its length on the wire."""

    time_s: float
    data: bytes
    length: int


def read_capture(path: str | Path) -> list[Frame]:
    """Read a pcap or pcapng file of Ethernet frames.

    Raises
    ------
    FramingError
        If the file cannot be read, is no capture, is cut short or is not of Ethernet.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FramingError(f"cannot read {path}: {error.strerror}") from error
    try:
        for order in "<>":
            if len(content) >= 4:
                magic = struct.unpack_from(f"{order}I", content)[0]
                if magic in _PCAP:
                    return _pcap(content, order, _PCAP[magic])
                if magic == _SECTION:
                    return _pcapng(content)
    except (struct.error, FramingError) as error:
        why = error if isinstance(error, FramingError) else "the file is cut short"
        raise FramingError(f"cannot read {path}: {why}") from error
    raise FramingError(f"cannot read {path}: neither a pcap nor a pcapng file")


def _kept(content: bytes, start: int, size: int) -> bytes:
    if start + size > len(content):
        raise FramingError("the file is cut short inside a frame")
    return content[start : start + size]


def _check_link(link: int) -> None:
    if link != _ETHERNET:
        raise FramingError(f"its link type is {link}, not {_ETHERNET} (Ethernet)")


def _pcap(content: bytes, order: str, tick_s: float) -> list[Frame]:
    _check_link(struct.unpack_from(f"{order}IHHiIII", content)[6] & 0xFFFF)
    at, found = 24, []
    while at < len(content):
        seconds, ticks, kept, length = struct.unpack_from(f"{order}IIII", content, at)
        found.append(Frame(seconds + ticks * tick_s, _kept(content, at + 16, kept), length))
        at += 16 + kept
    return found


def _pcapng(content: bytes) -> list[Frame]:
    at, found, order, ticks_s = 0, [], "<", []
    while at < len(content):
        if content[at : at + 4] == _SECTION.to_bytes(4):
            first = struct.unpack_from("<I", content, at + 8)[0]
            order, ticks_s = "<" if first == _ORDER else ">", []
        kind, size = struct.unpack_from(f"{order}II", content, at)
        if size < 12 or size % 4:
            raise FramingError(f"a block claims {size} bytes")
        body = _kept(content, at, size)[8:-4]
        at += size
        if kind == _INTERFACE:
            _check_link(struct.unpack_from(f"{order}H", body)[0])
            ticks_s.append(_tick_s(body[8:], order))
        elif kind == _PACKET:
            port, high, low, kept, length = struct.unpack_from(f"{order}5I", body)
            if port >= len(ticks_s):
                raise FramingError(f"a frame names interface {port}, which nothing describes")
            time_s = (high << 32 | low) * ticks_s[port]
            found.append(Frame(time_s, _kept(body, 20, kept), length))
    return found


def _tick_s(options: bytes, order: str) -> float:
    """Return an interface's unit of time: option 9, a power of ten or, with its top bit, of two."""
    at = 0
    while at + 4 <= len(options):
        code, size = struct.unpack_from(f"{order}HH", options, at)
        if code == 9 and size == 1 and at + 4 < len(options):
            power = options[at + 4]
            return 2.0 ** -(power & 127) if power & 128 else 10.0**-power
        at += 4 + size + -size % 4
    return 1e-6
