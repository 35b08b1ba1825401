"""``tokenlife trace``: the whole ledger of one job, trained or served."""

import argparse
from pathlib import Path

from tokenlife.cli import Result
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.trace import Trace, TraceError, trace
from tokenlife.parallel import Plan
from tokenlife.units import format_bits, format_bytes, format_time
from tokenlife.wire.stack import TRANSPORTS

HELP = "follow words through one training step, or a served model: every level from text to bits"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "text", nargs="?", help="what each sequence holds (default: the running sentence)"
    )
    parser.add_argument("--model", help="a named model, or a path to a config.json")
    parser.add_argument("--vocabulary", help="default: the one that goes with the model")
    parser.add_argument("--plan", help="the layout, like dp=2 or dp=2,tp=4,zero=1,sequence=1024")
    parser.add_argument("--cluster", help="a name, or a path to a TOML file")
    parser.add_argument("--link", help="of each rank to one switch, in data/hardware/links.toml")
    parser.add_argument("--transport", choices=TRANSPORTS, help="default: the network's own")
    parser.add_argument("--mtu", type=int, help="IP packet of tcp, path MTU of rocev2 and ib")
    parser.add_argument(
        "--algorithm", action="append", default=[], metavar="KIND=NAME",
        help="like all_reduce=recursive_doubling; may be repeated",
    )  # fmt: skip
    parser.add_argument("--serve", action="store_true", help="the model answers; no training")
    parser.add_argument("--new", type=int, metavar="N", help="tokens to write for each request")
    parser.add_argument(
        "--move-cache", action="store_true", help="another machine writes: the cache follows"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page that stands alone")


def run(args: argparse.Namespace) -> Result:
    """Trace and print."""
    if not args.serve and (args.new is not None or args.move_cache):
        raise TraceError("--new and --move-cache are for a served model; give --serve too")
    job = trace(
        args.text,
        model=args.model,
        plan=Plan.parse(args.plan) if args.plan else None,
        vocabulary=args.vocabulary,
        link=args.link,
        mtu=args.mtu,
        transport=args.transport,
        cluster=args.cluster,
        algorithms=_algorithms(args.algorithm),
        new=(16 if args.new is None else args.new) if args.serve else None,
        moved=args.move_cache,
    )
    data = job.to_dict()
    if args.html:
        from tokenlife.charts.bill import page  # with Altair, which no other command waits for

        try:
            Path(args.html).write_text(page(data), encoding="utf-8")
        except OSError as error:
            raise TokenlifeError(f"cannot write {args.html}: {error.strerror or error}") from error
    return Result(data, _text(job, data))


def _algorithms(given: list[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    if bad := [one for one, (kind, _, name) in zip(given, pairs, strict=True)
               if not (kind and name)]:  # fmt: skip
        raise TraceError(f"cannot read --algorithm {bad[0]!r}; write it like all_reduce=ring")
    return {kind.strip(): name.strip() for kind, _, name in pairs}


def _text(job: Trace, data: dict) -> str:
    encoding, serve = job.encoding, job.serve
    lines = [
        f"{encoding.text!r}: {encoding.n_tokens} tokens of {encoding.vocabulary}, "
        f"{job.config.name}, {job.plan.world:,} ranks: {job.plan}"
    ]
    if serve:
        lines += [f"served: prompts of {serve.prompt:,}, {serve.new:,} tokens written for each"]
    lines += ["", str(job.ledger), "", f"{'axis':6}{'messages':>10}{'in nodes':>10}{'wire':>10}"
              f"{'out of cards, a token':>24}"]  # fmt: skip
    for axis, sums in data["per_axis"].items():
        sizes = "".join(f"{format_bytes(sums[n]):>10}" for n in ("messages", "in_node", "bits"))
        lines.append(f"{axis:6}{sizes}{format_bits(sums['card_bits_per_token']):>24}")
    what = "served" if serve else "trained on"
    foot = (
        f"per token {what}: {format_bits(job.wire_bits_per_token)} on all links, "
        f"{format_bits(data['card_bits_per_token'])} out of network cards "
        f"({job.tokens_per_step:,} tokens{'' if serve else ' a step'})"
    )
    if job.communication_s is not None:
        foot += f", {format_time(job.communication_s)} of network"
    return "\n".join([*lines, f"{foot}; all modelled"])
