"""One direction of a line: which frames it loses, when the others have left, when they arrive.

A frame that comes is lost, or not, by Gilbert's model [1]_ (Gilbert–Elliott where the bad state
loses all); if there is room for it in the queue it leaves when those before it have left at the
line's rate, else it is dropped; it arrives a delay and a jitter later. Frames keep their order.
Everything repeats with the seed. Left out: reordering, and errors within a frame.

References
----------
.. [1] E. N. Gilbert, "Capacity of a burst-noise channel", Bell System Technical Journal 39, 1960.
"""

import collections
import random


class Losses:
    """Which frames are lost: a chain of two states, one of which loses all.

    Parameters
    ----------
    loss
        Share of frames lost in the long run.
    burst
        Mean number lost in a row; None for losses that do not depend on each other, for which it is
        1 / (1 − loss).
    seed
        The same seed, the same losses.

    Examples
    --------
    >>> losses = Losses(0.5, 4.0, seed=1)
    >>> "".join("x." [not losses.lost()] for _ in range(40))
    '.xxxxx..xxxx.......x.....xxxx......x..xx'
    """

    def __init__(self, loss: float, burst: float | None, seed):
        burst = burst or 1 / (1 - loss)
        self.to_good, self.to_bad = 1 / burst, loss / (1 - loss) / burst
        self.bad, self.random = False, random.Random(f"loss {seed}").random

    def lost(self) -> bool:
        """Say whether the next frame is lost."""
        if self.to_bad:
            if self.bad:
                self.bad = self.random() >= self.to_good
            else:
                self.bad = self.random() < self.to_bad
        return self.bad


class Shaper:
    """When a frame has left a link that holds a rate, behind a queue that drops what has no room.

    Parameters
    ----------
    rate_bps
        None for a link that takes no time.
    queue_bytes
        Of the frames that wait or leave.

    Examples
    --------
    A millisecond for each frame; the third finds no room.

    >>> shaper = Shaper(8e6, 2000)
    >>> [shaper.admit(0.0, 1000) for _ in range(3)], shaper.admit(0.0015, 1000)
    ([0.001, 0.002, None], 0.003)
    """

    def __init__(self, rate_bps: float | None, queue_bytes: float):
        self.byte_s = 8 / rate_bps if rate_bps else 0.0
        self.longest_s = queue_bytes * self.byte_s * (1 + 1e-9)
        self.free_s = 0.0

    def admit(self, now_s: float, bytes_: int) -> float | None:
        """Return when a frame that comes now has left, or nothing if it is dropped."""
        if not self.byte_s:
            return now_s
        left_s = max(now_s, self.free_s) + bytes_ * self.byte_s
        if left_s - now_s > self.longest_s:
            return None
        self.free_s = left_s
        return left_s


class Jitter:
    """A further wait that wanders between nothing and its most, slowly enough to keep the order.

    A line between values drawn uniformly, one for each stretch as long as the most itself: it never
    falls faster than time goes on. Its mean is half the most, its variance most² / 18.

    Examples
    --------
    >>> jitter = Jitter(0.01, seed=1)
    >>> [round(jitter.at(t), 4) for t in (0.0, 0.005, 0.01)]
    [0.0068, 0.0067, 0.0066]
    """

    def __init__(self, most_s: float, seed):
        self.most_s, self.seed = most_s, seed
        self.knot, self.ends = -1, (0.0, 0.0)

    def _value(self, knot: int) -> float:
        return self.most_s * random.Random(f"jitter {self.seed} {knot}").random()

    def at(self, now_s: float) -> float:
        """Return the wait at a moment, seconds."""
        if not self.most_s:
            return 0.0
        knot, part = divmod(now_s / self.most_s, 1)
        if knot != self.knot:
            self.knot, self.ends = knot, (self._value(int(knot)), self._value(int(knot) + 1))
        return self.ends[0] + part * (self.ends[1] - self.ends[0])


class Way:
    """One direction between two sites.

    Parameters
    ----------
    wishes
        ``delay_s``, ``rate_bps``, ``queue_bytes``, ``jitter_s``, ``loss``, ``burst``, ``seed``.

    Attributes
    ----------
    waiting
        (moment, frame), in order.
    counts
        Frames by what became of them: ``carried`` (with ``bytes``, Ethernet headers included),
        ``lost``, ``overflowed`` (the queue was full), ``cut`` (the site was cut off), ``refused``
        (the kernel would not take it).
    """

    def __init__(self, wishes: dict):
        self.waiting, self.last_s, self.is_cut = collections.deque(), 0.0, False
        names = ("carried", "bytes", "lost", "overflowed", "cut", "refused")
        self.counts = dict.fromkeys(names, 0)
        self.change(wishes)

    def change(self, wishes: dict) -> None:
        """Be another line from now on; what is under way arrives as it would have."""
        self.delay_s = wishes["delay_s"]
        self.losses = Losses(wishes["loss"], wishes["burst"], wishes["seed"])
        self.shaper = Shaper(wishes["rate_bps"], wishes["queue_bytes"])
        self.jitter = Jitter(wishes["jitter_s"], wishes["seed"])

    def cut(self, yes: bool) -> None:
        """Cut the line, with what is under way; or join it again."""
        self.is_cut = yes
        if yes:
            self.counts["cut"] += len(self.waiting)
            self.waiting.clear()

    def take(self, now_s: float, frame: bytes) -> None:
        """Take a frame that comes now."""
        if self.is_cut:
            self.counts["cut"] += 1
        elif self.losses.lost():
            self.counts["lost"] += 1
        elif (left_s := self.shaper.admit(now_s, len(frame))) is None:
            self.counts["overflowed"] += 1
        else:
            self.last_s = max(self.last_s, left_s + self.delay_s + self.jitter.at(left_s))
            self.waiting.append((self.last_s, frame))

    def give(self, now_s: float, send) -> None:
        """Send what is due."""
        waiting, counts = self.waiting, self.counts
        while waiting and waiting[0][0] <= now_s:
            frame = waiting.popleft()[1]
            try:
                send(frame)
            except OSError:
                counts["refused"] += 1
                continue
            counts["carried"] += 1
            counts["bytes"] += len(frame)
