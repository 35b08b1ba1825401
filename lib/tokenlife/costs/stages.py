"""The work of each stage of a model's forward pass: FLOPs, and the bytes it reads, keeps and passes on.

Conventions: a multiply–add is two FLOPs; only matrix products are counted, as torch's own counter
does; attention is counted over the full S × S square, although half of it is masked. ``activation``
bytes are what autograd keeps for the backward pass on the naive attention path, without dropout and
without recomputation.

Left out: the optimiser, and fused attention (which does not keep the S × S square).
"""

from dataclasses import dataclass

from tokenlife.costs.parameters import parameters_by_part
from tokenlife.costs.operations import CostError
from tokenlife.transformer.config import ModelConfig


@dataclass(frozen=True)
class StageCost:
    """The work of one stage for one batch.

    Attributes
    ----------
    stage
        ``embedding``, ``layer 0`` …, ``head``.
    flops
        Forward FLOPs; the backward pass takes twice as many.
    weight_bytes
        Parameters read.
    activation_bytes
        Kept for the backward pass.
    output_bytes
        Handed to the next stage: what a network would carry if the model were cut here.
    """

    stage: str
    flops: int
    weight_bytes: int
    activation_bytes: int
    output_bytes: int


def forward_stages(
    config: ModelConfig, sequences: int, length: int, bytes_per_number: int = 4
) -> tuple[StageCost, ...]:
    """Cost each stage of a forward pass over ``sequences`` sequences of ``length`` tokens.

    Parameters
    ----------
    config
        A GPT-2-family model.
    sequences
        Sequences in the batch.
    length
        Tokens in each, at most ``config.positions``.
    bytes_per_number
        4 for float32, 2 for bfloat16.

    Raises
    ------
    CostError
        If the batch is empty or longer than the model's positions.

    Examples
    --------
    >>> stages = forward_stages(ModelConfig.load("gpt2"), sequences=1, length=1024)
    >>> len(stages), stages[1].output_bytes, sum(stage.flops for stage in stages)
    (14, 3145728, 291648307200)
    """
    if sequences < 1 or length < 1:
        raise CostError("a batch needs at least one sequence of at least one token")
    if length > config.positions:
        raise CostError(
            f"{length} tokens are more than the {config.positions} positions of {config.name}"
        )
    hidden, ffn = config.hidden, config.mlp.width
    tokens = sequences * length
    parts = parameters_by_part(config)
    norm = 2 * hidden
    output = tokens * hidden * bytes_per_number

    embedding = StageCost(
        stage="embedding",
        flops=0,  # a look-up
        weight_bytes=(parts["token embedding"] + parts["position embedding"]) * bytes_per_number,
        activation_bytes=(tokens + length) * 8,  # the indices of both look-ups, int64
        output_bytes=output,
    )

    scores = sequences * config.attention.heads * length * length
    # Kept: both norms' inputs and outputs, q, k, v, the joined heads, and the MLP's two inner
    # tensors; the softmax's square; each norm's mean and reciprocal deviation (float32 always).
    kept = tokens * (8 * hidden + 2 * ffn) + scores
    layer_weights = (parts["attention"] + parts["mlp"]) // config.layers + 2 * norm
    layer = StageCost(
        stage="layer",
        flops=2 * tokens * (4 * hidden * hidden + 2 * hidden * ffn)
        + 2 * (2 * scores * config.attention.head_dim),
        weight_bytes=layer_weights * bytes_per_number,
        activation_bytes=kept * bytes_per_number + 2 * (2 * tokens * 4),
        output_bytes=output,
    )
    layers = [
        StageCost(f"layer {i}", layer.flops, layer.weight_bytes, layer.activation_bytes, output)
        for i in range(config.layers)
    ]

    head = StageCost(
        stage="head",
        flops=2 * tokens * hidden * config.vocab,
        # A tied head reads the embedding table again: these bytes are read, not owned.
        weight_bytes=(config.vocab * hidden + norm) * bytes_per_number,
        activation_bytes=2 * tokens * hidden * bytes_per_number + 2 * tokens * 4,
        output_bytes=tokens * config.vocab * bytes_per_number,
    )
    return (embedding, *layers, head)
