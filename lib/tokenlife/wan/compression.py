"""Fewer bytes for the same numbers: what a site sends instead of float32, and what it still owes.

Everything is encoded to the bytes that really cross and decoded from them, so no count is an
estimate. Both ends know how many numbers there are and how they are coded: there is no header.

- :class:`Blocks`: 32 (float32 as it is), 16 (bfloat16, rounded to the nearest), or 8, 4, 2 bits.
  The last three are whole multiples of a scale, from −L to L with L = 2^(bits − 1) − 1. Each block
  of numbers has its own float32 scale, its largest number over L, so nothing is off by more than
  half a scale: the largest of its block over 2L.
- :class:`Largest`: the k largest numbers and where they stand, 8 bytes each [1]_.
- :class:`Feedback`: what the code lost is owed, and added to what is sent next [2]_. The sum of
  what was sent and what is owed is the sum of what was to be sent.

Left out: entropy coding, stochastic rounding, float4 (its codes are spaced unevenly; DiLoCo's
streaming variant uses it), low rank (PowerSGD), sums of coded numbers without decoding.

References
----------
.. [1] A. F. Aji and K. Heafield, "Sparse communication for distributed gradient descent",
   EMNLP 2017.
.. [2] S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
   schemes", ICML 2019.
"""

from dataclasses import dataclass, field

import numpy as np

from tokenlife.errors import TokenlifeError

BITS = (32, 16, 8, 4, 2)
SCALE_BYTES = INDEX_BYTES = 4


class CompressionError(TokenlifeError, ValueError):
    """A code that is not offered, or numbers that it cannot hold."""


@dataclass(frozen=True)
class Blocks:
    """Numbers of a few bits, with one scale for each block.

    Attributes
    ----------
    bits
        32, 16, 8, 4 or 2.
    block
        Numbers that share a scale; a multiple of 4, so that a block ends with a byte.

    Examples
    --------
    >>> code = Blocks(4)
    >>> data = code.encode(np.array([0.7, -0.1, 0.33, 0.0]))
    >>> len(data), code.decode(data, 4).round(3).tolist()
    (6, [0.699..., -0.100..., 0.300..., 0.0])
    >>> Blocks(3)
    Traceback (most recent call last):
        ...
    tokenlife.wan.compression.CompressionError: no code of 3 bits; there are 32, 16, 8, 4, 2
    """

    bits: int = 32
    block: int = 256

    def __post_init__(self):
        if self.bits not in BITS:
            offered = ", ".join(map(str, BITS))
            raise CompressionError(f"no code of {self.bits} bits; there are {offered}")
        if not isinstance(self.block, int) or self.block < 4 or self.block % 4:
            raise CompressionError(f"a block must be a multiple of 4 numbers, not {self.block}")

    def size(self, count):
        """Return the bytes of so many numbers; of an array, element by element.

        Examples
        --------
        >>> Blocks(4).size(1000), Blocks(32).size(1000)
        (516, 4000)
        """
        scales = -(-count // self.block) * SCALE_BYTES if self.bits < 16 else 0
        return -(-count * self.bits // 8) + scales

    def encode(self, values: np.ndarray) -> bytes:
        """Encode numbers, shape (n,).

        Raises
        ------
        CompressionError
            If one is not finite: a scale would carry it to a whole block.
        """
        values = np.ascontiguousarray(values, np.float32)
        if not np.isfinite(values).all():
            raise CompressionError("a number that is not finite cannot be sent to other sites")
        if self.bits == 32:
            return values.tobytes()
        if self.bits == 16:
            raw = values.view(np.uint32)
            return ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
        levels, rows = 2 ** (self.bits - 1) - 1, self._rows(values)
        scales = np.abs(rows).max(axis=1) / np.float32(levels)
        codes = np.rint(rows / np.where(scales, scales, 1)[:, None]) + levels
        # Float32 may divide a block's largest number to a hair above the last level.
        codes = np.clip(codes, 0, 2 * levels).astype(np.uint8).ravel()[: values.size]
        return scales.tobytes() + self._pack(codes).tobytes()

    def decode(self, data: bytes, count: int) -> np.ndarray:
        """Decode so many numbers: float32, shape (count,).

        Raises
        ------
        CompressionError
            If the bytes are too many or too few.
        """
        if len(data) != self.size(count):
            raise CompressionError(
                f"{count} numbers of {self.bits} bits are {self.size(count)} B, not {len(data)} B"
            )
        if self.bits == 32:
            return np.frombuffer(data, np.float32).copy()
        if self.bits == 16:
            return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        blocks, levels = -(-count // self.block), 2 ** (self.bits - 1) - 1
        scales = np.frombuffer(data, np.float32, blocks)
        packed = np.frombuffer(data, np.uint8, offset=blocks * SCALE_BYTES)
        places = np.arange(0, 8, self.bits, dtype=np.uint8)
        codes = (packed[:, None] >> places & 2**self.bits - 1).ravel()[:count]
        return (self._rows(codes.astype(np.float32) - levels) * scales[:, None]).ravel()[:count]

    def _rows(self, values: np.ndarray) -> np.ndarray:
        rows = np.zeros((-(-values.size // self.block), self.block), np.float32)
        rows.ravel()[: values.size] = values
        return rows

    def _pack(self, codes: np.ndarray) -> np.ndarray:
        each = 8 // self.bits
        whole = np.zeros((-(-codes.size // each), each), np.uint8)
        whole.ravel()[: codes.size] = codes
        places = np.arange(0, 8, self.bits, dtype=np.uint8)
        return np.bitwise_or.reduce(whole << places, axis=1)


@dataclass(frozen=True)
class Largest:
    """The numbers that are largest in size, and where they stand; the others count as zero.

    Attributes
    ----------
    share
        Of all numbers, above 0 and at most 1; at least one is sent.

    Examples
    --------
    >>> code = Largest(0.25)
    >>> code.decode(code.encode(np.array([1.0, -8.0, 2.0, 0.0])), 4).tolist(), code.size(4)
    ([0.0, -8.0, 0.0, 0.0], 8)
    """

    share: float

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise CompressionError(f"a share must be above 0 and at most 1, not {self.share:g}")

    def kept(self, count):
        """Return how many of so many numbers are sent."""
        return np.maximum(1, np.int64(np.asarray(count) * self.share))

    def size(self, count):
        """Return the bytes of so many numbers; of an array, element by element."""
        size = self.kept(count) * (INDEX_BYTES + 4)
        return size if size.ndim else int(size)

    def encode(self, values: np.ndarray) -> bytes:
        """Encode numbers, shape (n,)."""
        values = np.asarray(values, np.float32)
        if not np.isfinite(values).all():
            raise CompressionError("a number that is not finite cannot be sent to other sites")
        kept = self.kept(values.size)
        where = np.sort(np.argpartition(np.abs(values), -kept)[-kept:]).astype(np.uint32)
        return where.tobytes() + values[where].tobytes()

    def decode(self, data: bytes, count: int) -> np.ndarray:
        """Decode so many numbers: float32, shape (count,)."""
        if len(data) != self.size(count):
            raise CompressionError(f"{self.size(count)} B were due, not {len(data)} B")
        values, kept = np.zeros(count, np.float32), self.kept(count)
        where = np.frombuffer(data, np.uint32, kept)
        if where.max() >= count:
            raise CompressionError(f"number {where.max()} of {count} was sent: damaged bytes")
        values[where] = np.frombuffer(data, np.float32, offset=kept * INDEX_BYTES)
        return values


@dataclass
class Feedback:
    """A code that remembers what it lost, and adds it to what it sends next.

    Attributes
    ----------
    code
        :class:`Blocks` or :class:`Largest`.
    owed
        What was to be sent so far less what was sent, shape (n,); None before the first.
    """

    code: Blocks | Largest
    owed: np.ndarray | None = field(default=None, repr=False)

    def encode(self, values: np.ndarray) -> bytes:
        """Encode numbers and what is owed.

        Examples
        --------
        >>> one = Feedback(Largest(0.5))
        >>> _ = one.encode(np.array([3.0, 2.0]))
        >>> one.code.decode(one.encode(np.array([0.0, 2.0])), 2).tolist(), one.owed.tolist()
        ([0.0, 4.0], [0.0, 0.0])
        """
        due = np.asarray(values, np.float32) + (0 if self.owed is None else self.owed)
        data = self.code.encode(due)
        self.owed = due - self.code.decode(data, due.size)
        return data
