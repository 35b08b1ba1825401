"""Reno's and Linux's CUBIC's windows, followed round by round.

What the closed forms of :mod:`tokenlife.wan.response` leave out: random losses, a bottleneck and
its queue, whole packets. A lost packet is noticed a round trip later, the next round runs at the
reduced window, and further losses of that round trip are the same event. Long epochs are played in
strides of several rounds. Linux counts packets, and not acknowledgements, for growth, and its CUBIC
turns earlier when it did not reach its last top (fast convergence).

Left out: timeouts (good for windows of five packets and more), reordering, lost acknowledgements.
"""

import math

import numpy as np

from tokenlife.wan.link import WanError
from tokenlife.wan.response import CUBIC_BETA, CUBIC_C, cubic_window, mathis_window

SMALLEST_WINDOW = 2.0
_RENO_BETA = 0.5
_CUBIC_ALPHA = 3 * (1 - CUBIC_BETA) / (1 + CUBIC_BETA)
_STRIDES = 200  # steps that an epoch is cut into
_EPOCHS = (4, 12)  # played before counting, and counted


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
    beta = _RENO_BETA if congestion == "reno" else CUBIC_BETA
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
            target = origin + CUBIC_C * (since + rtt - turn) ** 3
            curve = np.clip(target - w, 0.01 * more, 0.5 * w * more)
            more = np.maximum(curve * open_, friendly - w)
            above = np.where(whole < top, whole * (1 + beta) / 2, whole)
            top, since = np.where(blind, above, top), np.where(blind, 0.0, since)
            origin = np.where(blind, np.maximum(above, reduced), origin)
            turn = np.where(blind, np.cbrt((origin - reduced) / CUBIC_C), turn)
            friendly = np.where(blind, reduced, friendly)
        extra = np.where(blind, (1 - notice) * reduced, 0.0)
        noticed, notice = notice, np.where(hit, rng.random(shape), notice)
        w = np.where(blind, reduced, np.where(hit, w, np.minimum(w + more, limit)))
        blind = hit
    return ((1 - p) * rtt)[..., 0, 0] * packets.sum((-2, -1)) / seconds.sum((-2, -1))
