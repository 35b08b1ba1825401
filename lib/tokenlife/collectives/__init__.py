"""Collective algorithms, each written once, as a schedule of sends in rounds."""

from tokenlife.collectives.definitions import DEFINITIONS, Definition, definition
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
    "ring_all_reduce",
    "run",
    "verify",
]
