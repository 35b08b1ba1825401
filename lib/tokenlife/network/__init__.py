"""Messages as flows over the links of a topology."""

from tokenlife.network.flows import Flow, place
from tokenlife.network.topology import Topology, TopologyError, single_switch

__all__ = ["Flow", "Topology", "TopologyError", "place", "single_switch"]
