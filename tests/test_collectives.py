"""Every collective algorithm does what its collective is defined to do, at the price it claims."""

import math
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.collectives import (
    Round,
    Schedule,
    ScheduleError,
    algorithm,
    algorithms,
    build,
    definition,
    pipelined,
    reverse,
    run,
    uneven_all_to_all,
    verify,
)
from tokenlife.collectives.bounds import lower_bound
from tokenlife.collectives.cost import Hockney, Tiers, price_grid
from tokenlife.collectives.hierarchical import hierarchical_all_gather
from tokenlife.collectives.schedule import even_cut
from tokenlife.collectives.terms import log2_down, log2_up
from tokenlife.interop.goal import goal_text

RANKS = [*range(1, 34), 64, 100, 128]

# Options beside the defaults, for algorithms that have some.
VARIANTS = {
    "tree": [{"fan": 1}, {"fan": 3, "pieces": 4}, {"fan": 40, "pieces": 2}, {"pieces": 7}],
    "chain": [{"pieces": 5}],
    "double_tree": [{"pieces": 2}, {"pieces": 9}],
    "pat": [{"aggregate": 1}, {"aggregate": 3}],
    "ring_channels": [{"channels": 1}, {"channels": 4}],
    "torus_2d": [{"width": 2}, {"width": 5}],
    "torus_3d": [{"width": 3}, {"height": 2}, {"width": 2, "height": 4}],
    "hierarchical": [{"node": 1}, {"node": 2}, {"node": 5}, {"node": 32}],
    "gateways": [{"node": 2}, {"node": 4, "gateways": 2}, {"node": 5}, {"node": 6, "gateways": 6}],
    "pxn": [{"node": 1}, {"node": 2}, {"node": 5}, {"node": 32}],
    "switch_tree": [{"radix": 2}, {"radix": 4, "pieces": 5}],
    "nvls": [{"pieces": 2}, {"pieces": 3}, {"pieces": 8}],
}
CASES = [
    pytest.param(a, options, id="-".join([a.kind, a.name, *map(str, options.values())]))
    for a in algorithms()
    for options in [{}, *VARIANTS.get(a.name, [])]
]
ALL = [pytest.param(a, id=f"{a.kind}-{a.name}") for a in algorithms()]


def able(a, options, ranks):
    return [n for n in ranks if a.supports(n, **{**a.options, **options})]


def roots(a, ranks, every):
    if not definition(a.kind).rooted:
        return [{}]
    chosen = range(ranks) if every else sorted({0, ranks // 2, ranks - 1})
    return [{"root": root} for root in chosen]


@pytest.mark.parametrize(("a", "options"), CASES)
def test_every_rank_ends_with_what_the_definition_says(a, options):
    counts = able(a, options, RANKS)
    assert len(counts) >= 3
    for n in counts:
        for root in roots(a, n, every=not options and n < 34):
            schedule = build(a.kind, a.name, n, **options, **root)
            assert (schedule.kind, schedule.algorithm, schedule.ranks) == (a.kind, a.name, n)
            assert schedule.root == root.get("root", 0)
            verify(schedule, once=a.once)


def test_the_claim_that_nothing_comes_twice_is_not_made_too_rarely():
    loose = [a for a in algorithms() if not a.once]
    assert {a.name for a in loose} == {"scatter_all_gather", "nvls", "gateways"}
    for a in loose:
        with pytest.raises(ScheduleError, match="times"):
            verify(build(a.kind, a.name, 8), once=True)


@pytest.mark.parametrize("a", ALL)
def test_ports_are_claimed_as_few_as_can_be(a):
    schedule = build(a.kind, a.name, 16)
    if schedule.ports > 1:
        with pytest.raises(ScheduleError, match="port"):
            verify(schedule.renamed(ports=schedule.ports - 1))


def expected(kind, buffers, root):
    """Return the result by the words of the definition, block by block."""
    ranks, items = buffers.shape
    ends = np.concatenate([[0], np.cumsum(even_cut([items], ranks))])
    out = np.zeros_like(buffers)
    for rank in range(ranks):
        mine = slice(ends[rank], ends[rank + 1])
        if kind == "broadcast" or (kind == "send" and rank == (root + 1) % ranks):
            out[rank] = buffers[root]
        elif kind == "scatter":
            out[rank, mine] = buffers[root, mine]
        elif kind == "gather":
            out[root, mine] = buffers[rank, mine]
        elif kind == "all_gather":
            out[:, mine] = buffers[rank, mine]
        elif kind == "all_reduce" or (kind == "reduce" and rank == root):
            out[rank] = buffers.sum(axis=0)
        elif kind == "reduce_scatter":
            out[rank, mine] = buffers[:, mine].sum(axis=0)
        elif kind == "all_to_all":
            out[rank] = buffers[:, mine].reshape(-1)
    return out


@pytest.mark.parametrize(
    ("a", "options"), [case for case in CASES if case.values[0].kind != "barrier"]
)
def test_buffers_of_any_size_come_out_as_defined(a, options):
    rng = np.random.default_rng(1)
    for n in able(a, options, [1, 2, 3, 4, 5, 8, 10, 13, 16, 30, 32])[:6]:
        for items, root in product([0, 1, 7, 61], roots(a, n, every=False)):
            if a.kind == "all_to_all":
                items *= n
            buffers = rng.integers(-1000, 1000, (n, items))
            result = run(build(a.kind, a.name, n, **options, **root), buffers)
            want = expected(a.kind, buffers, root.get("root", 0))
            np.testing.assert_array_equal(result, want, f"{n} ranks, {items} items, {root}")


def round_by_round(schedule, items):
    """Return rounds, sent and added: the longest message, and what one rank adds, of each round."""
    offsets = schedule.chunk_offsets(items)
    sent = added = 0
    for index in range(len(schedule.rounds)):
        by_pair, by_rank = {}, {}
        for send in schedule.rounds[index]:
            size = int(offsets[send.chunk + send.count] - offsets[send.chunk])
            pair = send.src, send.dst
            by_pair[pair] = by_pair.get(pair, 0) + size
            if send.dst < schedule.ranks:
                by_rank[send.dst] = by_rank.get(send.dst, 0) + size * send.reduce
        assert by_pair, f"round {index} is empty"
        sent += max(by_pair.values())
        added += max(by_rank.values(), default=0)
    return len(schedule.rounds), sent, added


@pytest.mark.parametrize(("a", "options"), CASES)
def test_the_closed_form_is_the_price_of_the_schedule(a, options):
    counts, items = able(a, options, [*range(1, 20), 32, 40]), []
    for n in counts:
        for root in roots(a, n, every=False)[-1:]:
            schedule = build(a.kind, a.name, n, **options, **root)
            items.append(12 * n * schedule.blocks * schedule.pieces)
            terms = a.terms(n, items[-1], **options)
            got = [terms.rounds, terms.sent_bytes, terms.reduced_bytes]
            np.testing.assert_allclose(got, round_by_round(schedule, items[-1]), err_msg=f"{n}")
    many = a.terms(np.array(counts), np.array(items) * [[1.0], [2.0]], **{**a.options, **options})
    for row, column in product([0, 1], range(len(counts))):
        one = a.terms(counts[column], items[column] * (row + 1.0), **{**a.options, **options})
        for field in ("rounds", "sent_bytes", "reduced_bytes"):
            grid = np.broadcast_to(getattr(many, field), (2, len(counts)))
            assert grid[row, column] == pytest.approx(getattr(one, field))


# What must cross the network at least, in whole buffers over all ranks, where no switch adds.
LEAST = {
    "broadcast": lambda n: n - 1,
    "reduce": lambda n: n - 1,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "all_reduce": lambda n: 2 * (n - 1),
    "all_to_all": lambda n: n - 1,
    "barrier": lambda n: 0,
    "send": lambda n: min(n - 1, 1),
}
# Those that send more: whole buffers, or blocks that are neither the sender's nor the receiver's.
MORE = [
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "halving_doubling"),
    ("all_reduce", "gateways"),
    ("broadcast", "scatter_all_gather"),
    ("reduce", "reduce_scatter_gather"),
    ("scatter", "binomial"),
    ("gather", "binomial"),
    ("all_to_all", "bruck"),
    ("all_to_all", "hierarchical"),
    ("all_to_all", "pxn"),
    ("barrier", "dissemination"),
]


@pytest.mark.parametrize("a", ALL)
def test_no_algorithm_sends_less_than_must_be_sent(a):
    for n in able(a, {}, [2, 5, 8, 24]):
        schedule = build(a.kind, a.name, n)
        if schedule.switches:
            continue
        items = 24 * n * schedule.pieces
        total, least = schedule.bytes_sent_per_node(items, 1).sum(), LEAST[a.kind](n) * items
        if (a.kind, a.name) not in MORE:
            assert total == least
        assert total >= least


def test_through_an_adding_switch_a_rank_sends_its_buffer_about_once():
    tree, nvls = (build("all_reduce", name, 8, pieces=3) for name in ("switch_tree", "nvls"))
    assert (tree.bytes_sent_per_rank(240, 1) == 240).all()
    assert (nvls.bytes_sent_per_rank(240, 1) == 240 + 240 / 8).all()
    assert tree.bytes_sent_per_node(240, 1)[8] == 8 * 240


def test_a_double_tree_uses_every_port_fully():
    schedule = build("broadcast", "double_tree", 100, root=7, pieces=4)
    inner = [set(), set()]
    for sends in schedule.rounds:
        for send in sends:
            inner[send.chunk // 4].add(send.src)
    assert inner[0] & inner[1] == {7}
    size, deep = 1e9, {"pieces": 2000}
    full = algorithm("broadcast", "double_tree").terms(1023, size, **deep).sent_bytes
    half = algorithm("broadcast", "tree").terms(1023, size, fan=2, **deep).sent_bytes
    assert full == pytest.approx(size, rel=0.01)
    assert half == pytest.approx(2 * size, rel=0.01)


def test_pxn_and_hierarchies_cross_between_nodes_only_along_a_rail():
    for kind, name in [
        ("all_to_all", "pxn"),
        ("all_to_all", "hierarchical"),
        ("all_reduce", "hierarchical"),
    ]:
        for sends in build(kind, name, 24, node=4).rounds:
            far = sends.src // 4 != sends.dst // 4
            assert (sends.src[far] % 4 == sends.dst[far] % 4).all()
    between = 0
    gather = hierarchical_all_gather(24, 4)
    for sends in gather.rounds:
        between += sends.count[(sends.src == 0) & (sends.dst // 4 != 0)].sum()
    assert between == 24 / 4 - 1


def test_the_linear_all_to_all_has_the_price_of_loggp():
    latency_ns, size, n = 2000, 2**20, 8
    terms = algorithm("all_to_all", "linear").terms(n, n * size)
    assert terms.rounds * (latency_ns - 1) + terms.sent_bytes == 7_354_025


@pytest.mark.parametrize("a", ALL)
def test_any_schedule_can_be_pipelined(a):
    schedule = pipelined(build(a.kind, a.name, 8), 3)
    verify(schedule, once=a.once)
    if a.kind != "barrier":
        items = 40 if a.kind == "all_to_all" else 37
        buffers = np.arange(8 * items).reshape(8, items)
        np.testing.assert_array_equal(run(schedule, buffers), expected(a.kind, buffers, 0))


def test_backwards_twice_is_forwards():
    forth = build("all_gather", "bruck", 7)
    twice = reverse(reverse(forth, "reduce_scatter"), "all_gather")
    assert [list(r) for r in twice.rounds] == [list(r) for r in forth.rounds]


def without(sends, row):
    keep = np.arange(len(sends)) != row
    return Round(*(getattr(sends, c)[keep] for c in ("src", "dst", "chunk", "count", "reduce")))


def doubled(sends, row):
    rows = np.append(np.arange(len(sends)), row)
    return Round(*(getattr(sends, c)[rows] for c in ("src", "dst", "chunk", "count", "reduce")))


@pytest.mark.parametrize("a", ALL)
def test_a_send_less_or_one_too_many_is_found(a):
    schedule = build(a.kind, a.name, 8)
    rng = np.random.default_rng(2)
    last = len(schedule.rounds) if a.once else 1
    changes = [without] if a.kind == "barrier" else [without, doubled]
    for index, change in product(range(last), changes):
        rounds = list(schedule.rounds)
        rounds[index] = change(rounds[index], rng.integers(len(rounds[index])))
        with pytest.raises(ScheduleError):
            verify(schedule.renamed(rounds=tuple(rounds)), once=a.once)


@st.composite
def tables(draw):
    n = draw(st.integers(1, 8))
    rows = st.lists(st.integers(0, 20), min_size=n, max_size=n)
    return np.array(draw(st.lists(rows, min_size=n, max_size=n)))


@settings(max_examples=40, deadline=None)
@given(tables())
def test_an_uneven_all_to_all_sends_what_the_table_says(counts):
    n = len(counts)
    away = (counts.sum(axis=1) - counts.diagonal()) * 4
    for a in algorithms("all_to_all", n):
        schedule = uneven_all_to_all(counts, a.name)
        verify(schedule, once=a.once)
        sent = schedule.bytes_sent_per_rank(0, 4)
        assert sent.sum() >= away.sum()
        if a.name in ("linear", "pairwise"):
            assert sent.tolist() == away.tolist()


def test_logarithms_are_exact_at_powers_of_two():
    n = np.array([2**k + d for k in range(2, 50) for d in (-1, 0, 1)])
    assert log2_up(n).tolist() == [(int(v) - 1).bit_length() for v in n]
    assert log2_down(n).tolist() == [int(v).bit_length() - 1 for v in n]


@pytest.mark.parametrize("a", ALL)
def test_a_thousand_ranks_are_built_in_no_time(a):
    started = time.process_time()
    schedule = build(a.kind, a.name, 1024)
    assert time.process_time() - started < 1
    assert len(schedule.rounds[len(schedule.rounds) // 2]) > 0


@pytest.mark.parametrize("name", ["ring", "bidirectional_ring", "ring_channels"])
def test_the_largest_rings_are_lazy(name):
    started = time.process_time()
    rounds = build("all_reduce", name, 16_384).rounds
    assert len(rounds[12_345 % len(rounds)]) >= 16_384
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: build("all_sum", "ring", 4), "no collective 'all_sum'; known: broadcast"),
        (
            lambda: build("all_reduce", "rang", 4),
            "no algorithm 'rang' for all_reduce; known: .*ring",
        ),
        (
            lambda: build("all_to_all", "pairwise", 6),
            "power of two, not 6; for 6 ranks: .*linear",
        ),
        (lambda: build("all_gather", "swing", 12), "for 12 ranks: .*bruck.*torus_2d"),
        (lambda: build("all_reduce", "torus_2d", 7), "a product of numbers above 1.* not 7"),
        (lambda: build("all_reduce", "torus_2d", 8, width=3), "not 8"),
        (lambda: build("all_reduce", "hierarchical", 8, node=5), "a multiple of .*`node`, not 8"),
        (lambda: build("all_reduce", "switch_tree", 8, radix=1), "a `radix` above 1"),
        (lambda: build("all_reduce", "ring_channels", 6, channels=3), "`channels`, not 6"),
        (lambda: build("broadcast", "tree", 4, root=4), "root 4 is not among the ranks 0 to 3"),
        (lambda: build("broadcast", "tree", 4, root=-1), "root -1"),
        (lambda: build("broadcast", "tree", 4, pieces=0), "pieces must be at least 1, not 0"),
        (lambda: build("all_reduce", "ring", 4, pieces=2), "has no option 'pieces'; it takes none"),
        (lambda: build("all_reduce", "ring", 4, root=1), "has no option 'root'"),
        (lambda: build("broadcast", "tree", 4, fun=2), "'fun'; it takes fan, pieces, root"),
        (lambda: build("all_reduce", "ring", 0), "1 to 1,048,576 ranks, not 0"),
        (lambda: pipelined(build("all_reduce", "ring", 4), 0), "pieces must be at least 1"),
        (lambda: uneven_all_to_all([[1, 2]]), r"shape \(ranks, ranks\), not \(1, 2\)"),
        (lambda: uneven_all_to_all([[1, -2], [0, 0]]), "whole numbers"),
        (lambda: uneven_all_to_all([[1.5]]), "whole numbers"),
        (lambda: build("all_reduce", "ring", 4).chunk_items(-1), "cannot have -1 items"),
        (lambda: verify(Schedule("all_gather", "odd", 3, 2, ())), "its definition has 3"),
        (lambda: build("all_reduce", "ring", 4.5), "ranks, not 4.5"),
        (lambda: algorithm("all_reduce", "swing").terms(6, 1024), "not 6"),
        (lambda: algorithm("all_reduce", "torus_2d").terms(np.array([4, 7]), 1024), "not 7"),
        (lambda: run(build("all_to_all", "linear", 3), np.ones((3, 7))), "7 items are no even"),
        (lambda: goal_text(build("all_reduce", "ring", 4), 8, 1, float("nan")), "not nan"),
        (lambda: lower_bound("all_reduce", 0, 1024), "at least one rank"),
        (lambda: price_grid("all_reduce", [], [], Hockney(1e-6, 1e-9)), "at least one rank"),
        (lambda: Tiers(Hockney(0, 0), Hockney(0, 0), math.nan), "at least one rank, not nan"),
    ],
)
def test_bad_input_is_told_in_one_line(call, says):
    with pytest.raises(ScheduleError, match=says) as told:
        call()
    assert "\n" not in str(told.value)
