"""Stages, the tensors between them, and the command that prints what a model costs."""

import json
from itertools import pairwise

import pytest
import torch
from small_configs import FAMILIES, small_config
from tokenlife import cli
from tokenlife.catalog import model_names
from tokenlife.costs import (
    active_parameters,
    count_parameters,
    forward_flops,
    forward_stages,
    training_flops,
)
from tokenlife.costs.memory import kv_bytes_per_token
from tokenlife.costs.stages import layer_table, stage_table
from tokenlife.transformer import ModelConfig


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_add_up_to_the_model(family):
    config = ModelConfig.from_hf(small_config(family), family)
    stages = forward_stages(config, 2, 5)
    assert sum(stage.flops for stage in stages) == forward_flops(config, 2, 5)
    again = config.vocab * config.hidden if config.tied else 0  # a tied table is read twice
    assert sum(stage.weight_bytes for stage in stages) == 4 * (count_parameters(config) + again)
    assert [stage.stage for stage in stages][-2:] == [f"layer {config.layers - 1}", "head"]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_passes_between_stages(family):
    config = ModelConfig.from_hf(small_config(family), family)
    table = stage_table(config, 3, 4, bytes_per_number=2)
    outputs = [stage.output_bytes for stage in forward_stages(config, 3, 4, 2)]
    assert [row.bytes_ for row in table[1:-1]] == outputs
    for row in table:
        shape = torch.empty(row.shape, device="meta").numel()
        assert row.bytes_ == shape * row.bytes_per_number == row.bytes_per_token * 12
    assert table[-1].bytes_per_token == kv_bytes_per_token(config, 2)
    assert all(left.before == right.after for left, right in pairwise(table[:-1]))


def test_inside_a_layer():
    rows = {row.tensor: row.shape for row in layer_table(ModelConfig.load("deepseek-v3"), 5, 2, 7)}
    assert rows["latent"] == (2, 7, 576)
    assert rows["scores"] == (2, 128, 7, 7)
    assert rows["dispatched tokens"] == (2, 7, 8, 7168)
    dense = {row.tensor for row in layer_table(ModelConfig.load("deepseek-v3"), 0, 2, 7)}
    assert "MLP inside" in dense


def command(capsys, *argv: str) -> str:
    assert cli.main(["model", *argv]) == 0
    return capsys.readouterr().out


def test_the_command_says_what_the_library_says(capsys):
    data = json.loads(command(capsys, "mixtral-8x7b", "--json", "--seq", "512", "--batch", "2"))
    config = ModelConfig.load("mixtral-8x7b")
    assert data["parameters"] == count_parameters(config) == 46_702_792_704
    assert data["active_parameters"] == active_parameters(config)
    assert data["weight_bytes"] == 2 * data["parameters"]
    assert data["kv_bytes_per_token"] == 131_072
    assert data["forward_flops"] == forward_flops(config, 2, 512)
    assert data["training_flops"] == 3 * data["forward_flops"]
    stages = forward_stages(config, 2, 512, 2)
    assert data["activation_bytes"] == sum(stage.activation_bytes for stage in stages)


def test_options_of_the_command(capsys):
    data = json.loads(command(capsys, "gpt2", "--json"))
    assert (data["length"], data["sequences"], data["dtype"]) == (1024, 1, "bf16")
    wide = json.loads(command(capsys, "gpt2", "--json", "--dtype", "fp32"))
    assert wide["weight_bytes"] == 2 * data["weight_bytes"] == 497_759_232
    causal = json.loads(command(capsys, "gpt2", "--json", "--causal", "--recompute", "full"))
    step = training_flops(ModelConfig.load("gpt2"), 1, 1024, causal=True, recompute="full")
    assert causal["training_flops"] == step.total
    assert causal["recomputed_flops"] == step.recomputed
    assert causal["activation_bytes"] < data["activation_bytes"]


@pytest.mark.parametrize("name", model_names())
def test_every_named_model_prints(capsys, name):
    out = command(capsys, name)
    assert f"{count_parameters(ModelConfig.load(name)):,}" in out


def test_any_config_json_works(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config("qwen3")))
    data = json.loads(command(capsys, str(path), "--json"))
    assert data["parameters"] == count_parameters(ModelConfig.load(path))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["gpt9"], "no model 'gpt9'; give a path to a config.json, or one of: bloom-176b"),
        (["gpt2", "--seq", "1025"], "1025 tokens are more than the 1024 positions of gpt2"),
        (["gpt2", "--seq", "0"], "at least one sequence of at least one token"),
        (["gpt2", "--batch", "-3"], "sequences: -3"),
        (["gpt2", "--dtype", "int3"], "dtype 'int3' is not known; known: fp32"),
    ],
)
def test_bad_input_gets_one_line_and_status_2(capsys, argv, says):
    assert cli.main(["model", *argv]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
