"""A job over sites: closed forms beside schedules and time lines that are played out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.collectives import build
from tokenlife.collectives.cost import Hockney, Tiers, price
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.crossing import Crossing
from tokenlife.jobs.sites import (
    Distance,
    SitesError,
    break_even_bps,
    flat_ring_s,
    hierarchical_s,
    overlapped_s,
)
from tokenlife.jobs.timeline import Task, pipeline_tasks, play
from tokenlife.lab.cluster import LabError
from tokenlife.lab.gloo_time import ring_seconds
from tokenlife.parallel import Plan
from tokenlife.parallel.schedules import Action, pipeline_schedule
from tokenlife.transformer import ModelConfig


def ring_played(sites, per_site, delay_s, block_s):
    """Send block after block around a ring; a line carries one at a time."""
    ranks = sites * per_site
    have, free = np.zeros((2, ranks))
    for _ in range(2 * (ranks - 1)):
        come = np.zeros(ranks)
        for rank in range(ranks):
            to = (rank + 1) % ranks
            far = rank // per_site != to // per_site
            free[rank] = max(have[rank], free[rank]) + far * block_s
            come[to] = free[rank] + far * delay_s
        have = come
    return have.max()


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 4), st.integers(1, 5), st.floats(0, 1), st.floats(1e-3, 1))
def test_a_flat_ring_ends_when_it_is_played_to_its_end(sites, per_site, delay_s, block_s):
    far = Distance(delay_s, 8 / block_s, sites)
    ring_s = flat_ring_s(far, sites * per_site, per_site)
    assert ring_s == pytest.approx(ring_played(sites, per_site, delay_s, block_s))
    assert flat_ring_s(far, sites * per_site, per_site, lockstep=True) >= ring_s - 1e-12


@pytest.mark.parametrize("gateways", [1, 2, 3, 6])
@pytest.mark.parametrize("sites", [2, 3])
def test_gateways_cost_what_their_schedule_costs(sites, gateways):
    items = 36 * sites
    inside, delay_s, byte_s = Hockney(1e-5, 1e-9), 0.01, 1e-6
    between = Hockney(delay_s + inside.alpha_s, gateways * byte_s)  # they share the line
    schedule = build("all_reduce", "gateways", 6 * sites, node=6, gateways=gateways)
    played = price(schedule, items, 4, Tiers(inside, between, node=6)).time_s
    far = Distance(delay_s, 8 / byte_s, sites)
    wide = {"inside_Bps": 1e9, "inside_s": 1e-5}
    assert hierarchical_s(far, 4 * items, 6, gateways, **wide) == pytest.approx(played)
    # A narrow way out of each rank is what more gateways are for.
    narrow = [hierarchical_s(far, 1e6, 6, g, inside_Bps=1e5) for g in (1, 2, 6)]
    assert narrow == sorted(narrow, reverse=True)


def test_summing_at_home_first_halves_what_crosses():
    far = Distance(0.0, 1e9)
    flat, at_home = flat_ring_s(far, 1e9, 512), hierarchical_s(far, 1e9, 512)
    assert flat / at_home == pytest.approx(2, rel=0.002)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.floats(0, 0.5), st.floats(0.01, 2))
def test_buckets_are_seen_as_a_queue_shows_them(buckets, under_way, delay_s, window_s):
    far, bytes_ = Distance(delay_s, 1e8), 4_000_000
    seen = overlapped_s(far, bytes_, window_s, buckets, under_way)
    carry = far.carry_s(bytes_ / buckets)
    line, ends = 0.0, []
    for number in range(buckets):
        ready = window_s * (number + 1) / buckets
        begins = max([ready, line, *ends[number - under_way :][: number >= under_way]])
        line = begins + carry
        ends.append(line + 2 * delay_s)
    played = ends[-1] - window_s
    # Exact where the line is what all wait for, or one is under way; else at most a round trip off.
    assert seen == pytest.approx(played, abs=carry + 2 * delay_s)
    if under_way == 1 or carry * under_way >= carry + 2 * delay_s:
        assert seen == pytest.approx(played)


def far_tasks(schedule, stages, sites, delay_s, carry_s):
    """Let sends between sites occupy their stream for what they carry, and arrive later."""
    late, tasks = {}, []
    for task in pipeline_tasks(schedule, {"F": 1, "B": 1, "W": 1}, send_s=1e-9):
        if task.stream.startswith("send"):
            to = task.rank + (1 if task.stream.endswith("F") else -1)
            if to * sites // stages != task.rank * sites // stages:
                late[task.name] = f"fly {task.name}"
                tasks.append(replace(task, duration_s=carry_s))
                tasks.append(
                    Task(late[task.name], task.rank, late[task.name], delay_s, (task.name,))
                )
                continue
        tasks.append(task)
    waits = [tuple(late.get(a, a) if t.stream == "compute" else a for a in t.after) for t in tasks]
    return [replace(task, after=after) for task, after in zip(tasks, waits, strict=True)]


def job(stages, micro_batches):
    times = {"step_s": 3.0 * (micro_batches + stages - 1), "backward_s": 2.0, "stage_s": 3.0}
    sizes = {"gradient_bytes": 1, "parameters": 1, "stream_bytes": 1, "tensor_waits": 1}
    shape = {"stages": stages, "micro_batches": micro_batches, "chunks": 1}
    return Crossing(**times, **sizes, **shape, tensor_bytes=1.0)


def warmer(stages, micro_batches, sites, extra):
    """1F1B in which the stages before a border hold more."""
    found = []
    for stage in range(stages):
        borders = sites - 1 - stage * sites // stages
        warm = min(micro_batches, stages - stage - 1 + extra * borders)
        actions = [Action("F", stage, i) for i in range(warm)]
        for i in range(micro_batches - warm):
            actions += [Action("F", stage, warm + i), Action("B", stage, i)]
        actions += [Action("B", stage, i) for i in range(micro_batches - warm, micro_batches)]
        found.append(tuple(actions))
    return tuple(found)


@pytest.mark.parametrize(("delay_s", "carry_s"), [(0.3, 0.05), (1.0, 1.0), (8.0, 0.5), (3.0, 2.0)])
@pytest.mark.parametrize(("stages", "sites"), [(4, 2), (8, 2), (8, 4), (6, 3)])
def test_a_pipeline_over_sites_takes_what_its_time_line_takes(stages, sites, delay_s, carry_s):
    m, far = 32, Distance(delay_s, 8 / carry_s, sites)
    line = play(far_tasks(pipeline_schedule("1f1b", stages, m), stages, sites, delay_s, carry_s))
    assert job(stages, m).pipeline_s(far) == pytest.approx(line.makespan_s, rel=0.005)
    full = int(job(stages, m).fills(far))
    assert job(stages, m).stall_s(far, full) == 0 < job(stages, m).stall_s(far, full - 1)
    for extra, within in ((1, 0.06), (full, 1e-6)):
        tasks = far_tasks(warmer(stages, m, sites, extra), stages, sites, delay_s, carry_s)
        got = job(stages, m).pipeline_s(far, extra)
        assert got == pytest.approx(play(tasks).makespan_s, rel=within)


@pytest.fixture(scope="module")
def large():
    plan = Plan(tp=8, pp=16, dp=128, sequence=8192, global_batch=2048, zero=1)
    return Crossing.of(ModelConfig.load("llama-3.1-405b"), plan, Cluster.load("llama3-24k"))


def test_what_may_cross_and_what_never(large):
    far = Distance(np.array([[1e-3], [5e-2]]), np.array([1e11, 1e12, 1e13]))
    data, local, line, tensor = (
        large.data_s(far), large.local_s(far, 100), large.pipeline_s(far), large.tensor_s(far),
    )  # fmt: skip
    for costs in (data, local, line, tensor):
        assert costs.shape == (2, 3)
        assert (np.diff(costs, axis=1) < 0).all() and (np.diff(costs, axis=0) > 0).all()
        assert (costs > large.step_s).all()
    assert (tensor > np.maximum(data, line)).all() and (local < data).all()
    assert (tensor > 10 * large.step_s).all()
    assert large.local_s(far, 100, hidden_steps=200) == pytest.approx(large.step_s)
    # An exchange of 4 bits every 100 steps is 1/800 of one of 32 at each.
    near = Distance(0.0, 1e12)
    seen = [large.local_s(near, *use) - large.step_s for use in ((1, 32), (100, 4))]
    assert seen[0] / seen[1] == pytest.approx(800)


def test_break_even_is_where_the_step_is_what_was_asked(large):
    delays = np.array([1e-3, 1e-2, 5e-2])
    most = 1.1 * large.step_s

    def cost(rate_bps):
        return large.data_s(Distance(delays, rate_bps))

    rates = break_even_bps(cost, np.full(3, most))
    assert cost(rates) == pytest.approx(most, rel=1e-9)
    assert (np.diff(rates) > 0).all()
    never = break_even_bps(lambda r: large.tensor_s(Distance(delays, r)), np.full(3, most))
    assert np.isinf(never[-1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Distance(0.1, 1e9, 1), "at least 2"),
        (lambda: Distance(-0.1, 1e9), "delay_s must be 0 or more"),
        (lambda: Distance(0.1, np.array([1e9, 0])), "rate_bps must be above 0"),
        (lambda: Distance(float("nan"), 1e9), "delay_s"),
        (lambda: flat_ring_s(Distance(0.1, 1e9), 1, 0), "per_site must be at least 1"),
        (lambda: hierarchical_s(Distance(0.1, 1e9), 1, 4, 3), "3 gateways cannot share the 4"),
        (lambda: overlapped_s(Distance(0.1, 1e9), 1, 1.0, 0), "buckets"),
        (lambda: job(4, 8).local_s(Distance(0.1, 1e9), 0), "every must be at least 1"),
        (lambda: job(4, 8).stall_s(Distance(0.1, 1e9, 3)), "4 stages must lie evenly at 3"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, words):
    with pytest.raises(SitesError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_ring_of_gloo_asks_and_is_answered_two_segments_at_a_time():
    far = {"site_of": [0, 0, 1, 1], "delay_s": 0.05}
    # Small: two delays in each of six rounds. Large: as long as the line carries it.
    assert ring_seconds([range(4)], 4096, rate_bps=1e9, **far) == pytest.approx(0.6, rel=0.01)
    large = ring_seconds([range(4)], 1 << 26, rate_bps=1e7, **far)
    assert large == pytest.approx(1.5 * (1 << 26) * 8 / 1e7 * 1514 / 1448, rel=0.04)
    # However fast the line, two segments of 1 MiB in a question and its answer.
    ring = ring_seconds([range(4)], 1 << 26, rate_bps=1e12, **far)
    assert ring == pytest.approx(1.5 * 64 / 2 * 2 * 0.05, rel=0.02)
    both = ring_seconds([[0, 2], [1, 3]], 1 << 20, rate_bps=1e8, **far)
    alone = ring_seconds([[0, 2]], 1 << 21, rate_bps=1e8, **far)
    assert both == pytest.approx(alone, rel=0.2)
    assert ring_seconds([[0], [1]], 1024, rate_bps=1e8, **far) == 0
    with pytest.raises(LabError, match="needs bytes, a delay and a rate"):
        ring_seconds([range(4)], 1024, rate_bps=0, **far)
