"""``tokenlife traffic``: what a training job puts on the network in one step."""

import argparse
from dataclasses import replace
from pathlib import Path

from tokenlife.catalog import read_accelerator
from tokenlife.cli import Result
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.traffic import matrix, rows, sweep, wire_bytes
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
    if not plan.sequence:
        length = min(config.positions, LENGTH)
        plan = replace(plan, sequence=length)
    found = rows(config, plan.check(config, args.gpus))
    table = sweep(config, plan).iloc[0]
    held = {kind: int(table[kind]) for kind in (*KINDS, "total")}
    tokens = plan.tokens_per_step
    data = {
        "model": config.name,
        "plan": str(plan),
        "gpus": plan.world,
        "tokens_per_step": tokens,
        "ops": [
            {
                "axis": row.demand.axis, "kind": row.demand.kind, "group": row.demand.over,
                "group_size": row.group_size, "bytes": row.demand.bytes_,
                "count": row.demand.count, "phase": row.demand.phase, "stages": list(row.stages),
                "sent_bytes": row.sent_bytes, "after": row.demand.after,
                "hides_behind": row.demand.hides_behind,
            }
            for row in found
        ],
        "per_axis": {
            axis: {
                "bytes_per_gpu_per_step": float(table[axis]),
                "bytes_busiest_gpu": float(table[f"{axis}_busiest"]),
                "bytes_per_token": float(table[axis]) * plan.world / tokens,
            }
            for axis in ("tp", "cp", "ep", "pp", "dp")
        },
        "wire_bytes_per_token": wire_bytes(found, plan, tcp_over_ethernet(args.mtu)) / tokens,
        "memory_bytes_per_gpu": held,
        "layers_per_stage": [
            int(layers.dense + layers.mixtures)
            for layers in (layers_on(config, plan, stage) for stage in range(plan.pp))
        ],
        "warnings": [],
        "label": "modelled",
    }  # fmt: skip
    if args.accelerator:
        room = read_accelerator(args.accelerator).get("memory_bytes", held["total"])
        if held["total"] > room:
            over = format_bytes(held["total"] - room)
            data["warnings"].append(
                f"{format_bytes(held['total'])} on the fullest GPU are {over} more than the "
                f"{format_bytes(room)} of {args.accelerator}"
            )
    if args.matrix:
        try:
            matrix(config, plan).to_csv(Path(args.matrix), index=False)
        except OSError as error:
            raise TokenlifeError(
                f"cannot write {args.matrix}: {error.strerror or error}"
            ) from error
    return Result(data, _text(data))


def _plan(args: argparse.Namespace) -> Plan:
    """Read the layout; what data parallelism is not told it takes of the GPUs left."""
    given = {
        {"seq": "sequence"}.get(name, name): value
        for name in (option.replace("-", "_") for option in (*SIZES, *CHOICES))
        if (value := getattr(args, name)) is not None
    }
    given |= {"sequence_parallel": 1} if args.sequence_parallel else {}
    if "dp" not in given and "dp=" not in args.plan:
        others = 1
        for axis in ("tp", "pp", "cp"):
            others *= max(1, given.get(axis, 1))
        if args.gpus % others:
            raise PlanError(f"tp × pp × cp = {others} ranks do not divide {args.gpus} GPUs")
        given["dp"] = args.gpus // others
    return Plan.parse(
        ",".join([*(f"{k}={v}" for k, v in given.items()), *filter(None, [args.plan])])
    )


def _text(data: dict) -> str:
    lines = [f"{data['model']} on {data['gpus']} GPUs: {data['plan']}", ""]
    lines.append(f"{'group':11} {'kind':14} {'ranks':>6} {'buffer':>9} {'times':>6}  phase, stages")
    for op in data["ops"]:
        first, *_, last = stages = op["stages"] * 2
        where = f"{first}" if len(stages) == 2 else f"{first} to {last}"
        lines.append(
            f"{op['group']:11} {op['kind']:14} {op['group_size']:6} {format_bytes(op['bytes']):>9} "
            f"{op['count']:6}  {op['phase']}, {where}"
        )
    lines += ["", "sent by a GPU in a step (mean; most), and by the job for each token"]
    lines += [
        f"{axis:4} {format_bytes(sums['bytes_per_gpu_per_step']):>9} "
        f"{format_bytes(sums['bytes_busiest_gpu']):>9} {format_bytes(sums['bytes_per_token']):>9}"
        for axis, sums in data["per_axis"].items()
    ]
    held = ", ".join(f"{k} {format_bytes(b)}" for k, b in data["memory_bytes_per_gpu"].items())
    lines += ["", f"on the fullest GPU: {held}"]
    if len(set(data["layers_per_stage"])) > 1:
        lines.append(f"uneven stages, layers: {' '.join(map(str, data['layers_per_stage']))}")
    lines += [f"warning: {warning}" for warning in data["warnings"]]
    per_token = format_bytes(data["wire_bytes_per_token"])
    return "\n".join([*lines, f"on the wire for each token: {per_token}; all modelled"])
