"""Between data centres: what distance, loss and few bits a second leave of a job's traffic."""

from tokenlife.wan.link import Link, WanError, distance_km, light, places, routes
from tokenlife.wan.tcp import CONGESTIONS, throughput_bps, transfer_s

__all__ = [
    "CONGESTIONS",
    "Link",
    "WanError",
    "distance_km",
    "light",
    "places",
    "routes",
    "throughput_bps",
    "transfer_s",
]
