# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A long way
#
# ```{spine} flows packets
# ```
#
# The gradient of the sentence has crossed racks and spines, and nowhere was it further from home
# than a hundred metres. Now half of the job stands on another continent. Nothing about the bytes
# changes. Only light has become slow.
#
# **How long is a byte under way, how many are under way at once, and how much of a fast link does
# TCP get when a packet is lost now and then, a round trip after it was sent?**

# %% tags=["parameters"]
here, there = "paris", "new york"
rate_bps = 400e9  # of the link between the sites
lab_rate = 100e6  # of the line in the lab, bit/s
live_rtt, live_loss, live_seconds = 0.04, 1e-2, 7  # of what is measured whenever this is made
keep = False  # measure the whole grid and write it to data/results/: ten minutes

# %% tags=["hide-input"]
import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, lab
from tokenlife.catalog import read_accelerator, read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.costs import count_parameters, forward_flops
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_count, format_rate, format_time
from tokenlife.wan import CONGESTIONS, Link, distance_km, light, routes, transfer_s
from tokenlife.wan.link import (
    TUNNEL_NAMES,
    go_back_n_ratio,
    goodput_ratio,
    pfc_headroom_bytes,
    segment_bytes,
    window_limit_bps,
)
from tokenlife.wan.response import RANDOM_LOSS, bbr_share, cubic_window, mathis_window, pftk_window
from tokenlife.wan.rounds import windows

charts.setup()
page = lab.Page("20_wan", ["lab/launch.py", "lab/program.py"])
sentence = running()["sentence"]
small = ModelConfig.load(running()["small"]["model"])
big = ModelConfig.load(running()["big"]["model"])

# %% [markdown]
# ## On the back of an envelope
#
# Glass slows light down by its index of refraction. What a sender has put into the fibre, and the
# other end has not yet seen, is rate times delay. What it must remember until it hears that all
# went well is a whole round trip of that: the {term}`bandwidth-delay product`.

# %% tags=["hide-input"]
way = Link(distance_km(here, there), rate_bps)
tokens = len(vocabularies.load(running()["small"]["vocabulary"]).encode(sentence))
gradient_bytes = 4 * count_parameters(small)
state_bytes = 2 * big.hidden
per_token = len(sentence.encode()) / tokens
charts.prose(
    f"From {here.title()} to {there.title()} it is {way.distance_km:,.0f} km along the ground. "
    f"Light in fibre goes {light()[1] / 1e6:.0f} km in a millisecond: "
    f"{{modelled}}`{format_time(way.delay_s)}` one way, {{modelled}}`{format_time(way.rtt_s)}` "
    f"there and back, if the cable were straight. At {format_rate(rate_bps)} the fibre holds "
    f"{{modelled}}`{format_bytes(way.in_flight_bytes)}`, and the bandwidth-delay product is "
    f"{{modelled}}`{format_bytes(way.bdp_bytes)}`: "
    f"{{modelled}}`{way.bdp_bytes / gradient_bytes:,.0f}` whole gradients of the running job, of "
    f"{format_bytes(gradient_bytes)} each.\n\n"
    f"*{sentence}* As text that is {tokens} tokens of {per_token:.1f} bytes; the fibre holds "
    f"{{modelled}}`{format_count(way.in_flight_bytes / per_token)}` tokens at a time. Cut a "
    f"pipeline of Llama 3.1 405B in mid-ocean, and each token crosses as a state of "
    f"{format_bytes(state_bytes)}: then {{modelled}}`{way.in_flight_bytes / state_bytes:,.0f}` "
    "tokens are somewhere in the sea."
)

# %% [markdown]
# ## The mechanism
#
# Two things make distance expensive, and neither is a lack of bandwidth. The first is any *window*.
# A sender that may have $W$ bytes under way sends $W$ a round trip, whatever the link could do.


# %%
def sent_in(seconds, window, rate_Bps, delay_s):
    """Bytes sent by a sender that stops when a window is under way."""
    sent, acknowledged, now, under_way = 0.0, 0.0, 0.0, []
    piece = window / 64
    while now < seconds:
        if sent - acknowledged + piece <= window:
            sent, now = sent + piece, now + piece / rate_Bps
            under_way.append((now + 2 * delay_s, sent))
        else:
            now, acknowledged = under_way.pop(0)
    return sent


window = 16 * 2**20
by_hand = sent_in(5, window, rate_bps / 8, way.delay_s) * 8 / 5
closed = window_limit_bps(way, window)
np.testing.assert_allclose(by_hand, closed, rtol=0.02)
print(format_rate(by_hand), "of", format_rate(rate_bps))

# %% [markdown]
# The second is how a window *grows*. {term}`Reno` adds one packet for each round trip without a
# loss and halves at a loss. Let each packet be lost with probability $p$:


# %%
def reno(loss, rounds=200_000, seed=0):
    """The mean window of additive increase and multiplicative decrease."""
    luck = np.random.default_rng(seed).random(rounds)
    window, total = 1 / loss**0.5, 0.0
    for draw in luck:
        total += window
        lost = draw > (1 - loss) ** window
        window = window / 2 if lost else window + 1
    return total / rounds


for loss in (1e-2, 1e-3, 1e-4):
    print(f"p = {loss:g}: window {reno(loss):6.1f} = {reno(loss) * loss**0.5:.2f} / √p")

# %% tags=["hide-input"]
charts.prose(
    "The mean window depends on the loss and on nothing else, as $C/\\sqrt p$ "
    f"{{cite}}`mathis1997macroscopic`. For losses at equal intervals $C = \\sqrt{{3/2}}$ = "
    f"{mathis_window(1.0):.2f}; where they fall at random, {RANDOM_LOSS} "
    "{cite}`ott1996stationary`, which the loop approaches as $p$ falls. The rate is a window per "
    "round trip. So twice the distance is half the rate, and a link that is a hundred times faster "
    "is not one bit faster: "
    f"at a loss of one packet in ten thousand, {here.title()} and {there.title()} talk at "
    f"{{modelled}}`{format_rate(mathis_window(1e-4, RANDOM_LOSS) * 1448 * 8 / way.rtt_s)}` over "
    f"any link. To fill {format_rate(rate_bps)} with packets of 1,448 bytes, Reno may lose one in "
    f"{{modelled}}`{format_count((way.bdp_bytes / 1448 / RANDOM_LOSS) ** 2)}`, about one in "
    f"{{modelled}}`{(way.bdp_bytes / 1448 / RANDOM_LOSS) ** 2 * 1448 * 8 / rate_bps / 3600:,.0f}` "
    "hours."
)

# %% [markdown]
# ## The library at scale
#
# A cable does not follow the great circle. A `Link` takes a route factor, or a known delay, and
# refuses one that would be faster than light in vacuum.

# %% tags=["hide-input"]
charts.prose(
    "Shortest paths through the conduits of the USA are in the median "
    f"{{published}}`{routes()['conduits']}` times as long as the straight line; what the Internet "
    f"delivers looks like {{published}}`{routes()['internet']}` times "
    "{cite}`bozkurt2018dissecting`."
)

# %% tags=["hide-input"]
PAIRS = [("paris", "london"), ("paris", "frankfurt"), ("paris", "new york"), ("paris", "singapore")]
far = pd.DataFrame(
    [
        {
            "sites": f"{a.title()}–{b.title()}",
            "km": distance_km(a, b),
            **{
                f"round trip, {name}": Link(distance_km(a, b), rate_bps, factor).rtt_s
                for name, factor in routes().items()
            },
            "BDP, straight": Link(distance_km(a, b), rate_bps).bdp_bytes,
            "with 16 MiB": window_limit_bps(Link(distance_km(a, b), rate_bps), window),
        }
        for a, b in PAIRS
    ]
)
charts.table(
    far,
    caption=f"Delay by route, bytes to keep {format_rate(rate_bps)} full, and the rate that a "
    "window of 16 MiB leaves",
    label=dict.fromkeys(far.columns[1:], "modelled"),
    formats={"km": ",.0f", "BDP, straight": format_bytes, "with 16 MiB": format_rate}
    | {f"round trip, {name}": format_time for name in routes()},
)

# %% tags=["hide-input"]
h100 = read_accelerator("h100-sxm")["peak_flops"]["bfloat16"]
answers = h100 * way.rtt_s / (forward_flops(big, 1, 1))
charts.prose(
    f"What does one round trip {here.title()}–{there.title()} cost? An H100 at its peak does "
    f"{{modelled}}`{h100 * way.rtt_s / 1e12:.0f}` TFLOP in it: Llama 3.1 405B could read "
    f"{{modelled}}`{answers:.0f}` tokens. A tensor-parallel layer waits for two all-reduces on the "
    f"way forward; over the ocean, the {big.layers} layers would wait "
    f"{{modelled}}`{format_time(2 * big.layers * way.rtt_s)}` for every token, before any "
    "byte is counted. Data parallelism asks once a step, and its question can be asked early. This "
    "decides the next chapter."
)

# %% [markdown]
# Congestion control is where kernels differ. CUBIC {cite}`rfc9438`, Linux's default, lets the
# window grow with the cube of the *time* since the last loss and not with the number of round
# trips: on long paths it is faster than Reno, on short ones it does what Reno would do. BBR
# {cite}`cardwell2016bbr` measures the rate and the delay of the path and does not answer a loss at
# all, as long as losses are below a fifth. The library holds closed forms of each, with timeouts
# too (PFTK {cite}`padhye1998modeling`), and plays Reno's and CUBIC's rules round by round where
# closed forms end: at random losses, near a full link, with a queue.

# %% tags=["hide-input"]
published = read_reference("11_wan_tcp")
rows = published[published.quantity.str.contains("C=0.4|TCP")].copy()
rows["rtt"] = rows.conditions.str.extract(r"rtt=([\d.]+)").astype(float)
rows["loss"] = rows.conditions.str.extract(r"loss=(\S+)").astype(float)
reno_rows = rows.quantity.str.contains("TCP")
rows["ours"] = np.where(
    reno_rows, mathis_window(rows.loss, 1.2), cubic_window(rows.loss, rows.rtt, constant=1.2)
)
rfc_worst = float((rows.ours / rows.value.astype(float) - 1).abs().max())
charts.prose(
    f"All {len(rows)} mean windows of Reno and CUBIC that the RFC prints (packets, round trips of "
    f"10 and 100 ms, losses from 10⁻² to 10⁻⁸) come out within {{modelled}}`{rfc_worst:.1%}`: it "
    "prints whole packets, and uses 1.2 for $\\sqrt{3/2}$."
)
assert rfc_worst < 0.02

# %% [markdown]
# ## A line of glass in the lab
#
# Two network namespaces, two sites. Between them a program holds every packet for as long as light
# would, drops some at random, and lets the rest pass at a fixed rate, behind a queue of one
# bandwidth-delay product. The TCP at both ends is the kernel's own. A connection's algorithm is
# chosen by a socket option.


# %%
def streams(here, congestion, seconds, skip):
    """Send over connections side by side; count what arrives once they are in their stride."""
    import selectors
    import socket
    import struct
    import time

    sender = here.rank == 0
    if sender:
        here.together(0.5)
        ends = []
        for name in congestion:
            ends.append(socket.create_connection(("10.77.0.2", 5301)))
            # Now, and not before: the lab's route asks for CUBIC when a connection opens.
            ends[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    else:
        door = socket.create_server(("10.77.0.2", 5301), backlog=64)
        here.together(0.5)
        ends = [door.accept()[0] for _ in congestion]
        door.close()
    ready = selectors.DefaultSelector()
    for index, end in enumerate(ends):
        end.setblocking(False)
        ready.register(end, selectors.EVENT_WRITE if sender else selectors.EVENT_READ, index)
    here.together(0.5)
    began, marks, count = time.monotonic(), [], [0] * len(ends)
    chunk, room, tick, trips_us = bytes(1 << 16), bytearray(1 << 20), began + skip, []
    for until in (skip, seconds):
        while (left := began + until - time.monotonic()) > 0:
            for key, _ in ready.select(left):
                end = key.fileobj
                count[key.data] += end.send(chunk) if sender else end.recv_into(room)
            if sender and time.monotonic() > tick:
                tick += 0.1
                info = [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232) for end in ends]
                trips_us.append([struct.unpack_from("I", each, 68)[0] for each in info])
        info = [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232) for end in ends]
        again = [struct.unpack_from("I", each, 100)[0] for each in info]
        segments, least_us = zip(
            *[struct.unpack_from("I4xI", each, 148)[::-1] for each in info], strict=True
        )
        marks.append((time.monotonic(), list(count), again, list(segments), list(least_us)))
    here.together(0.5)
    for end in ends:
        end.close()
    (start, *before, _), (stop, *after, least_us) = marks
    got, again, segments = (
        [y - x for x, y in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)
    )
    return {
        "time_s": stop - start,
        "bytes": got,
        "again": again,
        "segments": segments,
        "least_rtt_s": [us / 1e6 for us in least_us],
        "mean_rtt_s": [sum(us) / len(us) / 1e6 for us in zip(*trips_us, strict=True)],
    }


# %%
def messages(here, congestion, sizes):
    """Send messages, each over a connection of its own, then over one that is warm."""
    import socket
    import time

    sender, took = here.rank == 0, []
    if not sender:
        door = socket.create_server(("10.77.0.2", 5302), backlog=64)

    def connect():
        if not sender:
            return door.accept()[0]
        end = socket.create_connection(("10.77.0.2", 5302))
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        return end

    def carry(end, size):
        if sender:
            end.sendall(bytes(size))
            return
        while size:
            size -= len(end.recv(min(size, 1 << 20)))

    here.together(0.5)
    for size in sizes:
        here.together(0.3)
        began = time.monotonic()
        with connect() as end:
            carry(end, size)
            took.append(began if sender else time.monotonic())
            here.together(0.3)
    with connect() as end:
        carry(end, max(sizes))
        for size in sizes:
            here.together(0.4)
            began = time.monotonic()
            carry(end, size)
            took.append(began if sender else time.monotonic())
        here.together(0.3)
    return took


# %% tags=["hide-input"]
SIZES = [2**k for k in range(10, 25, 2)]
# Round trip and loss: [(connections side by side, seconds, of which so many are not counted)].
# Side by side are only connections that together leave the line more than half empty.
RARE = [(["bbr"], 12, 2)]
FREE = [(["reno"], 7, 3), (["cubic"], 7, 3), *RARE]
BOTH = ["reno"] * 2 + ["cubic"] * 2
CELLS = {
    (0.01, 0): FREE,
    (0.04, 0): FREE,
    (0.1, 0): FREE,
    (0.01, 1e-4): [(["reno"], 27, 2), (["cubic"], 27, 2)],
    (0.04, 1e-4): [(["reno"], 50, 5), (["cubic"], 50, 5)],
    (0.1, 1e-4): [(["reno"] * 3, 56, 14), (["cubic"] * 2, 46, 14)],
    (0.01, 1e-3): [(["reno"], 10, 2), (["cubic"], 10, 2), *RARE],
    (0.04, 1e-3): [(BOTH, 22, 5), *RARE],
    (0.1, 1e-3): [(BOTH, 34, 10), *RARE],
    (0.01, 1e-2): [(BOTH, 9, 1), *RARE],
    (0.04, 1e-2): [(BOTH, 10, 2), *RARE],
    (0.1, 1e-2): [(BOTH, 17, 4), *RARE],
}
STREAMS = [1, 2, 4, 8]
MANY = (0.1, 1e-3)  # round trip and loss for several streams


def on_the_line(run, calls, rtt, loss, live):
    """Measure, or read what was recorded: the grid is measured only to be kept."""
    return page.on_ranks(
        run,
        *calls,
        sites=[1, 1],
        delay_s=rtt / 2,
        rate_bps=lab_rate,
        loss=[[0, loss], [0, 0]],
        seed=1,
        measure=live or keep,
    )


# %% tags=["hide-input"]
points = on_the_line(
    "live",
    [(streams, {"congestion": BOTH, "seconds": live_seconds, "skip": 1})],
    live_rtt,
    live_loss,
    live=True,
)
grid = {
    (rtt, loss): on_the_line(
        f"grid {rtt:g} s, loss {loss:g}",
        [(streams, {"congestion": n, "seconds": s, "skip": k}) for n, s, k in cell],
        rtt,
        loss,
        live=False,
    ).found
    for (rtt, loss), cell in CELLS.items()
}
many = on_the_line(
    "streams",
    [(streams, {"congestion": ["reno"] * n, "seconds": 25, "skip": 8}) for n in STREAMS],
    *MANY,
    live=False,
)
began = on_the_line(
    "messages",
    [(messages, {"congestion": "cubic", "sizes": SIZES})],
    live_rtt,
    0,
    live=True,
)
if keep:
    page.keep()
charts.prose(f"{points.where} The grid was recorded.")

# %% tags=["hide-input"]
FRAME, PAYLOAD = 1514, 1448  # bytes of a full frame, and of TCP's payload in it


def seen_at(rtt, loss, found):
    """Sum up what two ranks saw of some connections, by algorithm."""
    lines = []
    for (sender, receiver), names in found:
        for name in dict.fromkeys(names):
            mine = [i for i, n in enumerate(names) if n == name]
            again, segments = (sum(sender[k][i] for i in mine) for k in ("again", "segments"))
            got = sum(receiver["bytes"][i] for i in mine) / len(mine)
            lines.append(
                {"rtt": rtt, "loss": loss, "algorithm": name, "connections": len(mine),
                 "rate": got * 8 / receiver["time_s"], "lost": again, "share": again / segments,
                 "trip": float(np.mean([sender["mean_rtt_s"][i] for i in mine]))}
            )  # fmt: skip
    return lines


def modelled(name, loss, rtt, rate=lab_rate, **more):
    """Return the payload rate of one connection over the line of the lab."""
    if name == "bbr":
        return rate * PAYLOAD / FRAME * bbr_share(loss, rtt)
    pipe = rate * np.asarray(rtt) / 8 / FRAME
    return windows(name, loss, rtt, pipe, pipe, **more) * PAYLOAD * 8 / np.asarray(rtt)


measured = pd.DataFrame(
    [
        line
        for (rtt, loss), found in grid.items()
        for line in seen_at(rtt, loss, zip(found, [n for n, _, _ in CELLS[rtt, loss]], strict=True))
    ]
)
full_bps = lab_rate * PAYLOAD / FRAME
# The loss and the round trip that a window met, unless the line's own queue made some of both: then
# those that were asked for.
free = (measured.rate < 0.7 * full_bps) & (measured.loss > 0)
measured["taken"] = np.where(free, measured.share, measured.loss)
measured["trip"] = np.where(free, measured.trip, measured.rtt)
for name in CONGESTIONS:
    mine = measured.algorithm == name
    for column, loss, trip in (("model", "taken", "trip"), ("asked", "loss", "rtt")):
        measured.loc[mine, column] = modelled(
            name, measured[loss][mine].to_numpy(), measured[trip][mine].to_numpy()
        )
measured["as asked"] = measured.asked / measured.rate - 1
measured["error"] = measured.model / measured.rate - 1
measured = measured.sort_values(["algorithm", "rtt", "loss"], ignore_index=True)
within = measured.error.abs() <= 0.15

# %% tags=["hide-input"]
losses = np.geomspace(3e-5, 3e-2, 13)
curves = pd.DataFrame(
    [
        {"algorithm": name, "rtt": round(rtt * 1e3), "loss": p, "Mbit/s": bps / 1e6}
        for name in CONGESTIONS
        for rtt in sorted({rtt for rtt, _ in CELLS})
        for p, bps in zip(losses, np.broadcast_to(modelled(name, losses, rtt), 13), strict=True)
    ]
)
dots = measured[measured.loss > 0].assign(
    **{"Mbit/s": measured.rate / 1e6, "rtt": (measured.rtt * 1e3).round().astype(int)}
)
COLOURS = [PALETTE["blue"], PALETTE["orange"], PALETTE["violet"]]
ask = alt.param(
    name="round_trip",
    value=100,
    bind=alt.binding_radio(options=[10, 40, 100], name="round trip, ms "),
)
colour = alt.Color("algorithm:N", legend=None).scale(domain=list(CONGESTIONS), range=COLOURS)
x = alt.X("loss:Q", title="share of packets lost (logarithmic)").scale(type="log", nice=False)
y = alt.Y("Mbit/s:Q", title="payload of one connection, Mbit/s (logarithmic)").scale(
    type="log", domain=[0.5, 150], nice=False
)
base = (
    alt.Chart(curves)
    .transform_filter("datum.rtt === round_trip")
    .encode(x.axis(values=[1e-4, 1e-3, 1e-2], format="~e"), y, colour)
)
tags = base.transform_filter(f"datum.loss < {losses[0] * 1.01}").mark_text(align="left", dx=4)
far_reno = measured[(measured.algorithm == "reno") & (measured.loss == 1e-2)].set_index("rtt").rate
(
    base.mark_line()
    + alt.Chart(dots)
    .transform_filter("datum.rtt === round_trip")
    .mark_point(filled=True, size=90)
    .encode(x, y, colour, tooltip=["algorithm:N", "loss:Q", alt.Tooltip("Mbit/s:Q", format=".3g")])
    + tags.transform_filter("datum.algorithm === 'bbr'").mark_text(align="left", dx=4, dy=-10)
    .encode(text="algorithm:N")
    + tags.transform_filter("datum.algorithm === 'cubic'").mark_text(align="left", dx=4, dy=-10)
    .encode(text="algorithm:N")
    + tags.transform_filter("datum.algorithm === 'reno'").mark_text(align="left", dx=4, dy=14)
    .encode(text="algorithm:N")
).add_params(ask).properties(
    title=f"100 ms, one packet in a hundred lost: Reno keeps {far_reno.iloc[-1] / full_bps:.1%}",
    description="Payload rate of one TCP connection over a line of "
    f"{format_rate(lab_rate)} against the share of lost packets, for Reno, CUBIC and BBR, at round "
    "trips of 10, 40 and 100 ms: curves modelled, points recorded. At 100 ms: "
    + "; ".join(
        f"{r.algorithm} at {r.loss:g}: {r.rate / 1e6:.3g} Mbit/s, model {r.model / 1e6:.3g}"
        for r in measured[measured.rtt == 0.1].itertuples()
    )
    + ".",
    height=300,
)  # fmt: skip

# %% tags=["hide-input"]
shown = measured[
    [
        "algorithm",
        "rtt",
        "loss",
        "connections",
        "lost",
        "share",
        "rate",
        "model",
        "error",
        "as asked",
    ]
].rename(columns={"rtt": "round trip", "share": "share lost", "rate": "recorded"})
charts.table(
    shown,
    caption=f"One connection over a line of {format_rate(lab_rate)}: payload rate, and the model "
    "at the loss and the round trip that it met; last, the error at those that were asked for",
    label={"lost": "recorded", "share lost": "recorded", "recorded": "recorded",
           "model": "modelled", "error": "modelled"},
    formats={"round trip": format_time, "loss": "g", "share lost": ".3g",
             "recorded": format_rate, "model": format_rate, "error": "+.1%", "as asked": "+.1%"},
)  # fmt: skip

# %% tags=["hide-input"]
worst = measured.loc[measured.error.abs().idxmax()]
by_name = measured.groupby("algorithm").error
asked_within = (measured["as asked"].abs() <= 0.15).sum()
charts.prose(
    f"{within.sum()} of {len(measured)} points lie within 15 % of the model; the worst is "
    f"{worst.algorithm} at {format_time(worst.rtt)} and a loss of {worst.loss:g}, "
    f"{{recorded}}`{worst.error:+.1%}`. The mean error is "
    + ", ".join(f"{{recorded}}`{by_name.mean()[n]:+.1%}` for {n}" for n in CONGESTIONS)
    + ". Where the line is far from full, the model is asked about the share of packets that was "
    "really lost and the round trip that the connection itself saw. It matters: a point with $n$ "
    "losses repeats only to about $1/\\sqrt n$, and the ends of the lab add a millisecond or two "
    "of their own, which is a fifth of 10 ms. Asked about the loss and the distance that were "
    f"wished, {asked_within} points stay within 15 %."
)

# %% tags=["hide-input"]
resent = measured[(measured.algorithm == "bbr") & (measured.loss <= 1e-3)]
greedy = resent.loc[resent.share.idxmax()]
small_windows = measured[(measured.loss == 1e-2) & (measured.algorithm == "cubic")].iloc[-1]
charts.prose(
    "At one loss in a hundred windows are a dozen packets. A receiver holds back the "
    "acknowledgement of an odd one for up to 40 ms, the connection takes that for distance (its "
    f"mean round trip is {{recorded}}`{format_time(small_windows.trip)}` on a line of "
    f"{format_time(small_windows.rtt)}), and so does the model, though the window seldom waits for "
    f"it: with the line's own round trip it is off by {{recorded}}`"
    f"{small_windows['as asked']:+.1%}` there and not by {{recorded}}`{small_windows.error:+.1%}`."
    "\n\nBBR fills the line at every loss, and this has a price: at "
    f"{format_time(greedy.rtt)} and {greedy.loss:.1%} of loss on the way it sent "
    f"{{recorded}}`{greedy.share:.0%}` of its packets twice. Its window is two bandwidth-delay "
    "products, as much as line and queue hold together, and it takes the fastest that it has seen "
    "lately for the rate of the path. This line hands packets over in clumps and looks faster than "
    "it is; the queue stays full and drops. Version 1 does not mind. Those who share the queue do."
)

# %% [markdown]
# What had to be put into the rounds before they agreed says what TCP really does:
#
# - **Windows are whole packets.** Half of 11 is 5. Small windows feel it, and CUBIC, which
#   multiplies by 0.7 and throws the rest away, more than Reno.
# - **A loss is seen a round trip late**, and the losses of that round trip count once. The round
#   after it runs at the reduced window and does not grow.
# - **Linux counts packets, not acknowledgements.** A receiver acknowledges every second packet, and
#   old formulas divide the growth by two for it ($b = 2$). With $b = 1$ they fit.
# - **CUBIC is Reno on short paths.** At 10 ms and these losses its cubic curve never leads; what is
#   left is an increase of half a packet a round trip and a decrease of 30 %, which average to the
#   same window.

# %% tags=["hide-input"]
whole = {
    "Reno": 1 - float(windows("reno", 1e-2, 0.1)) / mathis_window(1e-2),
    "CUBIC": 1 - float(windows("cubic", 1e-2, 0.1)) / float(cubic_window(1e-2, 0.1)),
}
charts.prose(
    "At a loss of one in a hundred the rounds stay "
    + " and ".join(f"{{modelled}}`{v:.0%}` below the closed form of {k}" for k, v in whole.items())
    + "; at one in a million they lie "
    + " and ".join(
        f"{{modelled}}`{float(windows(n, 1e-6, 0.1)) / float(closed) - 1:.0%}`"
        for n, closed in (("reno", mathis_window(1e-6)), ("cubic", cubic_window(1e-6, 0.1)))
    )
    + " above, since losses at random are kinder than losses at equal intervals."
)

# %% tags=["hide-input"]
one = measured[(measured.rtt == 0.1) & (measured.algorithm != "bbr") & (measured.loss > 0)].copy()
one["closed"] = np.where(
    one.algorithm == "reno", mathis_window(one.share), cubic_window(one.share, one["trip"])
)
one["with timeouts"] = pftk_window(one.share, one["trip"])
for column in ("closed", "with timeouts"):
    one[column] *= PAYLOAD * 8 / one["trip"]
one.loc[one.algorithm != "reno", "with timeouts"] = np.nan
charts.table(
    one[["algorithm", "loss", "rate", "model", "closed", "with timeouts"]].rename(
        columns={"rate": "recorded", "model": "rounds", "closed": "Mathis, RFC 9438",
                 "with timeouts": "PFTK"}
    ),
    caption="At 100 ms: the closed forms beside the rounds, at the share that was really lost",
    label={"recorded": "recorded", "rounds": "modelled", "Mathis, RFC 9438": "modelled",
           "PFTK": "modelled"},
    formats={"loss": "g", "PFTK": lambda v: "" if np.isnan(v) else format_rate(v)}
    | dict.fromkeys(["recorded", "rounds", "Mathis, RFC 9438"], format_rate),
)  # fmt: skip

# %% tags=["hide-input"]
now = pd.DataFrame(seen_at(live_rtt, live_loss, [(points.found[0], BOTH)]))
label = points.label
now["model"] = [
    float(modelled(name, share, rtt))
    for name, share, rtt in now[["algorithm", "share", "trip"]].itertuples(index=False)
]
charts.prose(
    f"And now: two connections each at {format_time(live_rtt)} and a loss of {live_loss:g}, for "
    f"{live_seconds - 1} seconds. "
    + ". ".join(
        f"{r.algorithm}, {r.lost} packets lost: {{{label}}}`{format_rate(r.rate)}`, modelled "
        f"{{modelled}}`{format_rate(r.model)}`"
        for r in now.itertuples()
    )
    + "."
)

# %% [markdown]
# ## Several connections
#
# If loss holds a connection to a window, then $n$ connections have $n$ windows. This is all that
# parallel streams do, and it is a lot. It is also unfair to everybody else on a shared line, which
# is why it is called a trick.

# %% tags=["hide-input"]
several = pd.DataFrame(
    [
        seen_at(*MANY, [(found, ["reno"] * n)])[0]
        for n, found in zip(STREAMS, many.found, strict=True)
    ]
)
several["recorded"] = several.rate * several.connections
several["modelled"] = [
    n * float(modelled("reno", share, rtt, streams=n))
    for n, share, rtt in several[["connections", "share", "trip"]].itertuples(index=False)
]
several["error"] = several.modelled / several.recorded - 1
charts.table(
    several[["connections", "lost", "share", "recorded", "modelled", "error"]],
    caption=f"Reno over {format_time(MANY[0])}, loss {MANY[1]:g}, all connections together",
    label={"recorded": "recorded", "share": "recorded", "lost": "recorded", "modelled": "modelled"},
    formats={"share": ".3g", "recorded": format_rate, "modelled": format_rate, "error": "+.1%"},
)

# %% [markdown]
# ## The first bytes
#
# A steady state is reached by those who send long enough. A fresh connection spends a round trip on
# the handshake, sends ten packets, waits, sends twenty, waits: {term}`slow start` doubles the
# window each round trip until the pipe is full.

# %% tags=["hide-input"]
sender, receiver = np.array(began.found[0])
spent = receiver - sender
label = began.label
lab_link = Link(0, lab_rate, delay_s=live_rtt / 2)
first = pd.DataFrame(
    [
        {"bytes": size, "connection": kind, "seconds": spent[i + k * len(SIZES)],
         "model": transfer_s(lab_link, size, full_bps, kind)}
        for k, kind in enumerate(("fresh", "warm"))
        for i, size in enumerate(SIZES)
    ]
)  # fmt: skip
first["error"] = first.model / first.seconds - 1
fine = np.geomspace(SIZES[0], SIZES[-1], 85).astype(int)
lines = pd.DataFrame(
    [
        {
            "bytes": size,
            "connection": kind,
            "seconds": transfer_s(lab_link, int(size), full_bps, kind),
        }
        for kind in ("fresh", "warm")
        for size in fine
    ]
)
tone = charts.LABELS[label]
x = (
    alt.X("bytes:Q", title="message (logarithmic)")
    .scale(type="log", base=2, nice=False)
    .axis(values=[2.0**k for k in (10, 14, 18, 22)], labelExpr=charts.SIZE_TICKS)
)
y = alt.Y("seconds:Q", title="until the last byte is there (logarithmic)").scale(
    type="log", domain=[0.015, 3], nice=False
)
colour = alt.Color("connection:N", legend=None).scale(
    domain=["fresh", "warm"], range=[PALETTE["orange"], PALETTE["blue"]]
)
base = alt.Chart(lines).encode(x, y.axis(**charts.LOG_TIME_AXIS), colour)
mid = first[first.bytes == 2**18].set_index("connection").seconds
tags = alt.Chart(lines[lines.bytes == fine[30]]).encode(x, y, colour, text="connection:N")
(
    base.mark_line()
    + alt.Chart(first)
    .mark_point(filled=True, size=70, shape=tone.shape)
    .encode(x, y, colour,
            tooltip=["connection:N", "bytes:Q", alt.Tooltip("seconds:Q", format=".3s")])
    + tags.mark_text(dy=-12, align="right")
).properties(
    title=f"256 KiB: {mid.fresh / mid.warm:.1f} times as long over a fresh connection",
    description=f"Time of one message over a line of {format_rate(lab_rate)} and "
    f"{format_time(live_rtt)} there and back, against its size, over a fresh and a warm "
    f"connection; lines modelled, points {label}: "
    + "; ".join(
        f"{r.connection} {r.bytes} bytes {format_time(r.seconds)}" for r in first.itertuples()
    )
    + ".",
    height=280,
)  # fmt: skip

# %% tags=["hide-input"]
charts.table(
    first.rename(columns={"seconds": label}),
    caption="The same as a table",
    label={label: label, "model": "modelled"},
    formats={"bytes": format_bytes, label: format_time, "model": format_time, "error": "+.1%"},
)

# %% tags=["hide-input"]
queue_bytes = lab_rate * live_rtt / 8
long_warm = first[(first.connection == "warm") & (first.bytes > queue_bytes)]
slower = long_warm.seconds / long_warm.model
charts.prose(
    "A fresh connection is a staircase: each step is a round trip, and in its place. Warm messages "
    f"up to the queue of the line, {format_bytes(queue_bytes)}, take what one delay and the rate "
    f"say; longer ones took {{{label}}}`{slower.min():.2f}` to {{{label}}}`{slower.max():.2f}` "
    "times as long. A warm window is sent at once, as fast as the host can: what the queue cannot "
    "hold is lost and sent again. Hosts that pace their packets avoid it; CUBIC alone does not."
)

# %% tags=["hide-input"]
wide = Link(way.distance_km, 100e9)
fresh_s, warm_s = (
    transfer_s(wide, gradient_bytes, wide.rate_bps * goodput_ratio(), k) for k in ("fresh", "warm")
)
charts.prose(
    f"The gradient of the running job, {format_bytes(gradient_bytes)}, over {format_rate(100e9)} "
    f"from {here.title()} to {there.title()}: {{modelled}}`{format_time(warm_s)}` if the "
    f"connection is warm, {{modelled}}`{format_time(fresh_s)}` if it is fresh. The rate of the "
    "link hardly occurs in either number. A training step computes for seconds and then sends: "
    "long enough for the kernel to forget its window, unless it is told not to "
    "(`tcp_slow_start_after_idle`)."
)

# %% [markdown]
# Somebody has measured exactly that without naming it: point-to-point transfers of NCCL between two
# machines in a cloud, with delay and rate added by the kernel. An *idle* connection starts anew at
# ten packets. With frames of 9,001 bytes, the largest in that cloud, and the added delay taken as
# that of the round trip (the source does not say):

# %% tags=["hide-input"]
p2p = published[published.table == "p2p"].copy()
p2p[["64 MiB", "128 MiB"]] = p2p.value.str.split(" / ", expand=True).astype(float) / 1e3
free_bps = 2**26 * 8 / float(p2p["64 MiB"].iloc[0])  # what the first row leaves
lines = []
for setting, *times in p2p.iloc[1:][["quantity", "64 MiB", "128 MiB"]].itertuples(index=False):
    setting = setting.split(":")[0]
    number, unit = setting.lstrip("+").split()
    if unit == "ms":
        link, steady = Link(0, 10e9, delay_s=float(number) / 2e3), free_bps
    else:  # a shaper counts whole frames
        link, steady = Link(0, 10e9), float(number) * 1e9 * segment_bytes(9001) / (9001 + 14)
    for size, seconds in zip((2**26, 2**27), times, strict=True):
        lines.append({"setting": setting, "bytes": size, "published": seconds,
                      "model": transfer_s(link, size, steady, "idle", 9001)})  # fmt: skip
p2p_beside = pd.DataFrame(lines)
p2p_beside["error"] = p2p_beside.model / p2p_beside.published - 1
charts.table(
    p2p_beside,
    caption="NCCL, one GPU to another over TCP, delay and rate shaped by tc (AWS); the rate with "
    "no delay added is taken from the source's first row",
    label={"published": "published", "model": "modelled"},
    formats={"bytes": format_bytes, "published": format_time, "model": format_time,
             "error": "+.1%"},
)  # fmt: skip

# %% [markdown]
# The rows with a delay lose the same time for 64 and for 128 MiB. That is no lack of rate and no
# fixed window; it is a window that has to grow first.
#
# ## Explore: distance, rate, loss

# %% tags=["hide-input"]
KM, RATES = [100, 500, 1000, 3000, 6000, 12000], [1, 10, 100, 400]
losses = np.geomspace(1e-8, 1e-2, 13)
km, gbps, p = (a.ravel() for a in np.meshgrid(KM, RATES, losses, indexing="ij"))
rtt = 2 * km * 1e3 / light()[1]
explored = pd.concat(
    [
        pd.DataFrame(
            {"km": km, "rate": gbps, "loss": p, "algorithm": name, "share": np.minimum(
                modelled(name, p, rtt, gbps * 1e9, connections=16) / (gbps * 1e9), 1).round(6)}
        )
        for name in CONGESTIONS
    ]
)  # fmt: skip
asks = [
    alt.param(name="km_asked", value=6000, bind=alt.binding_select(options=KM, name="km ")),
    alt.param(name="rate_asked", value=100,
              bind=alt.binding_select(options=RATES, name="link, Gbit/s ")),
]  # fmt: skip
colour = alt.Color("algorithm:N", legend=None).scale(domain=list(CONGESTIONS), range=COLOURS)
base = (
    alt.Chart(explored)
    .transform_filter("datum.km === km_asked && datum.rate === rate_asked")
    .encode(
        alt.X("loss:Q", title="share of packets lost (logarithmic)")
        .scale(type="log", nice=False)
        .axis(values=[1e-8, 1e-6, 1e-4, 1e-2], format="~e"),
        alt.Y("share:Q", title="payload, share of the link (logarithmic)")
        .scale(type="log", domain=[1e-6, 1.5], nice=False)
        .axis(format="~e", values=[1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1]),
        colour,
        tooltip=["algorithm:N", "loss:Q", alt.Tooltip("share:Q", format=".3g")],
    )
)
last = base.transform_filter("datum.loss > 5e-3")
at = explored[(explored.km == 6000) & (explored.rate == 100)].set_index(["algorithm", "loss"]).share
low = float(at["cubic"].iloc[6])
(
    base.mark_line(point=True)
    + last.transform_filter("datum.algorithm === 'bbr'").mark_text(align="right", dy=-10)
    .encode(text="algorithm:N")
    + last.transform_filter("datum.algorithm === 'cubic'").mark_text(align="right", dy=-12, dx=-6)
    .encode(text="algorithm:N")
    + last.transform_filter("datum.algorithm === 'reno'").mark_text(align="right", dy=18, dx=-6)
    .encode(text="algorithm:N")
).add_params(*asks).properties(
    title=f"6,000 km, 100 Gbit/s, one packet in 100,000 lost: CUBIC uses {low:.2%} of the link",
    description="Modelled share of a link's rate that one TCP connection uses, against the share "
    "of packets lost, for Reno, CUBIC and BBR; two menus choose the distance and the rate. At "
    "6,000 km and 100 Gbit/s: "
    + "; ".join(f"{n} at 1e-5 {float(at[n].iloc[6]):.2g}" for n in CONGESTIONS)
    + ".",
    height=300,
)  # fmt: skip

# %% [markdown]
# ## RDMA over a distance
#
# {term}`RDMA` has no window that grows by itself. What is under way is what has been posted, so a
# full link needs a bandwidth-delay product of posted work, in memory that is registered and cannot
# be touched until the acknowledgement is back. Ethernet made lossless by {term}`priority flow
# control` needs as much again at the *receiver* of every priority of every port: when a port asks
# for a pause, a round trip of bytes still comes. And where a card repeats everything from the lost
# packet on ({term}`go-back-N`), a loss costs a round trip.

# %% tags=["hide-input"]
DISTANCES = [0.1, 10, 100, 1000, 6000]
rdma = pd.DataFrame(
    [
        {
            "km": km,
            "posted": link.bdp_bytes,
            "messages of 1 MiB": link.bdp_bytes / 2**20,
            "headroom": pfc_headroom_bytes(link),
            "16 MiB posted": window_limit_bps(link, 2**24),
        }
        for km in DISTANCES
        for link in [Link(km, rate_bps)]
    ]
)
charts.table(
    rdma,
    caption=f"RDMA at {format_rate(rate_bps)}: bytes to be posted, pause headroom of a priority of "
    "a port, and the rate if 16 MiB are posted",
    label=dict.fromkeys(rdma.columns[1:], "modelled"),
    formats={"km": ",g", "posted": format_bytes, "messages of 1 MiB": ",.2f",
             "headroom": format_bytes, "16 MiB posted": format_rate},
)  # fmt: skip

# %% tags=["hide-input"]
span = np.geomspace(0.1, 10_000, 41)
LOSS_LINES = {"one in 10⁴": 1e-4, "one in 10⁶": 1e-6, "one in 10⁸": 1e-8}
again = pd.DataFrame(
    [
        {"km": km, "lost": name, "share": go_back_n_ratio(Link(km, rate_bps, loss=p))}
        for name, p in LOSS_LINES.items()
        for km in span
    ]
)
metro = go_back_n_ratio(Link(100, rate_bps, loss=1e-4))
base = alt.Chart(again).encode(
    alt.X("km:Q", title="distance, km (logarithmic)").scale(type="log", nice=False),
    alt.Y("share:Q", title="share of the rate that is new").axis(format="%"),
    alt.Color("lost:N", legend=None).scale(domain=list(LOSS_LINES), range=COLOURS),
)
tags = pd.DataFrame(
    {"lost": list(LOSS_LINES), "km": [0.6, 60, 1500], "share": [0.62, 0.72, 0.94],
     "text": [f"{name} lost" for name in LOSS_LINES]}
)  # fmt: skip
(
    base.mark_line()
    + alt.Chart(tags).mark_text(align="left").encode(
        x="km:Q", y="share:Q", text="text:N", color=alt.Color("lost:N", legend=None))
).properties(
    title=f"100 km, one packet in 10⁴ lost: go-back-N leaves {metro:.1%} of the rate",
    description=f"Modelled share of {format_rate(rate_bps)} that carries new packets under "
    "go-back-N, against distance, for three shares of lost packets. At 100 km: "
    + "; ".join(
        f"{name} {go_back_n_ratio(Link(100, rate_bps, loss=p)):.3g}"
        for name, p in LOSS_LINES.items()
    )
    + ".",
    height=260,
)  # fmt: skip

# %% [markdown]
# Repeating the lost packet alone leaves $1-p$, a straight line at the top. It asks the card to keep
# a window of packets that came too early. Over a distance this is the difference between a link and
# none.
#
# ## Tunnels
#
# Bytes that leave the building are encrypted. Who encrypts decides what a packet loses: MACsec on
# each span of the line, IPsec or WireGuard in a packet of their own.

# %% tags=["hide-input"]
tunnels = pd.DataFrame(
    [
        {"tunnel": name, "MTU": mtu, "payload of a packet": segment_bytes(mtu, name),
         "goodput": goodput_ratio(mtu, name),
         "cost": 1 - goodput_ratio(mtu, name) / goodput_ratio(mtu)}
        for mtu in (1500, 9000)
        for name in TUNNEL_NAMES
    ]
)  # fmt: skip
charts.table(
    tunnels,
    caption="TCP inside a tunnel, full packets; goodput is payload per byte of the link's time",
    label=dict.fromkeys(["payload of a packet", "goodput", "cost"], "modelled"),
    formats={"goodput": ".2%", "cost": ".2%"},
)

# %% [markdown]
# The bytes are cheap. What costs is a sender that does not know of the smaller packet inside: its
# packets are cut in two, or lost without a word, and then every window above tells what a share of
# lost packets does.

# %% [markdown]
# ## Where this stops being true
#
# - **Losses do not fall one by one.** A flapping link or a full queue loses many packets in a row.
#   Windows then halve once for all of them, or wait for a timeout, and the mean share says little.
# - **The line of the lab has one queue of one bandwidth-delay product, and nobody else on it.**
#   With others, BBR and CUBIC take shares that depend on who they meet.
# - **BBR here is version 1.** Later versions answer losses, and lose less to each other.
# - **Below five packets** of window, timeouts rule. The rounds do not play them; PFTK does.
# - **Packets keep their order here.** Spraying and multipath routes reorder, and Linux then waits
#   longer before it calls a packet lost.
# - **The route factor is a median.** Cables end where landing sites are; a break moves a route
#   around a continent.
# - **One line of 100 Mbit/s, in Python, on a shared machine.** The rules do not know the rate, but
#   no one has sent 400 Gbit/s here.
#
# ## Exercises
#
# ```{exercise}
# :label: wan-light
# A vendor offers 5 ms one way between Paris and Frankfurt, and 1 ms for a premium. What must be
# true of the second?
# ```
#
# ```{solution} wan-light
# :class: dropdown
# `Link(distance_km("paris", "frankfurt"), 1e9, delay_s=1e-3)` is refused: 478 km take 1.6 ms in
# vacuum, 2.3 ms in straight fibre. The premium buys another distance. Air (microwave) is near the
# first number.
# ```
#
# ```{exercise}
# :label: wan-streams
# How many Reno connections fill 100 Gbit/s over 60 ms at a loss of one in a million? And CUBIC?
# ```
#
# ```{solution} wan-streams
# :class: dropdown
# Reno: $1.31/\sqrt{10^{-6}}$ = 1,310 packets of 1,448 bytes in 60 ms are 253 Mbit/s, so about 370.
# CUBIC: $1.17 · 1.054 · (0.06/10^{-6})^{3/4}$ ≈ 4,700 packets, 910 Mbit/s, about 103. Compare
# `throughput_bps(Link(0, 100e9, delay_s=0.03, loss=1e-6), streams=103)`.
# ```
#
# ```{exercise}
# :label: wan-bucket
# Data parallelism sends its gradient in 25 buckets, one after another over one warm connection.
# What does the ocean cost if each bucket waits for the sum of the one before, and what if not?
# ```
#
# ```{solution} wan-bucket
# :class: dropdown
# A ring over two sites is two rounds, each a one-way delay. Waiting: 25 × 2 × 28.6 ms = 1.4 s of
# delay alone. Not waiting: 57 ms once, as long as the window holds what is under way.
# ```
#
# ```{exercise}
# :label: wan-queue
# Give the line of the lab a queue of 8 MB (`queue_bytes=8_000_000`) and send the messages again.
# Which points move?
# ```
#
# ```{solution} wan-queue
# :class: dropdown
# Only warm messages that are longer than the old queue: nothing overflows, and they come within two
# per cent of a delay and the rate. The price is a queue in which everybody else waits.
# ```
#
# ## Where the token goes next
#
# A byte can cross, at a price per question rather than per byte. Chapter 21 asks which of the
# questions of training may be asked over an ocean, and how rarely.
