"""``tokenlife model``: what a model is made of, and what it costs."""

import argparse

from tokenlife.cli import Result
from tokenlife.costs import (
    active_parameters,
    count_parameters,
    forward_flops,
    mtp_parameters,
    parameters_by_part,
    training_flops,
)
from tokenlife.costs.activations import activation_bytes
from tokenlife.costs.memory import RECIPES, bytes_of, kv_bytes_per_token, state_bytes
from tokenlife.costs.operations import check_batch
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_flops

HELP = "count a model: parameters, FLOPs, memory, key-value cache"
LENGTH = 2048  # tokens of a sequence where none is named and the model has so many positions


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", help="a name in data/models/, or a path to a config.json")
    parser.add_argument(
        "--seq", type=int, metavar="S",
        help=f"tokens in a sequence (default: the model's positions, at most {LENGTH})",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="sequences (default: 1)")
    parser.add_argument("--dtype", default="bf16", help="fp32, bf16, fp16 or fp8 (default: bf16)")
    parser.add_argument(
        "--attention", choices=("naive", "sdpa"), default="naive",
        help="how attention keeps what backward needs (default: naive)",
    )  # fmt: skip
    parser.add_argument(
        "--recompute", choices=("none", "selective", "full"), default="none",
        help="what is computed again instead of kept (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--causal", action="store_true", help="count only keys a query may look at, not the square"
    )


def run(args: argparse.Namespace) -> Result:
    """Count and print.

    Raises
    ------
    TokenlifeError
        If the model is unknown or its config bad, or the batch or type cannot be.
    """
    config = ModelConfig.load(args.model)
    length = min(config.positions, LENGTH) if args.seq is None else args.seq
    width = bytes_of(args.dtype)
    check_batch(config, args.batch, length)
    step = training_flops(config, args.batch, length, args.causal, args.recompute)
    kept = activation_bytes(config, args.batch, length, width, args.attention, args.recompute)
    data = {
        "model": config.name,
        "family": config.family,
        "attention": config.attention.kind,
        "sequences": args.batch,
        "length": length,
        "dtype": args.dtype,
        "parameters": count_parameters(config),
        "active_parameters": active_parameters(config),
        "parameters_by_part": parameters_by_part(config),
        "mtp_parameters": mtp_parameters(config),
        "weight_bytes": count_parameters(config) * width,
        "state_bytes": {name: sum(state_bytes(config, name).values()) for name in RECIPES},
        "kv_bytes_per_token": kv_bytes_per_token(config, width),
        "forward_flops": forward_flops(config, args.batch, length, args.causal),
        "training_flops": step.total,
        "recomputed_flops": step.recomputed,
        "activation_bytes": kept,
        "attention_path": args.attention,
        "recompute": args.recompute,
        "causal": args.causal,
        "label": "modelled",
    }
    return Result(data, _text(data))


def _text(data: dict) -> str:
    parts = [(f"  {name}", f"{n:,}") for name, n in data["parameters_by_part"].items() if n]
    rows = [
        ("parameters", f"{data['parameters']:,}"),
        *parts,
        ("active for a token", f"{data['active_parameters']:,}"),
    ]
    if data["mtp_parameters"]:
        rows.append(("beside it, for later tokens", f"{data['mtp_parameters']:,}"))
    rows += [
        (f"weights in {data['dtype']}", format_bytes(data["weight_bytes"])),
        ("with Adam, mixed precision", format_bytes(data["state_bytes"]["mixed"])),
        ("key-value cache per token", format_bytes(data["kv_bytes_per_token"])),
        ("forward", format_flops(data["forward_flops"])),
        ("forward and backward", format_flops(data["training_flops"])),
        ("activations kept", format_bytes(data["activation_bytes"])),
    ]
    head = (
        f"{data['model']} ({data['family']}, {data['attention']}), "
        f"{data['sequences']} x {data['length']} tokens"
    )
    path = f"attention {data['attention_path']}, recompute {data['recompute']}"
    square = "causal pairs only" if data["causal"] else "the whole square of scores counted"
    width = max(len(name) for name, _ in rows)
    wide = max(len(value) for _, value in rows)
    body = "\n".join(f"{name:<{width}}  {value:>{wide}}" for name, value in rows)
    return f"{head}\n\n{body}\n\n{path}, {square}; all modelled"
