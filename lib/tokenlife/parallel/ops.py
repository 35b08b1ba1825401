"""One communication operation: what a strategy asks the network to do, before any algorithm."""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenlife.parallel.plan import Plan
from tokenlife.parallel.ranks import AXIS_OF

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


@dataclass(frozen=True)
class CommOp:
    """A collective, or a send, that a group of ranks performs together.

    Attributes
    ----------
    kind
        One of :data:`KINDS`.
    axis
        The axis of parallelism that asks for it.
    group
        The ranks that take part; of a send the sender and the receiver.
    bytes_
        The whole buffer per rank, as nccl-tests counts it: for all-gather, reduce-scatter and
        all-to-all the total.
    item_bytes
        Bytes of one number in the buffer; a buffer is cut between numbers, never inside one.
    phase
        ``forward``, ``backward`` or ``optimiser``.
    count
        How often in one step.
    after
        What it must wait for.
    hides_behind
        The work it may overlap with; empty where it is exposed.

    Examples
    --------
    >>> op = CommOp("all_reduce", "dp", (0, 1), 4096, 4, "backward")
    >>> op.items, op.handed_over_bytes
    (1024, 8192)
    """

    kind: str
    axis: str
    group: tuple[int, ...]
    bytes_: int
    item_bytes: int
    phase: str
    count: int = 1
    after: str = ""
    hides_behind: str = ""

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"no kind of communication {self.kind!r}; known: {', '.join(KINDS)}")
        if self.bytes_ % self.item_bytes:
            raise ValueError(f"{self.bytes_} B is no whole number of {self.item_bytes} B items")

    @property
    def items(self) -> int:
        """Numbers in the buffer."""
        return self.bytes_ // self.item_bytes

    @property
    def handed_over_bytes(self) -> int:
        """Bytes that all ranks together hand to the communication library in one step."""
        return self.bytes_ * (1 if self.kind == "send" else len(self.group)) * self.count


@dataclass(frozen=True)
class Demand:
    """A :class:`CommOp` before its ranks are named; numbers may be arrays, one for each plan.

    Attributes
    ----------
    kind, item_bytes, phase, after, hides_behind
        As in :class:`CommOp`.
    over
        The group that performs it: a name of ``tokenlife.parallel.ranks.AXIS_OF``.
    items
        Numbers in the whole buffer of one rank.
    count
        How often in one step; 0 where this rank does not take part.
    """

    kind: str
    over: str
    items: int
    item_bytes: int
    phase: str
    count: int = 1
    after: str = ""
    hides_behind: str = ""

    @property
    def axis(self) -> str:
        """The axis of parallelism that asks for it."""
        return AXIS_OF[self.over]

    @property
    def bytes_(self) -> int:
        """Bytes of the whole buffer of one rank."""
        return self.items * self.item_bytes

    def moves(self, plan: Plan) -> bool:
        """Say whether anything is sent: more than one rank, numbers, and at least once."""
        return self.count > 0 and self.items > 0 and plan.size(self.over) > 1


def place(demands: Iterable[Demand], plan: Plan, rank: int) -> tuple[CommOp, ...]:
    """Name the ranks: return what ``rank`` takes part in, leaving out what moves nothing."""
    return tuple(
        CommOp(
            axis=d.axis,
            group=plan.group(d.over, rank),
            bytes_=int(d.bytes_),
            count=int(d.count),
            **{n: getattr(d, n) for n in ("kind", "item_bytes", "phase", "after", "hides_behind")},
        )
        for d in demands
        if d.moves(plan)
    )
