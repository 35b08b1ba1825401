"""Pipeline schedules and the time line: order, memory, bubbles, and torch's own tables."""

from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.jobs.timeline import Task, TimelineError, pipeline_tasks, play
from tokenlife.parallel import Plan, PlanError
from tokenlife.parallel.memory import in_flight
from tokenlife.parallel.plan import SCHEDULES
from tokenlife.parallel.schedules import pipeline_schedule

UNIT = {"F": 1.0, "B": 1.0, "W": 1.0}


def chunks(name: str) -> int:
    return 2 if name in ("interleaved", "zb-v") else 1


@st.composite
def schedules(draw):
    name, stages = draw(st.sampled_from(SCHEDULES)), draw(st.integers(1, 6))
    micro_batches = draw(st.integers(1, 14))
    if name == "interleaved":
        micro_batches = stages * draw(st.integers(1, 3))
    return name, stages, micro_batches


@settings(deadline=None)
@given(schedules())
def test_every_micro_batch_passes_every_chunk_once_forward_then_backward(drawn):
    name, stages, micro_batches = drawn
    schedule = pipeline_schedule(name, stages, micro_batches)
    split = name.startswith("zb")
    seen = [action for actions in schedule for action in actions]
    assert len(seen) == len(set(seen)) == (2 + split) * micro_batches * stages * chunks(name)
    for actions in schedule:
        place = {action: i for i, action in enumerate(actions)}
        for action in actions:
            if action.kind == "B":
                assert place[action._replace(kind="F")] < place[action]
            if action.kind == "W":
                assert place[action._replace(kind="B")] < place[action]


@settings(deadline=None)
@given(schedules(), st.floats(0, 2))
def test_played_in_order_across_stages_and_within_memory(drawn, send_s):
    name, stages, micro_batches = drawn
    schedule = pipeline_schedule(name, stages, micro_batches)
    line = play(pipeline_tasks(schedule, {"F": 1.0, "B": 1.5, "W": 0.5}, send_s))
    at = {t.name: (s, f) for t, s, f in zip(line.tasks, line.start_s, line.finish_s, strict=True)}
    for actions in schedule:
        for kind, chunk, i in actions:
            step = {"F": 1, "B": -1, "W": 0}[kind]
            after = f"{chunk + step}{kind}{i}"
            if step and after in at:
                assert at[f"{chunk}{kind}{i}"][1] <= at[after][0]
    for rank in range(stages):
        spans = line.spans(rank)
        assert (spans[1:, 0] >= spans[:-1, 1] - 1e-9).all(), "a stream does one thing at a time"
        plan = Plan(
            pp=stages, schedule=name, virtual=chunks(name) if stages > 1 else 1,
            global_batch=micro_batches,
        )  # fmt: skip
        if stages > 1:
            bound = in_flight(plan, rank)
            exact = name != "zb-v" or micro_batches >= 2 * stages - 1
            assert line.most_held(rank) == bound if exact else line.most_held(rank) <= bound


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("times", [(1, 1, 1), (1, 1.25, 0.75)])
def test_bubbles_are_the_closed_forms(stages, times):
    forward, backward, weights = times
    durations = {"F": forward, "B": backward, "W": weights}
    whole = forward + backward + weights
    closed = {
        "gpipe": whole,
        "1f1b": whole,
        "interleaved": whole / 2,  # of chunks half as long
        "zb-h1": forward + backward - weights,
        "zb-h2": forward + backward - 2 * weights,
    }
    for name, each in closed.items():
        each = each * 2 if name == "interleaved" else each
        for micro_batches in (2 * stages, 4 * stages):
            line = play(pipeline_tasks(pipeline_schedule(name, stages, micro_batches), durations))
            bubble = max(line.bubble_s(rank) for rank in range(stages))
            assert bubble == pytest.approx((stages - 1) * each), name
            work = micro_batches * whole * chunks(name)
            assert line.bubble_fraction == pytest.approx(bubble / (bubble + work)), name


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_zero_bubble_v_has_none_where_all_work_is_alike(stages):
    line = play(pipeline_tasks(pipeline_schedule("zb-v", stages, 2 * stages), UNIT))
    assert [line.bubble_s(rank) for rank in range(stages)] == [0] * stages
    assert [line.most_held(rank) for rank in range(stages)] == [2 * stages] * stages


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (8, 32), (16, 128)])
def test_bubble_rates_as_published(stages, micro_batches):
    """Qi et al.'s table: 1F1B (p − 1)/(m + p − 1) = B; ZB-H1 B/3 of its own, memory 1 and 2 times.

    With F = B = W; ZB-H1's bubble is a third of 1F1B's seconds.
    """
    lines = {
        name: play(pipeline_tasks(pipeline_schedule(name, stages, micro_batches), UNIT))
        for name in ("1f1b", "zb-h1", "zb-h2")
    }
    published = (stages - 1) / (micro_batches + stages - 1)
    assert lines["1f1b"].bubble_fraction == pytest.approx(published)
    assert lines["zb-h1"].bubble_s(0) == lines["1f1b"].bubble_s(0) / 3
    assert lines["zb-h2"].bubble_fraction == 0
    held = {name: max(map(line.most_held, range(stages))) for name, line in lines.items()}
    assert held == {"1f1b": stages, "zb-h1": stages, "zb-h2": 2 * stages - 1}


# ---- torch as a judge ---------------------------------------------------------------------


def torch_table(name: str, stages: int, micro_batches: int):
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    from torch.distributed.pipelining.stage import _PipelineStageBase

    classes = {
        "gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B",
        "zb-h1": "ScheduleInterleavedZeroBubble", "zb-v": "ScheduleZBVZeroBubble",
    }  # fmt: skip
    virtual, fakes = chunks(name), []
    for k in range(virtual):
        fakes.append(MagicMock(spec=_PipelineStageBase))
        fakes[-1].configure_mock(
            group_size=stages, group_rank=0, num_stages=stages * virtual, stage_index=k * stages,
            has_backward=True, is_first=False, is_last=False, submod=None, group=None, device="cpu",
            stage_index_to_group_rank={i: i % stages for i in range(stages * virtual)},
        )  # fmt: skip
    single = name in ("gpipe", "1f1b")
    schedule = getattr(pipelining, classes[name])(
        fakes[0] if single else fakes, micro_batches, loss_fn=lambda *_: 0
    )
    order = schedule._get_pipeline_order() if single else schedule.pipeline_order
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
    return [
        [
            (kinds[a.computation_type.name], a.stage_index, a.microbatch_index)
            for a in order[rank]
            if a is not None and a.computation_type.name in kinds
        ]
        for rank in range(stages)
    ]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"])
@pytest.mark.parametrize(("stages", "rounds"), [(2, 1), (2, 3), (4, 1), (4, 2), (5, 3)])
def test_schedules_are_those_of_torch(name, stages, rounds):
    theirs = torch_table(name, stages, stages * rounds)
    if name == "1f1b" and theirs[-1][0] == ("F", stages - 1, 1):
        # Torch's table (not its run) numbers the last stage's forwards from 1.
        theirs[-1] = [(kind, chunk, i - (kind == "F")) for kind, chunk, i in theirs[-1]]
    mine = pipeline_schedule(name, stages, stages * rounds)
    assert [[tuple(action) for action in actions] for actions in mine] == theirs


# ---- the time line ------------------------------------------------------------------------


def test_a_send_that_takes_time_makes_the_pipeline_slower_and_is_seen():
    tasks = pipeline_tasks(pipeline_schedule("1f1b", 4, 8), UNIT, send_s=0.5)
    line = play(tasks)
    plain = play(pipeline_tasks(pipeline_schedule("1f1b", 4, 8), UNIT))
    assert line.makespan_s > plain.makespan_s == 8 * 3 + 9
    assert line.busy_s(0, "send F") == 8 * 0.5
    assert 0 < line.exposed_s(0, "send F") <= line.busy_s(0, "send F")


def test_gradients_hide_behind_what_is_left_of_the_backward_pass():
    alone = play([Task("b", 0, "compute", 4.0), Task("g", 0, "dp", 3.0, after=("b",))])
    assert alone.exposed_s(0, "dp") == 3 and alone.makespan_s == 7
    layers = [Task(f"b{i}", 0, "compute", 1.0) for i in range(4)]
    buckets = [Task(f"g{i}", 0, "dp", 0.75, after=(f"b{i}",)) for i in range(4)]
    overlapped = play([*layers, *buckets])
    assert overlapped.exposed_s(0, "dp") == 0.75 and overlapped.makespan_s == 4.75
    job = play(pipeline_tasks(pipeline_schedule("interleaved", 2, 4), UNIT, gradients_s=2.0))
    assert job.busy_s(1, "gradients") == 4.0


def test_utilisation_counts_the_ranks_that_work():
    line = play(pipeline_tasks(pipeline_schedule("gpipe", 4, 4), UNIT))
    curve = line.utilisation(np.arange(line.makespan_s) + 0.5)
    assert curve.mean() == pytest.approx(4 * 4 * 3 / (4 * line.makespan_s))
    assert curve[:4].tolist() == [0.25, 0.5, 0.75, 1.0]


def test_tasks_that_can_never_start_are_refused():
    with pytest.raises(TimelineError, match="2 tasks can never start, among them a"):
        play([Task("a", 0, "x", 1, after=("b",)), Task("b", 1, "x", 1, after=("a",))])
    with pytest.raises(TimelineError, match="comes twice"):
        play([Task("a", 0, "x", 1), Task("a", 1, "x", 1)])
    with pytest.raises(PlanError, match="multiple of pp=4 micro-batches, not 6"):
        pipeline_schedule("interleaved", 4, 6)


@settings(deadline=None)
@given(st.permutations(range(12)))
def test_the_time_line_does_not_depend_on_how_streams_are_mixed(order):
    tasks = pipeline_tasks(pipeline_schedule("1f1b", 3, 2), UNIT)
    streams = {rank: [t for t in tasks if t.rank == rank] for rank in range(3)}
    mixed = [streams[i % 3].pop(0) for i in order]
    times = play(tasks)
    again = play(mixed)
    assert times.tasks == again.tasks and (times.start_s == again.start_s).all()
