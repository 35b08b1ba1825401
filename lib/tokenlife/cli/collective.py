"""``tokenlife collective``: what one collective sends, and how long it takes."""

import argparse

from tokenlife.cli import Result
from tokenlife.collectives import (
    Schedule,
    ScheduleError,
    algorithm,
    algorithms,
    build,
    definition,
    registry,
)
from tokenlife.collectives.bounds import algbw_Bps, busbw_Bps, lower_bound
from tokenlife.collectives.cost import Hockney, Tiers, price
from tokenlife.files import atomic_write
from tokenlife.interop.goal import goal_text
from tokenlife.network import parse_topology, simulate
from tokenlife.units import format_bytes, format_time, parse_bytes, parse_rate, parse_time

HELP = "price a collective: rounds, bytes that each rank sends, time, bandwidth"
OPTIONS = {
    "ranks": (int, "size of the group"),
    "algorithm": (str, "its name (default: all that work, the fastest first)"),
    "bytes": (str, "the whole buffer of one rank, as nccl-tests count: 4MiB"),
    "alpha": (str, "latency of a message (default: 2us)"),
    "beta": (str, "seconds for a byte, like 2e-11, instead of --bandwidth"),
    "bandwidth": (str, "of a port (default: 400Gbps)"),
    "gamma": (str, "seconds to add a byte (default: 0)"),
    "node-size": (int, "ranks in a node; --alpha and --bandwidth then hold between nodes"),
    "node-alpha": (str, "latency inside a node (default: --alpha)"),
    "node-bandwidth": (str, "of a port inside a node (default: as between nodes)"),
    "root": (int, "of a rooted collective (default: 0)"),
    "pieces": (int, "chunks of a pipelined algorithm"),
    "on": (str, "topology to simulate it on: leaf-spine:hosts=64,oversubscription=4"),
    "routing": (str, "with --on: ecmp, spray or first (default: ecmp)"),
    "goal": (str, "file to write the schedule to, as GOAL text"),
}

OF_BUILD = ("kind", "name", "ranks")  # what every algorithm is given: no options of its own
MOST_PIECES = 2**16
MOST_SENDS = 10**9  # a minute's worth, priced one by one
LARGEST_ALL_TO_ALL = 4096  # its schedules hold ranks² blocks


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", help="all_reduce, all_gather, broadcast, …")
    for name, (type_, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", help=text, type=type_, required=name == "ranks")
    parser.add_argument("--option", action="append", default=[], help="another, as NAME=NUMBER")


def run(args: argparse.Namespace) -> Result:
    """Price and print.

    Raises
    ------
    TokenlifeError
        If the collective, algorithm, options, sizes or links cannot be.
    """
    definition(args.kind)
    registry.check_group(args.ranks)
    if args.routing and not args.on:
        raise ScheduleError("--routing needs --on, a topology")
    size, links, options = _size(args), _links(args), _options(args)
    if args.kind == "all_to_all" and args.ranks > LARGEST_ALL_TO_ALL:
        raise ScheduleError(f"an all_to_all has at most {LARGEST_ALL_TO_ALL:,} ranks here")
    if args.algorithm is None:
        return _compare(args, size, links, options)
    chosen = algorithm(args.kind, args.algorithm)
    schedule = build(args.kind, args.algorithm, args.ranks, **_node(args, chosen) | options)
    if args.on:
        return _simulated(args, schedule, size, links)
    cost = _priced(schedule, size, links)
    if args.goal is not None:
        with atomic_write(args.goal, ScheduleError) as file:
            file.write(f"{goal_text(schedule, size, 1, links.gamma_s_per_B)}\n".encode())
    data = _row(args, schedule, size, cost.time_s)
    sent = data["bytes_sent_per_rank"] = cost.sent_bytes[: args.ranks].tolist()
    bound = float(lower_bound(args.kind, args.ranks, size).sent_bytes)
    lines = [
        f"{_head(args, size)} by {args.algorithm}",
        f"  {algorithm(args.kind, args.algorithm).says}",
        f"rounds              {data['rounds']:,}, through {data['ports']} port(s) of that rate",
        f"busiest rank sends  {max(sent):,} bytes (least possible: {bound:,.0f})",
        f"all ranks send      {sum(sent):,} bytes",
        f"time                {format_time(data['time_s'], 4)}",
        f"algbw, busbw        {_rate(data['algbw_Bps'])}, {_rate(data['busbw_Bps'])}",
    ]
    return Result(data, "\n".join(lines))


def _compare(args, size: int, links, options: dict) -> Result:
    """Price every algorithm that works for so many ranks; each takes the options that it knows."""
    if args.on or args.routing:
        raise ScheduleError("--on simulates one schedule: name its --algorithm")
    if args.goal is not None:
        raise ScheduleError("--goal writes one schedule: name its --algorithm")
    root = {k: v for k, v in options.items() if k == "root" and definition(args.kind).rooted}
    every = algorithms(args.kind)
    if strange := sorted(set(options) - {k for a in every for k in a.options} - set(root)):
        raise ScheduleError(f"no algorithm for {args.kind} has an option {strange[0]!r}")
    asked = {
        a.name: a.options | _node(args, a) | {k: v for k, v in options.items() if k in a.options}
        for a in every
    }
    able = [a for a in every if a.supports(args.ranks, **asked[a.name])]
    if idle := sorted(set(options) - {k for a in able for k in a.options} - set(root)):
        wish = f"{idle[0]}={options[idle[0]]}"
        raise ScheduleError(f"no {args.kind} works for {args.ranks} ranks with {wish}")
    rows = []
    for each in able:
        # A free length of a torus is 0 among its defaults, which nobody may ask for.
        mine = {k: v for k, v in asked[each.name].items() if v != each.options[k]}
        schedule = build(args.kind, each.name, args.ranks, **mine, **root)
        if isinstance(links, Tiers):
            time_s = _priced(schedule, size, links).time_s
        else:
            time_s = float(links.terms_s(each.terms(args.ranks, 1.0 * size, **asked[each.name])))
        rows.append(_row(args, schedule, size, time_s))
    rows.sort(key=lambda row: row["time_s"])
    lines = [
        f"{row['algorithm']:<28}{row['rounds']:>9,} rounds{row['ports']:>5} port(s)"
        f"{format_time(row['time_s'], 4):>12}{_rate(row['busbw_Bps']):>14} busbw"
        for row in rows
    ]
    data = {"kind": args.kind, "ranks": args.ranks, "bytes": size, "algorithms": rows}
    return Result(
        data, "\n".join([f"{_head(args, size)}, fastest first; each port at the full rate", *lines])
    )


def _simulated(args, schedule: Schedule, size: int, links) -> Result:
    """Simulate the flows of a schedule; latency is paid once for a message."""
    if args.goal is not None:
        raise ScheduleError("--goal writes a schedule, whatever the topology: leave out --on")
    if isinstance(links, Tiers) or links.gamma_s_per_B:
        raise ScheduleError("--on takes --alpha and --bandwidth; nodes are in the topology")
    if not links.beta_s_per_B:
        raise ScheduleError("--on needs links with a rate: --beta must be more than zero")
    if not size:
        raise ScheduleError("--on simulates bytes, and a barrier has none")
    fabric = parse_topology(args.on, args.ranks, 8 / links.beta_s_per_B)
    how = args.routing or "ecmp"
    outcome = simulate(schedule, size, 1, fabric, how=how, alpha_s=links.alpha_s)
    busiest = float(outcome.utilisation(fabric).max())
    data = _row(args, schedule, size, outcome.time_s) | {
        "topology": fabric.name,
        "hosts": fabric.hosts,
        "routing": how,
        "link_bytes": int(outcome.link_bytes.sum()),
        "busiest_link_utilisation": busiest,
    }
    lines = [
        f"{_head(args, size)} by {args.algorithm} on {fabric.name}, {how}",
        f"hosts, links        {fabric.hosts:,}, {fabric.links:,} one-way",
        f"all links carry     {data['link_bytes']:,} bytes",
        f"busiest link        {busiest:.1%} of the time",
        f"time                {format_time(data['time_s'], 4)}",
        f"algbw, busbw        {_rate(data['algbw_Bps'])}, {_rate(data['busbw_Bps'])}",
    ]
    return Result(data, "\n".join(lines))


def _head(args, size: int) -> str:
    return f"modelled: {args.kind}, ranks: {args.ranks}, {format_bytes(size)} each"


def _row(args, schedule: Schedule, size: int, time_s: float) -> dict:
    # What takes no time has no bandwidth either.
    bandwidth = float(algbw_Bps(size, time_s)) if time_s else None
    bus = float(busbw_Bps(args.kind, args.ranks, size, time_s)) if time_s else None
    row = {"kind": args.kind, "algorithm": schedule.algorithm, "ranks": args.ranks, "bytes": size}
    row |= {"rounds": len(schedule.rounds), "ports": schedule.ports, "time_s": time_s}
    return row | {"algbw_Bps": bandwidth, "busbw_Bps": bus, "label": "modelled"}


def _size(args) -> int:
    if args.kind == "barrier":
        return 0
    if args.bytes is None:
        raise ScheduleError("--bytes is missing; write it like --bytes 4MiB")
    if (size := parse_bytes(args.bytes)) < 1:
        raise ScheduleError(f"--bytes must be at least 1, not {size}")
    # All that the ranks send, twice the buffer for each of them, is counted in 64 bits.
    if size >= (most := 2**61 // args.ranks):
        raise ScheduleError(f"--bytes must be below {format_bytes(most)} for {args.ranks:,} ranks")
    return size


def _links(args) -> Hockney | Tiers:
    if args.beta and args.bandwidth:
        raise ScheduleError("--beta and --bandwidth say the same: give one")
    beta = parse_time(args.beta) if args.beta else _beta(args.bandwidth or "400Gbps")
    links = Hockney(parse_time(args.alpha or "2us"), beta, parse_time(args.gamma or "0"))
    if args.node_size is None:
        if args.node_alpha or args.node_bandwidth:
            raise ScheduleError("--node-alpha and --node-bandwidth need --node-size")
        return links
    alpha = parse_time(args.node_alpha) if args.node_alpha else links.alpha_s
    inner = _beta(args.node_bandwidth) if args.node_bandwidth else beta
    return Tiers(Hockney(alpha, inner, links.gamma_s_per_B), links, args.node_size)


def _beta(text: str) -> float:
    if not (rate_bps := parse_rate(text)) > 0:
        raise ScheduleError(f"a bandwidth must be more than zero, not {text}")
    return 8 / rate_bps


def _options(args) -> dict[str, int]:
    options = {k: getattr(args, k) for k in ("root", "pieces") if getattr(args, k) is not None}
    for text in args.option:
        name, _, value = text.partition("=")
        if not (value.isascii() and value.isdigit()):
            raise ScheduleError(f"cannot read --option {text!r}; write it like --option fan=4")
        if name in OF_BUILD:
            raise ScheduleError(f"--option {text}: {name} is no option of an algorithm")
        if name in options:
            raise ScheduleError(f"{name} is given twice")
        options[name] = int(value)
    for name, value in options.items():
        least, most = name != "root", MOST_PIECES if name == "pieces" else registry.LARGEST_GROUP
        if value < least:
            raise ScheduleError(f"{name} must be at least {least:d}, not {value}")
        if value > most:
            raise ScheduleError(f"{name} must be at most {most:,}, not {value}")
    return options


def _node(args, each: registry.Algorithm) -> dict[str, int]:
    """Return the ranks in a node for an algorithm that asks: those of the links."""
    return {"node": args.node_size} if args.node_size and "node" in each.options else {}


def _priced(schedule: Schedule, size: int, links):
    sends = len(schedule.rounds) * schedule.nodes
    if sends > MOST_SENDS:
        raise ScheduleError(
            f"{schedule.algorithm} over {schedule.ranks:,} ranks is up to {sends:,} sends, too "
            "many to price one by one; take fewer ranks, or neither --algorithm nor --node-size"
        )
    return price(schedule, size, 1, links)


def _rate(rate_Bps: float | None) -> str:
    return "-" if rate_Bps is None else f"{format_bytes(rate_Bps)}/s"
