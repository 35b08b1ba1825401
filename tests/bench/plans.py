"""Plans priced in a second, and the whole legal space of Llama 3.1 405B on 16,384 GPUs."""

import statistics

import harness
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.search import search, space
from tokenlife.jobs.step import sweep_steps
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig

GPUS, BATCH, LENGTH, ROUNDS = 16_384, 2048, 8192, 3


def main():
    config, cluster = ModelConfig.load("llama-3.1-405b"), Cluster.load("llama3-24k")
    plans = space(config, GPUS, Plan(sequence=LENGTH, global_batch=BATCH))
    number = sum(len(each.pp) for each in plans)
    priced = [
        harness.seconds(lambda: [sweep_steps(config, each, cluster) for each in plans])
        for _ in range(ROUNDS)
    ]
    took = statistics.median(priced)
    what = f"{number:,} plans priced, {number / took:,.0f} plans/s"
    harness.row(what, took, number / 1e5, "100,000 plans/s", "≥ 1.0×")
    whole = [
        harness.seconds(lambda: search(config, cluster, GPUS, BATCH, LENGTH)) for _ in range(ROUNDS)
    ]
    harness.row("405B on 16,384 GPUs, searched", statistics.median(whole), 5.0, "5 s", "≥ 1.0×")


if __name__ == "__main__":
    main()
