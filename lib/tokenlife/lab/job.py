"""What is asked of the lab, what each rank starts with, and what it must end with.

The value of item i on rank r is a small whole number, so that every sum is exact in float32 and a
result is right or wrong, never nearly right.
"""

from dataclasses import dataclass, field

import numpy as np

from tokenlife.collectives import algorithms, build, definition
from tokenlife.collectives.definitions import holds
from tokenlife.collectives.schedule import Schedule
from tokenlife.lab.cluster import LabError

ITEM_BYTES = 4  # float32
ENGINES = ("ours", "gloo", "mpi", "nccl")
SEGMENT_BYTES = 1 << 20  # smaller ones cost more processor time than their overlap saves
MOST_SEGMENTS = 16


@dataclass(frozen=True)
class Job:
    """One collective to be run some times.

    Attributes
    ----------
    kind
        The collective.
    bytes_
        The whole buffer of one rank, a multiple of 4; for a barrier it does not matter.
    algorithm
        Of the schedule that ``ours`` plays and every engine is compared with, and that ``mpi`` is
        forced to use; the ring, or the first there is, if not given.
    engine
        ``ours``, ``gloo``, ``mpi`` or ``nccl``.
    options
        Of the algorithm, like ``{"root": 1}``.
    repeats, warmup
        Timed runs, and runs before them.
    capture
        False, True (count the frames of one run), or a folder for ``rank0.pcap`` and so on. None
        on loopback.
    """

    kind: str
    bytes_: int
    algorithm: str | None = None
    engine: str = "ours"
    options: dict = field(default_factory=dict)
    repeats: int = 5
    warmup: int = 1
    capture: bool | str = False

    def __post_init__(self):
        definition(self.kind)
        if self.engine not in ENGINES:
            raise LabError(f"no engine {self.engine!r}; there are {', '.join(ENGINES)}")
        if self.bytes_ < 0 or self.bytes_ % ITEM_BYTES:
            raise LabError(f"the lab sends float32: bytes must be 0, 4, 8, …, not {self.bytes_}")
        if self.repeats < 1 or self.warmup < 0:
            raise LabError("a job needs at least one repeat, and no less than no warm-up")

    @property
    def items(self) -> int:
        """Items of one rank's buffer; a barrier has one, so that there is something to send."""
        return 1 if self.kind == "barrier" else self.bytes_ // ITEM_BYTES

    @property
    def root(self) -> int:
        """The rank that a rooted collective starts from or ends at."""
        return self.options.get("root", 0)

    def schedule(self, ranks: int) -> Schedule:
        """Build the schedule that this job plays, or is compared with."""
        names = [a.name for a in algorithms(self.kind, ranks)]
        name = self.algorithm or ("ring" if "ring" in names else (names or [""])[0])
        schedule = build(self.kind, name, ranks, **self.options)
        if schedule.switches:
            raise LabError(f"{name} {self.kind} adds in switches, which the lab does not have")
        return schedule

    def start(self, rank: int, ranks: int) -> np.ndarray:
        """Return what a rank's buffer holds before; shape (items,)."""
        values = (np.arange(self.items) * 7 + 13 * rank) % 251
        return values.astype(np.float32)

    def end(self, rank: int, ranks: int) -> np.ndarray:
        """Return what a rank must end with: the sums of what was held; after a barrier, nothing."""
        if self.kind == "barrier":
            return np.empty(0, np.float32)
        what = definition(self.kind)
        before, after = (f(ranks, self.root) for f in (what.before, what.after))
        if self.kind == "all_to_all":
            blocks = [np.array_split(self.start(r, ranks), ranks)[rank] for r in range(ranks)]
            return np.concatenate(blocks)
        blocks = before.shape[1]
        start = [np.array_split(self.start(r, ranks), blocks) for r in range(ranks)]
        whole = [
            sum(start[r][block] for r in range(ranks) if before[r, block])
            for block in np.flatnonzero(after[rank])
        ]
        return np.concatenate([*whole, np.empty(0, np.float32)])


def segments(schedule: Schedule, offsets: np.ndarray) -> int:
    """Return the segments that our engine cuts each message of a schedule into."""
    sizes = [schedule.messages(i, offsets)[2].max(initial=0) for i in range(len(schedule.rounds))]
    largest = int(max(sizes, default=0)) * ITEM_BYTES
    return min(MOST_SEGMENTS, max(1, largest // SEGMENT_BYTES))


def extent(schedule: Schedule, items: int, rank: int) -> np.ndarray:
    """Return the items, in the schedule's order, that a rank must hold after."""
    if schedule.kind == "barrier":
        return np.empty(0, np.int64)
    sizes = schedule.chunk_items(items)
    return np.flatnonzero(np.repeat(holds(schedule)[1][rank], sizes))
