"""Requests of a served model: drawn, or read from a trace of a real service.

Arrivals are Poisson: times between two are exponential, independent of all else. Lengths are
lognormal, set by a median and a mean. Two trace formats are read: the Azure LLM inference traces'
CSV (``TIMESTAMP, ContextTokens, GeneratedTokens``) [1]_ and Mooncake's JSON lines (``timestamp`` in
ms, ``input_length``, ``output_length``, ``hash_ids`` of blocks of 512 tokens) [2]_. With block
hashes a prefix cache can be played, least recently used out first.

References
----------
.. [1] P. Patel et al., "Splitwise", ISCA 2024; github.com/Azure/AzurePublicDataset.
.. [2] R. Qin et al., "Mooncake", FAST 2025; github.com/kvcache-ai/Mooncake.
"""

import json
import math
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pandas as pd

from tokenlife.errors import TokenlifeError

COLUMNS = ("arrival_s", "prompt", "output", "cached")
BLOCK = 512  # tokens under one hash of a Mooncake trace


class ServingError(TokenlifeError, ValueError):
    """Requests, or a server, that cannot be."""


def requests(arrival_s, prompt, output, cached=0) -> pd.DataFrame:
    """Return a table of requests, by time of arrival.

    Parameters
    ----------
    arrival_s
        Seconds, shape (requests,).
    prompt, output
        Tokens read and tokens to be written, at least 1 each.
    cached
        Tokens of the prompt whose keys and values are kept already; fewer than the prompt has.

    Raises
    ------
    ServingError
        If a request is none that can be.

    Examples
    --------
    >>> requests([1.0, 0.5], [10, 20], 5).prompt.tolist()
    [20, 10]
    """
    columns = dict(zip(COLUMNS, (arrival_s, prompt, output, cached), strict=True))
    size = max(np.size(column) for column in columns.values()) if np.size(arrival_s) else 0
    table = pd.DataFrame({name: np.broadcast_to(c, size) for name, c in columns.items()})
    if table.empty:
        raise ServingError("a server needs at least one request")
    if not (np.isfinite(table.arrival_s) & (table.arrival_s >= 0)).all():
        raise ServingError("requests arrive at 0 seconds or later, at a finite time")
    if (table[["prompt", "output"]] < 1).any(axis=None):
        raise ServingError("a request reads and writes at least one token")
    if ((table.cached < 0) | (table.cached >= table.prompt)).any():
        raise ServingError("of a prompt at least the last token must be read: cached < prompt")
    whole = table[["prompt", "output", "cached"]].astype(np.int64)
    return table.assign(**whole).sort_values("arrival_s", kind="stable", ignore_index=True)


def poisson(count: int, rate_per_s: float, seed: int) -> np.ndarray:
    """Draw the arrival times of ``count`` requests, in seconds.

    Examples
    --------
    >>> round(float(np.diff(poisson(100_000, 4.0, seed=0)).mean()), 2)
    0.25
    """
    if count < 1 or not 0 < rate_per_s < math.inf:
        raise ServingError(f"{count} requests at {rate_per_s}/s; both must be above 0")
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))


def lengths(count: int, median: float, mean: float, most: int, seed: int) -> np.ndarray:
    """Draw lognormal lengths of 1 to ``most`` tokens.

    Examples
    --------
    >>> drawn = lengths(100_000, 1020, 1154.7, 10**6, seed=0)
    >>> abs(np.median(drawn) / 1020 - 1) < 0.02, abs(drawn.mean() / 1154.7 - 1) < 0.02
    (np.True_, np.True_)
    """
    if not 0 < median <= mean:
        raise ServingError(
            f"lognormal lengths have a median of 0 to the mean, not {median}, {mean}"
        )
    spread = math.sqrt(2 * math.log(mean / median))
    drawn = np.random.default_rng(seed).lognormal(math.log(median), spread, count)
    return np.clip(np.round(drawn), 1, most).astype(np.int64)


def read_trace(path: str | Path, cache_blocks: int = 0) -> pd.DataFrame:
    """Read a trace: ``.csv`` in the Azure columns, ``.jsonl`` in Mooncake's keys.

    Parameters
    ----------
    cache_blocks
        Blocks of 512 tokens that a prefix cache holds; needs block hashes.

    Raises
    ------
    ServingError
        If the file is not such a trace.
    """
    path = Path(path)
    try:
        if path.suffix == ".csv":
            table = pd.read_csv(path, parse_dates=["TIMESTAMP"])
            arrival = (table.TIMESTAMP - table.TIMESTAMP.min()).dt.total_seconds()
            return requests(arrival, table.ContextTokens, table.GeneratedTokens.clip(lower=1))
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        prompt = np.array([row["input_length"] for row in rows])
        order = np.argsort([row["timestamp"] for row in rows], kind="stable")
        hits = np.zeros(len(rows), dtype=np.int64)
        hits[order] = prefix_hits([rows[i]["hash_ids"] for i in order], cache_blocks)
        cached = np.minimum(hits * BLOCK, np.maximum(prompt - 1, 0))
        arrival = np.array([row["timestamp"] for row in rows]) / 1e3
        written = [max(1, row["output_length"]) for row in rows]
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ServingError):
            raise
        raise ServingError(
            f"{path} is no trace: a .csv with TIMESTAMP, ContextTokens, GeneratedTokens, or a "
            f".jsonl with timestamp, input_length, output_length, hash_ids ({error})"
        ) from error
    return requests(arrival, prompt, written, cached)


def prefix_hits(blocks: list[list[int]], capacity: int) -> list[int]:
    """Return how many leading blocks of each prompt a cache of so many blocks holds.

    Examples
    --------
    >>> prefix_hits([[1, 2], [1, 3], [1, 2, 4]], capacity=8), prefix_hits([[1, 2], [1, 2]], 1)
    ([0, 1, 2], [0, 0])
    """
    kept, found = OrderedDict(), []
    for chain in blocks:
        hit = next((n for n, block in enumerate(chain) if block not in kept), len(chain))
        found.append(hit)
        for block in chain:
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > capacity:
            kept.popitem(last=False)
    return found
