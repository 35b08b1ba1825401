"""A cluster on one machine, without root: a network namespace for each rank, joined by a switch.

Each rank has an interface ``eth0``, one end of a veth pair; the other end is a port of one bridge.
With a rate, a token bucket holds it at both ends of every link, so that the link is the bottleneck
and a modelled time can be tested. With a delay, a switch in user space takes the bridge's place
(:mod:`tokenlife.lab.delay_line`). The caller stays where it was: its own network is not touched.

Where the kernel refuses namespaces, the cluster is the loopback interface of this machine, without
rate and delay; it says so once.

Left out: links that differ, routes, loss. One kernel switches for all, so the ranks share its
processors.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

from tokenlife.errors import TokenlifeError
from tokenlife.wire import tcp_over_ethernet

MODE = "TOKENLIFE_LAB"  # environment variable: "loopback", "off", or unset
LARGEST_RATE_BPS = 8 * 2**32  # the kernel's token bucket counts bytes per second in 32 bits
LOOPBACK_MTU = 65_535
BURST_S = 4e-3
_PROGRAM = Path(__file__).with_name("namespace.py")
# None may forget its window when idle, or start with a small one. Only little may wait in the
# kernel ahead of what comes later: then sent means gone, and the rounds of a schedule do not run
# into each other on the link. Which congestion control serves is the kernel's choice: some let
# nobody but the first network set it (the wish for cubic then does nothing, and BBR may stay).
_SETTINGS = {
    "ipv6/conf/all/disable_ipv6": "1",
    "ipv4/tcp_congestion_control": "cubic",
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
    "ipv4/tcp_limit_output_bytes": "16384",
    "ipv4/tcp_notsent_lowat": "16384",
    "ipv4/tcp_rmem": "4096 4194304 33554432",
}


class LabError(TokenlifeError, RuntimeError):
    """A run that cannot be had on this machine, or went wrong."""


class LabUnavailable(LabError):
    """No lab on this machine, or it is switched off; what was recorded may stand in."""


class LabWarning(UserWarning):
    """The lab gives less than was asked for."""


def wished_place() -> str:
    """Return where the lab is told to run: ``"loopback"``, or nothing.

    Raises
    ------
    LabUnavailable
        If it is told to run nowhere, or this machine cannot count.
    LabError
        If it is told what it does not know.
    """
    mode = os.environ.get(MODE, "")
    if mode not in ("", "loopback", "off"):
        raise LabError(f"{MODE}={mode} is not known; take loopback or off, or leave it unset")
    if mode == "off":
        raise LabUnavailable(f"the lab is switched off ({MODE}=off): read recorded results instead")
    if sys.platform != "linux":
        raise LabUnavailable("the lab counts what a Linux kernel counts: read recorded results")
    return mode


class VirtualCluster:
    """Ranks with a network of their own; a context manager.

    Parameters
    ----------
    ranks
        1 to 250.
    rate
        Of each link and direction, bit/s; None for as fast as the machine is.
    delay
        From any rank to any other, one way, seconds.
    mtu
        Largest IP packet, bytes.
    offload
        Whether the kernel may cut and join segments late, as it does by default: then it handles
        frames of tens of kilobytes that no Ethernet would carry.

    Attributes
    ----------
    place
        ``"namespaces"`` or ``"loopback"``, once entered.
    addresses, interface
        Of the ranks.

    Raises
    ------
    LabError
        If the wishes cannot be, or the lab is switched off.

    Examples
    --------
    >>> with VirtualCluster(2, rate=1e9) as cluster:      # doctest: +SKIP
    ...     print(cluster.place, cluster.addresses)
    namespaces ['10.77.0.1', '10.77.0.2']
    """

    def __init__(self, ranks, rate=None, delay=None, mtu=1500, offload=False):
        if not isinstance(ranks, int) or not 1 <= ranks <= 250:
            raise LabError(f"the lab holds 1 to 250 ranks, not {ranks}")
        if rate is not None and not 1e4 <= rate < LARGEST_RATE_BPS:
            raise LabError(f"the lab holds a rate of 10 kbit/s to 34 Gbit/s, not {rate:g} bit/s")
        if delay is not None and not 0 < delay <= 10:
            raise LabError(f"a delay must be above 0 and at most 10 seconds, not {delay:g}")
        if delay and offload:
            raise LabError("the delay line carries real frames: offload must be off with a delay")
        tcp_over_ethernet(mtu)
        self.ranks, self.rate, self.delay = ranks, rate, delay
        self.mtu, self.offload = mtu, offload
        self.place, self._holder, self._line = "", None, None

    @property
    def burst(self) -> int:
        """Bytes that a full token bucket lets pass at once: two packets, or what 4 ms are worth.

        A busy machine serves the bucket late; what overflows meanwhile is lost to the link.
        """
        return max(2 * (self.mtu + 14), int((self.rate or 0) / 8 * BURST_S))

    @property
    def refill_s(self) -> float:
        """Seconds that an empty token bucket takes to be full."""
        return self.burst * 8 / self.rate if self.rate else 0.0

    def __enter__(self):
        refused = f"{MODE}=loopback" if wished_place() else self._open()
        if refused:
            self.__exit__()
            asked = " and ".join(n for n in ("rate", "delay") if getattr(self, n))
            warnings.warn(
                f"no network namespaces ({refused}): the ranks talk over loopback, "
                f"counted by their sockets{f', without the {asked}' if asked else ''}",
                LabWarning,
                stacklevel=2,
            )
            return self.on_loopback()
        self.place, self.interface, self.addresses = "namespaces", "eth0", self._addresses()
        return self

    def on_loopback(self) -> "VirtualCluster":
        """Make this the loopback interface, which holds no rate and no delay; return it."""
        self.place, self.interface = "loopback", "lo"
        self.addresses = ["127.0.0.1"] * self.ranks
        self.mtu, self.offload, self.rate, self.delay = LOOPBACK_MTU, True, None, None
        return self

    def __exit__(self, *_):
        for process in (self._line, self._holder):
            if process:
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()
        self._line = self._holder = None

    def _addresses(self) -> list[str]:
        return [f"10.77.0.{rank + 1}" for rank in range(self.ranks)]

    def _open(self) -> str:
        """Build the namespaces; return why it could not be, or nothing."""
        macs = [f"02:00:00:00:00:{rank + 1:02x}" for rank in range(self.ranks)]
        wishes = {
            "addresses": self._addresses(),
            "macs": macs,
            "mtu": self.mtu,
            "rate": self.rate,
            "burst": self.burst,
            "bridge": self.delay is None,
            "offload": self.offload,
            "settings": _SETTINGS,
        }
        self._holder = _start([sys.executable, str(_PROGRAM), "hold"], wishes)
        answer = json.loads(self._holder.stdout.readline() or '{"refused": "no answer"}')
        if "refused" in answer:
            return answer["refused"]
        self._pid, self._hub, self._spaces = answer["pid"], answer["hub"], answer["ranks"]
        if self.delay:
            command = [sys.executable, str(_PROGRAM.with_name("delay_line.py"))]
            self._line = _start(self.inside(command), {"delay": self.delay, "macs": macs})
            self._line.stdout.readline()
        return ""

    def inside(self, command: list[str]) -> list[str]:
        """Return the command that runs a command among the ports of the switch."""
        if self._holder is None:
            return command
        return [sys.executable, str(_PROGRAM), "enter", str(self._pid), str(self._hub), *command]

    def space(self, rank: int) -> str:
        """Return the path of a rank's network namespace, to be joined; nothing on loopback."""
        return f"/proc/{self._pid}/fd/{self._spaces[rank]}" if self._holder else ""


def _start(command: list[str], wishes: dict) -> subprocess.Popen:
    pipe = subprocess.PIPE
    # In a session of its own, so that Ctrl-C reaches the caller alone, who then ends this one.
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    process.stdin.write(json.dumps(wishes) + "\n")
    process.stdin.flush()
    return process
