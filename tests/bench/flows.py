"""Flow simulations of 16,384 hosts on a 3-tier fat tree, each beside the time that it may take."""

import numpy as np
from harness import row, seconds
from tokenlife.collectives import ring_all_reduce
from tokenlife.network import route, simulate, simulate_flows
from tokenlife.network.fabrics import fat_tree

HOSTS, RATE_BPS, BYTES, BOUND_S = 16_384, 400e9, 1 << 20, 10.0


def main() -> None:
    """Time a ring all-reduce, and one round in which everybody sends to somebody."""
    fabric = fat_tree(HOSTS, RATE_BPS)
    ring_s = seconds(lambda: simulate(ring_all_reduce(HOSTS), BYTES, 4, fabric, hop_s=1e-6))
    row(f"ring all-reduce of {HOSTS:,} ranks, simulated", ring_s, BOUND_S, "10 s", "≥ 1.0×")
    turn = np.random.default_rng(0).permutation(HOSTS)
    to = np.empty(HOSTS, int)
    to[turn] = np.roll(turn, 1)  # one circle, so that nobody sends to itself

    def one_round():
        simulate_flows(fabric, route(fabric, np.arange(HOSTS), to), np.full(HOSTS, 1e6))

    row(f"{HOSTS:,} random flows, simulated", seconds(one_round), BOUND_S, "10 s", "≥ 1.0×")


if __name__ == "__main__":
    main()
