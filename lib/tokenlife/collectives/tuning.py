"""How NCCL chooses: a time for each algorithm and protocol from its own constants, and the least.

NCCL 2.30.7 models each pair of algorithm and protocol as latency + bytes / bandwidth, with tables
of constants by generation of GPU and by one, two or more nodes, and runs the cheapest. Here is the
arithmetic; the constants, read in NCCL's ``src/graph/tuning.cc`` [1]_, are in
``data/reference/08b_nccl_tuning.csv``.

The protocols: LL sends 4 bytes with 4 bytes of flag, LL128 120 with 8, Simple whole buffers behind
a fence. The algorithms: ring, double binary tree (all-reduce only), NVLS (the NVLink switch adds,
Simple only, on one node), PAT (one GPU a node, all-gather and reduce-scatter, Simple only).

Left out: the search of the topology, whose outcome (channels and their rate) is asked for; NVLS
between nodes, CollNet and the latency of a network card, which need that search too; the 0.85 for
trees of another pattern; broadcast and reduce on channels that differ; what plugins and the
environment override; AMD processors.

References
----------
.. [1] NVIDIA, NCCL, github.com/NVIDIA/nccl, tag v2.30.7.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from tokenlife.catalog import read_reference
from tokenlife.collectives.bounds import busbw_factor
from tokenlife.collectives.schedule import ScheduleError

GENERATIONS = ("Volta", "Ampere", "Hopper", "Blackwell")
PROTOCOLS = ("LL", "LL128", "Simple")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@dataclass(frozen=True)
class Fabric:
    """What NCCL finds out about the machine before it chooses.

    Attributes
    ----------
    generation
        Of the GPUs: one of :data:`GENERATIONS`.
    nodes, per_node
        How many, and GPUs in each.
    channels
        Rings that run side by side.
    ring_Bps
        Rate of all rings together, out of one GPU, or out of one node where there are several.
    nvls_Bps
        Rate that the search gives NVLS; zero where the switch cannot add.
    inside
        ``"NVLINK"`` or ``"PCI"``.
    """

    generation: str
    nodes: int
    per_node: int
    channels: int
    ring_Bps: float
    nvls_Bps: float = 0.0
    inside: str = "NVLINK"

    def __post_init__(self):
        if self.generation not in GENERATIONS:
            raise ScheduleError(f"no {self.generation!r}; known: {', '.join(GENERATIONS)}")
        if self.inside not in ("NVLINK", "PCI"):
            raise ScheduleError(f"inside a node runs NVLINK or PCI, not {self.inside!r}")
        if min(self.nodes, self.per_node, self.channels) < 1 or not self.ring_Bps > 0:
            raise ScheduleError("nodes, GPUs, channels and their rate must be above zero")

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return self.nodes * self.per_node


@cache
def _constants() -> dict[tuple[str, str], str]:
    table = read_reference("08b_nccl_tuning")
    return {
        (t.removeprefix("v2.30.7 "), q): value
        for t, q, value in zip(table.table, table.quantity, table.value, strict=True)
    }


def _number(table: str, quantity: str, unit: float = 1.0) -> float:
    return float(_constants()[table, quantity]) * unit


def nvlink_Bps(generation: str) -> float:
    """Return the rate that NCCL reckons with for one NVLink, in bytes per second.

    Examples
    --------
    >>> nvlink_Bps("Hopper") / 1e9
    20.6
    """
    return _number("NVLink per link", generation, 1e9)


def predict(kind: str, fabric: Fabric, bytes_) -> pd.DataFrame:
    """Return NCCL's predicted time of every algorithm and protocol that is in the race.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    fabric
        The machine.
    bytes_
        Sizes of the whole buffer; shape (sizes,).

    Returns
    -------
    DataFrame
        ``algorithm``, ``protocol``, ``bytes``, ``time_s``.

    Examples
    --------
    >>> dgx = Fabric("Ampere", nodes=1, per_node=8, channels=24, ring_Bps=240e9)
    >>> table = predict("all_reduce", dgx, [1024])
    >>> table.loc[table.time_s.idxmin(), ["algorithm", "protocol"]].tolist()
    ['Ring', 'LL']
    """
    if kind not in KINDS:
        raise ScheduleError(f"NCCL tunes {', '.join(KINDS)}, not {kind}")
    size = np.atleast_1d(np.asarray(bytes_, dtype=float))
    if fabric.ranks < 2 or size.min() < 1:
        raise ScheduleError("NCCL's model needs at least two GPUs and one byte")
    races = {"Ring": _ring, "Tree": _tree, "NVLS": _nvls, "PAT": _pat}
    parts = []
    for algorithm, race in races.items():
        for protocol in PROTOCOLS:
            if protocol == "LL128" and fabric.inside == "PCI":
                continue
            cost = race(kind, fabric, protocol, size)
            if cost is not None:
                latency_s, rate_Bps = cost
                columns = {"algorithm": algorithm, "protocol": protocol, "bytes": size}
                parts.append(pd.DataFrame(columns | {"time_s": latency_s + size / rate_Bps}))
    return pd.concat(parts, ignore_index=True)


def choose(kind: str, fabric: Fabric, bytes_) -> pd.DataFrame:
    """Return the cheapest algorithm and protocol of each size; columns as :func:`predict`."""
    table = predict(kind, fabric, bytes_)
    return table.loc[table.groupby("bytes").time_s.idxmin()].reset_index(drop=True)


def crossovers(kind: str, fabric: Fabric, per_octave: int = 8) -> pd.DataFrame:
    """Return the sizes from 64 B to 16 GiB at which the choice changes, and what it becomes."""
    sizes = np.unique(np.round(2 ** np.arange(6, 34 + 1 / per_octave, 1 / per_octave)))
    chosen = choose(kind, fabric, sizes)
    pair = chosen.algorithm + " " + chosen.protocol
    return chosen[pair != pair.shift()].reset_index(drop=True)


def _capped(fabric: Fabric, table: str) -> float:
    scale = "1 node" if fabric.nodes == 1 else "2 nodes" if fabric.nodes == 2 else ">2 nodes"
    return _number(table, f"{fabric.generation}, {scale}", 1e9)


def _hops(fabric: Fabric, algorithm: str, protocol: str) -> tuple[float, float, float]:
    """Return the base latency, that of a hop inside a node, and of one between nodes."""
    pair = f"{algorithm}/{protocol}"
    # With one GPU in a node every hop of a ring ends at a network card, as a tree's do.
    outer = f"Tree/{protocol}" if fabric.per_node == 1 and algorithm == "Ring" else pair
    return (
        _number("baseLatencies", pair, 1e-6),
        _number(f"hwLatencies {fabric.inside}", pair, 1e-6),
        _number("hwLatencies NET", outer, 1e-6),
    )


def _ring(kind: str, fabric: Fabric, protocol: str, size: np.ndarray):
    rate = fabric.ring_Bps
    if protocol == "LL":
        rate = min(_capped(fabric, "llMaxBws"), _number("coefficients", "ring LL share") * rate)
    elif protocol == "LL128":
        cap = fabric.channels * _capped(fabric, "perChMaxRingLL128Bws")
        rate = min(_number("coefficients", "ring LL128 share") * rate, cap)
    base, inside, between = _hops(fabric, "Ring", protocol)
    if kind in ("broadcast", "reduce"):
        return base + (inside if fabric.nodes == 1 else between), rate
    if fabric.nodes > 1:
        overhead = "net overhead, Simple" if protocol == "Simple" else "net overhead"
        inside = max(inside, _number("coefficients", overhead, 1e-6))
    trips = 2 if kind == "all_reduce" else 1
    outer = trips * (fabric.nodes - 1)
    latency = base + (trips * (fabric.ranks - 1) - outer) * inside + outer * between
    if protocol == "Simple" and fabric.nodes > 1 and kind == "all_reduce":
        name = "ring plateau, Volta" if fabric.generation == "Volta" else "ring plateau"
        share = size / (fabric.channels * fabric.ranks)
        high = share >= _number("coefficients", "ring plateau bytes")
        latency = latency * np.where(high, _number("coefficients", name), 1)
    return latency, rate / busbw_factor(kind, fabric.ranks)


def _tree(kind: str, fabric: Fabric, protocol: str, size: np.ndarray):
    if kind != "all_reduce":
        return None
    cap = fabric.channels * _capped(fabric, "perChMaxTreeBws")
    rate = min(_number("coefficients", "tree share") * fabric.ring_Bps, cap)
    if protocol == "LL":
        divisor = _number("coefficients", "tree LL divisor")
        rate = min(rate / divisor, _capped(fabric, "llMaxBws"))
    elif protocol == "LL128":
        one = ", one node" if fabric.nodes == 1 else ""
        cap = fabric.channels * _capped(fabric, "perChMaxTreeLL128Bws")
        rate = min(rate * _number("coefficients", f"tree LL128 share{one}"), cap)
    correction = np.array(_constants()["model", f"tree correction {protocol}"].split(","), float)
    octave = np.floor(np.log2(np.maximum(size / 64, 1))).astype(int)
    factor = np.where(octave < len(correction), correction[np.minimum(octave, 23)], 1.0)
    base, inside, between = _hops(fabric, "Tree", protocol)
    hops = (fabric.per_node - 1) * inside + np.floor(np.log2(fabric.nodes)) * between
    return base + 2 * hops, rate * factor / 2


def _nvls(kind: str, fabric: Fabric, protocol: str, size: np.ndarray):
    reduces = kind in ("all_reduce", "all_gather", "reduce_scatter")
    if protocol != "Simple" or fabric.nodes > 1 or not fabric.nvls_Bps or not reduces:
        return None
    rate = fabric.nvls_Bps * _number("coefficients", f"NVLS share, {fabric.generation}")
    return _hops(fabric, "NVLS", protocol)[1], rate / busbw_factor(kind, fabric.ranks)


def _pat(kind: str, fabric: Fabric, protocol: str, size: np.ndarray):
    scattered = kind in ("all_gather", "reduce_scatter")
    if protocol != "Simple" or fabric.per_node > 1 or not scattered:
        return None
    base, _, between = _hops(fabric, "PAT", protocol)
    climbs = np.log2(fabric.nodes) * between / _number("coefficients", "PAT latency divisor")
    latency = base + climbs + fabric.ranks * _number("coefficients", "PAT latency per rank", 1e-6)
    rate = _number("coefficients", "PAT share") * fabric.ring_Bps
    return latency, rate / busbw_factor(kind, fabric.ranks)
