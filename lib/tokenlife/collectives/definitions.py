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


@dataclass(frozen=True)
class Definition:
    """One collective.

    Attributes
    ----------
    kind
        Its name, as in ``CommOp.kind``.
    blocks
        Blocks of the buffer of one rank, for a number of ranks.
    before, after
        Functions of (ranks, root) that return who holds what; shape (ranks, blocks), for an
        all-to-all (ranks, ranks · blocks).
    rooted
        Whether one rank is special.
    says
        One sentence.
    """

    kind: str
    blocks: Callable[[int], int]
    before: Callable[[int, int], np.ndarray]
    after: Callable[[int, int], np.ndarray]
    rooted: bool
    says: str


def _one(ranks: int) -> int:
    return 1


def _each(ranks: int) -> int:
    return ranks


def _everyone(blocks: Callable[[int], int]):
    return lambda ranks, root: np.ones((ranks, blocks(ranks)), bool)


def _at(root_of: Callable[[int, int], int], blocks: Callable[[int], int]):
    def holds(ranks: int, root: int) -> np.ndarray:
        mask = np.zeros((ranks, blocks(ranks)), bool)
        mask[root_of(ranks, root)] = True
        return mask

    return holds


def _own(ranks: int, root: int) -> np.ndarray:
    return np.eye(ranks, dtype=bool)


def _rows(ranks: int, root: int) -> np.ndarray:
    return np.repeat(np.eye(ranks, dtype=bool), ranks, axis=1)


def _columns(ranks: int, root: int) -> np.ndarray:
    return np.tile(np.eye(ranks, dtype=bool), ranks)


_at_root = lambda blocks: _at(lambda ranks, root: root, blocks)  # noqa: E731
_at_peer = _at(lambda ranks, root: (root + 1) % ranks, _one)

DEFINITIONS = {
    d.kind: d
    for d in (
        Definition(
            "broadcast",
            _one,
            _at_root(_one),
            _everyone(_one),
            True,
            "the root's buffer reaches every rank",
        ),
        Definition(
            "scatter",
            _each,
            _at_root(_each),
            _own,
            True,
            "the root hands block r to rank r",
        ),
        Definition(
            "gather",
            _each,
            _own,
            _at_root(_each),
            True,
            "rank r's block r reaches the root",
        ),
        Definition(
            "all_gather",
            _each,
            _own,
            _everyone(_each),
            False,
            "rank r's block r reaches every rank",
        ),
        Definition(
            "reduce",
            _one,
            _everyone(_one),
            _at_root(_one),
            True,
            "the sum of all buffers reaches the root",
        ),
        Definition(
            "reduce_scatter",
            _each,
            _everyone(_each),
            _own,
            False,
            "the sum of all block r reaches rank r",
        ),
        Definition(
            "all_reduce",
            _one,
            _everyone(_one),
            _everyone(_one),
            False,
            "the sum of all buffers reaches every rank",
        ),
        Definition(
            "all_to_all",
            _each,
            _rows,
            _columns,
            False,
            "rank i's block j reaches rank j, for all i and j",
        ),
        Definition(
            "barrier",
            _one,
            _everyone(_one),
            _everyone(_one),
            False,
            "no rank leaves before every rank has come",
        ),
        Definition(
            "send",
            _one,
            _at_root(_one),
            _at_peer,
            True,
            "the root's buffer reaches the next rank",
        ),
    )
}


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
    if repeat != int(repeat) or (what.blocks is _each and schedule.blocks != schedule.ranks):
        raise ScheduleError(
            f"{schedule.algorithm} cuts a {schedule.kind} into {schedule.blocks} blocks; "
            f"its definition has {what.blocks(schedule.ranks)}"
        )
    before, after = (np.repeat(mask, int(repeat), axis=1) for mask in masks)
    return before, after
