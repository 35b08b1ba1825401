"""What a schedule costs: round by round on given links, or in closed form for many points at once.

Two link models behind one method, ``message_s``. Hockney's [1]_: a message of m bytes takes
α + β·m. LogGP [2]_: L + 2o + (m − 1)·G, and a port may start a message only every g. Both add bytes
at γ seconds each. :class:`Tiers` puts one link inside a node and another between nodes.

A round starts when the last one has ended everywhere, and ends with its slowest port: the longest
message into it, then the adding of all that came. A port of a rank carries one message; a rank with
several ports, and a switch, receives several side by side, and a switch adds at the speed of its
links. Left out: contention in the network, adding while receiving, and rounds that overlap.

References
----------
.. [1] R. W. Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994.
.. [2] A. Alexandrov, M. Ionescu, K. Schauser, C. Scheiman, "LogGP: incorporating long messages into
   the LogP model", SPAA 1995.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from tokenlife.collectives.registry import Algorithm, algorithms
from tokenlife.collectives.schedule import Schedule, ScheduleError
from tokenlife.collectives.terms import Terms


class _Link:
    """A link whose parameters are seconds, all at least zero."""

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if not np.all(np.isfinite(value)) or np.any(np.asarray(value) < 0):
                name = field.name.replace("_s_per_B", "").removesuffix("_s")
                raise ScheduleError(f"{name} must be zero or more seconds, not {value}")


@dataclass(frozen=True)
class Hockney(_Link):
    """A message of m bytes takes α + β·m.

    Attributes
    ----------
    alpha_s, beta_s_per_B
        Numbers, or arrays by pair of nodes; shape (nodes, nodes).
    gamma_s_per_B
        Seconds to add a byte.

    Examples
    --------
    >>> Hockney(2e-6, 1e-9).message_s(1000)
    3e-06
    """

    alpha_s: np.ndarray | float
    beta_s_per_B: np.ndarray | float
    gamma_s_per_B: float = 0.0

    def message_s(self, bytes_, src=None, dst=None):
        """Return the seconds that messages take; the pairs matter only to arrays."""
        alpha, beta = (
            value[src, dst] if np.ndim(value) else value
            for value in (self.alpha_s, self.beta_s_per_B)
        )
        return alpha + beta * bytes_

    def terms_s(self, terms: Terms):
        """Return the seconds of a closed form, on links that are all alike."""
        return terms.time_s(self.alpha_s, self.beta_s_per_B, self.gamma_s_per_B)


@dataclass(frozen=True)
class LogGP(_Link):
    """A message of m bytes takes L + 2o + (m − 1)·G, and at least g.

    Attributes
    ----------
    L_s, o_s, g_s, G_s_per_B
        Latency, overhead of each end, least time between two messages, gap of a byte.
    gamma_s_per_B
        Seconds to add a byte.

    Examples
    --------
    >>> print(LogGP(2e-6, 0, 0, 1e-9).message_s(131072) * 1e9)
    133071.0
    """

    L_s: float
    o_s: float
    g_s: float
    G_s_per_B: float
    gamma_s_per_B: float = 0.0

    def message_s(self, bytes_, src=None, dst=None):
        """Return the seconds that messages take, all pairs alike."""
        own = self.L_s + 2 * self.o_s + np.maximum(np.asarray(bytes_) - 1, 0) * self.G_s_per_B
        return np.maximum(own, self.g_s)

    def terms_s(self, terms: Terms):
        """Return the seconds of a closed form; the gap is met by the mean message of a round."""
        rounds = np.maximum(terms.rounds, 1)
        mean_s = self.message_s(terms.sent_bytes / rounds)
        return terms.rounds * mean_s + terms.reduced_bytes * self.gamma_s_per_B


@dataclass(frozen=True)
class Tiers:
    """One link between ranks of the same node, another between nodes.

    Rank r sits in node r // ``node``; a switch of the schedule counts as a node of its own. Each
    rank has its own way out of the node: ranks that share one have a higher β ``between``.

    Examples
    --------
    >>> links = Tiers(Hockney(1e-6, 1e-11), Hockney(5e-6, 1e-10), node=2)
    >>> links.message_s(np.array([0, 0]), np.array([0, 1]), np.array([1, 2])).tolist()
    [1e-06, 5e-06]
    """

    inside: Hockney | LogGP
    between: Hockney | LogGP
    node: int

    def __post_init__(self):
        if not isinstance(self.node, int | np.integer) or self.node < 1:
            raise ScheduleError(f"a node holds at least one rank, not {self.node}")

    @property
    def gamma_s_per_B(self) -> float:
        """Seconds to add a byte: a rank's own, wherever the byte came from."""
        return self.inside.gamma_s_per_B

    def message_s(self, bytes_, src, dst):
        """Return the seconds that messages take between these pairs."""
        same = np.asarray(src) // self.node == np.asarray(dst) // self.node
        return np.where(
            same,
            self.inside.message_s(bytes_, src, dst),
            self.between.message_s(bytes_, src, dst),
        )


@dataclass(frozen=True)
class Price:
    """What one run of a schedule costs.

    Attributes
    ----------
    time_s
        From the first send to the end of the last round.
    rounds_s
        Each round's; shape (rounds,).
    sent_bytes
        Payload that each rank and each switch sends; shape (nodes,).
    """

    time_s: float
    rounds_s: np.ndarray
    sent_bytes: np.ndarray


def price(schedule: Schedule, items: int, item_bytes: int, links) -> Price:
    """Price a schedule round by round.

    Parameters
    ----------
    schedule
        Any; chunks may be unequal.
    items, item_bytes
        Items in the buffer of one rank, and bytes in each.
    links
        A :class:`Hockney`, :class:`LogGP` or :class:`Tiers`.

    Examples
    --------
    >>> from tokenlife.collectives.ring import ring_all_reduce
    >>> p = price(ring_all_reduce(8), 262144, 4, LogGP(2e-6, 0, 0, 1e-9))
    >>> round(p.time_s * 1e9, 6), p.rounds_s.shape, p.sent_bytes.tolist()[:2]
    (1862994.0, (14,), [1835008, 1835008])
    """
    offsets = schedule.chunk_offsets(items) * item_bytes
    rounds_s = np.zeros(len(schedule.rounds))
    sent = np.zeros(schedule.nodes, dtype=np.int64)
    for index in range(len(rounds_s)):
        src, dst, size, reduced = schedule.messages(index, offsets)
        if not len(src):
            continue
        arrives_s, adds_s = np.zeros((2, schedule.nodes))
        np.maximum.at(arrives_s, dst, links.message_s(size, src, dst))
        # A switch adds at the speed of its links.
        np.add.at(adds_s, dst, reduced * links.gamma_s_per_B * (dst < schedule.ranks))
        np.add.at(sent, src, size)
        rounds_s[index] = (arrives_s + adds_s).max()
    return Price(float(rounds_s.sum()), rounds_s, sent)


def price_grid(
    kind: str, ranks: Sequence[int], sizes: Sequence[int], links, chosen: Sequence[Algorithm] = ()
) -> pd.DataFrame:
    """Price many (algorithm, ranks, size) points in closed form, on links that are all alike.

    Parameters
    ----------
    kind
        The collective.
    ranks, sizes
        Ranks, and bytes of the whole buffer of one rank.
    links
        A :class:`Hockney` or :class:`LogGP`.
    chosen
        The algorithms; all of the collective where none is named.

    Returns
    -------
    DataFrame
        ``algorithm``, ``ranks``, ``bytes``, ``rounds``, ``sent_bytes``, ``time_s``; one row for
        each point that its algorithm supports.

    Examples
    --------
    >>> grid = price_grid("all_gather", [2, 4], [1024], Hockney(1e-6, 1e-9))
    >>> grid[grid.algorithm == "ring"].time_s.round(12).tolist()
    [1.512e-06, 3.768e-06]
    """
    sizes = np.asarray(sizes)
    if not len(ranks) or not len(sizes) or np.min(ranks) < 1 or np.min(sizes) < 0:
        raise ScheduleError("a grid needs groups of at least one rank, and sizes of zero or more")
    parts = []
    for each in chosen or algorithms(kind):
        able = np.array([n for n in ranks if each.supports(n, **each.options)], dtype=np.int64)
        n, size = (grid.ravel() for grid in np.meshgrid(able, sizes, indexing="ij"))
        terms = each.terms(n, size, **each.options)
        columns = {"ranks": n, "bytes": size, "rounds": terms.rounds}
        columns |= {"sent_bytes": terms.sent_bytes, "time_s": links.terms_s(terms)}
        parts.append(pd.DataFrame(columns).assign(algorithm=each.name))
    order = ["algorithm", "ranks", "bytes", "rounds", "sent_bytes", "time_s"]
    return pd.concat(parts, ignore_index=True)[order] if parts else pd.DataFrame(columns=order)
