"""Scrambling 64-bit integers: the one hash under the shuffle and the shingles.

Multiplying by an odd constant carries low bits up, shifting right and adding without carry brings
high bits down; two rounds of both leave no bit untouched (the form of SplitMix64's finaliser [1]_).
The constant is 2⁶⁴ divided by the golden ratio, which spreads neighbours farthest apart [2]_: it is
computed here rather than typed. A bijection, so different integers stay different. Not a secret:
nothing here resists someone who wants a collision.

References
----------
.. [1] G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
.. [2] D. Knuth, "The art of computer programming", volume 3, section 6.4.
"""

import math

import numpy as np

# (√5 − 1) / 2 · 2⁶⁴, in whole numbers; it happens to be odd, as it must be.
GOLDEN = np.uint64((math.isqrt(5 << 128) - (1 << 64)) // 2)


def mix(x: np.ndarray) -> np.ndarray:
    """Scramble 64-bit integers, one to one.

    Parameters
    ----------
    x
        uint64, any shape.

    Returns
    -------
    numpy.ndarray of uint64
        Same shape.

    Examples
    --------
    >>> one, two = mix(np.array([1, 2], np.uint64))
    >>> 16 < (int(one) ^ int(two)).bit_count() < 48   # about half of the 64 bits differ
    True
    """
    for _ in range(2):
        x = (x ^ (x >> np.uint64(32))) * GOLDEN
        x = x ^ (x >> np.uint64(29))
    return x ^ (x >> np.uint64(32))
