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

from tokenlife.collectives.compose import GATHERS, family
from tokenlife.collectives.registry import Algorithm, register
from tokenlife.collectives.schedule import LazyRounds, Round, Schedule
from tokenlife.collectives.terms import Terms
from tokenlife.collectives.torus import torus_all_gather

_BLUE = "M. Cho, U. Finkler, D. Kung, H. Hunter, BlueConnect, SysML 2019"
_PXN = "K. Mandakolathur, S. Jeaugey, NVIDIA technical blog, 2022"


def hierarchical_all_gather(ranks: int, node: int = 8) -> Schedule:
    """Build the all-gather by rings along each rail, then inside each node.

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


def hierarchical_all_to_all(ranks: int, node: int = 8) -> Schedule:
    """Build the all-to-all that crosses to the node first, then goes to the rank inside it."""
    return _two_legs("hierarchical", ranks, node, between_first=True)


def pxn_all_to_all(ranks: int, node: int = 8) -> Schedule:
    """Build the all-to-all that changes to the rail of its destination before it crosses."""
    return _two_legs("pxn", ranks, node, between_first=False)


def _two_legs(name: str, ranks: int, node: int, *, between_first: bool) -> Schedule:
    nodes = ranks // node
    source, target = (side.ravel() for side in np.indices((ranks, ranks)))
    here, place, there, rail = source // node, source % node, target // node, target % node
    # After the first leg a block is in its node but on the rail it came from, or the reverse.
    middle = there * node + place if between_first else here * node + rail
    across, inside = (there - here) % nodes, (rail - place) % node
    rounds = []
    for between in (between_first, not between_first):
        src, dst = (source, middle) if between == between_first else (middle, target)
        far = across if between else inside
        for step in range(1, nodes if between else node):
            on = np.flatnonzero(far == step)
            rounds.append(Round.columns(src[on], dst[on], on, reduce=False))
    return Schedule("all_to_all", name, ranks, ranks, tuple(rounds))


def _gather_terms(ranks, bytes_, node: int = 8) -> Terms:
    return Terms(ranks // node - 1 + node - 1, (ranks - 1) / ranks * bytes_)


def _two_leg_terms(ranks, bytes_, node: int = 8) -> Terms:
    legs = (node - 1) / node + (ranks // node - 1) / (ranks // node)
    return Terms(ranks // node - 1 + node - 1, legs * bytes_)


_NODES = {
    "supports": lambda ranks, node: ranks % node == 0,
    "counts": "a multiple of the ranks in a `node`",
    "options": {"node": 8},
}

family(
    GATHERS,
    "hierarchical",
    hierarchical_all_gather,
    _gather_terms,
    "each rank crosses between nodes with its share only; the rest stays on fast links",
    _BLUE,
    **_NODES,
)
register(
    Algorithm(
        "all_to_all",
        "hierarchical",
        hierarchical_all_to_all,
        _two_leg_terms,
        "along the rail to the node of the receiver, which spreads what came",
        _PXN,
        **_NODES,
    ),
    Algorithm(
        "all_to_all",
        "pxn",
        pxn_all_to_all,
        _two_leg_terms,
        "inside the node to the rail of the receiver, then one message per node along it",
        _PXN,
        **_NODES,
    ),
)
