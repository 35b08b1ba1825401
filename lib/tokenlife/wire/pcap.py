"""Captures in files: the classic pcap format, which every packet tool reads.

A header of 24 bytes, then for each frame 16 bytes (seconds, microseconds, bytes kept, bytes on the
wire) and the bytes kept. Link type 1 is Ethernet.
"""

import struct
from pathlib import Path

import numpy as np

from tokenlife.files import atomic_write
from tokenlife.wire.framing import FramingError

_MAGIC, _ETHERNET = bytes.fromhex("d4c3b2a1"), 1
_HEAD, _FRAME = "<4sHHiIII", "<IIII"


def write_pcap(path: str | Path, frames: np.ndarray, lengths: np.ndarray, times_s) -> None:
    """Write a capture.

    Parameters
    ----------
    path
        The file.
    frames
        The first bytes of each frame; uint8, shape (frames, width).
    lengths
        Bytes of each on the wire; shape (frames,).
    times_s
        Seconds; shape (frames,).
    """
    width = frames.shape[1]
    with atomic_write(Path(path), FramingError) as file:
        file.write(struct.pack(_HEAD, _MAGIC, 2, 4, 0, 0, width, _ETHERNET))
        for frame, length, time in zip(frames, lengths.tolist(), times_s.tolist(), strict=True):
            kept = min(length, width)
            file.write(struct.pack(_FRAME, int(time), int(time % 1 * 1e6), kept, length))
            file.write(frame[:kept].tobytes())
