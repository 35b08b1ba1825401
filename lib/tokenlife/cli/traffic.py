"""``tokenlife traffic``: what a training job puts on the network in one step."""

import argparse
import math
from dataclasses import replace
from pathlib import Path

from tokenlife.catalog import read_accelerator
from tokenlife.cli import Result
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.traffic import AXES, Row, matrix, rows, sweep, wire_bytes
from tokenlife.parallel import Plan, PlanError
from tokenlife.parallel.memory import KINDS
from tokenlife.parallel.plan import CP_METHODS, SCHEDULES
from tokenlife.parallel.shards import layers_on
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes
from tokenlife.wire import tcp_over_ethernet

HELP = "list what a training job sends in one step: by axis, by token, by pair of ranks"
LENGTH = 2048  # tokens of a sequence where none is named and the model has so many positions
SIZES = {
    "tp": "tensor parallelism", "pp": "pipeline stages",
    "dp": "data parallelism (default: the rest)",
    "cp": "context parallelism", "ep": "expert parallelism, inside tp x cp x dp",
    "zero": "what data parallelism shards: 0 to 3", "seq": "tokens in a sequence",
    "global-batch": "sequences in a step", "micro-batch": "sequences in one pass",
    "virtual": "model chunks on a pipeline stage",
}  # fmt: skip
CHOICES = {
    "schedule": SCHEDULES, "recompute": ("none", "selective", "full"), "cp-method": CP_METHODS,
}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", help="a name in data/models/, or a path to a config.json")
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="of the whole job")
    for name, says in SIZES.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=says)
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices)
    parser.add_argument("--sequence-parallel", action="store_true", help="with tensor parallelism")
    parser.add_argument("--plan", default="", help="anything else, like order=tp-cp-pp-dp,etp=1")
    parser.add_argument("--mtu", type=int, default=9000, help="largest IP packet (default: 9000)")
    parser.add_argument("--accelerator", help="warn if memory is over that of this GPU")
    parser.add_argument("--matrix", metavar="FILE.csv", help="write bytes from rank to rank here")


def run(args: argparse.Namespace) -> Result:
    """Count, and print."""
    config, plan = ModelConfig.load(args.model), _plan(args)
    plan = replace(plan, sequence=plan.sequence or min(config.positions, LENGTH))
    found = rows(config, plan.check(config, args.gpus))
    table, tokens = sweep(config, plan).iloc[0], plan.tokens_per_step
    data = {
        "model": config.name,
        "plan": str(plan),
        "gpus": plan.world,
        "tokens_per_step": tokens,
        "ops": [_op(row) for row in found],
        "per_axis": {
            axis: {
                "bytes_per_gpu_per_step": float(table[axis]),
                "bytes_busiest_gpu": float(table[f"{axis}_busiest"]),
                "bytes_per_token": float(table[axis]) * plan.world / tokens,
            }
            for axis in AXES
        },
        "wire_bytes_per_token": wire_bytes(found, plan, tcp_over_ethernet(args.mtu)) / tokens,
        "memory_bytes_per_gpu": {kind: int(table[kind]) for kind in (*KINDS, "total")},
        "layers_per_stage": [
            int(sum(layers_on(config, plan, stage)[:2])) for stage in range(plan.pp)
        ],
        "warnings": _warnings(args.accelerator, int(table["total"])),
        "label": "modelled",
    }
    if args.matrix:
        try:
            matrix(config, plan).to_csv(Path(args.matrix), index=False)
        except OSError as error:
            raise TokenlifeError(
                f"cannot write {args.matrix}: {error.strerror or error}"
            ) from error
    return Result(data, _text(data))


def _op(row: Row) -> dict:
    said = {name: getattr(row.demand, name) for name in ("axis", "kind", "count", "phase")}
    said |= {name: getattr(row.demand, name) for name in ("after", "hides_behind")}
    sizes = {"group_size": row.group_size, "bytes": row.demand.bytes_, "sent_bytes": row.sent_bytes}
    return said | sizes | {"group": row.demand.over, "stages": list(row.stages)}


def _warnings(accelerator: str | None, total: int) -> list[str]:
    """Say by how much memory is over that of an accelerator, if it is."""
    room = read_accelerator(accelerator).get("memory_bytes", total) if accelerator else total
    if total <= room:
        return []
    has, over = format_bytes(room), format_bytes(total - room)
    return [f"{format_bytes(total)} on the fullest GPU: {over} more than {accelerator}'s {has}"]


def _plan(args: argparse.Namespace) -> Plan:
    """Read the layout; what data parallelism is not told it takes of the GPUs left."""
    options = {option.replace("-", "_"): option for option in (*SIZES, *CHOICES)}
    given = {name: getattr(args, name) for name in options if getattr(args, name) is not None}
    given |= {"sequence_parallel": 1} if args.sequence_parallel else {}
    given |= {"sequence": given.pop("seq")} if "seq" in given else {}
    if "dp" not in given and "dp=" not in args.plan:
        others = math.prod(max(1, given.get(axis, 1)) for axis in ("tp", "pp", "cp"))
        if args.gpus % others:
            raise PlanError(f"tp × pp × cp = {others} ranks do not divide {args.gpus} GPUs")
        given["dp"] = args.gpus // others
    texts = [f"{name}={value}" for name, value in given.items()]
    return Plan.parse(",".join(filter(None, [*texts, args.plan])))


def _text(data: dict) -> str:
    lines = [f"{data['model']} on {data['gpus']} GPUs: {data['plan']}", ""]
    lines.append(f"{'group':11} {'kind':14} {'ranks':>6} {'buffer':>9} {'times':>6}  phase, stages")
    for op in data["ops"]:
        first, last = op["stages"][0], op["stages"][-1]
        lines.append(
            f"{op['group']:11} {op['kind']:14} {op['group_size']:6} {format_bytes(op['bytes']):>9} "
            f"{op['count']:6}  {op['phase']}, {first}{f' to {last}' if last != first else ''}"
        )
    lines += ["", "sent by a GPU in a step (mean; most), and by the job for each token"]
    for axis, sums in data["per_axis"].items():
        lines.append(f"{axis:4}" + "".join(f"{format_bytes(n):>10}" for n in sums.values()))
    held = ", ".join(f"{k} {format_bytes(b)}" for k, b in data["memory_bytes_per_gpu"].items())
    lines += ["", f"on the fullest GPU: {held}"]
    if len(set(data["layers_per_stage"])) > 1:
        lines.append(f"uneven stages, layers: {' '.join(map(str, data['layers_per_stage']))}")
    lines += [f"warning: {warning}" for warning in data["warnings"]]
    per_token = format_bytes(data["wire_bytes_per_token"])
    return "\n".join([*lines, f"on the wire for each token: {per_token}; all modelled"])
