"""FLOPs of a model: forward, backward, and what recomputation adds.

A matrix product C = A·B costs 2·m·k·n forward. Backward costs twice as much, one product for the
gradient of A and one for that of B. A fused attention kernel does not keep the scores and computes
them once more on its way back: five products instead of four, 2.5 times its forward pass.

Recomputation (Korthikanti et al. 2022) trades FLOPs for memory. ``selective`` runs the core of
attention (scores, softmax, mixing) again; ``full`` runs each layer again from its input.

Left out: everything that is no matrix product, and the optimiser (a few FLOPs per parameter and
step, however many tokens the step has).
"""

from dataclasses import dataclass

from tokenlife.costs.operations import (
    CostError,
    check_batch,
    head_operation,
    layer_operations,
)
from tokenlife.transformer.config import ModelConfig

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Flops:
    """FLOPs of one stage, or of a sum of stages, over a batch.

    Attributes
    ----------
    stage
        ``embedding``, ``layer 0`` …, ``head``, or ``model``.
    forward, backward
        Of the two passes.
    recomputed
        Run again in the backward pass because it was not kept.
    """

    stage: str
    forward: int
    backward: int
    recomputed: int = 0

    @property
    def total(self) -> int:
        """All FLOPs that the hardware does."""
        return self.forward + self.backward + self.recomputed


def stage_flops(
    config: ModelConfig,
    sequences: int,
    length: int,
    causal: bool = False,
    past: int = 0,
    recompute: str = "none",
    fused: bool = False,
) -> tuple[Flops, ...]:
    """Count the FLOPs of each stage.

    Parameters
    ----------
    config
        A model of any family.
    sequences, length
        Sequences in the batch, and tokens in each.
    causal
        Count only the keys that a query may look at; else the whole square.
    past
        Tokens of each sequence that are in the cache already.
    recompute
        ``none``, ``selective`` or ``full``.
    fused
        Whether the backward pass of attention runs as one kernel that computes the scores again.

    Raises
    ------
    CostError
        If the batch is empty or too long, or the recomputation is not known.

    Examples
    --------
    >>> stages = stage_flops(ModelConfig.load("gpt2"), sequences=1, length=1024)
    >>> stages[1].forward, stages[-1].forward, len(stages)
    (17716740096, 79047426048, 14)
    """
    check_batch(config, sequences, length, past)
    if recompute not in RECOMPUTE:
        raise CostError(f"recompute {recompute!r} is not known; known: {', '.join(RECOMPUTE)}")
    stages = [Flops("embedding", 0, 0)]
    for layer in range(config.layers):
        operations = layer_operations(config, layer, sequences, length, past, causal)
        forward = sum(operation.flops for operation in operations)
        core = sum(operation.flops for operation in operations if operation.core)
        backward = 2 * forward + (core // 2 if fused else 0)
        again = {"none": 0, "selective": core, "full": forward}[recompute]
        stages.append(Flops(f"layer {layer}", forward, backward, again))
    head = head_operation(config, sequences * length).flops
    return (*stages, Flops("head", head, 2 * head))


def forward_flops(
    config: ModelConfig, sequences: int, length: int, causal: bool = False, past: int = 0
) -> int:
    """Count the FLOPs of a forward pass.

    Examples
    --------
    >>> forward_flops(ModelConfig.load("gpt2"), 1, 1024)
    291648307200
    >>> forward_flops(ModelConfig.load("gpt2"), 1, 1024, causal=True)
    272339828736
    """
    return sum(stage.forward for stage in stage_flops(config, sequences, length, causal, past))


def training_flops(
    config: ModelConfig,
    sequences: int,
    length: int,
    causal: bool = False,
    recompute: str = "none",
    fused: bool = False,
) -> Flops:
    """Count the FLOPs of a training step's forward and backward pass.

    Examples
    --------
    >>> step = training_flops(ModelConfig.load("gpt2"), 1, 1024)
    >>> step.total == 3 * step.forward
    True
    """
    stages = stage_flops(config, sequences, length, causal, 0, recompute, fused)
    return Flops(
        "model",
        sum(stage.forward for stage in stages),
        sum(stage.backward for stage in stages),
        sum(stage.recomputed for stage in stages),
    )
