"""What a run of the lab measured, beside what the schedule and the link say it should.

The model: a round lasts as long as the busiest end of a link takes at its rate, frames, headers and
acknowledgements included; between rounds there is a pause of α, measured in the same session, that
a token bucket makes up for as far as it can. Before the first, a notice has to come that the
receiver is ready; later ones come in time. An acknowledgement leaves for every second segment.

Left out: rounds that overlap, adding, and the processors that the ranks share. Without a held rate
there is no modelled time: fit one (:mod:`tokenlife.lab.fit`).
"""

from dataclasses import asdict, dataclass

import numpy as np

from tokenlife.collectives.schedule import Schedule
from tokenlife.lab.cluster import LabError
from tokenlife.lab.job import ITEM_BYTES, Job, segments
from tokenlife.wire import tcp_over_ethernet
from tokenlife.wire.framing import FRAME_CHECK

GLOO_HEADER = 48  # bytes: of each message, and of each notice that an end of it is ready


@dataclass(frozen=True)
class Figures:
    """Measured or modelled figures of one collective.

    Attributes
    ----------
    bytes_sent_per_rank
        Payload that each rank sends; measured, it holds the library's own headers.
    wire_bytes_per_rank
        Frames that leave each rank's interface, from the Ethernet header to the end of the payload,
        acknowledgements included.
    time_s
        From the start of the last rank to the end of the last; measured, the median; None where
        there is no model.
    times
        All repeats.
    """

    bytes_sent_per_rank: list[int]
    wire_bytes_per_rank: list[int]
    time_s: float | None
    times: list[float]


@dataclass(frozen=True)
class Result:
    """One job done.

    Attributes
    ----------
    job, algorithm
        What was asked, and the schedule it is compared with.
    ranks, place, rate, delay, mtu, offload
        The cluster: ``place`` is ``namespaces``, ``loopback`` or ``hosts``.
    measured, modelled
        :class:`Figures`.
    overheads
        By name, a list with an entry for each rank: ``library`` (payload above the schedule's), for
        our engine ``modelled_library`` and ``modelled_packets``, and what the sockets counted.
    captures
        Counts by name for each rank, as :meth:`~tokenlife.wire.decode.TcpFrames.count`; or empty.
    machine
        As :func:`tokenlife.provenance.machine`.
    """

    job: Job
    algorithm: str
    ranks: int
    place: str
    rate: float | None
    delay: float | None
    mtu: int
    offload: bool
    measured: Figures
    modelled: Figures
    overheads: dict[str, list[int]]
    captures: list[dict[str, int]]
    machine: dict

    @property
    def engine(self) -> str:
        """Who performed it."""
        return self.job.engine

    def to_dict(self) -> dict:
        """Return plain values, for JSON."""
        return {**asdict(self), "engine": self.engine, "label": "measured"}


def traffic(schedule: Schedule, items: int, mtu: int, header: int = 0, parts: int = 1):
    """Frame every message of a schedule.

    Parameters
    ----------
    schedule
        Without switches.
    items
        Of one rank's buffer, float32.
    mtu
        Largest IP packet.
    header
        Bytes that the library puts before each segment; as many go either way first, to say that
        an end is ready.
    parts
        Segments of each message, each a write of its own.

    Returns
    -------
    sent, library, packets, leaving, arriving
        Payload, bytes of the library, data packets, and bytes of all frames in either direction;
        shape (rounds, ranks) each.
    """
    tables = np.zeros((5, len(schedule.rounds), schedule.ranks), np.int64)
    sent, library, packets_out, leaving, arriving = tables
    packets = tcp_over_ethernet(mtu)
    overhead = packets.overhead_per_packet - FRAME_CHECK
    offsets = schedule.chunk_offsets(items) * ITEM_BYTES
    notice = parts * (overhead + header) if header else 0
    for index in range(len(schedule.rounds)):
        for src, dst, size, _ in zip(*schedule.messages(index, offsets), strict=True):
            if size == 0:
                continue
            framing = packets.frame(int(size) // parts + header)
            bytes_ = int(size) + parts * (header + framing.packets * overhead) + notice
            # A frame on a virtual link is not padded to Ethernet's least.
            ack = parts * framing.acknowledgements * overhead
            for table, rank, value in (
                (sent, src, size),
                (library, src, 2 * parts * header),
                (library, dst, parts * header),
                (packets_out, src, parts * (framing.packets + (header > 0))),
                (packets_out, dst, parts * (header > 0)),
                (leaving, src, bytes_),
                (leaving, dst, notice + ack),
                (arriving, dst, bytes_),
                (arriving, src, notice + ack),
            ):
                table[index, rank] += value
    return tables


def _through_bucket(bytes_: np.ndarray, alpha_s: float, rate: float, burst: float) -> float:
    """Return the seconds that rounds of these bytes take through a token bucket, full at first.

    A bucket fills while the link pauses between rounds, up to one burst, and what it holds leaves
    at once: so a pause costs nothing where the link is what everybody waits for.
    """
    tokens, time_s = burst, alpha_s if len(bytes_) else 0.0
    for size in bytes_.tolist():
        wait_s = max(0.0, size - tokens) / (rate / 8)
        time_s += wait_s + alpha_s
        tokens = min(burst, max(0.0, tokens - size) + alpha_s * rate / 8)
    return time_s


def modelled(schedule: Schedule, job: Job, cluster, alpha_s: float | None) -> tuple[Figures, dict]:
    """Return what a schedule should do on a cluster, and our engine's own part by name."""
    ours = job.engine == "ours"
    parts = segments(schedule, schedule.chunk_offsets(job.items)) if ours else 1
    sent, library, packets, leaving, arriving = traffic(
        schedule, job.items, cluster.mtu, ours * GLOO_HEADER, parts
    )
    time_s = None
    if cluster.rate and alpha_s is not None:
        busiest = np.maximum(leaving, arriving).max(axis=1, initial=0)
        time_s = _through_bucket(busiest, alpha_s, cluster.rate, cluster.burst)
    names = {"modelled_library": library, "modelled_packets": packets} if ours else {}
    sums = {name: table.sum(axis=0).tolist() for name, table in names.items()}
    return Figures(sent.sum(axis=0).tolist(), leaving.sum(axis=0).tolist(), time_s, []), sums


def assemble(job: Job, cluster, found: list[dict], alpha_s: float | None, machine: dict) -> Result:
    """Join what the ranks found into a result.

    Raises
    ------
    LabError
        If a rank ended with anything but what the definition of the collective says.
    """
    for rank, answer in enumerate(found):
        if not answer["right"]:
            raise LabError(f"rank {rank} ended {job.kind} ({job.engine}) with wrong values")
    schedule = job.schedule(cluster.ranks)
    figures, names = modelled(schedule, job, cluster, alpha_s)
    sockets = [f["sockets"] for f in found]
    payload = [s["bytes_sent"] - s["bytes_retransmitted"] for s in sockets]
    if cluster.place == "namespaces":
        wire = [f["interface"]["bytes"] for f in found]
    else:  # the loopback interface is everybody's: every segment's headers, by the sockets' count
        overhead = tcp_over_ethernet(cluster.mtu).overhead_per_packet - FRAME_CHECK
        wire = [s["bytes_sent"] + s["segments"] * overhead for s in sockets]
    start, end = (np.array([f[edge] for f in found]) for edge in ("start", "end"))
    # Hosts share no clock: there each rank counts from its own start.
    shared = cluster.place != "hosts"
    times = end.max(axis=0) - start.max(axis=0) if shared else (end - start).max(axis=0)
    return Result(
        job,
        schedule.algorithm,
        cluster.ranks,
        cluster.place,
        cluster.rate,
        cluster.delay,
        cluster.mtu,
        cluster.offload,
        Figures(payload, wire, float(np.median(times)), times.tolist()),
        figures,
        {
            "library": [p - m for p, m in zip(payload, figures.bytes_sent_per_rank, strict=True)],
            **names,
            "retransmitted": [s["bytes_retransmitted"] for s in sockets],
            "data_segments": [s["data_segments"] for s in sockets],
            "acknowledgements": [s["segments"] - s["data_segments"] for s in sockets],
        },
        [f["capture"] for f in found if "capture" in f] if cluster.place == "namespaces" else [],
        machine,
    )
