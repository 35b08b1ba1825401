"""A server simulated pass by pass: when each request gets its first and its last token.

Two policies. ``continuous``, as in ``tokenlife.transformer.generate.serve``: between two passes
whoever has come joins, all their prompts are read in one pass while the rows in flight wait; then
one decode step, and so on. ``chunked`` (Sarathi [1]_): a pass carries at most ``chunk`` new tokens,
one for each row that decodes and the rest for prompts in the order of arrival. Where only decode is
going on, nothing changes from step to step but the length of the caches: such steps are priced
together, up to the next arrival or end.

A row's cache is reserved when it joins, for its longest. Left out: preemption, caches that decode
has no room for (they wait on no machine), several passes in flight, and routing by prefix or load.

References
----------
.. [1] A. Agrawal et al., "Taming throughput-latency tradeoff in LLM inference with
   Sarathi-Serve", OSDI 2024.
"""

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from tokenlife.jobs.serving.requests import ServingError

POLICIES = ("continuous", "chunked")
SEGMENT = 256  # decode steps priced together at most


@dataclass(frozen=True)
class Server:
    """How a server batches.

    Attributes
    ----------
    rows
        Requests in flight at most.
    kv_tokens
        Tokens that the caches of all rows hold together.
    policy
        ``continuous`` or ``chunked``.
    chunk
        New tokens of a chunked pass.
    """

    rows: int
    kv_tokens: int = 2**62
    policy: str = "continuous"
    chunk: int = 512

    def __post_init__(self):
        if self.policy not in POLICIES:
            raise ServingError(f"no policy {self.policy!r}; known: {', '.join(POLICIES)}")
        if min(self.rows, self.kv_tokens, self.chunk) < 1:
            raise ServingError("rows, kv_tokens and chunk must be at least 1")
        if self.policy == "chunked" and self.chunk <= self.rows:
            raise ServingError(
                f"a chunk of {self.chunk} has no room beside {self.rows} rows; more than that would"
            )


class Served(NamedTuple):
    """What requests got.

    Attributes
    ----------
    table
        ``arrival_s``, ``prompt``, ``output``, ``cached``, ``ttft_s``, ``tpot_s``, ``end_s``, and
        ``stalled_s``: how long prompts of others held it up between its first and its last token.
    utilisation
        Offered work over what the server can do, each prompt read alone and rows full: above 1 the
        queue grows as long as requests come.
    counts
        ``prompt`` and ``decode`` tokens that went through passes, ``passes``, ``drawn`` tokens,
        ``busy_s``; ``kv_bytes`` sent where prompts are read elsewhere.
    """

    table: pd.DataFrame
    utilisation: float
    counts: Counter

    @property
    def says(self) -> str:
        """One line on the load."""
        load = f"offered load is {self.utilisation:.0%} of what the server can do"
        grows = "; beyond saturation: waits grow with the length of the run, and mean nothing else"
        return load + grows * (self.utilisation > 1)

    def goodput(self, ttft_s: float, tpot_s: float) -> float:
        """Return the share of requests that kept both limits."""
        return float(((self.table.ttft_s <= ttft_s) & (self.table.tpot_s <= tpot_s)).mean())


def utilisation(asked: pd.DataFrame, engine, server: Server, prefilled=False) -> float:
    """Return the offered load; 0 for fewer than two requests."""
    span = asked.arrival_s.iloc[-1] - asked.arrival_s.iloc[0]
    if len(asked) < 2:
        return 0.0
    new, past = asked.prompt - asked.cached, asked.cached
    reads = 0.0 if prefilled else np.asarray(engine.seconds(new, _pairs(new, past), 0, 0)).sum()
    size = float((asked.prompt + asked.output).mean())
    full = max(1, min(server.rows, int(server.kv_tokens / size)))
    context = full * float((asked.prompt + asked.output / 2).mean())
    steps = float((asked.output - 1).sum()) / full
    work = reads + steps * float(engine.seconds(0, 0, full, context))
    return float(work * (len(asked) - 1) / len(asked) / span) if span else math.inf


def _pairs(new, past):
    return new * past + new * (new + 1) / 2


def simulate(
    asked: pd.DataFrame, engine, server: Server, instances: int = 1, prefilled=False
) -> Served:
    """Serve requests on equal instances, dealt in turn.

    Parameters
    ----------
    asked
        A table of :func:`~tokenlife.jobs.serving.requests.requests`.
    engine
        Whatever knows the ``seconds`` of a pass, as :class:`~tokenlife.jobs.serving.engine.Engine`.
    prefilled
        Whether prompts were read elsewhere: then only decode runs, ``first_s`` is in ``asked``.

    Raises
    ------
    ServingError
        If a request can never fit.

    Examples
    --------
    >>> class Second:
    ...     def seconds(self, tokens, pairs, rows, context, sampled=None):
    ...         return np.ones(np.shape(context))
    >>> from tokenlife.jobs.serving.requests import requests
    >>> simulate(requests([0.0, 0.5], 8, [3, 1]), Second(), Server(rows=2)).table.ttft_s.tolist()
    [1.0, 2.5]
    """
    if instances < 1:
        raise ServingError(f"at least one instance, not {instances}")
    need = int((asked.prompt + asked.output).max())
    if need > server.kv_tokens:
        raise ServingError(
            f"a request of {need} tokens never fits caches of {server.kv_tokens}; {need} would do"
        )
    parts, loads, counts = [], [], Counter()
    for i in range(min(instances, len(asked))):
        part = asked.iloc[i::instances]
        columns = {name: part[name].tolist() for name in part.columns}
        loads.append(utilisation(part, engine, server, prefilled))
        first, last, stalled = _Run(columns, engine, server, prefilled, counts).run()
        found = {"ttft_s": np.array(first) - part.get("came_s", part.arrival_s)}
        later = np.maximum(part.output - 1, 1)
        found |= {"tpot_s": (np.array(last) - first) / later, "end_s": last, "stalled_s": stalled}
        parts.append(part.assign(**found))
    return Served(pd.concat(parts).sort_index(), float(np.mean(loads)), counts)


class _Run:
    """One instance at work."""

    def __init__(self, asked: dict, engine, server: Server, prefilled: bool, counts: Counter):
        self.asked, self.engine, self.server, self.counts = asked, engine, server, counts
        self.prefilled, self.n = prefilled, len(asked["prompt"])
        self.now, self.came, self.step, self.reading_s = 0.0, 0, 0, 0.0
        self.rows = self.held = self.context = self.decoding = 0
        self.waiting, self.pending, self.ends = deque(), deque(), []
        self.first, self.last, self.stalled = ([0.0] * self.n for _ in range(3))

    def run(self):
        """Serve all, and return first token's and last token's time and the stalls."""
        while self.came < self.n or self.waiting or self.rows:
            self._admit()
            if self.pending:
                self._read()
                if self.server.policy == "chunked":
                    continue
            if self.decoding:
                self._decode()
            elif not self.rows and not self.waiting and self.came < self.n:
                self.now = max(self.now, self.asked["arrival_s"][self.came])
        return self.first, self.last, self.stalled

    def _admit(self):
        arrivals, a = self.asked["arrival_s"], self.asked
        while self.came < self.n and arrivals[self.came] <= self.now:
            self.waiting.append(self.came)
            self.came += 1
        while self.waiting and self.rows < self.server.rows:
            i = self.waiting[0]
            need = a["prompt"][i] + a["output"][i]
            if self.held + need > self.server.kv_tokens:
                break
            self.waiting.popleft()
            self.rows, self.held = self.rows + 1, self.held + need
            if self.prefilled:
                self.first[i] = a["first_s"][i]
                self._start(i)
            else:
                self.pending.append([i, a["cached"][i]])

    def _start(self, i):
        """Let a request whose prompt is read decode, or go."""
        if self.asked["output"][i] == 1:
            self._leave(i)
            return
        self.stalled[i] = -self.reading_s
        self.decoding, self.context = self.decoding + 1, self.context + self.asked["prompt"][i]
        heapq.heappush(self.ends, (self.step + self.asked["output"][i] - 1, i))

    def _leave(self, i):
        self.last[i] = max(self.now, self.first[i])
        self.rows -= 1
        self.held -= self.asked["prompt"][i] + self.asked["output"][i]

    def _read(self):
        """Run a pass that reads prompts: all that joined, or a chunk beside the rows."""
        chunked = self.server.policy == "chunked"
        room = self.server.chunk - self.decoding if chunked else math.inf
        done, tokens, pairs = [], 0, 0.0
        while self.pending and tokens < room:
            i, past = self.pending[0]
            new = min(self.asked["prompt"][i] - past, room - tokens)
            tokens, pairs = tokens + new, pairs + _pairs(new, past)
            self.pending[0][1] = past + new
            if past + new < self.asked["prompt"][i]:
                break
            done.append(self.pending.popleft()[0])
        rows = self.decoding if chunked else 0
        took = float(
            self.engine.seconds(tokens, pairs, rows, self.context * chunked, rows + len(done))
        )
        alone = float(self.engine.seconds(0, 0, rows, self.context)) if rows else 0.0
        self._count(tokens, rows, 1, took, rows + len(done))
        self.now += took
        self.reading_s += took - alone
        if chunked and rows:
            self._advance(1)
        for i in done:
            self.first[i] = self.now
            self._start(i)

    def _decode(self):
        """Run decode steps until a request ends, or one that has room has come."""
        rows, arrivals = self.decoding, self.asked["arrival_s"]
        steps = min(self.ends[0][0] - self.step, SEGMENT)
        contexts = self.context + rows * np.arange(steps)
        ends = self.now + np.cumsum(self.engine.seconds(0, 0, rows, contexts))
        if self.rows < self.server.rows and self.came < self.n:
            steps = min(steps, int(np.searchsorted(ends, arrivals[self.came])) + 1)
        took = float(ends[steps - 1]) - self.now
        self._count(0, rows * steps, steps, took, rows * steps)
        self.now = float(ends[steps - 1])
        self._advance(steps)

    def _advance(self, steps):
        self.step += steps
        self.context += steps * self.decoding
        while self.ends and self.ends[0][0] <= self.step:
            _, i = heapq.heappop(self.ends)
            self.stalled[i] += self.reading_s
            self.decoding -= 1
            self.context -= self.asked["prompt"][i] + self.asked["output"][i] - 1
            self._leave(i)

    def _count(self, prompt, decode, passes, busy_s, drawn):
        self.counts.update(prompt=int(prompt), decode=decode, passes=passes, drawn=drawn)
        self.counts["busy_s"] += busy_s
