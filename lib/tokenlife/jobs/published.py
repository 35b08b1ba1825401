"""Published training runs as jobs of this library, and the calibration that is fitted on half.

Each row of Megatron-LM's Table 1 [1]_, of Korthikanti's Table 5 [2]_ and of Llama 3's Table 4 [3]_
becomes a model, a plan and a cluster. Throughputs are turned into seconds with the papers' own
count of FLOPs. What a table does not print is settled by one rule for all rows: of the micro-batch
(1, 2, 4 or 8) and the number of chunks the fastest that fits, as its authors say they chose.
Llama 3 sums gradients over micro-batches before it scatters them: what ZeRO-1 sends.
Rows are numbered in their order; the even ones are fitted, the odd ones judge.

References
----------
.. [1] D. Narayanan et al., "Efficient large-scale language model training on GPU clusters using
   Megatron-LM", SC'21.
.. [2] V. Korthikanti et al., "Reducing activation recomputation in large transformer models",
   MLSys 2023.
.. [3] Llama Team, "The Llama 3 herd of models", 2024.
"""

import re
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from tokenlife.catalog import read_accelerator, read_reference
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration, model_flops
from tokenlife.jobs.step import step
from tokenlife.parallel import Plan, PlanError
from tokenlife.transformer import ModelConfig


class Run(NamedTuple):
    """A published run: the plans among which it chose, and the seconds of a step."""

    table: str
    name: str
    config: ModelConfig
    cluster: Cluster
    plans: tuple[Plan, ...]
    seconds: float


@cache
def _vocabulary() -> int:
    """Return the size of GPT-2's vocabulary as both Megatron papers pad it."""
    table = read_reference("01_megatron_sc21").query("table == 'Table 1'")
    return int(re.search(r"vocab (\d+)", table.conditions.iloc[0])[1])


def gpt(name: str, layers: int, hidden: int, heads: int) -> ModelConfig:
    """Return a GPT of Megatron's shape."""
    return ModelConfig.from_hf(
        {
            "model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads,
            "n_positions": 2048, "vocab_size": _vocabulary(),
        },
        name,
    )  # fmt: skip


def _plans(config: ModelConfig, known: dict, micro_batches, chunks) -> tuple[Plan, ...]:
    """Return the legal plans among what a table leaves open."""
    found = []
    for micro, virtual in product(micro_batches, chunks):
        schedule = "interleaved" if virtual > 1 else "1f1b"
        if virtual > 1 and (known["pp"] == 1 or config.layers % (known["pp"] * virtual)):
            continue
        try:
            plan = Plan(**known, micro_batch=micro, virtual=virtual, schedule=schedule)
            found.append(plan.check(config))
        except PlanError:
            continue
    return tuple(found)


def _megatron():
    table = read_reference("01_megatron_sc21").query("table == 'Table 1'")
    selene = Cluster.load("dgx-a100-selene")
    for name, rows in table.groupby(table.conditions.str.split(" ").str[0], sort=False):
        v = rows.set_index("quantity").value.astype(float)
        shape = (v["layers"], v["hidden size"], v["attention heads"])
        config = gpt(f"GPT {name}", *map(int, shape))
        tp, pp, gpus, batch = (
            int(v[k]) for k in ("TP size", "PP size", "GPUs", "batch size (sequences)")
        )
        known = {
            "tp": tp, "pp": pp, "dp": gpus // tp // pp, "global_batch": batch, "sequence": 2048,
            "recompute": "full", "attention": "naive", "overlap": False,
        }  # fmt: skip
        flops = 96 * batch * 2048 * shape[0] * shape[1] ** 2
        flops *= 1 + 2048 / (6 * shape[1]) + _vocabulary() / (16 * shape[0] * shape[1])
        seconds = flops / (v["achieved TFLOP/s per GPU"] * 1e12 * gpus)
        plans = _plans(config, known, (1, 2, 4, 8), (1, 2, 3, 4, 5, 6))
        yield Run("SC'21 Table 1", config.name, config, selene, plans, seconds)


def korthikanti_plan(size: str, present: bool) -> tuple[ModelConfig, Plan]:
    """Return a model of Korthikanti's Table 3 and its plan: the present work, or full recompute."""
    table = read_reference("02_korthikanti_recompute").query("table == 'Table 3'")
    v = table[table.quantity.str.startswith(f"{size} ")].set_index("quantity").value.astype(float)
    v = {key.removeprefix(f"{size} "): int(value) for key, value in v.items()}
    config = gpt(f"GPT {size}", v["layers"], v["hidden"], v["heads"])
    plan = Plan(
        tp=v["TP"], pp=v["PP"], virtual=v["interleave"], micro_batch=v["microbatch"],
        schedule="interleaved" if v["interleave"] > 1 else "1f1b", global_batch=v["global batch"],
        dp=v["GPUs"] // v["TP"] // v["PP"], sequence=2048, sequence_parallel=present,
        recompute="selective" if present else "full", attention="naive", overlap=False,
    )  # fmt: skip
    return config, plan


def _korthikanti():
    table = read_reference("02_korthikanti_recompute").query("table == 'Table 5'")
    selene = Cluster.load("dgx-a100-selene")
    for row in table[table.quantity.str.contains("iteration time")].itertuples():
        present = "present" in row.quantity
        size = row.quantity.split(" ")[0]
        config, plan = korthikanti_plan(size, present)
        how = "selective" if present else "full"
        run = (f"{config.name}, {how}", config, selene, (plan,), float(row.value))
        yield Run("Korthikanti Table 5", *run)


def _llama():
    table = read_reference("04_llama3").query("table == 'Table 4'")
    config, meta = ModelConfig.load("llama-3.1-405b"), Cluster.load("llama3-24k")
    for row in table[table.quantity.str.contains("TFLOP")].itertuples():
        tp, cp, pp, dp = map(int, re.findall(r"[TCPD]P(\d+)", row.conditions))
        sequence, batch = map(int, re.findall(r"seq (\d+), batch/DP (\d+)", row.conditions)[0])
        known = {
            "tp": tp, "cp": cp, "pp": pp, "dp": dp, "zero": 1, "sequence": sequence,
            "global_batch": batch * dp, "sequence_parallel": tp > 1, "balance": True,
            "order": ("tp", "cp", "pp", "dp"),
        }  # fmt: skip
        plans = []
        for chunks in (1, 2, 4, 8):
            schedule = "interleaved" if chunks > 1 else "1f1b"
            plan = Plan(**known, virtual=chunks, schedule=schedule)
            plans.append(plan)
        gpus = plans[0].world
        seconds = model_flops(config, plans[0]) / (float(row.value) * 1e12 * gpus)
        name = f"405B, {gpus} GPUs, {sequence}"
        yield Run("Llama 3 Table 4", name, config, meta, tuple(plans), seconds)


def runs() -> tuple[Run, ...]:
    """Return all published runs, in the order of their tables.

    Examples
    --------
    >>> len(runs()), runs()[0].name, float(round(runs()[0].seconds, 2))
    (21, 'GPT 1.7B', 3.53)
    """
    return (*_megatron(), *_korthikanti(), *_llama())


def compare(found: tuple[Run, ...], calibration: Calibration | None = None) -> pd.DataFrame:
    """Return model beside published: one row for each run.

    Columns: ``modelled_s``, ``published_s``, ``error``, ``step``, ``fits`` and
    ``half``, which says whether the calibration was fitted on the row or is judged on it.
    """
    rows = []
    for i, run in enumerate(found):
        steps = [step(run.config, p, run.cluster, calibration) for p in run.plans]
        fitting = [s for s in steps if sum(s.memory_bytes.values()) <= run.cluster.memory_bytes]
        best = min(fitting or steps, key=lambda s: s.time_s)
        error = best.time_s / run.seconds - 1
        half = "judged" if i % 2 else "fitted"
        rows.append(
            (run.table, run.name, best.time_s, run.seconds, error, half, best, bool(fitting))
        )
    columns = ["table", "run", "modelled_s", "published_s", "error", "half", "step", "fits"]
    return pd.DataFrame(rows, columns=columns)


def _caps() -> np.ndarray:
    """Return what no constant may pass: its promise; on NVLink, what nccl-tests reach at 4 GiB."""
    log = read_reference("08c_nccl_tests_logs").query("log_id == 'A'")
    largest = log.loc[log.size_bytes.eq(2**32), "busbw_GBps"].item()
    nvlink = largest * 1e9 / read_accelerator("a100-sxm")["scale_up_Bps"]
    return np.array([1.0, 1.0, nvlink, 1.0])


def calibrate(found: tuple[Run, ...] | None = None) -> Calibration:
    """Fit the calibration on the even rows: least squares of the logarithms of the times."""
    found = runs() if found is None else found
    point, width, caps = np.log([0.85, 0.4, 0.75, 0.35]), 0.1, np.log(_caps())

    def cost(x):
        # All rows are priced, so that each keeps its place and the split is that of compare().
        table = compare(found, Calibration(*np.exp(x)))
        return float((np.log1p(table[table.half == "fitted"].error) ** 2).sum())

    least = cost(point)
    while width > 0.01:  # look along each constant, and closer where no step helps
        axes = width * np.eye(4)
        steps = [np.minimum(x, caps) for axis in axes for x in (point + axis, point - axis)]
        costs = [cost(x) for x in steps]
        if min(costs) < least:
            least, point = min(costs), steps[int(np.argmin(costs))]
        else:
            width /= 2
    return Calibration(*(round(float(x), 3) for x in np.exp(point)))
