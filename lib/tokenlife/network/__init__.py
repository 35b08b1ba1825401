"""Messages as flows over the links of a topology: routed, sharing links fairly, in time."""

from tokenlife.network.fabrics import FABRICS, parse_topology
from tokenlife.network.fairshare import max_min
from tokenlife.network.flows import Flow, place
from tokenlife.network.routing import Routes, route
from tokenlife.network.simulate import Outcome, simulate, simulate_flows
from tokenlife.network.topology import Topology, TopologyError, single_switch

__all__ = [
    "FABRICS",
    "Flow",
    "Outcome",
    "Routes",
    "Topology",
    "TopologyError",
    "max_min",
    "parse_topology",
    "place",
    "route",
    "simulate",
    "simulate_flows",
    "single_switch",
]
