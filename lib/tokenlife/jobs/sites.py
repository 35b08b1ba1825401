"""Sites and the lines between them: what an all-reduce costs that crosses, and what hides of it.

Sites are alike; each pair is joined by a line with a delay and a rate either way, which all ranks
of the two share. A collective that crosses is priced in waits for the delay and in bytes through
the line. A flat ring over n ranks at k sites sends 2(n − 1)/n of the buffer through each line that
it uses; it waits as often as a block that goes around meets a line, at most 2k times, and in
lock-step in every one of its 2(n − 1) rounds. The hierarchical all-reduce sends 2(k − 1)/k of the
buffer out of a site, and waits 2(k − 1) times, whoever speaks for the site.

Arguments may be arrays that broadcast. Left out: TCP's start and losses (:mod:`tokenlife.wan`), and
sites that differ.
"""

from dataclasses import dataclass

import numpy as np

from tokenlife.errors import TokenlifeError

LARGEST_RATE_BPS = 1e15


class SitesError(TokenlifeError, ValueError):
    """Sites, a line between them, or a use of it that cannot be."""


@dataclass(frozen=True)
class Distance:
    """Sites, and the line between each pair of them.

    Attributes
    ----------
    delay_s, rate_bps
        One way; the rate is what payload gets. Numbers or arrays.
    sites
        How many, at least 2.

    Examples
    --------
    >>> Distance(0.02, 1e11, sites=1)
    Traceback (most recent call last):
        ...
    tokenlife.jobs.sites.SitesError: a job over sites needs at least 2, not 1
    """

    delay_s: np.ndarray | float
    rate_bps: np.ndarray | float
    sites: int = 2

    def __post_init__(self):
        if not isinstance(self.sites, int) or self.sites < 2:
            raise SitesError(f"a job over sites needs at least 2, not {self.sites}")
        for name, least in (("delay_s", "0 or more seconds"), ("rate_bps", "above 0 bit/s")):
            value = np.asarray(getattr(self, name), float)
            if not (np.all(value >= 0) and np.all((value > 0) | (name == "delay_s"))):
                raise SitesError(f"{name} must be {least}, not {getattr(self, name)}")

    def carry_s(self, bytes_):
        """Return the seconds that bytes take through one line, without its delay."""
        return bytes_ * 8 / self.rate_bps


def flat_ring_s(distance: Distance, bytes_, per_site: int, lockstep: bool = False):
    """Return the seconds of a ring all-reduce over all ranks, numbered site by site.

    Links inside a site take no time here.

    Parameters
    ----------
    distance
        Sites and lines.
    bytes_
        Of one rank's buffer.
    per_site
        Ranks at each site.
    lockstep
        Whether a round begins only when the last has ended everywhere.

    Examples
    --------
    >>> far = Distance(0.02, 1e8)
    >>> [round(float(flat_ring_s(far, 1e6, 2, lockstep)), 3) for lockstep in (False, True)]
    [0.14, 0.24]
    """
    ranks = distance.sites * at_least_one(per_site, "per_site")
    rounds, delay_s = 2 * (ranks - 1), distance.delay_s
    block_s = distance.carry_s(bytes_ / ranks)
    if lockstep:
        return rounds * (delay_s + block_s)
    # Either a line is always busy, or a block that goes around decides: it meets so many lines.
    laps, rest = divmod(rounds - 1, per_site)
    around_s = (laps + 1) * (delay_s + block_s) + rest * block_s
    return np.maximum(delay_s + rounds * block_s, around_s)


def hierarchical_s(
    distance: Distance,
    bytes_,
    per_site: int,
    gateways: int = 0,
    inside_Bps=np.inf,
    inside_s=0.0,
):
    """Return the seconds of an all-reduce that sums at each site first.

    Parameters
    ----------
    distance, bytes_, per_site
        As for :func:`flat_ring_s`.
    gateways
        Ranks of a site that speak to others, as
        :func:`~tokenlife.collectives.gateways.gateways_all_reduce` takes them; 0 for all.
    inside_Bps, inside_s
        Of a rank's link, which is its way out of the site too, and its start-up time.

    Raises
    ------
    SitesError
        If the gateways do not share the ranks of a site evenly.

    Examples
    --------
    >>> far = Distance(0.02, 1e8)
    >>> round(float(hierarchical_s(far, 1e6, 2)), 3)
    0.12
    """
    gateways = gateways or at_least_one(per_site, "per_site")
    if gateways < 1 or per_site % gateways:
        raise SitesError(f"{gateways} gateways cannot share the {per_site} ranks of a site evenly")
    k, each = distance.sites, per_site // gateways
    rounds = 2 * (per_site + each - 2)
    inside = rounds * inside_s + rounds / per_site * bytes_ / inside_Bps
    sent = 2 * (k - 1) / k * bytes_
    out = np.maximum(distance.carry_s(sent), sent / (gateways * inside_Bps))
    return inside + 2 * (k - 1) * (distance.delay_s + inside_s) + out


def overlapped_s(distance: Distance, bytes_, window_s, buckets: int = 1, under_way: int = 1):
    """Return what is seen of a hierarchical all-reduce that hides behind work, cut into buckets.

    Buckets become ready evenly through the window. What crosses is what matters: sums at home are
    taken to be done.

    Parameters
    ----------
    distance, bytes_
        As for :func:`flat_ring_s`; the bytes of all buckets.
    window_s
        Of the work that it hides behind.
    buckets, under_way
        How many, and how many may be on their way at once: of a queue that sends one after the
        other, each waits for the distance.

    Examples
    --------
    >>> far = Distance(0.02, 1e9)
    >>> [round(float(overlapped_s(far, 1e8, 1.0, b, f)), 3) for b, f in ((1, 1), (50, 1), (50, 8))]
    [0.84, 1.82, 0.056]
    """
    at_least_one(buckets, "buckets"), at_least_one(under_way, "under_way")
    k = distance.sites
    carry = distance.carry_s(2 * (k - 1) / k * bytes_ / buckets)
    wait = 2 * (k - 1) * distance.delay_s
    served = np.maximum(carry, (carry + wait) / under_way)
    # The last bucket is ready when the window ends, or waits for all that came before it.
    behind = np.maximum((buckets - 1) * (served - np.divide(window_s, buckets)), 0.0)
    return behind + carry + wait


def break_even_bps(cost_s, most_s, low_bps: float = 1e6, high_bps: float = LARGEST_RATE_BPS):
    """Return the least rate at which a step takes no longer than asked; infinite where none does.

    Parameters
    ----------
    cost_s
        Called with rates, shape of ``most_s``; returns seconds, which must fall with the rate.
    most_s
        Seconds; a number or an array.
    low_bps, high_bps
        Where to look.

    Examples
    --------
    >>> round(float(break_even_bps(lambda rate: 1 + 1e9 / rate, 1.1)) / 1e9, 6)
    10.0
    """
    low, high = (np.full(np.shape(most_s), np.log(bps)) for bps in (low_bps, high_bps))
    never = cost_s(np.exp(high)) > most_s
    for _ in range(60):
        middle = (low + high) / 2
        slow = cost_s(np.exp(middle)) > most_s
        low, high = np.where(slow, middle, low), np.where(slow, high, middle)
    return np.where(never, np.inf, np.exp(high))


def at_least_one(value: int, name: str) -> int:
    """Return a number, or refuse it by its name."""
    if value < 1:
        raise SitesError(f"{name} must be at least 1, not {value}")
    return value
