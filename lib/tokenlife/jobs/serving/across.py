"""A prompt's first token when its cache is at another site: read again, fetch, or ask there.

A far site holds keys and values of the first ``kept`` tokens of a prompt. Three ways to the first
token of the answer, each from the moment the prompt is at the near site:

- ``recompute``: the near site reads the whole prompt;
- ``fetch``: it asks for the cache, waits for the last byte, and reads the rest;
- ``ask``: the prompt goes there, the far site reads the rest, and the first token comes back.

Either site may have a queue before its next pass; a cache travels meanwhile. A link has a one-way
delay and a rate. A warm connection fills it at once; a new one starts with a window that doubles
every round trip (RFC 5681) until it covers the path. Where a cache is sent while it is made
(Splitwise [1]_ sends it layer by layer), all but the last layers hide behind the computation.

Assumed: one prompt at a time on the link, no loss, a cache kept and sent in the type of the
weights, layers alike. Left out: reading the cache out of a far memory, sliding windows (they send
less), and compressed caches.

References
----------
.. [1] P. Patel et al., "Splitwise", ISCA 2024, section 4.3.
"""

import numpy as np

from tokenlife.costs.memory import kv_bytes_per_token
from tokenlife.jobs.serving.engine import Engine
from tokenlife.jobs.serving.requests import ServingError

ID_BYTES = 4  # of a prompt's token on its way to another site
WAYS = ("recompute", "fetch", "ask")


def _check(delay_s, rate_bps) -> None:
    if not np.all((np.asarray(delay_s) >= 0) & np.isfinite(delay_s)):
        raise ServingError("a delay must be at least 0 and finite, in seconds one way")
    if not np.all(np.asarray(rate_bps) > 0):
        raise ServingError("a rate must be above 0 bit/s: over a link of none nothing arrives")


def transfer_s(bytes_, delay_s, rate_bps, window_bytes=None):
    """Return seconds from the first byte sent to the last one received; takes arrays.

    Parameters
    ----------
    bytes_, delay_s, rate_bps
        Payload, one-way delay, and what the link gives it.
    window_bytes
        Of a connection that is new; it doubles every round trip. None: the link is full at once.

    Raises
    ------
    ServingError
        If the link cannot be.

    Examples
    --------
    >>> float(transfer_s(125_000, 0.01, 100e6)), float(transfer_s(125_000, 0.01, 100e6, 14_480))
    (0.02, 0.0718912)
    """
    _check(delay_s, rate_bps)
    bytes_, trip_s = np.asarray(bytes_, float), 2 * np.asarray(delay_s, float)
    whole = bytes_ * 8 / rate_bps + delay_s
    if window_bytes is None:
        return whole
    # Rounds in which the sender has to wait: until the window covers the path, or all is sent.
    filling = np.ceil(np.log2(np.maximum(trip_s * rate_bps / 8 / window_bytes, 1)))
    needed = np.ceil(np.log2(bytes_ / window_bytes + 1)) - 1
    rounds = np.clip(needed, 0, filling)
    rest = bytes_ - window_bytes * (2**rounds - 1)
    return rounds * trip_s + rest * 8 / rate_bps + delay_s


def read_s(engine: Engine, new, past=0):
    """Return the seconds of a pass that reads ``new`` tokens of a prompt after ``past`` kept ones.

    Examples
    --------
    >>> from tokenlife.jobs.cluster import Cluster
    >>> from tokenlife.parallel import Plan
    >>> from tokenlife.transformer import ModelConfig
    >>> node = Engine(ModelConfig.load("llama-3.1-8b"), Plan(tp=8), Cluster.load("dgx-h100"))
    >>> bool(read_s(node, 100, 900) < read_s(node, 1000))
    True
    """
    new, past = np.asarray(new, float), np.asarray(past, float)
    return engine.seconds(new, new * past + new * (new + 1) / 2, 0, past)


def cache_bytes(engine: Engine, tokens):
    """Return the bytes that a prompt's keys and values take on a link, over all ranks."""
    return np.asarray(tokens, float) * kv_bytes_per_token(engine.config, engine.plan.states.weights)


def first_token_s(
    engine: Engine,
    prompt,
    delay_s,
    rate_bps,
    kept=None,
    near_wait_s=0.0,
    far_wait_s=0.0,
    window_bytes=None,
) -> dict[str, np.ndarray]:
    """Return the time to first token of each of the three ways; takes arrays.

    Parameters
    ----------
    engine
        Of both sites.
    prompt
        Tokens.
    delay_s, rate_bps, window_bytes
        As :func:`transfer_s` takes them.
    kept
        Tokens at the prompt's start whose cache is far; by default all but the last, which is
        always read, as the answer follows from it.
    near_wait_s, far_wait_s
        Before the next pass of a site.

    Raises
    ------
    ServingError
        If nothing is left to read, or the link cannot be.

    Examples
    --------
    >>> from tokenlife.jobs.cluster import Cluster
    >>> from tokenlife.parallel import Plan
    >>> from tokenlife.transformer import ModelConfig
    >>> node = Engine(ModelConfig.load("llama-3.1-70b"), Plan(tp=8), Cluster.load("dgx-h100"))
    >>> ways = first_token_s(node, 32768, delay_s=0.005, rate_bps=100e9)
    >>> min(ways, key=ways.get), bool(ways["fetch"] < ways["recompute"])
    ('ask', True)
    """
    prompt = np.asarray(prompt)
    kept = prompt - 1 if kept is None else np.asarray(kept)
    if np.any(prompt < 1) or np.any(kept < 0) or np.any(kept >= prompt):
        raise ServingError("a prompt has a token at least, and its last one is never kept")
    trip_s = 2 * np.asarray(delay_s, float)
    rest_s = read_s(engine, prompt - kept, kept)
    come_s = delay_s + transfer_s(cache_bytes(engine, kept), delay_s, rate_bps, window_bytes)
    sent_s = transfer_s(prompt * ID_BYTES, delay_s, rate_bps, window_bytes)
    ways = {
        "recompute": near_wait_s + read_s(engine, prompt),
        "fetch": np.maximum(near_wait_s, come_s) + rest_s,
        "ask": sent_s + far_wait_s + rest_s + trip_s / 2,
    }
    shape = np.broadcast_shapes(*(np.shape(times) for times in ways.values()))
    return {name: np.broadcast_to(times, shape) for name, times in ways.items()}


def break_even(engine: Engine, delay_s: float, rate_bps: float, most: int, **how) -> int | None:
    """Return the shortest prompt from which on fetching beats reading again, up to ``most`` tokens.

    Parameters
    ----------
    engine, delay_s, rate_bps, how
        As :func:`first_token_s` takes them.
    most
        The longest prompt looked at.

    Returns
    -------
    int or None
        None where the longest prompt is still read faster than its cache comes.

    Examples
    --------
    >>> from tokenlife.jobs.cluster import Cluster
    >>> from tokenlife.parallel import Plan
    >>> from tokenlife.transformer import ModelConfig
    >>> node = Engine(ModelConfig.load("llama-3.1-70b"), Plan(tp=8), Cluster.load("dgx-h100"))
    >>> break_even(node, 0.005, 10e9, 100_000) is None
    True
    >>> 100 < break_even(node, 0.005, 400e9, 100_000) < 2000
    True
    """
    ways = first_token_s(engine, np.arange(1, most + 1), delay_s, rate_bps, **how)
    lost = np.flatnonzero(ways["fetch"] >= ways["recompute"])
    first = int(lost[-1]) + 2 if lost.size else 1
    return first if first <= most else None


def cache_bps(engine: Engine, prompt):
    """Return the rate at which reading a prompt makes cache, bit/s; takes arrays.

    A link of this rate keeps up with a reader that sends each layer as soon as it is made. It is
    also the rate above which, but for the delay, fetching a cache beats making it.
    """
    return cache_bytes(engine, prompt) * 8 / read_s(engine, prompt)


def streamed_s(layer_s, layer_bytes, rate_bps, delay_s=0.0):
    """Return seconds until the cache of all layers is there, each sent as soon as it is made.

    Parameters
    ----------
    layer_s, layer_bytes
        What each layer takes to compute, and its cache; shape (…, layers).
    rate_bps, delay_s
        Of the link, one way.

    Examples
    --------
    >>> fast = float(streamed_s([0.1] * 10, [1e6] * 10, rate_bps=160e6))
    >>> slow = float(streamed_s([0.1] * 10, [1e6] * 10, rate_bps=40e6))
    >>> round(fast, 6), round(slow, 6)       # ten layers and a transfer; a layer and ten transfers
    (1.05, 2.1)
    """
    _check(delay_s, rate_bps)
    made = np.cumsum(np.asarray(layer_s, float), axis=-1)
    sending = np.asarray(layer_bytes, float) * 8 / rate_bps
    # Some layer is the last that the link had to wait for; from it on the link is never idle.
    rest = np.cumsum(sending[..., ::-1], axis=-1)[..., ::-1]
    return (made + rest).max(axis=-1) + delay_s
