"""A cluster: what one GPU can do, and the levels of network around it.

A level is a set of like units, one inside the other: a node's NVLink domain, a rack, a pod, the
whole. Inside a unit of a level any GPU can send at ``Bps`` to any other, all of them at once, less
the oversubscription of the links that lead there. Named clusters and their sources are in
``data/hardware/clusters.toml``; a file of one's own has the same keys.

Left out: which rail or plane a network card is on, paths that collide, and other jobs.
"""

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from tokenlife.catalog import data_dir, read_accelerator
from tokenlife.costs.roofline import measure
from tokenlife.errors import TokenlifeError
from tokenlife.provenance import machine

MEASURED = "measured"
_ACCELERATOR = ("peak_flops", "memory_bytes", "memory_Bps", "power_w")
_CLUSTER = ("title", "accelerator", "gpus", "levels", "transport", "source")
_LEVEL = ("name", "gpus", "Bps", "latency_s", "oversubscription", "links", "source")


class ClusterError(TokenlifeError, ValueError):
    """A cluster that is not known, or whose fields contradict each other."""


@dataclass(frozen=True)
class Level:
    """One level of network.

    Attributes
    ----------
    name, source
        What it is, and who says so.
    gpus
        GPUs in one unit of it.
    Bps
        Bytes per second out of one GPU, one direction.
    latency_s
        Of a small message.
    oversubscription
        Rate of the units inside over that of the links between them.
    links
        That a message crosses on its way to a GPU in another of the units inside.
    """

    name: str
    gpus: int
    Bps: float
    latency_s: float
    oversubscription: float = 1.0
    source: str = ""
    links: int = 2


@dataclass(frozen=True)
class Cluster:
    """GPUs and the levels around them, from the inside out.

    Attributes
    ----------
    name, title, source
        What it is called, and who describes it.
    gpus
        How many there are.
    peak_flops
        FLOP/s of dense matrix products by type.
    memory_bytes, memory_Bps, power_w
        Of one GPU; power is 0 where it is not known.
    levels
        The levels; the innermost of several is a node, whose links are no network.
    transport
        What the network carries packets by: a name of ``tokenlife.wire.stack.TRANSPORTS``.

    Examples
    --------
    >>> cluster = Cluster.load("llama3-24k")
    >>> [(level.name, level.gpus) for level in cluster.levels][:2], cluster.memory_bytes // 2**30
    ([('NVLink domain', 8), ('rack', 16)], 80)
    """

    name: str
    title: str
    gpus: int
    peak_flops: dict[str, float]
    memory_bytes: int
    memory_Bps: float
    power_w: float
    levels: tuple[Level, ...]
    source: str = ""
    transport: str = "tcp"

    def __hash__(self) -> int:
        return hash((self.name, self.gpus, self.levels))

    @classmethod
    def load(cls, name_or_path: str | Path) -> "Cluster":
        """Read a named cluster, or a TOML file that describes one.

        Raises
        ------
        ClusterError
            If it is not known, lacks a field, or contradicts itself.

        Examples
        --------
        >>> Cluster.load("colossus-9")
        Traceback (most recent call last):
            ...
        tokenlife.jobs.cluster.ClusterError: no cluster 'colossus-9'; give a path to a TOML file, \
or one of: deepseek-h800, dgx-a100-selene, dgx-h100, llama3-24k, this-machine
        """
        known = _read(data_dir() / "hardware" / "clusters.toml")
        if name_or_path in known:
            return cls.from_table(known[name_or_path], str(name_or_path))
        path = Path(name_or_path)
        if not path.suffix == ".toml":
            raise ClusterError(
                f"no cluster {str(name_or_path)!r:.80}; give a path to a TOML file, or one of: "
                + ", ".join(sorted(known))
            )
        return cls.from_table(_read(path), str(path))

    @classmethod
    def from_table(cls, table: dict, name: str) -> "Cluster":
        """Build a cluster from the keys of its table."""
        if len(table) == 1 and isinstance(inner := next(iter(table.values())), dict):
            table = inner  # a file that holds one named cluster
        _fields(table, _CLUSTER, name, ("accelerator", "gpus", "levels"))
        chip = _accelerator(table["accelerator"], name)
        levels = []
        rows = table["levels"]
        if not isinstance(rows, list) or not rows:
            raise ClusterError(f"{name}: levels must be a list of [[levels]], from the inside out")
        for row in rows:
            _fields(row, _LEVEL, f"{name}, a level", ("name", "gpus", "Bps", "latency_s"))
            level = Level(**row)
            _above(level, ("gpus", "Bps", "oversubscription", "links"), f"{name}, {level.name}")
            if not _number(level.latency_s) or level.latency_s < 0:
                raise ClusterError(f"{name}, {level.name}: latency_s must be 0 or more seconds")
            if levels and (level.gpus <= levels[-1].gpus or level.gpus % levels[-1].gpus):
                raise ClusterError(
                    f"{name}: {level.name!r} of {level.gpus} GPUs cannot be made of whole units of "
                    f"{levels[-1].name!r}, {levels[-1].gpus} each; levels go from the inside out"
                )
            levels.append(level)
        numbers = {key: chip.get(key, 0) for key in _ACCELERATOR}
        text = {key: str(table.get(key, "")) for key in ("title", "source")}
        text["transport"] = str(table.get("transport", cls.transport))
        made = cls(name=name, gpus=table["gpus"], levels=tuple(levels), **numbers, **text)
        _above(made, ("gpus", "memory_bytes", "memory_Bps"), name)
        if made.gpus != levels[-1].gpus:
            raise ClusterError(
                f"{name} has {made.gpus} GPUs, but its outermost level {levels[-1].name!r} "
                f"holds {levels[-1].gpus}"
            )
        return made

    def peak(self, bytes_per_number: int = 2) -> float:
        """Return FLOP/s for numbers of so many bytes; for those that have none, of 16-bit ones."""
        names = {4: "float32", 2: "bfloat16", 1: "float8"}
        return self.peak_flops.get(names.get(bytes_per_number, ""), self.peak_flops["bfloat16"])

    def what_if(self, name: str = "", **factors: float) -> "Cluster":
        """Return a cluster with fields of its levels beyond the first multiplied.

        Parameters
        ----------
        name
            Of a level; by default all but the innermost.
        factors
            ``Bps``, ``latency_s`` or ``oversubscription``, and what to multiply it by.

        Examples
        --------
        >>> Cluster.load("dgx-h100").what_if(Bps=2).levels[1].Bps / 1e9
        100.0
        """
        chosen = [level.name for level in self.levels[1:]] if not name else [name]
        levels = [
            replace(lv, **{key: getattr(lv, key) * by for key, by in factors.items()})
            if lv.name in chosen
            else lv
            for lv in self.levels
        ]
        return replace(self, levels=tuple(levels))


def _read(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise ClusterError(f"cannot read the cluster file {path}: {what}") from error


def _fields(table: object, known: tuple[str, ...], where: str, needed: tuple[str, ...]) -> None:
    if not isinstance(table, dict):
        raise ClusterError(f"{where} must be a table with {', '.join(needed)}")
    if missing := [key for key in needed if key not in table]:
        raise ClusterError(f"{where} lacks {', '.join(missing)}")
    if strange := [key for key in table if key not in known]:
        raise ClusterError(f"{where}: no field {strange[0]!r}; known: {', '.join(known)}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _above(thing: object, names: tuple[str, ...], where: str) -> None:
    for name in names:
        value = getattr(thing, name)
        whole = name in ("gpus", "links") and type(value) is not int
        if whole or not _number(value) or not 0 < value < float("inf"):
            kind = "whole number" if name in ("gpus", "links") else "number"
            raise ClusterError(f"{where}: {name} must be a {kind} above 0, not {value!r}")


def _accelerator(given: object, name: str) -> dict:
    """Return the chip's numbers: named, measured here, or written into the cluster's file."""
    if given == MEASURED:
        roof = measure("cpu")
        return {
            "peak_flops": dict(roof.peak_flops), "memory_Bps": roof.bandwidth_Bps,
            "memory_bytes": machine()["memory_bytes"] // (os.cpu_count() or 1),
        }  # fmt: skip
    if isinstance(given, str):
        return read_accelerator(given)
    where = f"{name}, accelerator"
    _fields(given, _ACCELERATOR, where, ("peak_flops", "memory_bytes", "memory_Bps"))
    peaks = given["peak_flops"]
    if not isinstance(peaks, dict) or not _number(peaks.get("bfloat16")) or peaks["bfloat16"] <= 0:
        raise ClusterError(f"{where}: peak_flops must name bfloat16, like {{ bfloat16 = 9.89e14 }}")
    return given
