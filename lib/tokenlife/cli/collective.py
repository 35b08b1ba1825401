"""``tokenlife collective``: what one collective sends, and how long it takes."""

import argparse
from dataclasses import replace
from pathlib import Path

from tokenlife.cli import Result
from tokenlife.collectives import ScheduleError, algorithm, algorithms, build, definition
from tokenlife.collectives.bounds import algbw_Bps, busbw_Bps, lower_bound
from tokenlife.collectives.cost import Hockney, Tiers, price, price_grid
from tokenlife.files import atomic_write
from tokenlife.interop.goal import goal_text
from tokenlife.units import (
    UnitError,
    format_bytes,
    format_time,
    parse_bytes,
    parse_rate,
    parse_time,
)

HELP = "price a collective: rounds, bytes that each rank sends, time, bandwidth"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", help="all_reduce, all_gather, broadcast, …")
    parser.add_argument("--algorithm", metavar="NAME", help="default: all, the fastest first")
    parser.add_argument("--ranks", type=int, required=True, metavar="N")
    parser.add_argument(
        "--bytes", metavar="S", help="the whole buffer of one rank, as nccl-tests count: 4MiB"
    )
    parser.add_argument("--item-bytes", type=int, default=1, metavar="B", help="(default: 1)")
    parser.add_argument("--alpha", default="2us", help="latency of a message (default: 2us)")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--beta", help="seconds for a byte, like 2e-11")
    rate.add_argument("--bandwidth", default="400Gbps", help="of a port (default: 400Gbps)")
    parser.add_argument("--gamma", default="0", help="seconds to add a byte (default: 0)")
    parser.add_argument(
        "--node-size", type=int, metavar="K",
        help="ranks in a node; --alpha and the rate then hold between nodes",
    )  # fmt: skip
    parser.add_argument("--node-alpha", metavar="ALPHA", help="inside a node (default: --alpha)")
    parser.add_argument("--node-bandwidth", metavar="RATE", help="inside a node")
    parser.add_argument("--root", type=int, help="of a rooted collective (default: 0)")
    parser.add_argument("--pieces", type=int, help="chunks of a pipelined algorithm")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--goal", metavar="FILE", help="write the schedule as GOAL text")


def run(args: argparse.Namespace) -> Result:
    """Price and print.

    Raises
    ------
    TokenlifeError
        If the collective, algorithm, options, sizes or links cannot be.
    """
    definition(args.kind)
    items, links = _items(args), _links(args)
    options = _options(args)
    if args.algorithm is None:
        if args.goal:
            raise ScheduleError("--goal writes one schedule: name its --algorithm")
        return _compare(args, items, links, options)
    schedule = build(args.kind, args.algorithm, args.ranks, **options)
    cost = price(schedule, items, args.item_bytes, links)
    size = items * args.item_bytes
    if args.goal:
        with atomic_write(Path(args.goal), ScheduleError) as file:
            file.write(goal_text(schedule, items, args.item_bytes, links.gamma_s_per_B).encode())
    data = _row(args.kind, args.algorithm, args.ranks, size, len(schedule.rounds), cost.time_s) | {
        "bytes_sent_per_rank": cost.sent_bytes[: args.ranks].tolist(),
        "label": "modelled",
    }
    busiest = max(data["bytes_sent_per_rank"])
    total = sum(data["bytes_sent_per_rank"])
    bound = float(lower_bound(args.kind, args.ranks, size).sent_bytes)
    lines = [
        f"{args.kind} by {args.algorithm}, {args.ranks} ranks, {format_bytes(size)} each: modelled",
        "",
        f"rounds               {data['rounds']:,}",
        f"busiest rank sends   {busiest:,} bytes (least possible: {bound:,.0f})",
        f"all ranks send       {total:,} bytes",
        f"time                 {format_time(data['time_s'], 4)}",
        f"algorithm bandwidth  {_rate(data['algbw_Bps'])}",
        f"bus bandwidth        {_rate(data['busbw_Bps'])}",
        "",
        algorithm(args.kind, args.algorithm).says,
    ]
    return Result(data, "\n".join(lines))


def _compare(args, items: int, links, options: dict) -> Result:
    """Price every algorithm that works for so many ranks."""
    takes = {name for a in algorithms(args.kind) for name in a.options}
    if definition(args.kind).rooted:
        takes.add("root")
    for name, value in options.items():
        if name not in takes:
            raise ScheduleError(f"no {args.kind} has an option {name!r}; some take {sorted(takes)}")
        if not (0 <= value < args.ranks if name == "root" else value > 0):
            raise ScheduleError(f"{name} cannot be {value} with {args.ranks} ranks")
    able = [
        replace(a, options={k: options.get(k, v) for k, v in a.options.items()})
        for a in algorithms(args.kind)
    ]
    able = [a for a in able if args.ranks > 0 and a.supports(args.ranks, **a.options)]
    if not able:
        raise ScheduleError(f"no algorithm for {args.kind} works for {args.ranks} ranks")
    size = items * args.item_bytes
    if isinstance(links, Tiers):
        root = {"root": options.get("root", 0)} if definition(args.kind).rooted else {}
        built = [(a, build(args.kind, a.name, args.ranks, **a.options, **root)) for a in able]
        priced = [
            (a.name, len(s.rounds), price(s, items, args.item_bytes, links).time_s)
            for a, s in built
        ]
    else:
        grid = price_grid(args.kind, [args.ranks], [size], links, able)
        priced = zip(grid.algorithm, grid.rounds, grid.time_s, strict=True)
    rows = [_row(args.kind, name, args.ranks, size, int(r), float(t)) for name, r, t in priced]
    rows.sort(key=lambda row: row["time_s"])
    head = f"{args.kind}, {args.ranks} ranks, {format_bytes(size)} each: modelled, fastest first"
    lines = [
        f"{r['algorithm']:<28}{r['rounds']:>8,} rounds{format_time(r['time_s'], 4):>12}"
        f"{_rate(r['busbw_Bps']):>14} busbw"
        for r in rows
    ]
    data = {"kind": args.kind, "ranks": args.ranks, "bytes": size, "algorithms": rows}
    return Result(data | {"label": "modelled"}, "\n".join([head, "", *lines]))


def _row(kind: str, name: str, ranks: int, size: int, rounds: int, time_s: float) -> dict:
    row = {"kind": kind, "algorithm": name, "ranks": ranks, "bytes": size, "rounds": rounds}
    row["time_s"] = time_s
    # One rank takes no time: it has no bandwidth either.
    row["algbw_Bps"] = float(algbw_Bps(size, time_s)) if time_s else None
    row["busbw_Bps"] = float(busbw_Bps(kind, ranks, size, time_s)) if time_s else None
    return row


def _items(args) -> int:
    if args.kind == "barrier":
        return 0
    if args.bytes is None:
        raise ScheduleError("--bytes is missing; write it like --bytes 4MiB")
    size = parse_bytes(args.bytes)
    if size < 1:
        raise ScheduleError("--bytes must be at least 1")
    if args.item_bytes < 1 or size % args.item_bytes:
        raise ScheduleError(f"{size} bytes are no whole number of items of {args.item_bytes}")
    return size // args.item_bytes


def _links(args) -> Hockney | Tiers:
    gamma = _seconds("gamma", args.gamma)
    beta = _beta(args.bandwidth) if args.beta is None else _seconds("beta", args.beta)
    outer = Hockney(_latency("alpha", args.alpha), beta, gamma)
    if args.node_size is None:
        if args.node_alpha or args.node_bandwidth:
            raise ScheduleError("--node-alpha and --node-bandwidth need --node-size")
        return outer
    alpha = _latency("node-alpha", args.node_alpha) if args.node_alpha else outer.alpha_s
    inner = _beta(args.node_bandwidth) if args.node_bandwidth else beta
    return Tiers(Hockney(alpha, inner, gamma), outer, args.node_size)


def _latency(name: str, text: str) -> float:
    if text.strip().startswith("-"):
        raise ScheduleError(f"--{name} must be zero or more seconds, not {text}")
    return parse_time(text)


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnitError(f"cannot read --{name} {text!r}; write seconds, like 2e-11") from None


def _beta(text: str) -> float:
    rate = parse_rate(text)
    if rate <= 0:
        raise ScheduleError(f"a bandwidth must be more than zero, not {text}")
    return 8 / rate


def _options(args) -> dict[str, int]:
    options = {k: getattr(args, k) for k in ("root", "pieces") if getattr(args, k) is not None}
    for text in args.option:
        name, _, value = text.partition("=")
        if not value.lstrip("-").isdigit():
            raise ScheduleError(f"cannot read --option {text!r}; write it like arity=4")
        options[name] = int(value)
    return options


def _rate(rate_Bps: float | None) -> str:
    return "-" if rate_Bps is None else f"{format_bytes(rate_Bps)}/s"
