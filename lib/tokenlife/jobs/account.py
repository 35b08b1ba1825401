"""The account of a job from communication to bits, for all axes or for one.

What a job asks for (:mod:`tokenlife.jobs.bills`) becomes messages, counted class by class
(:mod:`tokenlife.jobs.messages`) and framed by a transport. Every difference between two levels gets
its name:

- *compression*: what is sent in a narrower type than it is kept in;
- *replication by the algorithm*: what ranks must send beyond, or short of, what they hand over;
- *sums and copies in the network*: what switches spare the ranks, and what those then send;
- *stays in the node*: bytes on links inside a node, which are no network and have no packets here;
- *hops*: a message crosses several links, and counts on each;
- headers by layer, padding, acknowledgements; preambles and gaps.

Left out: retransmissions, control messages, the links' own packets inside a node, and time.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tokenlife.jobs.messages import Messages, least, payload
from tokenlife.jobs.traffic import Row
from tokenlife.ledger import Level, Term
from tokenlife.parallel import Plan
from tokenlife.wire.framing import INTERFRAME_GAP, PREAMBLE, Framing
from tokenlife.wire.stack import LARGEST_RDMA_MESSAGE, Stack

CACHE = "kv"  # the axis of a cache that moves from the machine that read to the one that writes


@dataclass(frozen=True)
class Account:
    """Everything a job sends, and how it is framed.

    Attributes
    ----------
    plan
        The layout.
    tokens
        Trained on in the step, or read and written by all requests.
    rows
        What the stages ask for.
    kept_wider
        By axis: bytes by which what is handed over is larger in the type that it is kept in.
    messages
        All of them, alike ones together.
    stack
        The transport.
    algorithms
        For each kind of collective.
    """

    plan: Plan
    tokens: int
    rows: tuple[Row, ...]
    kept_wider: Mapping[str, int]
    messages: tuple[Messages, ...]
    stack: Stack
    algorithms: Mapping[str, str]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Those that send something."""
        return tuple(dict.fromkeys(m.axis for m in self.messages))

    def of(self, axis: str | None) -> tuple[Messages, ...]:
        """Return the messages of one axis, or all."""
        return tuple(m for m in self.messages if axis in (None, m.axis))

    def node_bytes(self, axis: str | None = None) -> int:
        """Return the payload that stays on links inside nodes."""
        return sum(m.total for m in self.of(axis) if not m.links)

    def card_bits(self, axis: str | None = None) -> int:
        """Return the bits that leave network cards: each message on its first link.

        Headers, preambles and acknowledgements are counted; what switches send is not.
        """
        found = ((m, self._framed(m)) for m in self.of(axis) if m.links and not m.by_switch)
        return 8 * sum(
            m.count * (f.wire_bytes + f.acknowledgement_bytes + f.acknowledgement_silent_bytes)
            for m, f in found
        )

    def _framed(self, messages: Messages) -> Framing:
        return frame(self.stack, messages.bytes_)

    def _runs(self, axis: str | None) -> Iterable[tuple[Row, int]]:
        """Yield what is asked for, and how often over all groups."""
        for row in self.rows:
            if axis in (None, row.demand.axis):
                groups = self.plan.world // self.plan.pp * len(row.stages)
                members = 1 if row.demand.kind == "send" else row.group_size
                yield row, groups // members * row.demand.count

    def levels(self, axis: str | None = None) -> tuple[Level, ...]:
        """Return the levels from communication to bits, each counted for itself.

        Parameters
        ----------
        axis
            Only what this axis sends; all where none is named.
        """
        found, ib = self.of(axis), self.stack.transport == "ib"
        handed = least_bytes = sent = copied = calls = 0
        moved = [m for m in found if m.axis == CACHE]  # asked for by no collective
        for row, times in self._runs(axis):
            d, size = row.demand, (row.group_size, row.demand.items, row.demand.item_bytes)
            by_ranks, by_switches = payload(d.kind, self.algorithms.get(d.kind, ""), *size)
            helped = by_switches > 0
            handed += times * d.bytes_ * (1 if d.kind == "send" else row.group_size)
            least_bytes += times * (least(d.kind, *size) if helped else by_ranks)
            sent, copied = sent + times * by_ranks, copied + times * by_switches
            calls += times
        cache = sum(m.total for m in moved)
        handed, least_bytes, sent = handed + cache, least_bytes + cache, sent + cache
        calls += sum(m.count for m in moved)
        wider = sum(b for name, b in self.kept_wider.items() if axis in (None, name))
        asked = handed + wider

        on_net = [(m, self._framed(m)) for m in found if m.links]
        messages = sum(m.total for m in found if not m.by_switch)
        flows = sum(m.total * m.links for m, _ in on_net)
        crossed = sum(m.count * m.links for m, _ in on_net)
        frames, bytes_ = self._frames(found)
        silent = 0 if ib else (PREAMBLE + INTERFRAME_GAP) * frames

        def over(count: Callable[[Framing], int]) -> int:
            return sum(m.count * m.links * count(f) for m, f in on_net)

        every = dict(self.stack.layers("reth" if self.stack.rdma else "tcp timestamps"))
        first = {"reth": " that begins a message"}
        return (
            Level("communication", asked, f"{calls:,} operations of all groups"),
            Level(
                "messages", messages, f"{sum(m.count for m in found):,} messages",
                (
                    *_if("compression", -wider, "sent in a narrower type than kept in"),
                    Term("replication by the algorithm", least_bytes - handed,
                         "what ranks send beyond what they hand over; less where a part stays"),
                    *_if("sums and copies in the network", sent - least_bytes,
                         "switches add and copy for the ranks"),
                ),
            ),
            Level(
                "flows", flows, f"{crossed:,} crossings of network links",
                (
                    *_if("sent by switches", copied, "what they added or copied"),
                    *_if("stays in the node", -self.node_bytes(axis), "on links inside nodes"),
                    Term("hops", sum(m.total * (m.links - 1) for m, _ in on_net),
                         "up to the switches and down again"),
                ),
            ),
            Level(
                "packets", bytes_, f"{frames:,} frames of {self.stack.transport} on all links",
                (
                    *(Term(layer, over(lambda f, layer=layer: f.header_bytes[layer]),
                           f"{size} B in each packet{first.get(layer, '')}")
                      for layer, size in every.items()),
                    Term("padding", over(lambda f: f.padding_bytes), "short packets are filled up"),
                    Term("acknowledgements", over(lambda f: f.acknowledgement_bytes),
                         "one frame back for " + ("each message" if self.stack.rdma
                                                  else "every second packet")),
                ),
            ),
            Level(
                "bits", bytes_ + silent, f"what {frames:,} frames occupy on the links",
                (Term("preamble and gap",
                      over(lambda f: f.silent_bytes + f.acknowledgement_silent_bytes),
                      "InfiniBand has none" if ib else
                      f"{PREAMBLE} B before and {INTERFRAME_GAP} B after each"),),
            ),
        )  # fmt: skip

    def _frames(self, found: Iterable[Messages]) -> tuple[int, int]:
        """Return frames and their bytes over all links, packet by packet."""
        frames = bytes_ = 0
        for m in found:
            for size, times in writes(self.stack, m.bytes_):
                cut = self.stack.packets(size)
                cut.append(self.stack.acknowledgements(sum(p.count for p in cut)))
                crossings = m.count * m.links * times
                frames += crossings * sum(p.count for p in cut)
                bytes_ += crossings * sum(p.count * p.frame_bytes for p in cut)
        return frames, bytes_

    def per_axis(self) -> dict[str, dict]:
        """Return for each axis the bytes at each level and the bits of its network cards."""
        return {
            axis: {
                **{level.name: level.bytes_ for level in self.levels(axis)},
                "in_node": self.node_bytes(axis),
                "card_bits_per_token": self.card_bits(axis) / self.tokens,
            }
            for axis in self.axes
        }


def _if(name: str, bytes_: int, why: str) -> tuple[Term, ...]:
    return (Term(name, bytes_, why),) if bytes_ else ()


def writes(stack: Stack, bytes_: int) -> list[tuple[int, int]]:
    """Return (size, how many) of the writes that a message takes: RDMA's have a largest size.

    Examples
    --------
    >>> writes(Stack("ib", 4096), 5 * 2**30)
    [(2147483648, 2), (1073741824, 1)]
    """
    full, rest = divmod(bytes_, LARGEST_RDMA_MESSAGE) if stack.rdma else (0, bytes_)
    return [(LARGEST_RDMA_MESSAGE, full)] * (full > 0) + [(rest, 1)] * (rest > 0)


@lru_cache(maxsize=4096)
def frame(stack: Stack, bytes_: int) -> Framing:
    """Frame a message of any size."""
    parts = [(stack.frame(size), times) for size, times in writes(stack, bytes_)]
    names = {name for f, _ in parts for name in f.header_bytes}

    def over(count: Callable[[Framing], int]) -> int:
        return sum(times * count(f) for f, times in parts)

    return Framing(
        bytes_,
        over(lambda f: f.packets),
        {name: over(lambda f, name=name: f.header_bytes[name]) for name in names},
        *(over(lambda f, name=name: getattr(f, name))
          for name in ("padding_bytes", "silent_bytes", "acknowledgements",
                       "acknowledgement_bytes", "acknowledgement_silent_bytes")),
    )  # fmt: skip
