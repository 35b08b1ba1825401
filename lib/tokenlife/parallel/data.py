"""Data parallelism: every rank holds the whole model and reads its own part of the batch.

After the backward pass the ranks hold different gradients for the same parameters. One all-reduce
in each data-parallel group makes them equal: a sum, from which each rank takes the mean. Its size
is that of the gradients and does not depend on the batch.

Left out so far: buckets and their overlap with the backward pass, and sharded states.
"""

from tokenlife.parallel.ops import CommOp
from tokenlife.parallel.plan import Plan


def data_parallel_ops(plan: Plan, parameters: int, item_bytes: int = 4) -> tuple[CommOp, ...]:
    """Return the all-reduce of each data-parallel group for one step.

    Parameters
    ----------
    plan
        The layout.
    parameters
        Trainable numbers that one rank holds.
    item_bytes
        Bytes of one gradient on the network: 4 for float32, 2 for bfloat16.

    Returns
    -------
    tuple of CommOp
        One for each group; none where ``plan.dp`` is 1.

    Examples
    --------
    >>> data_parallel_ops(Plan(dp=2), 1000)[0].bytes_
    4000
    """
    if plan.dp == 1:
        return ()
    return tuple(
        CommOp(
            kind="all_reduce",
            axis="dp",
            group=group,
            bytes_=parameters * item_bytes,
            item_bytes=item_bytes,
            phase="backward",
            after="the gradients of all layers",
        )
        for group in plan.groups("dp")
    )
