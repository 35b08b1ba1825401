"""FLOPs: equal to what torch counts, for every family, forward and backward."""

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_configs import FAMILIES, small_config
from tokenlife.catalog import read_reference
from tokenlife.costs import (
    CostError,
    count_parameters,
    forward_flops,
    rules,
    stage_flops,
    training_flops,
)
from tokenlife.costs.meter import counted_flops
from tokenlife.costs.operations import layer_operations, pairs
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.model import Decoder
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

transformers = pytest.importorskip("transformers")


pytestmark = pytest.mark.usefixtures("one_thread")


def judge(config: dict):
    fields = dict(config)
    hf = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(hf, attn_implementation="eager")
    if "experts" in str(model):
        model.set_experts_implementation("eager")  # others multiply by experts in one fused call
    return model.train()


def counted(model, ids) -> tuple[int, int]:
    """Count forward, and both passes, without the product that makes RoPE's angles there."""
    with FlopCounterMode(display=False, depth=None) as counter:
        logits = model(ids, use_cache=False).logits
        forward = counter.get_total_flops()
        logits.sum().backward()
    flops = counter.get_flop_counts()
    names = [name for name in flops if name.endswith(("rotary_emb", "rotary_emb_local"))]
    rotary = sum(sum(flops[name].values()) for name in names)
    return forward - rotary, counter.get_total_flops() - rotary


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_backward_equal_torchs_counter(family):
    config = small_config(family, seed=5)
    ours = ModelConfig.from_hf(config, family)
    ids = torch.randint(ours.vocab, (2, 7))
    step = training_flops(ours, *ids.shape)
    assert step.forward == forward_flops(ours, *ids.shape)
    assert counted(judge(config), ids) == (step.forward, step.total)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_full_recomputation_equals_torchs_checkpointing(family):
    config = small_config(family)
    ours = ModelConfig.from_hf(config, family)
    model = judge(config)
    model.activation_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(ours.vocab, (1, 6))
    with set_checkpoint_early_stop(False):
        _, whole = counted(model, ids)
    assert whole == training_flops(ours, *ids.shape, recompute="full").total
    if family == "llama":  # torch stops a recomputation once it has what it needs
        down = layer_operations(ours, 0, *ids.shape)[-1].flops
        assert counted(model, ids)[1] == whole - ours.layers * down


@settings(max_examples=200, deadline=None)
@given(length=st.integers(1, 24), past=st.integers(0, 24), window=st.integers(1, 30))
def test_pairs_equal_counting_them_one_by_one(length, past, window):
    config = ModelConfig.load("gpt2")
    attention = dataclasses.replace(config.attention, window=window, windowed=(True,) * 12)
    windowed = dataclasses.replace(config, attention=attention)
    seen = [(q, k) for q in range(past, past + length) for k in range(past + length) if k <= q]
    near = [(q, k) for q, k in seen if k > q - window]
    assert pairs(config, 0, length, past, causal=True) == len(seen)
    assert pairs(windowed, 0, length, past, causal=True) == len(near)
    assert pairs(windowed, 0, length, past) == length * (past + length)


@pytest.mark.parametrize("family", FAMILIES)
def test_our_decoder_costs_what_we_count(family):
    """Forward, both passes, and decoding from a cache, on the naive path."""
    config = ModelConfig.from_hf(small_config(family, seed=7), family)
    decoder = Decoder(config, attention="naive")
    ids = torch.randint(config.vocab, (2, 9))
    step = training_flops(config, *ids.shape)
    assert counted_flops(decoder, ids) == step.forward
    assert counted_flops(lambda: decoder(ids).sum().backward()) == step.total
    cache = KVCache(config, batch=2, capacity=12)
    with torch.no_grad():
        decoder(ids, cache=cache)
        for past in (9, 10):
            decoded = counted_flops(partial(decoder, cache=cache), ids[:, :1])
            assert decoded == forward_flops(config, 2, 1, past=past)


@pytest.mark.parametrize("family", [f for f in FAMILIES if not f.startswith("deepseek")])
def test_decoding_token_by_token_costs_what_the_causal_prefill_costs(family):
    config = ModelConfig.from_hf(small_config(family), family)
    prefill = forward_flops(config, 1, 12, causal=True)
    decode = sum(forward_flops(config, 1, 1, causal=True, past=i) for i in range(12))
    assert decode == prefill


def test_a_fused_backward_pass_counts_the_scores_once_more():
    gpt2 = ModelConfig.load("gpt2")
    core = sum(o.flops for o in layer_operations(gpt2, 0, 1, 64) if o.core)
    fused, naive = (training_flops(gpt2, 1, 64, fused=f).backward for f in (True, False))
    assert fused - naive == 12 * core // 2
    selective = training_flops(gpt2, 1, 64, recompute="selective")
    assert selective.recomputed == 12 * core


def test_flops_equal_nanogpts_published_sheet():
    sheet = read_reference("07_flops_mfu_scaling").set_index("quantity").value
    gpt2 = ModelConfig.load("gpt2")
    step = training_flops(gpt2, 1, 1024)
    assert step.forward == int(sheet["forward_total"])
    assert step.backward == int(sheet["backward_total"])
    assert step.total == int(sheet["total"])
    # nanoGPT's model has no biases; its PaLM figure counts the norms among N, as ours does.
    plain = dataclasses.replace(
        gpt2,
        attention=dataclasses.replace(gpt2.attention, qkv_bias=False, out_bias=False),
        mlp=dataclasses.replace(gpt2.mlp, bias=False),
        norm=dataclasses.replace(gpt2.norm, bias=False),
    )
    assert count_parameters(plain) == int(sheet["params total"])
    assert rules.palm(plain, 1024, 1024) == int(sheet["palm_flops"])


def test_rules_of_thumb_agree_where_they_say_they_do():
    """On GPT-3's shape: Megatron's is exact for matrix products, PaLM's to biases and norms."""
    gpt3 = ModelConfig.load("gpt3-175b")
    ours = training_flops(gpt3, 1, 2048, recompute="full").total
    head = stage_flops(gpt3, 1, 2048)[-1]
    # Megatron counts the head's product in three passes, as we do, since it is not recomputed.
    assert rules.megatron(gpt3, 1, 2048) == pytest.approx(ours, rel=1e-12)
    assert head.recomputed == 0
    assert rules.palm(gpt3, 2048, 2048) == pytest.approx(
        training_flops(gpt3, 1, 2048).total, rel=1e-3
    )
    assert rules.six_n(gpt3, 2048) < training_flops(gpt3, 1, 2048).total


def test_mistakes_get_one_clear_line():
    gpt2 = ModelConfig.load("gpt2")
    with pytest.raises(CostError, match="1025 tokens are more than the 1024 positions"):
        forward_flops(gpt2, 1, 1025)
    with pytest.raises(CostError, match="1025 tokens are more"):
        forward_flops(gpt2, 1, 1, past=1024)
    with pytest.raises(CostError, match="at least one sequence"):
        forward_flops(gpt2, 0, 1)
    with pytest.raises(CostError, match="cached tokens: -1"):
        forward_flops(gpt2, 1, 1, past=-1)
    with pytest.raises(CostError, match="recompute 'some' is not known; known: none, selective"):
        training_flops(gpt2, 1, 1, recompute="some")


def test_flops_per_token_equal_deepseeks_table():
    """Causal, at 4,096 tokens. Llama is 1 % off; their Qwen is below 6N, which nothing explains."""
    table = read_reference("06_models_params").query("quantity == 'training_flops_per_token'")
    ours = {
        row.model: training_flops(ModelConfig.load(row.model), 1, 4096, causal=True).total / 4096
        for row in table.itertuples()
    }
    published = table.set_index("model").value
    for name in ("deepseek-v2", "deepseek-v3"):
        assert round(ours[name] / 1e9) * 10**9 == published[name]
    assert ours["llama-3.1-405b"] == pytest.approx(published["llama-3.1-405b"], rel=0.011)
    qwen = ModelConfig.load("qwen2.5-72b")
    assert published["qwen2.5-72b"] < rules.six_n(qwen, 1) < ours["qwen2.5-72b"]
