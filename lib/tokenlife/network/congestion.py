"""What fair shares leave out: many to one, and the time that senders take to find their rate.

An incast of n senders of m bytes to one host cannot end before n·m bytes have passed its link. What
queues in between: the model goes in steps of a round trip. In each, senders put out a window; the
link drains its rate; what is over queues, and what is over the buffer is lost and sent again. A
sender that saw the queue above the mark halves its window, one that did not adds one packet: the
additive increase and multiplicative decrease of TCP [1]_, with the marks of DCTCP and DCQCN. Before
the first feedback everybody sends at full rate.

Left out: the gradual rate changes of DCQCN, priority flow control, time-outs, and unfairness.

References
----------
.. [1] D. Chiu, R. Jain, "Analysis of the increase and decrease algorithms for congestion avoidance
   in computer networks", Computer Networks and ISDN Systems 17(1), 1989.
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.network.topology import TopologyError


def incast_floor_s(senders, bytes_, rate_bps):
    """Return the least time of an incast, in seconds.

    Examples
    --------
    >>> round(incast_floor_s(127, 2e6, 4e11) * 1e6, 6)
    5080.0
    """
    return senders * bytes_ * 8 / rate_bps


@dataclass(frozen=True, eq=False)
class Incast:
    """How an incast went, in steps of a round trip.

    Attributes
    ----------
    time_s
        Until the last byte has passed the receiver's link.
    queue_bytes
        In front of that link after each step; shape (steps,).
    lost_bytes
        Sent again because the buffer was full.
    """

    time_s: float
    queue_bytes: np.ndarray
    lost_bytes: float


def incast(
    senders: int,
    bytes_: float,
    rate_bps: float,
    round_trip_s: float,
    buffer_bytes: float,
    mark_bytes: float,
    packet_bytes: float = 1500,
) -> Incast:
    """Simulate an incast with marks at ``mark_bytes`` of queue; all senders behave alike.

    Examples
    --------
    >>> calm = incast(1, 1e6, 8e9, 1e-5, 1e6, 1e5)
    >>> round(calm.time_s * 1e3, 6), calm.lost_bytes
    (1.0, 0.0)
    """
    if min(senders, bytes_, rate_bps, round_trip_s, buffer_bytes) <= 0 or mark_bytes < 0:
        raise TopologyError("an incast needs senders, bytes, a rate, a round trip and a buffer")
    drained = rate_bps / 8 * round_trip_s
    window, queue, to_send, lost, now = drained, 0.0, senders * bytes_, 0.0, 0.0
    queues = []
    while to_send + queue > 1e-6:
        sent = min(senders * window, to_send)
        over = max(queue + sent - drained - buffer_bytes, 0.0)
        passed = min(queue + sent - over, drained)
        queue += sent - over - passed
        to_send -= sent - over
        lost += over
        now += round_trip_s * passed / drained if to_send + queue <= 1e-6 else round_trip_s
        marked = queue > mark_bytes
        window = max(window / 2, packet_bytes) if marked else min(window + packet_bytes, drained)
        # With the smallest window everywhere a queue still needs time to go.
        if marked and window == packet_bytes:
            window = min(window, max(drained / senders, 1.0))
        queues.append(queue)
    return Incast(now, np.array(queues), lost)
