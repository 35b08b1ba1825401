"""Starting ranks in a cluster, giving them jobs, and never waiting for ever.

A :class:`Team` stays up for as many jobs as wanted. When a rank dies or hangs, the others are ended
within the watchdog's time, and the error names the rank and shows the end of its log.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from tokenlife.lab.cluster import LabError, VirtualCluster, wished_place
from tokenlife.lab.job import Job
from tokenlife.lab.mpi import run_mpi
from tokenlife.lab.program import source
from tokenlife.lab.result import Result, assemble
from tokenlife.provenance import machine

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LOG_LINES = 8
START_S = 120.0  # importing PyTorch from a cold disk takes long
GRACE_S = 1.0  # for the true cause of a failure to show


class Team:
    """The ranks of a cluster, running; a context manager.

    Parameters
    ----------
    cluster
        An entered :class:`VirtualCluster`.
    watchdog
        Seconds that one job may take.

    Raises
    ------
    LabError
        If a rank dies, hangs or refuses a job.
    """

    def __init__(self, cluster: VirtualCluster, watchdog: float = 120.0):
        self.cluster, self.watchdog = cluster, watchdog
        self.pids, self._alpha_s = [], None

    def __enter__(self):
        ranks = self.cluster.ranks
        self._folder = tempfile.TemporaryDirectory(prefix="tokenlife-lab-")
        self._logs = [Path(self._folder.name, f"rank{rank}.log") for rank in range(ranks)]
        pairs = [socket.socketpair() for _ in range(ranks)]
        inside = [theirs.fileno() for _, theirs in pairs]
        one = dict.fromkeys(THREADS, "1")
        library = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH")]))
        with Path(self._folder.name, "start.log").open("w") as log:
            self._process = subprocess.Popen(
                self.cluster.inside([sys.executable, "-m", "tokenlife.lab.worker"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=inside,
                start_new_session=True,
                env={**os.environ, **one, "PYTHONPATH": path},
            )
        for _, theirs in pairs:
            theirs.close()
        wishes = {
            "ranks": ranks,
            "lines": inside,
            "logs": [str(log) for log in self._logs],
            "spaces": [self.cluster.space(rank) for rank in range(ranks)],
            "addresses": self.cluster.addresses,
            "interface": self.cluster.interface,
            "delay": self.cluster.delay,
            "refill": self.cluster.refill_s,
            "watchdog": self.watchdog,
        }
        self._process.stdin.write(json.dumps(wishes).encode() + b"\n")
        self._process.stdin.flush()
        self._lines = [ours for ours, _ in pairs]
        self._rest = [b""] * ranks
        try:
            (port,) = self._hear([0])
            for rank in range(1, ranks):
                self._tell(rank, port)
            self.pids = [answer["ready"] for answer in self._hear(range(ranks))]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for line in self._lines:
            line.close()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def run(self, jobs: Job | Sequence[Job]) -> list[Result]:
        """Run jobs one after another.

        Raises
        ------
        LabError
            If a job is refused, a result is wrong, or a rank dies or hangs.
        """
        jobs = [jobs] if isinstance(jobs, Job) else jobs
        if self.cluster.rate and self._alpha_s is None:
            self._alpha_s = self._measure_alpha()
        about = machine()
        return [assemble(job, self.cluster, self.raw(job), self._alpha_s, about) for job in jobs]

    def raw(self, job: Job) -> list[dict]:
        """Run one job; return what each rank found."""
        job.schedule(self.cluster.ranks)  # what is wrong with it is better said here
        if job.engine == "mpi":
            raise LabError("MPI starts its own ranks, on loopback: use tokenlife.lab.run")
        return self._ask({"job": asdict(job)})

    def call(self, function: Callable, **arguments) -> list:
        """Run a function of one's own on every rank; return what each returned.

        Parameters
        ----------
        function
            Its first argument is a :class:`~tokenlife.lab.program.Rank`. Its text is sent: it must
            import what it uses, and return what JSON can hold.
        arguments
            Its others, plain values, the same for all ranks.
        """
        return self._ask({"program": source(function), "arguments": arguments})

    def _ask(self, what: dict) -> list:
        for rank in range(self.cluster.ranks):
            self._tell(rank, what)
        found = [answer["done"] for answer in self._hear(range(self.cluster.ranks))]
        for answer in found:
            if "refused" in answer:
                raise LabError(answer["refused"])
        return [answer["found"] for answer in found]

    def _measure_alpha(self) -> float:
        """Time of one message with next to nothing in it.

        Of a ring all-gather of an item each: a notice that the receiver is ready, then the rounds.
        The lower quartile of several: much of what a busy machine adds is not the network's.
        """
        ranks = self.cluster.ranks
        if ranks == 1:
            return 0.0
        job = Job("all_gather", 4 * ranks, "ring", repeats=15, warmup=3)
        tiny = assemble(job, self.cluster, self.raw(job), 0.0, {})
        return sorted(tiny.measured.times)[len(tiny.measured.times) // 4] / ranks

    def _tell(self, rank: int, what: dict) -> None:
        try:
            self._lines[rank].sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            self._blame([rank])

    def _hear(self, ranks: Sequence[int]) -> list[dict]:
        """Wait for one line from each of these ranks."""
        limit = self.watchdog if self.pids else max(self.watchdog, START_S)
        answers, deadline = {}, time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(self._lines[rank], selectors.EVENT_READ, rank)
            while len(answers) < len(ranks):
                events = selector.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    self._blame([rank for rank in ranks if rank not in answers])
                for key, _ in events:
                    rank = key.data
                    data = self._lines[rank].recv(1 << 16)
                    self._rest[rank] += data
                    line, newline, rest = self._rest[rank].partition(b"\n")
                    if not data:
                        self._blame([rank])
                    if newline:
                        self._rest[rank] = rest
                        answers[rank] = json.loads(line)
                        selector.unregister(self._lines[rank])
                        if "failed" in answers[rank].get("done", {}):
                            self._blame([rank], answers[rank]["done"]["failed"])
        return [answers[rank] for rank in ranks]

    def _blame(self, suspects: list[int], words: str = "") -> None:
        """Find out which rank was first, end all, and say so.

        When one rank dies, the others fail too, because it is gone, and may be heard first.
        """
        time.sleep(GRACE_S)
        stopped = [r for r, pid in enumerate(self.pids) if _state(pid) == "T"]
        self._process.kill()
        out, _ = self._process.communicate()
        deaths = [json.loads(line) for line in out.splitlines()]
        if deaths:
            # A signal is a cause; an exit may be a consequence.
            first = min(deaths, key=lambda death: death["status"] >= 0)
            status = first["status"]
            rank = first["rank"]
            how = f"died of signal {-status}" if status < 0 else f"ended with status {status}"
        elif stopped:
            rank, how = stopped[0], f"is stopped, and gave no sign for {self.watchdog:g} s"
        elif words:
            rank, how = suspects[0], f"failed: {words}"
        else:
            rank, how = suspects[0], f"gave no sign for {self.watchdog:g} s"
        log = (
            self._logs[rank] if self._logs[rank].exists() else self._logs[0].with_name("start.log")
        )
        tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        raise LabError(
            "\n  ".join([f"rank {rank} {how}; the others were ended. Its log ends:", *tail])
        )


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def run(
    jobs: Job | Sequence[Job],
    ranks: int = 4,
    rate: float | None = None,
    delay: float | None = None,
    mtu: int = 1500,
    offload: bool = False,
    watchdog: float = 120.0,
) -> list[Result]:
    """Open a cluster, run jobs in it, close it.

    Parameters
    ----------
    jobs
        One or several; each brings its engine.
    ranks, rate, delay, mtu, offload
        As for :class:`VirtualCluster`.
    watchdog
        Seconds that one job may take.

    Returns
    -------
    list of Result
        One for each job, in order.

    Examples
    --------
    >>> run(Job("all_reduce", 4 << 20), ranks=4)[0].measured.time_s      # doctest: +SKIP
    0.0134
    """
    jobs = [jobs] if isinstance(jobs, Job) else list(jobs)
    cluster = VirtualCluster(ranks, rate, delay, mtu, offload)
    done = {}
    if any(job.engine == "mpi" for job in jobs):
        wished_place()
        if rate or delay:
            raise LabError("MPI runs on loopback here, which holds no rate and no delay")
        home, about = VirtualCluster(ranks).on_loopback(), machine()
        for index, job in enumerate(jobs):
            if job.engine == "mpi":
                found = run_mpi(job, ranks, watchdog)
                done[index] = assemble(job, home, found, None, about)
    rest = [index for index in range(len(jobs)) if index not in done]
    if rest:
        with cluster, Team(cluster, watchdog) as team:
            done |= zip(rest, team.run([jobs[index] for index in rest]), strict=True)
    return [done[index] for index in range(len(jobs))]
