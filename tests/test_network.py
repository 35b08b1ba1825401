"""The network: fabrics, routes, fair rates and time, against closed forms and other counts."""

import json
import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tokenlife import cli
from tokenlife.collectives import build, ring_all_reduce, verify
from tokenlife.collectives.cost import Hockney, price
from tokenlife.errors import TokenlifeError
from tokenlife.interop.chakra import chakra_lines
from tokenlife.interop.htsim import htsim_text
from tokenlife.network import (
    FABRICS,
    Routes,
    TopologyError,
    max_min,
    parse_topology,
    route,
    simulate,
    simulate_flows,
    single_switch,
)
from tokenlife.network.congestion import incast, incast_floor_s
from tokenlife.network.fabrics import (
    dragonfly,
    fat_tree,
    leaf_spine,
    rails,
    torus,
    with_domains,
)
from tokenlife.network.optimum import optimal_all_gather
from tokenlife.network.routing import colliding, expected_colliding
from tokenlife.network.synthesise import synthesise
from tokenlife.parallel import CommOp

RATE = 1e9


# ---- fabrics ----------------------------------------------------------------------------------


def test_fabrics_have_the_cables_of_their_closed_forms():
    k = 8
    tree = fat_tree(k**3 // 4, RATE, radix=k)
    assert (tree.nodes - tree.hosts, tree.links) == (5 * k * k // 4, 2 * 3 * k**3 // 4)
    p = 2
    routers, groups = 2 * p, 2 * p * p + 1
    fly = dragonfly(2 * p * p * groups, RATE)
    near = groups * math.comb(routers, 2)
    assert fly.links == 2 * (fly.hosts + near + math.comb(groups, 2))
    assert torus((3, 4, 5), RATE).links == 2 * 3 * 60
    assert torus((2, 2), RATE).links == 2 * 4
    assert leaf_spine(64, RATE, 16, 4).links == 2 * (64 + 4 * 4)


def hops(topology, pairs):
    src, dst = np.array(pairs).T
    return route(topology, src, dst).hops().tolist()


def test_paths_have_the_hops_that_they_must():
    assert hops(fat_tree(16, RATE), [(0, 1), (0, 2), (0, 4), (0, 15)]) == [2, 4, 6, 6]
    assert hops(torus((4, 4), RATE), [(0, 1), (0, 5), (0, 10), (0, 3)]) == [1, 2, 4, 1]
    # Same rail; same node; another rail by spine, or, without one, through a GPU of the node.
    assert hops(rails(16, RATE, 4), [(0, 4), (0, 1), (0, 5)]) == [2, 2, 4]
    assert hops(rails(16, RATE, 4, spine=0), [(0, 4), (0, 1), (0, 5)]) == [2, 2, 4]
    assert hops(with_domains(leaf_spine(8, RATE, 4), 2, 9 * RATE), [(0, 1), (0, 2)]) == [2, 2]
    nvlink = route(with_domains(single_switch(4, RATE), 2, 9 * RATE), [0], [1])
    assert (nvlink.link >= 8).all(), "neighbours in a domain do not leave it"


@pytest.mark.parametrize("name", FABRICS)
def test_every_pair_has_a_way_in_every_fabric(name):
    fabric = parse_topology(name, 64, RATE)
    src, dst = np.nonzero(~np.eye(64, dtype=bool))
    for how, flowlets in (("ecmp", 1), ("ecmp", 3), ("spray", 1), ("first", 1)):
        routes = route(fabric, src, dst, how, flowlets=flowlets)
        # Whatever leaves a node has come into it: per flow and node, the balance is its ends.
        balance = np.zeros((len(src), fabric.nodes))
        np.add.at(balance, (routes.flow, fabric.link_src[routes.link]), routes.share)
        np.add.at(balance, (routes.flow, fabric.link_dst[routes.link]), -routes.share)
        balance[np.arange(len(src)), src] -= 1
        balance[np.arange(len(src)), dst] += 1
        assert np.abs(balance).max() < 1e-9
        inner = fabric.link_src[routes.link] < fabric.hosts
        if not fabric.transit:
            assert (fabric.link_src[routes.link[inner]] == src[routes.flow[inner]]).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_shortest_paths_are_those_of_another_search(seed):
    fabric = torus((3, 4), RATE)
    src, dst = np.random.default_rng(seed).choice(12, 2, replace=False)
    assert hops(fabric, [(src, dst)]) == [len(fabric.path(int(src), int(dst)))]


def test_colliding_flows_are_those_of_the_closed_form():
    paths, flows, draws = 16, 8, 300
    fabric = leaf_spine(32, RATE, 16)
    found = []
    for draw in range(draws):
        routes = route(fabric, range(flows), range(16, 16 + flows), source_port=draw * 100)
        up = fabric.between_switches[routes.link]
        assert up.sum() == 2 * flows
        found.append(colliding(routes, fabric))
    expected = expected_colliding(flows, paths)
    # Standard error of the mean of counts that scatter by less than the number of flows.
    assert abs(np.mean(found) - expected) < 4 * np.std(found) / math.sqrt(draws)
    assert colliding(route(fabric, [0], [16]), fabric) == 0


# ---- fair rates -------------------------------------------------------------------------------


def by_hand(paths, capacity):
    """Progressive filling in fractions, one bottleneck after another."""
    left, rates = dict(enumerate(map(Fraction, capacity))), {}
    while len(rates) < len(paths):
        waiting = {f: p for f, p in enumerate(paths) if f not in rates}
        level = {
            link: left[link] / n for link in left if (n := sum(link in p for p in waiting.values()))
        }
        lowest = min(level.values())
        for f, path in waiting.items():
            if any(level[link] == lowest for link in path):
                rates[f] = lowest
        for f in waiting.keys() & rates.keys():
            for link in paths[f]:
                left[link] -= rates[f]
    return [float(rates[f]) for f in range(len(paths))]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_fair_rates_are_those_of_filling_by_hand(data):
    links = data.draw(st.integers(1, 6))
    capacity = data.draw(st.lists(st.integers(1, 9), min_size=links, max_size=links))
    path = st.sets(st.integers(0, links - 1), min_size=1)
    paths = [sorted(p) for p in data.draw(st.lists(path, min_size=1, max_size=8))]
    rows = [(f, link) for f, p in enumerate(paths) for link in p]
    routes = Routes(len(paths), *np.array(rows).T, np.ones(len(rows)))
    np.testing.assert_allclose(
        max_min(routes, np.array(capacity, float)), by_hand(paths, capacity), rtol=1e-9
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), how=st.sampled_from(["ecmp", "spray"]))
def test_no_link_over_capacity_and_every_flow_bottlenecked(seed, how):
    draw = np.random.default_rng(seed)
    fabric = leaf_spine(32, RATE, 8, 2).degraded([70, 75], 0.3)
    src = draw.integers(0, 32, 60)
    dst = (src + draw.integers(1, 32, 60)) % 32
    routes = route(fabric, src, dst, how)
    rates = max_min(routes, fabric.link_bps)
    used = routes.load(fabric.links, rates)
    assert (used <= fabric.link_bps * (1 + 1e-9)).all()
    full = used >= fabric.link_bps * (1 - 1e-9)
    fastest = np.zeros(fabric.links)
    np.maximum.at(fastest, routes.link, rates[routes.flow])
    at_top = full[routes.link] & (rates[routes.flow] >= fastest[routes.link] * (1 - 1e-9))
    assert set(routes.flow[at_top]) == set(range(60))


# ---- time -------------------------------------------------------------------------------------


def test_flows_share_and_go_on_by_hand():
    star = single_switch(4, 8e9)  # a byte takes a nanosecond
    routes = route(star, [0, 1, 2], [3, 3, 3])
    done = simulate_flows(star, routes, np.array([3000, 3000, 1000]), [0, 0, 4e-6]).finish_s
    # Two share until the third has come, with 1000 bytes left each; then three share 3000 bytes.
    np.testing.assert_allclose(done * 1e6, [7, 7, 7], rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "halving_doubling"])
def test_without_contention_a_simulation_is_the_price(algorithm):
    schedule = build("all_reduce", algorithm, 8)
    links = Hockney(3e-6, 8 / RATE)
    priced = price(schedule, 8000, 4, links)
    star = single_switch(8, RATE)
    for barrier in (True, False):
        found = simulate(schedule, 8000, 4, star, alpha_s=1e-6, hop_s=1e-6, barrier=barrier)
        assert found.time_s == pytest.approx(priced.time_s, rel=1e-9)
        assert found.link_bytes.sum() == 2 * priced.sent_bytes.sum()
        np.testing.assert_array_equal(found.link_bytes[:8], priced.sent_bytes)


@pytest.mark.parametrize("ranks", [16, 64, 256])
def test_equal_rounds_once_is_the_full_simulation(ranks):
    fabric = fat_tree(ranks, RATE)
    once, full = (
        simulate(ring_all_reduce(ranks), ranks * 100, 1, fabric, hop_s=1e-7, barrier=barrier)
        for barrier in (True, False)
    )
    assert once.time_s == pytest.approx(full.time_s, rel=1e-9)
    np.testing.assert_allclose(once.link_bytes, full.link_bytes)


def test_a_slow_link_slows_every_round():
    ring, star = ring_all_reduce(8), single_switch(8, RATE)
    whole = simulate(ring, 8000, 1, star).time_s
    for barrier in (True, False):
        slow = simulate(ring, 8000, 1, star.degraded([3], 0.5), barrier=barrier)
        assert slow.time_s == pytest.approx(2 * whole, rel=1e-9)
    shape = simulate_flows(star.degraded([3], 0.5), route(star, range(4), range(4, 8)), [100] * 4)
    assert shape.stragglers().tolist() == [3]


def test_a_cut_link_is_gone_round_and_a_cut_host_has_no_way():
    fabric = leaf_spine(16, RATE, 8)
    cut = np.flatnonzero(fabric.between_switches)[:1]
    assert (
        cut[0] not in route(fabric.degraded(cut, 0), np.arange(8), np.arange(8, 16), "spray").link
    )
    with pytest.raises(TopologyError, match="no way from host 0"):
        route(fabric.degraded([0], 0), [0], [9])


def test_an_incast_has_its_floor():
    assert incast_floor_s(127, 2e6, 4e11) * 1e6 == pytest.approx(5080)
    star = single_switch(128, 4e11)
    flows = route(star, np.arange(1, 128), np.zeros(127, int))
    assert simulate_flows(star, flows, np.full(127, 2e6)).time_s * 1e6 == pytest.approx(5080)
    went = incast(127, 2e6, 4e11, 8e-6, 3e7, 2e5)
    assert went.time_s * 1e6 == pytest.approx(5080, rel=0.05)
    assert went.time_s * 1e6 >= 5080 * (1 - 1e-9)
    assert went.lost_bytes > 0 and went.queue_bytes.max() == pytest.approx(3e7)


def test_sixteen_thousand_ranks():
    began = time.process_time()
    found = simulate(ring_all_reduce(16384), 2**20, 4, fat_tree(16384, 4e11), hop_s=1e-6)
    assert found.time_s == pytest.approx(2 * 16383 * (2**22 / 16384 * 8 / 4e11 + 6e-6))
    assert time.process_time() - began < 10


# ---- made schedules, other simulators, the command --------------------------------------------


@pytest.mark.parametrize(
    "fabric", [torus((3, 4), RATE), single_switch(6, RATE), rails(8, RATE, 4)], ids=lambda f: f.name
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_made_schedules_do_what_they_must_without_collisions(fabric, kind):
    made = synthesise(fabric, kind)
    verify(made)
    if kind == "all_gather":
        for index in range(len(made.rounds)):
            sends = made.rounds[index]
            routes = route(fabric, sends.src, sends.dst, "first")
            assert np.bincount(routes.link).max() == 1


def test_a_made_schedule_meets_the_bound_of_a_torus():
    assert len(synthesise(torus((3, 3), RATE)).rounds) >= math.ceil(8 / 4)
    ring = simulate(build("all_gather", "ring", 16), 16000, 1, torus((4, 4), RATE))
    made = simulate(synthesise(torus((4, 4), RATE)), 16000, 1, torus((4, 4), RATE), how="first")
    assert made.time_s < ring.time_s / 2


@pytest.mark.parametrize(
    ("fabric", "rounds"),
    [
        (torus((3, 3), RATE), 2),  # eight chunks over four cables
        (torus((5,), RATE), 2),
        (single_switch(5, RATE), 4),  # nothing beats the ring there
        (leaf_spine(4, RATE, 2, 2), 3),  # two cross the one cable up while others stay below
    ],
    ids=lambda f: getattr(f, "name", f),
)
def test_the_solver_finds_the_least_rounds_and_never_more_than_greed(fabric, rounds):
    best = optimal_all_gather(fabric)
    verify(best)
    for index in range(len(best.rounds)):
        sends = best.rounds[index]
        assert np.bincount(route(fabric, sends.src, sends.dst, "first").link).max() == 1
    assert len(best.rounds) == rounds <= len(synthesise(fabric).rounds)


def test_many_flowlets_come_near_to_spraying():
    fabric = leaf_spine(32, RATE, 8)
    src, dst = np.arange(16), np.arange(16, 32)
    worst = [
        route(fabric, src, dst, flowlets=n).load(fabric.links, np.ones(16)).max()
        for n in (1, 8, 512)
    ]
    assert worst[0] > worst[1] > worst[2] and worst[2] < 1.15
    assert route(fabric, src, dst, "spray").load(fabric.links, np.ones(16)).max() == 1


def by_linear_programs(paths, capacity) -> list[float]:
    """Max–min fairness as its definition says: raise the least, fix who can have no more, go on."""
    fixed = {}
    uses = np.array([[link in path for path in paths] for link in range(len(capacity))], float)
    while len(fixed) < len(paths):
        # Variables: the rates, and the level that all who are not fixed reach.
        floor = [[-(f == g) for g in range(len(paths))] + [1] for f in range(len(paths))]
        rows = np.vstack([np.hstack([uses, np.zeros((len(capacity), 1))]), floor])
        most = np.r_[capacity, np.zeros(len(paths))]
        rows[len(capacity) + np.array(list(fixed), int), -1] = 0
        bounds = [(fixed.get(f, 0), fixed.get(f)) for f in range(len(paths))] + [(0, None)]
        level = -linprog(np.r_[np.zeros(len(paths)), -1], rows, most, bounds=bounds).fun
        stuck = {}
        for f in set(range(len(paths))) - set(fixed):
            least = [(fixed.get(g, level), fixed.get(g)) for g in range(len(paths))]
            gain = -np.eye(len(paths))[f]
            reached = -linprog(gain, uses, capacity, bounds=least).fun
            if reached < level * (1 + 1e-7) + 1e-9:
                stuck[f] = level
        fixed |= stuck
    return [fixed[f] for f in range(len(paths))]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=5),
    st.lists(st.integers(1, 20), min_size=4, max_size=4),
)
def test_fair_rates_are_those_of_linear_programs(paths, capacity):
    flow = np.repeat(np.arange(len(paths)), [len(path) for path in paths])
    link = np.array([each for path in paths for each in sorted(path)])
    rates = max_min(Routes(len(paths), flow, link, np.ones(len(flow))), np.array(capacity, float))
    np.testing.assert_allclose(rates, by_linear_programs(paths, capacity), rtol=1e-6)


def test_exports_say_the_same():
    lines = htsim_text(3, [0, 1], [1, 2], [10, 20], [0, 2e-6]).splitlines()
    assert lines[0] == "Nodes 3" and lines[-1].endswith("start 2000000 size 20")
    send = CommOp("send", "pp", (0, 1), 64, 4, "forward", 3)
    for rank, type_ in ((0, "COMM_SEND_NODE"), (1, "COMM_RECV_NODE")):
        nodes = [json.loads(line) for line in chakra_lines([send], rank)][1:]
        assert [n["type"] for n in nodes] == [type_] * 3
        assert [n["ctrlDeps"] for n in nodes] == [[], ["0"], ["1"]]
    with pytest.raises(TokenlifeError, match="takes no part"):
        chakra_lines([send], 2)
    with pytest.raises(TokenlifeError, match="no flow"):
        htsim_text(2, [0], [0], [1])


def test_the_command_simulates(capsys):
    ask = ["collective", "all_reduce", "--ranks", "16", "--bytes", "1MB", "--algorithm", "ring"]
    assert cli.main([*ask, "--on", "leaf-spine:hosts=64,oversubscription=4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["topology"] == "leaf–spine" and data["hosts"] == 64
    assert data["time_s"] == pytest.approx(30 * (2e-6 + 62500 * 8 / 4e11))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: parse_topology("moebius", 4, RATE), "no topology"),
        (lambda: parse_topology("fat-tree:radix=x", 4, RATE), "cannot read"),
        (lambda: parse_topology("torus-3d", 9, RATE), "no torus"),
        (lambda: leaf_spine(8, -1.0), "rates above zero"),
        (lambda: leaf_spine(8, RATE, 8, 3), "multiple of oversubscription"),
        (lambda: fat_tree(100, RATE, radix=4), "hold 16 hosts"),
        (lambda: rails(9, RATE, 4), "do not fill"),
        (lambda: route(single_switch(2, RATE), [0], [0]), "two different hosts"),
        (lambda: route(single_switch(2, RATE), [0], [1], "guess"), "routing is"),
        (lambda: route(single_switch(2, RATE), [0], [1], "spray", flowlets=2), "not 2 by spray"),
        (lambda: simulate(ring_all_reduce(4), 4, 1, single_switch(2, RATE)), "as many hosts"),
        (lambda: synthesise(single_switch(1, RATE)), "2 to 128 hosts"),
        (lambda: optimal_all_gather(single_switch(13, RATE)), "asked for 2 to 12 hosts, not 13"),
        (lambda: optimal_all_gather(torus((3, 4), RATE), 0.01), "neither found nor ruled out"),
        (lambda: incast(0, 1, 1, 1, 1, 1), "an incast needs"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(bad, says):
    with pytest.raises(TopologyError, match=says) as caught:
        bad()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("barrier", [True, False])
def test_rounds_without_bytes_take_no_time(barrier):
    chain = build("broadcast", "chain", 8, pieces=8)
    found = simulate(chain, 1, 1, leaf_spine(8, 8e9), barrier=barrier)
    # One byte goes down the chain of seven; seven of its eight pieces are empty.
    assert found.time_s == pytest.approx(7e-9)
    nothing = simulate(build("broadcast", "chain", 8, pieces=8), 0, 1, leaf_spine(8, 8e9))
    assert nothing.time_s == 0 and not nothing.link_bytes.any()
