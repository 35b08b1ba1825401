"""How a job is laid out over ranks, and which communication each strategy asks for."""

from tokenlife.parallel.data import data_parallel_ops
from tokenlife.parallel.ops import CommOp
from tokenlife.parallel.plan import Plan, PlanError

__all__ = ["CommOp", "Plan", "PlanError", "data_parallel_ops"]
