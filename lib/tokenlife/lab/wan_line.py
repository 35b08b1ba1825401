"""The line between sites: delay, rate with a finite queue, jitter and loss, for each direction.

A program of its own, run among the ports of a cluster (:mod:`tokenlife.lab.sites` starts it). It
gives each site a bridge, so that frames within a site pass at once through the kernel; what is for
another site it takes from the bridge and writes to the other's bridge when its time has come.

What becomes of a frame, :mod:`tokenlife.lab.way` says. Its time is counted from when the kernel had
it, so a busy machine adds nothing as long as it is behind by less than the delay. Held to about
100,000 frames a second by the interpreter. The memory shared with the kernel is TPACKET_V2, as
Linux documents it.
"""

import gc
import ipaddress
import json
import os
import select
import struct
import sys
import time

from tokenlife.lab.meter import SOL_PACKET, STATISTICS, Capture
from tokenlife.lab.namespace import _settings, join, switch_off
from tokenlife.lab.way import Way

IGNORE_OUTGOING = 23
NO_ARP = 0x40  # an address that stands fast, behind a port
BATCH = 64  # frames taken from a site before what is due is sent
RING_FRAMES = 1 << 13
_NOTES = struct.Struct("IIIHHII")  # tpacket2_hdr: status, length, kept, mac, net, seconds, nanos
_TO_KERNEL = bytes(4)


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
