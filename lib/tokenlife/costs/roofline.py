"""The roofline: what a machine can do at most, given how much arithmetic each byte brings with it.

A machine multiplies at a peak rate and moves bytes at a bandwidth. Work of F FLOPs that moves B
bytes takes at least F / peak and at least B / bandwidth, so it runs at no more than
min(peak, intensity · bandwidth), intensity being F / B (Williams, Waterman, Patterson 2009). Left
of the *ridge*, where both meet, memory limits; right of it, arithmetic does.

Both rates are measured here with torch, as medians: the peak as the best of a few sizes of square
matrix products, the bandwidth as that of an element-wise sum of two arrays much larger than any
cache (STREAM's *add*: two read, one written).

Bytes of a stage are the least it must move: weights once, input and output once, and the keys and
values of the tokens before. Left out: what a real kernel moves twice, caches between stages, the
time to start a kernel, and the tensors inside a stage.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tokenlife.catalog import read_accelerator
from tokenlife.costs.flops import stage_flops
from tokenlife.costs.memory import kv_numbers_per_layer
from tokenlife.costs.stages import forward_stages
from tokenlife.errors import TokenlifeError
from tokenlife.transformer.config import ModelConfig


class RooflineError(TokenlifeError, ValueError):
    """Rates that no machine has, or a type that this one has no peak for."""


@dataclass(frozen=True)
class Roofline:
    """A machine's two rates.

    Attributes
    ----------
    name
        Of the machine.
    peak_flops
        FLOP/s of matrix products, by type.
    bandwidth_Bps
        Bytes per second to and from memory.

    Raises
    ------
    RooflineError
        If a rate is not above 0.

    Examples
    --------
    >>> roof = Roofline("toy", {"float32": 100e9}, 20e9)
    >>> roof.ridge("float32"), roof.attainable(2.5, "float32") / 1e9
    (5.0, 50.0)
    """

    name: str
    peak_flops: dict[str, float]
    bandwidth_Bps: float

    def __post_init__(self):
        for what, rate in (*self.peak_flops.items(), ("bandwidth", self.bandwidth_Bps)):
            if not 0 < rate < math.inf:
                raise RooflineError(f"{self.name}: {what} must be above 0, not {rate!r}")

    @classmethod
    def of(cls, accelerator: str) -> "Roofline":
        """Take the published rates of an accelerator of ``data/hardware``.

        Raises
        ------
        CatalogError
            If there is none of this name.
        RooflineError
            If its bandwidth is not published.

        Examples
        --------
        >>> round(Roofline.of("h100-sxm").ridge("bfloat16"))
        295
        """
        data = read_accelerator(accelerator)
        if "memory_Bps" not in data:
            raise RooflineError(f"{accelerator}: no memory bandwidth in data/hardware")
        return cls(data["title"], data["peak_flops"], data["memory_Bps"])

    def peak(self, dtype: str) -> float:
        """Return the peak for a type, FLOP/s.

        Raises
        ------
        RooflineError
            If it is not known for this type.
        """
        if dtype not in self.peak_flops:
            known = ", ".join(self.peak_flops)
            raise RooflineError(f"{self.name}: no peak for {dtype!r}; known: {known}")
        return self.peak_flops[dtype]

    def ridge(self, dtype: str) -> float:
        """Return the intensity from which arithmetic limits, in FLOP per byte."""
        return self.peak(dtype) / self.bandwidth_Bps

    def attainable(self, intensity: float, dtype: str) -> float:
        """Return the most FLOP/s at an intensity in FLOP per byte."""
        return min(self.peak(dtype), intensity * self.bandwidth_Bps)

    def time_s(self, work: "Work", dtype: str) -> float:
        """Return the least time of some work, in seconds."""
        return max(work.flops / self.peak(dtype), work.bytes_ / self.bandwidth_Bps)


@dataclass(frozen=True)
class Work:
    """FLOPs, and the bytes that must be moved for them.

    Attributes
    ----------
    name
        What it is.
    flops, bytes_
        At least one of them above 0.
    """

    name: str
    flops: int
    bytes_: int

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes_ if self.bytes_ else math.inf


def stage_work(
    config: ModelConfig, sequences: int, length: int, past: int = 0, bytes_per_number: int = 4
) -> tuple[Work, ...]:
    """Return the work of each stage of a forward pass.

    Parameters
    ----------
    config
        A model.
    sequences, length
        New tokens: sequences, and tokens in each. Decoding has a length of 1.
    past
        Tokens of each sequence whose keys and values are in the cache already.
    bytes_per_number
        4 for float32, 2 for bfloat16.

    Examples
    --------
    >>> gpt2 = ModelConfig.load("gpt2")
    >>> prefill, decode = stage_work(gpt2, 1, 512)[1], stage_work(gpt2, 1, 1, past=512)[1]
    >>> round(prefill.intensity), round(decode.intensity, 2)
    (232, 0.5)
    """
    stages = forward_stages(config, sequences, length, bytes_per_number)
    flops = stage_flops(config, sequences, length, past=past)
    tokens = sequences * length
    row = config.hidden * bytes_per_number  # of the token's vector
    cached = kv_numbers_per_layer(config) * bytes_per_number
    works = [Work("embedding", 0, tokens * (2 * row))]  # it reads the rows of its tokens only
    for counted, stage in zip(flops[1:], stages[1:], strict=True):
        bytes_ = stage.weight_bytes + tokens * row + stage.output_bytes
        if stage.stage != "head":
            bytes_ += cached * (sequences * past + tokens)
        works.append(Work(stage.stage, counted.forward, bytes_))
    return tuple(works)


def total(works: Sequence[Work], name: str) -> Work:
    """Add works up.

    Examples
    --------
    >>> total([Work("a", 2, 3), Work("b", 4, 5)], "both")
    Work(name='both', flops=6, bytes_=8)
    """
    return Work(name, sum(work.flops for work in works), sum(work.bytes_ for work in works))


# ---- measuring --------------------------------------------------------------------------


def resolve(device: str | torch.device = "auto") -> torch.device:
    """Return a device: the GPU for ``"auto"`` where there is one, else the CPU."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def seconds(run: Callable[[], object], device: torch.device, rounds: int = 5) -> float:
    """Return the median time of ``run`` after one call to warm up; on a GPU by its own events.

    Examples
    --------
    >>> 0 < seconds(lambda: sum(range(1000)), torch.device("cpu")) < 1
    True
    """
    run()
    times = []
    for _ in range(rounds):
        if device.type == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            stop.record()
            torch.cuda.synchronize(device)
            times.append(start.elapsed_time(stop) / 1e3)
        else:
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def matmul_rate(size: int, dtype: str, device: str | torch.device = "auto") -> float:
    """Measure the rate of a square matrix product, in FLOP/s.

    Parameters
    ----------
    size
        Rows and columns of both factors.
    dtype
        ``float32``, ``bfloat16`` or any other of torch that can be multiplied.
    device
        ``auto``, ``cpu`` or ``cuda``.
    """
    device = resolve(device)
    a = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    out = torch.empty_like(a)
    return 2 * size**3 / seconds(lambda: torch.matmul(a, a, out=out), device)


def memory_rate(bytes_: int = 2**28, device: str | torch.device = "auto") -> float:
    """Measure the memory bandwidth with STREAM's *add*, in bytes per second.

    Parameters
    ----------
    bytes_
        Of each of the three arrays; much more than the last cache holds.
    device
        ``auto``, ``cpu`` or ``cuda``.
    """
    device = resolve(device)
    a, b = torch.ones(bytes_ // 4, device=device), torch.ones(bytes_ // 4, device=device)
    out = torch.empty_like(a)
    return 3 * bytes_ / seconds(lambda: torch.add(a, b, out=out), device)


def measure(
    device: str | torch.device = "auto",
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    sizes: Sequence[int] | None = None,
    bytes_: int = 2**28,
) -> Roofline:
    """Measure this machine's roofline.

    Parameters
    ----------
    device
        ``auto``, ``cpu`` or ``cuda``.
    dtypes
        Types to measure.
    sizes
        Of the matrices; the best one counts. By default up to 2,048 on a CPU, 8,192 on a GPU.
    bytes_
        Of each array of the bandwidth test.

    Examples
    --------
    >>> roof = measure("cpu", ("float32",), sizes=(64,), bytes_=2**16)
    >>> roof.peak("float32") > 0 and roof.bandwidth_Bps > 0
    True
    """
    device = resolve(device)
    gpu = device.type == "cuda"
    sizes = sizes or ((4096, 8192) if gpu else (1024, 2048))
    peaks = {dtype: max(matmul_rate(n, dtype, device) for n in sizes) for dtype in dtypes}
    name = torch.cuda.get_device_name(device) if gpu else "this machine"
    return Roofline(name, peaks, memory_rate(bytes_, device))
