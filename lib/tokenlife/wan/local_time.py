"""What sites that train together send across the WAN, and what a step then costs.

Of N weights, every H steps, each site sends its outer gradient of b bits a number to each of the
k − 1 others: (k − 1)·N·b/8 bytes. Where gradients are summed on the way, as plain data parallelism
does at every step, a site sends 2·(k − 1)/k of them. A message takes the link's delay and its bits
over the rate.

What is waited for is what does not hide. A fragment that may arrive τ steps after it left hides
behind these. An implementation that works layer by layer hides more: a layer may leave as soon as
its backward pass is done, and is missed only by its own next forward pass. Of P fragments, fragment
p then holds the layers p, p + P, p + 2P, …, as Streaming DiLoCo has it. Deeper layers leave first,
one after another. Two thirds of a step are backward. H steps take at least what the link needs.

Arguments may be arrays that broadcast. Left out: TCP's start and losses (chapter 20), the sites'
own sums inside, time to code, a link that others use too.
"""

import numpy as np

from tokenlife.wan.compression import BITS, SCALE_BYTES
from tokenlife.wan.local_sgd import LocalError

BACKWARD = 2 / 3


def wan_bytes(parameters, every=1, bits=32, sites=2, summed=False, block=256):
    """Return the bytes that a site sends across the WAN for each step, in the mean.

    Parameters
    ----------
    parameters
        Numbers that are sent.
    every, bits, sites
        H, bits of a number, k.
    summed
        Whether the network's ends sum on the way (an all-reduce), or each site sends to each.
    block
        Numbers that share a scale below 16 bits; 0 to leave scales out.

    Raises
    ------
    LocalError
        If H is below 1, the bits are not offered, or there are fewer than 2 sites.

    Examples
    --------
    >>> wan_bytes(1000, summed=True), wan_bytes(1000, every=20, bits=4)
    (4000.0, 25.8)
    >>> wan_bytes(1000, every=0)
    Traceback (most recent call last):
        ...
    tokenlife.wan.local_sgd.LocalError: every must be at least 1 step, not 0
    """
    every, bits, sites = map(np.asarray, (every, bits, sites))
    if (every < 1).any():
        raise LocalError(f"every must be at least 1 step, not {every.min()}")
    if not np.isin(bits, BITS).all():
        raise LocalError(f"no code of these bits; there are {', '.join(map(str, BITS))}")
    if (sites < 2).any():
        raise LocalError("a WAN lies between at least 2 sites")
    scales = -(-parameters // block) * SCALE_BYTES * (bits < 16) if block else 0
    once = parameters * bits / 8 + scales
    copies = 2 * (sites - 1) / sites if summed else sites - 1
    found = once * copies / every
    return float(found) if np.ndim(found) == 0 else found


def step_s(bytes_, compute_s, rate_bps, every=1, delay_s=0.0, fragments=1, behind=0, layers=0):
    """Return the mean time of a step at a site.

    Parameters
    ----------
    bytes_
        That a site sends for each step, in the mean, as :func:`wan_bytes` returns them.
    compute_s
        A step without a network.
    rate_bps
        Of the site's way to the others.
    every
        H.
    delay_s
        One way. An exchange waits for it once, an all-reduce of k sites 2·(k − 1) times: multiply.
    fragments, behind
        As of :class:`~tokenlife.wan.local_sgd.Method`; plain numbers.
    layers
        Of the model, if it is sent layer by layer; 0 if what is sent waits for the whole step.

    Raises
    ------
    LocalError
        If a rate is not above 0 or a delay below 0.

    Examples
    --------
    >>> step_s(wan_bytes(1e6), 0.1, 1e8), round(step_s(wan_bytes(1e6, every=20), 0.1, 1e8, 20), 3)
    (0.42..., 0.116)
    """
    every, rate_bps = np.asarray(every, float), np.asarray(rate_bps, float)
    if (rate_bps <= 0).any():
        raise LocalError("a rate must be above 0 bit/s: nothing ever arrives")
    if (np.asarray(delay_s) < 0).any():
        raise LocalError("a delay cannot be below 0 s")
    sent_s = 8 * bytes_ * every / rate_bps  # in H steps
    waited = 0.0
    for fragment in range(fragments):
        depths = np.arange(max(layers, 1))[fragment::fragments] / max(layers, 1)
        if not layers:
            depths = np.zeros(1)
        each_s = sent_s / fragments / len(depths)
        through, late = -np.inf, 0.0  # counted from the end of the step after which it is due
        for depth in depths[::-1]:
            ready = -BACKWARD * depth * compute_s if layers else 0.0
            missed = (behind + (1 - BACKWARD) * depth) * compute_s
            through = np.maximum(through, ready) + each_s
            late = np.maximum(late, through + delay_s - missed)
        waited = waited + late
    found = np.maximum(compute_s * every + waited, sent_s) / every
    return float(found) if np.ndim(found) == 0 else found
