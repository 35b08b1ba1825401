"""Two levels: inside a node over fast links, between nodes over slow ones.

An all-reduce first reduce-scatters inside each node; then ranks of equal place in their nodes (a
*rail*) all-reduce their share, 1/node of the buffer, between the nodes; then each node all-gathers.
The slow links carry 2(n/node − 1)/n of the buffer for each rank. Here all three steps are rings.

An all-to-all crosses between nodes only along rails, with node times fewer and larger messages. Who
changes the rail? With PXN [1]_ the sending node: blocks go first, inside the node, to the rank on
the rail of their destination. The other way round the receiving node spreads what came.

References
----------
.. [1] K. Mandakolathur, S. Jeaugey, "Doubling all2all performance with NVIDIA Collective
   Communication Library 2.12", NVIDIA technical blog, 2022.
"""

import numpy as np

from tokenlife.collectives.compose import GATHERS, registered
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms, all_but_own
from tokenlife.collectives.torus import torus_all_gather

_BLUE = "M. Cho, U. Finkler, D. Kung, H. Hunter, BlueConnect, SysML 2019"
_PXN = "K. Mandakolathur, S. Jeaugey, NVIDIA technical blog, 2022"


def _rounds(ranks, node: int):
    return ranks // node + node - 2


def _two_leg_terms(ranks, bytes_, node: int) -> Terms:
    return Terms(_rounds(ranks, node), (2 - 1 / node - node / ranks) * bytes_)


_NODES = {
    "supports": lambda ranks, node: ranks % node == 0,
    "counts": "a multiple of the ranks in a `node`",
}


@registered(GATHERS, "hierarchical", all_but_own(_rounds), _BLUE, **_NODES)
def hierarchical_all_gather(ranks: int, node: int = 8) -> Schedule:
    """Build the hierarchical all-gather: rings along each rail, then inside each node.

    It is that of a torus whose neighbours are the nodes of a rail, with ranks and blocks renamed.

    Parameters
    ----------
    ranks, node
        Ranks in all, and in one node; rank r sits in node r // ``node``.
    """
    nodes = ranks // node
    inner = torus_all_gather((nodes, node))
    name = np.arange(ranks).reshape(nodes, node).T.ravel()

    def renamed(index: int) -> Round:
        src, dst, block, _ = inner.rounds[index].single_chunks()
        return Round.columns(name[src], name[dst], name[block], reduce=False)

    rounds = LazyRounds(len(inner.rounds), renamed)
    return inner.renamed(algorithm="hierarchical", rounds=rounds)


@registered("all_to_all", "hierarchical", _two_leg_terms, _PXN, **_NODES)
def hierarchical_all_to_all(ranks: int, node: int = 8) -> Schedule:
    """Build the hierarchical all-to-all: along the rail to the node, then to the rank in it."""
    return _two_legs("hierarchical", ranks, node, between_first=True)


@registered("all_to_all", "pxn", _two_leg_terms, _PXN, **_NODES)
def pxn_all_to_all(ranks: int, node: int = 8) -> Schedule:
    """Build the PXN all-to-all: inside the node to the receiver's rail, then along it."""
    return _two_legs("pxn", ranks, node, between_first=False)


def _two_legs(name: str, ranks: int, node: int, *, between_first: bool) -> Schedule:
    nodes = ranks // node
    source, target = (side.ravel() for side in np.indices((ranks, ranks)))
    here, place, there, rail = source // node, source % node, target // node, target % node
    # After the first leg a block is in its node but on the rail it came from, or the reverse.
    middle = there * node + place if between_first else here * node + rail
    legs = [((there - here) % nodes, nodes), ((rail - place) % node, node)]
    rounds = []
    for src, dst, (far, most) in zip(
        (source, middle), (middle, target), legs[:: 1 if between_first else -1], strict=True
    ):
        for step in range(1, most):
            on = np.flatnonzero(far == step)
            rounds.append(Round.columns(src[on], dst[on], on, reduce=False))
    return Schedule("all_to_all", name, ranks, ranks, tuple(rounds))
