"""Flows as a connection matrix, the text that the packet simulator htsim reads.

A line is a flow: its hosts, a number from 1, its start, its bytes. Starts are written in
picoseconds, the simulator's own unit of time. They are what the flow model found: that a message
waits for another one is left out, and the simulator sees the times, not the reasons.
"""

import numpy as np

from tokenlife.errors import TokenlifeError


def htsim_text(hosts: int, src, dst, bytes_, start_s=0.0) -> str:
    """Write flows as a connection matrix.

    Parameters
    ----------
    hosts
        Of the network.
    src, dst, bytes_, start_s
        Of each flow; shape (flows,).

    Examples
    --------
    >>> print(htsim_text(4, [0, 1], [2, 3], [1000, 2000], [0, 1e-6]))
    Nodes 4
    Connections 2
    0->2 id 1 start 0 size 1000
    1->3 id 2 start 1000000 size 2000
    """
    columns = [np.asarray(c).tolist() for c in np.broadcast_arrays(src, dst, bytes_, start_s)]
    lines = [f"Nodes {hosts}", f"Connections {len(columns[0])}"]
    for number, (a, b, size, start) in enumerate(zip(*columns, strict=True), 1):
        if not (0 <= a < hosts and 0 <= b < hosts) or a == b or size < 1 or start < 0:
            raise TokenlifeError(f"flow {number} is no flow of {hosts} hosts: {a}->{b}, {size} B")
        lines.append(f"{a}->{b} id {number} start {round(start * 1e12)} size {int(size)}")
    return "\n".join(lines)
