"""What a job puts on the network: totals, matrices, many plans at once, and the command."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_parallel import MIXTURE, SMALL, jobs
from tokenlife.cli import main
from tokenlife.collectives import build
from tokenlife.jobs.traffic import ALGORITHMS, AXES, matrix, rows, sweep, wire_bytes
from tokenlife.parallel import Plan, Plans, communication
from tokenlife.parallel.memory import memory
from tokenlife.transformer import ModelConfig
from tokenlife.wire import tcp_over_ethernet


def payload(op, rank) -> int:
    """What a rank sends for an op, read off the schedule of its algorithm."""
    if op.kind == "send":
        return op.bytes_ * op.count
    schedule = build(op.kind, ALGORITHMS[op.kind], len(op.group))
    sent = schedule.bytes_sent_per_rank(op.items, op.item_bytes)
    return int(sent[op.group.index(rank)]) * op.count


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_totals_are_the_sum_of_the_ops_of_all_ranks(job):
    config, plan = job
    table = sweep(config, plan).iloc[0]
    sums = dict.fromkeys(AXES, 0)
    most = dict.fromkeys(AXES, 0)
    for rank in range(plan.world):
        mine = dict.fromkeys(AXES, 0)
        for op in communication(config, plan, rank):
            mine[op.axis] += payload(op, rank)
        for axis in AXES:
            sums[axis] += mine[axis]
            most[axis] = max(most[axis], mine[axis])
    for axis in AXES:
        # Closed forms cut a buffer into equal parts; schedules between whole numbers.
        assert table[axis] * plan.world == pytest.approx(sums[axis], rel=2e-3), axis
        assert table[f"{axis}_busiest"] == pytest.approx(most[axis], rel=1e-2), axis


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_the_matrix_holds_every_byte_of_the_ops(job):
    config, plan = job
    pairs = matrix(config, plan)
    assert (pairs["src"] != pairs["dst"]).all() and (pairs["bytes"] > 0).all()
    for axis in AXES:
        sent = pairs[pairs["axis"] == axis].groupby("src")["bytes"].sum()
        for rank in range(plan.world):
            ops = communication(config, plan, rank, axis)
            assert sent.get(rank, 0) == sum(payload(op, rank) for op in ops)


@settings(max_examples=25, deadline=None)
@given(jobs())
def test_what_goes_out_comes_in(job):
    config, plan = job
    pairs = matrix(config, plan)
    square = np.zeros((plan.world, plan.world))
    for axis in ("tp", "ep", "dp"):  # collectives: every member sends as much as it receives
        chosen = pairs[pairs["axis"] == axis]
        square[:] = 0
        np.add.at(square, (chosen["src"], chosen["dst"]), chosen["bytes"])
        assert square.sum(0) == pytest.approx(square.sum(1), rel=1e-2)


@settings(max_examples=40, deadline=None)
@given(st.lists(jobs(), min_size=1, max_size=6))
def test_many_plans_are_priced_as_each_alone(found):
    config, first = found[0]
    names = ("recompute", "schedule", "cp_method")
    same = {name: getattr(first, name) for name in names}
    each = [replace(plan, **same, ep=1) for _, plan in found]
    columns = {
        name: [getattr(plan, name) for plan in each]
        for name in ("dp", "tp", "pp", "cp", "zero", "micro_batch", "global_batch",
                     "bucket_bytes", "sequence_parallel")
    }  # fmt: skip
    many = sweep(config, Plans(**columns, **same, sequence=32))
    for i, plan in enumerate(each):
        assert many.iloc[i].to_dict() == sweep(config, plan).iloc[0].to_dict()
        held = [memory(config, plan, stage) for stage in range(plan.pp)]
        fullest = max(held, key=lambda one: one["total"])
        assert many["total"].iloc[i] == fullest["total"]
        assert many["weights"].iloc[i] in [one["weights"] for one in held]


def test_ops_that_are_equal_on_several_stages_are_one_row():
    plan = Plan(pp=3, dp=2, sequence=32, global_batch=8)
    found = rows(SMALL, plan)
    sends = {row.demand.phase: row.stages for row in found if row.demand.axis == "pp"}
    assert sends == {"forward": (0, 1), "backward": (1, 2)}
    sums = [row for row in found if row.demand.axis == "dp"]
    assert [row.stages for row in sums] == [(0,), (1,), (2,)]


def test_wire_bytes_are_payload_and_its_frames():
    plan = Plan(dp=2, sequence=32, recipe="float32")
    (row,) = rows(SMALL, plan)
    packets = tcp_over_ethernet(1500)
    half = -(-row.demand.bytes_ // 2)
    assert row.rounds == 2 and row.sent_bytes == row.demand.bytes_
    assert wire_bytes((row,), plan, packets) == 2 * 2 * packets.frame(half).wire_bytes


def test_no_parallelism_no_traffic():
    plan = Plan(sequence=32)
    assert rows(SMALL, plan) == () and matrix(SMALL, plan).empty
    assert sweep(SMALL, plan)[list(AXES)].to_numpy().sum() == 0


# ---- the command --------------------------------------------------------------------------


def traffic(capsys, *arguments: str) -> dict:
    assert main(["traffic", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_says_what_scripts_rely_on(capsys, tmp_path):
    path = tmp_path / "matrix.csv"
    data = traffic(
        capsys, "llama-3.1-8b", "--gpus", "16", "--tp", "4", "--pp", "2", "--zero", "1",
        "--seq", "1024", "--global-batch", "8", "--micro-batch", "2", "--sequence-parallel",
        "--schedule", "1f1b", "--recompute", "selective", "--matrix", str(path),
    )  # fmt: skip
    assert {"axis", "kind", "group_size", "bytes", "count", "phase"} <= set(data["ops"][0])
    assert data["tokens_per_step"] == 8 * 1024
    assert data["memory_bytes_per_gpu"]["total"] == sum(
        bytes_ for kind, bytes_ in data["memory_bytes_per_gpu"].items() if kind != "total"
    )
    lines = path.read_text().splitlines()
    assert lines[0] == "axis,phase,src,dst,bytes"
    total = sum(int(line.split(",")[-1]) for line in lines[1:])
    sent = sum(sums["bytes_per_gpu_per_step"] for sums in data["per_axis"].values()) * 16
    assert total == pytest.approx(sent, rel=1e-6)
    assert data["wire_bytes_per_token"] == pytest.approx(total / 8192, rel=0.02)
    assert data["wire_bytes_per_token"] > total / 8192


def test_the_command_prints_a_table_and_warns(capsys):
    arguments = ["llama-3.1-405b", "--gpus", "16384", "--tp", "8", "--pp", "16", "--seq", "8192"]
    arguments += ["--global-batch", "2048", "--accelerator", "h100-sxm"]
    assert main(["traffic", *arguments]) == 0
    text = capsys.readouterr().out
    assert "all_reduce" in text and "uneven stages, layers: 8 8" in text and "modelled" in text
    held = sweep(
        ModelConfig.load("llama-3.1-405b"),
        Plan(dp=128, tp=8, pp=16, sequence=8192, global_batch=2048),
    )["total"].iloc[0]
    assert f"warning: {held / 1e9:.0f} GB on the fullest GPU: " in text
    assert "more than h100-sxm's 85.9 GB" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("gpt2 --gpus 4 --tp 2", "vocabulary padded to 50258"),
        ("gpt2 --gpus 4 --dp 3", "= 3 ranks, but there are 4 GPUs"),
        ("gpt2 --gpus 4 --tp 3", "tp × pp × cp = 3 ranks do not divide 4 GPUs"),
        ("gpt2 --gpus 0", "dp must be a whole number above 0"),
        ("gpt2 --gpus 2 --seq 9999", "outside gpt2's 1 to 1024"),
        ("gpt2 --gpus 2 --accelerator abacus", "no accelerator 'abacus'"),
        ("gpt2 --gpus 2 --plan zz=1", "no axis 'zz'"),
        ("gpt2 --gpus 2 --mtu 5", "an MTU of 5"),
        ("gpt2 --gpus 2 --matrix no/such/folder/x.csv", "cannot write no/such/folder/x.csv"),
        ("mixtral-8x7b --gpus 6 --ep 3", "does not divide the 8 experts"),
    ],
)
def test_bad_input_gets_one_line(capsys, arguments, says):
    assert main(["traffic", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_mixtures_go_through_the_command(capsys):
    data = traffic(capsys, "mixtral-8x7b", "--gpus", "8", "--ep", "8", "--seq", "512")
    kinds = {op["kind"] for op in data["ops"] if op["axis"] == "ep"}
    assert kinds == {"all_to_all"} and data["per_axis"]["ep"]["bytes_per_gpu_per_step"] > 0
    assert MIXTURE.moe.experts == 4
