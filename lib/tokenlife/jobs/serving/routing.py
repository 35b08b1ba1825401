"""Which site answers: requests with shared beginnings, sent by a rule to one of several sites.

Each site reads prompts one after another, in the order in which they were sent there, and keeps the
prefixes that it read last. A request comes from a home; the way to a site and back is paid once, as
answers stream. The router knows every queue and every cache as it decides, and a site has a prefix
from the moment that it has read it. What a site reads costs what its engine says.

Rules: ``nearest``; ``least loaded`` (whose queue ends first); ``longest prefix`` (who keeps it; the
nearest of them, or of all); ``cost`` (whose first token would come first); ``cost, may fetch``: the
same, where a site may also have the prefix sent by one that keeps it, if the link between them,
which carries one cache after another, brings it in time to be faster.

Assumed: decoding is done by other machines (:mod:`~tokenlife.jobs.serving.disaggregated`), nothing
is batched. Left out: stale knowledge, partial prefixes, sites that fail.

Sources: prefix-aware routing as in Preble (Srivatsa et al. 2024) and Mooncake (Qin et al. 2025);
the queue of one site without a cache is M/G/1 (Pollaczek and Khinchine), which the tests use.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tokenlife.jobs.serving.requests import ServingError, lengths, poisson

RULES = ("nearest", "least loaded", "longest prefix", "cost", "cost, may fetch")


@dataclass(frozen=True, eq=False)
class Sites:
    """Sites, the ways between them, and what they do.

    Attributes
    ----------
    delay_s
        One way, from each home (a row) to each site; shape (sites, sites), as homes are sites.
    rate_bps
        Of each link between two sites, for caches.
    read_s
        Seconds of a pass that reads new tokens after kept ones: ``read_s(new, past)``, on arrays.
    kv_bytes
        Of one token's keys and values.
    keeps
        Tokens of prefixes that a site keeps; the one used least lately goes first.
    """

    delay_s: np.ndarray
    rate_bps: float
    read_s: Callable
    kv_bytes: float
    keeps: float = math.inf

    def __post_init__(self):
        delays = np.asarray(self.delay_s, float)
        if delays.ndim != 2 or delays.shape[0] != delays.shape[1] or not (delays >= 0).all():
            raise ServingError("delays are a square table, from each home to each site, 0 or more")
        if self.rate_bps <= 0 or self.keeps < 0:
            raise ServingError("a rate is above 0, and a site keeps 0 tokens or more")


def workload(
    count: int, rate_per_s: float, homes: list[float], prefixes: int, shared, own, seed: int
) -> pd.DataFrame:
    """Draw requests: Poisson arrivals, lognormal lengths, prefixes by Zipf's law.

    Parameters
    ----------
    count, rate_per_s
        Requests, and how many come a second.
    homes
        Share of each home.
    prefixes
        How many there are; the k-th is asked for in proportion to 1/k.
    shared, own
        (median, mean, most) of the tokens of a prefix, and of what follows it.
    seed
        Equal seeds draw equal requests.

    Examples
    --------
    >>> drawn = workload(1000, 10.0, [0.5, 0.5], 20, (500, 600, 4000), (100, 150, 1000), seed=0)
    >>> int(drawn.groupby("prefix").shared.nunique().max()), drawn.home.nunique()
    (1, 2)
    """
    if prefixes < 1 or not math.isclose(sum(homes), 1.0) or min(homes) < 0:
        raise ServingError("there is one prefix at least, and the homes' shares sum to 1")
    drawn = np.random.default_rng(seed + 1)
    share = 1 / np.arange(1, prefixes + 1)
    prefix = drawn.choice(prefixes, count, p=share / share.sum())
    return pd.DataFrame(
        {
            "arrival_s": poisson(count, rate_per_s, seed),
            "home": drawn.choice(len(homes), count, p=homes),
            "prefix": prefix,
            "shared": lengths(prefixes, *shared, seed + 2)[prefix],
            "own": lengths(count, *own, seed + 3),
        }
    )


class _Site:
    """A site's queue and the prefixes that it keeps, with the moment since when it has each."""

    def __init__(self, keeps: float):
        self.free_s, self.keeps, self.room, self.kept = 0.0, keeps, keeps, OrderedDict()

    def take(self, prefix: int, tokens: int, ready_s: float) -> None:
        """Keep a prefix, and let go of the least lately used ones where there is no room."""
        if tokens > self.keeps:
            return
        since, held = self.kept.pop(prefix, (ready_s, 0))
        self.kept[prefix] = since, tokens
        self.room += held - tokens
        while self.room < 0:
            self.room += self.kept.popitem(last=False)[1][1]


def route(asked: pd.DataFrame, sites: Sites, rule: str) -> pd.DataFrame:
    """Send requests to sites by a rule and follow each to its first token.

    Parameters
    ----------
    asked
        As :func:`workload` draws it.
    sites
        Where to.
    rule
        One of ``RULES``.

    Returns
    -------
    pandas.DataFrame
        ``asked`` with ``site``, ``wait_s`` (in the site's queue), ``hit`` (tokens not read),
        ``fetched_bytes`` (of a cache, between sites) and ``ttft_s``.

    Raises
    ------
    ServingError
        If there is no such rule, or a home without a row.

    Examples
    --------
    >>> two = Sites(np.array([[0, 0.1], [0.1, 0]]), 1e9, lambda new, past: new * 1e-3, 1e5)
    >>> asked = workload(500, 1.0, [1.0, 0.0], 5, (500, 600, 4000), (100, 150, 1000), seed=0)
    >>> [int(route(asked, two, rule).site.max()) for rule in ("nearest", "least loaded")]
    [0, 1]
    """
    if rule not in RULES:
        raise ServingError(f"no rule {rule!r}; known: {', '.join(RULES)}")
    delay = np.asarray(sites.delay_s, float).tolist()
    if asked.home.max() >= len(delay):
        raise ServingError(f"home {asked.home.max()} has no row among {len(delay)} delays")
    # What a pass takes with the prefix kept or not, for all requests at once.
    cold = np.broadcast_to(sites.read_s(asked.shared + asked.own, 0 * asked.own), len(asked))
    warm = np.broadcast_to(sites.read_s(asked.own, asked.shared), len(asked))
    moved = 8 * sites.kv_bytes * asked.shared.to_numpy() / sites.rate_bps
    here = [_Site(sites.keeps) for _ in delay]
    links: dict[tuple[int, int], float] = {}
    found = []
    columns = (asked[name].tolist() for name in ("arrival_s", "home", "prefix", "shared"))
    for at, home, prefix, shared, cold_s, warm_s, sending_s in zip(
        *columns, cold.tolist(), warm.tolist(), moved.tolist(), strict=True
    ):
        ways = []  # first token at the user, site, start, end, hit, from whom, when its cache left
        for index, site in enumerate(here):
            there = at + delay[home][index]
            start = max(there, site.free_s)
            hit = prefix in site.kept
            end = start + (warm_s if hit else cold_s)
            ways.append((end + delay[home][index], index, start, end, hit * shared, None, 0.0))
            if rule != "cost, may fetch" or hit:
                continue
            for other, keeper in enumerate(here):
                if prefix in keeper.kept:
                    asks = max(there + delay[index][other], keeper.kept[prefix][0])
                    leaves = max(asks, links.get((other, index), 0.0))
                    come = leaves + sending_s + delay[other][index]
                    end = max(start, come) + warm_s
                    last = end + delay[home][index]
                    ways.append((last, index, start, end, shared, other, leaves + sending_s))
        last, index, start, end, hit, other, left = _choose(rule, ways, delay[home])
        here[index].free_s = end
        here[index].take(prefix, shared, end)
        if other is not None:
            links[other, index] = left
        bytes_ = shared * sites.kv_bytes if other is not None else 0.0
        found.append((index, start - at - delay[home][index], hit, bytes_, last - at))
    names = ["site", "wait_s", "hit", "fetched_bytes", "ttft_s"]
    return asked.assign(**dict(zip(names, zip(*found, strict=True), strict=True)))


def _choose(rule: str, ways: list, delay: list[float]):
    if rule.startswith("cost"):
        return min(ways)
    if rule == "nearest":
        return min(ways, key=lambda way: delay[way[1]])
    if rule == "least loaded":
        return min(ways, key=lambda way: (way[2], delay[way[1]]))
    return min(ways, key=lambda way: (-way[4], delay[way[1]]))
