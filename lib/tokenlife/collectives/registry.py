"""Every algorithm under its name: how to build it, for how many ranks, and its closed form."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tokenlife.collectives.definitions import definition
from tokenlife.collectives.schedule import Schedule, ScheduleError
from tokenlife.collectives.terms import Terms

LARGEST_GROUP = 2**20


def _any(ranks: int, **options: int) -> bool:
    return True


@dataclass(frozen=True)
class Algorithm:
    """One way to perform one collective.

    Attributes
    ----------
    kind, name
        The collective, and what this way is called.
    build
        ``build(ranks, **options)`` returns its :class:`Schedule`; rooted ones take ``root``.
    closed_form
        ``closed_form(ranks, bytes_, **options)`` returns its :class:`Terms`; takes arrays. Exact
        where chunks are equal. Ask :meth:`terms`, which knows where it holds.
    says
        One sentence: how it works, and what it is good at.
    source
        Who described it.
    supports
        Whether it works for a number of ranks (and options).
    counts
        Those numbers in words.
    options
        Keywords of ``build`` and their defaults.
    once
        Whether no node is ever given the same chunk twice.
    """

    kind: str
    name: str
    build: Callable[..., Schedule]
    closed_form: Callable[..., Terms]
    says: str
    source: str
    supports: Callable[..., bool] = _any
    counts: str = "any number of ranks"
    options: dict[str, int] = field(default_factory=dict)
    once: bool = True

    def terms(self, ranks, bytes_, **options) -> Terms:
        """Return the closed form for numbers of ranks that it works for; takes arrays.

        Parameters
        ----------
        ranks, bytes_
            Size of the group, and of the whole buffer of one rank.
        **options
            As for ``build``; the defaults where not given.

        Raises
        ------
        ScheduleError
            If it does not work for one of these numbers.
        """
        # Most work for any number, and their closed forms price 10⁵ plans a second.
        if self.supports is not _any or np.any(np.less(ranks, 1)):
            asked = {key: options.get(key, default) for key, default in self.options.items()}
            for each in np.unique(ranks).tolist():
                if each < 1 or not self.supports(each, **asked):
                    raise ScheduleError(f"{self.name} {self.kind} needs {self.counts}, not {each}")
        return self.closed_form(ranks, bytes_, **options)


_REGISTRY: dict[tuple[str, str], Algorithm] = {}


def register(*algorithms: Algorithm) -> None:
    """Add algorithms; called once by each module that brings some."""
    for algorithm in algorithms:
        definition(algorithm.kind)
        _REGISTRY[algorithm.kind, algorithm.name] = algorithm


def check_group(ranks: int) -> None:
    """Refuse a group that cannot be.

    Raises
    ------
    ScheduleError
        If it has no rank, or more than the library builds schedules for.
    """
    if not isinstance(ranks, int | np.integer) or not 1 <= ranks <= LARGEST_GROUP:
        raise ScheduleError(f"a group has 1 to {LARGEST_GROUP:,} ranks, not {ranks}")


def algorithms(kind: str | None = None, ranks: int | None = None) -> list[Algorithm]:
    """Return the algorithms for a collective, for a number of ranks, or all.

    Examples
    --------
    >>> "ring" in [a.name for a in algorithms("all_reduce", ranks=5)]
    True
    """
    if kind is not None:
        definition(kind)
    return [
        a
        for a in _REGISTRY.values()
        if kind in (None, a.kind) and (ranks is None or a.supports(ranks, **a.options))
    ]


def algorithm(kind: str, name: str) -> Algorithm:
    """Return one algorithm.

    Raises
    ------
    ScheduleError
        If there is none of that name; the message names those there are.
    """
    definition(kind)
    if (kind, name) not in _REGISTRY:
        known = ", ".join(a.name for a in algorithms(kind))
        raise ScheduleError(f"no algorithm {name!r} for {kind}; known: {known}")
    return _REGISTRY[kind, name]


def build(kind: str, name: str, ranks: int, **options) -> Schedule:
    """Build a schedule by name.

    Parameters
    ----------
    kind, name
        The collective and the algorithm.
    ranks
        Size of the group, at least 1.
    **options
        Of the algorithm, like ``root=2`` or ``pieces=8``.

    Raises
    ------
    ScheduleError
        If the algorithm is unknown, takes no such option, or does not work for so many ranks; the
        message names the algorithms that do.

    Examples
    --------
    >>> len(build("all_reduce", "ring", 4).rounds)
    6
    """
    chosen = algorithm(kind, name)
    check_group(ranks)
    allowed = set(chosen.options) | ({"root"} if definition(kind).rooted else set())
    if unknown := set(options) - allowed:
        takes = f"it takes {', '.join(sorted(allowed))}" if allowed else "it takes none"
        raise ScheduleError(f"{name} {kind} has no option {sorted(unknown)[0]!r}; {takes}")
    for option, value in options.items():
        if option == "root":
            if not 0 <= value < ranks:
                raise ScheduleError(f"root {value} is not among the ranks 0 to {ranks - 1}")
        elif value < 1:
            raise ScheduleError(f"{option} must be at least 1, not {value}")
    asked = {**chosen.options, **options}
    if not chosen.supports(ranks, **{name: asked[name] for name in chosen.options}):
        able = ", ".join(a.name for a in algorithms(kind, ranks)) or "none"
        raise ScheduleError(
            f"{name} {kind} needs {chosen.counts}, not {ranks}; for {ranks} ranks: {able}"
        )
    return chosen.build(ranks, **asked)
