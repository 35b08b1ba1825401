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
# # Network limits
#
# ```{spine} flows
# ```
#
# Until now every rank had a cable of its own and nobody else was sending. The gradient of the
# sentence now leaves a host among many. Its messages become {term}`flows <flow>`: each takes a path
# of links, and other flows want the same links.
#
# **Who gets how much of a link that two flows want, and what does a fabric with fewer cables, an
# unlucky hash or one slow cable do to an all-reduce that was priced without them?**

# %% tags=["parameters"]
hosts = 64
rate_bps = 400e9  # of a cable, each way
bytes_ = 2**30  # of the buffer of a rank
alpha_s = 5e-6  # latency of a message
lab_rate = 100e6  # of the links of the lab, bit/s
lab_bytes = 2**20  # that each sender of the lab's incast sends
lab_senders = [1, 2, 3]
growth = [512, 1024, 2048, 4096]  # flows
keep = False  # write what is measured to data/results/, for readers without the lab

# %% tags=["hide-input"]
import math
import time

import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, lab
from tokenlife.catalog import read_record
from tokenlife.charts import PALETTE
from tokenlife.collectives import build, verify
from tokenlife.collectives.cost import Hockney, price
from tokenlife.network import (
    max_min,
    parse_topology,
    route,
    simulate,
    simulate_flows,
    single_switch,
)
from tokenlife.network.congestion import incast, incast_floor_s
from tokenlife.network.fabrics import fat_tree, leaf_spine, torus
from tokenlife.network.optimum import optimal_all_gather
from tokenlife.network.routing import colliding, expected_colliding
from tokenlife.network.synthesise import synthesise
from tokenlife.units import format_bytes, format_rate, format_time
from tokenlife.wire import tcp_over_ethernet

charts.setup()
page = lab.Page(
    "17_network_limits",
    ["lab/launch.py", "lab/program.py"],
)

# %% [markdown]
# ## On the back of an envelope
#
# {term}`Oversubscription <oversubscription>` is how many cables lead down from a switch for each
# one that leads up. If everybody wants to go up, everybody gets that fraction.

# %% tags=["hide-input"]
alone_s = 2 * (hosts - 1) / hosts * bytes_ * 8 / rate_bps
charts.prose(
    f"A buffer of {format_bytes(bytes_)} over {hosts} hosts with cables of "
    f"{format_rate(rate_bps)}: the least for an all-reduce is $2(n-1)/n · S$ through each cable, "
    f"{{modelled}}`{format_time(alone_s)}`. With one cable up for four down, an algorithm whose "
    f"messages all leave the leaf takes up to {{modelled}}`{format_time(4 * alone_s)}`. An "
    "algorithm whose messages mostly stay below the leaf does not notice. The ring is of "
    "the second kind as "
    "long as neighbours in the ring are neighbours in the racks."
)

# %% [markdown]
# ## The mechanism
#
# Two flows that want one link get half each. If one of them is held up elsewhere, the other takes
# what is left. Carried to the end this is {term}`max–min fairness`: nobody can have more without
# someone who has no more than they do having less. It is found by filling: raise all rates
# together until a link is full, freeze its flows, go on {cite}`bertsekas1992data`.


# %%
def fill(paths, capacity):
    """Raise all rates together; freeze the flows of each link that is full."""
    rates, left = {}, dict(capacity)
    while len(rates) < len(paths):
        rising = {f: path for f, path in paths.items() if f not in rates}
        level = {
            link: left[link] / n
            for link in left
            if (n := sum(link in path for path in rising.values()))
        }
        tightest = min(level, key=level.get)
        for f, path in rising.items():
            if tightest in path:
                rates[f] = level[tightest]
                for link in path:
                    left[link] -= rates[f]
    return rates


fill({"A": ["x"], "B": ["x", "y"], "C": ["y"]}, {"x": 100, "y": 40})

# %% [markdown]
# B and C share the narrow link, and A has all that B leaves of the wide one. The library does the
# same in arrays and freezes every link at once that is the tightest for all of its own flows. On
# random flows over an oversubscribed fabric the two must agree:

# %%
draw = np.random.default_rng(0)
fabric = leaf_spine(32, rate_bps, 8, 2)
src = draw.integers(0, 32, 80)
dst = (src + draw.integers(1, 32, 80)) % 32
routes = route(fabric, src, dst)
rates = max_min(routes, fabric.link_bps)
paths = {f: routes.link[routes.flow == f].tolist() for f in range(80)}
by_hand = fill(paths, dict(enumerate(fabric.link_bps)))
np.testing.assert_allclose(rates, [by_hand[f] for f in range(80)], rtol=1e-9)
used = routes.load(fabric.links, rates) / fabric.link_bps
print(f"equal; fullest link {used.max():.0%}, mean link {used.mean():.0%}")

# %% [markdown]
# ## The same all-reduce on seven fabrics
#
# The schedule is laid on the fabric, rank *r* on host *r*. In each round its messages are flows;
# they share links, and the round ends when the slowest has arrived. With a switch that has a port
# for everybody this must be the price of chapter 15, because nothing meets:

# %%
ring = build("all_reduce", "ring", hosts)
items = bytes_ // 4
star = simulate(ring, items, 4, single_switch(hosts, rate_bps), alpha_s=alpha_s)
priced = price(ring, items, 4, Hockney(alpha_s, 8 / rate_bps))
assert math.isclose(star.time_s, priced.time_s, rel_tol=1e-9)
format_time(star.time_s, 4)

# %% tags=["hide-input"]
SEVEN = {
    "single switch": "single-switch",
    "leaf–spine": "leaf-spine:per_leaf=8",
    "leaf–spine, 4 : 1": "leaf-spine:per_leaf=8,oversubscription=4",
    "fat tree": "fat-tree",
    "rail-optimised": "rail-optimised",
    "dragonfly": "dragonfly",
    "torus 8 × 8": "torus-2d",
}
ALGORITHMS = {
    "ring": "ring",
    "halving–doubling": "halving_doubling",
}
rows = [
    {
        "fabric": title,
        "algorithm": shown,
        "time": simulate(
            build("all_reduce", name, hosts),
            items,
            4,
            parse_topology(text, hosts, rate_bps),
            alpha_s=alpha_s,
        ).time_s,
    }
    for title, text in SEVEN.items()
    for shown, name in ALGORITHMS.items()
]
seven = pd.DataFrame(rows)
seven["times"] = seven.time / star.time_s
wide = seven.pivot_table(index="fabric", columns="algorithm", values="time", sort=False)
base = alt.Chart(seven).encode(
    y=alt.Y("fabric:N", title=None, sort=list(SEVEN)),
    x=alt.X("times:Q", title="times the ring on one switch (logarithmic)")
    .scale(type="log", domain=[0.7, 10], nice=False)
    .axis(values=[1, 2, 3, 5, 10]),
    color=alt.Color("algorithm:N", legend=None).scale(
        domain=list(ALGORITHMS), range=[PALETTE["blue"], PALETTE["orange"]]
    ),
    tooltip=["fabric:N", "algorithm:N", alt.Tooltip("times:Q", format=".2f")],
)
names = (
    base.transform_filter("datum.fabric === 'torus 8 × 8'")
    .mark_text(dy=16)
    .encode(text="algorithm:N")
)
ring_worst = float(seven[seven.algorithm == "ring"].times.max())
other_worst = float(seven[seven.algorithm == "halving–doubling"].times.max())
(base.mark_point(filled=True, size=90, opacity=0.9) + names).properties(
    title=f"The ring loses at most {ring_worst:.1f}×, halving–doubling up to {other_worst:.1f}×",
    description=f"Modelled time of an all-reduce over {hosts} hosts on seven fabrics, as multiples "
    "of the ring on one switch: "
    + "; ".join(f"{r.fabric}, {r.algorithm} {r.times:.2f}" for r in seven.itertuples())
    + ".",
    height=alt.Step(38),
)

# %% tags=["hide-input"]
charts.table(
    wide.reset_index(),
    caption=f"All-reduce of {format_bytes(bytes_)} over {hosts} hosts, ECMP, by fabric",
    label=dict.fromkeys(wide.columns, "modelled"),
    formats=dict.fromkeys(wide.columns, format_time),
)

# %% [markdown]
# An algorithm's price is not a property of the algorithm. The ring sends to its neighbour, so few
# of its flows meet. Halving–doubling sends half of the buffer across the
# middle of the fabric, all ranks at once. Where there is no full {term}`bisection <bisection
# bandwidth>`, or where a hash puts two of these flows on one cable, it waits.
#
# ## Explore: fabric, oversubscription, ranks, size
#
# Each point is a simulation. Messages pay the same latency on every path here, so a time is exactly
# linear in the size, and one simulation serves all sizes.

# %% tags=["hide-input"]
FABRICS = {"leaf–spine": "leaf-spine:per_leaf=8", "fat tree": "fat-tree:radix=16",
           "rail-optimised": "rail-optimised"}  # fmt: skip
RANKS, OVER = [16, 32, 64], [1, 2, 4]
sizes = 2.0 ** np.arange(12, 35, 2)
grid = []
for title, text in FABRICS.items():
    for over in OVER:
        for n in RANKS:
            joint = "," if ":" in text else ":"
            on = parse_topology(f"{text}{joint}oversubscription={over}", n, rate_bps)
            for shown, name in ALGORITHMS.items():
                schedule = build("all_reduce", name, n)
                per_byte = simulate(schedule, 2**20, 1, on).time_s / 2**20
                start_s = len(schedule.rounds) * alpha_s
                grid += [
                    {"f": title, "o": over, "n": n, "algorithm": shown, "bytes": size,
                     "time": start_s + size * per_byte}
                    for size in sizes
                ]  # fmt: skip
grid = pd.DataFrame(grid)
ask = [
    alt.param(name="fabric", value="leaf–spine",
              bind=alt.binding_select(options=list(FABRICS), name="fabric ")),
    alt.param(name="over", value=4,
              bind=alt.binding_select(options=OVER, name="oversubscription ")),
    alt.param(name="group", value=64, bind=alt.binding_select(options=RANKS, name="ranks ")),
]  # fmt: skip
chosen = alt.Chart(grid).transform_filter(
    "datum.f === fabric && datum.o === over && datum.n === group"
)
base = chosen.encode(
    x=alt.X("bytes:Q", title="buffer of a rank (logarithmic)")
    .scale(type="log", base=2, nice=False)
    .axis(values=[2.0**k for k in (15, 20, 25, 30)], labelExpr=charts.SIZE_TICKS),
    y=alt.Y("time:Q", title="time (logarithmic)")
    .scale(type="log", domain=[1e-5, 10], nice=False)
    .axis(**charts.LOG_TIME_AXIS),
    color=alt.Color("algorithm:N", legend=None).scale(
        domain=list(ALGORITHMS), range=[PALETTE["blue"], PALETTE["orange"]]
    ),
    tooltip=["algorithm:N", alt.Tooltip("time:Q", format=".3s")],
)
ends = base.transform_filter("datum.bytes > 9e5 && datum.bytes < 1.2e6")  # 1 MiB
label_up = ends.transform_filter("datum.algorithm === 'ring'").mark_text(dy=-14)
label_down = ends.transform_filter("datum.algorithm !== 'ring'").mark_text(dy=16)
(
    base.mark_line() + label_up.encode(text="algorithm:N") + label_down.encode(text="algorithm:N")
).add_params(*ask).properties(
    title="Where the lines cross moves with the fabric",
    description="Modelled time of ring and halving–doubling all-reduce against the size of the "
    "buffer, for a chosen fabric, oversubscription and number of ranks.",
    height=300,
)

# %% [markdown]
# ## Hashes that collide
#
# Where several paths are equally short, a switch picks one by a hash of the flow's {term}`5-tuple`:
# both addresses, both ports, the protocol. All packets of a flow then keep their order. This is
# {term}`ECMP <ECMP>`. The hash does not know how full a path is. Of $n$ flows over $m$ paths, each
# meets none of the others with probability $(1-1/m)^{n-1}$, so $n(1-(1-1/m)^{n-1})$ flows are
# expected to share. The real hash (CRC-32 of the tuple, mixed with the switch's number), over 200
# draws of ports each:

# %% tags=["hide-input"]
ways = 16
two_tiers = leaf_spine(2 * ways, rate_bps, ways)
meets = []
for flows in (2, 4, 8, 12, 16):
    seen, slow = [], []
    for trial in range(200):
        taken = route(two_tiers, np.arange(flows), ways + np.arange(flows), source_port=97 * trial)
        seen.append(colliding(taken, two_tiers))
        slow.append(rate_bps / max_min(taken, two_tiers.link_bps).min())
    meets.append({"flows": flows, "simulated": np.mean(seen) / flows,
                  "closed form": expected_colliding(flows, ways) / flows,
                  "slowest flow": np.mean(slow)})  # fmt: skip
meets = pd.DataFrame(meets)
x = alt.X("flows:Q", title=f"flows over {ways} paths").scale(domain=[0, 17], nice=False)
share = alt.Y("closed form:Q", title="flows that share a cable").axis(format="%")
last = meets.iloc[-1]
(
    alt.Chart(meets).mark_line(color=PALETTE["grey"]).encode(x, share.scale(domain=[0, 1]))
    + alt.Chart(meets)
    .mark_point(filled=True, size=80, color=PALETTE["blue"])
    .encode(x, alt.Y("simulated:Q"), tooltip=["flows:Q", alt.Tooltip("simulated:Q", format=".1%")])
    + alt.Chart(meets.tail(1)).mark_text(align="right", dy=60, dx=-4).encode(
        x, alt.Y("simulated:Q"), text=alt.value("points: hashed; line: closed form"))
).properties(
    title=f"{ways} flows, {ways} paths: {last.simulated:.0%} of the flows share a cable",
    description="Share of flows that share a cable between switches with another flow, by the hash "
    "and in closed form: "
    + "; ".join(
        f"{flows} flows {simulated:.2f} and {closed:.2f}"
        for flows, simulated, closed, _ in meets.itertuples(index=False)
    )
    + ".",
    height=250,
)  # fmt: skip

# %% tags=["hide-input"]
charts.table(
    meets,
    caption=f"Flows over {ways} equal paths: the share that meets another, and how many times "
    "slower the slowest flow is than alone (mean of 200 draws; a collective waits for it)",
    label=dict.fromkeys(["simulated", "closed form", "slowest flow"], "modelled"),
    formats={"simulated": ".1%", "closed form": ".1%", "slowest flow": ".2f"},
)

# %% tags=["hide-input"]
across = build("all_reduce", "halving_doubling", hosts)
full = leaf_spine(hosts, rate_bps, 8)
pieces = 16  # flowlets of a flow
hashed_s, cut_s, sprayed_s = (
    simulate(across, items, 4, full, how=how, flowlets=parts).time_s
    for how, parts in (("ecmp", 1), ("ecmp", pieces), ("spray", 1))
)
assert sprayed_s < cut_s < hashed_s
charts.prose(
    f"As many paths as flows, and still hardly anyone is alone. Halving–doubling on the leaf–spine "
    f"without oversubscription takes {{modelled}}`{format_time(hashed_s)}` with ECMP. A switch may "
    f"hash anew after each pause of a flow; with {pieces} such {{term}}`flowlets <flowlet>` it "
    f"takes {{modelled}}`{format_time(cut_s)}`. If every packet took another path ({{term}}`packet "
    f"spraying`), it would take {{modelled}}`{format_time(sprayed_s)}`, the time of one switch. "
    "The price is order: packets overtake one another, and the receiver must put them back. "
    "Flowlets keep their order, if the pauses are longer than the paths differ."
)

# %% [markdown]
# ## Many to one
#
# An {term}`incast`: many senders, one receiver. No routing helps, all flows end in one cable. The
# floor is the bytes over the rate.

# %% tags=["hide-input"]
senders, each = 127, 2e6
floor_s = incast_floor_s(senders, each, rate_bps)
star = single_switch(senders + 1, rate_bps)
flow_s = simulate_flows(
    star, route(star, np.arange(1, senders + 1), np.zeros(senders, int)), np.full(senders, each)
).time_s
assert math.isclose(floor_s, flow_s, rel_tol=1e-9)
rtt_s = 8e-6
went = {b: incast(senders, each, rate_bps, rtt_s, b, 2e5, 4096) for b in (2e6, 2e7, 2e9)}
charts.table(
    pd.DataFrame({
        "buffer of the port": [format_bytes(b) for b in went],
        "time": [w.time_s for w in went.values()],
        "longest queue": [w.queue_bytes.max() for w in went.values()],
        "sent again": [w.lost_bytes for w in went.values()],
    }),
    caption=f"{senders} senders of {format_bytes(each)} to one host at {format_rate(rate_bps)}, "
    f"round trip {format_time(rtt_s)}, marks from 200 kB of queue",
    label=dict.fromkeys(["time", "longest queue", "sent again"], "modelled"),
    formats={"time": lambda t: format_time(t, 4), "longest queue": format_bytes,
             "sent again": format_bytes},
)  # fmt: skip

# %% tags=["hide-input"]
charts.prose(
    f"The floor is {{modelled}}`{format_time(floor_s, 4)}`, and the flow simulation finds it. What "
    "it does not find is the queue. Before the first mark comes back every sender sends at full "
    f"rate: {senders} cables into one for a round trip. The fluid model of windows says how "
    "much that is. With a small buffer most of it is dropped and sent again, and a "
    "sender that waits "
    "for a time-out, which this model leaves out, loses far more than the bytes."
)

# %% [markdown]
# The lab can do this for real, with its links held. Rank 0 receives from one, two or three others
# at once. The prediction is fair shares of the receiver's link, counted in frames.


# %%
def into_one(here, senders, size):
    import torch
    import torch.distributed as dist

    buffers = torch.zeros(here.ranks, size // 4)
    took = []
    for _ in range(3):
        here.together()
        with here.counted() as sent:
            if here.rank == 0:
                for work in [dist.irecv(buffers[r], r) for r in range(1, senders + 1)]:
                    work.wait()
            elif here.rank <= senders:
                dist.send(buffers[here.rank], 0)
        took.append(sent["time_s"])
    return took


# %% tags=["hide-input"]
every, label, _ = page.on_ranks(
    "incast",
    *((into_one, {"senders": k, "size": lab_bytes}) for k in lab_senders),
    ranks=4,
    namespaces=True,
    rate=lab_rate,
)
found = [each[0] for each in every]
framed = tcp_over_ethernet(1500).frame(lab_bytes)
lab_star = single_switch(4, lab_rate)
said = [
    simulate_flows(
        lab_star,
        route(lab_star, range(1, k + 1), [0] * k),
        # The lab's buckets count frames, not preambles and gaps.
        np.full(k, framed.frame_bytes),
    ).time_s
    for k in lab_senders
]
real = [float(np.median(times)) for times in found]
many = pd.DataFrame({"senders": lab_senders, "flow model": said, label: real})
many["error"] = many["flow model"] / many[label] - 1
charts.table(
    many,
    caption=f"Incast of {format_bytes(lab_bytes)} from each sender over links of "
    f"{format_rate(lab_rate)}, median of 3",
    label={"flow model": "modelled", label: label},
    formats={"flow model": format_time, label: format_time, "error": "+.1%"},
)

# %% [markdown]
# The model is late by about the same few milliseconds each time. A token bucket that has been idle
# is full, and lets what four milliseconds of the rate are worth pass at once.
#
# ## One slow cable, one dead one
#
# A collective waits for its slowest member. So does the ring, in every round.

# %% tags=["hide-input"]
whole = single_switch(hosts, rate_bps)
factors = [1, 0.75, 0.5, 0.25, 0.1]
slow = pd.DataFrame({
    "speed of one cable of all": factors,
    **{
        shown: [simulate(s, items, 4, whole.degraded([5], f)).time_s for f in factors]
        for shown, s in (("ring", ring), ("halving–doubling", across))
    },
})  # fmt: skip
charts.table(
    slow,
    caption=f"All-reduce over {hosts} hosts on one switch, with one of {whole.links} links slow",
    label=dict.fromkeys(["ring", "halving–doubling"], "modelled"),
    formats={"speed of one cable of all": ".0%", "ring": format_time,
             "halving–doubling": format_time},
)  # fmt: skip

# %% tags=["hide-input"]
middle = np.flatnonzero(full.between_switches & (full.link_src < full.link_dst))
broken = []
for cut in (0, 1, 2, 4, 8):
    gone = draw.permutation(middle)[:cut]
    twin = np.concatenate([gone, gone + full.links // 2])  # the other direction of the same cable
    left = full.degraded(twin, 0) if cut else full
    broken.append({"cables cut": cut,
                   **{how: simulate(across, items, 4, left, how=how).time_s
                      for how in ("ecmp", "spray")}})  # fmt: skip
broken = pd.DataFrame(broken)
charts.table(
    broken,
    caption=f"Halving–doubling on a leaf–spine of {len(middle)} cables between switches, some cut",
    label=dict.fromkeys(["ecmp", "spray"], "modelled"),
    formats=dict.fromkeys(["ecmp", "spray"], format_time),
)

# %% [markdown]
# A cable at half speed makes the whole ring take twice as long, though it is one of many. That is
# why operators look for links that are *slow*, and not only for those that are down. A dead cable
# between switches is gone round at once: with spraying it costs the share of the cables of its
# leaf, with a hash it costs whatever the new collisions cost, and may even bring a gain.
#
# ## A schedule made for its fabric
#
# If the fabric decides, the fabric can be asked first. A greedy matching, after TACOS
# {cite}`won2024tacos`, gives every free path the rarest chunk that its end still lacks, round by
# round. `verify` accepts the result like any other schedule.

# %%
small = torus((4, 4), rate_bps)
made = synthesise(small, "all_reduce")
verify(made)
for schedule in (build("all_reduce", "ring", 16), made):
    found = simulate(schedule, items, 4, small, how="first", alpha_s=alpha_s)
    print(f"{schedule.algorithm}: {len(schedule.rounds)} rounds, {format_time(found.time_s)}")

# %% [markdown]
# The ring uses one of the four cables that a host has in each direction, the made schedule all of
# them. On one switch, with one cable to a host, there is nothing to gain: the ring is optimal.
#
# How good is greedy? On small fabrics a solver can tell. Whether link $l$ carries chunk $c$ in
# round $t$ is a yes or a no; that nobody sends what it lacks and no link carries two chunks are
# linear rules; the least rounds for which they can be met are the optimum {cite}`cai2021sccl`.

# %% tags=["hide-input"]
compared = []
for fabric in (torus((3, 3), rate_bps), torus((2, 2, 2), rate_bps), torus((3, 4), rate_bps),
               torus((8,), rate_bps), single_switch(8, rate_bps)):  # fmt: skip
    best = optimal_all_gather(fabric)
    verify(best)
    into = np.bincount(fabric.link_dst)[: fabric.hosts].min()
    compared.append(
        {"fabric": f"{fabric.name}, {fabric.hosts} hosts", "ring": fabric.hosts - 1,
         "greedy": len(synthesise(fabric).rounds), "solver": len(best.rounds),
         "what the cables allow": math.ceil((fabric.hosts - 1) / into)}
    )  # fmt: skip
compared = pd.DataFrame(compared)
charts.table(compared, caption="Rounds of an all-gather on small fabrics", label="modelled")

# %% tags=["hide-input"]
assert (compared.solver == compared["what the cables allow"]).all()
charts.prose(
    "Every optimum here is what the cables into one host allow, and no schedule can be below that. "
    f"Greedy needs a round more on {{modelled}}`{(compared.greedy > compared.solver).sum()}` of "
    f"these {{modelled}}`{len(compared)}` fabrics."
)

# %% [markdown]
# ## Beside a packet simulation
#
# The same flows in ns-3 {cite}`riley2010ns3`, over its TCP, packet by packet: two switches joined
# by one cable, all cables alike at 100 Mbit/s. Recorded; the script is `tests/bench/network.py`.

# %% tags=["hide-input"]
packets = read_record("17_ns3")["values"]["cases"]
beside = pd.DataFrame({
    "case": [c["case"] for c in packets],
    "packets": [c["packets"]["finish_s"][-1] for c in packets],
    "flow model": [c["flow_model"]["finish_s"][-1] for c in packets],
})  # fmt: skip
beside["error"] = beside["flow model"] / beside.packets - 1
beside["worst flow"] = [
    np.abs(np.divide(c["flow_model"]["finish_s"], c["packets"]["finish_s"]) - 1).max()
    for c in packets
]  # fmt: skip
worst = float(beside.error.abs().max())
charts.table(
    beside,
    caption="Time until all flows have ended, and the error of the worst single flow",
    label={"packets": "recorded", "flow model": "modelled"},
    formats={"packets": lambda t: format_time(t, 4), "flow model": lambda t: format_time(t, 4),
             "error": "+.2%", "worst flow": ".1%"},
)  # fmt: skip

# %% tags=["hide-input"]
charts.prose(
    f"The end of all flows agrees within {{recorded}}`{worst:.2%}`: the shared cable is never "
    "idle, whoever has it. Single flows agree less, within "
    f"{{recorded}}`{beside['worst flow'].max():.1%}`, because TCP's shares are fair only on "
    "average. These flows are long against a round trip; short ones would end before TCP "
    "has found its rate."
)

# %% [markdown]
# ## What it costs to simulate
#
# Random flows, one for each host of a fat tree. Every flow that ends changes the rates of others.

# %% tags=["hide-input"]
costs = []
for n in growth:
    tree = fat_tree(n, rate_bps)
    to = (np.arange(n) + draw.integers(1, n, n)) % n
    began = time.process_time()
    simulate_flows(tree, route(tree, np.arange(n), to), np.full(n, 1e6))
    costs.append({"flows": n, "seconds": time.process_time() - began})
costs = pd.DataFrame(costs)
first, final = costs.iloc[0], costs.iloc[-1]
costs["n log n"] = (
    final.seconds * costs.flows * np.log2(costs.flows) / (final.flows * math.log2(final.flows))
)
x = alt.X("flows:Q", title="flows (logarithmic)").scale(type="log", base=2).axis(values=growth)
y = alt.Y("seconds:Q", title="processor time (logarithmic)").scale(type="log")
power = math.log(final.seconds / first.seconds) / math.log(final.flows / first.flows)
(
    alt.Chart(costs)
    .mark_point(filled=True, size=80, color=charts.LABELS["measured"].colour)
    .encode(x, y.axis(**charts.LOG_TIME_AXIS), tooltip=["flows:Q", "seconds:Q"])
    + alt.Chart(costs).mark_line(color=PALETTE["grey"]).encode(x, alt.Y("n log n:Q"))
    + alt.Chart(costs.head(1)).mark_text(dy=16, dx=30, align="left").encode(
        x, alt.Y("n log n:Q"), text=alt.value("n log n, through the last point"))
).properties(
    title=f"Processor time grew with the power {power:.2f} of the flows",
    description="Measured processor time to simulate random flows on fat trees: "
    + "; ".join(f"{r.flows} flows {format_time(r.seconds)}" for r in costs.itertuples())
    + ".",
    height=230,
)  # fmt: skip

# %% tags=["hide-input"]
if keep:
    page.keep()

# %% [markdown]
# Rounds of a ring are all alike, and are simulated once: 32,766 rounds of 16,384 ranks cost one
# round, and a comparison for each of the others.
#
# ## Where this stops being true
#
# - **Rates are not found at once.** A flow of a few round trips is over before congestion control
#   has settled. Flow models flatter short messages.
# - **Shares are not fair.** TCP favours short round trips; DCQCN is unfair for milliseconds. The
#   end of all flows is right more often than the end of one.
# - **Queues have a length.** Nothing here says how long a small message waits behind a large one,
#   when a buffer overflows, or when priority flow control stops a neighbour who did nothing.
# - **Nobody is ever late here.** Rounds start together. In a real job, ranks drift, and flows that
#   collide in the model miss one another, or the reverse.
# - **Acknowledgements, losses and retries** have no bytes of their own in the flow model.
#
# ## Exercises
#
# ```{exercise}
# :label: limits-two
# Two flows over two equal paths, hashed. How likely do they share? What is the mean time of the
# slower one, in units of its time alone?
# ```
#
# ```{solution} limits-two
# :class: dropdown
# One half. When they share, both take twice as long, so the mean is ½ · 1 + ½ · 2 = 1.5.
# `expected_colliding(2, 2)` = 1 flow of two says the same.
# ```
#
# ```{exercise}
# :label: limits-placement
# Put the ranks of the ring on hosts at random (`simulate(..., placement=...)`) on the leaf–spine
# with 4 : 1. What does it cost, and why does placement matter more to a ring than to an all-to-all?
# ```
#
# ```{solution} limits-placement
# :class: dropdown
# `placement=np.random.default_rng(0).permutation(64)`: with leaves of 8, seven of eight messages
# now leave their leaf, over two cables up for eight hosts, and the hash makes it worse: several
# times the time. All-to-all sends everywhere under any placement; the ring had something to lose.
# ```
#
# ```{exercise}
# :label: limits-incast
# How large must the buffer of the receiver's port be if 127 senders at 400 Gbit/s may send for a
# round trip of 8 µs before the first mark arrives?
# ```
#
# ```{solution} limits-incast
# :class: dropdown
# 127 × 50 GB/s × 8 µs come in, one cable's share goes out: 126 × 400 kB ≈ 50 MB. Switches have
# about that for all ports together. Hence credits, priority flow control, or fewer senders.
# ```
#
# ## Where the token goes next
#
# A flow is still a fluid. What really leaves the host is packets, each with headers that say which
# packet this is. [Chapter 18](18_bits_on_the_wire.ipynb) catches them, and finds the gradient
# inside.
