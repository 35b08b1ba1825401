"""What gloo puts on the sockets for one call: its algorithms, its segments, its headers.

Seen of PyTorch 2.13 on TCP, and held to the byte by the tests. A message costs its sender two
headers, one before it and one to say that it is ready, and its receiver one, to say the same.
All-reduce is a ring that runs down the ranks, its blocks in at least two segments each, of at most
1 MiB; reduce-scatter is that all-reduce of the whole buffer; all-gather is a ring whose blocks go
in two messages; broadcast is a binomial tree; the others send one message to each.
"""

from collections.abc import Iterable

import numpy as np

from tokenlife.lab.cluster import LabError
from tokenlife.lab.result import GLOO_HEADER
from tokenlife.wire import tcp_over_ethernet
from tokenlife.wire.framing import FRAME_CHECK

SEGMENT_BYTES = 1 << 20


def gloo_sends(
    kind: str, ranks: int, bytes_: int, item_bytes: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """Return the payload and the headers that each rank of a group sends in one call.

    Parameters
    ----------
    kind
        ``all_reduce``, ``reduce_scatter``, ``all_gather``, ``all_to_all`` (even), ``broadcast``
        (from the first rank) or ``send`` (from the first to the second).
    ranks
        Of the group.
    bytes_, item_bytes
        The whole buffer of one rank, as nccl-tests counts it, and the size of one number.

    Returns
    -------
    payload, headers
        Bytes; shape (ranks,) each.

    Raises
    ------
    LabError
        For a kind that is not known.

    Examples
    --------
    >>> payload, headers = gloo_sends("all_reduce", 4, 4_000_000)
    >>> int(payload[0]), int(headers[0])
    (6000000, 1728)
    >>> int(gloo_sends("reduce_scatter", 4, 4_000_000)[0][0])
    6000000
    """
    if kind not in _MESSAGES:
        raise LabError(f"no rule for gloo's {kind}; there are {', '.join(_MESSAGES)}")
    payload, headers = np.zeros((2, ranks), np.int64)
    for src, dst, size in _MESSAGES[kind](ranks, bytes_, item_bytes):
        payload[src] += size
        headers[src] += 2 * GLOO_HEADER
        headers[dst] += GLOO_HEADER
    return payload, headers


def gloo_link_bytes(kind: str, ranks: int, bytes_: int, mtu: int = 1500) -> int:
    """Return the bytes of the frames that leave the busiest rank in one call, all of them full.

    Acknowledgements of as much data as it sends leave by the same link. As the lab's links count: a
    frame is neither checked nor set apart from the next.

    Examples
    --------
    >>> gloo_link_bytes("all_reduce", 2, 1448 * 1000) - 1448 * 1000
    99708
    """
    payload, headers = (part.max() for part in gloo_sends(kind, ranks, bytes_))
    framed = tcp_over_ethernet(mtu).frame(int(payload + headers))
    frames = framed.packets + framed.acknowledgements
    return framed.frame_bytes + framed.acknowledgement_bytes - frames * FRAME_CHECK


def gloo_sends_of(calls: Iterable[dict], rank: int) -> tuple[int, int]:
    """Return the payload and the headers that a rank sends for calls.

    Parameters
    ----------
    calls
        As :meth:`~tokenlife.lab.calls.Calls.rows` returns them.
    rank
        Of the whole job; a member of every group.

    Examples
    --------
    >>> gathers = {"kind": "all_gather", "group": [2, 3], "bytes": 4096, "count": 2}
    >>> gloo_sends_of([gathers], 3)
    (4096, 576)
    """
    payload = headers = 0
    for call in calls:
        both = gloo_sends(call["kind"], len(call["group"]), call["bytes"])
        mine = [int(part[call["group"].index(rank)]) for part in both]
        payload += call["count"] * mine[0]
        headers += call["count"] * mine[1]
    return payload, headers


def gloo_seconds(kind: str, ranks: int, bytes_: int, rate_bps: float, mtu: int = 1500) -> float:
    """Return what a call takes on links of its own that hold a rate, in full frames.

    A link also carries what acknowledges the other ranks' bytes; virtual links have no frame check.
    Left out: latency, and what processors do for a sum.

    Parameters
    ----------
    kind, ranks, bytes_
        As :func:`gloo_sends` takes them.
    rate_bps, mtu
        Of each rank's link; bytes of the largest IP packet.

    Examples
    --------
    >>> round(gloo_seconds("all_reduce", 2, 2_500_000, 200e6), 4)
    0.1069
    """
    return 8 * gloo_link_bytes(kind, ranks, bytes_, mtu) / rate_bps


def _ring_down(ranks, bytes_, item_bytes):
    """Yield the all-reduce: block b is summed down to rank b, then handed on."""
    each = max(2, -(-bytes_ // (SEGMENT_BYTES * ranks)))
    segment = -(-bytes_ // (each * ranks * item_bytes)) * item_bytes
    sizes = np.clip(bytes_ - segment * np.arange(each * ranks), 0, segment).reshape(ranks, each)
    for rank in range(ranks):
        for step in range(1, ranks):
            for block in (rank + step, rank + step - 1):
                for size in sizes[block % ranks]:
                    if size:
                        yield rank, (rank - 1) % ranks, size


def _ring_of_halves(ranks, bytes_, item_bytes):
    block = bytes_ // ranks
    half = block // item_bytes // 2 * item_bytes
    for rank in range(ranks):
        for _ in range(ranks - 1):
            yield rank, (rank + 1) % ranks, half
            yield rank, (rank + 1) % ranks, block - half


def _to_each(ranks, bytes_, item_bytes):
    for rank in range(ranks):
        for other in range(ranks):
            if rank != other:
                yield rank, other, bytes_ // ranks


def _tree(ranks, bytes_, item_bytes):
    reach = 1
    while reach < ranks:
        for rank in range(min(reach, ranks - reach)):
            yield rank, rank + reach, bytes_
        reach *= 2


def _one(ranks, bytes_, item_bytes):
    yield 0, 1, bytes_


_MESSAGES = {
    "all_reduce": _ring_down, "reduce_scatter": _ring_down, "all_gather": _ring_of_halves,
    "all_to_all": _to_each, "broadcast": _tree, "send": _one,
}  # fmt: skip
