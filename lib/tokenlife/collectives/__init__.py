"""Collective algorithms, each written once, as a schedule of sends in rounds."""

from tokenlife.collectives.ring import ring_all_reduce
from tokenlife.collectives.schedule import Schedule, ScheduleError, Send
from tokenlife.collectives.verify import run, verify

__all__ = ["Schedule", "ScheduleError", "Send", "ring_all_reduce", "run", "verify"]
