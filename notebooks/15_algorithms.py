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
# # Algorithms
#
# ```{spine} messages
# ```
#
# The call is made: sum these gradients over these ranks. Somebody now has to say who sends what to
# whom, and in which order. There are a dozen good answers. A library such as NCCL holds a handful
# and picks one anew for every call.
#
# **Which answer is the best one, and why is it another for 4 KiB than for 4 GiB, for eight ranks
# than for 16,384?**

# %% tags=["parameters"]
ranks = 8  # of the stepped schedules
lab_ranks = 4  # that really run
alpha_s = 5e-6  # latency of a message
bandwidth_Bps = 50e9  # of a rank, each way: a link of 400 Gbit/s
adding_Bps = 1e12  # at which a rank adds
lab_rate = 200e6  # of the links of the lab, bit/s
repeats = 3
keep = False  # write what is measured to data/results/, for readers without the lab

# %% tags=["hide-input"]
import json
import textwrap
import time
import warnings

import altair as alt
import numpy as np
import pandas as pd
from IPython.display import HTML
from tokenlife import charts
from tokenlife.catalog import data_dir, read_accelerator, read_record, read_reference
from tokenlife.charts import PALETTE
from tokenlife.collectives import (
    Schedule,
    Send,
    algorithm,
    algorithms,
    build,
    verify,
)
from tokenlife.collectives.bounds import busbw_factor, lower_bound, true_bytes
from tokenlife.collectives.cost import Hockney, Tiers, price
from tokenlife.collectives.definitions import holds
from tokenlife.collectives.tuning import Fabric, choose, nvlink_Bps
from tokenlife.provenance import write_record
from tokenlife.units import format_bytes, format_rate, format_time

charts.setup()
links = Hockney(alpha_s, 1 / bandwidth_Bps, 1 / adding_Bps)


def size(bytes_):
    """Sizes of buffers are powers of two here, and are written as such."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if bytes_ >= 2**power:
            return f"{bytes_ / 2**power:g}\u00a0{unit}"
    return f"{bytes_:g}\u00a0B"


# %% [markdown]
# ## On the back of an envelope
#
# The {term}`ring <schedule>` of chapter 14 sends the fewest bytes there can be. Put all GPUs of the
# big job on one ring. What does it take before a single byte of bandwidth is paid?

# %% tags=["hide-input"]
huge = 16_384
ring, bound = algorithm("all_reduce", "ring"), lower_bound("all_reduce", huge, 1)
charts.prose(
    f"A ring of {huge:,} ranks has $2(n-1) = $ {{modelled}}`{2 * (huge - 1):,}` rounds. At "
    f"{format_time(alpha_s)} a message that is "
    f"{{modelled}}`{format_time(2 * (huge - 1) * alpha_s)}`, for a buffer of one byte. The bound "
    f"is $\\lceil\\log_2 n\\rceil = $ {{modelled}}`{int(bound.rounds)}` rounds, "
    f"{{modelled}}`{format_time(float(bound.rounds) * alpha_s)}`. On the other end, an algorithm "
    f"of {int(bound.rounds)} rounds that sends the whole buffer in each moves "
    f"{int(bound.rounds)} buffers where the ring moves two. Somewhere between lies a size at which "
    "the two take the same time. Every pair has such a size, if one algorithm has fewer rounds and "
    "the other fewer bytes."
)

# %% [markdown]
# ## The mechanism
#
# A {term}`schedule` is a list of {term}`rounds <round>`, a round a list of sends. The ring in a few
# lines: each rank passes to the next what it has just added to, and once all blocks are whole,
# passes them on as they are.


# %%
def ring_by_hand(n):
    grow = [[Send(r, (r + 1) % n, (r - 1 - t) % n, reduce=True) for r in range(n)]
            for t in range(n - 1)]  # fmt: skip
    spread = [[Send(r, (r + 1) % n, (r - t) % n, reduce=False) for r in range(n)]
              for t in range(n - 1)]  # fmt: skip
    return Schedule("all_reduce", "ring by hand", n, n, grow + spread)


# %% [markdown]
# And the answer at the other end, {term}`recursive doubling`: in round $k$ a rank exchanges its
# whole buffer with the one whose number differs in bit $k$, and both add.


# %%
def doubling_by_hand(n):
    rounds = [
        [Send(r, r ^ 2**k, 0, reduce=True) for r in range(n)] for k in range(n.bit_length() - 1)
    ]
    return Schedule("all_reduce", "doubling by hand", n, 1, rounds)


for schedule in (ring_by_hand(8), doubling_by_hand(8)):
    verify(schedule)
    sent = schedule.bytes_sent_per_rank(items=8, item_bytes=1)
    print(f"{schedule.algorithm}: {len(schedule.rounds)} rounds, {sent[0] / 8:g} buffers sent")

# %% [markdown]
# `verify` plays a schedule on random numbers and compares with the definition; a rank that is
# counted twice or forgotten shows. The library brings the following, each checked here for all rank
# counts up to 12 that it supports:

# %%
checked = 0
for a in algorithms():
    for n in range(1, 13):
        if a.supports(n, **a.options):
            verify(a.build(n, **a.options), once=a.once)
            checked += 1
checked

# %% tags=["hide-input"]
PIECES = [2**k for k in range(13)]
NAMED = {"halving_doubling": "halving–doubling"}


def named(name):
    return NAMED.get(name, name.replace("_", " "))


def ways(a, n, bytes_=1.0, pieces=PIECES):
    """Return an algorithm's closed forms, over all numbers of pieces that it may be cut into."""
    options = [a.options | {"pieces": p} for p in pieces] if "pieces" in a.options else [a.options]
    return [a.terms(n, bytes_, **chosen) for chosen in options]


def lines_of(text):
    """Keep words together, or a narrow page would put each on a line of its own."""
    return " ".join(line.replace(" ", "\u00a0") for line in textwrap.wrap(text, 32))


cut = 16
rows = []
for a in algorithms("all_reduce", ranks):
    (terms,) = ways(a, ranks, pieces=[cut])
    rows.append(
        {
            "algorithm": named(a.name) + (" *" if "pieces" in a.options else ""),
            "rounds": int(terms.rounds),
            "sent ÷ S": float(terms.sent_bytes),
            "added ÷ S": float(terms.reduced_bytes),
            "how it works": lines_of(a.says),
        }
    )
rows.sort(key=lambda row: (row["sent ÷ S"], row["rounds"]))
charts.table(
    pd.DataFrame(rows),
    caption=f"All-reduce over {ranks} ranks, S bytes: messages, bytes and added bytes one "
    f"after another (* cut into {cut} pieces)",
    label={"rounds": "modelled", "sent ÷ S": "modelled", "added ÷ S": "modelled"},
    formats={"sent ÷ S": ".2f", "added ÷ S": ".2f"},
)

# %% tags=["hide-input"]
charts.prose(
    f"{checked} schedules passed. Those that send less than 2(n − 1)/n = "
    f"{busbw_factor('all_reduce', ranks):g} buffers through a port have two ports to a rank, or a "
    "switch that adds. The sources are with each algorithm in the library: Thakur et al. "
    "{cite}`thakur2005optimization` for the classic ones, and beside them double trees "
    "{cite}`sanders2009two`, Bruck's {cite}`bruck1997efficient`, Swing {cite}`desensi2024swing`."
)

# %% [markdown]
# ## Round by round
#
# Choose an algorithm and move the slider. On the left, the buffer of each rank, cut into chunks; a
# number says how many ranks' parts a chunk holds, and it is filled once it is what the rank must
# end with. On the right, the messages of this round: orange ones are added where they arrive, blue
# ones replace.

# %% tags=["hide-input"]
half = ranks // 2
STEPPED = [
    ("all_reduce", "ring", {}),
    ("all_reduce", "recursive_doubling", {}),
    ("all_reduce", "halving_doubling", {}),
    ("all_reduce", "binomial", {}),
    ("all_reduce", "double_tree", {"pieces": 4}),
    ("all_reduce", "swing", {}),
    ("all_reduce", "torus_2d", {"width": half}),
    ("all_reduce", "hierarchical", {"node": half}),
    ("all_reduce", "switch_tree", {"pieces": 4}),
    ("all_reduce", "nvls", {}),
    ("all_gather", "bruck", {}),
    ("all_gather", "pat", {}),
    ("reduce_scatter", "recursive_halving", {}),
    ("broadcast", "chain", {"pieces": 8}),
    ("all_to_all", "pairwise", {}),
    ("all_to_all", "bruck", {}),
    ("all_to_all", "pxn", {"node": half}),
]
SHOWN = {
    f"{kind.replace('_', '-')}: {named(name)}": build(kind, name, ranks, **options)
    for kind, name, options in STEPPED
    if algorithm(kind, name).supports(ranks, **algorithm(kind, name).options | options)
}


def played(schedule):
    """Whose parts each node holds of each chunk (a bit a rank): before, and after each round."""
    before, after = holds(schedule)
    held = np.zeros((schedule.nodes, schedule.chunks), np.int64)
    held[: schedule.ranks] = before * (1 << np.arange(schedule.ranks))[:, None]
    states = [held]
    for sends in schedule.rounds:
        was, held = held, held.copy()
        for s in sends:
            chunk = slice(s.chunk, s.chunk + s.count)
            held[s.dst, chunk] = was[s.src, chunk] | (held[s.dst, chunk] if s.reduce else 0)
        states.append(held)
    goal = np.bitwise_or.reduce(states[0], axis=0) * np.vstack(
        [after, np.zeros((schedule.switches, schedule.chunks), bool)]
    )
    return states, goal


WIDTH, LEFT, RIGHT = 800, 880, 1130
cells, arrows, captions, lengths = [], [], [], []
for which, schedule in enumerate(SHOWN.values()):
    offsets = schedule.chunk_offsets(schedule.chunks * 8)
    states, goal = played(schedule)
    lengths.append(len(schedule.rounds))
    share = WIDTH / schedule.chunks
    for t, state in enumerate(states):
        for node, row in enumerate(state):
            at = np.flatnonzero(row)
            new = row != states[t - 1][node] if t else np.zeros(len(row), bool)
            cells.append({
                "a": which, "t": t, "y": node,
                "x": (at * share).round().astype(int).tolist(),
                "z": ((at + 0.93) * share).round().astype(int).tolist(),
                "m": ((at + 0.47) * share).round().astype(int).tolist(),
                "c": np.bitwise_count(row[at]).tolist(),
                "s": ((row == goal[node]) + 2 * new)[at].tolist(),  # 1: as it must be; 2: just came
            })  # fmt: skip
        text = f"round {t} of {len(schedule.rounds)}" if t else "before the first round"
        captions.append({"a": which, "t": t, "text": text})
        if t:
            src, dst, _, added = schedule.messages(t - 1, offsets)
            for i in range(len(src)):
                arrows.append({"a": which, "t": t, "y": src[i] + 0.45, "z": dst[i] + 0.45,
                               "add": int(added[i] > 0)})  # fmt: skip

# %% tags=["hide-input"]
which = alt.param(
    name="schedule",
    value=0,
    bind=alt.binding_select(options=list(range(len(SHOWN))), labels=list(SHOWN), name="algorithm "),
)
step = alt.param(
    name="step", value=3, bind=alt.binding_range(min=0, max=max(lengths), step=1, name="round ")
)
last = alt.param(name="lengths", value=lengths)
now = "datum.a === schedule && datum.t === min(step, lengths[schedule])"
nodes = max(row["y"] for row in cells) + 1
names = pd.DataFrame(
    {"a": a, "y": node + 0.45, "text": str(node) if node < ranks else "switch"}
    for a, schedule in enumerate(SHOWN.values())
    for node in range(schedule.nodes)
)
x = alt.X("x:Q", axis=None).scale(domain=[-90, RIGHT + 50], nice=False)
y = alt.Y("y:Q", axis=None).scale(domain=[nodes, -0.9], nice=False)
held = (
    alt.Chart(alt.Data(values=cells))
    .transform_filter(now)
    .transform_flatten(["x", "z", "m", "c", "s"])
)
boxes = held.transform_calculate(bottom="datum.y + 0.9").mark_rect(cornerRadius=2).encode(
    x, alt.X2("z:Q"), y, alt.Y2("bottom:Q"),
    fill=alt.value(PALETTE["blue"]),
    fillOpacity=alt.condition("datum.s % 2 === 1", alt.value(0.45), alt.value(0.07)),
    stroke=alt.condition("datum.s > 1", alt.value(PALETTE["orange"]), alt.value(PALETTE["blue"])),
    strokeWidth=alt.condition("datum.s > 1", alt.value(2), alt.value(0.5)),
)  # fmt: skip
counts = held.transform_filter("datum.z - datum.x > 40").mark_text(fontSize=11).encode(
    alt.X("m:Q"), alt.Y("middle:Q", axis=None), text="c:Q"
).transform_calculate(middle="datum.y + 0.47")  # fmt: skip
flights = alt.Chart(pd.DataFrame(arrows)).transform_filter(now)
kind_of = alt.condition("datum.add === 1", alt.value(PALETTE["orange"]), alt.value(PALETTE["blue"]))
lines = flights.mark_rule(strokeWidth=1.6).encode(
    alt.XDatum(LEFT), alt.X2Datum(RIGHT), alt.Y("y:Q"), alt.Y2("z:Q"), color=kind_of
)
heads = flights.mark_point(shape="triangle-right", size=70).encode(
    alt.XDatum(RIGHT), alt.Y("z:Q"), color=kind_of
)
labels = (
    alt.Chart(names)
    .transform_filter("datum.a === schedule")
    .mark_text(fontSize=11)
    .encode(alt.XDatum(-45), alt.Y("y:Q"), text="text:N")
)
said = (
    alt.Chart(pd.DataFrame(captions))
    .transform_filter(now)
    .mark_text(align="left", fontSize=13, fontWeight=600)
    .encode(alt.XDatum(0), alt.YDatum(-0.5), text="text:N")
)
(boxes + counts + lines + heads + labels + said).add_params(which, step, last).properties(
    title=f"{ranks} ranks, round by round: what each holds, and who sends to whom",
    description="A stepped picture of a chosen algorithm. Left: ranks down, chunks of the buffer "
    "across, each with the number of ranks whose parts it holds. Right: an arrow for each message "
    "of the round from its sender's row to its receiver's. Algorithms: "
    + "; ".join(f"{title}, {n} rounds" for title, n in zip(SHOWN, lengths, strict=True))
    + ".",
    height=300,
)

# %% [markdown]
# Three things to look for. In the *ring* every rank sends in every round, and each message is one
# block. In *recursive doubling* every rank sends everything, in the fewest rounds there are. In the
# *binomial tree* most ranks wait: in the last round of its first half one message is under way. The
# *double tree* puts them to work: who is a leaf in one tree has children in the other.
#
# ## Time against size
#
# Each closed form has three numbers, so a time for any size and any rank count is three products.
# Over 64 ranks, as multiples of what the three bounds of chapter 14 add up to:

# %% tags=["hide-input"]
n = 64
LINES = {  # algorithm: colour, where its label stands (a power of two), and how far above the line
    "ring": (PALETTE["blue"], 14, -9),
    "recursive_doubling": (PALETTE["orange"], 30, -9),
    "halving_doubling": (PALETTE["violet"], 13, 12),
    "binomial": (PALETTE["brick"], 30, -9),
    "double_tree": (PALETTE["grey"], 13, -9),
}


def best_s(a, n, size, at=links):
    """The least time over all numbers of pieces."""
    return np.min([at.terms_s(terms) for terms in ways(a, n, size)], axis=0)


exponents = np.arange(8, 35)
sizes = 2.0**exponents
floor_s = links.terms_s(lower_bound("all_reduce", n, sizes))
curves = pd.DataFrame(
    {"algorithm": named(name), "k": exponents, "bytes": sizes, "time": t, "times": t / floor_s}
    for name in LINES
    for t in [best_s(algorithm("all_reduce", name), n, sizes)]
).explode(["k", "bytes", "time", "times"])
curves = curves.astype({"k": int, "bytes": float, "time": float, "times": float})
scale = alt.Scale(domain=[named(a) for a in LINES], range=[c for c, *_ in LINES.values()])
SIZE_AXIS = {
    "values": [2.0**k for k in (10, 15, 20, 25, 30)],
    "labelExpr": charts.SIZE_TICKS,
}
x = alt.X("bytes:Q", title="buffer of a rank (logarithmic)").scale(type="log", base=2, nice=False)
base = alt.Chart(curves).encode(
    x=x.axis(**SIZE_AXIS),
    y=alt.Y("times:Q", title="times the lower bound (logarithmic)")
    .scale(type="log", domain=[0.9, 40], nice=False)
    .axis(values=[1, 2, 5, 10, 20]),
    color=alt.Color("algorithm:N", scale=scale, legend=None),
    tooltip=[
        "algorithm:N",
        alt.Tooltip("time:Q", format=".3s"),
        alt.Tooltip("times:Q", format=".2f"),
    ],
)
names = [
    base.mark_text(align="center", dy=dy)
    .encode(text="algorithm:N")
    .properties(data=curves[(curves.algorithm == named(name)) & (curves.k == k)])
    for name, (_, k, dy) in LINES.items()
]
alt.layer(base.mark_line(), *names).properties(
    title=f"No algorithm is best at every size: all-reduce over {n} ranks",
    description=f"Modelled time of five all-reduce algorithms over {n} ranks against the size of "
    "the buffer, divided by the sum of the lower bounds; from the shortest to the longest buffer: "
    + "; ".join(
        f"{name} {part.times.iloc[0]:.1f} to {part.times.iloc[-1]:.1f}"
        for name, part in curves.groupby("algorithm", sort=False)
    )
    + ".",
    height=320,
)

# %% tags=["hide-input"]
fine = 2.0 ** np.arange(4, 37, 0.05)


def crossings(kind, n, chosen, at=links):
    """Who is fastest from which size on: pairs of name and first size."""
    timed = np.array([best_s(algorithm(kind, name), n, fine, at) for name in chosen])
    best = timed.argmin(axis=0)
    first = np.flatnonzero(np.diff(best, prepend=-1))
    return [(named(chosen[best[i]]), fine[i]) for i in first]


def rounded(bytes_):
    return format_bytes(bytes_, 2).replace(" ", "\u00a0")


rows = []
for n_ in (2, 8, 12, 64, 100, 1024, huge):
    runs = crossings("all_reduce", n_, list(LINES))
    names = " → ".join(
        name if i == 0 else f"{name} from {rounded(first)}" for i, (name, first) in enumerate(runs)
    )
    rows.append({"ranks": f"{n_:,}", "fastest, from short buffers to long ones": names})
lines = [f"| {row['ranks']} | {row['fastest, from short buffers to long ones']} |" for row in rows]
charts.prose(
    f"The crossovers, at $α$ = {format_time(alpha_s)}, {bandwidth_Bps / 1e9:g} GB/s and "
    f"{adding_Bps / 1e9:,.0f} GB/s for adding (all {{modelled}}`modelled`):\n\n"
    "| ranks | fastest, from short buffers to long ones |\n|---|---|\n" + "\n".join(lines)
)

# %% [markdown]
# At powers of two, halving–doubling takes over from recursive doubling and keeps the lead (over two
# ranks it is the same as the ring); at 12 or 100 ranks ring and double tree overtake it. The model
# has all links alike, and that flatters it: its partners are up to half of the machine away.
#
# ## Time against ranks

# %% tags=["hide-input"]
MIB = 2.0**20
many = 2 ** np.arange(1, 15)
against = pd.DataFrame(
    {
        "algorithm": named(name),
        "ranks": int(n_),
        "time": float(best_s(algorithm("all_reduce", name), n_, MIB)),
    }
    for name in LINES
    for n_ in many
)
last = against[against.ranks == against.ranks.max()]
SHIFT = {"binomial": -7, "double_tree": 0, "recursive_doubling": 8, "halving_doubling": 8}
base = alt.Chart(against).encode(
    x=alt.X("ranks:Q", title="ranks (logarithmic)")
    .scale(type="log", base=2, domain=[2, 2**22], nice=False)
    .axis(values=[2, 16, 128, 1024, 8192], format=",d"),
    y=alt.Y("time:Q", title="time (logarithmic)").scale(type="log").axis(**charts.LOG_TIME_AXIS),
    color=alt.Color("algorithm:N", scale=scale, legend=None),
    tooltip=["algorithm:N", "ranks:Q", alt.Tooltip("time:Q", format=".3s")],
)
names = [
    base.mark_text(align="left", dx=6, dy=SHIFT.get(name, 0))
    .encode(text="algorithm:N")
    .properties(data=last[last.algorithm == named(name)])
    for name in LINES
]
at_most = last.set_index("algorithm").time
alt.layer(base.mark_line(), *names).properties(
    title=f"1 MiB over {huge:,} ranks: the ring takes "
    f"{at_most['ring'] / at_most.min():,.0f} times as long as the best",
    description="Modelled time of an all-reduce of 1 MiB against the number of ranks, both "
    "logarithmic. The ring rises in proportion to the ranks once latency dominates; the others "
    "grow with the logarithm. "
    + "; ".join(f"{a} {format_time(t)} at {huge:,} ranks" for a, t in at_most.items())
    + ".",
    height=300,
)

# %% [markdown]
# ### A ring of 16,384 ranks, built
#
# A schedule of that ring has half a billion sends. Nobody needs them at once, so the library keeps
# a rule that builds a round when it is asked for:

# %%
giant = build("all_reduce", "ring", huge)
sends = sum(len(giant.rounds[t]) for t in (0, 1)) // 2 * len(giant.rounds)
start = time.perf_counter()
somewhere = giant.rounds[20_000]
took = time.perf_counter() - start

# %% tags=["hide-input"]
held = sum(column.nbytes for column in (somewhere.src, somewhere.dst, somewhere.chunk,
                                        somewhere.count, somewhere.reduce))  # fmt: skip
one_ring = links.terms_s(algorithm("all_reduce", "ring").terms(huge, MIB))
charts.prose(
    f"{sends:,} sends in {len(giant.rounds):,} rounds. One round, built in the middle, took "
    f"{{measured}}`{format_time(took)}` and {format_bytes(held)} of memory. An all-reduce of 1 MiB "
    f"would take {{modelled}}`{format_time(float(one_ring))}` on it, of which "
    f"{2 * (huge - 1) * alpha_s / float(one_ring):.2%} is latency: each message carries "
    f"{MIB / huge:.0f} bytes. Nobody builds such a ring. The big job's GPUs talk in groups "
    "of 8 and of 128 (chapter 14), and a group with several GPUs in a node talks in two levels."
)

# %% [markdown]
# ## The explorer
#
# Where do the crossovers lie on a machine of yours? The library has put the closed forms of all
# algorithms into this page; your browser does the three products.

# %% tags=["hide-input"]
EXPLORED = {
    "all-reduce": ("ring", "recursive_doubling", "halving_doubling", "binomial", "double_tree",
                   "chain", "bruck", "linear"),
    "all-reduce, switches may add": ("ring", "recursive_doubling", "halving_doubling",
                                     "double_tree", "switch_tree", "nvls"),
    "all-gather": ("ring", "bruck", "recursive_doubling", "linear"),
    "reduce-scatter": ("ring", "bruck", "recursive_halving", "linear"),
    "broadcast": ("binomial", "double_tree", "chain", "scatter_all_gather", "linear"),
    "all-to-all": ("pairwise", "bruck", "linear"),
}  # fmt: skip
RANKS = [
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    100,
    128,
    256,
    512,
    1000,
    1024,
    2048,
    4096,
    8192,
    huge,
]


def forms(kind, name):
    """The closed forms of one algorithm by rank count: rounds, and bytes per byte of the buffer."""
    a = algorithm(kind, name)
    return [
        [[float(f"{v:.7g}") for v in (float(t.rounds), float(t.sent_bytes), float(t.reduced_bytes))]
         for t in ways(a, n_)]
        if a.supports(n_, **a.options) else None
        for n_ in RANKS
    ]  # fmt: skip


held = {"ranks": RANKS, "collectives": {
    kind: {named(name): forms(kind.split(",")[0].replace("-", "_"), name) for name in names}
    for kind, names in EXPLORED.items()
}}  # fmt: skip
HTML(
    "<div data-explorer><p>The explorer runs in the built page.</p>"
    f'<script type="application/json">{json.dumps(held, separators=(",", ":"))}</script></div>'
)

# %% [markdown]
# Try 1 µs and 500 GB/s for GPUs in one box, 20 µs and 1 GB/s for machines on Ethernet. Bars end at
# ten times the best. What may be cut into pieces is cut into the best number from 1 to 4,096. All
# links are alike here; the section on the hierarchy has two kinds.
#
# ## The third constant
#
# A ring adds while it sends, and a GPU adds at the rate of its memory, far above that of its links.
# So $γ$ is often forgotten. It matters where adding is slow, on a processor, or where an algorithm
# adds whole buffers:

# %% tags=["hide-input"]
GIB = 2.0**30
rows = []
for name in ("ring", "halving_doubling", "recursive_doubling", "binomial"):
    a = algorithm("all_reduce", name)
    plain = Hockney(alpha_s, 1 / bandwidth_Bps).terms_s(a.terms(64, GIB))
    row = {"algorithm": named(name), "without γ": float(plain)}
    for rate, words in ((1e12, "at 1 TB/s"), (1e11, "at 100 GB/s"), (1e10, "at 10 GB/s")):
        row[words] = float(
            Hockney(alpha_s, 1 / bandwidth_Bps, 1 / rate).terms_s(a.terms(64, GIB)) / plain
        )
    rows.append(row)
gamma = pd.DataFrame(rows)
charts.table(
    gamma,
    caption=f"All-reduce of 1 GiB over 64 ranks at {bandwidth_Bps / 1e9:g} GB/s: the time without "
    "adding, and how many times longer with it",
    label=dict.fromkeys(gamma.columns[1:], "modelled"),
    formats={"without γ": format_time} | dict.fromkeys(gamma.columns[2:], ".2f"),
)

# %% [markdown]
# Recursive doubling adds $\log_2 n$ buffers where the bound is less than one. The table is an upper
# bound: an implementation that cuts its messages adds one piece while the next one arrives.
#
# ## Rank counts that are no power of two
#
# Doubling and halving are at home at powers of two. With other counts the ranks in excess first
# hand their buffer to a partner and get the result at the end: two more rounds, and two more
# buffers.

# %% tags=["hide-input"]
FOLDED = ("ring", "halving_doubling", "recursive_doubling", "bruck")
TONES = {**{name: LINES[name][0] for name in FOLDED[:3]}, "bruck": PALETTE["sky"]}
counts = pd.DataFrame(
    {
        "algorithm": named(name),
        "ranks": n_,
        "time": float(best_s(algorithm("all_reduce", name), n_, 2.0**24)),
    }
    for name in FOLDED
    for n_ in range(2, 34)
)
base = alt.Chart(counts).encode(
    x=alt.X("ranks:Q", title="ranks")
    .scale(domain=[2, 34], nice=False)
    .axis(values=[2, 4, 8, 16, 24, 32]),
    y=alt.Y("time:Q", title="time for 16 MiB").axis(labelExpr=charts.TIME_TICKS),
    color=alt.Color("algorithm:N", legend=None).scale(
        domain=[named(a) for a in FOLDED], range=[TONES[a] for a in FOLDED]
    ),
    tooltip=["algorithm:N", "ranks:Q", alt.Tooltip("time:Q", format=".3s")],
)
SHIFT = {"bruck": 12, "recursive_doubling": 0}
names = [
    base.mark_text(align="right", dx=-6, dy=SHIFT.get(name, -9))
    .encode(text="algorithm:N")
    .properties(data=counts[(counts.ranks == 33) & (counts.algorithm == named(name))])
    for name in FOLDED
]
alt.layer(base.mark_line(interpolate="step-after"), *names).properties(
    title="One rank too many: halving–doubling takes twice as long, or longer",
    description="Modelled time of an all-reduce of 16 MiB for 2 to 33 ranks. Ring and Bruck rise "
    "smoothly; halving-doubling and recursive doubling jump up just above each power of two and "
    "fall back at the next.",
    height=280,
)

# %% [markdown]
# Bruck's way, distances that double around a ring, needs no partner of equal rank. Its all-gather
# and its reduce-scatter have the fewest rounds and the fewest bytes at any count. The all-reduce of
# the two has the fewest bytes, in twice the fewest rounds. What it lacks is order: blocks end in
# another place of memory and must be moved where they belong.

# %% [markdown]
# ## From one node to a hierarchy
#
# So far all links were alike. They are not. Inside a box GPUs talk over NVLink; between boxes each
# has a network card. Take 8 boxes of 8 GPUs, with the rates as published, and NCCL's own latencies
# of a hop:

# %%
node, nodes = 8, 8
inside_Bps = read_accelerator("h100-sxm")["scale_up_Bps"]
paper = read_reference("04_llama3").set_index("quantity")
between_Bps = float(paper.value["link speed"]) * 1e9 / 8
nccl = read_reference("08b_nccl_tuning").set_index(["table", "quantity"]).value
hop_s = {where: float(nccl[f"v2.30.7 hwLatencies {where}", "Ring/Simple"]) * 1e-6
         for where in ("NVLINK", "NET")}  # fmt: skip
gamma = 1 / adding_Bps
fabric = Tiers(
    inside=Hockney(hop_s["NVLINK"], 1 / inside_Bps, gamma),
    between=Hockney(hop_s["NET"], 1 / between_Bps, gamma),
    node=node,
)

# %% tags=["hide-input"]
LEVELS = {
    "ring": (PALETTE["blue"], 30, -9),
    "recursive_doubling": (PALETTE["orange"], 30, -9),
    "halving_doubling": (PALETTE["violet"], 14, 13),
    "hierarchical": (PALETTE["brick"], 14, -9),
}
tiers = pd.DataFrame(
    {"algorithm": named(name), "k": k, "bytes": 2.0**k,
     "time": price(build("all_reduce", name, node * nodes), 2 ** (k - 2), 4, fabric).time_s}
    for name in LEVELS
    for k in range(10, 35)
)  # fmt: skip
tiers["times"] = tiers.time / tiers.groupby("k").time.transform("min")
base = alt.Chart(tiers).encode(
    x=x.axis(**SIZE_AXIS),
    y=alt.Y("times:Q", title="times the fastest (logarithmic)")
    .scale(type="log", domain=[0.9, 40], nice=False)
    .axis(values=[1, 2, 5, 10, 20]),
    color=alt.Color("algorithm:N", legend=None).scale(
        domain=[named(a) for a in LEVELS], range=[c for c, *_ in LEVELS.values()]
    ),
    tooltip=[
        "algorithm:N",
        alt.Tooltip("time:Q", format=".3s"),
        alt.Tooltip("times:Q", format=".2f"),
    ],
)
names = [
    base.mark_text(dy=dy)
    .encode(text="algorithm:N")
    .properties(data=tiers[(tiers.algorithm == named(name)) & (tiers.k == k)])
    for name, (_, k, dy) in LEVELS.items()
]
wide = tiers.pivot_table("time", "k", "algorithm")
gain = wide["ring"].iloc[-1] / wide["hierarchical"].iloc[-1]
alt.layer(base.mark_line(), *names).properties(
    title=f"Two kinds of link: at 16 GiB the flat ring takes {gain:.1f} times as long as "
    "the hierarchy",
    description=f"Modelled time of four all-reduces over {nodes} nodes of {node} GPUs, as "
    "multiples of the fastest at each size. "
    + "; ".join(f"{a} {t:.1f} at 1 KiB and {u:.1f} at 16 GiB" for a, t, u in zip(
        wide.columns, wide.iloc[0] / wide.iloc[0].min(), wide.iloc[-1] / wide.iloc[-1].min(),
        strict=True))
    + ".",
    height=300,
)  # fmt: skip


# %% tags=["hide-input"]
def crossing(schedule, per_node, items=6720):
    """Bytes that leave through network cards, over S: of the busiest GPU, and of a whole node."""
    wires = true_bytes(schedule, items, 4)
    far = wires[wires.src // per_node != wires.dst // per_node]
    cards = far.groupby("src").bytes.sum() / (4 * items)
    return cards.max(), cards.groupby(cards.index // per_node).sum().max(), len(cards)


rows = []
for name in LEVELS:
    card, box, used = crossing(build("all_reduce", name, node * nodes), node)
    rows.append(
        {"algorithm": named(name), "cards in use": f"{used} of {node * nodes}",
         "busiest card ÷ S": card, "one node ÷ S": box, "time of 1 GiB": wide[named(name)][30]}
    )  # fmt: skip
charts.table(
    pd.DataFrame(rows),
    caption=f"What leaves through network cards: all-reduce over {nodes} nodes of {node} GPUs",
    label={"busiest card ÷ S": "modelled", "one node ÷ S": "modelled", "time of 1 GiB": "modelled"},
    formats={"busiest card ÷ S": ".3f", "one node ÷ S": ".3f", "time of 1 GiB": format_time},
)

# %% [markdown]
# The flat ring leaves each node through one card, and the whole buffer twice over goes through it
# while seven others idle. The hierarchy first shrinks the problem: reduce-scatter inside the node,
# then each GPU all-reduces its eighth with its peers in the other nodes, then all-gather inside.
# All cards work, each carries an eighth, and in sum a node sends no more than a ring over nodes
# must. Halving–doubling exchanges half of the buffer with its farthest partner, in another node:
# all cards are busy, with fourteen buffers a node. NCCL reaches the hierarchy's end with several
# rings at once, each leaving by another card.
#
# ## Bus bandwidth, and what a wire really carries
#
# nccl-tests prints two rates. *algbw* is the buffer over the time. {term}`busbw <bus bandwidth>`
# is algbw times a factor: for an all-reduce $2(n-1)/n$, what the busiest rank must at least send.
# It is meant to be compared with the rate of a link. But it is the link's load for one family of
# algorithms only, those that meet the bound on ranks that add for themselves. For every algorithm
# the library can count what each wire carries:

# %% tags=["hide-input"]
n = 8
COUNTED = [
    ("all_reduce", "ring", {}), ("all_reduce", "halving_doubling", {}),
    ("all_reduce", "recursive_doubling", {}), ("all_reduce", "binomial", {}),
    ("all_reduce", "double_tree", {"pieces": 8}), ("all_reduce", "switch_tree", {"pieces": 8}),
    ("all_reduce", "nvls", {}), ("all_gather", "ring", {}), ("all_gather", "nvls", {}),
    ("reduce_scatter", "nvls", {}), ("broadcast", "binomial", {}), ("broadcast", "chain", {}),
    ("all_to_all", "pairwise", {}), ("all_to_all", "bruck", {}),
]  # fmt: skip
rows = []
for kind, name, options in COUNTED:
    schedule = build(kind, name, n, **options)
    items = 1680 * n
    wires = true_bytes(schedule, items, 4)
    out, into = (
        wires[wires[end] < n].groupby(end).bytes.sum().reindex(range(n), fill_value=0) / (4 * items)
        for end in ("src", "dst")
    )
    rows.append(
        {
            "collective": kind.replace("_", "-"),
            "algorithm": named(name),
            "busbw counts": wires.attrs["implied"] / (4 * items),
            "most sent": out.max(),
            "least sent": out.min(),
            "most received": into.max(),
        }
    )
wire_table = pd.DataFrame(rows)
wire_table["busbw ÷ wire"] = wire_table["busbw counts"] / wire_table[
    ["most sent", "most received"]
].max(axis=1)
charts.table(
    wire_table,
    caption=f"Bytes through the link of a rank, over the buffer; {n} ranks",
    label=dict.fromkeys(wire_table.columns[2:], "modelled"),
    formats=dict.fromkeys(wire_table.columns[2:], ".3f"),
)

# %% [markdown]
# The last column is what busbw shows for a link that is full. For rings it is 1. For trees of ranks
# it is less: an inner rank of a binomial tree sends a whole buffer several times, and a full link
# shows as a fraction of its rate. For an all-reduce by NVLS it is more: the switch adds, so a GPU
# sends its buffer once, and once more the finished sum of its own block. That is $1 + 1/n$ buffers
# where the factor counts $2(n-1)/n$. So busbw comes out *above* the rate of the link that it is
# compared with. Published logs show it:

# %% tags=["hide-input"]
logs = read_reference("08c_nccl_tests_logs")
peak = logs[logs.collective == "all_reduce"].sort_values("size_bytes").groupby("log_id").last()
systems = [
    ("A", "8 A100, one node", "a100-sxm", "ring"),
    ("C", "8 H100, one node, NVLS", "h100-sxm", "nvls"),
    ("J1", "8 H200, one node, NVLS", "h200-sxm", "nvls"),
    ("I", "8 B200, one node, NVLS", "b200-sxm", "nvls"),
]
rows = []
for log, words, chip, name in systems:
    row = peak.loc[log]
    algbw = row.busbw_GBps / busbw_factor("all_reduce", int(row.nranks))
    wires = true_bytes(build("all_reduce", name, int(row.nranks)), 1680, 4)
    on_link = wires[wires.src < row.nranks].groupby("src").bytes.sum().max() / (4 * 1680)
    link = read_accelerator(chip)["scale_up_Bps"] / 1e9
    rows.append(
        {"system": words, "busbw": row.busbw_GBps, "rate of a GPU's links": link,
         "busbw ÷ rate": row.busbw_GBps / link, "as": named(name), "on the wire": algbw * on_link,
         "wire ÷ rate": algbw * on_link / link}
    )  # fmt: skip
settled = pd.DataFrame(rows)
charts.table(
    settled,
    caption="All-reduce at its largest size in published logs of nccl-tests, in GB/s",
    label={"busbw": "published", "rate of a GPU's links": "published", "on the wire": "modelled",
           "busbw ÷ rate": "published", "wire ÷ rate": "modelled"},
    formats={"busbw": ".0f", "rate of a GPU's links": ".0f", "on the wire": ".0f",
             "busbw ÷ rate": ".0%", "wire ÷ rate": ".0%"},
)  # fmt: skip

# %% tags=["hide-input"]
over = settled[settled["busbw ÷ rate"] > 1]
two = peak.loc["H"]
nic = 8 * between_Bps / 1e9
two_algbw = two.busbw_GBps / busbw_factor("all_reduce", 16)
_, node_ring, _ = crossing(build("all_reduce", "ring", 16), 8)
_, node_tier, _ = crossing(build("all_reduce", "hierarchical", 16), 8)
a2a = (
    logs[(logs.collective == "alltoall") & (logs.log_id == "I")].sort_values("size_bytes").iloc[-1]
)
charts.prose(
    f"{len(over)} of the {len(settled)} logs print more than a link carries. No wire carried more: "
    f"by the count above none was filled beyond {settled['wire ÷ rate'].max():.0%}.\n\n"
    f"Between nodes it is the same. Two nodes of 8 H200 with eight 400 Gbit/s cards each print "
    f"{{published}}`{two.busbw_GBps:.0f} GB/s`, and the cards of a node give "
    f"{{published}}`{nic:.0f} GB/s`. A ring, on however many channels, puts "
    f"{node_ring:.3f} buffers through the cards of a node: "
    f"{{modelled}}`{two_algbw * node_ring:.0f} GB/s`, more than there is. So it was no ring. A "
    f"hierarchy puts {node_tier:.3f} through: "
    f"{{modelled}}`{two_algbw * node_tier:.0f} GB/s`, which fits.\n\n"
    "For an all-to-all no algorithm sends less than the factor counts, and busbw is right as long "
    f"as all links are alike. In one node of 8 B200 it reaches "
    f"{{published}}`{a2a.busbw_GBps:.0f} GB/s`. Over two nodes of eight, each GPU sends 8 of its "
    "16 blocks through its card, half a buffer, and busbw counts 15/16: a full card of "
    f"{between_Bps / 1e9:g} GB/s shows as {between_Bps / 1e9 * (15 / 16) / (8 / 16):.0f} GB/s. "
    "With more nodes the surplus shrinks: busbw sinks, and no part of the machine is slower."
)

# %% [markdown]
# ## What NCCL chooses
#
# NCCL does not measure before it chooses. It holds a table of latencies and rates for each
# algorithm and each {term}`protocol <NCCL protocol>`, computes what we computed above, and takes
# the least. Its protocols trade bytes for latency: LL sends four bytes of flag with every four of
# data and needs no fence, LL128 eight with every 120, Simple none {cite}`hu2025demystifying`. With
# the constants of its source, version 2.30.7, the library chooses as it would:

# %% tags=["hide-input"]
hopper_Bps = 18 * nvlink_Bps("Hopper")
# The search of NVLS is not modelled: its rate is set so that its peak is that of the log above.
nvls_Bps = peak.loc["C"].busbw_GBps * 1e9 / float(nccl["v2.30.7 share", "NVLS/Simple, Hopper"])
choices = []
for boxes in (1, 2, 4, 8, 16, 64, 256, 1024):
    machine = Fabric(
        "Hopper", boxes, 8, channels=16, ring_Bps=min(hopper_Bps, 8 * between_Bps),
        nvls_Bps=nvls_Bps if boxes == 1 else 0,
    )  # fmt: skip
    for row in choose("all_reduce", machine, 2.0 ** np.arange(8, 34)).itertuples():
        choices.append({"gpus": f"{8 * boxes:,}", "bytes": row.bytes, "algorithm": row.algorithm,
                        "protocol": row.protocol})  # fmt: skip
choices = pd.DataFrame(choices)
choices["pair"] = choices.algorithm + " " + choices.protocol
choices["run"] = (choices.pair != choices.groupby("gpus", sort=False).pair.shift()).cumsum()
runs = choices.groupby("run", as_index=False).agg(
    gpus=("gpus", "first"), pair=("pair", "first"), algorithm=("algorithm", "first"),
    protocol=("protocol", "first"), left=("bytes", "min"), right=("bytes", "max"),
    n=("bytes", "size"),
)  # fmt: skip
runs["words"] = runs.pair.where(runs.n >= 7, runs.protocol)  # short runs have no room for both
runs["left"] /= 2**0.5
runs["right"] *= 2**0.5
runs["middle"] = (runs.left * runs.right) ** 0.5
runs["shade"] = runs.protocol.map({"LL": 0.2, "LL128": 0.42, "Simple": 0.7})
TONE = {"Ring": PALETTE["blue"], "Tree": PALETTE["orange"], "NVLS": PALETTE["violet"]}
base = alt.Chart(runs).encode(
    y=alt.Y("gpus:N", sort=list(choices.gpus.unique()), title="GPUs, 8 to a node")
)
tiles = base.mark_rect().encode(
    alt.X("left:Q", title="buffer of a rank (logarithmic)")
    .scale(type="log", base=2, nice=False)
    .axis(**SIZE_AXIS),
    alt.X2("right:Q"),
    fillOpacity=alt.FillOpacity("shade:Q", scale=None),
    color=alt.Color("algorithm:N", legend=None).scale(domain=list(TONE), range=list(TONE.values())),
    tooltip=["gpus:N", "pair:N"],
)
words = (
    base.transform_filter("datum.n >= 4")
    .mark_text(fontSize=11)
    .encode(alt.X("middle:Q"), text="words:N")
)
(tiles + words).properties(
    title="NCCL's own table: rings and NVLS within a node, trees across many",
    description="For H100 machines of 8 to 8,192 GPUs and buffers of 256 B to 8 GiB, the algorithm "
    "and protocol that NCCL's constants make the fastest. "
    + "; ".join(
        f"{gpus} GPUs: " + ", ".join(dict.fromkeys(part.pair))
        for gpus, part in runs.groupby("gpus", sort=False)
    )
    + ".",
    height=alt.Step(28),
)


# %% tags=["hide-input"]
def switches_at(gpus):
    part = runs[runs.gpus == gpus]
    return ", ".join(
        f"{row.pair} up to {size(row.right / 2**0.5)}" if row.right < part.right.max()
        else f"then {row.pair}"
        for row in part.itertuples()
    )  # fmt: skip


charts.prose(
    f"On 8 GPUs (sizes by powers of two): {switches_at('8')}. On 8,192: {switches_at('8,192')}. "
    "Hue is the algorithm, depth the protocol. Two crossovers are at work. Protocols change first: "
    "flags cost bytes, a fence costs microseconds, so LL serves short buffers at any rank count. "
    "Then trees give way to rings, at sizes that grow with the ranks, since a ring's latency does; "
    "beyond some hundred GPUs no buffer here is long enough."
)

# %% [markdown]
# ## Model beside measurement
#
# Do the crossovers exist? A few ranks, each in a network namespace of its own behind a slow link,
# play four of the schedules for real, message by message. The latency of a message is measured in
# the same session; the rest of the model is counted.

# %%
from tokenlife import lab

TRIED = ("ring", "halving_doubling", "recursive_doubling", "binomial")
TRIED_BYTES = (2**12, 2**18, 2**21)


def measure():
    jobs = [
        lab.Job("all_reduce", bytes_, name, repeats=repeats)
        for bytes_ in TRIED_BYTES
        for name in TRIED
    ]
    return [result.to_dict() for result in lab.run(jobs, ranks=lab_ranks, rate=lab_rate)]


# %% tags=["hide-input"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore", lab.LabWarning)  # the text below says where the ranks were
    try:
        found, label = measure(), "measured"
    except lab.LabUnavailable:
        found, label = read_record("15_algorithms")["values"]["runs"], "recorded"
if keep:
    write_record(data_dir() / "results" / "15_algorithms.json", {"runs": found}, ["lab/engines.py"])
rate_held = found[0]["place"] == "namespaces"
tried = pd.DataFrame(
    {
        "algorithm": run["algorithm"],
        "bytes": run["job"]["bytes_"],
        "sent": max(run["measured"]["bytes_sent_per_rank"]),
        "counted": max(run["modelled"]["bytes_sent_per_rank"]),
        "measured_s": run["measured"]["time_s"],
        "modelled_s": run["modelled"]["time_s"],
    }
    for run in found
)
shown = pd.DataFrame(
    {
        "buffer": tried.bytes.map(size),
        "algorithm": tried.algorithm.map(named),
        "sent by the busiest ÷ S": tried.sent / tried.bytes,
        "counted": tried.counted / tried.bytes,
        "time": tried.measured_s,
        "model": tried.modelled_s,
    }
)
if not rate_held:
    shown = shown.drop(columns="model")
charts.table(
    shown,
    caption=f"Four all-reduces over {lab_ranks} ranks, played message by message"
    + (f" over links of {format_rate(lab_rate)}" if rate_held else " over loopback, no rate held"),
    label={"sent by the busiest ÷ S": label, "counted": "modelled", "time": label}
    | ({"model": "modelled"} if rate_held else {}),
    formats={"sent by the busiest ÷ S": ".3f", "counted": ".3f", "time": format_time}
    | ({"model": format_time} if rate_held else {}),
)

# %% tags=["hide-input"]
least, most = min(TRIED_BYTES), max(TRIED_BYTES)
winner = tried.loc[tried.groupby("bytes").measured_s.idxmin()].set_index("bytes").algorithm
text = (
    f"At {size(least)} the fastest was *{named(winner[least])}*, at {size(most)} "
    f"*{named(winner[most])}*. What a rank sent is the schedule's count and 48 bytes of gloo's "
    "header for each message and each notice that a receiver is ready, which weigh on short "
    "buffers only. "
)
if rate_held:
    off = (tried.modelled_s / tried.measured_s - 1).groupby(tried.bytes)
    text += (
        f"The model's time is off by {off.min()[most]:+.0%} to {off.max()[most]:+.0%} at "
        f"{size(most)}, and by {off.min()[least]:+.0%} to {off.max()[least]:+.0%} at "
        f"{size(least)}. On short buffers a round costs what the operating system needs to wake a "
        "process. That is no constant: it depends on how many ranks are awake at once on the cores "
        "of one machine. A cluster has a processor for each rank."
    )
charts.prose(text)

# %% [markdown]
# ## Where this stops being true
#
# - **No contention.** Each message has its links to itself. On a real fabric the long jumps of
#   halving–doubling meet in the upper switches; the ring's neighbours never do. Chapter 17.
# - **Rounds in step.** Ranks do not wait for the slowest of a round unless they need its message. A
#   straggler still delays all in the end.
# - **Pieces are free.** Cut into 4,096 pieces, a pipeline hides its latency in this model. In
#   truth each piece costs the processor a little, the $o$ of LogGP, and the best number is smaller.
# - **Adding does not overlap.** In real libraries it does; the third constant is an upper bound.
# - **NCCL's rates are not these.** Its table holds efficiencies of each algorithm on each
#   generation of GPU, found by its makers. Chapter 16 fits rates to measured times.
#
# ## Exercises
#
# ```{exercise}
# :label: algorithms-pieces
# A chain broadcasts $S$ bytes over $n$ ranks in $p$ pieces: $n - 2 + p$ rounds of $S/p$ bytes.
# Which $p$ is best? What is the time then, for $n = 64$, 1 GiB and the links of this page?
# ```
#
# ```{solution} algorithms-pieces
# :class: dropdown
# $T(p) = (n - 2 + p)(α + βS/p)$ is least at $p = \sqrt{(n-2)βS/α}$, where
# $T = (\sqrt{(n-2)α} + \sqrt{βS})^2$. With $α$ = 5 µs and $β$ = 20 ps/B that is $p ≈ 516$ and
# $(17.6 + 146.5)^2 · 10^{-6}$ s = 26.9 ms, a quarter above the 21.5 ms of the bytes alone.
# ```
#
# ```{exercise}
# :label: algorithms-cross
# Derive the size at which halving–doubling overtakes recursive doubling for $n$ a power of two,
# with $γ = 0$. Compare with the explorer at 64 ranks.
# ```
#
# ```{solution} algorithms-cross
# :class: dropdown
# $α\log_2 n + βS\log_2 n = 2α\log_2 n + 2βS(n-1)/n$ gives
# $S = \dfrac{α}{β} · \dfrac{\log_2 n}{\log_2 n - 2(n-1)/n}$. For 64 ranks the last factor is
# 6/(6 − 1.97) = 1.49: 372 kB for 5 µs and 50 GB/s. With $γ$ it comes a little earlier, since
# recursive doubling adds six buffers.
# ```
#
# ```{exercise}
# :label: algorithms-two
# At 2 ranks busbw of an all-reduce equals algbw. What is busbw ÷ wire of NVLS there, and is NVLS of
# any use for two GPUs?
# ```
#
# ```{solution} algorithms-two
# :class: dropdown
# The factor is 1, NVLS puts $1 + 1/2$ buffers on each link: 0.67. A plain exchange needs one
# buffer. NVLS pays from $2(n-1)/n > 1 + 1/n$, that is from four ranks on; at three both are 4/3.
# ```
#
# ```{exercise}
# :label: algorithms-own
# Write a schedule of your own for an all-gather over 6 ranks that takes 3 rounds, and let `verify`
# judge it. How many bytes does your busiest rank send?
# ```
#
# ```{solution} algorithms-own
# :class: dropdown
# Bruck's: in round $k$ rank $r$ sends to $r - 2^k$ all it has, at most $6 - 2^k$ blocks: 1, 2 and 2
# blocks. `build("all_gather", "bruck", 6)` is that schedule; it sends $5/6 · S$, the bound.
# ```
#
# ## Where the token goes next
#
# The gradients of the running sentence are now messages: who sends which bytes to whom, in which
# round. Two ranks are left no choice worth the name. Chapter 16 sends such messages for real, with
# gloo, MPI and NCCL, and asks how to measure them without fooling oneself.
