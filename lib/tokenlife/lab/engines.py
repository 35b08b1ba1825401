"""Who performs a collective: our schedules message by message, or a library's own.

An engine is a function of a :class:`~tokenlife.lab.job.Job` that returns a
:class:`~tokenlife.lab.measure.Prepared`. Ours plays any schedule over point-to-point calls. The
sends of a round between two ranks are one message, cut into segments. A segment leaves as soon as
what it is made of has arrived: segments flow through the rounds one behind the other, and adding
one hides behind receiving the next.

What gloo adds on the wire: a header of 48 bytes with each message, and as many from either end to
say that it is ready.

Left out: algorithms that add in switches.
"""

import os
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from tokenlife.collectives.schedule import Schedule
from tokenlife.lab.cluster import LabError
from tokenlife.lab.job import ITEM_BYTES, Job, extent, segments
from tokenlife.lab.measure import Prepared


@dataclass
class _Part:
    """One segment of one message of this rank: where it lies, or is to lie."""

    peer: int
    views: list[torch.Tensor]
    spans: list[tuple[int, int]]
    reduce: list[bool]
    buffer: torch.Tensor | None = None  # None: straight from, or to, its one view


@dataclass
class _Round:
    """What a rank does in a round.

    ``in_turn``: whether the sends must have left before anything is added or sent on, because what
    arrives belongs where they leave from, or the next round goes to others and would share the link
    with them. ``release``: the sends of the next round, by the receive they wait for.
    """

    sends: list[_Part]
    receives: list[_Part]
    in_turn: bool = False
    release: list[list[_Part]] | None = None


def ours(job: Job, rank: int, ranks: int) -> Prepared:
    """Prepare a schedule over point-to-point calls."""
    schedule = job.schedule(ranks)
    if schedule.counts is not None:
        raise LabError("the lab plays even all-to-alls only")
    offsets = schedule.chunk_offsets(job.items)
    held = torch.zeros(int(offsets[-1]))
    rounds = _rounds(schedule, offsets, held, rank)
    mine = torch.from_numpy(extent(schedule, job.items, rank))
    first, last = (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0)
    row = slice(rank * job.items, (rank + 1) * job.items)
    start = torch.from_numpy(job.start(rank, ranks))

    def reset():
        (held[row] if job.kind == "all_to_all" else held).copy_(start)

    def result():
        return (held[first:last] if last - first == len(mine) else held[mine]).numpy()

    return Prepared(reset, lambda: _play(rounds), result)


def _rounds(schedule: Schedule, offsets, held, rank: int) -> list[_Round]:
    """Cut every message of this rank into segments."""
    parts = segments(schedule, offsets)
    rounds = []
    for sends in schedule.rounds:
        pair = [], []
        for side, (own, other) in enumerate(((sends.src, sends.dst), (sends.dst, sends.src))):
            for peer in np.unique(other[own == rank]).tolist():
                rows = np.flatnonzero((own == rank) & (other == peer))
                runs = _runs(sends, rows, offsets)
                for s in range(parts):
                    cuts = [[a + (b - a) * t // parts for t in (s, s + 1)] for a, b, _ in runs]
                    spans = [tuple(cut) for cut in cuts]
                    if sum(b - a for a, b in spans):
                        views = [held[a:b] for a, b in spans]
                        part = _Part(peer, views, spans, [reduce for *_, reduce in runs])
                        pair[side].append(part)
        rounds.append(_Round(*pair))
    for before, this in zip([_Round([], []), *rounds], rounds, strict=False):
        near = [*before.sends, *before.receives, *this.sends]
        for part in this.sends:
            part.buffer = None if len(part.views) == 1 else torch.empty(sum(map(len, part.views)))
        for part in this.receives:
            direct = len(part.views) == 1 and not part.reduce[0] and not _meet(part, near)
            part.buffer = None if direct else torch.empty(sum(map(len, part.views)))
        this.in_turn = any(_meet(p, this.sends) for p in this.receives)
        before.in_turn |= {p.peer for p in before.sends} != {p.peer for p in this.sends}
        before.release = _released(this.sends, before.receives)
    if rounds:
        rounds[-1].release = _released([], rounds[-1].receives)
    return rounds


def _runs(sends, rows, offsets) -> list[list]:
    """Join neighbouring chunks of one message: [first item, end, reduce]."""
    runs = []
    for row in rows:
        chunk, count = int(sends.chunk[row]), int(sends.count[row])
        first, end = int(offsets[chunk]), int(offsets[chunk + count])
        reduce = bool(sends.reduce[row])
        if runs and runs[-1][1] == first and runs[-1][2] == reduce:
            runs[-1][1] = end
        else:
            runs.append([first, end, reduce])
    return runs


def _meet(part: _Part, others: list[_Part]) -> bool:
    return any(a < d and c < b for a, b in part.spans for o in others for c, d in o.spans)


def _send(part: _Part):
    data = part.views[0]
    if part.buffer is not None:
        data = torch.cat(part.views, out=part.buffer)
    return dist.group.WORLD.send([data], part.peer, 0)


def _receive(part: _Part):
    place = part.views[0] if part.buffer is None else part.buffer
    return dist.group.WORLD.recv([place], part.peer, 0)


def _settle(part: _Part) -> None:
    """Put what was received where it belongs."""
    if part.buffer is not None:
        sizes = [len(view) for view in part.views]
        for view, data, reduce in zip(
            part.views, part.buffer.split(sizes), part.reduce, strict=True
        ):
            view.add_(data) if reduce else view.copy_(data)


def _released(sends: list[_Part], receives: list[_Part]) -> list[list[_Part]]:
    """Sort the sends of a round by the receive of the round before that each has to wait for.

    Entry 0 waits for none, entry k for receive k − 1. Sends to one peer keep their order: they are
    matched with its receives by order alone.
    """
    after, latest = [[] for _ in range(len(receives) + 1)], {}
    for part in sends:
        met = [k for k, received in enumerate(receives, 1) if _meet(part, [received])]
        latest[part.peer] = max([latest.get(part.peer, 0), *met])
        after[latest[part.peer]].append(part)
    return after


def _play(rounds: list[_Round]) -> None:
    """Play the rounds: receives stand ready one round ahead, sends leave as soon as they may."""
    coming = [_receive(p) for p in rounds[0].receives] if rounds else []
    leaving = [_send(p) for p in rounds[0].sends] if rounds else []
    for this, following in zip(rounds, [*rounds[1:], None], strict=False):
        ahead = [_receive(p) for p in following.receives] if following else []
        if this.in_turn:
            _wait(leaving)
        onward = [_send(p) for p in this.release[0]]
        for work, part, freed in zip(coming, this.receives, this.release[1:], strict=True):
            work.wait()
            _settle(part)
            onward += [_send(p) for p in freed]
        if not this.in_turn:
            _wait(leaving)
        coming, leaving = ahead, onward
    _wait(leaving)


def _wait(works) -> None:
    for work in works:
        work.wait()


def gloo(job: Job, rank: int, ranks: int) -> Prepared:
    """Prepare the collective that ``torch.distributed`` itself performs."""
    return _library(job, rank, ranks, "cpu")


def nccl(job: Job, rank: int, ranks: int) -> Prepared:
    """Prepare NCCL's collective, one GPU for each rank."""
    here = torch.cuda.device_count()
    if here < 2:
        raise LabError(f"nccl needs at least 2 GPUs, one for each rank, and here are {here}")
    device = f"cuda:{int(os.environ.get('LOCAL_RANK', rank)) % here}"
    torch.cuda.set_device(device)
    return _library(job, rank, ranks, device)


def _library(job: Job, rank: int, ranks: int, device: str) -> Prepared:
    cut = job.kind in ("scatter", "gather", "all_gather", "reduce_scatter", "all_to_all")
    if cut and job.items % ranks:
        raise LabError(
            f"{job.engine}'s {job.kind} cuts evenly: bytes must divide by {ITEM_BYTES * ranks}"
        )
    start = torch.from_numpy(job.start(rank, ranks)).to(device)
    whole, out = torch.empty_like(start), torch.empty_like(start)
    block = whole.chunk(ranks)[rank] if cut else whole
    part, root = out[: len(block)], job.root
    peer = (root + 1) % ranks

    def send():
        if ranks > 1 and rank in (root, peer):
            dist.send(whole, peer) if rank == root else dist.recv(whole, root)

    def gather():
        dist.gather(block, list(out.chunk(ranks)) if rank == root else None, root)

    def scatter():
        dist.scatter(part, list(whole.chunk(ranks)) if rank == root else None, root)

    calls = {
        "broadcast": (lambda: dist.broadcast(whole, root), whole),
        "scatter": (scatter, part),
        "gather": (gather, out),
        "all_gather": (lambda: dist.all_gather_into_tensor(out, block.contiguous()), out),
        "reduce": (lambda: dist.reduce(whole, root), whole),
        "reduce_scatter": (lambda: dist.reduce_scatter_tensor(part, whole), part),
        "all_reduce": (lambda: dist.all_reduce(whole), whole),
        "all_to_all": (lambda: dist.all_to_all_single(out, whole), out),
        "barrier": (dist.barrier, None),
        "send": (send, whole),
    }
    call, result = calls[job.kind]
    due = len(job.end(rank, ranks))

    def ended():  # a barrier carries nothing
        return job.end(rank, ranks) if result is None else result[:due].cpu().numpy()

    def run():
        call()
        if device != "cpu":
            torch.cuda.synchronize()

    return Prepared(lambda: whole.copy_(start), run, ended)
