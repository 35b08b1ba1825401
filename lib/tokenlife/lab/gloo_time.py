"""When gloo's all-reduce ends, over a line between sites: its ring, message by message.

The model, of what PyTorch 2.13 does on TCP. The buffer is cut into segments
(:mod:`tokenlife.lab.gloo`), and a rank has two of them under way: it asks for a segment only when
the one two before it has come, and the sender sends only when it has been asked. So each segment
crosses the line as a question and an answer, two delays, and no more than two segments are on
their way in a round trip however fast the line. The line carries frames first come, first served,
all ranks together, questions behind data; a rank hands them over as fast as its link inside the
site is, so what two ranks send at once arrives interleaved. Inside a site each pair of ranks has a
path of its own, with a start-up time and a rate.

Left out: adding, losses, TCP's windows (the line must be warm, and its queue deep), and processors
that the ranks share.
"""

import heapq
from collections.abc import Sequence
from functools import partial
from itertools import count

import numpy as np

from tokenlife.lab.cluster import LabError
from tokenlife.lab.gloo import SEGMENT_BYTES
from tokenlife.lab.result import GLOO_HEADER
from tokenlife.wire import tcp_over_ethernet
from tokenlife.wire.framing import FRAME_CHECK

AHEAD = 2  # segments that a rank has under way
PIECE_BYTES = 1 << 14  # that are handed to the line at a time: what TCP lets wait below it


def ring_seconds(
    groups: Sequence[Sequence[int]],
    bytes_: int,
    site_of: Sequence[int],
    delay_s: float,
    rate_bps: float,
    inside_s: float = 0.0,
    inside_bps: float = np.inf,
    mtu: int = 1500,
) -> float:
    """Return the seconds that all-reduces take which groups of ranks begin at once.

    Parameters
    ----------
    groups
        Ranks of each, in order.
    bytes_
        Of one rank's buffer, float32.
    site_of
        The site of each rank.
    delay_s, rate_bps
        Of the line, either way, as :class:`~tokenlife.lab.sites.SiteCluster` takes them.
    inside_s, inside_bps
        Start-up time and rate of a message inside a site.
    mtu
        Largest IP packet.

    Raises
    ------
    LabError
        If nothing is to be reduced, or a line has no rate or a negative delay.

    Examples
    --------
    Six rounds of next to nothing, a question and an answer each.

    >>> round(ring_seconds([range(4)], 4096, [0, 0, 1, 1], delay_s=0.02, rate_bps=1e9), 3)
    0.24
    """
    if bytes_ <= 0 or delay_s < 0 or not rate_bps > 0:
        raise LabError(
            f"an all-reduce over a line needs bytes, a delay and a rate, not {bytes_} bytes, "
            f"{delay_s:g} s and {rate_bps:g} bit/s"
        )
    line = _Line(site_of, delay_s, rate_bps, inside_s, inside_bps, mtu)
    rings = [_Ring(list(group), bytes_, line) for group in groups if len(group) > 1]
    for ring in rings:
        for place in range(ring.ranks):
            ring.go_on(place, 0.0)
    return max([line.run(), *(ring.end_s for ring in rings)])


class _Line:
    """Messages that become ready, are carried in that order, and arrive."""

    def __init__(self, site_of, delay_s, rate_bps, inside_s, inside_bps, mtu):
        self.site_of, self.packets = site_of, tcp_over_ethernet(mtu)
        self.wan, self.inside = (rate_bps / 8, delay_s), (inside_bps / 8, inside_s)
        self.overhead = self.packets.overhead_per_packet - FRAME_CHECK
        self.free, self.events, self.number = {}, [], count()

    def put(self, at_s: float, src: int, dst: int, bytes_: int, then) -> None:
        """Hand over a message; ``then`` is called with when it has come."""
        here, there = self.site_of[src], self.site_of[dst]
        wire = bytes_ + self.packets.frame(bytes_).packets * self.overhead
        handed_s = self._through((src, dst), self.inside[0], at_s, wire)
        if here == there:
            self._at(handed_s + self.inside[1], then)
            return
        begun_s, pieces = handed_s - wire / self.inside[0], -(-wire // PIECE_BYTES)
        for piece in range(1, pieces + 1):
            part = PIECE_BYTES if piece < pieces else wire - (pieces - 1) * PIECE_BYTES
            come_s = min(handed_s, begun_s + piece * PIECE_BYTES / self.inside[0])
            last = then if piece == pieces else None
            self._at(come_s, partial(self._carry, (here, there, "line"), part, last))

    def _through(self, path, rate_Bps: float, at_s: float, bytes_: int) -> float:
        self.free[path] = max(at_s, self.free.get(path, 0.0)) + bytes_ / rate_Bps
        return self.free[path]

    def _carry(self, path, bytes_: int, then, at_s: float) -> None:
        left_s = self._through(path, self.wan[0], at_s, bytes_)
        if then:
            self._at(left_s + self.wan[1], then)

    def _at(self, at_s: float, then) -> None:
        heapq.heappush(self.events, (at_s, next(self.number), then))

    def run(self) -> float:
        """Let everything happen; return when the last did."""
        at_s = 0.0
        while self.events:
            at_s, _, then = heapq.heappop(self.events)
            then(at_s)
        return at_s


class _Ring:
    """One group's all-reduce: how far each place is, what it was asked for, what has come."""

    def __init__(self, group: list[int], bytes_: int, line: _Line):
        self.group, self.line, self.ranks = group, line, len(group)
        self.each = max(2, -(-bytes_ // (SEGMENT_BYTES * self.ranks)))
        segment = -(-bytes_ // (self.each * self.ranks * 4)) * 4
        self.sizes = np.clip(
            bytes_ - segment * np.arange(self.each * self.ranks), 0, segment
        ).reshape(self.ranks, self.each)
        self.half = (self.ranks - 1) * self.each  # steps of the reduce-scatter; as many again
        self.step = [0] * self.ranks
        self.come = [{} for _ in group]
        self.asked = [{} for _ in group]
        self.posted = [{} for _ in group]
        self.end_s = 0.0

    def size(self, place: int, step: int) -> int:
        """Return what a place sends in a step: it hands blocks on, down the ring."""
        phase, at = divmod(step, self.half)
        return int(self.sizes[(place + 1 - phase + at // self.each) % self.ranks, at % self.each])

    def go_on(self, place: int, at_s: float) -> None:
        """Begin the steps of a place that may begin."""
        while self.step[place] < 2 * self.half:
            step = self.step[place]
            # The second half begins when the first is done.
            needed = self.half - 1 if step in (self.half, self.half + 1) else step - AHEAD
            if needed >= 0 and not all(n in self.come[place] for n in range(needed + 1)):
                return
            self.step[place] += 1
            self.posted[place][step] = at_s
            before, after = (place - 1) % self.ranks, (place + 1) % self.ranks
            self.line.put(
                at_s, self.group[place], self.group[after], GLOO_HEADER,
                lambda t, a=after, s=step: self.ask(a, s, t),
            )  # fmt: skip
            if step in self.asked[place]:
                self.send(place, before, step, at_s)
        self.end_s = max(self.end_s, at_s)

    def ask(self, place: int, step: int, at_s: float) -> None:
        """Hear that the next place down is ready for a step."""
        self.asked[place][step] = at_s
        if step in self.posted[place]:
            self.send(place, (place - 1) % self.ranks, step, at_s)

    def send(self, place: int, to: int, step: int, at_s: float) -> None:
        """Send the segment of a step."""

        def arrived(t: float) -> None:
            self.come[to][step] = t
            self.go_on(to, t)

        bytes_ = self.size(place, step) + GLOO_HEADER
        self.line.put(at_s, self.group[place], self.group[to], bytes_, arrived)
