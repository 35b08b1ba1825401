"""One rank of the lab: meets the others, runs the jobs it is sent, reports times and counters.

Importing PyTorch costs seconds, so the lab does it once: this program imports it, forks one process
for each rank, and each of them moves into its network namespace. The ranks then read jobs, a JSON
line each, until their standard input ends; they end with it, whatever they are doing.

Under ``torchrun`` (``torchrun … -m tokenlife.lab.worker jobs.json out.json``) each rank is started
for itself, on one host or many, and rank 0 writes the results.
"""

import datetime
import json
import multiprocessing
import os
import shutil
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from tokenlife.errors import TokenlifeError
from tokenlife.lab import engines
from tokenlife.lab.job import Job
from tokenlife.lab.measure import measure
from tokenlife.lab.namespace import at_end_of_input, die_with_parent, join
from tokenlife.lab.program import Rank, run_source

LOG_WIDTH = 400


class SharedClock:
    """A moment that processes of one machine agree on, without a word on the network.

    Made before the ranks are forked.
    """

    def __init__(self, ranks: int, watchdog: float):
        fork = multiprocessing.get_context("fork")
        self.moments, self.meeting = fork.Array("d", ranks), fork.Barrier(ranks, timeout=watchdog)

    def of(self, rank: int):
        """Return what :func:`~tokenlife.lab.measure.measure` calls ``agree``, for one rank."""

        def agree(seconds: float) -> float:
            self.moments[rank] = time.monotonic() + seconds
            self.meeting.wait()
            moment = max(self.moments)
            self.meeting.wait()
            return moment

        return agree


def agree_by_network(seconds: float) -> float:
    """Wait for all; a moment on this rank's own clock."""
    dist.barrier()
    return time.monotonic() + seconds


def _perform(line: dict, where: dict, agree) -> dict:
    """Run a job or a program; turn whatever goes wrong into words."""
    try:
        if "program" in line:
            found = run_source(line["program"], line["arguments"], Rank(where, agree))
            json.dumps(found)  # what it cannot hold is the program's fault, not this rank's death
            return {"found": found}
        job = Job(**line["job"])
        prepared = getattr(engines, job.engine)(job, where["rank"], where["ranks"])
        return {"found": measure(job, prepared, agree, where)}
    except TokenlifeError as error:
        return {"refused": str(error)}
    except Exception:
        traceback.print_exc()
        return {"failed": traceback.format_exc().strip().splitlines()[-1]}


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.device_count() > 1 else "gloo"


def rank_main(rank: int, wishes: dict, clock: SharedClock) -> None:
    """Be one rank of the lab; standard input and output are its line to the launcher."""
    die_with_parent()
    if wishes["spaces"][rank]:
        join(wishes["spaces"][rank])
    at_end_of_input(lambda: os._exit(1))  # even in the middle of a collective
    os.environ["GLOO_SOCKET_IFNAME"] = wishes["interface"]
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print belongs to the log

    def say(**what):
        print(json.dumps(what), file=lines[1], flush=True)

    limit = datetime.timedelta(seconds=wishes["watchdog"])
    address = wishes["addresses"][0]
    if rank == 0:
        store = dist.TCPStore(address, 0, wishes["ranks"], True, limit, False)
        say(port=store.port)
    else:
        port = json.loads(lines[0].readline())["port"]
        store = dist.TCPStore(address, port, wishes["ranks"], False, limit)
    dist.init_process_group(
        _backend(), store=store, rank=rank, world_size=wishes["ranks"], timeout=limit
    )
    where = {"rank": rank, "port": store.port, **wishes}
    say(ready=os.getpid())
    for line in lines[0]:
        print(f"rank {rank}: {line.strip()[:LOG_WIDTH]}", file=sys.stderr, flush=True)
        say(done=_perform(json.loads(line), where, clock.of(rank)))


def lab_main() -> None:
    """Fork the ranks, each onto its end of a pair of sockets, and wait for them."""
    wishes = json.loads(sys.stdin.readline())
    children, clock = {}, SharedClock(wishes["ranks"], wishes["watchdog"])
    for rank, (line, log) in enumerate(zip(wishes["lines"], wishes["logs"], strict=True)):
        pid = os.fork()
        if pid == 0:
            for target in (0, 1):
                os.dup2(line, target)
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
            for other in wishes["lines"]:
                os.close(other)
            code = 1
            try:
                rank_main(rank, wishes, clock)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children[pid] = rank
    for line in wishes["lines"]:
        os.close(line)

    def end() -> None:
        shutil.rmtree(Path(wishes["logs"][0]).parent, ignore_errors=True)
        os._exit(1)

    at_end_of_input(end)
    while children:
        pid, status = os.wait()
        rank = children.pop(pid)
        print(json.dumps({"rank": rank, "status": os.waitstatus_to_exitcode(status)}), flush=True)


def torchrun_main(jobs: str, out: str) -> None:
    """Run the jobs of a file, a list of objects, among the ranks that ``torchrun`` started."""
    dist.init_process_group(_backend())
    rank, ranks = dist.get_rank(), dist.get_world_size()
    where = {"rank": rank, "ranks": ranks, "interface": "", "delay": None, "refill": 0.0}
    where["port"] = int(os.environ["MASTER_PORT"])
    results = []
    for line in json.loads(Path(jobs).read_text()):
        found = [None] * ranks
        dist.all_gather_object(found, _perform({"job": line}, where, agree_by_network))
        results.append({"job": line, "ranks": [answer.get("found", answer) for answer in found]})
    if rank == 0:
        Path(out).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ and len(sys.argv) == 3:
        torchrun_main(*sys.argv[1:])
    else:
        lab_main()
