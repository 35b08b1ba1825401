"""``tokenlife wan``: what a message costs between sites."""

import argparse
import math

from tokenlife.catalog import running
from tokenlife.cli import Result
from tokenlife.costs import count_parameters
from tokenlife.transformer import ModelConfig
from tokenlife.units import (
    format_bytes,
    format_rate,
    format_time,
    parse_bytes,
    parse_rate,
    parse_time,
)
from tokenlife.wan import (
    CONGESTIONS,
    Link,
    WanError,
    distance_km,
    routes,
    throughput_bps,
    transfer_s,
)
from tokenlife.wan.link import TUNNEL_NAMES, pfc_headroom_bytes
from tokenlife.wan.tcp import exchange_s

HELP = "price an exchange between sites: delay, bytes in flight, TCP's rate, time"
GRADIENT_BYTES = 4  # of a parameter
OPTIONS = {
    "sites": (int, 2, "how many, in a ring (default: 2)"),
    "distance-km": (float, None, "between neighbours, along the ground"),
    "between": (str, None, "two cities instead: paris,frankfurt"),
    "rate": (str, None, "of the link: 100Gbps"),
    "route": (str, "straight", f"{', '.join(routes())}, or a number (default: straight)"),
    "delay": (str, None, "one way, where it is known: 20ms"),
    "equipment": (str, "0", "delay that equipment adds, one way (default: 0)"),
    "loss": (float, 0.0, "share of packets lost at random (default: 0)"),
    "congestion": (str, "cubic", f"{', '.join(CONGESTIONS)} (default: cubic)"),
    "streams": (int, 1, "connections side by side (default: 1)"),
    "window": (str, None, "that a connection may have under way: 16MiB (default: no limit)"),
    "bytes": (str, None, "to sum over the sites (default: the gradients of the running job)"),
    "mtu": (int, 1500, "largest IP packet on the link (default: 1500)"),
    "tunnel": (str, "none", f"{', '.join(TUNNEL_NAMES)} (default: none)"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    for name, (type_, default, text) in OPTIONS.items():
        parser.add_argument(
            f"--{name}", type=type_, default=default, help=text, required=name == "rate"
        )


def run(args: argparse.Namespace) -> Result:
    """Price and print.

    Raises
    ------
    TokenlifeError
        If a link, a size or an option cannot be.
    """
    link = _link(args)
    size = _gradients() if args.bytes is None else parse_bytes(args.bytes)
    window = math.inf if args.window is None else parse_bytes(args.window)
    rate_bps = throughput_bps(
        link, args.congestion, args.streams, window, mtu=args.mtu, tunnel=args.tunnel
    )
    if not rate_bps:
        raise WanError(f"with a loss of {link.loss:g} {args.congestion} sends next to nothing")
    per_stream = rate_bps / args.streams
    message = -(-size // args.streams)
    fresh_s = transfer_s(link, message, per_stream, mtu=args.mtu, tunnel=args.tunnel)
    warm_s = transfer_s(link, message, per_stream, "warm")
    data = {
        "sites": args.sites,
        "distance_km": link.distance_km,
        "rate_bps": link.rate_bps,
        "delay_s": link.delay_s,
        "rtt_s": link.rtt_s,
        "bdp_bytes": link.bdp_bytes,
        "in_flight_bytes": link.in_flight_bytes,
        "throughput_bps": rate_bps,
        "bytes": size,
        "time_s": exchange_s(link, size, rate_bps, args.sites),
        "transfer_warm_s": warm_s,
        "transfer_fresh_s": fresh_s,
        "pfc_headroom_bytes": pfc_headroom_bytes(link),
        "label": "modelled",
    }
    lines = [
        f"modelled: {args.sites} sites, {link.distance_km:,.0f} km, {format_rate(link.rate_bps)}",
        f"one way, round trip     {format_time(link.delay_s)}, {format_time(link.rtt_s)}",
        f"in the fibre, BDP       {format_bytes(link.in_flight_bytes)}, "
        f"{format_bytes(link.bdp_bytes)}",
        f"TCP ({args.congestion}, {args.streams})".ljust(24)
        + f"{format_rate(rate_bps)} of payload, {rate_bps / link.rate_bps:.1%} of the link",
        f"{format_bytes(size)} to one site".ljust(24)
        + f"{format_time(warm_s)} warm, {format_time(fresh_s)} over a fresh connection",
        f"all-reduce over sites   {format_time(data['time_s'])}, connections warm",
        f"RDMA's pause headroom   {format_bytes(data['pfc_headroom_bytes'])} a priority and port",
    ]
    return Result(data, "\n".join(lines))


def _link(args) -> Link:
    if (args.distance_km is None) == (args.between is None):
        raise WanError("give either --distance-km, or two cities with --between")
    if args.between is None:
        distance = args.distance_km
    else:
        cities = [city.strip().lower() for city in args.between.split(",")]
        if len(cities) != 2:
            raise WanError(
                f"--between names two cities, like paris,frankfurt, not {args.between!r}"
            )
        distance = distance_km(*cities)
    try:
        route = routes().get(args.route) or float(args.route)
    except ValueError:
        known = ", ".join(routes())
        raise WanError(f"no route {args.route!r}; give a factor, or one of: {known}") from None
    delay_s = None if args.delay is None else parse_time(args.delay)
    equipment_s = parse_time(args.equipment)
    return Link(distance, parse_rate(args.rate), route, equipment_s, delay_s, args.loss)


def _gradients() -> int:
    return count_parameters(ModelConfig.load(running()["small"]["model"])) * GRADIENT_BYTES
