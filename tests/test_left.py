"""The table that grows: its lines are the sums of what the library says elsewhere."""

import pytest
from tokenlife.catalog import running
from tokenlife.jobs import traffic
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.left import STRATEGIES, left, line
from tokenlife.parallel import Plan, PlanError
from tokenlife.transformer import ModelConfig


def test_each_line_sums_what_the_sweep_counts_for_its_axis():
    table = left(STRATEGIES)
    assert list(table.strategy) == list(STRATEGIES.values())
    for job in running()["large"]:
        swept = traffic.sweep(ModelConfig.load(job["model"]), Plan(**job["plan"])).iloc[0]
        for axis in job["axes"]:
            mine = table[table.strategy == STRATEGIES[axis]].iloc[0]
            assert mine.bytes == pytest.approx(swept[axis], rel=1e-9)


def test_time_is_latency_and_bytes_and_nothing_else():
    table = left(STRATEGIES)
    # Twice the latency and twice the time of a byte are twice the time.
    assert list(table.latency + table.rate) == pytest.approx([3.0] * len(table))
    assert (table.latency >= 1).all() and (table.rate >= 1).all()


def test_short_messages_wait_for_latency_and_long_ones_for_the_rate():
    config, cluster = ModelConfig.load("llama-3.1-8b"), Cluster.load("dgx-h100")
    short = line(config, Plan(tp=4, sequence=1), cluster, "tp")
    long = line(config, Plan(tp=4, sequence=1024), cluster, "tp")
    assert short["latency"] > 1.9 > 1.1 > short["rate"] and long["rate"] > long["latency"]


def test_an_axis_of_one_has_no_line():
    with pytest.raises(PlanError, match="axis 'cp' of size 1 leaves nothing"):
        line(ModelConfig.load("gpt2"), Plan(dp=2, sequence=8), Cluster.load("dgx-h100"), "cp")


def test_calls_that_hide_and_calls_that_wait_are_counted_apart():
    config, cluster = ModelConfig.load("llama-3.1-8b"), Cluster.load("dgx-h100")
    plain = Plan(tp=8, sequence=1024)
    assert line(config, plain, cluster, "tp")["behind"] == "nothing"
    split = line(config, Plan(tp=8, sequence=1024, sequence_parallel=True), cluster, "tp")
    # Two blocks a layer and the head gather their input again, behind a product; all else waits:
    # a gather or scatter at both ends of each, forward and backward, the loss, and norms' weights.
    ins = 2 * config.layers + 1
    waits = 4 * ins + 3 + 1
    assert split["behind"] == (
        f"nothing ({waits} calls); the product for the input's gradient ({ins} calls)"
    )
