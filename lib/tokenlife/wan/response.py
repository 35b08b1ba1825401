"""TCP's mean window under random loss, in closed form.

A sender has a window of packets under way, one round trip. Nothing lost: the window grows. A packet
lost: it shrinks. With a random loss ``p`` the mean window, and so the rate, follows from ``p``:

- ``mathis_window``: Reno, one packet more each round and half after a loss (Mathis et al., 1997).
  Regime: small ``p``, losses at equal intervals. ``RANDOM_LOSS`` is the constant for losses that
  fall at random (Ott, Kemperman and Mathis, 1996).
- ``pftk_window``: the same with timeouts and a window limit (Padhye et al., 1998). Regime: any
  ``p``, packets of a round lost together, as by a single shallow queue.
- ``cubic_window``: CUBIC's response (RFC 9438, equation 6; below Reno's it follows Reno's, at the
  same constant). Regime: small ``p``; equal intervals.
- ``bbr_share``: BBR, version 1, does not answer losses below what its probing at 5/4 of the rate
  covers, one fifth. Every ten seconds it drains its window for a fifth of a second.
"""

import math

import numpy as np

EQUAL_INTERVALS = math.sqrt(3 / 2)
RANDOM_LOSS = 1.31
CUBIC_C, CUBIC_BETA = 0.4, 0.7
_BBR_GAIN = 1.25
_BBR_PROBE_S, _BBR_EVERY_S = 0.2, 10.0


def mathis_window(loss, constant: float = EQUAL_INTERVALS):
    """Return Reno's mean window in packets, ``C / √p``.

    Examples
    --------
    >>> round(float(mathis_window(1e-4)) * 1460 * 8 / 0.1 / 1e6, 2)      # Mbit/s at 100 ms
    14.31
    """
    return constant / np.sqrt(loss)


def pftk_window(loss, rtt_s, timeout_s=0.2, per_ack: int = 1, limit=math.inf):
    """Return Reno's mean window with timeouts, in packets (Padhye et al., equation 30).

    Parameters
    ----------
    loss
        Share of loss events.
    rtt_s, timeout_s
        Round trip and first timeout.
    per_ack
        Packets that an acknowledgement counts for: 1 in Linux, which counts bytes.
    limit
        Of the window, packets.

    Examples
    --------
    >>> round(float(pftk_window(1e-4, 0.1)), 1), round(float(pftk_window(0.05, 0.1)), 1)
    (122.4, 4.4)
    """
    halving = rtt_s * np.sqrt(2 * per_ack * loss / 3)
    waits = timeout_s * np.minimum(1, 3 * np.sqrt(3 * per_ack * loss / 8))
    return np.minimum(limit, rtt_s / (halving + waits * loss * (1 + 32 * loss**2)))


def cubic_window(loss, rtt_s, c: float = CUBIC_C, constant: float = EQUAL_INTERVALS):
    """Return CUBIC's mean window in packets, by RFC 9438.

    Examples
    --------
    >>> [round(float(cubic_window(p, 0.1))) for p in (1e-3, 1e-5, 1e-7)]
    [39, 1054, 33325]
    """
    scale = (c * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25
    return np.maximum(scale * (np.asarray(rtt_s) / loss) ** 0.75, mathis_window(loss, constant))


def bbr_share(loss, rtt_s):
    """Return the share of a bottleneck's rate that BBR, version 1, delivers.

    Examples
    --------
    >>> round(float(bbr_share(0.01, 0.1)), 3), float(bbr_share(0.3, 0.1))
    (0.961, 0.0)
    """
    drained = (_BBR_PROBE_S + np.asarray(rtt_s)) / (_BBR_PROBE_S + _BBR_EVERY_S)
    return np.where(loss < 1 - 1 / _BBR_GAIN, (1 - loss) * (1 - drained), 0.0)
