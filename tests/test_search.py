"""The search against brute force, its front, its words, and the command."""

import json
from itertools import product

import pytest
from tokenlife.cli import main
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.search import (
    MOST_CHUNKS,
    RECOMPUTE,
    SCHEDULES,
    SearchError,
    explain,
    pareto,
    refuse,
    search,
    what_ifs,
)  # fmt: skip
from tokenlife.jobs.step import step
from tokenlife.parallel import Plan, PlanError
from tokenlife.transformer import ModelConfig

CLUSTER = Cluster.load("dgx-h100")


def brute(config, gpus, batch, sequence):
    """Try every combination of small numbers one by one; let Plan itself refuse."""
    small = [d for d in range(1, gpus + 1) if gpus % d == 0]
    for tp, pp, cp, zero, micro, schedule, recompute, virtual in product(
        small, small, small, range(4), range(1, batch + 1), SCHEDULES, RECOMPUTE,
        range(1, MOST_CHUNKS + 1),
    ):  # fmt: skip
        if gpus % (tp * pp * cp) or (virtual > 1) != (schedule == "interleaved"):
            continue
        dp = gpus // (tp * pp * cp)
        if (pp == 1 and schedule != "1f1b") or (zero and dp * cp == 1):
            continue
        try:
            yield Plan(
                dp=dp, tp=tp, pp=pp, cp=cp, zero=zero, micro_batch=micro, schedule=schedule,
                recompute=recompute, virtual=virtual, sequence=sequence, global_batch=batch,
                balance=True, sequence_parallel=tp > 1,
            ).check(config)  # fmt: skip
        except PlanError:
            continue


@pytest.mark.parametrize(("gpus", "batch"), [(2, 4), (4, 4)])
def test_equal_to_brute_force(gpus, batch):
    config = ModelConfig.load("llama-3.2-1b")
    found = search(config, CLUSTER, gpus, batch, 1024)
    steps = [step(config, plan, CLUSTER) for plan in brute(config, gpus, batch, 1024)]
    assert found.considered == len(steps)
    fitting = [s for s in steps if sum(s.memory_bytes.values()) <= CLUSTER.memory_bytes]
    assert found.fitting == len(fitting)
    assert found.table.step_time_s.tolist() == pytest.approx(sorted(s.time_s for s in fitting))
    best = step(config, found.plan(0), CLUSTER)
    assert best.time_s == pytest.approx(min(s.time_s for s in fitting))


def test_front_and_words():
    found = search(ModelConfig.load("llama-3.1-8b"), CLUSTER, 64, 128, 4096)
    front = pareto(found.table)
    assert front.step_time_s.is_monotonic_increasing
    assert front.memory.is_monotonic_decreasing
    words = explain(found)
    assert all(isinstance(line, str) for line in words)
    assert any("% time" in line for line in words[1:])
    table = what_ifs(found).set_index("network").change
    assert table["twice the network card"] <= 0 <= table["half the network card"]


def test_a_model_that_fits_nowhere():
    found = search(ModelConfig.load("llama-3.1-405b"), CLUSTER, 8, 8, 2048)
    assert found.fitting == 0
    said = str(refuse(found, 8))
    assert "more than there is" in said
    assert "such GPUs would do" in said
    with pytest.raises(SearchError, match="ask for 1 to 2048"):
        search(ModelConfig.load("gpt2"), CLUSTER, 4096, 8, 1024)


def test_command(capsys):
    args = ["plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "64"]
    assert main([*args, "--json", "--price", "2"]) == 0
    data = json.loads(capsys.readouterr().out)
    keys = {"plan", "step_time_s", "mfu", "memory_bytes_per_gpu", "limit"}
    assert keys <= data["plans"][0].keys()
    assert data["n_considered"] >= data["n_fitting"] > 0
    times = [plan["step_time_s"] for plan in data["plans"]]
    assert times == sorted(times)
    assert main(args) == 0
    assert "If the network were another" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--cluster", "colossus-9"], "no cluster 'colossus-9'"),
        (["--gpus", "0"], "ask for 1 to 2048"),
        (["--global-batch", "0"], "--global-batch must be above 0"),
        (["--cluster", "missing.toml"], "cannot read the cluster file"),
        (["--seq", "9999"], "no layout"),
    ],
)  # fmt: skip
def test_command_refuses_in_one_line(change, says, capsys):
    args = ["plan", "gpt2", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "64"]
    assert main([*args, *change]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
