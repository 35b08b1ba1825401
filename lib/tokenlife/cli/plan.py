"""``tokenlife plan``: the best layouts of a training job on a cluster."""

import argparse

from tokenlife.cli import Result
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.search import explain, refuse, search, what_ifs
from tokenlife.jobs.step import PARTS, step
from tokenlife.parallel.memory import KINDS
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_time

HELP = "find the best layouts of a training job on a cluster, and what limits each"
LENGTH = 8192  # tokens of a sequence where none is named and the model has so many positions


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", help="a name in data/models/, or a path to a config.json")
    parser.add_argument("--cluster", required=True, help="a name, or a path to a TOML file")
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="of the whole job")
    parser.add_argument(
        "--global-batch", type=int, required=True, metavar="B", help="sequences in a step"
    )
    parser.add_argument("--seq", type=int, metavar="S", help="tokens in a sequence")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="plans shown (default: 5)")
    parser.add_argument("--price", type=float, metavar="P", help="of a GPU's hour")


def run(args: argparse.Namespace) -> Result:
    """Search, and print."""
    for name in ("global_batch", "top", "seq", "price"):
        value = getattr(args, name)
        if value is not None and not 0 < value < 2**40:
            raise TokenlifeError(f"--{name.replace('_', '-')} must be above 0, not {value}")
    config, cluster = ModelConfig.load(args.model), Cluster.load(args.cluster)
    sequence = args.seq or min(config.positions, LENGTH)
    found = search(config, cluster, args.gpus, args.global_batch, sequence)
    if not found.fitting:
        raise refuse(found, args.gpus)
    plans = [_plan(found, row, args.price) for row in range(min(args.top, found.fitting))]
    data = {
        "model": config.name,
        "cluster": cluster.name,
        "gpus": args.gpus,
        "global_batch": args.global_batch,
        "sequence": sequence,
        "n_considered": found.considered,
        "n_fitting": found.fitting,
        "plans": plans,
        "why": explain(found),
        "what_if": what_ifs(found).to_dict("records"),
        "label": "modelled",
    }
    return Result(data, _text(data))


def _plan(found, row: int, price: float | None) -> dict:
    plan = found.plan(row)
    best = step(found.config, plan, found.cluster)
    said = {
        "plan": str(plan),
        "step_time_s": best.time_s,
        "mfu": best.mfu,
        "memory_bytes_per_gpu": {kind: best.memory_bytes[kind] for kind in KINDS}
        | {"total": sum(best.memory_bytes.values())},
        "limit": str(found.table.limit[row]),
        "parts_s": {part: best.parts_s[part] for part in PARTS},
        "tokens_per_s": best.tokens_per_s,
    }
    if found.cluster.power_w:
        said["joules_per_token"] = best.joules_per_token
    if price is not None:
        said["cost_per_million_tokens"] = best.cost_per_million_tokens(price)
    return said


def _text(data: dict) -> str:
    lines = [
        f"{data['model']} on {data['gpus']:,} GPUs of {data['cluster']}, {data['global_batch']:,} "
        f"sequences of {data['sequence']:,} tokens a step (modelled)",
        f"{data['n_considered']:,} legal layouts, {data['n_fitting']:,} fit", "",
        f"{'step':>9} {'MFU':>6} {'memory':>9} {'limit':>8}  plan",
    ]  # fmt: skip
    shared = ("sequence=", "global_batch=", "balance=", "sequence_parallel=")
    for p in data["plans"]:
        plan = ", ".join(part for part in p["plan"].split(", ") if not part.startswith(shared))
        held = format_bytes(p["memory_bytes_per_gpu"]["total"])
        time = format_time(p["step_time_s"])
        lines.append(f"{time:>9} {p['mfu']:6.1%} {held:>9} {p['limit']:>8}  {plan}")
        if "cost_per_million_tokens" in p:
            lines[-1] += f"  ({p['cost_per_million_tokens']:.4g} a million tokens)"
    lines += ["", "Beside the first:", *(f"  {line}" for line in data["why"][1:]), ""]
    lines += ["If the network were another:"]
    lines += [f"  {w['network']}: {w['change']:+.1%} time" for w in data["what_if"][1:]]
    return "\n".join(lines)
