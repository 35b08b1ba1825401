"""Several data centres on one machine: clusters joined by lines with distance, rate and loss.

The ranks of a site are joined by a bridge of the kernel, as in any
:class:`~tokenlife.lab.cluster.VirtualCluster`; between each pair of sites lies a line in either
direction (:mod:`tokenlife.lab.wan_line`), which all ranks of the two sites share. Everybody can
reach everybody: the sites are one network for the ranks.

Left out: routers, and traffic of others on the line. There is no such lab on loopback.
"""

import json
import sys
import threading
from pathlib import Path

import numpy as np

from tokenlife.lab.cluster import (
    MODE,
    LabError,
    LabUnavailable,
    VirtualCluster,
    _start,
    wished_place,
)

LARGEST_QUEUE = 1 << 30
SMALLEST_QUEUE_FRAMES = 64
# Buffers that a long line cannot outgrow.
_SETTINGS = {"ipv4/tcp_wmem": "4096 4194304 33554432"}
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r}); "
    "from tokenlife.lab.wan_line import main; main()"
)


class SiteCluster(VirtualCluster):
    """Ranks at several sites; a context manager.

    Ranks are numbered site by site. What is said of the line holds for each direction of each pair
    of sites: one number for all, or a table by site it leaves and site it goes to.

    Parameters
    ----------
    sites
        Ranks of each, two sites or more.
    delay_s
        One way, seconds.
    rate_bps
        Of Ethernet frames without preamble and frame check; None for as fast as the machine is.
    inside_bps
        Of each rank's link; None likewise.
    jitter_s
        Most that is added to the delay; it wanders between nothing and this, and keeps the order.
    loss
        Share of frames lost, below 1.
    burst
        Mean number of frames lost in a row; None for losses that do not depend on each other.
    back_delay_s, back_rate_bps
        From a higher site to a lower, where it differs.
    queue_bytes
        In front of a line with a rate; None for what fills the line for a round trip.
    seed
        Of losses and jitter.
    mtu
        Largest IP packet, bytes.
    congestion
        TCP's congestion control, for all that the ranks open: ``cubic``, ``reno``, ``bbr``, or what
        else the kernel has.

    Raises
    ------
    LabError
        If the wishes cannot be.
    LabUnavailable
        On entering, where the kernel refuses namespaces, or the lab is switched off.

    Examples
    --------
    >>> with SiteCluster([2, 2], delay_s=0.02, rate_bps=1e8) as cluster:      # doctest: +SKIP
    ...     cluster.site_of
    [0, 0, 1, 1]
    """

    def __init__(
        self,
        sites,
        delay_s,
        rate_bps=None,
        inside_bps=None,
        jitter_s=0.0,
        loss=0.0,
        burst=None,
        back_delay_s=None,
        back_rate_bps=None,
        queue_bytes=None,
        seed=0,
        mtu=1500,
        congestion="cubic",
    ):
        sites = list(sites) if isinstance(sites, (list, tuple)) else [sites]
        if len(sites) < 2 or not all(isinstance(n, int) and n > 0 for n in sites):
            raise LabError(f"sites must be ranks of each, two sites or more, not {sites}")
        self.sites, self._asking = sites, threading.Lock()
        self.site_of = [site for site, ranks in enumerate(sites) for _ in range(ranks)]
        self.mtu, self.congestion = mtu, congestion
        wan = {
            "delay_s": delay_s, "rate_bps": rate_bps, "jitter_s": jitter_s, "loss": loss,
            "burst": burst, "back_delay_s": back_delay_s, "back_rate_bps": back_rate_bps,
            "queue_bytes": queue_bytes, "seed": seed,
        }  # fmt: skip
        self._wan, self.ways = wan, self._ways(**wan)
        super().__init__(sum(sites), inside_bps, self._longest_s(), mtu)

    def _longest_s(self) -> float:
        return max(way["delay_s"] + way["jitter_s"] for row in self.ways for way in row if way)

    def _table(self, name, value, back=None) -> np.ndarray:
        """Spread a value over the pairs of sites."""
        n = len(self.sites)
        if back is not None and np.ndim(value):
            raise LabError(f"{name} is a table already: leave back_{name} out")
        if np.ndim(value) and np.shape(value) != (n, n):
            raise LabError(
                f"{name} must be one number, or {n} rows of {n} for {n} sites, not of shape "
                f"{np.shape(value)}"
            )
        table = np.array(np.broadcast_to(np.array(value, object), (n, n)))
        if back is not None:
            table[np.tril_indices(n, -1)] = back
        return table

    def _ways(self, back_delay_s, back_rate_bps, seed, **wan) -> list[list[dict | None]]:
        backs = {"delay_s": back_delay_s, "rate_bps": back_rate_bps}
        tables = {n: self._table(n, value, backs.get(n)) for n, value in wan.items()}
        pairs, n = [], len(self.sites)
        for a in range(n):
            row = [{m: t[a, b] for m, t in tables.items()} if a != b else None for b in range(n)]
            pairs.append(row)
        for a, b in zip(*np.triu_indices(n, 1), strict=True):
            for way, other in ((pairs[a][b], pairs[b][a]), (pairs[b][a], pairs[a][b])):
                _check(way)
                rate_bps = way["rate_bps"] or 0.0
                if way["queue_bytes"] is None:
                    around = int(rate_bps / 8 * (way["delay_s"] + other["delay_s"]))
                    way["queue_bytes"] = max(around, SMALLEST_QUEUE_FRAMES * (self.mtu + 14))
                elif not self.mtu + 14 <= way["queue_bytes"] <= LARGEST_QUEUE:
                    raise LabError(
                        f"a queue holds one frame to 1 GiB: {self.mtu + 14} to {LARGEST_QUEUE} "
                        f"bytes, not {way['queue_bytes']}"
                    )
            pairs[a][b]["seed"], pairs[b][a]["seed"] = f"{seed} {a} {b}", f"{seed} {b} {a}"
        return pairs

    def __enter__(self):
        try:
            refused = f"{MODE}=loopback" if wished_place() else self._open()
        except BaseException:
            self.__exit__()
            raise
        if refused:
            self.__exit__()
            raise LabUnavailable(
                f"no network namespaces ({refused}): distance between sites cannot be had over "
                "loopback, read recorded results instead"
            )
        self.place, self.interface, self.addresses = "namespaces", "eth0", self._addresses()
        return self

    def _open(self) -> str:
        known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
        if self.congestion not in known:
            raise LabError(f"this kernel has no {self.congestion}; there are {', '.join(known)}")
        delay, self.delay = self.delay, None  # with a bridge, and without the line of one delay
        try:
            refused = super()._open()
        finally:
            self.delay = delay
        if refused:
            return refused
        ranks = iter(range(self.ranks))
        wishes = {
            "sites": [[next(ranks) for _ in range(n)] for n in self.sites],
            "macs": [f"02:00:00:00:00:{rank + 1:02x}" for rank in range(self.ranks)],
            "mtu": self.mtu,
            "ways": self.ways,
            "spaces": [self.space(rank) for rank in range(self.ranks)],
            "addresses": self._addresses(),
            "settings": _SETTINGS,
            "congestion": self.congestion,
        }
        self._line = _start(self.inside([sys.executable, "-c", _PROGRAM]), wishes)
        if self._line.stdout.readline() != "ready\n":
            raise LabError("the line between the sites did not start; its last words are above")
        return ""

    def _tell(self, **command) -> dict:
        if self._line is None:
            raise LabError("the sites are not joined yet, or no longer: enter the cluster first")
        with self._asking:
            self._line.stdin.write(json.dumps(command) + "\n")
            self._line.stdin.flush()
            answer = self._line.stdout.readline()
        if not answer:
            raise LabError("the line between the sites has ended; its last words are above")
        return json.loads(answer)

    def _site(self, site: int) -> int:
        if site not in range(len(self.sites)):
            raise LabError(f"there is no site {site}: they are 0 to {len(self.sites) - 1}")
        return site

    def cut(self, site: int) -> None:
        """Cut a site off from all others, at once; what is under way is lost.

        From another thread, it may be called while a function runs on the ranks.
        """
        self._tell(cut=self._site(site))

    def mend(self, site: int) -> None:
        """Join a site again."""
        self._tell(mend=self._site(site))

    def change(self, **wan) -> None:
        """Make the lines others than they were, while the ranks stay.

        Parameters
        ----------
        wan
            As in the constructor: ``delay_s``, ``rate_bps``, ``loss``, …; the rest stays as it was.
        """
        if unknown := set(wan) - set(self._wan):
            raise LabError(f"no property {', '.join(sorted(unknown))}; take {', '.join(self._wan)}")
        ways = self._ways(**(self._wan | wan))
        self._wan, self.ways = self._wan | wan, ways
        self.delay = self._longest_s()
        self._tell(ways=ways)

    def counts(self) -> list[dict]:
        """Return what became of the frames, for each direction of each pair so far.

        Returns
        -------
        list of dict
            ``from`` and ``to``, sites; frames ``carried``, ``lost``, ``overflowed``, ``cut``,
            ``refused`` (by the kernel); ``bytes`` carried, Ethernet headers included; ``missed``:
            frames of the site it leaves, for anywhere, that came faster than this machine reads.
        """
        answer = self._tell(counts=True)
        return [row | {"missed": answer["missed"][row["from"]]} for row in answer["counts"]]


def _check(way: dict) -> None:
    """Refuse a line that cannot be."""
    delay_s, jitter_s, loss, burst = (way[n] for n in ("delay_s", "jitter_s", "loss", "burst"))
    if not 0 < delay_s <= 10:
        raise LabError(f"a delay must be above 0 and at most 10 seconds, not {delay_s:g}")
    if way["rate_bps"] is not None and not 1e4 <= way["rate_bps"] <= 1e11:
        raise LabError(
            f"a line holds a rate of 10 kbit/s to 100 Gbit/s, or None, not {way['rate_bps']:g}"
        )
    if not 0 <= jitter_s <= 1:
        raise LabError(f"jitter must be 0 to 1 second, not {jitter_s:g}")
    if not 0 <= loss < 1:
        raise LabError(f"loss must be at least 0 and below 1, not {loss:g}")
    if burst is not None and not max(1.0, loss / (1 - loss)) <= burst:
        raise LabError(
            f"a burst is at least 1 frame, and at least loss / (1 - loss), not {burst:g}"
        )
