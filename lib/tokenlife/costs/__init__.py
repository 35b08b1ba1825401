"""What a model costs: parameters, FLOPs and bytes, stage by stage."""

from tokenlife.costs.flops import Flops, forward_flops, stage_flops, training_flops
from tokenlife.costs.operations import CostError, Operation, layer_operations
from tokenlife.costs.parameters import (
    active_parameters,
    count_parameters,
    mtp_parameters,
    parameters_by_part,
)
from tokenlife.costs.stages import StageCost, forward_stages

__all__ = [
    "CostError",
    "Flops",
    "Operation",
    "StageCost",
    "active_parameters",
    "count_parameters",
    "forward_flops",
    "forward_stages",
    "layer_operations",
    "mtp_parameters",
    "parameters_by_part",
    "stage_flops",
    "training_flops",
]
