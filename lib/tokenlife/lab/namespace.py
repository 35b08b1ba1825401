"""Run inside namespaces: the process that holds a cluster's network, and the door into it.

A program of its own, started as a plain file. A user namespace can only be made, or entered, by a
process with one thread, and both PyTorch and a notebook's kernel have many. Its namespaces have no
name: they live while the holder keeps them open, so the death of the holder, by any cause, leaves
nothing behind. The holder ends when its standard input does, and that ends with its parent.

- ``hold``: read the wishes (a JSON line), build, print where the namespaces are, wait.
- ``enter PID FD COMMAND …``: join a namespace that the holder PID keeps open as FD, and become
  COMMAND.
- ``watch FOLDER COMMAND …``: run COMMAND; when standard input ends before it, end it, and remove
  FOLDER.

Left out: routers, and links that differ.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

NEW_USER, NEW_NET = 1 << 28, 1 << 30
PARENT_DEATH_SIGNAL = 1
PERMANENT = 0x80  # a neighbour that need not be asked for: no ARP among the frames counted
SIOCETHTOOL = 0x8946
# ETHTOOL_SRXCSUM, STXCSUM, SSG, STSO, SGSO, SGRO: all cut, join or check frames behind our back.
OFFLOADS = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)
GRACE_S = 3.0
DEEP_QUEUE = 1 << 25  # bytes: a shaper that waits, and does not drop
_libc = ctypes.CDLL(None, use_errno=True)


def system(call: str, *arguments) -> None:
    """Call the C library; raise OSError where it refuses."""
    if getattr(_libc, call)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def join(path: str, kind: int = NEW_NET) -> None:
    """Move this process (for a network: this thread) into a namespace."""
    with Path(path).open() as file:
        system("setns", file.fileno(), kind)


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone."""
    system("prctl", PARENT_DEATH_SIGNAL, signal.SIGKILL)


def at_end_of_input(then) -> None:
    """Call a function when standard input ends: whoever holds its other end is gone."""

    def wait() -> None:
        poll = select.poll()
        poll.register(0, select.POLLHUP | select.POLLRDHUP)
        poll.poll()
        then()

    threading.Thread(target=wait, daemon=True).start()


def switch_off(interface: str) -> None:
    """Switch off all offloads of an interface of this namespace, as far as it has them."""
    with socket.socket() as any_socket:
        for command in OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sQ16x", interface.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(any_socket, SIOCETHTOOL, request)
            except OSError as error:
                if error.errno != 95:  # not supported
                    raise


def _new_user() -> None:
    uid, gid = os.getuid(), os.getgid()
    system("unshare", NEW_USER | NEW_NET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _settings(values: dict[str, str]) -> None:
    for name, value in values.items():
        try:
            Path("/proc/sys/net", name).write_text(value)
        except OSError:  # /proc/sys is read-only in some containers: the kernel's default stays
            continue


def _shape(netlink, index: int, wishes: dict) -> None:
    if wishes["rate"]:
        burst = wishes["burst"]
        netlink.tc("add", "tbf", index, rate=int(wishes["rate"] / 8), burst=burst, limit=DEEP_QUEUE)


def build(wishes: dict) -> list[int]:
    """Build a cluster; return a descriptor of each rank's namespace.

    Parameters
    ----------
    wishes
        ``addresses`` and ``macs`` (one for each rank), ``mtu``, ``rate`` (bit/s or None), ``burst``
        (bytes), ``bridge`` (or ports that wait for a delay line), ``offload``, ``settings``.
    """
    _new_user()
    from pyroute2 import IPRoute  # now: it starts threads

    hub, home, spaces = IPRoute(), os.open("/proc/self/ns/net", os.O_RDONLY), []
    if wishes["bridge"]:
        hub.link("add", ifname="br0", kind="bridge", mtu=wishes["mtu"])
        bridge = hub.link_lookup(ifname="br0")[0]
        hub.link("set", index=bridge, state="up")
    _settings({"ipv6/conf/all/disable_ipv6": "1"})
    for rank, (address, mac) in enumerate(zip(wishes["addresses"], wishes["macs"], strict=True)):
        system("unshare", NEW_NET)
        spaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        _settings(wishes["settings"])
        port = f"port{rank}"
        with IPRoute() as netlink:
            peer = {"ifname": "eth0", "net_ns_fd": spaces[-1], "mtu": wishes["mtu"], "address": mac}
            hub.link("add", ifname=port, kind="veth", peer=peer, mtu=wishes["mtu"])
            if not wishes["offload"]:
                switch_off("eth0")
            eth0 = netlink.link_lookup(ifname="eth0")[0]
            _shape(netlink, eth0, wishes)
            netlink.link("set", index=netlink.link_lookup(ifname="lo")[0], state="up")
            netlink.link("set", index=eth0, state="up")
            netlink.addr("add", index=eth0, address=address, prefixlen=16)
            for other, other_mac in zip(wishes["addresses"], wishes["macs"], strict=True):
                if other != address:
                    netlink.neigh("add", dst=other, lladdr=other_mac, ifindex=eth0, state=PERMANENT)
        system("setns", home, NEW_NET)
        index = hub.link_lookup(ifname=port)[0]
        if not wishes["offload"]:
            switch_off(port)
        _shape(hub, index, wishes)
        hub.link("set", index=index, state="up", **({"master": bridge} if wishes["bridge"] else {}))
    return spaces


def hold() -> None:
    """Build, say where, and stay until standard input ends."""
    wishes = json.loads(sys.stdin.readline())
    try:
        spaces = build(wishes)
    except Exception as error:  # whatever it is, the parent must be told in words
        print(json.dumps({"refused": f"{type(error).__name__}: {error}"}), flush=True)
        return
    hub = os.open("/proc/self/ns/net", os.O_RDONLY)
    print(json.dumps({"pid": os.getpid(), "hub": hub, "ranks": spaces}), flush=True)
    sys.stdin.read()


def watch(folder: str, command: list[str]) -> None:
    """Run a command, and leave nothing of it behind when standard input ends first."""
    process, alone = subprocess.Popen(command, stdin=subprocess.DEVNULL), threading.Event()

    def end() -> None:
        alone.set()
        process.terminate()  # mpirun then ends its ranks
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()

    at_end_of_input(end)
    status = process.wait()
    if alone.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status)


if __name__ == "__main__":
    if sys.argv[1:] == ["hold"]:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone before it was told
            hold()
    elif sys.argv[1] == "watch":
        watch(sys.argv[2], sys.argv[3:])
    else:
        _, _, pid, descriptor, *command = sys.argv
        join(f"/proc/{pid}/ns/user", NEW_USER)
        join(f"/proc/{pid}/fd/{descriptor}")
        os.execv(command[0], command)
