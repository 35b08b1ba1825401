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
from itertools import product

import numpy as np
import pandas as pd

from tokenlife.catalog import read_reference
from tokenlife.collectives.bounds import busbw_factor
from tokenlife.collectives.schedule import ScheduleError

GENERATIONS = ("Volta", "Ampere", "Hopper", "Blackwell")
PROTOCOLS = ("LL", "LL128", "Simple")
CAPS = {
    "Ring/LL": "llMaxBws",
    "Ring/LL128": "perChMaxRingLL128Bws",
    "Tree/LL": "llMaxBws",
    "Tree/LL128": "perChMaxTreeLL128Bws",
    "Tree/Simple": "perChMaxTreeBws",
}
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


def _number(table: str, quantity: str, fabric: Fabric | None = None) -> float:
    """Return a constant; for a fabric that of its generation and scale, if there is one."""
    names = [quantity]
    if fabric is not None:
        scale = ("1 node", "2 nodes", ">2 nodes")[min(fabric.nodes, 3) - 1]
        own = [fabric.generation, scale, f"{fabric.generation}, {scale}"]
        names = [f"{quantity}, {name}".removeprefix(", ") for name in own] + names
    return float(next(_constants()[table, n] for n in names if (table, n) in _constants()))


def nvlink_Bps(generation: str) -> float:
    """Return the rate that NCCL reckons with for one NVLink, in bytes per second.

    Examples
    --------
    >>> nvlink_Bps("Hopper") / 1e9
    20.6
    """
    return _number("NVLink per link", generation) * 1e9


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
    parts = []
    for algorithm, protocol in product(("Ring", "Tree", "NVLS", "PAT"), PROTOCOLS):
        if not _runs(kind, fabric, algorithm, protocol):
            continue
        time_s = _latency_s(kind, fabric, algorithm, protocol, size)
        time_s = time_s + size / _rate_Bps(kind, fabric, algorithm, protocol, size)
        columns = {"algorithm": algorithm, "protocol": protocol, "bytes": size, "time_s": time_s}
        parts.append(pd.DataFrame(columns))
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


def _runs(kind: str, fabric: Fabric, algorithm: str, protocol: str) -> bool:
    """Tell whether NCCL would consider a pair at all."""
    wired, simple = protocol != "LL128" or fabric.inside == "NVLINK", protocol == "Simple"
    whole = kind in ("broadcast", "reduce")
    return {
        "Ring": wired,
        "Tree": wired and kind == "all_reduce",
        "NVLS": simple and fabric.nodes == 1 and fabric.nvls_Bps > 0 and not whole,
        "PAT": simple and fabric.per_node == 1 and kind in ("all_gather", "reduce_scatter"),
    }[algorithm]


def _rate_Bps(kind: str, fabric: Fabric, algorithm: str, protocol: str, size: np.ndarray):
    """Return bytes of the buffer per second: a share of the search's rate, under a cap."""
    rate = fabric.nvls_Bps if algorithm == "NVLS" else fabric.ring_Bps
    # The slower protocols of a tree start from what its fast one reaches.
    steps = ["Tree/Simple"] * (algorithm == "Tree") + [f"{algorithm}/{protocol}"]
    for pair in dict.fromkeys(steps):
        rate *= _number("share", pair, fabric)
        if pair in CAPS:
            channels = fabric.channels if CAPS[pair].startswith("perCh") else 1
            rate = min(rate, channels * _number(CAPS[pair], "", fabric) * 1e9)
    if algorithm != "Tree":
        return rate / busbw_factor(kind, fabric.ranks)
    correction = np.array(_constants()["model", f"tree correction {protocol}"].split(","), float)
    octave = np.floor(np.log2(np.maximum(size / 64, 1))).astype(int)
    return rate / 2 * np.append(correction, 1.0)[np.minimum(octave, len(correction))]


def _latency_s(kind: str, fabric: Fabric, algorithm: str, protocol: str, size: np.ndarray):
    """Return seconds before the first byte counts: hops inside nodes and between."""
    pair, nodes = f"{algorithm}/{protocol}", fabric.nodes
    base = _number("baseLatencies", pair)
    inside = _number(f"hwLatencies {fabric.inside}", pair)
    # With one GPU in a node every hop of a ring ends at a network card, as a tree's do.
    single = fabric.per_node == 1 and algorithm == "Ring"
    between = _number("hwLatencies NET", f"Tree/{protocol}" if single else pair)
    if algorithm == "NVLS":
        total = inside
    elif algorithm == "PAT":
        climbs = np.log2(nodes) * between / _number("latency", "PAT divisor")
        total = base + climbs + fabric.ranks * _number("latency", "PAT per rank")
    elif algorithm == "Tree":
        total = base + 2 * ((fabric.per_node - 1) * inside + np.floor(np.log2(nodes)) * between)
    elif kind in ("broadcast", "reduce"):
        total = base + (inside if nodes == 1 else between)
    else:
        if nodes > 1:
            inside = max(inside, _number("latency", f"net overhead, {protocol}"))
        trips = 2 if kind == "all_reduce" else 1
        outer = trips * (nodes - 1)
        total = base + (trips * (fabric.ranks - 1) - outer) * inside + outer * between
        if protocol == "Simple" and nodes > 1 and kind == "all_reduce":
            high = size / (fabric.channels * fabric.ranks) >= _number("latency", "plateau from")
            total = total * np.where(high, _number("latency", "plateau", fabric), 1)
    return total * 1e-6
