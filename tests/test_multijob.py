"""Jobs that share a fabric: conservation and fairness as properties, closed forms, searches."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.errors import TokenlifeError
from tokenlife.jobs.interleave import can_avoid, excess, interleave, least_excess
from tokenlife.jobs.multijob import ORDERS, Job, Phase, alone_s, play_jobs, two_equal_jobs_s
from tokenlife.jobs.rhythm import autocorrelation, period_s, phases_of, sample, spectrum
from tokenlife.jobs.timeline import Task, play
from tokenlife.network import Routes

RATE = 8e9  # a link of a gigabyte a second: bytes in units of 1e9 are seconds


def on_links(*paths):
    """Flows on links, given as the links of each."""
    flow = np.repeat(np.arange(len(paths)), [len(p) for p in paths])
    link = np.array([x for path in paths for x in path])
    return Routes(len(paths), flow, link, np.ones(len(link)))


LINK = on_links([0], [0])
seconds = st.integers(0, 40).map(lambda n: n / 8)


@st.composite
def fabrics_with_jobs(draw):
    links = draw(st.integers(1, 4))
    paths, jobs = [], []
    for _ in range(draw(st.integers(1, 4))):
        flows = draw(st.integers(1, 3))
        which = st.lists(st.integers(0, links - 1), min_size=1, max_size=links, unique=True)
        own = tuple(range(len(paths), len(paths) + flows))
        paths += [draw(which) for _ in own]
        phase = st.builds(Phase, seconds, seconds.map(lambda s: s * 1e9))
        phases = draw(st.lists(phase, min_size=1, max_size=3))
        if not any(p.compute_s or p.bytes_ for p in phases):
            phases.append(Phase(1.0))
        weights = draw(st.none() | st.tuples(*[st.sampled_from([0.5, 1.0, 3.0]) for _ in own]))
        jobs.append(
            Job(tuple(phases), own, draw(st.integers(1, 4)), draw(seconds),
                draw(st.integers(0, 2)), weights)
        )  # fmt: skip
    rates = RATE * np.array(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=links,
                                          max_size=links)))  # fmt: skip
    return jobs, on_links(*paths), rates


@settings(deadline=None, max_examples=80)
@given(fabrics_with_jobs(), st.sampled_from(ORDERS))
def test_no_link_is_over_its_rate_no_byte_is_lost_and_nobody_idles(setup, order):
    jobs, routes, link_bps = setup
    played = play_jobs(jobs, routes, link_bps, order)
    loads = np.array([routes.load(len(link_bps), rates) for rates in played.flow_bps])
    assert np.all(loads <= link_bps * (1 + 1e-9))
    sent = np.zeros(routes.flows)
    for job in jobs:
        weights = np.array(job.weights or np.ones(len(job.flows)))
        sent[list(job.flows)] = weights * job.steps * sum(p.bytes_ for p in job.phases)
    np.testing.assert_allclose(played.sent_bytes(), sent, rtol=1e-6, atol=1e-3)
    for rates, load in zip(played.flow_bps, loads, strict=True):
        full = load >= link_bps * (1 - 1e-6)
        for flow in np.flatnonzero(rates):  # work conservation: all who send meet a full link
            assert full[routes.link[routes.flow == flow]].any()
    for j, job in enumerate(jobs):
        assert len(played.finish_s[j]) == job.steps
        assert played.step_s(j).min() >= alone_s(job, routes, link_bps) * (1 - 1e-6)


@settings(deadline=None, max_examples=60)
@given(fabrics_with_jobs(), st.sampled_from(ORDERS[1:]))
def test_a_job_alone_runs_at_its_own_step_time(setup, order):
    (job, *_), routes, link_bps = setup
    played = play_jobs([job], routes, link_bps, order)
    np.testing.assert_allclose(played.step_s(0), alone_s(job, routes, link_bps), rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(fabrics_with_jobs())
def test_whoever_is_first_in_an_order_notices_nobody(setup):
    jobs, routes, link_bps = setup
    first = [Job(j.phases, j.flows, j.steps, j.start_s, k, j.weights) for k, j in enumerate(jobs)]
    played = play_jobs(first, routes, link_bps, "priority")
    np.testing.assert_allclose(played.step_s(0), alone_s(jobs[0], routes, link_bps), rtol=1e-6)


def test_fair_sharing_lets_one_flow_that_is_alone_have_its_link():
    job = Job((Phase(1.5, 1e9), Phase(0.0, 0.5e9)), (0,), steps=3, start_s=2.0)
    assert play_jobs([job], LINK, np.array([RATE])).finish_s[0].tolist() == [4.0, 6.0, 8.0]


@settings(deadline=None, max_examples=120)
@given(st.integers(1, 32), st.integers(1, 32), st.integers(0, 64))
def test_two_equal_jobs_are_as_their_closed_form_says(compute, send, late):
    compute_s, send_s = compute / 8, send / 8
    offset = min(late / 8, compute_s + send_s)
    phases = (Phase(compute_s), Phase(0.0, send_s * 1e9))
    pair = [Job(phases, (k,), 9, start) for k, start in ((0, 0.0), (1, offset))]
    played = play_jobs(pair, LINK, np.array([RATE]))
    # The steps of the first before the second has come, and of either after the other has ended,
    # are not those of two.
    expected = two_equal_jobs_s(compute_s, send_s, offset)
    for job in (0, 1):
        np.testing.assert_allclose(played.step_s(job)[1:-1], expected, rtol=1e-9)


def test_two_jobs_that_fit_hinder_each_other_only_by_their_offset():
    assert two_equal_jobs_s(3, 1, 1) == 4 == two_equal_jobs_s(3, 1, 3)
    assert two_equal_jobs_s(3, 1, 0) == 5
    assert two_equal_jobs_s(1, 3, 2) == 6  # twice what one sends
    with pytest.raises(TokenlifeError, match="offset"):
        two_equal_jobs_s(1, 1, 3)


def test_an_order_interleaves_in_one_step_what_fair_sharing_leaves_colliding():
    pair = [Job((Phase(2.0), Phase(0.0, 1e9)), (k,), 6, priority=k) for k in (0, 1)]
    fair = play_jobs(pair, LINK, np.array([RATE]))
    assert fair.step_s(0).tolist() == [4.0] * 6
    for order in ORDERS[1:]:
        played = play_jobs(pair, LINK, np.array([RATE]), order)
        assert played.step_s(0).tolist() == [3.0] * 6
        assert played.step_s(1).tolist() == [4.0] + [3.0] * 5


def test_the_least_first_is_best_for_the_mean_on_one_link():
    sizes = np.array([3.0, 1.0, 2.0, 5.0])
    coflows = [Job((Phase(0.0, s * 1e9),), (k,)) for k, s in enumerate(sizes)]
    routes, link = on_links(*[[0]] * 4), np.array([RATE])
    ends = {o: np.concatenate(play_jobs(coflows, routes, link, o).finish_s) for o in ORDERS}
    assert ends["srpt"].tolist() == ends["sebf"].tolist() == [6.0, 1.0, 3.0, 11.0]
    assert ends["fifo"].tolist() == [3.0, 4.0, 6.0, 11.0]
    # Fair: all share until the smallest is through, and so on.
    assert ends["fair"].tolist() == [9.0, 4.0, 7.0, 11.0]
    assert ends["srpt"].mean() == np.cumsum(np.sort(sizes)).mean()


def test_the_smallest_bottleneck_is_not_the_fewest_bytes():
    # Wide: four bytes over four links; narrow: three bytes, all over link 0.
    routes = on_links([0], [1], [2], [3], [0])
    wide, narrow = Job((Phase(0.0, 1e9),), (0, 1, 2, 3)), Job((Phase(0.0, 3e9),), (4,))
    rates = np.full(4, RATE)
    ends = {o: play_jobs([wide, narrow], routes, rates, o).finish_s for o in ("srpt", "sebf")}
    assert [float(e[0]) for e in ends["sebf"]] == [1.0, 4.0]
    # By bytes narrow goes first, for one second: then wide, which used its other links meanwhile,
    # has one byte left, narrow two.
    assert [float(e[0]) for e in ends["srpt"]] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Job((Phase(0.0),), (0,)), "take some time"),
        (lambda: Job((Phase(-1.0),), (0,)), "zero or more"),
        (lambda: Job((Phase(math.nan),), (0,)), "zero or more"),
        (lambda: Job((Phase(1.0, 1.0),), ()), "needs flows"),
        (lambda: Job((Phase(1.0, 1.0),), (0,), weights=(1.0, 2.0)), "weights"),
        (lambda: play_jobs([Job((Phase(1.0),), (0,))] * 2, LINK, [RATE]), "flows of its own"),
        (lambda: play_jobs([Job((Phase(1.0),), (7,))], LINK, [RATE]), "flows of its own"),
        (lambda: play_jobs([], LINK, [RATE], "lifo"), "no order"),
        (lambda: play_jobs([Job((Phase(0.0, 1.0),), (0,))], LINK, [0.0]), "without a rate"),
        (lambda: interleave([]), "demand"),
        (lambda: interleave([[-1.0]]), "demand"),
        (lambda: interleave([np.ones(400)] * 4), "fewer slots"),
        (lambda: autocorrelation(np.ones(9)), "differ"),
        (lambda: period_s(np.arange(9.0), 1.0), "no period"),
        (lambda: phases_of(play([Task("a", 0, "compute", 1)]), 3, 1.0), "does nothing"),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(TokenlifeError, match=says):
        make()


# ---- offsets ------------------------------------------------------------------------------------


def burst(period, sends):
    return np.arange(period) < sends


@settings(deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), st.data())
def test_two_bursts_can_miss_each_other_as_the_divisor_says(a, b, data):
    sends = [data.draw(st.integers(1, period)) for period in (a, b)]
    demands = [burst(a, sends[0]), burst(b, sends[1])]
    turns, least = interleave(demands)
    assert (least == 0) == can_avoid(a, sends[0], b, sends[1])
    assert excess(demands, turns) == pytest.approx(least)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 8), st.data())
def test_the_search_finds_what_trying_all_finds_and_never_less_than_the_bound(period, data):
    share = st.sampled_from([0.0, 0.5, 1.0])
    demands = [
        np.array(data.draw(st.lists(share, min_size=period, max_size=period))) for _ in range(3)
    ]
    _, least = interleave(demands)
    tried = [excess(demands, (0, i, j)) for i in range(period) for j in range(period)]
    assert least == pytest.approx(min(tried), abs=1e-12)
    assert least >= least_excess(demands) - 1e-12


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_single_bursts_of_equal_periods_meet_the_bound(sends):
    # Laid end to end they leave no slot empty, or none taken twice.
    demands = [burst(10, s) for s in sends]
    _, least = interleave(demands)
    assert least == pytest.approx(least_excess(demands), abs=1e-12)
    assert (least > 0) == (sum(sends) > 10)


def test_turns_without_excess_give_every_job_its_own_step_time():
    slots, sends = 12, (3, 4, 5)
    turns, least = interleave([burst(slots, s) for s in sends])
    assert least == 0
    routes = on_links([0], [0], [0])
    jobs = [
        Job((Phase(0.0, s * 1e9), Phase(float(slots - s))), (k,), 5, float(turn))
        for k, (s, turn) in enumerate(zip(sends, turns, strict=True))
    ]
    played = play_jobs(jobs, routes, np.array([RATE]))
    for k in range(3):
        np.testing.assert_allclose(played.step_s(k), slots)


# ---- rhythm -------------------------------------------------------------------------------------


def test_a_time_line_becomes_phases_that_take_as_long():
    tasks = [
        Task("f", 0, "compute", 2), Task("b1", 0, "compute", 2), Task("b2", 0, "compute", 1),
        Task("g1", 0, "gradients", 3, ("b1",)), Task("u", 0, "compute", 1, ("g1",)),
    ]  # fmt: skip
    line = play(tasks)
    phases = phases_of(line, 0, 1e9)
    assert [(p.compute_s, p.bytes_) for p in phases] == [(4.0, 0.0), (1.0, 3e9), (1.0, 0.0)]
    job = Job(phases, (0,), 2)
    assert play_jobs([job], LINK, np.array([RATE])).step_s(0).tolist() == [line.makespan_s] * 2


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=9))
def test_samples_add_up_to_what_was_sent(spans):
    edges = np.concatenate([[0], np.cumsum([length for length, _ in spans])])
    rates = np.array([rate for _, rate in spans], float)
    found = sample(edges, rates, 0.5)
    assert found.sum() == pytest.approx(float(np.diff(edges) @ rates))
    assert len(found) == 2 * edges[-1]


def test_the_autocorrelation_is_the_sum_it_is_said_to_be():
    x = np.random.default_rng(0).normal(size=50)
    y = x - x.mean()
    by_hand = [float(y[: 50 - k] @ y[k:] / (y @ y)) for k in range(50)]
    np.testing.assert_allclose(autocorrelation(x), by_hand, atol=1e-9)


@pytest.mark.parametrize("count", [64, 65])
def test_the_shares_of_a_spectrum_are_the_variance(count):
    x = np.random.default_rng(1).normal(size=count)
    frequencies, shares = spectrum(x, 0.01)
    assert shares.sum() == pytest.approx(1)
    wave = np.sin(2 * np.pi * frequencies[6] * 0.01 * np.arange(count))
    assert spectrum(wave, 0.01)[1][6] == pytest.approx(1)


@settings(deadline=None, max_examples=60)
@given(st.integers(20, 60), st.floats(0.1, 0.8), st.integers(0, 2**31))
def test_the_period_is_found_under_jitter(slots, share, seed):
    draw = np.random.default_rng(seed)
    step_s, edges, rates = slots * 0.01, [0.0], []
    for _ in range(20):
        on = share * step_s * draw.uniform(0.95, 1.05)
        edges += [edges[-1] + step_s - on, edges[-1] + step_s]
        rates += [0.0, 1e6]
    found = period_s(sample(np.array(edges), np.array(rates), 0.007), 0.007)
    assert abs(found / step_s - 1) < 0.01


def test_the_property_tests_can_fail():
    job = Job((Phase(0.0, 1e9),), (0,))
    played = play_jobs([job], LINK, np.array([RATE]))
    assert not np.allclose(played.sent_bytes(), [2e9, 0])
    assert all(b > a for a, b in pairwise(played.edges_s))
