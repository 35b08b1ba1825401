"""The prepared GPU run: its code runs on the CPU, small; where there is no GPU it says so."""

import json
import math

import pytest
import torch
from tokenlife.costs import gpu_run
from tokenlife.costs.memory import state_bytes
from tokenlife.provenance import is_stale
from tokenlife.transformer import ModelConfig


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    assert gpu_run.main(["--cpu-smoke", "--folder", str(folder)]) == 0
    return json.loads((folder / "gpu-cpu.json").read_text())


def test_the_record_holds_what_the_chapters_show(record):
    assert not is_stale(record) and record["machine"]["torch"]
    values = record["values"]
    assert {"roofline", "equality", "inference", "training", "device"} <= set(values)
    cases = {(row["phase"], row["batch"], row["dtype"]) for row in values["inference"]}
    assert len(cases) == 2 * len(gpu_run.SMOKE.batches) * 2 == len(values["inference"])
    for row in values["inference"]:
        assert row["least_time_s"] > 0 and 0 < row["time_s"] < math.inf
        assert row["bytes"] > 0 and row["tokens_per_s"] > 0


def test_memory_by_kind_is_that_of_the_recipe(record):
    states = state_bytes(ModelConfig.load("running-gpt"), "float32")
    for trained in record["values"]["training"]:
        peak = trained["memory"]["peak_by_kind"]
        assert peak["weights"] == states["weights"]
        assert peak["optimiser"] >= states["moments"]
        assert trained["step_s"] > 0 and trained["mfu_measured_peak"] > 0


def test_a_device_that_computes_something_else_is_found(monkeypatch):
    whole = gpu_run.Decoder.to

    def wrong(self, *args, **kwargs):
        moved = whole(self, *args, **kwargs)
        moved.blocks[0].mlp.up.weight.data *= 1.5
        return moved

    monkeypatch.setattr(gpu_run.Decoder, "to", wrong)
    with pytest.raises(gpu_run.GpuRunError, match="running-gpt in float32: logits are off"):
        gpu_run.check_equality("running-gpt", "float32", torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line(capsys):
    assert gpu_run.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "no GPU" in captured.err
