"""Serving across sites: closed forms, what must grow with what, and a capture beside the frames."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife import lab
from tokenlife.catalog import read_reference
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.serving import Engine, ServingError, across, poisson, routing
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig
from tokenlife.wan.link import Link
from tokenlife.wan.tcp import transfer_s
from tokenlife.wire import FramingError, events, tcp_over_ethernet
from tokenlife.wire.decode import TcpFrames
from tokenlife.wire.framing import FRAME_CHECK
from tokenlife.wire.stack import Stack

LLAMA = Engine(ModelConfig.load("llama-3.1-70b"), Plan(tp=8), Cluster.load("dgx-h100"))

# ---- a cache over a distance -----------------------------------------------------------------


@given(
    st.floats(1, 12000), st.sampled_from([1e8, 1e9, 1e10, 1e11]), st.integers(1, 10**10)
)  # fmt: skip
def test_a_new_connection_starts_as_chapter_20_says(km, rate, size):
    link = Link(km, rate)
    ours = across.transfer_s(size, link.delay_s, rate, 10 * 1448)
    assert ours == pytest.approx(transfer_s(link, size, rate, "idle"), rel=1e-9)
    assert across.transfer_s(size, link.delay_s, rate) == pytest.approx(
        transfer_s(link, size, rate, "warm")
    )


def test_a_cache_is_as_large_as_published():
    told = read_reference("12_inference")
    told = told[(told.quantity == "kv_bytes") & (told.model == "llama-3.1-70b")]
    (gib,) = told[told.unit == "GiB"].value.astype(float)
    assert across.cache_bytes(LLAMA, 131072) / 2**30 == gib


@given(st.integers(2, 60000), st.floats(0.0, 0.2), st.floats(1e8, 1e12))
def test_the_ways_to_a_first_token_move_as_they_must(prompt, delay, rate):
    at = across.first_token_s(LLAMA, prompt, delay, rate)
    further = across.first_token_s(LLAMA, prompt, delay + 0.01, rate)
    faster = across.first_token_s(LLAMA, prompt, delay, 2 * rate)
    assert further["recompute"] == at["recompute"] == faster["recompute"]
    assert further["fetch"] == pytest.approx(at["fetch"] + 0.02)
    assert further["ask"] == pytest.approx(at["ask"] + 0.02)
    assert faster["fetch"] < at["fetch"] and at["ask"] < at["fetch"]
    busy = across.first_token_s(LLAMA, prompt, delay, rate, near_wait_s=0.5, far_wait_s=0.7)
    assert busy["recompute"] == pytest.approx(at["recompute"] + 0.5)
    assert busy["ask"] == pytest.approx(at["ask"] + 0.7)
    assert at["fetch"] <= busy["fetch"] <= at["fetch"] + 0.5 + 1e-9  # a cache travels meanwhile


def test_reading_one_token_after_a_cache_is_a_step_of_decode():
    step = float(LLAMA.seconds(0, 0, 1, 4096))
    assert float(across.read_s(LLAMA, 1, 4096)) == pytest.approx(step, rel=1e-3)


def test_break_even_is_where_the_curves_cross():
    delay, rate = 0.03, 2e11
    n = across.break_even(LLAMA, delay, rate, 131072)
    before, after = (across.first_token_s(LLAMA, k, delay, rate) for k in (n - 1, n))
    assert before["fetch"] >= before["recompute"] and after["fetch"] < after["recompute"]
    # Far above it a link wins if and only if it is faster than reading makes cache.
    makes = float(across.cache_bps(LLAMA, 100_000))
    for factor in (0.5, 2.0):
        ways = across.first_token_s(LLAMA, 100_000, 0.0, factor * makes)
        assert (ways["fetch"] < ways["recompute"]) == (factor > 1)


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(1, 1e6)), min_size=1, max_size=20),
    st.floats(1e3, 1e9),
)
def test_layers_sent_as_they_are_made(layers, rate):
    seconds, sizes = map(list, zip(*layers, strict=True))
    free = made = 0.0  # step by step
    for s, size in layers:
        made += s
        free = max(free, made) + size * 8 / rate
    assert across.streamed_s(seconds, sizes, rate, 0.5) == pytest.approx(free + 0.5)


def test_like_layers_hide_all_but_one_transfer():
    for rate in (1e6, 1e8):
        c, s, n = 0.1, 8e5 / rate, 12
        assert across.streamed_s([c] * n, [1e5] * n, rate) == pytest.approx(
            max(n * c + s, c + n * s)
        )


def test_links_and_prompts_that_cannot_be():
    with pytest.raises(ServingError, match="a rate must be above 0"):
        across.transfer_s(1, 0.1, 0)
    with pytest.raises(ServingError, match="a delay must be at least 0"):
        across.transfer_s(1, -0.1, 1e9)
    with pytest.raises(ServingError, match="never kept"):
        across.first_token_s(LLAMA, 10, 0.1, 1e9, kept=10)


# ---- routing ---------------------------------------------------------------------------------


def one_site(own, load):
    asked = pd.DataFrame({"arrival_s": poisson(len(own), load / 0.1, 1), "home": 0,
                          "prefix": np.arange(len(own)), "shared": 0, "own": own})  # fmt: skip
    site = routing.Sites(np.zeros((1, 1)), 1e9, lambda new, past: new * 1e-3, 1e5, keeps=0)
    return routing.route(asked, site, "nearest").wait_s.mean()


@pytest.mark.parametrize("load", [0.3, 0.5, 0.6])
def test_one_site_is_the_queue_of_pollaczek_and_khinchine(load):
    same = np.full(100_000, 100)
    assert one_site(same, load) == pytest.approx(load * 0.1 / (2 * (1 - load)), rel=0.04)
    drawn = np.random.default_rng(3).exponential(100, len(same))
    assert one_site(drawn, load) == pytest.approx(load * 0.1 / (1 - load), rel=0.06)


THREE = routing.Sites(
    np.array([[0, 0.03, 0.1], [0.03, 0, 0.08], [0.1, 0.08, 0]]),
    1e11,
    lambda new, past: new * 1e-4 + 0 * past,
    3e5,
    keeps=200_000,
)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.floats(1, 8))
def test_routes_keep_what_they_must(seed, rate):
    asked = routing.workload(
        300, rate, [0.6, 0.3, 0.1], 60, (3000, 4000, 30000), (200, 300, 3000), seed
    )
    got = {rule: routing.route(asked, THREE, rule) for rule in routing.RULES}
    delay = np.asarray(THREE.delay_s)
    for rule, table in got.items():
        trip = 2 * delay[table.home, table.site]
        reading = (table.shared + table.own - table.hit) * 1e-4
        spent = trip + table.wait_s + reading
        assert (table.ttft_s >= spent - 1e-9).all() and (table.wait_s >= -1e-9).all()
        if rule != "cost, may fetch":
            assert table.ttft_s.to_numpy() == pytest.approx(spent.to_numpy())
            assert not table.fetched_bytes.any()
        # Whatever the rule, no site reads two prompts at once.
        for _, part in table.groupby("site"):
            there = part.ttft_s + part.arrival_s - delay[part.home, part.site]
            assert (there.diff().dropna() >= part.own.iloc[1:] * 1e-4 - 1e-9).all()
    assert (got["nearest"].site == got["nearest"].home).all()


def test_prefixes_help_and_small_caches_forget():
    asked = routing.workload(2000, 3.0, [1.0, 0.0, 0.0], 60, (3000, 4000, 30000),
                             (200, 300, 3000), 0)  # fmt: skip
    hits = [
        routing.route(asked, routing.Sites(THREE.delay_s, 1e11, THREE.read_s, 3e5, keeps),
                      "nearest").hit.sum()
        for keeps in (0, 50_000, math.inf)
    ]  # fmt: skip
    assert hits[0] == 0 < hits[1] < hits[2]
    first = asked.drop_duplicates("prefix").index  # without a limit only a first visit is cold
    assert hits[2] == asked.shared.drop(first).sum()
    with pytest.raises(ServingError, match="no rule 'random'; known: nearest"):
        routing.route(asked, THREE, "random")


# ---- the last mile ---------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20), st.sampled_from(events.ENVELOPES))
def test_a_bill_holds_every_byte(texts, envelope):
    found = events.bill(texts, Stack("tcp", 1500), envelope, tls=True)
    writes = [len(events.chunk(events.event(t, envelope))) + events.TLS_RECORD for t in texts]
    framed = [Stack("tcp", 1500).frame(n) for n in writes]
    acks = sum(f.acknowledgement_bytes + f.acknowledgement_silent_bytes for f in framed)
    assert sum(found.values()) == sum(f.wire_bytes for f in framed) + acks
    assert found["text"] == sum(len(t.encode()) for t in texts)
    assert "".join(events.group(texts, 3)) == "".join(texts)


def test_an_event_is_what_a_browser_reads():
    assert events.chunk(events.event("a\nb", "short")) == b'14\r\ndata: {"t":"a\\nb"}\n\n\r\n'
    with pytest.raises(FramingError, match="no envelope 'xml'; there are text, short, chat"):
        events.body("a", "xml")
    with pytest.raises(FramingError, match="one token at least"):
        events.group(["a"], 0)


def send_events(here, texts):
    """Write events to a socket, one after another has arrived, and return the frames' sizes."""
    import socket
    import time

    import torch.distributed as dist
    from tokenlife.lab.meter import Capture
    from tokenlife.wire import events

    told = [None]
    if here.rank == 0:
        listening = socket.create_server(("", 0))
        told = [listening.getsockname()[1]]
    dist.broadcast_object_list(told, 0)
    with Capture(here.interface, 256, 4096) as capture:
        here.together(0.3)
        if here.rank:
            line = socket.create_connection(("10.77.0.1", told[0]))
            got = b""
            while part := line.recv(4096):
                got += part
        else:
            line, _ = listening.accept()
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for text in texts:
                line.sendall(events.chunk(events.event(text)))
                time.sleep(0.01)
            line.close()
        here.together(0.3)
        frames, lengths, _, outgoing, dropped = capture.read()
    return frames[outgoing].tolist(), lengths[outgoing].tolist(), int(dropped), told[0]


def test_frames_of_the_model_are_those_of_a_capture():
    texts = [" A", " token", " leaves", " as", " a", " wörd", ".\n"]
    try:
        with lab.VirtualCluster(2) as cluster:
            if cluster.place != "namespaces":
                pytest.skip("this machine refuses namespaces")
            with lab.Team(cluster) as team:
                frames, lengths, dropped, port = team.call(send_events, texts=texts)[0]
    except lab.LabUnavailable as error:
        pytest.skip(str(error))
    frames = np.array(frames, np.uint8)
    mine = frames[:, 34:36].astype(int) @ [256, 1] == port
    seen = TcpFrames.read(frames[mine], np.array(lengths)[mine])
    data = seen.payload_bytes > 0
    frame = tcp_over_ethernet(1500)
    says = [frame.frame(len(events.chunk(events.event(t)))) for t in texts]
    assert dropped == 0 and not seen.repeated().any()
    assert seen.frame_bytes[data].tolist() == [f.frame_bytes - FRAME_CHECK for f in says]
