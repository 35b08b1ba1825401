"""Bits that the line really carries: the physical layer's codes (IEEE 802.3-2022 and 802.3df).

8b/10b at 1 Gbit/s over fibre; 64b/66b from 10 to 100 Gbit/s; from 200 Gbit/s 256b/257b
transcoding inside the Reed–Solomon code RS(544,514). The last gives 257/256 · 544/514 = 17/16: a
400 Gbit/s Ethernet runs at 425 Gbit/s. Alignment markers take the place of idle bytes, so they do
not change the rate. Left out: copper's own codes (1000BASE-T), FEC that is optional below 100G, and
that PAM4 puts two of these bits in one symbol.
"""

from dataclasses import dataclass
from fractions import Fraction

from tokenlife.wire.framing import FramingError


@dataclass(frozen=True)
class LineCode:
    """A name and the bits sent for each bit of the MAC."""

    name: str
    expansion: Fraction


_CODES = (
    (10**9, LineCode("8b/10b", Fraction(10, 8))),
    (10**11, LineCode("64b/66b", Fraction(66, 64))),
    (None, LineCode("256b/257b, RS(544,514)", Fraction(257, 256) * Fraction(544, 514))),
)


def line_code(rate_bps: float) -> LineCode:
    """Return the code of an Ethernet rate.

    Raises
    ------
    FramingError
        If the rate is not positive.

    Examples
    --------
    >>> code = line_code(400e9)
    >>> code.name, float(400 * code.expansion)
    ('256b/257b, RS(544,514)', 425.0)
    >>> float(10 * line_code(10e9).expansion), float(25 * line_code(25e9).expansion)
    (10.3125, 25.78125)
    """
    if not rate_bps > 0:
        raise FramingError(f"a line's rate must be more than zero, not {rate_bps}")
    return next(code for most, code in _CODES if most is None or rate_bps <= most)


def line_bits(wire_bytes: int, rate_bps: float) -> Fraction:
    """Return the coded bits that so many bytes of the MAC's time become, on average."""
    return wire_bytes * 8 * line_code(rate_bps).expansion
