"""A function of one's own on every rank of the lab: its source travels, and runs there.

A training step is not a :class:`~tokenlife.lab.job.Job`: it computes, and what it sends is what is
to be found out. ``Team.call`` sends the text of a function to all ranks, where it runs with a
:class:`Rank` as first argument. So what a page shows is what the ranks ran. Functions of the same
module that it calls travel with it; all else it must import. It returns plain values.
"""

import contextlib
import inspect
import linecache
import textwrap
import time
from collections.abc import Callable

from tokenlife.lab import meter
from tokenlife.lab.cluster import LabError
from tokenlife.lab.measure import SETTLE_S, SLACK_S


class Rank:
    """Where a program runs, and its meters.

    Attributes
    ----------
    rank, ranks
        Its number, and how many there are; the default process group is all of them.
    interface
        The name of the one that leads to the others.
    """

    def __init__(self, where: dict, agree: Callable[[float], float]):
        self.rank, self.ranks = where["rank"], where["ranks"]
        self.interface = where["interface"]
        self._where, self._agree = where, agree

    def together(self, seconds: float = SLACK_S) -> None:
        """Go on at one moment with all ranks, without a word on the network."""
        time.sleep(max(0.0, self._agree(seconds) - time.monotonic()))

    @contextlib.contextmanager
    def counted(self):
        """Count what this rank sends meanwhile; all ranks enter and leave together.

        Yields
        ------
        dict
            Filled at the end: ``payload_bytes`` (the sockets', without retransmissions),
            ``wire_bytes`` and ``packets`` (the interface's; of loopback all ranks'), ``time_s``.
        """
        calm = SETTLE_S + 4 * (self._where["delay"] or 0)
        found = {}
        self.together(calm)
        before = meter.interface(self.interface), meter.sockets(self._where["port"])
        self.together()
        start = time.monotonic()
        yield found
        found["time_s"] = time.monotonic() - start
        self.together(calm)  # a late acknowledgement, and whoever is slower
        after = meter.interface(self.interface), meter.sockets(self._where["port"])
        left, sent = (meter.difference(a, b) for a, b in zip(after, before, strict=True))
        found["payload_bytes"] = sent["bytes_sent"] - sent["bytes_retransmitted"]
        found["wire_bytes"], found["packets"] = left["bytes"], left["packets"]


def source(function: Callable) -> dict:
    """Return a function, and those of its module that it calls, as what :func:`run_source` takes.

    Raises
    ------
    LabError
        If its text cannot be had, or it needs what stands outside its module.
    """
    needed = {function.__name__: function}
    for each in (waiting := [function]):
        if each.__name__ == "<lambda>" or each.__closure__:
            raise LabError(
                f"{each.__name__} must be a function that needs nothing outside it but arguments"
            )
        others = [each.__globals__.get(name) for name in _names(each.__code__)]
        for other in filter(inspect.isfunction, others):
            if other.__module__ == each.__module__ and other.__name__ not in needed:
                needed[other.__name__] = other
                waiting.append(other)
    try:
        texts = [textwrap.dedent(inspect.getsource(each)) for each in needed.values()]
    except (OSError, TypeError):
        raise LabError(f"the lab needs the text of {function!r}: define it with def") from None
    return {"name": function.__name__, "text": "\n\n".join(texts)}


def _names(code) -> list[str]:
    """Return what a function's code names, and what the functions inside it name."""
    inside = [name for part in code.co_consts if inspect.iscode(part) for name in _names(part)]
    return [*code.co_names, *inside]


def run_source(program: dict, arguments: dict, rank: Rank):
    """Define a function from its text and call it; its lines show in a traceback."""
    file = f"<{program['name']}>"
    linecache.cache[file] = (len(program["text"]), None, program["text"].splitlines(True), file)
    names = {"__name__": file}
    exec(compile(program["text"], file, "exec"), names)
    return names[program["name"]](rank, **arguments)
