"""How a job is laid out over ranks, and which communication each strategy asks for."""

from tokenlife.parallel.communication import communication, demands
from tokenlife.parallel.data import data_parallel_ops, ddp_buckets
from tokenlife.parallel.ops import CommOp, Demand
from tokenlife.parallel.plan import Plan, PlanError, Plans

__all__ = [
    "CommOp", "Demand", "Plan", "PlanError", "Plans", "communication", "data_parallel_ops",
    "ddp_buckets", "demands",
]  # fmt: skip
