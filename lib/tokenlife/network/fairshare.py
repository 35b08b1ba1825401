"""Max–min fair rates: no flow can have more without another, no richer one, having less.

Progressive filling [1]_ raises all rates together until a link is full, freezes its flows, and goes
on. Here every link that is the tightest for all of its flows is frozen at once: none of them can be
loosened later, as every freeze leaves the others at least as much as before. It takes as many
passes as bottlenecks depend on one another, not as many as there are bottlenecks.

References
----------
.. [1] D. Bertsekas, R. Gallager, "Data networks", 2nd ed., 1992, §6.5.2.
"""

import numpy as np

from tokenlife.network.routing import Routes

_SAME = 1e-12  # relative: levels that differ by rounding only


def max_min(routes: Routes, link_bps: np.ndarray, active: np.ndarray | None = None) -> np.ndarray:
    """Return max–min fair rates.

    Parameters
    ----------
    routes
        Flows on links.
    link_bps
        Rates of the links; shape (links,).
    active
        The flows that send; all where not given. Shape (flows,).

    Returns
    -------
    ndarray
        Bits per second; shape (flows,). Zero for the inactive.

    Examples
    --------
    >>> two = Routes(2, np.array([0, 1, 1]), np.array([0, 0, 1]), np.ones(3))
    >>> max_min(two, np.array([10.0, 2.0])).tolist()
    [8.0, 2.0]
    """
    flow, link, share = routes.flow, routes.link, routes.share
    if active is not None:
        keep = active[flow]
        flow, link, share = flow[keep], link[keep], share[keep]
    left = link_bps.astype(float).copy()
    rates = np.zeros(routes.flows)
    while len(flow):
        weight = np.bincount(link, share, len(left))
        level = np.full(len(left), np.inf)
        np.divide(np.maximum(left, 0), weight, out=level, where=weight > 0)
        lowest = np.full(routes.flows, np.inf)
        np.minimum.at(lowest, flow, level[link])
        over = np.zeros(len(left), bool)
        over[link[lowest[flow] < level[link] * (1 - _SAME)]] = True
        full = ~over[link]
        frozen = np.zeros(routes.flows, bool)
        frozen[flow[full]] = True
        rates[frozen] = lowest[frozen]
        done = frozen[flow]
        left -= np.bincount(link[done], share[done] * rates[flow[done]], len(left))
        flow, link, share = flow[~done], link[~done], share[~done]
    return rates
