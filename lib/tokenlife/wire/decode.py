"""Captured frames read back: Ethernet, IPv4 and TCP headers as columns, and what they are for.

All frames of a capture are read at once. Frames that are no TCP over IPv4 are left out.
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.wire.framing import ETHERNET_HEADER

_PARTS = {"fin": 0x01, "syn": 0x02, "rst": 0x04, "ack": 0x10}


@dataclass(frozen=True, eq=False)
class TcpFrames:
    """TCP segments of a capture, in the order seen; each attribute has one entry for each.

    Attributes
    ----------
    frame_bytes
        As captured: no preamble, no frame check.
    payload_bytes
        Of the segment.
    header_bytes
        Ethernet, IPv4, TCP and options.
    flow
        Source and destination address and port: shape (segments, 12) bytes.
    seq
        Of the first byte, modulo 2³².
    flags
        The low byte of TCP's flags.
    """

    frame_bytes: np.ndarray
    payload_bytes: np.ndarray
    header_bytes: np.ndarray
    flow: np.ndarray
    seq: np.ndarray
    flags: np.ndarray

    @classmethod
    def read(cls, frames: np.ndarray, lengths: np.ndarray) -> "TcpFrames":
        """Decode.

        Parameters
        ----------
        frames
            The first bytes of each frame, at least 66; uint8, shape (frames, width).
        lengths
            Bytes of each frame on the wire.
        """
        tcp = (frames[:, 12] == 8) & (frames[:, 13] == 0) & (frames[:, 23] == 6)
        frames, lengths = frames[tcp], lengths[tcp].astype(np.int64)
        ip_header = (frames[:, 14] & 15).astype(np.int64) * 4
        start = ETHERNET_HEADER + ip_header

        def field(at: np.ndarray | int, width: int) -> np.ndarray:
            where = np.broadcast_to(np.asarray(at), lengths.shape)[:, None] + np.arange(width)
            return np.take_along_axis(frames, where, axis=1)

        def number(at, width: int) -> np.ndarray:
            return field(at, width).astype(np.int64) @ (256 ** np.arange(width)[::-1])

        headers = start + (number(start + 12, 1) >> 4) * 4
        payload = ETHERNET_HEADER + number(16, 2) - headers
        flow = np.concatenate([field(26, 8), field(start, 4)], axis=1)
        seq, flags = number(start + 4, 4), number(start + 13, 1)
        return cls(lengths, payload, headers, flow, seq, flags)

    def has(self, flag: str) -> np.ndarray:
        """Tell which segments carry a flag: fin, syn, rst or ack."""
        return self.flags & _PARTS[flag] > 0

    def where(self, mask: np.ndarray) -> "TcpFrames":
        """Return some of the segments."""
        return TcpFrames(*(column[mask] for column in vars(self).values()))

    def repeated(self) -> np.ndarray:
        """Tell which segments carry only bytes that an earlier one of their flow carried."""
        again = np.zeros(len(self.seq), bool)
        _, which = np.unique(self.flow, axis=0, return_inverse=True)
        for flow in range(which.max(initial=-1) + 1):
            rows = np.flatnonzero((which.reshape(-1) == flow) & (self.payload_bytes > 0))
            if rows.size:
                # Relative to the first, and signed, so that a number that wraps goes on growing.
                since = (self.seq[rows] - self.seq[rows[0]] + 2**31) % 2**32 - 2**31
                end = since + self.payload_bytes[rows]
                again[rows[1:]] = end[1:] <= np.maximum.accumulate(end)[:-1]
        return again

    def count(self) -> dict[str, int]:
        """Count by name.

        Returns
        -------
        dict
            ``data_packets`` and ``payload_bytes`` (each byte once), ``retransmissions`` and
            ``retransmitted_bytes``, ``acknowledgements`` (segments with nothing else),
            ``acknowledgement_bytes``, ``opening_and_closing``, ``header_bytes`` of data packets,
            ``frame_bytes`` of all.
        """
        control = self.has("syn") | self.has("fin") | self.has("rst")
        data, again = self.payload_bytes > 0, self.repeated()
        bare = ~data & ~control
        return {
            "data_packets": int((data & ~again).sum()),
            "payload_bytes": int(self.payload_bytes[data & ~again].sum()),
            "retransmissions": int(again.sum()),
            "retransmitted_bytes": int(self.payload_bytes[again].sum()),
            "acknowledgements": int(bare.sum()),
            "acknowledgement_bytes": int(self.frame_bytes[bare].sum()),
            "opening_and_closing": int((control & ~data).sum()),
            "header_bytes": int(self.header_bytes[data].sum()),
            "frame_bytes": int(self.frame_bytes.sum()),
        }
