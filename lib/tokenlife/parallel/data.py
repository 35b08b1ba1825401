"""Data parallelism: every rank holds the whole model and reads its own part of the batch.

After the backward pass the ranks hold different gradients for the same parameters. One all-reduce
in each data-parallel group makes them equal: a sum, from which each rank takes the mean. Its size
is that of the gradients and does not depend on the batch. Context-parallel ranks hold the same
parameters too, so the group is dp × cp; of experts it is edp.

DDP [1]_ cuts the gradients into buckets and sends each as soon as it is full, behind the rest of
the backward pass. ZeRO [2]_ shards what every rank would hold alike: 1 optimiser states (gradients
are reduce-scattered, new weights all-gathered, once a step), 2 gradients too (reduce-scattered
after every micro-batch: nobody keeps the sum of all), 3 weights too (gathered unit by unit before
forward and backward of every micro-batch). FSDP [3]_ is ZeRO-3 by units, and ZeRO-2 where weights
stay after forward. With ``replicate`` above 1 (HSDP, MiCS) states are sharded inside a group, and
the shards of gradients all-reduced between groups.

Left out: padding of shards that do not come out even, the scalar of gradient clipping, PyTorch's
broadcast of the first weights. Experts are sharded over all of edp, whatever ``replicate`` says.

References
----------
.. [1] S. Li et al., "PyTorch distributed: experiences on accelerating data parallel training",
   VLDB 2020.
.. [2] S. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
   models", SC'20.
.. [3] Y. Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel",
   VLDB 2023.
"""

from collections.abc import Iterator, Sequence

from tokenlife.parallel.ops import CommOp, Demand
from tokenlife.parallel.plan import Plan
from tokenlife.parallel.shards import Holding
from tokenlife.transformer.config import ModelConfig

_SHARD = {"dp_cp": "shard", "edp": "edp"}


def data_demands(config: ModelConfig, plan: Plan, held: Holding) -> Iterator[Demand]:
    """Yield what one rank of a pipeline stage asks for."""
    wide, narrow, m, zero = plan.gradient_bytes, plan.states.weights, plan.micro_batches, plan.zero
    ahead = "the forward pass before it" if plan.overlap else ""
    for numbers, over in zip(held.parameters(), ("edp", "dp_cp"), strict=True):
        for size, count in _cut(numbers, plan.bucket_bytes // wide):
            ready = "the gradients of the last micro-batch"
            yield _sum(plan, "all_reduce", over, size, count * (zero == 0), ready)
            yield from _scattered(plan, size, over, count * (zero == 1), ready)
            shard, step = _SHARD[over], ("optimiser", count * (zero == 1), "the optimiser's step")
            yield Demand("all_gather", shard, size, narrow, *step, ahead)
    for unit in held.units:
        name, gathers = unit.name, unit.times * ((zero == 2) + m * (zero == 3))
        for numbers, over in ((unit.split + unit.whole, "dp_cp"), (unit.experts, "edp")):
            forward = ("forward", gathers, f"the {name} before", ahead)
            yield Demand("all_gather", _SHARD[over], numbers, narrow, *forward)
            backward = ("backward", gathers * (zero == 3), f"backward of the {name} after", ahead)
            yield Demand("all_gather", _SHARD[over], numbers, narrow, *backward)
            sums = unit.times * m * (zero >= 2)
            yield from _scattered(plan, numbers, over, sums, f"backward of this {name}")


def _sum(plan: Plan, kind: str, over: str, numbers, count, after: str) -> Demand:
    behind = "the rest of the backward pass" if plan.overlap else ""
    return Demand(kind, over, numbers, plan.gradient_bytes, "backward", count, after, behind)


def _scattered(plan: Plan, numbers, over: str, count, after: str) -> Iterator[Demand]:
    """Yield a reduce-scatter of gradients, and the sum of its shards over the copies of them."""
    yield _sum(plan, "reduce_scatter", _SHARD[over], numbers, count, after)
    if over == "dp_cp":
        yield _sum(plan, "all_reduce", "replicate", -(-numbers // plan.size("shard")), count, after)


def _cut(numbers, bucket):
    """Return (size, count) of full buckets and of the rest; a bucket of 0 holds everything."""
    bucket = bucket + (bucket == 0) * (numbers + 1)
    return (bucket, numbers // bucket), (numbers % bucket, 1)


def data_parallel_ops(
    plan: Plan, parameters: int | Sequence[int], item_bytes: int = 4
) -> tuple[CommOp, ...]:
    """Return the all-reduces of each data-parallel group for one step of plain DDP.

    Parameters
    ----------
    plan
        The layout; ``bucket_bytes`` cuts the gradients.
    parameters
        Trainable numbers that one rank holds, or those of each tensor in the order of the forward
        pass: then they are put into buckets by :func:`ddp_buckets`.
    item_bytes
        Bytes of one gradient on the network: 4 for float32, 2 for bfloat16.

    Returns
    -------
    tuple of CommOp
        One for each group and bucket; none where ``plan.dp`` is 1.

    Examples
    --------
    >>> data_parallel_ops(Plan(dp=2), 1000)[0].bytes_
    4000
    >>> ops = data_parallel_ops(Plan(dp=2, bucket_bytes=2000), [400, 300, 300, 2])
    >>> [op.bytes_ for op in ops]
    [2408, 1600]
    """
    if plan.dp == 1:
        return ()
    whole = isinstance(parameters, int)
    sizes = [size * item_bytes for size in ([parameters] if whole else parameters)]
    after = "the gradients of all layers" if whole else "the bucket is full"
    behind = "the rest of the backward pass" if plan.overlap and not whole else ""
    return tuple(
        CommOp("all_reduce", "dp", group, bucket, item_bytes, "backward", 1, after, behind)
        for group in plan.groups("dp")
        for bucket in ddp_buckets(sizes, plan.bucket_bytes)
    )


def ddp_buckets(tensor_bytes: Sequence[int], bucket_bytes: int, first_bytes: int = 0) -> list[int]:
    """Put tensors into buckets as PyTorch's DDP does: last first, closed once the limit is reached.

    Parameters
    ----------
    tensor_bytes
        Gradients in the order in which the forward pass uses their weights; they come in reverse.
    bucket_bytes
        The limit; 0 puts everything into one bucket, as DDP itself does in its very first step.
    first_bytes
        Limit of the first bucket where it is another: 2²⁰ if PyTorch is left its default of 25·2²⁰.

    Examples
    --------
    >>> ddp_buckets([3, 3, 3, 3, 1], bucket_bytes=5, first_bytes=1)
    [1, 6, 6]
    """
    buckets, filled = [], 0
    for size in reversed(tensor_bytes):
        filled += size
        if bucket_bytes and filled >= (
            first_bytes if first_bytes and not buckets else bucket_bytes
        ):
            buckets.append(filled)
            filled = 0
    return buckets + [filled] * (filled > 0)
