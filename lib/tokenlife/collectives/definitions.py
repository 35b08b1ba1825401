"""What each collective is: who holds which block before, and who must hold it after.

Every collective of training and inference has this one form. A block is held by some ranks before;
after, other ranks must hold it, and what they must hold is the *sum* over those who held it before.
Where one rank alone held a block, the sum is a copy: an all-gather is an all-reduce in which every
block has one owner.

A barrier moves no data. Its one block is empty, and each rank must have heard of every other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenlife.collectives.schedule import Schedule, ScheduleError

# Who holds what, as functions of (ranks, root); shape (ranks, blocks of the whole group).
HOLDERS: dict[str, Callable[[int, int], np.ndarray]] = {
    "the root": lambda ranks, root: np.arange(ranks)[:, None] == root,
    "the next rank": lambda ranks, root: np.arange(ranks)[:, None] == (root + 1) % ranks,
    "everyone": lambda ranks, root: np.ones((ranks, 1), bool),
    "its own": lambda ranks, root: np.eye(ranks, dtype=bool),
    "its row": lambda ranks, root: np.repeat(np.eye(ranks, dtype=bool), ranks, axis=1),
    "its column": lambda ranks, root: np.tile(np.eye(ranks, dtype=bool), ranks),
}


@dataclass(frozen=True)
class Definition:
    """One collective.

    Attributes
    ----------
    kind
        Its name, as in ``CommOp.kind``.
    per_rank
        Whether the buffer of a rank has one block for each rank, or is one block.
    holds_before, holds_after
        Keys of :data:`HOLDERS`.
    says
        One sentence.
    """

    kind: str
    per_rank: bool
    holds_before: str
    holds_after: str
    says: str

    @property
    def rooted(self) -> bool:
        """Whether one rank is special."""
        return "the root" in (self.holds_before, self.holds_after)

    def blocks(self, ranks: int) -> int:
        """Return the blocks of the buffer of one rank."""
        return ranks if self.per_rank else 1

    def before(self, ranks: int, root: int = 0) -> np.ndarray:
        """Return who holds which block before; shape (ranks, blocks), in an all-to-all blocks²."""
        return self._holds(self.holds_before, ranks, root)

    def after(self, ranks: int, root: int = 0) -> np.ndarray:
        """Return who must hold which block after; the same shape."""
        return self._holds(self.holds_after, ranks, root)

    def _holds(self, who: str, ranks: int, root: int) -> np.ndarray:
        mask = HOLDERS[who](ranks, root)
        return np.repeat(mask, self.blocks(ranks), axis=1) if mask.shape[1] == 1 else mask


_ALL = (
    Definition("broadcast", False, "the root", "everyone", "the root's buffer reaches every rank"),
    Definition("scatter", True, "the root", "its own", "the root hands block r to rank r"),
    Definition("gather", True, "its own", "the root", "block r of rank r reaches the root"),
    Definition("all_gather", True, "its own", "everyone", "block r of rank r reaches every rank"),
    Definition("reduce", False, "everyone", "the root", "the sum of all buffers reaches the root"),
    Definition("reduce_scatter", True, "everyone", "its own", "the sum of blocks r reaches rank r"),
    Definition("all_reduce", False, "everyone", "everyone", "the sum of all reaches every rank"),
    Definition("all_to_all", True, "its row", "its column", "block j of rank i reaches rank j"),
    Definition("barrier", False, "everyone", "everyone", "no rank leaves before all have come"),
    Definition("send", False, "the root", "the next rank", "the root's buffer reaches the next"),
)
DEFINITIONS = {d.kind: d for d in _ALL}


def definition(kind: str) -> Definition:
    """Return a collective by name.

    Raises
    ------
    ScheduleError
        If there is no such collective; the message names those there are.

    Examples
    --------
    >>> definition("all_gather").before(3, 0).astype(int).tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    if kind not in DEFINITIONS:
        raise ScheduleError(f"no collective {kind!r}; known: {', '.join(DEFINITIONS)}")
    return DEFINITIONS[kind]


def holds(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Return who holds which chunk before, and who must after; each of shape (ranks, chunks).

    An all-reduce may be cut into any number of blocks; the others keep those of their definition.

    Raises
    ------
    ScheduleError
        If the blocks of the schedule are not those of its definition.
    """
    what = definition(schedule.kind)
    masks = [f(schedule.ranks, schedule.root) for f in (what.before, what.after)]
    repeat = schedule.chunks / masks[0].shape[1]
    if repeat != int(repeat) or (what.per_rank and schedule.blocks != schedule.ranks):
        raise ScheduleError(
            f"{schedule.algorithm} cuts a {schedule.kind} into {schedule.blocks} blocks; "
            f"its definition has {what.blocks(schedule.ranks)}"
        )
    before, after = (np.repeat(mask, int(repeat), axis=1) for mask in masks)
    return before, after
