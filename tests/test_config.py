"""Configs of every family: read as Hugging Face writes them, refused in one line where bad."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from small_configs import FAMILIES, small_config
from tokenlife.catalog import CatalogError, family_defaults, model_names, read_model, read_reference
from tokenlife.costs import active_parameters, count_parameters, parameters_by_part
from tokenlife.costs.operations import CostError, check_batch
from tokenlife.costs.parameters import mtp_parameters
from tokenlife.transformer import ConfigError, ModelConfig

transformers = pytest.importorskip("transformers")


def judge(config: dict):
    """Build the transformers library's model of a config.json, without memory for its weights."""
    fields = {key: value for key, value in config.items() if not key.startswith("_")}
    hf = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(hf, attn_implementation="eager")


def judged_parameters(config: dict) -> int:
    """Count the judge's parameters, and DeepSeek-V3's router bias, which it keeps as a buffer."""
    model = judge(config)
    biases = [b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")]
    return sum(tensor.numel() for tensor in [*model.parameters(), *biases])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_equal_the_judges(family, seed):
    config = small_config(family, seed)
    assert count_parameters(ModelConfig.from_hf(config, family)) == judged_parameters(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_that_the_library_saved_reads_the_same(family, tmp_path):
    """The library writes other keys (``rope_parameters``, ``layer_types``) than the Hub has."""
    config = small_config(family)
    fields = dict(config)
    hf = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    hf.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert ModelConfig.from_hf(saved, "x") == ModelConfig.from_hf(config, "x")


LEFT_OUT = (
    "num_key_value_heads", "num_kv_heads", "head_dim", "sliding_window", "n_shared_experts",
    "q_lora_rank",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_fields_left_out_are_filled_as_the_judge_does(family):
    wide = {"num_attention_heads": 32, "n_head": 32, "hidden_size": 384, "n_embd": 384}
    wide |= {"num_key_value_heads": 2}
    config = small_config(family) | {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
    config = {name: wide.get(name, value) for name, value in config.items()}
    if family == "opt":
        config["word_embed_proj_dim"] = 384
    for absent in (*([name] for name in LEFT_OUT), LEFT_OUT):
        sparse = {name: value for name, value in config.items() if name not in absent}
        read = ModelConfig.from_hf(sparse, family)
        assert count_parameters(read) == judged_parameters(sparse), absent
        judged = judge(sparse).config
        if "sliding_attention" in (getattr(judged, "layer_types", None) or ()):
            assert read.attention.window == judged.sliding_window
        elif family == "mistral":
            assert read.attention.window == (judged.sliding_window or 0)


PUBLISHED = read_reference("06_models_params")


def printed(value: int, text: str) -> bool:
    """Say whether ``value``, rounded to as many digits, reads as ``text`` does (like 36.6B)."""
    digits = len(text.rstrip("B").partition(".")[2])
    return round(value / 1e9, digits) == float(text.rstrip("B"))


@pytest.mark.parametrize(
    "row", list(PUBLISHED.itertuples()), ids=lambda row: f"{row.model} {row.quantity}"
)
def test_counts_equal_the_published(row):
    config = ModelConfig.load(row.model)
    table = config.vocab * config.hidden
    counted = {
        "total": count_parameters(config),
        "active": active_parameters(config),
        "active without embedding": active_parameters(config) - table,
        "with multi-token prediction": count_parameters(config)
        + mtp_parameters(config)
        + 2 * table,
    }
    if row.quantity not in counted:
        pytest.skip("held by test_costs_memory")
    # Two listings count what is no parameter of the model, as their notes say.
    counted["total"] += {"falcon-180b": table, "llama-2-70b": 80 * 64}.get(row.model, 0)
    if row.precision == "exact":
        assert counted[row.quantity] == row.value
    else:
        assert printed(counted[row.quantity], row.precision)


def test_every_named_model_has_a_published_count_and_a_source():
    ours = set(model_names()) - {"running-gpt"}
    assert len(ours) >= 25
    assert ours == set(PUBLISHED[PUBLISHED.quantity == "total"].model)
    assert all(read_model(name)["_source"] for name in model_names())
    assert not PUBLISHED.source.isna().any()
    assert not PUBLISHED.confidence.str.contains("unseen").any()


def test_parts_of_mixtral_equal_the_published():
    """Routers, attention and norms as shared/06 lists them."""
    parts = parameters_by_part(ModelConfig.load("mixtral-8x7b"))
    assert (parts["router"], parts["attention"], parts["norms"]) == (1048576, 1342177280, 266240)


@pytest.mark.parametrize("name", model_names())
def test_named_models_are_what_the_judge_builds(name):
    """Every named model at its real size, on the meta device."""
    config = read_model(name)
    if config["model_type"] == "kimi_k2":
        config["model_type"] = "deepseek_v3"
    assert count_parameters(ModelConfig.load(name)) == judged_parameters(config)


LLAMA = small_config("llama")
BAD = [
    ({"num_attention_heads": 7}, "7 heads do not divide a hidden size"),
    ({"num_key_value_heads": 5}, "5 key-value heads do not divide"),
    ({"num_hidden_layers": -2}, "layers must be a whole number above 0, not -2"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers must be 100,000 at most"),
    ({"hidden_size": 0}, "must be whole numbers above 0, not 0"),
    ({"intermediate_size": -4}, "MLP width must be"),
    ({"vocab_size": 3.5}, "vocab must be"),
    ({"max_position_embeddings": True}, "positions must be"),
    ({"hidden_act": "tanhshrink"}, "activation 'tanhshrink' is not known; known: gelu"),
    ({"vocab_size": None, "hidden_size": None}, "lacks hidden_size, vocab_size"),
    ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
    ({"rope_scaling": {"rope_type": "spiral"}}, "RoPE scaling 'spiral' is not known"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "RoPE's factor must be a number above 0"),
    ({"rope_scaling": {"type": "yarn", "factor": 0}}, "RoPE's factor must be a number above 0"),
    ({"rope_theta": 0.0}, "RoPE's base must be a number above 0"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number, not 'small'"),
    ({"rms_norm_eps": -1e-6}, "eps must be a number above 0"),
    ({"mlp_bias": "yes"}, "mlp_bias must be true or false, not 'yes'"),
    ({"head_dim": [64]}, "head_dim must be a whole number"),
    ({"rope_parameters": {"partial_rotary_factor": "half"}}, "partial_rotary_factor must be"),
    ({"head_dim": 7}, "RoPE turns pairs"),
    ({"model_type": "mistral", "sliding_window": -5}, "window must be"),
    (
        {"model_type": "mistral", "layer_types": ["linear"] * LLAMA["num_hidden_layers"]},
        "layer type 'linear' is not known",
    ),
    (
        {"model_type": "mistral", "sliding_window": 4, "layer_types": ["full_attention"]},
        "layer_types names 1 layers",
    ),
    (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
        "cannot visit 5 of 4 experts",
    ),
    (
        {"model_type": "mixtral", "num_local_experts": -4, "num_experts_per_tok": 2},
        "experts must be",
    ),
    ({"model_type": "mixtral"}, "lacks num_experts_per_tok, num_local_experts"),
    ({"model_type": ["llama"]}, "model_type .'llama'. is not known"),
]


@pytest.mark.parametrize(("change", "says"), BAD)
def test_bad_configs_get_one_clear_line(change, says):
    with pytest.raises(ConfigError, match=says) as error:
        ModelConfig.from_hf(LLAMA | change, "bad")
    assert "\n" not in str(error.value)


WRONG = ("x", -1, 0, None, [], {}, {"a": 1}, 1.5, True, float("nan"), float("inf"), ["x"], [3])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_field_can_break_the_reader(family):
    """Any value in any field: a model that can be counted, or one clear line."""
    config = small_config(family)
    further = {"layer_types", "rope_scaling", "rope_parameters", "sliding_window", "head_dim"}
    fields = set(config) | set(family_defaults(config["model_type"])) | further
    for field in sorted(fields - {"model_type"}):
        for value in WRONG:
            try:
                read = ModelConfig.from_hf({**config, field: value}, "any")
                assert count_parameters(read) >= active_parameters(read) > 0
            except ConfigError as error:
                assert "\n" not in str(error)


def test_deepseek_needs_groups_that_fit():
    config = small_config("deepseek_v3")
    with pytest.raises(ConfigError, match="3 groups do not divide 8 experts"):
        ModelConfig.from_hf(config | {"n_group": 3}, "bad")
    with pytest.raises(ConfigError, match="5 of 2 groups"):
        ModelConfig.from_hf(config | {"topk_group": 5}, "bad")
    with pytest.raises(ConfigError, match="cannot visit 5 of the 4 experts"):
        ModelConfig.from_hf(config | {"num_experts_per_tok": 5}, "bad")
    odd = config | {"qk_nope_head_dim": 7}
    assert count_parameters(ModelConfig.from_hf(odd, "odd")) == judged_parameters(odd)
    with pytest.raises(ConfigError, match="latent width"):
        ModelConfig.from_hf(config | {"kv_lora_rank": -8}, "bad")


def test_what_cannot_be_a_model_file_gets_one_line(tmp_path):
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(CatalogError, match="no model"):
            ModelConfig.load(name)
    (tmp_path / "config.json").write_text("[" * 10**5)
    with pytest.raises(CatalogError, match=r"not a readable config\.json"):
        ModelConfig.load(tmp_path / "config.json")


def test_a_config_with_an_image_encoder_is_read_for_its_text():
    text = small_config("gemma3_text")
    wrapped = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    assert ModelConfig.from_hf(wrapped, "x") == ModelConfig.from_hf(text, "x")
    with pytest.raises(ConfigError, match="lacks text_config"):
        ModelConfig.from_hf({"model_type": "gemma3"}, "x")


def test_the_post_norm_opt_is_refused_by_name():
    with pytest.raises(ConfigError, match="OPT-350m"):
        ModelConfig.from_hf(small_config("opt") | {"do_layer_norm_before": False}, "x")


def test_published_table_is_whole():
    assert pd.api.types.is_integer_dtype(PUBLISHED.value)
    assert not PUBLISHED.duplicated(["model", "quantity"]).any()


def test_more_sequences_than_there_can_be():
    with pytest.raises(CostError, match="1,000,000,000 sequences"):
        check_batch(ModelConfig.load("gpt2"), 10**400, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_the_command_says_in_one_line_that_it_cannot_write_or_read():
    command = [sys.executable, "-m", "tokenlife.cli", "tokens"]
    with Path("/dev/full").open("w") as full:
        told = subprocess.run([*command, "hi"], stdout=full, stderr=subprocess.PIPE, text=True)
    line = "tokenlife: cannot write the output: No space left on device\n"
    assert (told.returncode, told.stderr) == (2, line)
    told = subprocess.run([*command, b"\xff"], capture_output=True, text=True)
    line = "tokenlife: the words on the command line are no UTF-8 text\n"
    assert (told.returncode, told.stderr) == (2, line)
    ascii_ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    told = subprocess.run([*command, "é", "--json"], capture_output=True, text=True, env=ascii_)
    assert told.stdout.isascii() and json.loads(told.stdout)["pieces"] == ["é"]
