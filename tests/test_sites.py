"""Several sites in the lab: the line between them does what was asked, and nothing is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife import lab
from tokenlife.lab.cluster import MODE
from tokenlife.lab.gloo_time import ring_seconds
from tokenlife.lab.way import Jitter, Losses, Shaper, Way

FRAMES = 200_000


@pytest.mark.parametrize(("loss", "burst"), [(0.01, None), (0.05, None), (0.02, 5.0), (0.3, 20.0)])
def test_losses_have_the_rate_and_the_bursts_asked_for(loss, burst):
    losses = Losses(loss, burst, seed=7)
    lost = np.array([losses.lost() for _ in range(FRAMES)])
    starts = np.flatnonzero(np.diff(lost.astype(int), prepend=0) == 1)
    length = burst or 1 / (1 - loss)
    # A burst and the gap before it are one draw of a renewal process: so many were there.
    bursts = FRAMES * loss / length
    assert lost.mean() == pytest.approx(loss, rel=4 * np.sqrt(2 / bursts))
    assert lost.sum() / len(starts) == pytest.approx(length, rel=4 / np.sqrt(bursts))


def test_the_same_seed_loses_the_same_frames():
    once, again, other = (Losses(0.1, 3.0, seed) for seed in (1, 1, 2))
    first, second, third = ([c.lost() for _ in range(500)] for c in (once, again, other))
    assert first == second != third
    assert not any(Losses(0.0, None, 1).lost() for _ in range(100))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 3e-3), st.integers(60, 1514)), min_size=1, max_size=80),
    st.sampled_from([1e6, 1e8, 1e9]),
    st.integers(1514, 20_000),
)
def test_the_shaper_keeps_every_byte_its_rate_and_its_queue(frames, rate_bps, queue_bytes):
    shaper, now_s, left = Shaper(rate_bps, queue_bytes), 0.0, []
    for gap_s, bytes_ in frames:
        now_s += gap_s
        here = [(s, b) for s, b in left if s > now_s]
        backlog = (max(here)[0] - now_s) * rate_bps / 8 if here else 0.0
        left_s = shaper.admit(now_s, bytes_)
        full = backlog + bytes_ > queue_bytes
        if abs(backlog + bytes_ - queue_bytes) > 1e-3:
            assert (left_s is None) == full
        if left_s is not None:
            before_s = left[-1][0] if left else 0.0
            assert left_s == pytest.approx(max(now_s, before_s) + bytes_ * 8 / rate_bps, abs=1e-12)
            left.append((left_s, bytes_))


def test_jitter_keeps_the_order_and_has_its_mean_and_spread():
    most_s = 0.004
    jitter = Jitter(most_s, seed=3)
    at = np.linspace(0, 20, 100_001)
    waits = np.array([jitter.at(t) for t in at])
    assert waits.min() >= 0 and waits.max() <= most_s
    assert (np.diff(at + waits) >= 0).all()
    assert waits.mean() == pytest.approx(most_s / 2, rel=0.02)
    assert waits.var() == pytest.approx(most_s**2 / 18, rel=0.05)
    again = Jitter(most_s, seed=3)
    assert [again.at(t) for t in at[::5000]] == waits[::5000].tolist()


def test_every_frame_is_accounted_for():
    wishes = {"delay_s": 0.01, "rate_bps": 1e7, "queue_bytes": 20_000, "jitter_s": 0.001}
    way, sent = Way({**wishes, "loss": 0.1, "burst": 2.0, "seed": 5}), []
    for number in range(2000):
        way.take(number * 1e-3, bytes(1500))
        way.give(number * 1e-3, sent.append)
        if number == 1000:
            way.cut(True)
        if number == 1100:
            way.cut(False)
    waiting = len(way.waiting)
    counts = way.counts
    whole = sum(counts[n] for n in ("carried", "lost", "overflowed", "cut", "refused"))
    assert whole + waiting == 2000
    assert min(counts[n] for n in ("carried", "lost", "overflowed", "cut")) > 50
    assert counts["bytes"] == sum(map(len, sent)) == 1500 * counts["carried"]


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"sites": [4]}, "two sites or more"),
        ({"sites": 4}, "two sites or more"),
        ({"sites": [2, 0]}, "two sites or more"),
        ({"sites": [200, 100]}, "1 to 250 ranks"),
        ({"delay_s": -0.01}, "delay must be above 0"),
        ({"delay_s": 0.01, "back_delay_s": 0.0}, "delay must be above 0"),
        ({"rate_bps": 0}, "10 kbit/s"),
        ({"rate_bps": 1e8, "back_rate_bps": -1}, "10 kbit/s"),
        ({"inside_bps": 0}, "10 kbit/s"),
        ({"jitter_s": -1}, "jitter"),
        ({"loss": 1.0}, "below 1"),
        ({"loss": -0.1}, "below 1"),
        ({"loss": 0.1, "burst": 0.5}, "at least 1 frame"),
        ({"loss": 0.9, "burst": 2.0}, "loss / "),
        ({"queue_bytes": 100}, "one frame"),
        ({"delay_s": [0.01, 0.02]}, "2 rows of 2"),
        ({"delay_s": [[0, 1], [1, 0]], "back_delay_s": 0.1}, "table already"),
        ({"mtu": 10}, "10"),
    ],
)
def test_a_line_that_cannot_be_is_refused_in_one_line(wishes, words):
    with pytest.raises(lab.LabError.__mro__[1], match=words) as error:
        lab.SiteCluster(**{"sites": [2, 2], "delay_s": 0.01, **wishes})
    assert "\n" not in str(error.value)


def test_each_pair_and_direction_may_differ():
    table = [[0, 0.01, 0.02], [0.03, 0, 0.04], [0.05, 0.06, 0]]
    cluster = lab.SiteCluster([1, 2, 1], table, rate_bps=1e8, seed=9)
    assert cluster.ranks == 4 and cluster.site_of == [0, 1, 1, 2]
    assert cluster.delay == 0.06
    ways = cluster.ways
    assert ways[1][0]["delay_s"] == 0.03 and ways[0][0] is None
    assert ways[0][2]["queue_bytes"] == pytest.approx(1e8 / 8 * 0.07, abs=1)
    assert len({way["seed"] for row in ways for way in row if way}) == 6
    back = lab.SiteCluster([1, 1], 0.01, 1e8, back_delay_s=0.03, back_rate_bps=1e7).ways
    assert (back[0][1]["delay_s"], back[1][0]["delay_s"]) == (0.01, 0.03)
    assert (back[0][1]["rate_bps"], back[1][0]["rate_bps"]) == (1e8, 1e7)


def test_there_are_no_sites_over_loopback(monkeypatch):
    monkeypatch.setenv(MODE, "loopback")
    with pytest.raises(lab.LabUnavailable, match="recorded"), lab.SiteCluster([1, 1], 0.01):
        pass
    monkeypatch.delenv(MODE)
    monkeypatch.setattr(lab.VirtualCluster, "_open", lambda self: "not permitted")
    with pytest.raises(lab.LabUnavailable, match="not permitted"), lab.SiteCluster([1, 1], 0.01):
        pass
    cluster = lab.SiteCluster([1, 1], 0.01)
    for act in (lambda: cluster.cut(0), cluster.counts, lambda: cluster.change(loss=0.1)):
        with pytest.raises(lab.LabError, match="enter the cluster"):
            act()
    with pytest.raises(lab.LabError, match="no site 2: they are 0 to 1"):
        cluster.mend(2)
    with pytest.raises(lab.LabError, match="no property colour"):
        cluster.change(colour="red")


PLAIN = {
    "delay_s": 0.01, "back_delay_s": None, "rate_bps": None, "queue_bytes": None, "jitter_s": 0.0,
    "loss": 0.0, "burst": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def opened():
    """Two sites of two ranks, and their team."""
    try:
        with lab.SiteCluster([2, 2], delay_s=0.01) as cluster, lab.Team(cluster) as team:
            yield cluster, team
    except lab.LabUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def sites(opened):
    """The same, with a plain line between them."""
    opened[0].change(**PLAIN)
    return opened


def datagrams(here, pairs, count, gap_s=0.0):
    """Send numbered datagrams along each pair; when each left and came."""
    import socket
    import time

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("0.0.0.0", 9000))
        line.settimeout(0.5)
        found = []
        for source, target in pairs:
            here.together()
            times = {}
            if here.rank == source:
                for number in range(count):
                    times[number] = time.monotonic()
                    line.sendto(b"%d" % number, (f"10.77.0.{target + 1}", 9000))
                    time.sleep(gap_s)
            elif here.rank == target:
                while len(times) < count:
                    try:
                        number = int(line.recv(100))
                        times[number] = time.monotonic()
                    except TimeoutError:
                        break
            here.together(0.6)
            found.append(list(times.items()))
    return found


def one_way(found, pairs) -> list[np.ndarray]:
    """Return the seconds that each datagram of each pair took."""
    taken = []
    for index, (source, target) in enumerate(pairs):
        left, came = (dict(found[rank][index]) for rank in (source, target))
        taken.append(np.array([came[number] - left[number] for number in came]))
    return taken


def test_distance_is_what_was_asked_either_way_and_none_within_a_site(sites):
    cluster, team = sites
    cluster.change(delay_s=0.02, back_delay_s=0.005, jitter_s=0.003)
    pairs = [(0, 2), (3, 1), (0, 1), (2, 3)]
    there, back, *within = one_way(team.call(datagrams, pairs=pairs, count=40, gap_s=2e-3), pairs)
    # The lower quartile: much of what a busy machine adds is not the line's.
    assert there.min() >= 0.02 and np.quantile(there, 0.25) <= 0.02 + 0.003 + 0.001
    assert back.min() >= 0.005 and np.quantile(back, 0.25) <= 0.005 + 0.003 + 0.001
    assert there.min() < 0.0215 < there.max()
    assert all(np.quantile(taken, 0.25) < 0.001 for taken in within)


def test_loss_is_counted_and_repeats(sites):
    cluster, team = sites

    def lost() -> list[int]:
        cluster.change(loss=0.2, burst=3.0, seed=4)
        before = cluster.counts()[0]
        found = team.call(datagrams, pairs=[(0, 2)], count=300, gap_s=1e-4)
        after = cluster.counts()[0]
        gone = sorted(set(range(300)) - {number for number, _ in found[2][0]})
        assert after["lost"] - before["lost"] == len(gone)
        assert after["carried"] - before["carried"] == 300 - len(gone)
        return gone

    once, again = lost(), lost()
    assert once == again and 20 < len(once) < 120


def stream(here, pairs, bytes_, seconds):
    """Send over TCP along all pairs at once; the rate that each receiver saw, bit/s."""
    import socket
    import time

    for number, (source, target) in enumerate(pairs):
        if here.rank == target:
            port = socket.create_server(("0.0.0.0", 9100 + number))
            here.together(0.1)
            with port, port.accept()[0] as line:
                got, marks = 0, []
                while data := line.recv(1 << 18):
                    got += len(data)
                    marks.append((time.monotonic(), got))
            # Without the start, in which the window grows.
            late = [m for m in marks if m[0] > marks[0][0] + seconds / 2]
            return 8 * (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
        if here.rank == source:
            here.together(0.1)
            end = time.monotonic() + seconds
            with socket.create_connection((f"10.77.0.{target + 1}", 9100 + number)) as line:
                while time.monotonic() < end:
                    line.sendall(bytes(bytes_))
            return 0.0
    here.together(0.1)
    return 0.0


def test_a_rate_is_held_and_shared_by_the_ranks_of_a_site(sites):
    cluster, team = sites
    rate_bps = 60e6
    cluster.change(rate_bps=rate_bps, delay_s=0.005, queue_bytes=400_000)
    payload_bps = rate_bps * 1448 / 1514
    call = {"bytes_": 1 << 15, "seconds": 1.2}
    for pairs in ([(0, 2)], [(0, 2), (1, 3)]):
        rates = []
        for _ in range(3):  # a busy machine, or a window that recovers, takes from it; none adds
            rates.append(sum(team.call(stream, pairs=pairs, **call)))
            if rates[-1] > 0.95 * payload_bps:
                break
        assert max(rates) == pytest.approx(payload_bps, rel=0.05), rates
    inside = max(team.call(stream, pairs=[(0, 1)], **call))
    assert inside > 4 * rate_bps
    there, back = cluster.counts()
    assert there["missed"] == back["missed"] == there["refused"] == 0


def _congestion(here):
    import socket

    address = "10.77.0.1", 9200
    if here.rank == 0:
        with socket.create_server(address) as port:
            here.together(0.1)
            line = port.accept()[0]
    else:
        here.together(0.1)
        if here.rank > 1:
            return None
        line = socket.create_connection(address)
    with line:
        return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def _all_reduces(here, bytes_, groups, repeats):
    import time

    import torch
    import torch.distributed as dist

    made = [dist.new_group(ranks) for ranks in groups]  # by every rank, whether in it or not
    mine = [group for group, ranks in zip(made, groups, strict=True) if here.rank in ranks]
    x, spans = torch.zeros(bytes_ // 4), []
    for _ in range(repeats):
        here.together(0.05)
        start = time.monotonic()
        for group in mine:
            dist.all_reduce(x, group=group)
        spans.append((start, time.monotonic()))
    return spans


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0, 2], [1, 3]], [[0, 2]]])
def test_gloo_over_a_line_ends_when_its_messages_say(sites, groups):
    cluster, team = sites
    line, bytes_ = {"delay_s": 0.015, "rate_bps": 1e8}, 1 << 18
    cluster.change(**line, queue_bytes=1 << 24)  # deep: nothing may be lost
    said = ring_seconds(groups, bytes_, cluster.site_of, **line, inside_s=2e-4)
    times = []
    for _ in range(6):  # the least: what others take from this machine is not the line's
        spans = np.array(team.call(_all_reduces, bytes_=bytes_, groups=groups, repeats=5))
        times += (spans[:, :, 1].max(axis=0) - spans[:, :, 0].max(axis=0))[1:].tolist()
        if min(times) < 1.1 * said:
            break
    assert min(times) == pytest.approx(said, rel=0.10), times


def test_all_connections_take_the_congestion_control_asked_for(sites):
    cluster, team = sites
    assert team.call(_congestion)[:2] == [cluster.congestion] * 2 == ["cubic"] * 2
    with (
        pytest.raises(lab.LabError, match="no pigeon; there are "),
        lab.SiteCluster([1, 1], 0.01, congestion="pigeon"),
    ):
        pass


def test_a_site_is_cut_off_and_joined_again_while_a_function_runs(sites):
    cluster, team = sites
    before = cluster.counts()[0]["cut"]
    cluster.cut(1)
    threading.Timer(0.3, cluster.mend, [1]).start()
    found = team.call(datagrams, pairs=[(0, 2)], count=300, gap_s=2e-3)
    came = [number for number, _ in found[2][0]]
    assert came == list(range(came[0], 300)) and 50 < came[0] < 200
    assert cluster.counts()[0]["cut"] - before == came[0]


PARENT = """
import os, time
from tokenlife import lab
with lab.SiteCluster([1, 1], delay_s=0.005) as cluster:
    print(os.stat(cluster.space(0)).st_ino, cluster._holder.pid, cluster._line.pid, flush=True)
    {then}
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("then", ["1 / 0", "time.sleep(100)"])
def test_nothing_is_left_behind(sites, then):
    interfaces = sorted(Path("/sys/class/net").iterdir())
    program = [sys.executable, "-c", PARENT.format(then=then)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        space, *pids = [int(word) for word in parent.stdout.readline().split()]
        there = {path.name for path in Path("/proc").glob("[0-9]*")}
        if "sleep" in then:
            assert all(alive(pid) for pid in pids)
            os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"processes {pids} are still there"
        time.sleep(0.05)
    for number in there:  # not those that began since: numbers of namespaces come again
        with contextlib.suppress(OSError):
            assert Path(f"/proc/{number}/ns/net").stat().st_ino != space
    assert sorted(Path("/sys/class/net").iterdir()) == interfaces


def _late(here, seconds):
    import time

    time.sleep(seconds)
    return here.rank


def _cut_and_mend(cluster):
    cluster.cut(0)
    cluster.mend(0)


def test_a_page_runs_on_sites_and_reads_what_it_kept(sites, tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    for module in ("tokenlife.lab.page", "tokenlife.catalog"):
        monkeypatch.setattr(f"{module}.data_dir", lambda: tmp_path)
    page = lab.Page("chapter", ["units.py"])
    wan = {"sites": [1, 1], "delay_s": 0.001, "rate_bps": 1e8, "watchdog": 20.0}
    call = (_late, {"seconds": 0.1})
    ran = page.on_ranks("late", call, meanwhile=_cut_and_mend, **wan)
    assert ran.found == [[0, 1]] and ran.label == "measured"
    page.keep()
    monkeypatch.setenv(MODE, "loopback")
    read = lab.Page("chapter", ["units.py"])
    again = read.on_ranks("late", call, meanwhile=_cut_and_mend, **wan)
    assert again == (json.loads(json.dumps(ran.found)), "recorded", "namespaces")
    with pytest.raises(lab.LabError, match="no run 'late' of the functions"):
        read.on_ranks("late", call, **wan)
