"""A link between two sites: how long light takes, how much is under way, what tunnels leave.

Delay is the length of the fibre times its group index over the speed of light, plus what equipment
adds. The fibre is a route factor longer than the straight line. Bytes in flight are the rate times
the delay; a window must hold a whole round trip of them, the bandwidth-delay product (BDP).

Tunnels add headers to each packet, inside an unchanged outer MTU, so the inner one shrinks; MACsec
alone makes the frame longer instead. ESP in tunnel mode with AES-GCM: RFC 4303 and 4106 (8-byte
IV, 16-byte check, padding to 4). WireGuard: Donenfeld, NDSS 2017 (16-byte header, 16-byte check,
padding to 16). Headers below come from :mod:`tokenlife.wire`.

RDMA has no window that grows: what is outstanding is what was posted, and lossless Ethernet needs
room for all that still arrives after a pause was asked for (priority flow control, IEEE 802.1Qbb).
Go-back-N repeats a window for each lost packet.

Left out: dispersion and amplifiers, rerouting, queues on the way, the response time of a paused
sender's hardware. Constants stand in ``data/hardware/wan.toml``.
"""

import math
from dataclasses import dataclass
from functools import cache

from tokenlife.catalog import read_wan
from tokenlife.errors import TokenlifeError
from tokenlife.wire.framing import INTERFRAME_GAP, PREAMBLE, SMALLEST_FRAME, FramingError
from tokenlife.wire.layers import LAYERS
from tokenlife.wire.stack import Stack

LARGEST_RATE_BPS = 1e18


class WanError(TokenlifeError, ValueError):
    """A link or a transfer that cannot be."""


@cache
def light() -> tuple[float, float]:
    """Return the speed of light in metres per second: in vacuum and in fibre.

    Examples
    --------
    >>> [round(v / 1e6, 1) for v in light()]
    [299.8, 204.2]
    """
    constants = read_wan()
    return constants["vacuum"]["mps"], constants["vacuum"]["mps"] / constants["fibre"]["index"]


def routes() -> dict[str, float]:
    """Return how much longer than the straight line a route is, by its kind.

    Examples
    --------
    >>> routes()["conduits"]
    1.3
    """
    return {name: row["factor"] for name, row in read_wan()["routes"].items()}


def places() -> dict[str, tuple[float, float]]:
    """Return known cities: degrees north and east."""
    return {name: tuple(at) for name, at in read_wan()["places"].items() if name != "source"}


def distance_km(here: str, there: str) -> float:
    """Return the great circle between two known cities.

    Raises
    ------
    WanError
        If a city is not known.

    Examples
    --------
    >>> round(distance_km("paris", "new york"), -1)
    5840.0
    """
    known = places()
    for name in (here, there):
        if name not in known:
            raise WanError(f"no city {name!r}; known: {', '.join(known)}")
    (north, east), (north2, east2) = ([math.radians(d) for d in known[n]] for n in (here, there))
    half = math.sin((north2 - north) / 2) ** 2
    half += math.cos(north) * math.cos(north2) * math.sin((east2 - east) / 2) ** 2
    return 2 * read_wan()["earth"]["radius_km"] * math.asin(math.sqrt(half))


@dataclass(frozen=True)
class Tunnel:
    """What a tunnel adds: headers outside and inside, and padding of the inner packet.

    Parameters
    ----------
    outer
        Layers of :mod:`tokenlife.wire.layers` that carry it.
    extra_bytes
        Its own header, trailer and check.
    trailer_bytes
        Of ``extra_bytes``, those that are padded together with the packet.
    align
        Padding goes to a multiple of this.
    """

    outer: tuple[str, ...]
    extra_bytes: int
    trailer_bytes: int
    align: int

    def packet_bytes(self, inner: int) -> int:
        """Return the outer IP packet around an inner one."""
        padding = -(inner + self.trailer_bytes) % self.align
        return inner + padding + self.extra_bytes + sum(LAYERS[name].bytes for name in self.outer)

    def inner_mtu(self, outer: int) -> int:
        """Return the largest inner packet; it is one that needs no padding."""
        room = outer - self.packet_bytes(0) + -self.trailer_bytes % self.align + self.trailer_bytes
        return room // self.align * self.align - self.trailer_bytes


# MACsec is a layer of the frame, not a tunnel for packets: wire.stack knows it.
_MACSEC = "macsec"
TUNNELS: dict[str, Tunnel] = {
    "ipsec": Tunnel(("ip header",), 8 + 8 + 2 + 16, 2, 4),
    "wireguard": Tunnel(("ip header", "udp header"), 16 + 16, 0, 16),
}
TUNNEL_NAMES = ("none", _MACSEC, *TUNNELS)


def _stack(mtu: int, tunnel: str) -> Stack:
    if tunnel not in TUNNEL_NAMES:
        raise WanError(f"no tunnel {tunnel!r}; there are {', '.join(TUNNEL_NAMES)}")
    inner = TUNNELS[tunnel].inner_mtu(mtu) if tunnel in TUNNELS else mtu
    try:
        return Stack("tcp", inner, macsec=tunnel == _MACSEC)
    except FramingError as error:
        raise WanError(f"{error}; the tunnel is {tunnel}, the outer MTU {mtu}") from None


def segment_bytes(mtu: int = 1500, tunnel: str = "none") -> int:
    """Return the payload of a full TCP segment inside a tunnel.

    Parameters
    ----------
    mtu
        Of the outer packet.
    tunnel
        One of ``TUNNEL_NAMES``.

    Raises
    ------
    WanError
        If there is no such tunnel, or nothing fits into it.

    Examples
    --------
    >>> [segment_bytes(1500, name) for name in TUNNEL_NAMES]
    [1448, 1448, 1394, 1388]
    """
    return _stack(mtu, tunnel).payload_per_packet


def goodput_ratio(mtu: int = 1500, tunnel: str = "none") -> float:
    """Return TCP's payload per byte of the link's time, in full segments.

    Examples
    --------
    >>> [round(goodput_ratio(1500, name), 4) for name in TUNNEL_NAMES]
    [0.9415, 0.9223, 0.9064, 0.9025]
    """
    stack, payload = _stack(mtu, tunnel), segment_bytes(mtu, tunnel)
    frame = stack.frame(payload).wire_bytes
    if tunnel in TUNNELS:
        frame += TUNNELS[tunnel].packet_bytes(stack.mtu) - stack.mtu
    return payload / frame


@dataclass(frozen=True)
class Link:
    """One way between two sites, and the same way back.

    Parameters
    ----------
    distance_km
        Along the ground.
    rate_bps
        Bits per second, each way.
    route
        Length of the fibre over the distance; 1 or more.
    equipment_s
        What regenerators, routers and encryption add, one way.
    delay_s
        The one-way delay where it is known; else it is reckoned from the distance.
    loss
        Share of the packets that are lost at random.
    jitter_s
        By how much packets are late at most.

    Raises
    ------
    WanError
        If a value cannot be, or the delay is shorter than light needs.

    Examples
    --------
    >>> link = Link(1000, 400e9)
    >>> round(link.delay_s * 1e3, 2), round(link.bdp_bytes / 1e6)
    (4.9, 490)
    >>> Link(1000, 400e9, delay_s=3e-3)
    Traceback (most recent call last):
        ...
    tokenlife.wan.link.WanError: faster than light: 1,000 km take at least 3.34 ms, not 3 ms
    """

    distance_km: float
    rate_bps: float
    route: float = 1.0
    equipment_s: float = 0.0
    delay_s: float | None = None
    loss: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self):
        numbers = (self.distance_km, self.rate_bps, self.route, self.equipment_s, self.jitter_s)
        if not all(math.isfinite(n) for n in (*numbers, self.loss, self.delay_s or 0)):
            raise WanError("distance, rate, route, delays and loss must be finite numbers")
        if not 0 < self.rate_bps <= LARGEST_RATE_BPS:
            raise WanError(
                f"a link needs a rate above 0 and at most 1 Ebit/s, not {self.rate_bps:g}"
            )
        if self.distance_km < 0 or self.equipment_s < 0 or self.jitter_s < 0:
            raise WanError("distance, delay of equipment and jitter cannot be negative")
        if self.route < 1:
            raise WanError(f"no route is shorter than the straight line: {self.route:g} is below 1")
        if not 0 <= self.loss < 1:
            raise WanError(f"the share of lost packets lies from 0 to below 1, not {self.loss:g}")
        vacuum, fibre = light()
        if self.delay_s is None:
            metres = self.distance_km * 1e3 * self.route
            object.__setattr__(self, "delay_s", metres / fibre + self.equipment_s)
        elif self.delay_s < (least := self.distance_km * 1e3 / vacuum):
            raise WanError(
                f"faster than light: {self.distance_km:,.4g} km take at least "
                f"{least * 1e3:.3g} ms, not {self.delay_s * 1e3:.3g} ms"
            )

    @property
    def rtt_s(self) -> float:
        """There and back."""
        return 2 * self.delay_s

    @property
    def in_flight_bytes(self) -> float:
        """Bytes inside one direction of the fibre."""
        return self.rate_bps * self.delay_s / 8

    @property
    def bdp_bytes(self) -> float:
        """Bytes that a sender must have sent and not yet heard of, to keep the link full."""
        return self.rate_bps * self.rtt_s / 8


def window_limit_bps(link: Link, window_bytes: float) -> float:
    """Return the rate that a fixed window allows: a window per round trip, at most the link's rate.

    Examples
    --------
    >>> round(window_limit_bps(Link(1000, 400e9), 16 * 2**20) / 1e9, 1)
    13.7
    """
    if window_bytes <= 0:
        raise WanError(f"a window must have at least a byte, not {window_bytes:g}")
    own = window_bytes * 8 / link.rtt_s if link.rtt_s else math.inf
    return min(link.rate_bps, own)


def pfc_headroom_bytes(link: Link, frame_bytes: int = 4200) -> float:
    """Return the buffer that a priority of a port needs to lose nothing after asking for a pause.

    The request waits for a frame that is being sent, travels, and finds one that has just been
    begun; meanwhile the link stays full: two delays of bytes, two frames and the request.

    Examples
    --------
    >>> [round(pfc_headroom_bytes(Link(km, 400e9)) / 1e3) for km in (0.1, 100)]
    [57, 48976]
    """
    return link.bdp_bytes + 2 * frame_bytes + SMALLEST_FRAME + PREAMBLE + INTERFRAME_GAP


def go_back_n_ratio(link: Link, packet_bytes: int = 4096) -> float:
    """Return what go-back-N leaves of the rate: each loss repeats a round trip of packets.

    Of ``1 / (1 - p)`` tries for a packet, all but the last cost a window of ``W`` packets as well:
    the share is ``(1 - p) / (1 - p + p W)``. Repeating lost packets alone leaves ``1 - p``.

    Examples
    --------
    >>> round(go_back_n_ratio(Link(1000, 400e9, loss=1e-5)), 3)
    0.455
    """
    kept = 1 - link.loss
    return kept / (kept + link.loss * link.bdp_bytes / packet_bytes)
