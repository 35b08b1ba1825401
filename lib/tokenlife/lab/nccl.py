"""NCCL's published times, and the model they are fitted with.

NCCL has three protocols: LL starts fast and moves half the bytes of a wire, LL128 most of them, and
Simple nearly all but starts slowly. So a call costs what the cheapest protocol costs:

    time = min over protocols p of (start_p + β_p · bytes sent) + α · rounds + κ · S/n

with the rounds and bytes of the ring (of single messages for all-to-all and send), and κ for the
share S/n of the buffer that a rank handles in its own memory. Where the switch can add, a fourth
way is in the race: NVLS, where each link carries S/n partial sums and S of results, S·(1 + 1/n).

The rank counts of a node are fitted together, with one set of parameters, where every GPU has a
port of its own on a switch. Where they share wires (PCIe, pairs, several nodes) each rank count is
a layout with rates of its own, and has starts and rates only: α · rounds is then part of a start.

Left out: what happens between two protocols' best sizes (measured times jump there, for NCCL's own
choice is a model too), and what else ran.
"""

from itertools import combinations

import numpy as np
import pandas as pd

from tokenlife.catalog import read_accelerator, read_reference
from tokenlife.collectives.bounds import busbw_factor, lower_bound
from tokenlife.lab.fit import FitError, fit_fastest, times_s

PROTOCOLS = 3
KINDS = {"alltoall": "all_to_all", "send_recv": "send", "sendrecv": "send"}
POOLED = {"a100_sxm": "a100-sxm", "h100_sxm": "h100-sxm", "b200_sxm": "b200-sxm"}


def samples() -> pd.DataFrame:
    """Return every published time, as one table.

    Returns
    -------
    DataFrame
        ``table``, ``system``, ``kind``, ``ranks``, ``bytes`` (the whole buffer of a rank),
        ``time_s``; ``layout``: rows that are fitted together. Repeated campaigns are medians.

    Examples
    --------
    >>> sorted(samples().table.unique())
    ['08c_nccl_tests_logs', 'nccl_measured_aiconfigurator', 'nccl_measured_vidur']
    """
    names = ["system", "kind", "ranks", "bytes", "time_s"]
    ours = read_reference("nccl_measured_aiconfigurator")
    ours = ours.assign(time_s=ours.latency_ms / 1e3)
    vidur = read_reference("nccl_measured_vidur")
    system = vidur.system + ", " + vidur.devices_per_node.astype(str) + " per node"
    vidur = vidur.assign(system=system, time_s=vidur.median_ms / 1e3)
    logs = read_reference("08c_nccl_tests_logs")
    # Some logs print rates only; those of J2 and J3 are bus bandwidths of all-reduces.
    rate_Bps = (
        logs.algbw_GBps.fillna(logs.busbw_GBps / busbw_factor("all_reduce", logs.nranks)) * 1e9
    )
    logs = logs.assign(time_s=(logs.time_us / 1e6).fillna(logs.size_bytes / rate_Bps))
    columns = {
        "nccl_measured_aiconfigurator": ours[["system", "op_name", "num_gpus", "bytes", "time_s"]],
        "nccl_measured_vidur": vidur[["system", "collective", "num_workers", "bytes", "time_s"]],
        "08c_nccl_tests_logs": logs[["log_id", "collective", "nranks", "size_bytes", "time_s"]],
    }
    parts = [table.set_axis(names, axis=1).assign(table=name) for name, table in columns.items()]
    whole = pd.concat(parts, ignore_index=True).replace({"kind": KINDS})
    whole = whole.groupby(["table", *names[:-1]], as_index=False).time_s.median()
    alone = whole.system + " " + whole.kind + " " + whole.ranks.astype(str)
    pooled = whole.system.isin(POOLED)
    return whole.assign(layout=alone.where(~pooled, whole.system + " " + whole.kind))


def designs(kind: str, ranks, bytes_, protocols: int, nvls: bool) -> tuple[np.ndarray, list[str]]:
    """Return what each parameter is multiplied by, for each way of running the call.

    Returns
    -------
    ndarray, list
        Shape (ways, samples, parameters), and the names of the parameters.
    """
    ranks, bytes_ = np.asarray(ranks, float), np.asarray(bytes_, float)
    rounds = np.ones_like(ranks) if kind == "send" else ranks - 1
    rounds = rounds * (2 if kind == "all_reduce" else 1)
    sent = lower_bound(kind, ranks.astype(int), bytes_).sent_bytes
    shared = {"alpha_s": rounds, "own_s_per_B": bytes_ / ranks} if np.ptp(ranks) else {}
    ways = [sent] * protocols + [bytes_ * (1 + 1 / ranks)] * nvls
    names = [*shared]
    for way in [*range(protocols)] + ["nvls"] * nvls:
        names += [f"start_{way}_s", f"beta_{way}_s_per_B"]
    design = np.zeros((len(ways), len(bytes_), len(names)))
    for way, moved in enumerate(ways):
        if way < protocols and shared:
            design[way, :, : len(shared)] = np.column_stack(list(shared.values()))
        at = len(shared) + 2 * way
        design[way, :, at : at + 2] = np.column_stack([np.ones_like(moved), moved])
    return design, names


def fit_layout(rows: pd.DataFrame, fitted: np.ndarray, nvls: bool | None = None) -> pd.DataFrame:
    """Fit one layout on some of its rows, and model all.

    Parameters
    ----------
    rows
        Of :func:`samples`, one layout.
    fitted
        Which rows the fit may see; shape (rows,).
    nvls
        Whether NVLS is in the race; by default where the table of accelerators says so.

    Returns
    -------
    DataFrame
        The rows with ``fitted``, ``modelled_s``, ``error`` (relative); the parameters in ``attrs``.

    Raises
    ------
    FitError
        If fewer than three rows are to be fitted.
    """
    if fitted.sum() < 3:
        raise FitError(f"{rows.layout.iloc[0]}: a fit needs at least three sizes")
    system, kind = rows.system.iloc[0], rows.kind.iloc[0]
    pooled = system in POOLED and np.ptp(rows.ranks) > 0
    if nvls is None:
        nvls = pooled and kind == "all_reduce" and read_accelerator(POOLED[system])["switch_adds"]
    protocols = min(PROTOCOLS, max(1, int(fitted.sum()) // 4))
    design, names = designs(kind, rows.ranks, rows.bytes, protocols, nvls)
    seen = design[:, fitted]
    starts = _starts(rows[fitted], protocols, nvls)
    values = fit_fastest(seen, rows.time_s.to_numpy()[fitted], starts)
    modelled_s = times_s(design, values).min(axis=0)
    out = rows.assign(fitted=fitted, modelled_s=modelled_s, error=modelled_s / rows.time_s - 1)
    out.attrs = dict(zip(names, values.tolist(), strict=True))
    return out


def judge(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Fit every layout on every second size, so that the other half can judge.

    Parameters
    ----------
    rows
        Of :func:`samples`.

    Returns
    -------
    dict
        Layout to what :func:`fit_layout` returns. Layouts of fewer than five sizes are left out.
    """
    results = {}
    for layout, group in rows.groupby("layout"):
        sizes = np.unique(group.bytes)
        if len(sizes) >= 5:
            results[layout] = fit_layout(group, group.bytes.isin(sizes[::2]).to_numpy())
    return results


def _starts(rows: pd.DataFrame, protocols: int, nvls: bool):
    """Cut the sizes where one protocol may hand over to the next; NVLS may have the largest."""
    sizes = np.unique(rows.bytes)
    cuts = sizes[1 :: max(1, len(sizes) // 8)]
    large = rows.ranks.to_numpy() == rows.ranks.max()
    for cut in combinations(cuts, protocols - 1):
        start = np.searchsorted(np.array(cut, float), rows.bytes)
        yield start
        if nvls:
            for first in sizes[[-3, -5]]:
                yield np.where(large & (rows.bytes >= first), protocols, start)
