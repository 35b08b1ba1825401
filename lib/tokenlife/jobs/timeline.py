"""The time line of one step: when each rank computes and communicates, and what it waits for.

A list scheduler: every stream of every rank (one that computes, one for each network) works through
its tasks in the order given, and starts a task once the stream is free and all that the task waits
for has finished. Nothing is random. Durations are arguments: what they are is for others to say.

Left out: streams that slow each other down, and work that starts before all of its input is there.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenlife.errors import TokenlifeError
from tokenlife.parallel.schedules import Action, Schedule

COMPUTE = "compute"


class TimelineError(TokenlifeError, ValueError):
    """Tasks that wait for each other, or for something that never happens."""


@dataclass(frozen=True)
class Task:
    """A piece of work.

    Attributes
    ----------
    name
        Its own; others wait for it by this name.
    rank, stream
        Where it runs.
    duration_s
        How long.
    after
        Names of what must have finished.
    holds
        Micro-batches whose activations it begins to hold (1), or lets go of when done (−1).
    """

    name: str
    rank: int
    stream: str
    duration_s: float
    after: tuple[str, ...] = ()
    holds: int = 0


@dataclass(frozen=True)
class Timeline:
    """Tasks with their times, in the order in which they start.

    Attributes
    ----------
    tasks
        The tasks.
    start_s, finish_s
        Their times; shape (tasks,).
    """

    tasks: tuple[Task, ...]
    start_s: np.ndarray
    finish_s: np.ndarray

    @cached_property
    def makespan_s(self) -> float:
        """From the first start to the last finish."""
        return float(self.finish_s.max() - self.start_s.min())

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that work."""
        return sorted({task.rank for task in self.tasks})

    def spans(self, rank: int, stream: str = COMPUTE) -> np.ndarray:
        """Return (start, finish) of what a stream of a rank does; shape (tasks, 2)."""
        chosen = [i for i, t in enumerate(self.tasks) if (t.rank, t.stream) == (rank, stream)]
        return np.stack([self.start_s[chosen], self.finish_s[chosen]], axis=1)

    def busy_s(self, rank: int, stream: str = COMPUTE) -> float:
        """Return for how long a stream of a rank works."""
        return float(np.diff(self.spans(rank, stream)).sum())

    def bubble_s(self, rank: int) -> float:
        """Return for how long a rank idles between its first work and its last."""
        spans = self.spans(rank)
        return float(spans.max() - spans.min()) - self.busy_s(rank)

    @property
    def bubble_fraction(self) -> float:
        """The bubble of the rank that idles most, as a part of its time from first to last work."""
        worst = max(self.ranks, key=self.bubble_s)
        return self.bubble_s(worst) / (self.bubble_s(worst) + self.busy_s(worst))

    def exposed_s(self, rank: int, stream: str) -> float:
        """Return for how long a stream works while its rank computes nothing."""
        hidden = sum(
            max(0.0, min(end, done) - max(start, begin))
            for start, end in self.spans(rank, stream)
            for begin, done in self.spans(rank)
        )
        return self.busy_s(rank, stream) - float(hidden)

    def most_held(self, rank: int) -> int:
        """Return the most micro-batches (of one chunk each) whose activations a rank holds."""
        events = [
            (self.start_s[i] if t.holds > 0 else self.finish_s[i], t.holds)
            for i, t in enumerate(self.tasks)
            if t.rank == rank and t.holds
        ]
        return int(np.cumsum([holds for _, holds in sorted(events)]).max(initial=0))

    def utilisation(self, at_s: Sequence[float], stream: str = COMPUTE) -> np.ndarray:
        """Return the part of all ranks whose stream works at each of these times."""
        at, works = np.asarray(at_s)[:, None], np.zeros(len(at_s))
        for rank in self.ranks:
            spans = self.spans(rank, stream)
            works += ((spans[:, 0] <= at) & (at < spans[:, 1])).any(axis=1)
        return works / len(self.ranks)


def play(tasks: Sequence[Task]) -> Timeline:
    """Schedule tasks; each stream keeps their order.

    Raises
    ------
    TimelineError
        If a name comes twice, or tasks can never start.

    Examples
    --------
    >>> line = play([Task("a", 0, "compute", 2), Task("b", 1, "compute", 1, after=("a",))])
    >>> line.start_s.tolist(), line.makespan_s
    ([0.0, 2.0], 3.0)
    """
    streams: dict[tuple[int, str], list[Task]] = defaultdict(list)
    for task in tasks:
        streams[task.rank, task.stream].append(task)
    for queue in streams.values():
        queue.reverse()  # the next task stands last
    begin, finish, waiting, free = {}, {}, defaultdict(list), defaultdict(float)
    todo = list(streams)
    while todo:
        stream = todo.pop()
        while queue := streams[stream]:
            task = queue[-1]
            missing = next((name for name in task.after if name not in finish), None)
            if missing is not None:
                waiting[missing].append(stream)
                break
            begin[task.name] = max([free[stream], *(finish[name] for name in task.after)])
            free[stream] = finish[task.name] = begin[task.name] + task.duration_s
            queue.pop()
            todo += waiting.pop(task.name, [])
    if len(finish) < len(tasks):
        stuck = next((t.name for t in tasks if t.name not in finish), "a name that comes twice")
        raise TimelineError(f"{len(tasks) - len(finish)} tasks can never start, among them {stuck}")
    done = sorted(tasks, key=lambda t: (begin[t.name], t.rank, t.stream))
    times = (np.array([moment[t.name] for t in done], float) for moment in (begin, finish))
    return Timeline(tuple(done), *times)


def pipeline_tasks(
    schedule: Schedule,
    durations_s: Mapping[str, float],
    send_s: float = 0.0,
    gradients_s: float = 0.0,
) -> list[Task]:
    """Turn a pipeline schedule into tasks.

    Parameters
    ----------
    schedule
        As :func:`tokenlife.parallel.schedules.pipeline_schedule` builds it.
    durations_s
        Seconds of ``F``, ``B`` (without the weights' gradients) and ``W`` of one chunk; without
        ``W`` in the schedule a backward takes both.
    send_s
        Of one micro-batch from stage to stage; each direction is a stream.
    gradients_s
        Of the data-parallel sum of one chunk's gradients, once its last backward is done.

    Examples
    --------
    >>> from tokenlife.parallel.schedules import pipeline_schedule
    >>> tasks = pipeline_tasks(pipeline_schedule("gpipe", 4, 8), {"F": 1, "B": 1, "W": 1})
    >>> line = play(tasks)
    >>> line.makespan_s, round(line.bubble_fraction, 4), line.most_held(0)
    (33.0, 0.2727, 8)
    """
    rank_of = {a.chunk: rank for rank, actions in enumerate(schedule) for a in actions}
    split = any(a.kind == "W" for a in schedule[0])
    final, tasks = {}, []

    def sent(kind: str, chunk: int, i: int, to: int) -> str:
        """Name the task that brings what a chunk made to another one."""
        crosses = send_s and rank_of[chunk] != rank_of[to]
        return f"send {Action(kind, chunk, i)}" if crosses else str(Action(kind, chunk, i))

    for rank, actions in enumerate(schedule):
        for action in actions:
            kind, chunk, i = action
            step = {"F": 1, "B": -1, "W": 0}[kind]
            after = [] if kind == "F" else [str(Action("F" if kind == "B" else "B", chunk, i))]
            if step and chunk - step in rank_of:
                after.append(sent(kind, chunk - step, i, chunk))
            ends = kind == "W" or (kind == "B" and not split)
            duration = durations_s[kind] + (ends and not split) * durations_s["W"]
            holds = (kind == "F") - ends
            tasks.append(Task(str(action), rank, COMPUTE, duration, tuple(after), holds))
            if step and chunk + step in rank_of:
                name = sent(kind, chunk, i, chunk + step)
                if name != str(action):
                    tasks.append(Task(name, rank, f"send {kind}", send_s, (str(action),)))
            if ends:
                final[rank, chunk] = str(action)
    if gradients_s:
        tasks += [
            Task(f"gradients {chunk}", rank, "gradients", gradients_s, (name,))
            for (rank, chunk), name in final.items()
        ]
    return tasks
