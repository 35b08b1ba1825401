"""Training across sites: codes, outer steps, who is there, what it costs, what was published."""

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.catalog import read_reference
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.train import TrainingRecipe, load_checkpoint, save_checkpoint
from tokenlife.wan.compression import BITS, Blocks, CompressionError, Feedback, Largest
from tokenlife.wan.exchange import Exchange, ExchangeError
from tokenlife.wan.local_sgd import (
    LocalError,
    Method,
    Site,
    diloco,
    mean_of_weights,
    streaming,
)
from tokenlife.wan.local_time import step_s, wan_bytes
from tokenlife.wan.rehearsal import Replica, Sites, rows_of

vectors = st.lists(
    st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20), min_size=1,
    max_size=70,
).map(lambda values: np.array(values, np.float32))  # fmt: skip


# ---- codes ---------------------------------------------------------------------------------------


@given(vectors, st.sampled_from(BITS), st.sampled_from([4, 8, 32]))
def test_a_code_is_as_long_as_it_says_and_as_right_as_it_says(values, bits, block):
    code = Blocks(bits, block)
    data = code.encode(values)
    assert len(data) == code.size(values.size)
    back = code.decode(data, values.size)
    assert back.dtype == np.float32 and back.shape == values.shape
    if bits == 32:
        bound = np.zeros(values.size)
    elif bits == 16:
        bound = np.abs(values) / 2**8
    else:
        largest = [np.abs(values[i : i + block]).max() for i in range(0, values.size, block)]
        bound = np.repeat(largest, block)[: values.size] / (2 ** (bits - 1) - 1) / 2
    assert (np.abs(back - values) <= bound * (1 + 1e-5)).all()


def test_the_sixteen_bits_are_torchs_bfloat16():
    values = np.random.default_rng(0).normal(size=4097).astype(np.float32)
    values[:3] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.4e38  # ties go to even, and upwards to infinity
    mine = Blocks(16).decode(Blocks(16).encode(values[:-1]), 4096)
    np.testing.assert_array_equal(mine, torch.from_numpy(values[:-1]).bfloat16().float().numpy())


@given(st.lists(vectors, min_size=1, max_size=5), st.sampled_from([*BITS, 0.1, 0.5]))
def test_what_was_sent_and_what_is_owed_is_what_was_to_be_sent(parts, kind):
    length = min(map(len, parts))
    code = Largest(kind) if kind < 1 else Blocks(kind, 8)
    one, sent, total = Feedback(code), np.zeros(length), np.zeros(length)
    for part in parts:
        sent += code.decode(one.encode(part[:length]), length)
        total += part[:length].astype(float)
    largest = max(np.abs(part).max() for part in parts) * len(parts)
    np.testing.assert_allclose(sent + one.owed, total, atol=1e-5 * largest + 1e-30)


@given(vectors, st.floats(0.05, 1))
def test_the_largest_are_sent_and_none_that_is_smaller(values, share):
    code = Largest(share)
    data = code.encode(values)
    back = code.decode(data, values.size)
    assert len(data) == code.size(values.size)
    kept = back != 0
    np.testing.assert_array_equal(back[kept], values[kept])
    if kept.any() and not kept.all():
        assert np.abs(values[kept]).min() >= np.abs(values[~kept]).max()


def test_codes_refuse_what_they_cannot_hold():
    for bits in (0, 1, 3, 64):
        with pytest.raises(CompressionError, match=f"no code of {bits} bits; there are 32, 16, 8"):
            Blocks(bits)
    with pytest.raises(CompressionError, match="multiple of 4"):
        Blocks(4, 6)
    with pytest.raises(CompressionError, match="share must be above 0"):
        Largest(0)
    for code in (Blocks(4), Blocks(32), Largest(0.5)):
        with pytest.raises(CompressionError, match="not finite"):
            code.encode(np.array([1.0, np.nan]))
        with pytest.raises(CompressionError):
            code.decode(b"\0" * 7, 4)


# ---- outer steps ---------------------------------------------------------------------------------


class Line:
    """A worker whose loss is a square: its weights fall towards a place of its own."""

    def __init__(self, aim, start, rate=0.25):
        self.aim, self.weights, self.rate = np.asarray(aim, np.float32), np.array(start), rate

    def step(self):
        self.weights = self.weights - np.float32(self.rate) * (self.weights - self.aim)


def lines(sites=2, size=6, seed=0):
    """Whole numbers and quarters, so that few steps are exact in float32."""
    draw = np.random.default_rng(seed)
    start = draw.integers(-4, 5, size).astype(np.float32)
    return [Line(draw.integers(-8, 9, size), start) for _ in range(sites)]


def test_one_step_and_the_mean_of_weights_is_data_parallelism_exactly():
    workers = lines(4)
    weights = workers[0].weights.copy()
    sites = Sites(workers, mean_of_weights(1))
    for _ in range(5):
        sites.run(1)
        gradient = sum(weights - worker.aim for worker in workers) / np.float32(4)
        weights = weights - np.float32(0.25) * gradient
        for worker in workers:
            np.testing.assert_array_equal(worker.weights, weights)


def test_diloco_is_its_formula():
    workers, rate, momentum = lines(3), 0.7, 0.9
    theta, speed = workers[0].weights.astype(float), 0.0
    own = [worker.weights.astype(float) for worker in workers]
    sites = Sites(workers, diloco(4, rate=rate, momentum=momentum))
    for _ in range(3):
        sites.run(4)
        for _ in range(4):
            own = [w - 0.25 * (w - x.aim) for w, x in zip(own, workers, strict=True)]
        delta = theta - sum(own) / 3
        speed = momentum * speed + delta
        theta = theta - rate * (delta + momentum * speed)
        own = [theta] * 3
        np.testing.assert_allclose(sites.agreed, theta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [32, 4])
def test_streaming_of_one_fragment_without_delay_is_diloco(bits):
    one = Sites(lines(), diloco(3, bits))
    other = Sites(lines(), streaming(3, bits, fragments=1, behind=0))
    for sites in (one, other):
        sites.run(12)
    np.testing.assert_array_equal(one.agreed, other.agreed)
    assert one.sent == other.sent


@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(0, 3), st.sampled_from(BITS),
    st.integers(1, 3),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_all_sites_agree_to_the_bit_and_bytes_are_those_of_the_formula(
    every, fragments, behind, bits, k
):
    fragments, behind = min(fragments, every), min(behind, every - 1)
    size, rounds = 512 * fragments, 3
    sites = Sites(lines(k, size), streaming(every, bits, fragments, behind))
    sites.run(rounds * every + behind)
    for site in sites.sites[1:]:
        np.testing.assert_array_equal(site.agreed, sites.sites[0].agreed)
        np.testing.assert_array_equal(site.velocity, sites.sites[0].velocity)
    late = [f for step in range(1, behind + 1) for f in sites.method.due(step)]
    due = rounds + len(late) / fragments
    modelled = wan_bytes(size, every, bits, k) * every * due if k > 1 else 0
    assert sites.sent == [round(modelled)] * k


def test_each_fragment_is_due_once_every_h_steps():
    for every, fragments in ((7, 3), (20, 4), (5, 5), (6, 1)):
        method = Method(every, fragments=fragments)
        due = [f for step in range(11, 11 + every) for f in method.due(step)]
        assert sorted(due) == list(range(fragments))
        assert method.due(every) == [fragments - 1]


def test_what_cannot_be_is_refused_in_one_line():
    for wrong, said in (
        ({"every": 0}, "every must be at least 1 step, not 0"),
        ({"every": 2.5}, "every must be at least 1"),
        ({"every": 2, "fragments": 3}, "3 fragments need as many steps"),
        ({"every": 2, "behind": 2}, "arrive before it is due again"),
        ({"every": 2, "rate": 0}, "rate must be above 0"),
    ):
        with pytest.raises(LocalError, match=said) as error:
            Method(**wrong)
        assert "\n" not in str(error.value)
    with pytest.raises(CompressionError, match="no code of 5 bits"):
        Method(4, bits=5)
    with pytest.raises(LocalError, match="same weights"):
        Sites([Line([0], [0.0]), Line([0], [1.0])], mean_of_weights(1))
    with pytest.raises(LocalError, match="at least one site"):
        Site(np.zeros(4), mean_of_weights(1)).merge(np.zeros(4), 0, {})
    for wrong in ({"every": 0}, {"bits": 5}, {"sites": 1}):
        with pytest.raises(LocalError):
            wan_bytes(1e6, **wrong)
    with pytest.raises(LocalError, match="rate must be above 0"):
        step_s(1e6, 0.1, 0)
    with pytest.raises(LocalError, match="delay cannot be below"):
        step_s(1e6, 0.1, 1e9, delay_s=-1)


# ---- who is there --------------------------------------------------------------------------------


def test_a_site_that_was_away_comes_back_with_the_way_it_went():
    workers = lines(2)
    sites = Sites(workers, mean_of_weights(2))
    sites.run(2)
    before = sites.agreed.copy()
    alone = workers[1].weights.copy()
    sites.run(3, away={1: range(3, 6)})  # misses the exchange after step 4
    for _ in range(3):
        alone = alone - np.float32(0.25) * (alone - workers[1].aim)
    np.testing.assert_array_equal(workers[1].weights, alone)
    agreed = sites.agreed.copy()
    assert not np.array_equal(agreed, before)
    sent = list(sites.sent)
    sites.run(1)  # is back in step 6, and offers all of it
    alone = alone - np.float32(0.25) * (alone - workers[1].aim)
    went = alone - before
    own = workers[0]
    assert sites.sent[0] - sent[0] == 8 * agreed.size + 4 * agreed.size
    for worker in workers:
        np.testing.assert_array_equal(worker.weights, sites.agreed)
    # The mean of the two ways: site 0's last two steps, and all four of site 1.
    other = agreed
    for _ in range(2):
        other = other - np.float32(0.25) * (other - own.aim)
    np.testing.assert_allclose(
        sites.agreed, agreed + (other - agreed + went) / 2, rtol=1e-5, atol=1e-5
    )


def test_a_slow_site_takes_fewer_steps_and_counts_all_the_same():
    class Counting(Line):
        steps = 0

        def step(self):
            self.steps += 1
            super().step()

    workers = [Counting([8.0] * 4, np.zeros(4, np.float32)) for _ in range(2)]
    sites = Sites(workers, mean_of_weights(4))
    sites.run(8, pace=[1, 0.5])
    assert [worker.steps for worker in workers] == [8, 4]
    np.testing.assert_array_equal(workers[0].weights, workers[1].weights)
    with pytest.raises(LocalError, match="at least one site must stay"):
        sites.run(1, away={0: range(99), 1: range(99)})


# ---- the small model -----------------------------------------------------------------------------

SIZES = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8,
         "vocab_size": 64}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 64, 3000)
RECIPE = TrainingRecipe(steps=40, learning_rate=3e-3)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def replica(sites, rows=2):
    torch.manual_seed(0)
    model = Decoder(ModelConfig.from_hf(SIZES, "tiny"), attention="naive")
    return Replica(model, RECIPE, rows_of(TOKENS, rows, 8, sites, seed=5))


def test_gradients_that_are_exchanged_are_one_larger_batch():
    apart, whole = [replica(0), replica(1)], replica([0, 1])
    meeting, gradients = threading.Barrier(2), [None, None]

    def exchange(i):
        def mean(gradient):
            gradients[i] = gradient.copy()
            meeting.wait()
            return (gradients[0] + gradients[1]) / 2

        return mean

    for _ in range(3):
        threads = [
            threading.Thread(target=worker.step, args=(exchange(i),))
            for i, worker in enumerate(apart)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole.step()
    np.testing.assert_array_equal(apart[0].weights, apart[1].weights)
    np.testing.assert_allclose(apart[0].weights, whole.weights, atol=2e-5)


@pytest.mark.parametrize("method", [diloco(5, 4), streaming(6, 8, fragments=3, behind=2)])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path, method):
    whole = Sites([replica(0), replica(1)], method)
    whole.run(20, away={1: range(8, 12)})
    first = Sites([replica(0), replica(1)], method)
    first.run(11, away={1: range(8, 12)})  # with a site away, and with something on its way
    save_checkpoint(tmp_path / "sites.pt", first.state_dict())
    second = Sites([replica(0), replica(1)], method)
    second.load_state_dict(load_checkpoint(tmp_path / "sites.pt"))
    second.run(9, away={1: range(8, 12)})
    np.testing.assert_array_equal(second.agreed, whole.agreed)
    for a, b in zip(second.workers, whole.workers, strict=True):
        np.testing.assert_array_equal(a.weights, b.weights)
    assert second.sent == whole.sent
    with pytest.raises(LocalError, match="another method or model"):
        Sites([replica(0), replica(1)], diloco(7)).load_state_dict(first.state_dict())


# ---- over sockets --------------------------------------------------------------------------------


def run_at(sites, life, patience_s=math.inf):
    """Run a function of (exchange, number) at each site, in threads; return what each returned."""
    hub = Exchange(0, sites, ("127.0.0.1", 0), patience_s)
    found = [None] * sites

    def be(i):
        own = hub if i == 0 else Exchange(i, sites, hub.address, patience_s)
        try:
            with own:
                found[i] = life(own, i)
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=be, args=(i,)) for i in range(sites)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


@pytest.mark.parametrize("bits", [32, 4])
def test_sockets_carry_what_the_rehearsal_carries_byte_for_byte(bits):
    method, rounds = diloco(3, bits), 4
    workers = lines(3, 1024)
    together = Sites(lines(3, 1024), method)
    together.run(rounds * 3)

    def life(exchange, i):
        site = Site(workers[i].weights, method)
        for _ in range(rounds):
            for _ in range(3):
                workers[i].step()
            workers[i].weights = exchange.meet(site, workers[i].weights)
        return site.agreed, exchange

    found = run_at(3, life)
    for agreed, _ in found:
        np.testing.assert_array_equal(agreed, together.agreed)
    # The hub hands on, so in all as much is sent as if each had sent to each; and heads.
    heads = 13 * (2 + rounds * (2 + 2 * 2)) + rounds * 2 * (13 + 4)
    assert sum(exchange.sent for _, exchange in found) == sum(together.sent) + heads


def test_a_site_that_is_cut_off_is_waited_for_and_comes_back_without_harm():
    method, pause = mean_of_weights(1), threading.Event()
    held, silent, done = {}, threading.Event(), threading.Event()

    def hub_life(exchange):
        worker = Line([0.0] * 4, np.zeros(4, np.float32))
        site, missed = Site(worker.weights, method), 0
        while not done.is_set():
            worker.step()
            worker.weights = exchange.meet(site, worker.weights)
            held[exchange.round] = site.agreed.copy()
            missed += bool(exchange.away)
            silent.set() if missed else None
            pause.wait(0.01)
        return missed

    def life(exchange, i):
        if i == 0:
            return hub_life(exchange)
        worker, seen = Line([8.0] * 4, np.zeros(4, np.float32)), []
        site = Site(worker.weights, method)
        for round_ in range(30):
            worker.step()
            if round_ == 5:  # says nothing until the hub has lost its patience
                silent.wait()
            worker.weights = exchange.meet(site, worker.weights)
            seen.append((bool(exchange.away), exchange.round, site.agreed.copy()))
            pause.wait(0.01)
        done.set()
        return seen

    missed, seen = run_at(2, life, patience_s=0.5)
    away = [gone for gone, *_ in seen]
    assert missed and not away[-1] and not any(away[:5])
    for gone, round_, agreed in seen:
        if not gone:
            np.testing.assert_array_equal(agreed, held[round_])


def test_where_none_may_be_missing_a_site_that_dies_is_named():
    def life(exchange, i):
        site = Site(np.zeros(4), mean_of_weights(1))
        for _ in range(2 if i == 1 else 5):
            exchange.meet(site, np.zeros(4, np.float32))
        return "lived"

    found = run_at(3, life)
    assert isinstance(found[0], ExchangeError) and "site 1 is gone in round 3" in str(found[0])
    assert isinstance(found[2], ExchangeError) and "the hub is gone" in str(found[2])


def test_a_patient_hub_goes_on_without_a_site_that_dies_and_takes_it_back():
    died, done = threading.Event(), threading.Event()

    def worker_and_site():
        worker = Line([8.0] * 4, np.zeros(4, np.float32))
        return worker, Site(worker.weights, mean_of_weights(1))

    def life(exchange, i):
        worker, site = worker_and_site()
        held = {}
        for round_ in range(200):
            worker.step()
            worker.weights = exchange.meet(site, worker.weights)
            held[exchange.round] = site.agreed.copy(), set(exchange.away)
            if i == 1 and round_ == 1:
                return reborn(exchange)
            if i == 0 and exchange.away:
                died.set()
            if done.is_set():
                break
        return held

    def reborn(dead):
        for line in dead._lines.values():
            line.socket.close()
        died.wait()
        worker, site = worker_and_site()
        held = {}
        with Exchange(1, 3, dead.address, 5, again=True) as exchange:
            while len(held) < 5:
                worker.step()
                worker.weights = exchange.meet(site, worker.weights)
                if not exchange.away:
                    held[exchange.round] = site.agreed.copy()
            done.set()
        return held

    hub, back, other = run_at(3, life, patience_s=5)
    assert any(away == {1} for _, away in hub.values())
    for round_, agreed in back.items():
        np.testing.assert_array_equal(agreed, hub[round_][0])
        np.testing.assert_array_equal(agreed, other[round_][0])


# ---- what it costs, and what was published -------------------------------------------------------


def test_bytes_and_time_of_simple_cases():
    n, compute = 10**6, 0.1
    assert wan_bytes(n, sites=4, summed=True) == 6e6 and wan_bytes(n, sites=4) == 12e6
    assert wan_bytes(n, 20, 4) == (n / 2 + 4 * math.ceil(n / 256)) / 20
    plain = step_s(wan_bytes(n, summed=True), compute, 1e8, delay_s=0.02)
    assert plain == pytest.approx(compute + 0.02 + 4 * n * 8 / 1e8)
    seldom = step_s(wan_bytes(n, 10), compute, 1e8, 10, delay_s=0.02)
    assert seldom == pytest.approx(compute + (0.02 + 4 * n * 8 / 1e8) / 10)
    hidden = step_s(wan_bytes(n, 10), compute, 1e8, 10, delay_s=0.02, behind=4)
    assert hidden == pytest.approx(compute)
    full = step_s(wan_bytes(n, 10), compute, 1e6, 10, fragments=5, behind=9)
    assert full >= 4 * n * 8 / 1e6 / 10  # no faster than the link
    grid = step_s(wan_bytes(n, np.array([1, 5])), compute, np.array([[1e8], [1e9]]), [1, 5])
    assert grid.shape == (2, 2) and grid[0, 0] == step_s(wan_bytes(n), compute, 1e8)


def test_streaming_dilocos_simulation_is_reproduced():
    """Table 4: 75 rates, of which each was printed as a point of a grid of 50.

    One number is fitted: of 16 (or 4) bits for each of the nominal parameters 0.84 are sent.
    """
    grid = 10 ** (-1 + 4 * np.arange(50) / 49)
    off = []
    for row in read_reference("11_streaming_diloco").itertuples():
        every = 1 if row.method == "Data-Parallel" else 100
        bits = 4 if "FP4" in row.method else 16
        each = step_s(
            wan_bytes(0.84 * row.parameters, every, bits, block=0), row.step_s, grid * 1e9, every,
            fragments=row.layers // 3 if "Streaming" in row.method else 1,
            behind=int("overlapped" in row.method), layers=row.layers,
        )  # fmt: skip
        first = int(np.argmax(row.step_s / each >= row.utilisation))
        off.append(first - int(np.argmin(abs(grid - row.rate_gbps))))
    assert len(off) == 75 and max(map(abs, off)) <= 1 and off.count(0) >= 65


def published(method, quantity):
    table = read_reference("11_diloco")
    rows = table[table.method.str.startswith(method) & (table.quantity == quantity)]
    return rows.value.to_numpy(float)


def test_published_bytes_and_utilisations_are_reproduced():
    plain, seldom = (published(m, "terabytes exchanged") for m in ("Data", "Streaming"))
    modelled = wan_bytes(1e9, 1, 16, block=0) / wan_bytes(1e9, 100, 4, block=0)
    np.testing.assert_allclose(plain / seldom, modelled, rtol=3e-3)
    all_reduce, used = (
        published("INTELLECT-1", q) for q in ("median all-reduce, s", "compute utilisation, %")
    )
    minutes = published("INTELLECT-1", "inner steps of a round, min")[0]
    step = 60 * minutes / 100
    for seconds, percent in zip(all_reduce, used, strict=True):
        sent = wan_bytes(1e10, 100, 8)  # whatever rate makes the exchange take as long as it did
        each = step_s(sent, step, 8 * sent * 100 / seconds, 100)
        assert 100 * step / each == pytest.approx(percent, abs=0.11)
    reduction = published("INTELLECT-1", "bandwidth reduction")[0]
    assert wan_bytes(1e10) / wan_bytes(1e10, 100, 8, block=0) == reduction


def test_published_hours_at_a_gigabit_are_reproduced():
    """Table 1: what 24 layers of a billion parameters take, from what they take without a network.

    The time of a step is that of the simulation's 1e9 parameters, 0.1 s as printed.
    """
    for method, every, bits, more in (
        ("Data", 1, 16, {}),
        ("Streaming", 100, 4, {"fragments": 8, "behind": 1}),
    ):
        alone, at_1g = (
            published(method, f"hours at {what}") for what in ("infinite bandwidth", "1 Gbit/s")
        )
        sent = wan_bytes(1e9, every, bits, block=0)
        each = step_s(sent, 0.1, 1e9, every, layers=24, **more)
        np.testing.assert_allclose(alone * each / 0.1, at_1g, rtol=0.04)
