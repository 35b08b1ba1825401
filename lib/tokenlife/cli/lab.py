"""``tokenlife lab``: run a collective for real, counted and timed, beside the model."""

import argparse
import sys
import warnings

from tokenlife import lab
from tokenlife.cli import Result
from tokenlife.provenance import machine
from tokenlife.units import format_bytes, format_time, parse_bytes, parse_rate, parse_time

BUFFERS = 4  # that a rank holds at once: what it starts with, sends, receives, must end with
HELP = "run a collective for real on this machine: measured beside modelled"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", help="all_reduce, all_gather, broadcast, …")
    parser.add_argument("--ranks", type=int, required=True, help="processes")
    parser.add_argument("--bytes", required=True, help="the whole buffer of one rank: 4MiB")
    parser.add_argument("--algorithm", help="of our schedule, or forced upon MPI (default: ring)")
    parser.add_argument("--engine", default="ours", help="ours, gloo, mpi or nccl (default: ours)")
    parser.add_argument("--rate", help="of each link, like 100mbit (default: as fast as it goes)")
    parser.add_argument("--delay", help="one way between any two ranks, like 20ms")
    parser.add_argument("--mtu", type=int, default=1500, help="largest IP packet (default: 1500)")
    parser.add_argument("--offload", action="store_true", help="let the kernel join segments")
    parser.add_argument("--capture", metavar="DIR", help="folder for a capture of each rank")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs (default: 5)")


def run(args: argparse.Namespace) -> Result:
    """Run and print.

    Raises
    ------
    TokenlifeError
        If the wishes cannot be, or the run fails.
    """
    job = lab.Job(
        args.kind,
        parse_bytes(args.bytes),
        args.algorithm,
        args.engine,
        repeats=args.repeats,
        warmup=2,
        capture=args.capture or True,
    )
    rate = None if args.rate is None else parse_rate(args.rate)
    delay = None if args.delay is None else parse_time(args.delay)
    _fits(job.bytes_ * max(args.ranks, 1))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", lab.LabWarning)
        (done,) = lab.run(job, args.ranks, rate, delay, args.mtu, args.offload)
    notes = [str(each.message) for each in given if each.category is lab.LabWarning]
    if args.capture and done.place == "loopback":
        notes.append("no captures: on loopback no rank has an interface of its own")
    for note in notes:
        print(f"tokenlife: {note}", file=sys.stderr)
    return Result(done.to_dict(), _text(done))


def _fits(bytes_: int) -> None:
    """Refuse buffers that this machine cannot hold; it would stop with the job half done."""
    has = machine()["memory_bytes"]
    if has and BUFFERS * bytes_ > has:
        raise lab.LabError(
            f"the ranks' buffers need about {format_bytes(BUFFERS * bytes_)} of memory, "
            f"and this machine has {format_bytes(has)}: take fewer --bytes or --ranks"
        )


def _text(done: lab.Result) -> str:
    measured, modelled = done.measured, done.modelled
    head = (
        f"{done.job.kind} of {format_bytes(done.job.bytes_)} over {done.ranks} ranks by "
        f"{done.engine}, beside {done.algorithm}; {done.place}, MTU {done.mtu}"
    )
    rows = [("rank", "payload sent", "modelled", "on the wire", "modelled")]
    columns = [
        getattr(figures, name)
        for name in ("bytes_sent_per_rank", "wire_bytes_per_rank")
        for figures in (measured, modelled)
    ]
    rows += [(f"{r}", *(f"{v:,}" for v in row)) for r, row in enumerate(zip(*columns, strict=True))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    time = f"time {format_time(measured.time_s)} measured"
    if modelled.time_s is not None:
        error = modelled.time_s / measured.time_s - 1
        time += f", {format_time(modelled.time_s)} modelled ({error:+.1%})"
    names = {
        "library's own": done.overheads["library"],
        "retransmitted": done.overheads["retransmitted"],
        "acknowledgements": done.overheads["acknowledgements"],
    }
    notes = "; ".join(f"{name} {sum(values):,}" for name, values in names.items())
    return "\n".join([head, "", *table, "", time, f"over all ranks: {notes}"])
