"""Writing ids down: fixed width, varint, an arithmetic code, and bytes through gzip and zstd.

Each function returns the bytes that would really travel, and each can be read back, so a size here
is never a wish. The arithmetic code is static: both ends hold the same table of counts, whose own
size is not part of the message.

Sources: varint as in Protocol Buffers (LEB128); Witten, Neal and Cleary 1987 (arithmetic coding).
"""

import gzip
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from tokenlife.tokenizer.errors import CorruptCode, IdOutOfRange

_BITS = 32
_TOP, _HALF, _QUARTER = (1 << _BITS) - 1, 1 << (_BITS - 1), 1 << (_BITS - 2)


def fixed_width(n_vocab: int) -> np.dtype:
    """Return the narrowest of uint16 and uint32 that holds every id of a vocabulary.

    Examples
    --------
    >>> fixed_width(4096).itemsize, fixed_width(100_000).itemsize
    (2, 4)
    """
    return np.dtype("<u2") if n_vocab <= 1 << 16 else np.dtype("<u4")


def pack(ids: Iterable[int], n_vocab: int) -> bytes:
    r"""Write ids with a fixed width, little-endian: the form of token files on disk.

    Raises
    ------
    IdOutOfRange
        If an id is not below ``n_vocab``.

    Examples
    --------
    >>> pack([1, 258], 4096), np.frombuffer(pack([1, 258], 4096), fixed_width(4096)).tolist()
    (b'\x01\x00\x02\x01', [1, 258])
    """
    ids = np.fromiter(ids, dtype=np.int64)
    if ids.size and not 0 <= ids.min() <= ids.max() < n_vocab:
        raise IdOutOfRange(f"ids {ids.min()} to {ids.max()}; they must lie in 0 to {n_vocab - 1}")
    return ids.astype(fixed_width(n_vocab)).tobytes()


def varint(ids: Iterable[int]) -> bytes:
    """Write ids with seven bits a byte, the high bit saying that more follows.

    Examples
    --------
    >>> varint([5, 300]).hex(" "), unvarint(varint([5, 300]))
    ('05 ac 02', [5, 300])
    """
    written = bytearray()
    for id_ in ids:
        while id_ > 0x7F:
            written.append(id_ & 0x7F | 0x80)
            id_ >>= 7
        written.append(id_)
    return bytes(written)


def unvarint(data: bytes) -> list[int]:
    """Read what :func:`varint` wrote.

    Raises
    ------
    CorruptCode
        If the data ends inside a number.
    """
    ids, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            ids.append(value)
            value, shift = 0, 0
    if shift:
        raise CorruptCode("the data ends inside a varint")
    return ids


def compress(data: bytes, method: str) -> bytes:
    """Compress bytes: ``"gzip"`` (level 9) or ``"zstd"`` (level 19).

    Raises
    ------
    CorruptCode
        If the method is unknown.

    Examples
    --------
    >>> len(compress(b"a" * 1000, "gzip")) < 40
    True
    """
    if method == "gzip":
        return gzip.compress(data, 9, mtime=0)
    if method == "zstd":
        import zstandard  # only who asks for zstd needs it

        return zstandard.ZstdCompressor(level=19).compress(data)
    raise CorruptCode(f"no method {method!r}; known: gzip, zstd")


def _table(counts: Sequence[int]) -> list[int]:
    table = [0, *accumulate(int(count) for count in counts)]
    if not 0 < table[-1] < _QUARTER:
        raise CorruptCode(f"counts add up to {table[-1]}; they must lie in 1 to {_QUARTER - 1}")
    return table


def arithmetic_encode(ids: Iterable[int], counts: Sequence[int]) -> bytes:
    """Write ids with an arithmetic code: about ``-log2(count / total)`` bits each.

    Parameters
    ----------
    ids
        What to write.
    counts
        For each id, how often to expect it; both ends must hold the same table.

    Raises
    ------
    CorruptCode
        If an id has a count of zero, which leaves it no room.

    Examples
    --------
    >>> counts = [1, 1, 6]                       # 3, 3 and 0.415 bits
    >>> len(arithmetic_encode([2] * 77, counts)), 77 * 0.415 / 8
    (5, 3.99...)
    >>> arithmetic_decode(arithmetic_encode([2, 0, 1, 2], counts), counts, 4)
    [2, 0, 1, 2]
    """
    table = _table(counts)
    total = table[-1]
    low, high, pending, bits = 0, _TOP, 0, []
    for id_ in ids:
        if not 0 <= id_ < len(counts) or table[id_] == table[id_ + 1]:
            raise CorruptCode(f"id {id_} is not expected at all: its count is 0")
        width = high - low + 1
        low, high = low + width * table[id_] // total, low + width * table[id_ + 1] // total - 1
        while True:
            if high < _HALF:
                bits += [0] + [1] * pending
            elif low >= _HALF:
                bits += [1] + [0] * pending
                low, high = low - _HALF, high - _HALF
            elif low >= _QUARTER and high < _HALF + _QUARTER:
                # The interval straddles the middle: the next bit is the opposite of the one after.
                pending += 1
                low, high = 2 * (low - _QUARTER), 2 * (high - _QUARTER) + 1
                continue
            else:
                break
            pending = 0
            low, high = 2 * low, 2 * high + 1
    bits += [0] + [1] * (pending + 1) if low < _QUARTER else [1] + [0] * (pending + 1)
    return np.packbits(np.array(bits, dtype=np.uint8)).tobytes()


def arithmetic_decode(data: bytes, counts: Sequence[int], n: int) -> list[int]:
    """Read ``n`` ids that :func:`arithmetic_encode` wrote with the same counts."""
    table = _table(counts)
    total = table[-1]
    bits = iter(np.unpackbits(np.frombuffer(data, np.uint8)).tolist())
    low, high, value, ids = 0, _TOP, 0, []
    for _ in range(_BITS):
        value = 2 * value + next(bits, 0)
    for _ in range(n):
        width = high - low + 1
        id_ = bisect_right(table, ((value - low + 1) * total - 1) // width) - 1
        ids.append(id_)
        low, high = low + width * table[id_] // total, low + width * table[id_ + 1] // total - 1
        while True:
            if high < _HALF:
                shift = 0
            elif low >= _HALF:
                shift = _HALF
            elif low >= _QUARTER and high < _HALF + _QUARTER:
                shift = _QUARTER
            else:
                break
            low, high = 2 * (low - shift), 2 * (high - shift) + 1
            value = 2 * (value - shift) + next(bits, 0)
    return ids
