"""Whole jobs: the rooms below put together."""

from tokenlife.jobs.trace import Trace, TraceError, trace

__all__ = ["Trace", "TraceError", "trace"]
