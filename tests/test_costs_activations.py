"""Activations: equal, tensor by tensor, to what autograd keeps of our decoder."""

import pytest
import torch
from small_configs import FAMILIES, small_config
from tokenlife.costs import CostError, forward_stages, rules
from tokenlife.costs.activations import (
    activation_bytes,
    layer_kept,
    peak_activation_bytes,
    stage_activations,
)
from tokenlife.costs.meter import saved_bytes
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder
from torch.utils.checkpoint import checkpoint

SHAPES = ((2, 7), (1, 12), (3, 1))


pytestmark = pytest.mark.usefixtures("one_thread")


def measured(config: ModelConfig, path: str, shape: tuple[int, int]) -> int:
    decoder = Decoder(config, path)
    ids = torch.randint(config.vocab, shape)
    return saved_bytes(decoder, ids)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("path", ["naive", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_activation_bytes_equal_what_autograd_keeps(family, path, seed):
    config = ModelConfig.from_hf(small_config(family, seed), family)
    for shape in SHAPES:
        assert activation_bytes(config, *shape, attention=path) == measured(config, path, shape)


@pytest.mark.parametrize("path", ["naive", "sdpa"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"n_layer": 1, "n_embd": 64, "n_head": 1},
        {"n_layer": 2, "n_embd": 32, "n_head": 8},
        {"n_layer": 4, "n_embd": 96, "n_head": 12},
    ],
)
def test_the_gpt2_family_on_a_grid(sizes, path):
    fields = {"model_type": "gpt2", "n_positions": 128, "vocab_size": 101} | sizes
    config = ModelConfig.from_hf(fields, "grid")
    for shape in ((1, 1), (1, 128), (4, 33), (8, 64)):
        stages = forward_stages(config, *shape, attention=path)
        modelled = sum(stage.activation_bytes for stage in stages)
        assert modelled == measured(config, path, shape)


@pytest.mark.parametrize("family", ["gpt2", "opt", "bloom", "llama", "mixtral", "deepseek_v3"])
def test_full_recomputation_keeps_the_inputs_of_layers(family):
    config = ModelConfig.from_hf(small_config(family), family)
    decoder = Decoder(config, "naive")
    ids = torch.randint(config.vocab, (2, 9))

    def run():
        context, x = decoder.context(ids), decoder.embed(ids)
        for block in decoder.blocks:
            x = checkpoint(block, x, context, use_reentrant=True)
        return decoder.head(x)

    stages = stage_activations(config, 2, 9, recompute="full")
    # Angles and masks are made anew for no layer; here they are held by the context, not autograd.
    angles = 9 * config.position.rotary_dim * 4
    assert saved_bytes(decoder, run=run) == sum(stages.values()) - angles


@pytest.mark.parametrize("family", ["gpt2", "opt", "llama", "qwen3"])
def test_selective_recomputation_keeps_all_but_the_core(family):
    config = ModelConfig.from_hf(small_config(family), family)
    decoder = Decoder(config, "naive")
    for block in decoder.blocks:
        attend = block.attention.attend
        block.attention.attend = lambda q, k, v, context, attend=attend: checkpoint(
            attend, q, k, v, context, use_reentrant=True
        )
    ids = torch.randint(config.vocab, (2, 9))
    modelled = activation_bytes(config, 2, 9, recompute="selective")
    assert saved_bytes(decoder, ids) == modelled


def test_korthikanti_beside_ours():
    """34·s·b·h + 5·a·s²·b in 16 bits, and the difference item by item."""
    gpt3 = ModelConfig.load("gpt3-175b")
    tokens, h, square = 2048, 12288, 96 * 2048 * 2048
    theirs = rules.korthikanti(gpt3, 1, 2048)
    ours = sum(item.bytes_(2) for item in layer_kept(gpt3, 0, 1, 2048))
    assert theirs == 34 * tokens * h + 5 * square
    # They have dropout: its output on the scores (2 B) and a mask (1 B) each, and two masks of the
    # stream; and they leave out the norms' statistics.
    assert theirs - ours == 3 * square + 2 * tokens * h - 2 * 2 * tokens * 4
    selective = [item for item in layer_kept(gpt3, 0, 1, 2048) if item.part != "core"]
    kept = sum(item.bytes_(2) for item in selective)
    assert rules.korthikanti(gpt3, 1, 2048, "selective") == 34 * tokens * h
    assert kept == 32 * tokens * h + 2 * 2 * tokens * 4
    assert rules.korthikanti(gpt3, 1, 2048, "full") == 2 * tokens * h


def test_the_peak_holds_one_recomputed_layer():
    gpt2 = ModelConfig.load("gpt2")
    plain, full = (stage_activations(gpt2, 1, 64, recompute=r) for r in ("none", "full"))
    layer = plain["layer 0"] - full["layer 0"]
    assert peak_activation_bytes(gpt2, 1, 64, recompute="full") == sum(full.values()) + layer
    assert peak_activation_bytes(gpt2, 1, 64) == activation_bytes(gpt2, 1, 64)


def test_mistakes_get_one_clear_line():
    gpt2 = ModelConfig.load("gpt2")
    with pytest.raises(CostError, match="attention 'flash' is not known; known: naive, sdpa"):
        activation_bytes(gpt2, 1, 8, attention="flash")
    with pytest.raises(CostError, match="recompute 'half' is not known"):
        activation_bytes(gpt2, 1, 8, recompute="half")
    with pytest.raises(CostError, match="more than the 1024 positions"):
        activation_bytes(gpt2, 1, 2000)
