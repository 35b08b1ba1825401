"""Known systems that train or serve, priced by the account, with what is not known about them.

``data/reference/23_systems.toml`` holds them. A system is a job and some changes of it: each stands
for what its source does not say. The least and the most bits for a token among them are the
uncertainty; errors that all share (the model of this library) are not in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from tokenlife.catalog import read_systems
from tokenlife.jobs.account import Account
from tokenlife.jobs.bills import Serving, serving, training
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.published import runs
from tokenlife.jobs.step import step
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig
from tokenlife.wire.stack import PATH_MTUS, Stack


@dataclass(frozen=True)
class System:
    """One system.

    Attributes
    ----------
    name, source, layout, unknown
        What it is called, who describes it, whether the layout is published, what is not known.
    config, cluster
        The model and the machines.
    plans
        Layouts that it may have; the first is taken.
    asked
        What is served; None where it trains.
    vary
        Changes that stand for what is not known, as :meth:`account` takes them.
    """

    name: str
    source: str
    layout: str
    unknown: str
    config: ModelConfig
    cluster: Cluster
    plans: tuple[Plan, ...]
    asked: Serving | None
    vary: tuple[Mapping, ...]

    def account(
        self,
        plan: Mapping | None = None,
        mtu: int = max(PATH_MTUS),
        transport: str = "",
        algorithms: Mapping[str, str] | None = None,
        base: Plan | None = None,
        **asked,
    ) -> Account:
        """Account for the system, or for a change of it.

        Parameters
        ----------
        plan
            Fields of the plan that are other.
        mtu, transport, algorithms
            As in :func:`~tokenlife.jobs.bills.training`.
        base
            The layout to change; the first where none is given.
        asked
            Fields of what is served that are other.
        """
        laid = replace(base or self.plans[0], **(plan or {}))
        stack = Stack(transport or self.cluster.transport, mtu)
        where = (self.config, laid, self.cluster.levels, stack)
        if self.asked is None:
            return training(*where, algorithms)
        return serving(*where, replace(self.asked, **asked), algorithms)

    @cached_property
    def taken(self) -> Account:
        """The account of the first layout."""
        return self.account()

    def possible(self) -> Iterator[Account]:
        """Yield the accounts of all that it may be, the one that is taken first."""
        yield self.taken
        for base in self.plans[1:]:
            yield self.account(base=base)
        for change in self.vary:
            yield self.account(**change)

    @cached_property
    def card_bits_per_token(self) -> tuple[float, float, float]:
        """Bits that leave network cards for a token: as taken, least, most."""
        found = [each.card_bits() / each.tokens for each in self.possible()]
        return found[0], min(found), max(found)


@cache
def systems() -> tuple[System, ...]:
    """Read the known systems, in the order of their file.

    Examples
    --------
    >>> known = systems()
    >>> known[0].name, len(known) >= 12
    ('GPT 1.7B, 32 A100s', True)
    """
    clusters, rows = read_systems()
    published = {run.name: run for run in runs()}
    return tuple(_system(row, clusters, published) for row in rows)


def _system(row: dict, clusters: dict, published: dict) -> System:
    if "run" in row:
        run = published[row["run"]]
        config, cluster = run.config, run.cluster
        priced = [(step(config, plan, cluster), plan) for plan in run.plans]
        fits = [p for p in priced if sum(p[0].memory_bytes.values()) <= cluster.memory_bytes]
        ranked = sorted(fits or priced, key=lambda pair: pair[0].time_s)
        plans = tuple(plan for _, plan in ranked)
    else:
        config = ModelConfig.load(row["model"])
        config = replace(config, vocab=row.get("vocab", config.vocab))
        if "experts" in row:
            config = replace(config, moe=replace(config.moe, experts=row["experts"]))
        name = row["cluster"]
        known = name not in clusters
        cluster = Cluster.load(name) if known else Cluster.from_table(clusters[name], name)
        plans = (Plan(**row["plan"]),)
    served = {key: row[key] for key in ("prompt", "new", "moved") if key in row}
    words = (row[key] for key in ("name", "source", "layout", "unknown"))
    asked = Serving(**served) if served else None
    return System(*words, config, cluster, plans, asked, tuple(row["vary"]))
