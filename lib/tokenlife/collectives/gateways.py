"""An all-reduce over sites, of which one, some or all ranks speak to the other sites.

Each site reduce-scatters inside; the g gateways collect the shares of the ranks around them, one
after another; each gateway all-reduces its 1/g of the buffer with those of equal place at the other
sites; then all goes back the way it came. All steps between ranks of a site and between sites are
rings. Whatever g is, a site sends 2(k − 1)/k of the buffer to other sites, k of them in all, and
waits for 2(k − 1) messages: more gateways share the sending, where a rank's own link is what limits
it, and save the collecting. With all ranks as gateways this is the hierarchical all-reduce.
"""

import numpy as np

from tokenlife.collectives.compose import registered
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms

_BLUE = "M. Cho, U. Finkler, D. Kung, H. Hunter, BlueConnect, SysML 2019"


def _terms(ranks, bytes_, node: int, gateways: int) -> Terms:
    sites, each = ranks // node, node // gateways  # each gateway speaks for so many
    sites_sent = (sites - 1) * each / (node * sites)
    sent = (node - 1) / node + (each - 1) / node + sites_sent
    added = (node - 1) / node + sites_sent
    return Terms(2 * (node + each + sites - 3), 2 * sent * bytes_, added * bytes_)


@registered(
    "all_reduce",
    "gateways",
    _terms,
    _BLUE,
    supports=lambda ranks, node, gateways: ranks % node == 0 and node % gateways == 0,
    counts="a multiple of the ranks in a `node`, which its `gateways` share evenly",
    once=False,
)
def gateways_all_reduce(ranks: int, node: int = 8, gateways: int = 1) -> Schedule:
    """Build the all-reduce by gateways: rings inside a site, and between the sites' gateways.

    Parameters
    ----------
    ranks, node
        Ranks in all, and at one site; rank r sits at site r // ``node``.
    gateways
        Ranks of a site that speak to other sites.

    Examples
    --------
    >>> from tokenlife.collectives.verify import verify
    >>> verify(schedule := gateways_all_reduce(8, node=4, gateways=2))
    >>> sent = schedule.bytes_sent_per_rank(items=64, item_bytes=4)
    >>> sent.tolist()[:4]  # gateways are every second rank; they send, and give back, more
    [576, 448, 576, 448]
    """
    sites, each = ranks // node, node // gateways
    rank = np.arange(ranks)
    site, place = rank // node, rank % node
    # Block p · sites + k is part k of the share that place p of every site collects.
    after = site * node + (place + 1) % node
    gateway = rank[place % each == 0]

    def inside(first: int, reduce: bool) -> LazyRounds:
        def shift(step: int) -> Round:
            share = (place - first - step) % node
            return Round.columns(rank, after, share * sites, reduce=reduce, count=sites)

        return LazyRounds(node - 1, shift)

    def handed(back: bool) -> LazyRounds:
        def one(step: int) -> Round:
            # Back, the last to be heard is the first to hear.
            other = gateway + (each - 1 - step if back else step + 1)
            src, dst = (gateway, other) if back else (other, gateway)
            return Round.columns(src, dst, other % node * sites, reduce=False, count=sites)

        return LazyRounds(each - 1, one)

    def between(first: int, reduce: bool) -> LazyRounds:
        def shift(step: int) -> Round:
            src = np.repeat(gateway, each)
            share = src % node + np.tile(np.arange(each), len(gateway))
            part = (src // node - first - step) % sites
            return Round.columns(src, (src + node) % ranks, share * sites + part, reduce=reduce)

        return LazyRounds(sites - 1, shift)

    rounds = inside(1, True) + handed(False) + between(1, True)
    rounds = rounds + between(0, False) + handed(True) + inside(0, False)
    return Schedule("all_reduce", "gateways", ranks, ranks, rounds)
