"""A switch in user space that delivers every frame a constant time later: distance.

Kernels often lack the queueing discipline that delays (``netem``), so the lab brings its own: one
process reads the frames of every port of the virtual cluster and writes each to the port of its
destination when its time has come. A program of its own, run among the ports.

Held to about 60,000 frames a second by the interpreter; a frame that the port's queue refuses is
lost, as in a real switch.
"""

import collections
import json
import select
import socket
import sys
import time

ALL_PROTOCOLS = 3
SOL_PACKET, IGNORE_OUTGOING = 263, 23
BUFFER = 1 << 25


def port(name: str) -> socket.socket:
    """Open a raw socket on an interface: only what arrives, not what we send."""
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    opened.bind((name, 0))
    opened.setblocking(False)
    opened.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        opened.setsockopt(socket.SOL_SOCKET, option, BUFFER)
    return opened


def main() -> None:
    """Forward until standard input ends."""
    wishes = json.loads(sys.stdin.readline())
    ports = [port(f"port{rank}") for rank in range(len(wishes["macs"]))]
    to = {bytes.fromhex(mac.replace(":", "")): p for mac, p in zip(wishes["macs"], ports)}  # noqa: B905
    waiting = collections.deque()
    poll = select.epoll()
    by_fd = {p.fileno(): p for p in ports}
    for fd in (*by_fd, sys.stdin.fileno()):
        poll.register(fd, select.EPOLLIN)
    print("ready", flush=True)
    while True:
        wait = max(0.0, waiting[0][0] - time.perf_counter()) if waiting else 1.0
        for fd, _ in poll.poll(wait):
            if fd not in by_fd:
                return
            due = time.perf_counter() + wishes["delay"]
            for _ in range(32):
                try:
                    frame = by_fd[fd].recv(65_536)
                except BlockingIOError:
                    break
                if out := to.get(frame[:6]):
                    waiting.append((due, out, frame))
        now = time.perf_counter()
        while waiting and waiting[0][0] <= now:
            _, out, frame = waiting.popleft()
            try:
                out.send(frame)
            except OSError:  # the queue is full
                continue


if __name__ == "__main__":
    main()
