"""Pipeline schedules as action lists: in which order each stage works on its micro-batches.

``gpipe`` [1]_ runs all forward passes, then all backward passes. ``1f1b`` [2]_ starts backward as
soon as it can and then alternates, so that a stage holds at most as many micro-batches as stages
follow it. ``interleaved`` [3]_ deals several model chunks to a stage: smaller bubble, more sends.
The zero-bubble schedules [4]_ split backward: ``B`` makes the gradient that the stage before waits
for, ``W`` that of the weights, which nobody waits for, and which therefore fills the gaps.
``zb-h1`` holds no more than 1F1B, ``zb-h2`` about twice as much. ``zb-v`` folds the model: stage s
holds chunks s and 2·pp − 1 − s, so that the loss is where the input was.

With m micro-batches, and times F, B, W of one micro-batch on one stage, the bubble of the slowest
stage is (pp − 1)(F + B + W) for GPipe and 1F1B, 1/v of it interleaved, (pp − 1)(F + B − W) for
ZB-H1, (pp − 1)(F + B − 2W) for ZB-H2, 0 for ZB-V where F = B = W; if m is large enough to fill the
pipeline. Left out: DualPipe, which runs micro-batches from both ends.

References
----------
.. [1] Y. Huang et al., "GPipe", NeurIPS 2019.
.. [2] D. Narayanan et al., "PipeDream", SOSP'19.
.. [3] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using
   Megatron-LM", SC'21, section 2.2.
.. [4] P. Qi et al., "Zero bubble pipeline parallelism", ICLR 2024.
"""

from collections import Counter
from typing import NamedTuple

from tokenlife.parallel.plan import Plan


class Action(NamedTuple):
    """One piece of work: ``F`` forward, ``B`` backward, ``W`` gradients of the weights.

    Where a schedule has no ``W``, ``B`` is the whole backward pass. Chunks are counted through the
    whole model.
    """

    kind: str
    chunk: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.chunk}{self.kind}{self.micro_batch}"


Schedule = tuple[tuple[Action, ...], ...]


def pipeline_schedule(
    name: str, stages: int, micro_batches: int, virtual: int | None = None
) -> Schedule:
    """Return what each stage does, in order.

    Parameters
    ----------
    name
        A name of ``tokenlife.parallel.plan.SCHEDULES``.
    stages, micro_batches
        How many.
    virtual
        Model chunks on each stage; by default 2 where the schedule needs several, else 1.

    Raises
    ------
    PlanError
        If the schedule is not known, or cannot run so.

    Examples
    --------
    >>> for stage in pipeline_schedule("1f1b", 2, 3):
    ...     print(*stage)
    0F0 0F1 0B0 0F2 0B1 0B2
    1F0 1B0 1F1 1B1 1F2 1B2
    """
    virtual = virtual or (2 if name in ("interleaved", "zb-v") else 1)
    Plan(pp=stages, schedule=name, virtual=virtual, global_batch=micro_batches)
    if name == "zb-v":
        return tuple(_folded(stages, stage, micro_batches) for stage in range(stages))
    found = []
    for stage in range(stages):
        after = stages - 1 - stage
        warmup = {
            "gpipe": micro_batches, "interleaved": 2 * after + (virtual - 1) * stages,
            "zb-h2": 2 * after,
        }.get(name, after)  # fmt: skip
        delay = {"zb-h1": stage, "zb-h2": 2 * stage}.get(name)
        found.append(_alternate(stages, stage, micro_batches, virtual, warmup, delay))
    return tuple(found)


def _alternate(
    stages: int, stage: int, micro_batches: int, virtual: int, warmup: int, delay: int | None
) -> tuple[Action, ...]:
    """Run ``warmup`` forwards, then one forward and one backward; W follows ``delay`` B later."""
    number = micro_batches * virtual

    def action(kind: str, i: int) -> Action:
        turn, place = divmod(i, stages * virtual) if virtual > 1 else (0, 0)
        chunk, within = divmod(place, stages)
        if kind != "F":
            chunk = virtual - 1 - chunk
        return Action(kind, chunk * stages + stage, turn * stages + within if virtual > 1 else i)

    actions = [action("F", i) for i in range(min(warmup, number))]
    for i in range(number):
        if i + warmup < number:
            actions.append(action("F", i + warmup))
        actions.append(action("B", i))
        if delay is not None and i >= delay:
            actions.append(action("W", i - delay))
    if delay is not None:
        actions += [action("W", i) for i in range(max(0, number - delay), number)]
    return tuple(actions)


def _folded(stages: int, stage: int, micro_batches: int) -> tuple[Action, ...]:
    """Build one stage of ZB-V: fill both chunks, then run both in turn, then let W fill the end."""
    number, after = max(micro_batches, 2 * stages - 1), stages - stage
    keys = ["F0"] * (2 * after - 1) + ["F1", "F0"] * stage + ["F1", "B1", "W1"] * after
    for i in range(number - stages):
        keys += ["F0"] * (i < number - stages - after + 1) + ["B0", "W0", "F1", "B1", "W1"]
    keys += ["B0", "B1"] * stage + ["B0", "W0"] * after + ["W1"] * stage + ["W0"] * stage
    chunks, seen, actions = {"0": stage, "1": 2 * stages - 1 - stage}, Counter(), []
    for key in keys:
        actions.append(Action(key[0], chunks[key[1]], seen[key]))
        seen[key] += 1
    return tuple(action for action in actions if action.micro_batch < micro_batches)
