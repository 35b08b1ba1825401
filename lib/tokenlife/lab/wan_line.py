"""The line between sites: delay, rate with a finite queue, jitter and loss, for each direction.

A program of its own, run among the ports of a cluster (:mod:`tokenlife.lab.sites` starts it). It
gives each site a bridge, so that frames within a site pass at once through the kernel; what is for
another site it takes from the bridge and writes to the other's bridge when its time has come.

The model of one direction of one pair of sites: a frame that comes is lost, or not, by Gilbert's
model (Gilbert–Elliott where the bad state loses all); if there is room for it in the queue it
leaves when those before it have left at the line's rate, else it is dropped; it arrives a delay
and a jitter later. Frames keep their order. All ranks of a site share the line.

A frame's time is counted from when the kernel had it, so a busy machine adds nothing as long as it
is behind by less than the delay. Left out: reordering, and errors within a frame. Held to about
100,000 frames a second by the interpreter.

Sources: Gilbert, Capacity of a burst-noise channel, 1960; TPACKET_V2 as Linux documents it.
"""

import collections
import gc
import ipaddress
import json
import os
import random
import select
import struct
import sys
import time

from tokenlife.lab.meter import SOL_PACKET, STATISTICS, Capture
from tokenlife.lab.namespace import _settings, join, switch_off

IGNORE_OUTGOING = 23
NO_ARP = 0x40  # an address that stands fast, behind a port
BATCH = 64  # frames taken from a site before what is due is sent
RING_FRAMES = 1 << 13
_NOTES = struct.Struct("IIIHHII")  # tpacket2_hdr: status, length, kept, mac, net, seconds, nanos
_TO_KERNEL = bytes(4)


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


class Port(Capture):
    """An interface of which every arriving frame is read, from memory shared with the kernel."""

    def __init__(self, name: str, mtu: int):
        super().__init__(name, 1 << (mtu + 128).bit_length(), RING_FRAMES)
        self.socket.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
        self.socket.setblocking(False)
        self.next, self.missed = 0, 0

    def frames(self):
        """Yield (seconds, nanoseconds, frame) of what has arrived, a batch at most."""
        memory = self.memory
        for _ in range(BATCH):
            status, _, kept, mac, _, seconds, nanos = _NOTES.unpack_from(memory, self.next)
            if not status & 1:
                return
            yield seconds, nanos, memory[self.next + mac : self.next + mac + kept]
            memory[self.next : self.next + 4] = _TO_KERNEL
            self.next = (self.next + self.width) % self.room

    def count_missed(self) -> int:
        """Return how many frames came while the ring was full, so far."""
        self.missed += struct.unpack("II", self.socket.getsockopt(SOL_PACKET, STATISTICS, 8))[1]
        return self.missed


def bridges(sites: list[list[int]], mtu: int, macs: list[str]) -> None:
    """Give each site a bridge of its own, with an interface ``wanN`` that leads out of it.

    Where each address is, the bridges are told: so no frame is ever sent to where it is not for.
    """
    from pyroute2 import IPRoute

    with IPRoute() as hub:
        for site, ranks in enumerate(sites):
            bridge = f"br{site}"
            if site:  # the cluster comes with the first
                hub.link("add", ifname=bridge, kind="bridge", mtu=mtu)
            index = hub.link_lookup(ifname=bridge)[0]
            hub.link("set", index=index, state="up")
            inner, outer = f"out{site}", f"wan{site}"
            hub.link("add", ifname=inner, kind="veth", peer={"ifname": outer, "mtu": mtu}, mtu=mtu)
            for name in (inner, outer):
                switch_off(name)
                hub.link("set", index=hub.link_lookup(ifname=name)[0], state="up")
            ports = {f"port{rank}": [macs[rank]] for rank in ranks}
            ports[inner] = [mac for rank, mac in enumerate(macs) if rank not in ranks]
            for name, known in ports.items():
                port = hub.link_lookup(ifname=name)[0]
                hub.link("set", index=port, master=index)
                for mac in known:
                    hub.fdb("replace", ifindex=port, lladdr=mac, state=NO_ARP)


def prepare(wishes: dict) -> None:
    """Settle the kernels of the ranks, and how their TCP takes to a long line.

    A route may name any congestion control there is, where the setting for all is not allowed.
    """
    from pyroute2 import IPRoute

    home = f"/proc/{os.getpid()}/fd/{os.open('/proc/self/ns/net', os.O_RDONLY)}"
    for space, address in zip(wishes["spaces"], wishes["addresses"], strict=True):
        join(space)
        _settings(wishes["settings"])
        with IPRoute() as netlink:
            eth0 = netlink.link_lookup(ifname="eth0")[0]
            netlink.route(
                "replace",
                dst=f"{ipaddress.ip_interface(f'{address}/16').network}",
                oif=eth0,
                prefsrc=address,
                scope="link",
                proto="kernel",
                metrics={"cc_algo": wishes["congestion"]},
            )
    join(home)


def main() -> None:
    """Carry frames until standard input ends; a command a line, and an answer to each.

    Wishes: ``sites`` (a list of ranks each), ``macs``, ``mtu``, ``ways`` (from → to → wishes of a
    :class:`Way`), ``spaces``, ``addresses``, ``settings`` and ``congestion`` (of the ranks'
    kernels). Commands: ``cut`` or ``mend`` with a site, ``ways``, ``counts``.
    """
    wishes, rest = json.loads(sys.stdin.buffer.raw.readline()), b""
    prepare(wishes)
    bridges(wishes["sites"], wishes["mtu"], wishes["macs"])
    sites = range(len(wishes["sites"]))
    ports = [Port(f"wan{site}", wishes["mtu"]) for site in sites]
    ways = {(a, b): Way(wishes["ways"][a][b]) for a in sites for b in sites if a != b}
    at = {rank: site for site, ranks in enumerate(wishes["sites"]) for rank in ranks}
    to = [
        {
            bytes.fromhex(mac.replace(":", "")): ways[site, at[rank]].take
            for rank, mac in enumerate(wishes["macs"])
            if at[rank] != site
        }
        for site in sites
    ]
    senders = [(way, ports[b].socket.send) for (_, b), way in ways.items()]
    by_fd = {port.socket.fileno(): site for site, port in enumerate(ports)}
    start, cut = int(time.time()), set()

    def obey(command: dict) -> dict:
        if "ways" in command:
            for (a, b), way in ways.items():
                way.change(command["ways"][a][b])
        if "cut" in command or "mend" in command:
            (cut.add if "cut" in command else cut.discard)(command.get("cut", command.get("mend")))
            for (a, b), way in ways.items():
                way.cut(bool(cut & {a, b}))
        counts = [{"from": a, "to": b, **way.counts} for (a, b), way in ways.items()]
        return {"counts": counts, "missed": [port.count_missed() for port in ports]}

    gc.disable()  # a pause would be a delay, and nothing here goes round in circles
    print("ready", flush=True)
    while True:
        due = [way.waiting[0][0] for way, _ in senders if way.waiting]
        wait = max(0.0, min(due) - (time.time() - start)) if due else None
        for fd in select.select([0, *by_fd], [], [], wait)[0]:
            if fd:
                site = by_fd[fd]
                for seconds, nanos, frame in ports[site].frames():
                    if take := to[site].get(frame[:6]):
                        take(seconds - start + nanos * 1e-9, frame)
                continue
            rest += (heard := os.read(0, 1 << 16))
            if not heard:
                return
            *lines, rest = rest.split(b"\n")
            for line in lines:
                print(json.dumps(obey(json.loads(line))), flush=True)
        now_s = time.time() - start
        for way, send in senders:
            way.give(now_s, send)


if __name__ == "__main__":
    main()
