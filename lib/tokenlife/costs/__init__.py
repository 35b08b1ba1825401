"""What a model costs: parameters, FLOPs and bytes, stage by stage."""

from tokenlife.costs.parameters import active_parameters, count_parameters, parameters_by_part
from tokenlife.costs.stages import StageCost, forward_stages

__all__ = [
    "StageCost",
    "active_parameters",
    "count_parameters",
    "forward_stages",
    "parameters_by_part",
]
