"""What the line between two sites carries, from plain Python: one TCP stream, no rate held."""

import statistics

from harness import row
from tokenlife import lab

BYTES = 1 << 27
REACH_BPS = 5e8


def stream(here, bytes_):
    """Send bytes from the first rank to the last; seconds that the receiver saw."""
    import socket
    import time

    here.together(0.1)
    if here.rank:
        with socket.create_server(("0.0.0.0", 9400)) as port:
            here.together(0.1)
            with port.accept()[0] as line:
                start, left = time.monotonic(), bytes_
                while left:
                    left -= len(line.recv(1 << 18))
                return time.monotonic() - start
    here.together(0.1)
    with socket.create_connection(("10.77.0.2", 9400)) as line:
        for _ in range(bytes_ >> 17):
            line.sendall(bytes(1 << 17))
    return 0.0


def main() -> None:
    """Time the stream over 1 ms, the start of its window included."""
    try:
        with lab.SiteCluster([1, 1], delay_s=1e-3) as cluster, lab.Team(cluster) as team:
            times = [team.call(stream, bytes_=BYTES)[1] for _ in range(5)]
    except lab.LabUnavailable as error:
        print(f"the line between sites: {error}")
        return
    what = f"{BYTES >> 20} MiB over the line between sites"
    row(what, statistics.median(times), BYTES * 8 / REACH_BPS, "500 Mbit/s", "≥ 1")


if __name__ == "__main__":
    main()
