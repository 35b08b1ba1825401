"""A server: requests come at their own times and wait for a row of the batch.

Two policies. ``continuous`` (Yu et al., "Orca", OSDI 2022): at each token boundary, requests that
have come join free rows, first come, first served, and finished ones leave. ``static``: a batch is
filled when it is empty, and nobody joins before all have finished.

Each joining group is prefilled in one pass, during which the rows in flight wait. Times are wall
times of the real passes. A token counts as given when its id is known to the program.

Left out: preemption, priorities, several servers; and who waits is not refused.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenlife.transformer.generate.batch import Batch, Request, RequestError
from tokenlife.transformer.model import Decoder

POLICIES = ("continuous", "static")


@dataclass(frozen=True)
class Completion:
    """What a request got, and when.

    Attributes
    ----------
    request
        As it was asked.
    ids
        The new ids.
    joined_s
        When its prefill began.
    times_s
        When each id was known, on the server's clock.
    """

    request: Request
    ids: tuple[int, ...]
    joined_s: float
    times_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """Time to first token: from arrival, so the wait for a row is in it."""
        return self.times_s[0] - self.request.arrival_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 where there is no second."""
        later = len(self.times_s) - 1
        return (self.times_s[-1] - self.times_s[0]) / later if later else 0.0

    @property
    def latency_s(self) -> float:
        """From arrival to the last token."""
        return self.times_s[-1] - self.request.arrival_s


@dataclass(frozen=True)
class Pass:
    """One pass of the model: ``prefill`` or ``decode``, its times and the requests in it."""

    kind: str
    start_s: float
    end_s: float
    requests: tuple[int, ...]


class WallClock:
    """Seconds since its making."""

    def __init__(self):
        self.zero = time.perf_counter()

    def now(self) -> float:
        """Return the time."""
        return time.perf_counter() - self.zero

    def wait_until(self, time_s: float) -> None:
        """Sleep."""
        time.sleep(max(0.0, time_s - self.now()))


def serve(
    model: Decoder,
    requests: Sequence[Request],
    rows: int = 8,
    capacity: int = 0,
    policy: str = "continuous",
    clock: Callable[[], WallClock] = WallClock,
) -> tuple[list[Completion], list[Pass]]:
    """Serve a queue of requests for real.

    Parameters
    ----------
    model
        Any decoder.
    requests
        In any order; each waits until its ``arrival_s``.
    rows
        Requests in flight at most.
    capacity
        Tokens of a row; 0 for what the largest request needs.
    policy
        ``continuous`` or ``static``.
    clock
        Makes the clock when the service begins.

    Returns
    -------
    tuple
        A :class:`Completion` for each request, in the order given, and every :class:`Pass`.

    Raises
    ------
    RequestError
        If a request can never be served, there is none, or the policy is unknown. All are checked
        before the first is served.

    Examples
    --------
    >>> from tokenlife.transformer import ModelConfig
    >>> model = Decoder(ModelConfig.load("running-gpt"))
    >>> queue = [Request((1, 2), 3), Request((3,), 2), Request((4,), 1)]
    >>> done, passes = serve(model, queue, rows=2)
    >>> [len(c.ids) for c in done], [(p.kind, p.requests) for p in passes]
    ([3, 2, 1], [('prefill', (0, 1)), ('decode', (0, 1)), ('prefill', (2,)), ('decode', (0,))])
    """
    if policy not in POLICIES:
        raise RequestError(f"policy {policy!r} is not known; known: {', '.join(POLICIES)}")
    if not requests or rows < 1:
        raise RequestError("a server needs one request and one row at least")
    capacity = capacity or max(request.slots for request in requests)
    for request in requests:
        request.check(model, capacity)

    order = sorted(range(len(requests)), key=lambda i: (requests[i].arrival_s, i))
    waiting = deque(order)
    batch, clock = Batch(model, rows, capacity), clock()
    joined: dict[int, float] = {}
    times: dict[int, list[float]] = {i: [] for i in order}
    passes: list[Pass] = []

    def run(kind: str, members: tuple[int, ...], work: Callable[[], dict[int, int]]) -> None:
        start = clock.now()
        work()
        end = clock.now()
        passes.append(Pass(kind, start, end, members))
        for i in members:
            joined.setdefault(i, start)
            times[i].append(end)

    while waiting or batch.rows:
        if not batch.rows:
            clock.wait_until(requests[waiting[0]].arrival_s)
        room = batch.free if policy == "continuous" or not batch.rows else 0
        now, new = clock.now(), []
        while waiting and len(new) < room and requests[waiting[0]].arrival_s <= now:
            new.append(waiting.popleft())
        if new:
            run("prefill", tuple(new), lambda new=new: batch.join({i: requests[i] for i in new}))
        if batch.rows:
            run("decode", tuple(sorted(row.key for row in batch.rows)), batch.step)

    ids = {row.key: tuple(row.ids) for row in batch.finished}
    done = [
        Completion(request, ids[i], joined[i], tuple(times[i]))
        for i, request in enumerate(requests)
    ]
    return done, passes
