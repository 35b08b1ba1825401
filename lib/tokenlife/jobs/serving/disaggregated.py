"""Prompts read on some instances, answers decoded on others (DistServe [1]_).

Keys and values follow over each reader's own link, one after another. Requests are dealt to
instances in turn.

References
----------
.. [1] Y. Zhong et al., "DistServe", OSDI 2024.
"""

import math

import numpy as np
import pandas as pd

from tokenlife.jobs.serving.server import Served, simulate


def disaggregated(
    asked: pd.DataFrame,
    readers: tuple,
    writers: tuple,
    kv_bytes_per_token: float,
    link_Bps: float,
    latency_s: float = 0.0,
) -> Served:
    """Read prompts on some instances, decode on others.

    Parameters
    ----------
    readers, writers
        Passes, batching and number of the instances that read prompts, and that decode.
    kv_bytes_per_token
        That follow a prompt, over all ranks of an instance.
    link_Bps, latency_s
        Of one reader's way out.

    Returns
    -------
    Served
        ``utilisation`` is that of whichever of readers, links and writers has most to do; the table
        has ``sent_s`` too, from the first token until its cache has arrived.
    """
    read = simulate(asked.assign(output=1), *readers)
    first = asked.arrival_s + read.table.ttft_s
    volume = asked.prompt * kv_bytes_per_token
    takes = (latency_s + volume / link_Bps).to_numpy()
    there, free = np.zeros(len(asked)), [0.0] * readers[2]
    for i in np.argsort(first.to_numpy(), kind="stable"):
        lane = i % readers[2]
        there[i] = free[lane] = max(first.iloc[i], free[lane]) + takes[i]
    alone = asked.output.to_numpy() == 1  # nothing is left to decode
    there[alone] = first[alone]
    handed = asked.assign(
        arrival_s=there, first_s=first, came_s=asked.arrival_s, sent_s=there - first
    )
    written = simulate(handed.sort_values("arrival_s"), *writers, prefilled=True)
    span = asked.arrival_s.iloc[-1] - asked.arrival_s.iloc[0]
    links = float(takes[~alone].sum() / readers[2] / span) if span else math.inf
    table = written.table.assign(arrival_s=asked.arrival_s).drop(columns=["first_s", "came_s"])
    counts = read.counts + written.counts
    counts["kv_bytes"] = float(volume[~alone].sum())
    return Served(table, max(read.utilisation, links, written.utilisation), counts)
