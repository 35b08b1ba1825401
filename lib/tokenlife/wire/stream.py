"""TCP streams put together again from captured segments, and a tensor's bytes found in them.

A segment says where in its stream it belongs: its sequence number, modulo 2³². Segments that came
twice or out of order fall into their places. Bytes that no captured segment carries are a gap: a
tensor across a gap is not found.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from tokenlife.wire.decode import TcpFrames
from tokenlife.wire.framing import FramingError


@dataclass(frozen=True)
class Piece:
    """Bytes of a stream that one frame carries: ``length`` of them from ``start`` in the frame."""

    frame: int
    start: int
    length: int


@dataclass(frozen=True, eq=False)
class Stream:
    """One direction of one connection.

    Attributes
    ----------
    flow
        Source and destination address and port: 12 bytes.
    data
        The stream from the first captured byte on; gaps are zeros.
    frame, offset
        The frame that first carried each byte (-1 in a gap), and the byte's place in it.
    """

    flow: bytes
    data: np.ndarray
    frame: np.ndarray
    offset: np.ndarray

    def find(self, wanted: bytes) -> list[int]:
        """Return where ``wanted`` stands in the stream, each byte captured."""
        stream, found, at = self.data.tobytes(), [], -1
        while wanted and (at := stream.find(wanted, at + 1)) >= 0:
            if (self.frame[at : at + len(wanted)] >= 0).all():
                found.append(at)
        return found

    def pieces(self, start: int, length: int) -> list[Piece]:
        """Return which bytes of which frames carry a range of the stream."""
        frame = self.frame[start : start + length]
        offset = self.offset[start : start + length]
        breaks = (np.diff(frame) != 0) | (np.diff(offset) != 1)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(frame)]
        return [
            Piece(int(frame[a]), int(offset[a]), b - a)
            for a, b in itertools.pairwise(edges)
            if b > a
        ]


def streams(frames: np.ndarray, lengths: np.ndarray) -> list[Stream]:
    """Put the TCP streams of a capture together, the longest first.

    Parameters
    ----------
    frames
        Whole frames, uint8, shape (frames, width); a frame is cut where the row ends.
    lengths
        Bytes of each frame.

    Raises
    ------
    FramingError
        If the capture holds no TCP payload, or a stream's numbers lie too far apart.
    """
    number = np.flatnonzero((frames[:, 12] == 8) & (frames[:, 13] == 0) & (frames[:, 23] == 6))
    segments = TcpFrames.read(frames, lengths)
    kept = np.minimum(segments.payload_bytes, frames.shape[1] - segments.header_bytes)
    data = (kept > 0) & ~segments.has("syn")
    flows: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(data).tolist():
        flows.setdefault(segments.flow[row].tobytes(), []).append(row)
    if not flows:
        raise FramingError("the capture holds no TCP payload over IPv4")
    found = []
    for flow, rows in flows.items():
        # Relative to the first, and signed, so that a number that wraps goes on growing.
        since = (segments.seq[rows] - segments.seq[rows[0]] + 2**31) % 2**32 - 2**31
        since -= since.min()
        size = int((since + kept[rows]).max())
        if size > 4 * int(kept[rows].sum()) + (1 << 24):
            raise FramingError("a TCP stream of the capture is mostly missing")
        whole, frame = np.zeros(size, np.uint8), np.full(size, -1, np.int64)
        offset = np.zeros(size, np.int64)
        for at, row in zip(since.tolist(), rows, strict=True):
            start, length = int(segments.header_bytes[row]), int(kept[row])
            new = np.flatnonzero(frame[at : at + length] < 0)
            whole[at + new] = frames[number[row], start + new]
            frame[at + new], offset[at + new] = number[row], start + new
        found.append(Stream(flow, whole, frame, offset))
    return sorted(found, key=lambda one: -len(one.data))


def find_array(found: list[Stream], array: np.ndarray) -> tuple[Stream, int, np.ndarray]:
    """Find an array's bytes in the streams and read them back.

    Parameters
    ----------
    found
        From :func:`streams`.
    array
        What to look for, as it lies in memory.

    Returns
    -------
    stream, start, copy
        The first stream that holds it, where, and an array made of the captured bytes alone.

    Raises
    ------
    FramingError
        If no stream holds it.
    """
    wanted = np.ascontiguousarray(array).tobytes()
    for stream in found:
        for start in stream.find(wanted)[:1]:
            data = stream.data[start : start + len(wanted)].tobytes()
            return stream, start, np.frombuffer(data, array.dtype).reshape(array.shape)
    raise FramingError(
        f"none of the capture's {len(found)} TCP streams holds these {len(wanted)} bytes"
    )
