"""What a rank sent, counted three ways by the kernel: sockets, interface, frames.

- Sockets: ``TCP_INFO`` of each TCP connection of this process, the figures that ``ss -i`` prints.
  Payload exact to the byte, with or without namespaces.
- Interface: bytes and packets that left it, as ``/proc/net/dev`` has them. A frame counts from its
  Ethernet header to the end of its payload: no preamble, no frame check.
- Frames: a ring in memory that the kernel fills and nobody reads before the run has ended, so that
  the capture costs the run next to nothing. What does not fit is counted as dropped.
"""

import mmap
import os
import socket
import struct
from pathlib import Path

import numpy as np

ALL_PROTOCOLS = 3
SOL_PACKET, STATISTICS, RX_RING, VERSION = 263, 6, 5, 10
BLOCK = 1 << 20
# Offsets in `struct tcp_info`, fixed by the kernel's interface to programs.
_TCP_INFO = {
    "segments": (136, "I"),
    "data_segments": (156, "I"),
    "bytes_sent": (200, "Q"),
    "bytes_retransmitted": (208, "Q"),
}


def sockets(without_port: int | None = None) -> dict[str, int]:
    """Sum what the TCP connections of this process have sent so far.

    Parameters
    ----------
    without_port
        Connections to or from this port do not count: those to the store where ranks meet.

    Returns
    -------
    dict
        ``segments``, ``data_segments``, ``bytes_sent`` and ``bytes_retransmitted``, both payload.
    """
    total = dict.fromkeys(_TCP_INFO, 0)
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if without_port in (one.getsockname()[1], one.getpeername()[1]):
                    continue
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
        except OSError:  # closed meanwhile, or listening
            continue
        for name, (offset, kind) in _TCP_INFO.items():
            total[name] += struct.unpack_from(kind, info, offset)[0]
    return total


def interface(name: str) -> dict[str, int]:
    """Return the bytes and packets that have left an interface of this namespace."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        if line.strip().startswith(f"{name}:"):
            numbers = line.split(":")[1].split()
            return {"bytes": int(numbers[8]), "packets": int(numbers[9])}
    return {"bytes": 0, "packets": 0}


def difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Return how much each counter has grown."""
    return {name: after[name] - before[name] for name in after}


class Capture:
    """The frames of one interface, kept by the kernel; a context manager.

    Parameters
    ----------
    name
        The interface.
    width
        Bytes of memory for each frame, a power of two from 256; about 90 go to the kernel's notes.
    frames
        How many there is room for.
    """

    def __init__(self, name: str, width: int = 256, frames: int = 1 << 17):
        self.width, self.room = width, -(-frames * width // BLOCK) * BLOCK
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.setsockopt(SOL_PACKET, VERSION, 1)
        ring = struct.pack("IIII", BLOCK, self.room // BLOCK, width, self.room // width)
        self.socket.setsockopt(SOL_PACKET, RX_RING, ring)
        self.memory = mmap.mmap(self.socket.fileno(), self.room)
        self.socket.bind((name, ALL_PROTOCOLS))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory.close()
        self.socket.close()

    def __len__(self) -> int:
        return int(np.count_nonzero(np.frombuffer(self.memory, np.uint8)[:: self.width] & 1))

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        """Return what came so far.

        Returns
        -------
        frames, lengths, times_s, outgoing, dropped
            Shapes (frames, width), (frames,), (frames,), (frames,), and a number.
        """
        ring = np.frombuffer(bytes(self.memory), np.uint8).reshape(-1, self.width)
        ring = ring[(ring[:, 0] & 1) > 0]
        # struct tpacket2_hdr: status, length, kept (32 bits each), mac, net (16), seconds, nanos.
        notes = ring[:, :12].copy().view(np.uint32)
        clock = ring[:, 16:24].copy().view(np.uint32).astype(float)
        start = int(ring[0, 12:14].copy().view(np.uint16)[0]) if len(ring) else 0
        sent = ring[:, 32 + 10] == socket.PACKET_OUTGOING  # in the sockaddr_ll after the notes
        dropped = struct.unpack("II", self.socket.getsockopt(SOL_PACKET, STATISTICS, 8))[1]
        return ring[:, start:], notes[:, 1], clock[:, 0] + clock[:, 1] * 1e-9, sent, dropped
