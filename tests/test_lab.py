"""The lab: what the ranks really sent, beside the model; and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from chapter import functions
from tokenlife import lab
from tokenlife.catalog import data_dir
from tokenlife.cli import main
from tokenlife.collectives import ScheduleError, algorithms
from tokenlife.lab.cluster import MODE
from tokenlife.lab.gloo import gloo_sends
from tokenlife.wire import TcpFrames, write_pcap

RATE = 100e6
KIB = 1024


@pytest.fixture(scope="session")
def namespaces():
    """Skip where the kernel refuses namespaces, and say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with lab.VirtualCluster(1) as cluster:
                place = cluster.place
        except lab.LabError as error:
            pytest.skip(str(error))
    if place != "namespaces":
        pytest.skip("this kernel refuses network namespaces to this user")


@pytest.fixture(scope="session")
def team(namespaces):
    """Four ranks whose links hold 100 Mbit/s."""
    with lab.VirtualCluster(4, rate=RATE) as cluster, lab.Team(cluster) as team:
        yield team


@pytest.fixture(scope="session")
def home():
    """Four ranks on loopback."""
    if sys.platform != "linux":
        pytest.skip("the lab needs Linux")
    with lab.Team(lab.VirtualCluster(4).on_loopback()) as team:
        yield team


ALL = [a for a in algorithms(ranks=4) if not a.build(4, **a.options).switches]


@pytest.mark.parametrize("algorithm", ALL, ids=lambda a: f"{a.kind}-{a.name}")
def test_every_algorithm_sends_what_its_schedule_says(home, algorithm):
    job = lab.Job(algorithm.kind, 100_004, algorithm.name, repeats=1, warmup=0)
    (result,) = home.run(job)
    measured, modelled = result.measured, result.modelled
    assert result.overheads["library"] == result.overheads["modelled_library"]
    payload = np.array(measured.bytes_sent_per_rank) - result.overheads["library"]
    assert payload.tolist() == modelled.bytes_sent_per_rank
    assert sum(payload) > 0


@pytest.mark.parametrize("engine", ["ours", "gloo"])
@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "all_to_all"])
def test_zero_bytes_are_fine(home, kind, engine):
    (result,) = home.run(lab.Job(kind, 0, engine=engine, repeats=1))
    assert result.modelled.bytes_sent_per_rank == [0] * 4
    assert max(result.measured.bytes_sent_per_rank) <= 4 * 48 * 6  # no more than notices


def test_loopback_is_not_captured(home):
    """Capturing takes rights that only the user of a namespace has, and all ranks pass there."""
    assert home.run(lab.Job("all_reduce", 40, repeats=1, capture=True))[0].captures == []


def test_gloo_reduces_all_to_scatter(home):
    """Its reduce-scatter is an all-reduce underneath: twice the bytes."""
    theirs, ours = (
        home.run(lab.Job("reduce_scatter", 1 << 20, engine=engine, repeats=1))[0]
        for engine in ("gloo", "ours")
    )
    for a, b in zip(
        theirs.measured.bytes_sent_per_rank, ours.measured.bytes_sent_per_rank, strict=True
    ):
        assert a / b == pytest.approx(2, rel=0.005)


def test_a_rooted_collective_starts_where_it_is_told(home):
    job = lab.Job("broadcast", 40_000, "binomial", options={"root": 3}, repeats=1)
    sent = home.run(job)[0].modelled.bytes_sent_per_rank
    assert sent[3] == 80_000


CASES = [
    ("all_reduce", "ring"),
    ("all_reduce", "halving_doubling"),
    ("all_reduce", "recursive_doubling"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("all_to_all", "pairwise"),
    ("broadcast", "binomial"),
]


SIZED = [(*case, 256 * KIB) for case in CASES] + [(*case, 1024 * KIB) for case in CASES[::2]]


@pytest.mark.parametrize(("kind", "algorithm", "bytes_"), SIZED)
def test_bytes_packets_and_time_on_links_that_hold_a_rate(team, kind, algorithm, bytes_):
    (result,) = team.run(lab.Job(kind, bytes_, algorithm, repeats=7, warmup=1, capture=True))
    measured, modelled, names = result.measured, result.modelled, result.overheads
    assert len(result.captures) == 4
    for rank, capture in enumerate(result.captures):
        sent = measured.bytes_sent_per_rank[rank]
        assert capture["dropped"] == 0
        assert capture["payload_bytes"] == sent
        assert sent - names["modelled_library"][rank] == modelled.bytes_sent_per_rank[rank]
        assert capture["frame_bytes"] == measured.wire_bytes_per_rank[rank]
        parts = ("payload_bytes", "retransmitted_bytes", "acknowledgement_bytes", "header_bytes")
        assert sum(capture[part] for part in parts) == capture["frame_bytes"]
        # The notices, small packets each, may travel together or with the data.
        most, notices = names["modelled_packets"][rank], names["modelled_library"][rank] // 48
        assert 0.99 * (most - notices) <= capture["data_packets"] <= 1.01 * most
    acknowledgements = sum(capture["acknowledgements"] for capture in result.captures)
    assert 0 < acknowledgements < sum(names["modelled_packets"])
    # The least: what other processes take from this machine meanwhile is not the network's.
    times = list(measured.times)
    for _ in range(2):
        if min(times) > 1.1 * modelled.time_s:
            times += team.run(lab.Job(kind, bytes_, algorithm, repeats=7))[0].measured.times
    assert min(times) == pytest.approx(modelled.time_s, rel=0.10), times


def test_a_rank_alone_sends_nothing(namespaces):
    (result,) = lab.run(lab.Job("all_reduce", 4000), ranks=1, rate=1e9)
    assert result.measured.bytes_sent_per_rank == [0]
    assert result.modelled.time_s == 0


def test_distance_costs_its_time(namespaces):
    job = lab.Job("all_gather", 12, "ring", repeats=3)
    (result,) = lab.run(job, ranks=3, delay=0.02)
    # The notice that a receiver is ready crosses first; then two rounds.
    assert result.measured.time_s == pytest.approx(3 * 0.02, rel=0.10)


def test_mpi_is_forced_to_an_algorithm():
    pytest.importorskip("mpi4py", exc_type=ImportError)
    jobs = [
        lab.Job("all_reduce", 400_000, name, engine="mpi", repeats=1)
        for name in ("ring", "recursive_doubling")
    ]
    for result in lab.run(jobs, ranks=4):
        assert result.measured.bytes_sent_per_rank == pytest.approx(
            result.modelled.bytes_sent_per_rank, rel=0.005
        )
    assert result.measured.bytes_sent_per_rank[0] > 790_000


def kill_soon(pid: int, number: int) -> None:
    timer = threading.Timer(0.5, os.kill, (pid, number))
    timer.daemon = True
    timer.start()


LONG = lab.Job("all_reduce", 4 << 20, repeats=100)


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "died of signal 9"), (signal.SIGSTOP, "is stopped")]
)
def test_a_rank_that_dies_or_hangs_is_named_and_ends_the_others(namespaces, number, words):
    with (
        lab.VirtualCluster(3, rate=20e6) as cluster,
        lab.Team(cluster, watchdog=3) as team,
    ):
        kill_soon(team.pids[2], number)
        start = time.monotonic()
        with pytest.raises(lab.LabError) as error:
            team.run(LONG)
        assert time.monotonic() - start < 10
        pids = team.pids
    assert f"rank 2 {words}" in str(error.value)
    assert '"kind": "all_reduce"' in str(error.value), "no end of its log"
    wait_for_end(pids)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, f"processes {left} are still there"
        time.sleep(0.05)


PARENT = """
import os, sys
from pathlib import Path
from tokenlife import lab
with lab.VirtualCluster(3, rate=20e6, delay=0.001) as cluster, lab.Team(cluster) as team:
    spaces = [os.stat(cluster.space(rank)).st_ino for rank in range(3)]
    processes = [cluster._holder.pid, cluster._line.pid, team._process.pid, *team.pids]
    print(*spaces, *processes, flush=True)
    team.run(lab.Job("all_reduce", 4 << 20, repeats=1000))
"""


def namespaces_in_use() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(path.stat().st_ino)
        except OSError:
            continue
    return found


def test_nothing_is_left_when_the_parent_is_killed(namespaces):
    interfaces = sorted(Path("/sys/class/net").iterdir())
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        numbers = [int(word) for word in parent.stdout.readline().split()]
        spaces, pids = set(numbers[:3]), numbers[3:]
        assert len(pids) == 6 and all(alive(pid) for pid in pids)
        assert spaces <= namespaces_in_use()
        time.sleep(0.5)
        parent.kill()
    wait_for_end(pids)
    assert not spaces & namespaces_in_use()
    assert sorted(Path("/sys/class/net").iterdir()) == interfaces


@pytest.mark.parametrize("engine", ["ours", "mpi"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_cut_short_leaves_nothing_behind(engine, number, tmp_path):
    words = f"lab all_reduce --ranks 2 --bytes 4MiB --repeats 100000 --engine {engine}".split()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "tokenlife.cli", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests in the background has it ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as command:
        own = {command.pid}
        while len(own) < 4:  # the command, one that watches, and the ranks
            assert command.poll() is None, command.stdout.read()
            own |= descendants(command.pid)
            time.sleep(0.05)
        assert list(tmp_path.iterdir())
        os.kill(command.pid, number)
        said = command.stdout.read()
    assert said == ("tokenlife: interrupted\n" if number == signal.SIGINT else "")
    wait_for_end(own)
    deadline = time.monotonic() + 10
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not list(tmp_path.iterdir())


def descendants(pid: int) -> set[int]:
    """Return the processes that a process started, and those that they started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return set()
    return {child for each in text.split() for child in (int(each), *descendants(int(each)))}


def test_nothing_is_left_after_an_error(namespaces):
    with pytest.raises(ZeroDivisionError), lab.VirtualCluster(2) as cluster:
        pid = cluster._holder.pid
        assert alive(pid)
        _ = 1 / 0
    wait_for_end([pid])


def test_where_namespaces_are_refused_it_says_so_once_and_goes_on(monkeypatch):
    monkeypatch.setattr(lab.VirtualCluster, "_open", lambda self: "not permitted")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with lab.VirtualCluster(2, rate=1e6) as cluster:
            assert cluster.place == "loopback" and cluster.rate is None
    assert len(seen) == 1
    assert "not permitted" in str(seen[0].message) and "rate" in str(seen[0].message)


def test_the_environment_forces_loopback_or_nothing(monkeypatch):
    monkeypatch.setenv(MODE, "loopback")
    with pytest.warns(lab.LabWarning), lab.VirtualCluster(2) as cluster:
        assert cluster.interface == "lo"
    monkeypatch.setenv(MODE, "off")
    with pytest.raises(lab.LabError, match="recorded"), lab.VirtualCluster(2):
        pass
    monkeypatch.setenv(MODE, "maybe")
    with pytest.raises(lab.LabError, match="maybe"), lab.VirtualCluster(2):
        pass


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lab.VirtualCluster(0), "1 to 250"),
        (lambda: lab.VirtualCluster(2, rate=1.0), "34 Gbit/s"),
        (lambda: lab.VirtualCluster(2, delay=-1), "delay"),
        (lambda: lab.VirtualCluster(2, delay=0.1, offload=True), "offload"),
        (lambda: lab.Job("all_reduce", 6), "float32"),
        (lambda: lab.Job("all_reduce", 8, engine="pigeon"), "pigeon"),
        (lambda: lab.Job("all_reduce", 8, repeats=0), "repeat"),
        (lambda: lab.Job("all_reduce", 8, "nvls").schedule(4), "switches"),
        (lambda: lab.run(lab.Job("all_reduce", 8, engine="mpi"), rate=1e6), "MPI"),
        (lambda: lab.run(lab.Job("send", 16, engine="mpi")), "cannot be forced"),
    ],
)
def test_bad_wishes_are_refused_in_words(make, words):
    with pytest.raises(lab.LabError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_engines_refuse_what_they_cannot(home):
    with pytest.raises(lab.LabError, match="divide by 16"):
        home.run(lab.Job("all_gather", 40, engine="gloo"))
    with pytest.raises(lab.LabError, match="GPU"):
        home.run(lab.Job("all_reduce", 40, engine="nccl"))
    with pytest.raises(ScheduleError, match="no algorithm"):
        home.run(lab.Job("all_reduce", 40, "carousel"))
    assert home.run(lab.Job("all_reduce", 40, repeats=1))  # and goes on


def test_the_command_prints_the_keys_that_scripts_rely_on(namespaces, capsys, tmp_path):
    call = ["lab", "all_gather", "--ranks", "2", "--bytes", "64KiB", "--rate", "100mbit", "--json"]
    assert main([*call, "--capture", str(tmp_path)]) == 0
    data = json.loads(capsys.readouterr().out)
    for side in ("measured", "modelled"):
        assert len(data[side]["bytes_sent_per_rank"]) == len(data[side]["wire_bytes_per_rank"]) == 2
        assert data[side]["time_s"] > 0
    assert data["engine"] == "ours" and data["machine"]["cores"] >= 1
    assert data["modelled"]["bytes_sent_per_rank"] == [32 * KIB] * 2
    utils = pytest.importorskip("scapy.utils")
    from scapy.layers.inet import TCP

    packets = utils.rdpcap(str(tmp_path / "rank0.pcap"))
    sent = sum(len(p[TCP].payload) for p in packets if p.src == "02:00:00:00:00:01")
    again = data["overheads"]["retransmitted"][0]
    assert sent == data["measured"]["bytes_sent_per_rank"][0] + again


@pytest.mark.parametrize(
    "wish",
    [
        "--ranks 0 --bytes 4",
        "--ranks 2 --bytes 5",
        "--ranks 2 --bytes x",
        "--ranks 2 --bytes 1e30",
        "--ranks 2 --bytes 4 --rate=",
    ],
)
def test_the_command_refuses_in_one_line(capsys, wish):
    assert main(["lab", "all_reduce", *wish.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_says_in_lines_what_loopback_lacks(home, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(MODE, "loopback")
    call = "lab all_reduce --ranks 2 --bytes 4KiB --rate 1gbit --repeats 1 --json"
    assert main([*call.split(), "--capture", str(tmp_path / "frames")]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["place"] == "loopback" and out.err.count("\n") == 2
    assert "without the rate" in out.err and "no captures" in out.err


def test_frames_are_read_as_scapy_wrote_them(tmp_path):
    layers = pytest.importorskip("scapy.layers.inet")
    from scapy.layers.l2 import Ether
    from scapy.utils import rdpcap

    def frame(flags, seq, payload, options=()):
        ip = Ether() / layers.IP(src="10.0.0.1", dst="10.0.0.2")
        tcp = layers.TCP(sport=5, dport=6, seq=seq, flags=flags, options=list(options))
        return bytes(ip / tcp / payload)

    stamp = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))]
    start = 2**32 - 10  # the number wraps
    raw = [
        frame("S", start - 1, b""),
        frame("A", start, b"x" * 20, stamp),
        frame("A", 10, b"y" * 30, stamp),
        frame("A", start, b"x" * 20, stamp),
        frame("A", 40, b""),
        bytes(Ether(type=0x88CC)) + b"z" * 60,
    ]
    frames = np.zeros((len(raw), 128), np.uint8)
    for row, data in zip(frames, raw, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    lengths = np.array([len(data) for data in raw])
    count = TcpFrames.read(frames, lengths).count()
    assert count == {
        "data_packets": 2,
        "payload_bytes": 50,
        "retransmissions": 1,
        "retransmitted_bytes": 20,
        "acknowledgements": 1,
        "acknowledgement_bytes": 54,
        "opening_and_closing": 1,
        "header_bytes": 3 * 66,
        "frame_bytes": sum(len(data) for data in raw[:-1]),
    }
    write_pcap(tmp_path / "a.pcap", frames, lengths, np.arange(len(raw)) + 0.5)
    again = rdpcap(str(tmp_path / "a.pcap"))
    assert [bytes(packet) for packet in again] == raw
    assert float(again[2].time) == 2.5


def _summed(here, size):
    import torch
    import torch.distributed as dist
    from tokenlife.lab.calls import Calls

    x = torch.full((size,), float(here.rank))
    with here.counted() as sent, Calls() as calls:
        dist.all_reduce(x)
    return {"sum": float(x[0]), "calls": calls.rows(), **sent}


def _odd(here):
    raise ValueError("no such thing")


def _unsayable(here):
    return {1, 2}


def test_a_program_runs_on_every_rank_and_is_counted():
    with lab.VirtualCluster(3) as cluster, lab.Team(cluster) as team:
        found = team.call(_summed, size=3 * 2**14)
    bytes_ = 3 * 2**16
    for rank in found:
        assert rank["sum"] == 3
        call = {"kind": "all_reduce", "group": [0, 1, 2], "bytes": bytes_, "count": 1}
        assert rank["calls"] == [call]
        assert 0 < rank["payload_bytes"] - bytes_ * 4 // 3 <= 0.02 * bytes_
        if cluster.place == "namespaces":
            assert rank["wire_bytes"] > rank["payload_bytes"]


@pytest.mark.parametrize(
    ("program", "words"), [(_odd, "ValueError: no such thing"), (_unsayable, "not JSON")]
)
def test_a_program_that_fails_names_its_rank_and_its_line(program, words):
    with (
        lab.VirtualCluster(2) as cluster,
        lab.Team(cluster) as team,
        pytest.raises(lab.LabError, match=rf"rank \d failed: .*{words}"),
    ):
        team.call(program)


def test_a_program_must_stand_alone():
    outside = 1
    with (
        lab.VirtualCluster(1) as cluster,
        lab.Team(cluster) as team,
        pytest.raises(lab.LabError, match="nothing outside it"),
    ):
        team.call(lambda here: outside)


def _collectives(here, sizes):
    import torch
    import torch.distributed as dist

    found = []
    for kind, items in sizes:
        x, n = torch.ones(items), here.ranks
        y = torch.empty(items * n if kind == "all_gather" else max(1, items // n))
        calls = {
            "all_reduce": lambda x=x: dist.all_reduce(x),
            "broadcast": lambda x=x: dist.broadcast(x, 0),
            "all_gather": lambda x=x, y=y: dist.all_gather_into_tensor(y, x),
            "reduce_scatter": lambda x=x, y=y: dist.reduce_scatter_tensor(y, x),
            "all_to_all": lambda x=x: dist.all_to_all_single(torch.empty_like(x), x),
        }
        with here.counted() as sent:
            calls[kind]()
        found.append(sent["payload_bytes"])
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_gloo_sends_is_known_to_the_byte(ranks):
    sizes = [("all_reduce", n) for n in (1, 7, 1000, 1_000_003, 1_800_001)]
    sizes += [("broadcast", n) for n in (1, 5001)] + [("all_gather", n) for n in (1, 5, 30_001)]
    sizes += [(kind, ranks * n) for kind in ("reduce_scatter", "all_to_all") for n in (1, 4099)]
    with lab.VirtualCluster(ranks) as cluster, lab.Team(cluster) as team:
        found = team.call(_collectives, sizes=sizes)
    for i, (kind, items) in enumerate(sizes):
        whole = items * (ranks if kind == "all_gather" else 1)
        said = sum(gloo_sends(kind, ranks, 4 * whole))
        assert [rank[i] for rank in found] == said.tolist(), (kind, items)
    with pytest.raises(lab.LabError, match="no rule for gloo's gather; there are all_reduce"):
        gloo_sends("gather", 2, 4)


def _times(here, factor):
    return factor * here.rank


def _other(here, factor):
    return 0


def test_a_page_measures_keeps_and_reads_what_it_kept(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    for module in ("tokenlife.lab.page", "tokenlife.catalog"):
        monkeypatch.setattr(f"{module}.data_dir", lambda: tmp_path)
    page = lab.Page("chapter", ["units.py"])
    ran = page.on_ranks("times", (_times, {"factor": 3}), (_times, {"factor": 5}), ranks=2)
    assert ran.found == [[0, 3], [0, 5]] and ran.label == "measured"
    assert ran.where.startswith("Measured in this run, on 2 ranks")
    page.keep()

    monkeypatch.setenv(MODE, "off")
    again = lab.Page("chapter", ["units.py"])
    read = again.on_ranks("times", (_times, {"factor": 3}), (_times, {"factor": 5}), ranks=2)
    assert read == (ran.found, "recorded", ran.place) and "recorded" in read.where
    with pytest.raises(lab.LabError, match="only what was measured can be kept, not times"):
        again.keep()
    for run, function in (("times", _other), ("sums", _times)):
        with pytest.raises(lab.LabError, match=f"no run '{run}' of the functions"):
            again.on_ranks(run, (function, {"factor": 3}), ranks=2)


def test_a_page_takes_its_record_where_loopback_will_not_do(monkeypatch):
    kept = json.loads((data_dir() / "results" / "17_network_limits.json").read_text())["values"]
    cells = functions("17_network_limits")
    monkeypatch.setenv(MODE, "loopback")
    page = lab.Page("17_network_limits", [])
    calls = [(cells.into_one, {})] * len(kept["incast"]["found"])
    ran = page.on_ranks("incast", *calls, ranks=4, namespaces=True, rate=1e8)
    assert (ran.label, ran.found) == ("recorded", kept["incast"]["found"])


def test_a_run_that_fails_is_an_error_and_no_record():
    page = lab.Page("17_network_limits", [])
    with pytest.raises(lab.LabError, match="ValueError: no such thing"):
        page.on_ranks("incast", (_odd, {}), ranks=2)
