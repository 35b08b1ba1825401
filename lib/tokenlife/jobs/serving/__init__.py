"""Serving simulated: requests, what a pass takes, and a server that batches them."""

from tokenlife.jobs.serving.disaggregated import disaggregated
from tokenlife.jobs.serving.engine import BOUND, Engine
from tokenlife.jobs.serving.requests import (
    ServingError,
    lengths,
    poisson,
    prefix_hits,
    read_trace,
    requests,
)
from tokenlife.jobs.serving.server import Served, Server, simulate

__all__ = [
    "BOUND", "Engine", "Served", "Server", "ServingError", "disaggregated", "lengths", "poisson",
    "prefix_hits", "read_trace", "requests", "simulate",
]  # fmt: skip
