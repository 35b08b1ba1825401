"""Fits of α and β, and NCCL's published times: fitted on half the sizes, judged on the other."""

import numpy as np
import pandas as pd
import pytest
from tokenlife.catalog import accelerator_names, read_accelerator, read_reference
from tokenlife.collectives import Terms, algorithm
from tokenlife.lab.fit import FitError, fit, fit_alpha_beta, fit_fastest, fit_terms, times_s
from tokenlife.lab.nccl import POOLED, fit_layout, judge, samples

SIZES = 2.0 ** np.arange(10, 27)


# Fits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outliers", [0, 3])
def test_alpha_and_beta_come_back_with_their_intervals(outliers):
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(40):
        time_s = (5e-6 + 1e-9 * SIZES) * rng.normal(1, 0.02, SIZES.shape)
        time_s[rng.choice(len(SIZES), outliers, replace=False)] *= 5
        found = fit_alpha_beta(SIZES, time_s)
        assert found["alpha_s"] == pytest.approx(5e-6, rel=0.15)
        assert found["beta_s_per_B"] == pytest.approx(1e-9, rel=0.15)
        covered += ((found.low <= [5e-6, 1e-9]) & (found.high >= [5e-6, 1e-9])).sum()
    assert covered >= 0.85 * 80


def test_least_squares_would_be_moved_by_what_the_fit_ignores():
    time_s = 5e-6 + 1e-9 * SIZES
    time_s[[3, 9]] *= 20
    plain = np.polyfit(SIZES, time_s, 1)
    found = fit_alpha_beta(SIZES, time_s)
    assert found["alpha_s"] == pytest.approx(5e-6, rel=0.02)
    assert abs(plain[1] / 5e-6 - 1) > 1
    assert np.abs(found.errors[[3, 9]]).min() > 0.9


def test_all_rank_counts_are_fitted_together():
    ranks, sizes = np.repeat([2, 4, 8], len(SIZES)), np.tile(SIZES, 3)
    # In a ring all-reduce the bytes added are half the bytes sent: γ needs another collective too.
    kinds = [algorithm(k, "ring").terms(ranks, sizes) for k in ("all_reduce", "all_gather")]
    terms = Terms(
        *(
            np.concatenate([np.broadcast_to(value, sizes.shape) for value in column])
            for column in zip(*(vars(t).values() for t in kinds), strict=True)
        )
    )
    found = fit_terms(terms, 3e-6 + terms.time_s(2e-6, 1e-10, 5e-11), floor=True, gamma=True)
    want = {"alpha_s": 2e-6, "beta_s_per_B": 1e-10, "floor_s": 3e-6, "gamma_s_per_B": 5e-11}
    for name, value in want.items():
        assert found[name] == pytest.approx(value, rel=1e-6)


def test_no_parameter_is_negative():
    found = fit_alpha_beta(SIZES, 1e-9 * SIZES * np.linspace(1.2, 0.8, len(SIZES)))
    assert found["alpha_s"] >= 0 and (found.low >= 0).all()


def test_a_switch_of_protocol_is_found():
    one, zero = np.ones_like(SIZES), np.zeros_like(SIZES)
    designs = np.array([[one, SIZES, zero, zero], [zero, zero, one, SIZES]]).swapaxes(1, 2)
    truth = np.minimum(5e-6 + 4e-10 * SIZES, 40e-6 + 1e-10 * SIZES)
    found = fit_fastest(designs, truth, [(cut < SIZES).astype(int) for cut in (2e3, 1e6, 4e6)])
    assert times_s(designs, found).min(axis=0) == pytest.approx(truth)
    assert found == pytest.approx([5e-6, 4e-10, 40e-6, 1e-10])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_a_time_that_is_none_is_refused(bad):
    with pytest.raises(FitError, match="above zero"):
        fit_alpha_beta([1.0, 2.0, 3.0], [1.0, bad, 3.0])
    with pytest.raises(FitError, match="1 samples cannot give 2"):
        fit({"a": np.ones(1), "b": np.ones(1)}, [1.0])


# NCCL's tables ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    return samples()


@pytest.fixture(scope="module")
def judged(published):
    """The sizes that no fit has seen."""
    rows = pd.concat(judge(published).values())
    rows = rows[~rows.fitted]
    return rows.assign(size_of_error=rows.error.abs())


def test_bytes_are_two_for_each_element(published):
    """The table's sizes count elements: only 2 bytes each agree with another log of 8 A100s."""
    table = read_reference("nccl_measured_aiconfigurator")
    assert (table.bytes == 2 * table.elements).all()
    reduce = published[(published.kind == "all_reduce") & (published.ranks == 8)]
    here = reduce[reduce.system == "a100_sxm"].set_index("bytes").time_s
    there = reduce[reduce.system == "A"].set_index("bytes").time_s
    both = here.index.intersection(there.index)[-3:]
    assert (here[both] / there[both]).between(0.85, 1.15).all(), "1 or 4 bytes would give 2 or 0.5"
    chip = read_accelerator("a100-sxm")
    twice = 1.75 * 2 * both / here[both]
    assert (twice > chip["scale_up_Bps"]).all(), "4 bytes each would outrun the links"


def test_sizes_not_fitted_are_within_ten_percent(judged):
    tables = judged[judged.table != "08c_nccl_tests_logs"]
    assert len(tables) > 500
    assert tables.size_of_error.median() <= 0.10
    by_table = tables.groupby("table").size_of_error.median()
    assert (by_table <= 0.10).all(), by_table
    ours = tables[tables.table == "nccl_measured_aiconfigurator"]
    by_system = ours.groupby("system").size_of_error.median()
    assert len(by_system) == 4 and (by_system <= 0.10).all(), by_system


def test_logs_of_other_systems_are_within_fifteen_percent(judged):
    logs = judged[judged.table == "08c_nccl_tests_logs"]
    by_log = logs.groupby("system").size_of_error.median()
    assert len(by_log) == 15 and (by_log <= 0.15).all(), by_log


def test_a_ring_alone_cannot_explain_the_large_all_reduces_of_hopper(published):
    rows = published[published.layout == "h100_sxm all_reduce"]
    fitted = rows.bytes.isin(np.unique(rows.bytes)[::2]).to_numpy()
    large = (rows.ranks == 8) & (rows.bytes >= 1 << 26)
    with_nvls = fit_layout(rows, fitted)
    without = fit_layout(rows, fitted, nvls=False)
    assert with_nvls[large].error.abs().max() < 0.02
    assert without[large].error.abs().max() > 0.10


def test_nvls_outruns_the_bound_of_the_ring(published):
    """8 H200: a ring would have to send faster than the datasheet's links; NVLS need not."""
    rows = published[(published.system == "J1") & (published.bytes >= 1 << 30)]
    rate_Bps = read_accelerator("h200-sxm")["scale_up_Bps"]
    assert (1.75 * rows.bytes / rows.time_s > rate_Bps).all()
    assert (1.125 * rows.bytes / rows.time_s < rate_Bps).all()


def test_fitted_rates_are_what_the_links_can_carry(published):
    """The fastest protocol reaches 70 to 85 % of the datasheet: packets and flags take the rest."""
    results = judge(published[published.system.isin(POOLED)])
    for system, name in POOLED.items():
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            found = results[f"{system} {kind}"].attrs
            rates = [1 / v for k, v in found.items() if k.startswith("beta_") and "nvls" not in k]
            assert 0.70 < max(rates) / read_accelerator(name)["scale_up_Bps"] < 0.85
            assert 0.5e-6 < found["alpha_s"] < 2e-6


def test_what_is_too_little_to_fit_is_left_out(published):
    assert not {"M send 8", "P send 2", "Q all_reduce 2"} & judge(published).keys()
    rows = published[published.layout == "P send 2"]
    with pytest.raises(FitError, match="at least three"):
        fit_layout(rows, np.array([True, True, False]))


def test_accelerators_with_a_scale_up_rate_say_whether_the_switch_adds():
    chips = [read_accelerator(name) for name in accelerator_names()]
    assert all(("scale_up_Bps" in chip) == ("switch_adds" in chip) for chip in chips)
