"""A schedule as GOAL text, which LogGOPSim and ATLAHS read.

GOAL [1]_ is one block for each rank: labelled sends, receives and calculations, and which label
requires which. Here an operation requires all operations of the rank's own last round: a rank goes
on when its own messages are through, not when everybody's are. The tag is the number of the round.
Switches become ranks after the others.

References
----------
.. [1] T. Hoefler, C. Siebert, A. Lumsdaine, "Group operation assembly language: a flexible way to
   express collective communication", ICPP 2009.
"""

import math

from tokenlife.collectives import Schedule, ScheduleError


def goal_text(schedule: Schedule, items: int, item_bytes: int, gamma_s_per_B: float = 0.0) -> str:
    """Write a schedule as GOAL.

    Parameters
    ----------
    schedule
        Any.
    items, item_bytes
        Items in the buffer of one rank, and bytes in each.
    gamma_s_per_B
        Seconds to add a byte; it becomes ``calc`` lines, in whole nanoseconds.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_gather
    >>> print(goal_text(ring_all_gather(2), items=8, item_bytes=1))
    num_ranks 2
    rank 0 {
    l1: send 4b to 1 tag 0
    l2: recv 4b from 1 tag 0
    }
    rank 1 {
    l1: recv 4b from 0 tag 0
    l2: send 4b to 0 tag 0
    }
    """
    if not 0 <= gamma_s_per_B < math.inf:
        raise ScheduleError(f"adding a byte takes zero or more seconds, not {gamma_s_per_B}")
    offsets = schedule.chunk_offsets(items) * item_bytes
    blocks = [[] for _ in range(schedule.nodes)]
    labels, last = [0] * schedule.nodes, [[] for _ in range(schedule.nodes)]

    def add(node: int, what: str, requires: list[int]) -> int:
        labels[node] += 1
        label = labels[node]
        blocks[node].append(f"l{label}: {what}")
        blocks[node] += [f"l{label} requires l{other}" for other in requires]
        return label

    for tag in range(len(schedule.rounds)):
        done: dict[int, list[int]] = {}
        rows = zip(*(c.tolist() for c in schedule.messages(tag, offsets)), strict=True)
        for src, dst, size, reduced in rows:
            label = add(src, f"send {size}b to {dst} tag {tag}", last[src])
            done.setdefault(src, []).append(label)
            label = add(dst, f"recv {size}b from {src} tag {tag}", last[dst])
            if adding_ns := round(reduced * gamma_s_per_B * 1e9):
                label = add(dst, f"calc {adding_ns}", [label])
            done.setdefault(dst, []).append(label)
        for node, finished in done.items():
            last[node] = finished
    ranks = ("\n".join([f"rank {node} {{", *lines, "}"]) for node, lines in enumerate(blocks))
    return "\n".join([f"num_ranks {schedule.nodes}", *ranks])
