"""The roofline, the works placed on it, accelerators, and the memory trace of a step."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenlife.catalog import CatalogError, accelerator_names, read_accelerator, read_reference
from tokenlife.costs import count_parameters, forward_flops
from tokenlife.costs.activations import activation_bytes
from tokenlife.costs.memory import kv_bytes_per_token, state_bytes
from tokenlife.costs.memory_trace import MemoryTrace
from tokenlife.costs.roofline import (
    Roofline,
    RooflineError,
    Work,
    matmul_rate,
    measure,
    memory_rate,
    stage_work,
    total,
)
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.train import TrainingRecipe, loss_sum, make_optimiser

GPT2 = ModelConfig.load("gpt2")
RATES = st.floats(1e6, 1e18)

# The roofline -------------------------------------------------------------------------------------


@given(RATES, RATES, st.integers(0, 10**15), st.integers(1, 10**13))
def test_two_limits_and_a_ridge_between_them(peak, bandwidth, flops, bytes_):
    roof = Roofline("any", {"float32": peak}, bandwidth)
    work = Work("any", flops, bytes_)
    reached = roof.attainable(work.intensity, "float32")
    assert reached <= peak and reached <= work.intensity * bandwidth
    assert reached == peak if work.intensity >= roof.ridge("float32") * (1 + 1e-9) else True
    time_s = roof.time_s(work, "float32")
    assert time_s >= bytes_ / bandwidth * (1 - 1e-12) and time_s >= flops / peak * (1 - 1e-12)
    if flops:
        assert flops / time_s == pytest.approx(reached, rel=1e-9)
    assert roof.attainable(roof.ridge("float32"), "float32") == pytest.approx(peak)


def test_rates_that_no_machine_has_are_refused():
    for peak, bandwidth in ((0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)):
        with pytest.raises(RooflineError, match="must be above 0"):
            Roofline("none", {"float32": peak}, bandwidth)
    with pytest.raises(RooflineError, match="no peak for 'float8'; known: bfloat16"):
        Roofline.of("a100-sxm").ridge("float8")


def test_accelerators_are_those_of_the_reference_and_have_sources():
    names = accelerator_names()
    assert len(names) == len(set(names)) == 20
    for name in names:
        chip = read_accelerator(name)
        assert chip["source"] and chip["title"]
        assert all(1e14 < peak < 2e16 for peak in chip["peak_flops"].values())
        assert "memory_Bps" not in chip or 5e11 < chip["memory_Bps"] < 1e13
        assert "memory_bytes" not in chip or 1e10 < chip["memory_bytes"] < 4e11
    with pytest.raises(CatalogError, match="no accelerator 'h900'; known: a100-pcie, a100-sxm"):
        read_accelerator("h900")
    with pytest.raises(RooflineError, match="no memory bandwidth"):
        Roofline.of("gh200")  # sold with two memories


def test_the_nominal_peak_is_not_what_is_reached():
    """The published bf16 peaks beside the best product that others measured (MAMF)."""
    rows = read_reference("07_flops_mfu_scaling")
    rows = rows[rows["table"].eq("MAMF BF16") & rows["quantity"].str.startswith("A100 SXM")]
    achieved, theory, _ = (part.strip() for part in rows["value"].iloc[0].split("/"))
    peak = read_accelerator("a100-sxm")["peak_flops"]["bfloat16"]
    assert float(theory) * 1e12 == peak and float(achieved) * 1e12 < peak


# Works --------------------------------------------------------------------------------------------


def test_stage_works_add_up():
    works = stage_work(GPT2, 2, 64, bytes_per_number=2)
    whole = total(works, "model")
    assert whole.flops == forward_flops(GPT2, 2, 64)
    stream = 2 * 64 * 768 * 2  # one tensor of the residual stream
    kv = 2 * 64 * kv_bytes_per_token(GPT2, 2)
    logits = 2 * 64 * 50257 * 2
    # All weights once, the position table excepted: the embedding reads rows, not tables.
    weights = 2 * (count_parameters(GPT2) - 1024 * 768)
    passed = (12 * 2 + 1 + 2) * stream  # each layer reads and writes it, the head reads it
    assert whole.bytes_ == weights + kv + passed + logits


def test_decoding_is_left_of_every_ridge_and_batching_moves_it():
    decode = [total(stage_work(GPT2, b, 1, past=512, bytes_per_number=2), "") for b in (1, 8, 64)]
    assert decode[0].intensity < 1.1 < decode[1].intensity < decode[2].intensity
    prefill = total(stage_work(GPT2, 1, 1024, bytes_per_number=2), "")
    ridge = Roofline.of("h100-sxm").ridge("bfloat16")
    assert decode[2].intensity < ridge < prefill.intensity * 2
    # the cache is read: more context, more bytes
    longer = total(stage_work(GPT2, 1, 1, past=1000, bytes_per_number=2), "")
    assert longer.bytes_ - decode[0].bytes_ == (1000 - 512) * kv_bytes_per_token(GPT2, 2)


# Measuring ----------------------------------------------------------------------------------------


def test_this_machine_has_a_roofline():
    roof = measure("cpu", sizes=(128, 256), bytes_=2**22)
    assert set(roof.peak_flops) == {"float32", "bfloat16"}
    assert 1e8 < roof.peak("float32") < 1e14 and 1e8 < roof.bandwidth_Bps < 1e13


def test_rates_count_what_they_say(monkeypatch):
    """With a clock of one second a call, the rates are the counts themselves."""
    monkeypatch.setattr("tokenlife.costs.roofline.seconds", lambda run, device: 1.0)
    assert matmul_rate(64, "float32", "cpu") == 2 * 64**3
    assert memory_rate(4096, "cpu") == 3 * 4096


# Memory over time ---------------------------------------------------------------------------------

SMALL = ModelConfig.load("running-gpt")


@pytest.mark.parametrize("path", ["sdpa", "naive"])
def test_trace_finds_what_the_model_says_by_kind(path):
    model = Decoder(SMALL, attention=path)
    optimiser = make_optimiser(model, TrainingRecipe(steps=3))
    ids, labels = torch.randint(SMALL.vocab, (2, 2, 64))
    trace = MemoryTrace(model, optimiser, (ids, labels))
    with trace.following():
        with trace.phase("forward"):
            hidden = model.hidden_states(ids)
        with trace.phase("head"):
            loss = loss_sum(model.head(hidden), labels)
        del hidden
        with trace.phase("backward"):
            loss.backward()
        del loss
        with trace.phase("optimiser"):
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    last = {sample.phase: sample.bytes_ for sample in trace.samples()}
    states = state_bytes(SMALL, "float32")
    steps = 4 * len(optimiser.state)  # AdamW counts its steps beside each parameter
    assert last["optimiser"]["weights"] == states["weights"]
    assert last["optimiser"]["gradients"] == states["gradients"]
    assert last["optimiser"]["optimiser"] == states["moments"] + steps
    assert last["optimiser"]["batch"] == 2 * 2 * 64 * 8
    assert last["backward"]["activations"] == 0
    # After the head: what autograd keeps, the logits for the loss included.
    logits = 2 * 64 * SMALL.vocab * 4
    modelled = activation_bytes(SMALL, 2, 64, 4, path) + logits
    assert last["head"]["activations"] == pytest.approx(modelled, rel=0.01)
    assert last["forward"]["gradients"] == last["forward"]["optimiser"] == 0
    # With so few tokens the states outweigh the activations: the end of the first step is highest.
    assert trace.peak().total == sum(last["optimiser"].values())


def test_trace_sees_a_temporary_come_and_go():
    model = torch.nn.Linear(4, 4)
    trace = MemoryTrace(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with torch.no_grad(), trace.following(), trace.phase("work"):
        big = torch.ones(1000)
        small = big.sum()
        del big
        small = small + 1
    temporary = [sample.bytes_["temporary"] for sample in trace.samples()]
    assert temporary == [4000, 4004, 8]
