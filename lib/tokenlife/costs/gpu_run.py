"""One prepared run for the day a GPU is at hand: everything chapters 03–06 want to know of it.

    python -m tokenlife.costs.gpu_run                # on a GPU: data/results/gpu-NAME.json
    python -m tokenlife.costs.gpu_run --cpu-smoke    # the same code on a CPU, small, in seconds

It checks that the decoder gives on the GPU what it gives on a CPU, and measures the roofline,
prefill and decode, training, and memory by kind. Weights are random: time and memory do not depend
on them.

Left out: several GPUs, 8-bit types, compiled models.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tokenlife.catalog import data_dir
from tokenlife.costs.flops import forward_flops, training_flops
from tokenlife.costs.memory import bytes_of
from tokenlife.costs.memory_trace import MemoryTrace
from tokenlife.costs.roofline import Roofline, measure, seconds, stage_work, total
from tokenlife.errors import TokenlifeError
from tokenlife.provenance import write_record
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.config import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.train import TrainingRecipe, loss_sum, make_optimiser
from tokenlife.transformer.train.loss import autocast

PARTS = (
    "costs/gpu_run.py", "costs/memory_trace.py", "costs/roofline.py", "transformer/attention.py",
    "transformer/cache.py", "transformer/context.py", "transformer/layers.py",
    "transformer/model.py", "transformer/position.py", "transformer/train/loss.py",
    "transformer/train/optimiser.py",
)  # fmt: skip
# How far logits may be from the CPU's float32: root mean square, as a share of their spread. A
# number of bfloat16 is off by up to 2⁻⁸; through 12 to 28 layers that grows to 1.1–1.6 % on a CPU.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


class GpuRunError(TokenlifeError, RuntimeError):
    """No GPU, or a GPU that computes something else than the CPU."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes
    ----------
    model
        Timed for inference and training.
    checked
        Models whose logits are compared, one of each kind of attention and MLP.
    batches, prompt
        Inference: sequences side by side, and tokens of each prompt.
    train_sequences, train_length
        Training: one micro-batch.
    matmuls, stream_bytes
        Of the roofline.
    rounds
        Repetitions whose median counts.
    """

    model: str
    checked: tuple[str, ...]
    batches: tuple[int, ...]
    prompt: int
    train_sequences: int
    train_length: int
    matmuls: tuple[int, ...] | None = None
    stream_bytes: int = 2**30
    rounds: int = 10


FULL = Size("gpt2", ("gpt2", "smollm2-135m", "qwen3-0.6b"), (1, 8, 64), 512, 16, 1024)
SMOKE = Size("running-gpt", ("running-gpt",), (1, 4), 64, 2, 64, (128,), 2**22, 2)


def check_equality(name: str, dtype: str, device: torch.device) -> dict:
    """Compare the logits on a device with those of the CPU in float32.

    Raises
    ------
    GpuRunError
        If they differ by more than rounding.
    """
    torch.manual_seed(0)
    reference = Decoder(ModelConfig.load(name)).eval()
    ids = torch.randint(reference.config.vocab, (2, 32))
    with torch.no_grad():
        want = reference(ids)
        ours = reference.to(device, getattr(torch, dtype))
        got = ours(ids.to(device)).float().cpu()
    error, spread = got - want, want.std()
    off = (error.square().mean().sqrt() / spread).item()
    if not off <= TOLERANCE[dtype]:
        raise GpuRunError(
            f"{name} in {dtype}: logits are off by {off:.2g} of their spread, "
            f"more than {TOLERANCE[dtype]:g}"
        )
    worst = (error.abs().max() / spread).item()
    return {"model": name, "dtype": dtype, "off": off, "worst": worst, "allowed": TOLERANCE[dtype]}


@torch.no_grad()
def inference(size: Size, dtype: str, device: torch.device, roof: Roofline) -> list[dict]:
    """Time a prefill and a decode step for each batch, beside the roofline's least time."""
    config, width = ModelConfig.load(size.model), bytes_of(dtype)
    model = Decoder(config).eval().to(device, getattr(torch, dtype))
    rows = []
    for batch in size.batches:
        cache = KVCache(config, batch, size.prompt + 1, device, getattr(torch, dtype))
        ids = torch.randint(config.vocab, (batch, size.prompt), device=device)

        def prefill(cache=cache, ids=ids):
            cache.set_lengths([0] * cache.batch)
            model(ids, cache=cache)

        def decode(cache=cache, ids=ids):
            cache.set_lengths([size.prompt] * cache.batch)
            model(ids[:, :1], cache=cache)

        for phase, run, length, past in (
            ("prefill", prefill, size.prompt, 0),
            ("decode", decode, 1, size.prompt),
        ):
            time_s = seconds(run, device, size.rounds)
            work = total(stage_work(config, batch, length, past, width), phase)
            rows.append(
                {"phase": phase, "batch": batch, "context": past + length, "dtype": dtype,
                 "time_s": time_s, "tokens_per_s": batch * length / time_s,
                 "flops": work.flops, "bytes": work.bytes_,
                 "least_time_s": roof.time_s(work, dtype)}
            )  # fmt: skip
    return rows


def training(size: Size, dtype: str, device: torch.device, roof: Roofline) -> dict:
    """Time the parts of a training step, and find its memory by kind.

    ``bfloat16`` is mixed precision: products in 16 bits, weights and states in 32.
    """
    config = ModelConfig.load(size.model)
    shape = (size.train_sequences, size.train_length)
    model = Decoder(config).to(device)
    optimiser = make_optimiser(model, TrainingRecipe(steps=1))
    ids, labels = torch.randint(config.vocab, (2, *shape), device=device)

    def forward() -> torch.Tensor:
        with autocast(dtype, device):
            logits = model(ids)
        return loss_sum(logits, labels) / labels.numel()

    def backward():
        forward().backward()

    def step():
        backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    times = {run.__name__: seconds(run, device, size.rounds) for run in (forward, backward, step)}
    flops = training_flops(config, *shape).total
    return {
        "dtype": dtype, "sequences": shape[0], "length": shape[1],
        "forward_s": times["forward"],
        "backward_s": times["backward"] - times["forward"],
        "optimiser_s": times["step"] - times["backward"],
        "step_s": times["step"],
        "tokens_per_s": labels.numel() / times["step"],
        "flops": flops,
        "flops_per_s": flops / times["step"],
        "mfu_measured_peak": flops / times["step"] / roof.peak(dtype),
        "memory": memory(model, optimiser, forward, (ids, labels)),
    }  # fmt: skip


def memory(model, optimiser, forward: Callable, batch: tuple) -> dict:
    """Return the bytes by kind at the step's highest moment, and the allocator's own peak."""
    device = batch[0].device
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    trace = MemoryTrace(model, optimiser, batch)
    with trace.following():
        with trace.phase("forward"):
            loss = forward()
        with trace.phase("backward"):
            loss.backward()
        del loss
        with trace.phase("optimiser"):
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    peak = trace.peak()
    allocator = {}
    if gpu:
        allocator = {
            "max_allocated": torch.cuda.max_memory_allocated(device),
            "max_reserved": torch.cuda.max_memory_reserved(device),
        }
    return {"peak_phase": peak.phase, "peak_by_kind": peak.bytes_, "allocator": allocator}


def run_all(size: Size, device: torch.device, say: Callable[[str], object] = print) -> dict:
    """Run everything on one device and return plain values.

    Raises
    ------
    GpuRunError
        If the device computes something else than the CPU.
    """
    # Full float32 products: else "float32" would silently mean 19 bits on a GPU.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dtypes = ("float32", "bfloat16")
    say("equality of our layers")
    equal = [check_equality(name, dtype, device) for name in size.checked for dtype in dtypes]
    say("roofline")
    roof = measure(device, dtypes, size.matmuls, size.stream_bytes)
    say("prefill and decode")
    served = [row for dtype in dtypes for row in inference(size, dtype, device, roof)]
    say("training and memory by kind")
    trained = [training(size, dtype, device, roof) for dtype in dtypes]
    return {
        "device": accelerator(device),
        "model": size.model,
        "forward_flops_per_token": forward_flops(ModelConfig.load(size.model), 1, size.prompt)
        / size.prompt,
        "equality": equal,
        "roofline": {"peak_flops": roof.peak_flops, "memory_Bps": roof.bandwidth_Bps},
        "inference": served,
        "training": trained,
    }


def accelerator(device: torch.device) -> dict:
    """Describe the device as far as torch knows it."""
    if device.type != "cuda":
        return {"type": device.type, "name": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run, write the record, say where it is; 2 with one line where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu-smoke", action="store_true", help="small, on the CPU: a test run")
    parser.add_argument("--folder", type=Path, help="where the record goes (data/results)")
    options = parser.parse_args(arguments)
    try:
        if options.cpu_smoke:
            device, size = torch.device("cpu"), SMOKE
            folder = options.folder or Path(tempfile.mkdtemp(prefix="tokenlife-"))
        elif torch.cuda.is_available():
            device, size = torch.device("cuda"), FULL
            folder = options.folder or data_dir() / "results"
        else:
            raise GpuRunError(
                "no GPU that this torch can use; --cpu-smoke runs the same code on the CPU"
            )
        values = run_all(size, device, lambda line: print(line, flush=True))
        name = "gpu-" + re.sub(r"[^a-z0-9]+", "-", values["device"]["name"].lower()).strip("-")
        write_record(folder / f"{name}.json", values, PARTS)
    except TokenlifeError as error:
        print(f"gpu_run: {error}", file=sys.stderr)
        return 2
    print(f"written: {folder / f'{name}.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
