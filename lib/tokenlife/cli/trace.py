"""``tokenlife trace``: the whole ledger of one training step."""

import argparse

from tokenlife.cli import Result
from tokenlife.jobs import trace
from tokenlife.parallel import Plan
from tokenlife.units import format_bits, format_time

HELP = "follow words through one training step: every level from text to bits"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "text", nargs="?", help="what each rank reads (default: the running sentence)"
    )
    parser.add_argument("--model", help="a named model, or a path to a config.json")
    parser.add_argument("--vocabulary", help="default: the one that goes with the model")
    parser.add_argument("--plan", help="the layout, like dp=2")
    parser.add_argument("--link", help="a link of data/hardware/links.toml")
    parser.add_argument("--mtu", type=int, help="largest IP packet in bytes, like 1500 or 9000")


def run(args: argparse.Namespace) -> Result:
    """Trace and print."""
    step = trace(
        args.text,
        model=args.model,
        plan=Plan.parse(args.plan) if args.plan else None,
        vocabulary=args.vocabulary,
        link=args.link,
        mtu=args.mtu,
    )
    head = (
        f"{step.encoding.text!r}: {step.encoding.n_tokens} tokens of {step.encoding.vocabulary}, "
        f"{step.config.name}, {step.plan.dp} data-parallel ranks"
    )
    foot = (
        f"per token trained on: {format_bits(step.wire_bits_per_token)} "
        f"({step.tokens_per_step} tokens a step), {format_time(step.communication_s)} of network; "
        f"all modelled"
    )
    return Result(step.to_dict(), f"{head}\n\n{step.ledger}\n{foot}")
