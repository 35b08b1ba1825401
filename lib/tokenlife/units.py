"""Sizes, rates and times: read from text, written for people.

Inside the library every quantity is a plain number in SI units and the unit lives in the name:
``bytes_`` (bytes), ``_s`` (seconds), ``_bps`` (bits per second), ``_Bps`` (bytes per second),
``_flops`` (floating-point operations). Prefixes are SI powers of ten; KiB, MiB, GiB, TiB are powers
of 1024. Nothing here rounds on the way in: ``parse_bytes`` refuses a fraction of a byte.
"""

import re
from fractions import Fraction

from tokenlife.errors import TokenlifeError

_SI = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5}
_TIMES = {"ns": -9, "us": -6, "µs": -6, "μs": -6, "ms": -3, "s": 0}
_NUMBER = re.compile(
    r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)\s*([^\s0-9]*)\s*", re.IGNORECASE
)


class UnitError(TokenlifeError, ValueError):
    """A size, rate or time that cannot be read."""


def _split(text: str, what: str, example: str) -> tuple[Fraction, str]:
    match = _NUMBER.fullmatch(str(text))
    if match is None:
        raise UnitError(f"cannot read {what} {str(text)!r}; write it like {example}")
    return Fraction(match[1]), match[2]


def parse_bytes(text: str | int) -> int:
    """Read a number of bytes.

    Parameters
    ----------
    text
        ``4096``, ``"4096"``, ``"1MB"`` (10⁶), ``"4MiB"`` (4 · 2²⁰); ``B`` may be left out.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    UnitError
        If the text is no size, or not a whole number of bytes.

    Examples
    --------
    >>> parse_bytes("4MiB"), parse_bytes("1MB"), parse_bytes("1.5kB"), parse_bytes(4096)
    (4194304, 1000000, 1500, 4096)
    """
    number, unit = _split(text, "size", "4096, 1MB or 4MiB")
    prefix = unit.removesuffix("B")
    if prefix in _BINARY:
        value = number * 1024 ** _BINARY[prefix]
    elif prefix == "K" or prefix in _SI:
        value = number * 1000 ** _SI[prefix.replace("K", "k")]
    else:
        raise UnitError(
            f"cannot read size {text!r}: unknown unit {unit!r}; write 4096, 1MB or 4MiB"
        )
    if value.denominator != 1:
        raise UnitError(f"size {text!r} is not a whole number of bytes")
    return int(value)


def parse_rate(text: str | float) -> float:
    """Read a rate as bits per second.

    Examples
    --------
    >>> parse_rate("400Gbps"), parse_rate("100mbit"), parse_rate("1.5 Gbit/s")
    (400000000000.0, 100000000.0, 1500000000.0)
    """
    number, unit = _split(text, "rate", "400Gbps or 100mbit")
    stem = re.sub(r"(bps|[bB]its?(/s)?|b/s)$", "", unit)
    prefix = stem.lower() if stem.lower() == "k" else stem.upper()
    if (unit and stem == unit) or prefix not in _SI:
        raise UnitError(
            f"cannot read rate {text!r}: write bits per second, like 400Gbps or 100mbit"
        )
    return float(number * 1000 ** _SI[prefix])


def parse_time(text: str | float) -> float:
    """Read a time as seconds.

    Examples
    --------
    >>> parse_time("2us"), parse_time("20ms"), parse_time("1.5")
    (2e-06, 0.02, 1.5)
    """
    number, unit = _split(text, "time", "2us, 20ms or 1.5s")
    if (unit or "s") not in _TIMES:
        raise UnitError(
            f"cannot read time {text!r}: unknown unit {unit!r}; write 2us, 20ms or 1.5s"
        )
    return float(number * Fraction(10) ** _TIMES[unit or "s"])


def _si(value: float, unit: str, digits: int) -> str:
    for prefix in reversed(_SI):
        scale = 1000 ** _SI[prefix]
        # Compare the rounded figure, so that 999,999 B is 1 MB and not 1000 kB.
        if float(f"{abs(value):.{digits}g}") >= scale:
            return f"{_plain(value / scale, digits)} {prefix}{unit}"
    return f"{_plain(value, digits)} {unit}"


def _plain(value: float, digits: int) -> str:
    """`digits` significant figures, never in e-notation, no trailing zeros after the point."""
    rounded = float(f"{value:.{digits}g}")
    if rounded == int(rounded):
        return f"{int(rounded):,}"
    return f"{rounded:.{digits}g}"


def format_bytes(bytes_: float, digits: int = 3) -> str:
    """Write a number of bytes with an SI prefix.

    Examples
    --------
    >>> format_bytes(68), format_bytes(6_001_728), format_bytes(810e9, 2)
    ('68 B', '6 MB', '810 GB')
    """
    return _si(bytes_, "B", digits)


def format_bits(bits: float, digits: int = 3) -> str:
    """Write a number of bits with an SI prefix.

    Examples
    --------
    >>> format_bits(51_234_000)
    '51.2 Mbit'
    """
    return _si(bits, "bit", digits)


def format_rate(rate_bps: float, digits: int = 3) -> str:
    """Write a rate given in bits per second.

    Examples
    --------
    >>> format_rate(4e11)
    '400 Gbit/s'
    """
    return _si(rate_bps, "bit/s", digits)


def format_flops(flops: float, digits: int = 3) -> str:
    """Write a number of floating-point operations with an SI prefix.

    Examples
    --------
    >>> format_flops(291_648_307_200)
    '292 GFLOP'
    """
    return _si(flops, "FLOP", digits)


def format_count(count: float, digits: int = 3) -> str:
    """Write a large count in words that a reader says aloud.

    Examples
    --------
    >>> format_count(124_439_808), format_count(405e9), format_count(950)
    ('124 million', '405 billion', '950')
    """
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if float(f"{abs(count):.{digits}g}") >= scale:
            return f"{_plain(count / scale, digits)} {word}"
    return f"{count:,.0f}"


def format_time(time_s: float, digits: int = 3) -> str:
    """Write a time given in seconds.

    Examples
    --------
    >>> format_time(0.2545), format_time(2e-6), format_time(95)
    ('254 ms', '2 µs', '95 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{abs(time_s):.{digits}g}") >= scale:
            return f"{_plain(time_s / scale, digits)} {unit}"
    return f"{_plain(time_s * 1e9, digits)} ns"
