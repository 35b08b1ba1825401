"""Between data centres: light in fibre, what a window leaves of a rate, TCP over distance."""

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
