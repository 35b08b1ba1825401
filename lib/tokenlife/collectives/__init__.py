"""Collective algorithms, each written once, as a schedule of sends in rounds."""

from tokenlife.collectives import (  # noqa: F401 - each registers its algorithms
    bruck,
    direct,
    gateways,
    hierarchical,
    in_network,
    recursive,
    ring,
    torus,
    tree,
)
from tokenlife.collectives.compose import pipelined, reverse
from tokenlife.collectives.definitions import DEFINITIONS, Definition, definition
from tokenlife.collectives.direct import uneven_all_to_all
from tokenlife.collectives.registry import Algorithm, algorithm, algorithms, build
from tokenlife.collectives.ring import ring_all_reduce
from tokenlife.collectives.schedule import Round, Schedule, ScheduleError, Send
from tokenlife.collectives.terms import Terms
from tokenlife.collectives.verify import run, verify

__all__ = [
    "DEFINITIONS",
    "Algorithm",
    "Definition",
    "Round",
    "Schedule",
    "ScheduleError",
    "Send",
    "Terms",
    "algorithm",
    "algorithms",
    "build",
    "definition",
    "pipelined",
    "reverse",
    "ring_all_reduce",
    "run",
    "uneven_all_to_all",
    "verify",
]
