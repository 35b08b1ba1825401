"""How fast TCP is over a distance: closed forms, and windows followed round by round.

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

``windows`` plays Reno's and Linux's CUBIC's rules in rounds, with random losses, a bottleneck and
its queue: what closed forms leave out. A lost packet is noticed a round trip later, the round after
that runs at the reduced window, and further losses of that round trip are the same event. Long
epochs are played in strides of several rounds.

``transfer_s`` is a message over a connection: a fresh one starts at ten packets and doubles each
round trip (RFC 6928 and 5681) until the pipe is full; a warm one starts with the pipe full.

Left out: timeouts in ``windows`` (it is good for windows of five packets and more), reordering,
acknowledgements that are lost, competition with other flows, HyStart's early exit under jitter.
"""

import math

import numpy as np

from tokenlife.wan.link import Link, WanError, goodput_ratio, segment_bytes

CONGESTIONS = ("reno", "cubic", "bbr")
STARTS = ("fresh", "idle", "warm")
EQUAL_INTERVALS = math.sqrt(3 / 2)
RANDOM_LOSS = 1.31
INITIAL_WINDOW = 10
SMALLEST_WINDOW = 2.0
MOST_STREAMS = 1024
_CUBIC_C, _CUBIC_BETA, _RENO_BETA = 0.4, 0.7, 0.5
_CUBIC_ALPHA = 3 * (1 - _CUBIC_BETA) / (1 + _CUBIC_BETA)
_BBR_GAIN = 1.25
_BBR_PROBE_S, _BBR_EVERY_S, _BBR_PROBE_WINDOW = 0.2, 10.0, 4
_STRIDES = 200  # steps that an epoch is cut into
_EPOCHS = (4, 12)  # played before counting, and counted


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


def cubic_window(loss, rtt_s, c: float = _CUBIC_C, constant: float = EQUAL_INTERVALS):
    """Return CUBIC's mean window in packets, by RFC 9438.

    Examples
    --------
    >>> [round(float(cubic_window(p, 0.1))) for p in (1e-3, 1e-5, 1e-7)]
    [39, 1054, 33325]
    """
    scale = (c * (3 + _CUBIC_BETA) / (4 * (1 - _CUBIC_BETA))) ** 0.25
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


def windows(
    congestion: str,
    loss,
    rtt_s,
    pipe=math.inf,
    queue=math.inf,
    limit=math.inf,
    streams: int = 1,
    seed: int = 0,
    connections: int = 192,
):
    """Play Reno or CUBIC in rounds; return the packets that one delivers per empty round trip.

    Parameters
    ----------
    congestion
        ``reno`` or ``cubic``.
    loss, rtt_s
        Share of lost packets, and the round trip of an empty path; arrays broadcast.
    pipe
        Packets that the bottleneck passes in a round trip: its BDP.
    queue
        Packets that wait before it; one more is lost.
    limit
        Of the window, packets; a window at its limit does not grow.
    streams
        Connections that share the bottleneck and its queue.
    seed
        Of the losses.
    connections
        Played altogether, at least, and averaged.

    Returns
    -------
    numpy.ndarray
        Delivered packets per ``rtt_s``, of one connection: the mean over all, and over epochs.

    Examples
    --------
    >>> one, full = windows("reno", [1e-3, 0], 0.1, pipe=[1e6, 100], limit=150)
    >>> round(float(one / mathis_window(1e-3)), 1), round(float(full), 6)
    (1.0, 100.0)
    """
    if congestion not in ("reno", "cubic"):
        raise WanError(f"rounds are played for reno and cubic, not {congestion!r}")
    p, rtt, pipe, queue, limit = (
        np.asarray(a, float)[..., None, None]
        for a in np.broadcast_arrays(loss, rtt_s, pipe, queue, limit)
    )
    if np.any((p < 0) | (p >= 1) | (rtt <= 0) | (pipe <= 0)):
        raise WanError("rounds need a loss from 0 to below 1, a round trip and a pipe above 0")
    full = np.minimum(limit * streams, pipe + queue)  # all windows together do not pass this
    with np.errstate(divide="ignore"):
        free = np.where(p > 0, mathis_window(p), np.inf)
        if congestion == "cubic":
            free = np.maximum(free, np.where(p > 0, cubic_window(p, rtt), np.inf))
        start = np.minimum(free, full / streams)
        if not np.all(np.isfinite(start)):
            raise WanError("without losses and without a limit a window grows for ever")
        epoch = np.minimum(1 / (p * np.minimum(start, pipe / streams)), full / streams / 2)
    stride = np.maximum(1, np.floor(epoch / _STRIDES))
    steps = int(np.ceil((epoch / stride).max())) + 4
    beta = _RENO_BETA if congestion == "reno" else _CUBIC_BETA
    rng, groups = np.random.default_rng(seed), -(-connections // streams)
    shape = (*start.shape[:-2], groups, streams)
    w = start + np.zeros(shape)
    top, friendly, origin, turn, since = w, w, w, np.zeros(shape), np.zeros(shape)
    notice, noticed, extra, packets, seconds = (np.zeros(shape) for _ in range(5))
    blind, kept = notice > 0, np.log1p(-p)
    for step in range(sum(_EPOCHS) * steps):
        if step == _EPOCHS[0] * steps:
            packets, seconds = np.zeros(shape), np.zeros(shape)
        # After a loss, a blind round: to the notice at the full window, then at the reduced.
        rounds = np.where(blind, 1.0, stride)
        whole = np.floor(w)  # windows are whole packets
        flight = np.where(blind, (notice + (1 - notice) * beta) * whole, whole)
        together = flight.sum(-1, keepdims=True)
        took = np.maximum(1, together / pipe) * rtt * rounds
        packets, seconds = packets + flight * rounds, seconds + took
        hit = rng.random(shape) > np.exp(kept * (flight * rounds + extra))
        # What a full queue drops is somebody's, by the share that he sends.
        hit |= (together > full * (1 + 1e-9)) & (rng.random(shape) * together <= flight)
        hit &= ~blind
        reduced = np.maximum(np.floor(beta * whole), SMALLEST_WINDOW)
        open_ = 1 - np.where(extra > 0, noticed, 0)  # the part of this round in which windows grow
        more = rounds * open_
        if congestion == "cubic":
            since, friendly = since + took * open_, friendly + _CUBIC_ALPHA * more
            target = origin + _CUBIC_C * (since + rtt - turn) ** 3
            curve = np.clip(target - w, 0.01 * more, 0.5 * w * more)
            more = np.maximum(curve * open_, friendly - w)
            above = np.where(whole < top, whole * (1 + beta) / 2, whole)
            top, since = np.where(blind, above, top), np.where(blind, 0.0, since)
            origin = np.where(blind, np.maximum(above, reduced), origin)
            turn = np.where(blind, np.cbrt((origin - reduced) / _CUBIC_C), turn)
            friendly = np.where(blind, reduced, friendly)
        extra = np.where(blind, (1 - notice) * reduced, 0.0)
        noticed, notice = notice, np.where(hit, rng.random(shape), notice)
        w = np.where(blind, reduced, np.where(hit, w, np.minimum(w + more, limit)))
        blind = hit
    return ((1 - p) * rtt)[..., 0, 0] * packets.sum((-2, -1)) / seconds.sum((-2, -1))


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
