"""A simulated server, 100,000 requests: decode steps priced together beside one by one."""

import numpy as np
from harness import row, seconds
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.serving import Engine, Server, lengths, poisson, requests, server, simulate
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig

COUNT = 100_000


def main() -> None:
    """Time both on the same requests."""
    engine = Engine(ModelConfig.load("llama-3.1-70b"), Plan(tp=8), Cluster.load("dgx-h100"))
    asked = requests(
        poisson(COUNT, 6.0, 0),
        lengths(COUNT, 1020, 1154.7, 8000, 1),
        lengths(COUNT, 129, 211.13, 2000, 2),
    )
    found = {}

    def run(segment: int) -> None:
        server.SEGMENT = segment
        found[segment] = simulate(asked, engine, Server(256, 1_000_000)).table.end_s

    together, single = seconds(lambda: run(256)), seconds(lambda: run(1))
    assert np.allclose(found[256], found[1])
    row("serving, 100,000 requests", together, single, "step by step", "> 1.0×, ours < 30 s")


if __name__ == "__main__":
    main()
