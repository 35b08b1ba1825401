"""How fast TCP is over a distance, in its steady state and at its start.

The steady state is played in rounds (:mod:`tokenlife.wan.rounds`); BBR's is a closed form
(:mod:`tokenlife.wan.response`).

``transfer_s`` is a message over a connection: a fresh one starts at ten packets and doubles each
round trip (RFC 6928 and 5681) until the pipe is full; a warm one starts with the pipe full.

Left out: competition with other flows, HyStart's early exit under jitter.
"""

import math

from tokenlife.wan.link import Link, WanError, goodput_ratio, segment_bytes
from tokenlife.wan.response import bbr_share
from tokenlife.wan.rounds import windows

CONGESTIONS = ("reno", "cubic", "bbr")
STARTS = ("fresh", "idle", "warm")
INITIAL_WINDOW = 10
MOST_STREAMS = 1024


def _pipe(link: Link, mtu: int, tunnel: str) -> tuple[int, float]:
    return segment_bytes(mtu, tunnel), link.rate_bps * goodput_ratio(mtu, tunnel)


def throughput_bps(
    link: Link,
    congestion: str = "cubic",
    streams: int = 1,
    window_bytes: float = math.inf,
    queue_bytes: float | None = None,
    mtu: int = 1500,
    tunnel: str = "none",
) -> float:
    """Return the payload bits per second of TCP in its steady state.

    Parameters
    ----------
    link
        Its random loss is what the windows answer.
    congestion
        ``reno``, ``cubic`` or ``bbr``.
    streams
        Connections side by side, which share the bottleneck; at most ``MOST_STREAMS``.
    window_bytes
        What the receiver, or the sender's buffer, allows each of them.
    queue_bytes
        Room before the bottleneck; by default a bandwidth-delay product.
    mtu, tunnel
        As :func:`~tokenlife.wan.link.segment_bytes` takes them.

    Raises
    ------
    WanError
        If there is no such algorithm, or a number cannot be.

    Examples
    --------
    >>> link = Link(5000, 10e9, loss=1e-4)
    >>> [round(throughput_bps(link, name) / 1e6) for name in CONGESTIONS]
    [30, 33, 9184]
    """
    if congestion not in CONGESTIONS:
        raise WanError(f"no congestion control {congestion!r}; there are {', '.join(CONGESTIONS)}")
    if not 1 <= streams <= MOST_STREAMS:
        raise WanError(f"TCP is reckoned for 1 to {MOST_STREAMS} streams, not {streams}")
    if window_bytes <= 0 or (queue_bytes is not None and queue_bytes < 0):
        raise WanError("a window needs a byte at least, and no queue is negative")
    mss, rate_bps = _pipe(link, mtu, tunnel)
    if not link.rtt_s:
        return rate_bps * (1 - link.loss)
    per_packet = mss * 8 / link.rtt_s
    limit, pipe = max(window_bytes / mss, 1), rate_bps / per_packet
    if congestion == "bbr":
        return float(min(rate_bps * bbr_share(link.loss, link.rtt_s), streams * limit * per_packet))
    queue = pipe if queue_bytes is None else queue_bytes / mss
    one = windows(congestion, link.loss, link.rtt_s, pipe, queue, limit, streams)
    return float(one) * per_packet * streams


def transfer_s(
    link: Link,
    bytes_: int,
    steady_bps: float,
    start: str = "fresh",
    mtu: int = 1500,
    tunnel: str = "none",
) -> float:
    """Return the time from the first byte written until the last has arrived.

    Parameters
    ----------
    link
        Its delay.
    bytes_
        The message; 0 takes the delay of what opens and closes it.
    steady_bps
        Payload rate at which the pipe is full, or to which losses hold it
        (:func:`throughput_bps`).
    start
        ``fresh`` (a round trip for the handshake, then ten packets and doubling), ``idle`` (open,
        but silent for so long that its window starts anew) or ``warm`` (the pipe is full).
    mtu, tunnel
        As :func:`~tokenlife.wan.link.segment_bytes` takes them.

    Examples
    --------
    >>> link = Link(5000, 10e9)
    >>> [round(transfer_s(link, 2**20, 9.4e9, start), 3) for start in STARTS]
    [0.367, 0.318, 0.025]
    """
    if start not in STARTS:
        raise WanError(f"no start {start!r}; there are {', '.join(STARTS)}")
    if bytes_ < 0 or steady_bps <= 0:
        raise WanError("a transfer needs a size of at least 0 and a rate above 0")
    time_s = link.delay_s + (link.rtt_s if start == "fresh" else 0.0)
    left, window = bytes_, INITIAL_WINDOW * segment_bytes(mtu, tunnel)
    while start != "warm" and left > window and window * 8 / steady_bps < link.rtt_s:
        time_s, left, window = time_s + link.rtt_s, left - window, window * 2
    return time_s + left * 8 / steady_bps


def exchange_s(link: Link, bytes_: int, steady_bps: float, sites: int = 2) -> float:
    """Return the time of an all-reduce of ``bytes_`` in a ring over sites, connections warm.

    Each of ``2 (n - 1)`` rounds sends a share of ``1 / n`` and waits for it to arrive.

    Examples
    --------
    >>> round(exchange_s(Link(5000, 10e9), 10**9, 9.4e9), 3)
    0.9
    """
    if sites < 2:
        raise WanError(f"an exchange needs at least 2 sites, not {sites}")
    share = -(-bytes_ // sites)
    return 2 * (sites - 1) * transfer_s(link, share, steady_bps, "warm")
