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
# # Collectives
#
# ```{spine} communication messages
# ```
#
# Two ranks have read the running sentence, each beside other text, and each has found its own
# gradient for the same weights. Before the optimiser may move a weight, the two gradients must be
# added, and both ranks must hold the sum. With 16,384 GPUs it is no different, only larger.
#
# Neither rank says *send this to that one*. Both call an {term}`all-reduce`, one of the
# {term}`collectives <collective>`: operations in which a whole group takes part. There are nine of
# them here, and the plain send, which has a group of two, is counted as the tenth. Every strategy
# that spreads a model over machines ends in these ten calls. **What exactly does each of them ask
# for, and how fast can it be at best, whatever algorithm is clever enough to do it?**

# %% tags=["parameters"]
ranks = 4  # of the pictures, at most 4
message_sizes = [1024 * 4**k for k in range(8)]  # bytes
repeats = 7
seed = 0
keep = False  # write what is measured to data/results/, for readers without the lab

# %% tags=["hide-input"]
import math
import warnings

import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts
from tokenlife.catalog import data_dir, read_link, read_record, read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.collectives import (
    DEFINITIONS,
    Round,
    algorithms,
    build,
    definition,
    run,
    verify,
)
from tokenlife.collectives.bounds import busbw_factor, lower_bound, must_move
from tokenlife.costs import count_parameters
from tokenlife.costs.memory import kv_bytes_per_token, kv_numbers_per_layer
from tokenlife.lab import LabUnavailable, LabWarning, VirtualCluster
from tokenlife.lab.fit import fit_alpha_beta
from tokenlife.parallel import Plan, data_parallel_ops
from tokenlife.provenance import write_record
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_count, format_rate, format_time

charts.setup()
rng = np.random.default_rng(seed)
small, big = running()["small"], running()["big"]
NAMES = {"send": "send", **{kind: kind.replace("_", "-") for kind in DEFINITIONS}}


def size(bytes_):
    return format_bytes(bytes_).replace(" ", "\u00a0")


# %% [markdown]
# ## On the back of an envelope
#
# How many bytes must a rank send in an all-reduce? Two ranks, each with a buffer of $S$ bytes: each
# must learn the other's $S$ bytes, and nobody else can tell it. With $n$ ranks it would be absurd
# to send all to all. Let each rank add up one $n$th of the buffer: it takes in that part from
# $n - 1$ others, and hands its sum to $n - 1$ others. Each rank sends $2(n - 1)/n · S$ bytes,
# less than two buffers, however many ranks there are.

# %% tags=["hide-input"]
job = ModelConfig.load(small["model"])
plan = Plan(dp=small["dp"])
(op,) = data_parallel_ops(plan, count_parameters(job))
link = read_link(small["link"])
sent = busbw_factor(op.kind, plan.dp) * op.bytes_

paper = read_reference("04_llama3").set_index("quantity")
sister = ModelConfig.load(big["model"])
layout = Plan(dp=128, tp=8, pp=16)  # published, Table 4
assert layout.world == big["gpus"]
(sister_op, *_) = data_parallel_ops(layout, count_parameters(sister) // (layout.tp * layout.pp))
sister_bps = float(paper.value["link speed"]) * 1e9
sister_sent = busbw_factor(sister_op.kind, layout.dp) * sister_op.bytes_
charts.prose(
    f"The running job: {format_count(count_parameters(job))} float32 gradients are "
    f"{{modelled}}`{size(op.bytes_)}` on each of {plan.dp} ranks, and "
    f"$2(n-1)/n = {busbw_factor(op.kind, plan.dp):g}$, so each sends "
    f"{{modelled}}`{size(sent)}`. Over {format_rate(link['rate_bps'])} that is "
    f"{{modelled}}`{format_time(8 * sent / link['rate_bps'])}`, once every step.\n\n"
    f"Its big sister: Llama 3.1 405B on {big['gpus']:,} GPUs is cut into {layout.tp} × "
    f"{layout.pp} pieces, and {layout.dp} copies of each piece learn together "
    f"{{cite}}`llama2024herd`. A GPU has {{modelled}}`{size(sister_op.bytes_)}` of float32 "
    f"gradients to sum over {layout.dp} ranks and sends {{modelled}}`{size(sister_sent)}`. At the "
    f"published {{published}}`{format_rate(sister_bps)}` of its link this takes "
    f"{{modelled}}`{format_time(8 * sister_sent / sister_bps)}`, unless it hides behind other work."
)

# %% [markdown]
# ## One definition for all
#
# A collective is defined by who holds which block before and who must hold which block after. Two
# tables of yes and no, ranks down, blocks across. For an all-gather over four ranks:

# %%
what = definition("all_gather")
before, after = what.before(4, root=0), what.after(4, root=0)
print(before.astype(int), after.astype(int), sep="\n\n")

# %% [markdown]
# What a rank must hold after is the *sum* over those who held the block before. If one rank alone
# held it, the sum is a copy, and the collective only moves data. If all held it, each had its own
# contribution, and the collective adds. So a {term}`reduce-scatter` is the same two tables in the
# other order:

# %%
scatter = definition("reduce_scatter")
assert (scatter.before(4, root=0) == after).all()
assert (scatter.after(4, root=0) == before).all()

# %% [markdown]
# This one form covers everything below: the check that an algorithm is right, the least that it
# can cost, and the picture.

# %% tags=["hide-input"]
ORDER = ("broadcast", "reduce", "scatter", "gather", "all_gather", "reduce_scatter", "all_reduce",
         "all_to_all", "send", "barrier")  # fmt: skip
LETTERS = "ABCDEFGH"
CELL, HEAD, GAP = 1.0, 0.9, 0.75


def cells_of(kind):
    """One row a cell: rank, slot, width, what is in it, and whose it is."""
    what = definition(kind)
    owners = what.before(ranks, 0)
    for side, mask in (("before", owners), ("after", what.after(ranks, 0))):
        slots = ranks if kind == "all_to_all" else mask.shape[1]
        for rank, row in enumerate(mask):
            held = np.flatnonzero(row)
            for slot in range(slots):
                # An all-to-all has ranks² blocks, and a rank keeps only those that it holds.
                block = held[slot] if kind == "all_to_all" else slot
                who = np.flatnonzero(owners[:, block])
                if side == "before" and row[block]:
                    who = np.array([rank])
                name = "sum" if len(who) > 1 else LETTERS[who[0]]
                sign = "Σ" if name == "sum" else name
                number = f"{block % ranks + 1}" if slots > 1 else ""
                yield {
                    "side": side, "rank": rank, "slot": slot, "width": ranks / slots,
                    "of": name if row[block] and kind != "barrier" else "nothing",
                    "text": f"{sign}{number}" if row[block] and kind != "barrier" else "",
                }  # fmt: skip


rows, heads = [], []
for place, kind in enumerate(ORDER):
    down, across = divmod(place, 2)
    left, top = across * (2 * ranks + 3.2), down * (ranks + HEAD + GAP)
    heads.append({"x": left, "y": top + 0.4, "text": NAMES[kind]})
    for cell in cells_of(kind):
        x = left + (cell["side"] == "after") * (ranks + 1.6) + cell["slot"] * cell["width"]
        y = top + HEAD + cell["rank"]
        rows.append(cell | {"x": x, "x2": x + cell["width"] - 0.08, "y": y, "y2": y + 0.9,
                            "middle": x + cell["width"] / 2 - 0.04, "line": y + 0.45})  # fmt: skip
    heads.append({"x": left + ranks + 0.5, "y": top + HEAD + ranks / 2, "text": "→"})
wide, high = 2 * (2 * ranks + 3.2) - 1.6, 5 * (ranks + HEAD + GAP) - GAP
x = alt.X("x:Q", axis=None).scale(domain=[0, wide], nice=False)
y = alt.Y("y:Q", axis=None).scale(domain=[high, 0], nice=False)
KEYS = [*LETTERS[:ranks], "sum", "nothing"]
SHADES = [PALETTE[name] for name in ("blue", "orange", "violet", "sky")][:ranks]
colour = alt.Color("of:N", legend=None).scale(
    domain=KEYS, range=[*SHADES, PALETTE["brick"], PALETTE["grey"]]
)
filled = alt.condition("datum.of === 'nothing'", alt.value(0), alt.value(0.24))
pale = alt.condition("datum.of === 'nothing'", alt.value(0.35), alt.value(1))
base = alt.Chart(pd.DataFrame(rows))
boxes = base.mark_rect(cornerRadius=2, strokeWidth=1.2).encode(
    x=x, x2="x2:Q", y=y, y2="y2:Q", color=colour, stroke=colour, fillOpacity=filled,
    strokeOpacity=pale,
)  # fmt: skip
inside = base.mark_text(fontSize=10.5).encode(
    x=alt.X("middle:Q", axis=None), y=alt.Y("line:Q", axis=None), text="text:N"
)
words = (
    alt.Chart(pd.DataFrame(heads))
    .mark_text(align="left", baseline="middle", fontSize=13, fontWeight=600)
    .encode(x=x, y=y, text="text:N")
)
(boxes + inside + words).properties(
    title="Ten collectives: who holds what before, and after",
    description=f"For each of ten collectives over {ranks} ranks two grids, ranks down and blocks "
    "across, before and after. A letter names the rank that a block comes from, a number the "
    "block, Σ a sum over all ranks. "
    + "; ".join(f"{NAMES[kind]}: {definition(kind).says}" for kind in ORDER)
    + ".",
    height=int(high * 21),
)

# %% [markdown]
# Each row of a grid is a rank, A to D; rank A is the root where there is one. A2 is the second
# block as A holds it, Σ2 its sum over all ranks. An empty box is memory that the collective does
# not care about. A {term}`barrier` has an empty buffer: it moves no data, and asks only that no
# rank leaves before all have come.

# %% tags=["hide-input"]
pair = {"broadcast": "reduce", "scatter": "gather", "all_gather": "reduce_scatter"}
pair |= {b: a for a, b in pair.items()}
lines = [
    f"| {NAMES[kind]} | {definition(kind).says} | {NAMES[pair.get(kind, kind)]} |" for kind in ORDER
]
charts.prose("| collective | in words | backwards in time |\n|---|---|---|\n" + "\n".join(lines))

# %% [markdown]
# ## Time runs backwards
#
# The third column is more than a play with words. Take a schedule of an all-gather (here a ring:
# each rank passes on to its neighbour what it got last), run its rounds from last to first, turn
# every arrow around, and add where it copied. It is a reduce-scatter, and the library's check
# agrees:


# %%
def backwards(schedule, kind):
    rounds = [
        Round.columns(r.dst, r.src, r.chunk, count=r.count, reduce=~r.reduce)
        for r in reversed(schedule.rounds)
    ]
    return schedule.renamed(kind=kind, rounds=tuple(rounds))


gather = build("all_gather", "ring", ranks)
verify(backwards(gather, "reduce_scatter"), once=True)
verify(backwards(build("reduce_scatter", "ring", ranks), "all_gather"), once=True)

# %% [markdown]
# So each algorithm for copying gives one for adding, of the same rounds and the same bytes, as long
# as it hands no rank the same block twice: backwards that rank would be counted twice. It also
# settles half of the lower bounds: what holds for a broadcast holds for a reduce.
#
# ## Two halves make an all-reduce
#
# A reduce-scatter leaves with each rank the sum of one block. An all-gather begins with each rank
# holding one block. One after the other they are an all-reduce, and no data is in the wrong place
# in between. Run it on real numbers:

# %%
reduce_scatter, all_gather = (build(k, "ring", ranks) for k in ("reduce_scatter", "all_gather"))
buffers = rng.integers(0, 10, (ranks, 8))
half = run(reduce_scatter, buffers)
whole = run(all_gather, half)
assert (whole == buffers.sum(axis=0)).all()
print(f"before\n{buffers}\n\nafter the reduce-scatter\n{half}\n\nafter both\n{whole}")

# %% [markdown]
# The same trick makes a broadcast out of a scatter and an all-gather, and a reduce out of a
# reduce-scatter and a gather. It is also how {term}`ZeRO <ZeRO>` saves memory at the price of no
# more bytes: it stops in the middle, lets each rank update only the weights whose gradients it has,
# and gathers the weights afterwards {cite}`rajbhandari2020zero`. FSDP, like ZeRO's third stage,
# keeps only a share of the weights too. It gathers them in the forward pass and again in the
# backward pass: half as much again.

# %% tags=["hide-input"]
COMPOSED = {
    "all_reduce": ("reduce_scatter", "all_gather"),
    "broadcast": ("scatter", "all_gather"),
    "reduce": ("reduce_scatter", "gather"),
}
wide_ranks = 64
charts.table(
    pd.DataFrame(
        {
            "collective": NAMES[kind],
            "in two halves": " + ".join(NAMES[half] for half in halves),
            "least bytes": busbw_factor(kind, wide_ranks),
            "of the halves": sum(busbw_factor(half, wide_ranks) for half in halves),
        }
        for kind, halves in COMPOSED.items()
    ),
    caption=f"Bytes that the busiest of {wide_ranks} ranks must send or receive, in buffers",
    label={"least bytes": "modelled", "of the halves": "modelled"},
    formats={"least bytes": ".3f", "of the halves": ".3f"},
)

# %% [markdown]
# For an all-reduce the halves cost nothing extra. A broadcast in two halves moves twice the least
# bytes; it is still a good way, since it is done in few rounds, and the pipelines of chapter 15
# that move fewer bytes need many.
#
# ## Who calls what
#
# Part II derives each of these calls. Here is the list in advance, with the bytes of one call for
# models of the book: the whole buffer of one rank, as nccl-tests counts it (for an all-gather, the
# gathered result).

# %% tags=["hide-input"]
width = 2  # bytes of a bfloat16
tokens, hidden, layers = 8192, sister.hidden, sister.layers
v3 = ModelConfig.load("deepseek-v3")
piece = count_parameters(sister) // (layout.tp * layout.pp)
layer_piece = count_parameters(sister) // layers // layout.tp
stream = tokens * hidden * width
CALLS = [  # who, when, what moves, collective, ranks, bytes
    ("data parallel", "training", "gradients, float32", "all_reduce", layout.dp, 4 * piece),
    ("ZeRO, FSDP", "training", "gradients, float32", "reduce_scatter", layout.dp, 4 * piece),
    ("ZeRO, FSDP", "training", "weights of a layer", "all_gather", layout.dp, width * layer_piece),
    ("tensor parallel", "training", "partial sums, 2 a layer", "all_reduce", layout.tp, stream),
    ("sequence parallel", "training", "stream, whole", "all_gather", layout.tp, stream),
    ("sequence parallel", "training", "partial sums", "reduce_scatter", layout.tp, stream),
    ("pipeline parallel", "training", "stream of a stage", "send", 2, stream // layout.tp),
    ("context parallel", "training", "keys and values of a layer, 128 Ki tokens", "all_gather", 16,
     16 * tokens * kv_numbers_per_layer(sister) * width // layout.tp),
    ("expert parallel", "training", "tokens to their experts (DeepSeek-V3, 8-bit)", "all_to_all",
     64, 4096 * v3.moe.top_k * v3.hidden),
    ("start of a job", "both", "weights", "broadcast", layout.dp, width * piece),
    ("before a checkpoint", "training", "nothing", "barrier", layout.world, 0),
    ("tensor parallel", "serving", "partial sums of one token", "all_reduce", 8, hidden * width),
    ("expert parallel", "serving", "128 tokens to their experts (DeepSeek-V3, 8-bit)", "all_to_all",
     32, 128 * v3.moe.top_k * v3.hidden),
    ("split prefill", "serving", "cache of an 8 Ki prompt", "send", 2,
     tokens * kv_bytes_per_token(sister) // 8),
    ("sampling", "serving", "logits of 64 tokens", "gather", 8, 64 * sister.vocab * width),
]  # fmt: skip
calls = pd.DataFrame(
    CALLS, columns=["asked for by", "in", "what moves", "collective", "ranks", "bytes of one call"]
)
charts.table(
    calls.assign(collective=calls.collective.map(NAMES)),
    caption="Which strategy calls which collective; Llama 3.1 405B in its published layout where "
    "no other model is named",
    label={"bytes of one call": "modelled"},
    formats={"bytes of one call": size},
)

# %% tags=["hide-input"]
largest = calls["bytes of one call"].max()
least = calls["bytes of one call"][calls["bytes of one call"] > 0].min()
charts.prose(
    f"The sizes run from {size(least)} to {size(largest)}, a factor of "
    f"{largest / least:,.0f}. The smallest, in the middle of serving, waits for latency; a "
    "gradient of gigabytes waits for bandwidth. No one algorithm serves both; the next sections "
    "say why."
)

# %% [markdown]
# ## What one message costs
#
# The simplest model with any truth in it: a message of $m$ bytes takes
#
# $$t(m) = α + β\,m$$
#
# with $α$ the {term}`latency` and $β$ the seconds for a byte, the inverse of bandwidth
# {cite}`hockney1994challenge`. At $m = α/β$ half of the time is latency; below it a message costs
# about the same however short it is. Adding a byte to another costs a third constant, $γ$. A round
# lasts as long as its longest message. Let $b$ be the longest message of each round, summed over
# $r$ rounds, and $c$ the bytes added in the same way. Then the collective takes
#
# $$T = r\,α + b\,β + c\,γ.$$
#
# Three numbers an algorithm. Where all ranks send all the time, as in a ring, $b$ is what each rank
# sends. In a tree each round has another sender, and $b$ is more than any one of them sends. The
# library calls the three `terms`:

# %%
from tokenlife.collectives import algorithm

algorithm("all_reduce", "ring").terms(ranks=8, bytes_=2**20)

# %% [markdown]
# ### Measured: one message, then the running job
#
# Two ranks, each in a network namespace of its own, joined by links held at the rate of the
# running job. {term}`gloo` does the sending; chapter 16 explains the lab. Single messages of
# several sizes give $α$ and $β$. From these the all-reduce of the running job, two rounds of a
# ring, is first *predicted* and then run.

# %%
from tokenlife import lab


def measure():
    jobs = [lab.Job("send", n, engine="gloo", repeats=repeats) for n in message_sizes]
    jobs += [lab.Job(op.kind, op.bytes_, "ring", engine="gloo", repeats=repeats)]
    results = lab.run(jobs, ranks=plan.dp, rate=link["rate_bps"])
    *messages, all_reduce = [result.measured.times for result in results]
    return {"place": results[0].place, "messages": messages, "all_reduce": all_reduce}


# %% tags=["hide-input"]
with warnings.catch_warnings():
    warnings.simplefilter("ignore", LabWarning)  # the text below says where the ranks were
    try:
        found, label = measure(), "measured"
    except LabUnavailable:
        found, label = read_record("14_collectives")["values"], "recorded"
if keep:
    write_record(data_dir() / "results" / "14_collectives.json", found, ["lab/engines.py"])
WHERE = {
    "namespaces": f"links held at {format_rate(link['rate_bps'])} (the bucket that holds them lets "
    f"the first {format_bytes(link['rate_bps'] / 8000)} pass at once, so they pay no $β$)",
    "loopback": "the loopback interface, since this machine refuses namespaces; no rate is held",
}
messages = pd.DataFrame(
    {"bytes": n, "time": t}
    for n, times in zip(message_sizes, found["messages"], strict=True)
    for t in times
)
# The bucket that holds the rate is full at first: so many bytes pass at once.
held = found["place"] == "namespaces"
burst = VirtualCluster(plan.dp, rate=link["rate_bps"]).burst if held else 0


def paid(bytes_):
    return np.maximum(np.asarray(bytes_) - burst, 0)


fitted = fit_alpha_beta(paid(messages.bytes), messages.time)
alpha_s, beta_s_per_B = fitted["alpha_s"], fitted["beta_s_per_B"]
middle = messages.groupby("bytes", as_index=False).time.median()
middle["model"] = alpha_s + beta_s_per_B * paid(middle.bytes)
line = pd.DataFrame({"bytes": np.geomspace(message_sizes[0], message_sizes[-1], 60)})
line["model"] = alpha_s + beta_s_per_B * paid(line.bytes)
x = alt.X("bytes:Q", title="bytes of the message (logarithmic)").scale(type="log", base=2)
x = x.axis(values=message_sizes, labelExpr=charts.SIZE_TICKS, labelOverlap=True)
y = alt.Y("time:Q", title="time (logarithmic)").scale(type="log").axis(**charts.LOG_TIME_AXIS)
style = charts.LABELS[label]
(
    alt.Chart(line).mark_line(color=PALETTE["blue"]).encode(x, alt.Y("model:Q"))
    + alt.Chart(messages)
    .mark_point(shape=style.shape, color=style.colour, opacity=0.6)
    .encode(x, y, tooltip=["bytes:Q", alt.Tooltip("time:Q", format=".3g")])
).properties(
    title="Short messages all cost the same, long ones pay by the byte",
    description="Time of one message between two ranks against its size, both logarithmic: points "
    f"{label}, and the fitted line of latency plus bytes times seconds per byte. "
    + "; ".join(f"{size(r.bytes)} {format_time(r.time)}" for r in middle.itertuples())
    + ".",
    height=260,
)

# %% tags=["hide-input"]
real_s = float(np.median(found["all_reduce"]))
forecast_s = float(
    algorithm(op.kind, "ring").terms(plan.dp, paid(op.bytes_)).time_s(alpha_s, beta_s_per_B)
)
worst = (middle.model / middle.time - 1).abs().max()
charts.prose(
    f"Points are {label}, each repeat one, over {WHERE[found['place']]}; the line is the fit. "
    f"$α$ = {{{label}}}`{format_time(alpha_s)}`, and $1/β$ = "
    f"{{{label}}}`{format_rate(8 / beta_s_per_B)}` of payload; α alone would carry "
    f"{size(alpha_s / beta_s_per_B)}. From the median of some size the fit is off by {worst:.0%}: "
    "two constants follow neither every turn of a protocol nor what else the machine is doing.\n\n"
    f"For the running job the fit says $2α + Sβ$ = {{modelled}}`{format_time(forecast_s)}`. The "
    f"all-reduce took {{{label}}}`{format_time(real_s)}`: the forecast is off by "
    f"{forecast_s / real_s - 1:+.0%}. The envelope at the top of the page said "
    f"{format_time(8 * sent / link['rate_bps'])}; it knew neither headers, nor latency, nor "
    "the bucket."
)

# %% [markdown]
# ## What no algorithm can better
#
# The three bounds need no algorithm, only the definition.
#
# **Rounds.** In one round a rank hears from one other. After $r$ rounds it knows of at most $2^r$
# ranks, itself included. If the result of some rank depends on all, at least $\lceil \log_2 n
# \rceil$ rounds pass. Backwards it is the same: in $r$ rounds at most $2^r$ ranks know of the root.
# So this holds for every collective but the send, and even for the barrier.
#
# **Bytes.** A rank must receive whatever it must hold and does not, and a sum whose parts lie
# elsewhere it must receive at least once. It must send whatever is needed elsewhere and held
# nowhere else. For an all-reduce count the group as a whole: to bring the $n$ parts of one block
# together takes $n - 1$ messages of its size, to spread the sum $n - 1$ more. Together
# $2(n - 1)S$ over $n$ ranks, so some rank sends at least $2(n - 1)/n · S$
# {cite}`patarasuk2009bandwidth`.
#
# **Additions.** To sum $n$ parts of $S$ bytes takes $(n - 1)S$ additions, spread over $n$ ranks at
# best: $(n - 1)/n · S$ each.
#
# The byte bound can be read off the two tables by counting, and the library does so; the closed
# form must agree:

# %%
for kind in DEFINITIONS:
    for n in (1, 2, 3, 8, 33):
        assert math.isclose(must_move(kind, n), busbw_factor(kind, n))

# %% tags=["hide-input"]
n, S = wide_ranks, 2.0**30
PIECES = [2**k for k in range(11)]
KNOWN = ["ring", "binomial", "recursive_doubling", "recursive_halving", "halving_doubling",
         "double_tree", "pairwise", "bruck"]  # fmt: skip


def named(name):
    return {"halving_doubling": "halving–doubling"}.get(name, name.replace("_", " "))


def ways(a):
    """Return an algorithm's closed forms, over all numbers of pieces that it may be cut into."""
    cut = PIECES if "pieces" in a.options else [None]
    for pieces in cut:
        yield pieces, a.terms(n, S, **(a.options | ({"pieces": pieces} if pieces else {})))


def plain(kind):
    """Return the algorithms of ranks with one port in a network that only carries."""
    built = [(a, build(kind, a.name, n)) for a in algorithms(kind, n)]
    return [a for a, schedule in built if schedule.ports == 1 and not schedule.switches]


def meeting(kind, met):
    """Name the algorithms that meet a bound, plain ones first, at most three."""
    names = [a.name for a in plain(kind) if any(met(t) for _, t in ways(a))]
    names.sort(key=lambda name: KNOWN.index(name) if name in KNOWN else len(KNOWN))
    return ", ".join(named(name) for name in names[:3]) or "none"


rows = []
for kind in ORDER:
    bound = lower_bound(kind, n, S)
    rows.append(
        {
            "collective": NAMES[kind],
            "rounds": int(bound.rounds),
            "sent ÷ S": float(bound.sent_bytes / S),
            "added ÷ S": float(bound.reduced_bytes / S),
            "least rounds": meeting(kind, lambda t, b=bound: t.rounds <= b.rounds),
            "least bytes": meeting(kind, lambda t, b=bound: t.sent_bytes <= 1.02 * b.sent_bytes)
            if kind != "barrier"
            else "all",
        }
    )
charts.table(
    pd.DataFrame(rows),
    caption=f"Lower bounds over {n} ranks for a buffer of S bytes, and who meets them (bytes to "
    "2 %, cut into up to 1,024 pieces)",
    label={"rounds": "modelled", "sent ÷ S": "modelled", "added ÷ S": "modelled"},
    formats={"sent ÷ S": ".3f", "added ÷ S": ".3f"},
)

# %% tags=["hide-input"]
points = pd.DataFrame(
    {
        "algorithm": named(a.name),
        "pieces": pieces or 1,
        "cut": bool(pieces),
        "rounds": float(terms.rounds),
        "sent": float(terms.sent_bytes / S),
    }
    for a in plain("all_reduce")
    for pieces, terms in ways(a)
)
bound = lower_bound("all_reduce", n, 1.0)
MOST = 2000
shown = points[points.rounds <= MOST]
ends = shown[shown.pieces == 1].groupby(["rounds", "sent"], as_index=False)
ends = ends.agg(algorithm=("algorithm", lambda names: ", ".join(names)))
tone = alt.condition("datum.cut", alt.value(PALETTE["orange"]), alt.value(PALETTE["blue"]))
base = alt.Chart(shown).encode(
    x=alt.X("rounds:Q", title="rounds (logarithmic)")
    .scale(type="log", domain=[4, MOST], nice=False)
    .axis(values=[5, 10, 20, 50, 100, 200, 500, 1000]),
    y=alt.Y("sent:Q", title="bytes one after another ÷ S (logarithmic)")
    .scale(type="log", domain=[0.8, 200], nice=False)
    .axis(values=[2, 5, 10, 20, 50, 100]),
)
limits = pd.DataFrame({"rounds": [float(bound.rounds)], "sent": [float(bound.sent_bytes)]})
rules = alt.Chart(limits)
cut_lines = (
    base.transform_filter("datum.cut")
    .mark_line(color=PALETTE["orange"], strokeWidth=1.2)
    .encode(detail="algorithm:N", order="pieces:Q")
)
dots = base.mark_point(size=45).encode(
    color=tone,
    tooltip=["algorithm:N", "pieces:Q", "rounds:Q", alt.Tooltip("sent:Q", format=".2f")],
)
# Where each label stands, so that none meets another on a narrow page.
PLACES = {"binomial": ("center", 0, -10), "double tree": ("right", -4, 14),
          "bruck": ("left", -4, 16), "torus 3d": ("left", -4, 30),
          "torus 2d": ("left", -4, 44), "ring": ("left", -4, 30)}  # fmt: skip
names = []
for end in ends.itertuples():
    align, dx, dy = PLACES.get(end.algorithm.split(",")[0], ("left", 7, -8))
    mark = base.mark_text(align=align, dx=dx, dy=dy).encode(text="algorithm:N")
    names.append(mark.properties(data=ends[ends.index == end.Index]))
alt.layer(
    rules.mark_rule(strokeDash=[4, 3]).encode(x="rounds:Q"),
    rules.mark_rule(strokeDash=[4, 3]).encode(y="sent:Q"),
    cut_lines,
    dots,
    *names,
).properties(
    title=f"All-reduce over {n} ranks: few rounds or few bytes, rarely both",
    description="Each all-reduce algorithm as a point: rounds across, bytes one after another "
    "over the buffer up, both logarithmic; dashed lines are the lower bounds. Algorithms that may "
    "be cut into pieces are lines: more pieces, more rounds, fewer bytes. "
    + "; ".join(f"{p.algorithm}: {p.rounds:.0f} rounds, {p.sent:.2f}" for p in ends.itertuples())
    + ".",
    height=340,
)

# %% [markdown]
# The dashed lines are the bounds, and no point lies left of or below them. Blue algorithms have
# one form. Orange ones may cut the buffer into pieces that follow each other through the tree or
# chain: more pieces, more rounds, fewer bytes. *Bruck* and *halving–doubling* seem to make all
# others needless: the fewest bytes in twice the fewest rounds. Chapter 15 shows what the picture
# leaves out: rank counts that are no power of two, and which links a message crosses.
#
# ## Where this stops being true
#
# - **Rounds are no barrier.** The model lets a round begin when the last has ended everywhere. Real
#   ranks run ahead of one another, and a late one delays only those who wait for it, then those
#   who wait for them.
# - **Wires are shared.** $β$ is the same for all messages of a round only if no two meet on a link.
#   Chapter 17 puts schedules on real topologies.
# - **$α$ is not a constant.** Libraries switch protocols by size, so a curve of times has steps.
#   On one machine $α$ is mostly the scheduler of the operating system.
# - **One port.** A rank with eight network cards, or with a switch that adds on its way, is bound
#   by other numbers; the bounds above do not hold for it.
# - **A sum has an order.** The definition says *sum*, and for floats different orders differ in the
#   last bits. Two algorithms, or two rank counts, may give results that are not equal bit for bit.
#
# ## Exercises
#
# ```{exercise}
# :label: collectives-table
# Which collective of the ten is this? Every rank holds all blocks before; after, rank $r$ must
# hold block $r$ only. And which one is this: every rank holds one block before, the root all after?
# What would you have to write for a scan, in which rank $r$ must hold the sum over ranks
# $0 … r$?
# ```
#
# ```{solution} collectives-table
# :class: dropdown
# The reduce-scatter (all held a block, so their sum is asked for), and the gather. A scan cannot be
# written in this form: here a rank that must hold a block holds the sum over *all* who held it
# before, and a scan asks each rank for another sum. One would need a third table, of who counts
# for whom.
# ```
#
# ```{exercise}
# :label: collectives-two
# Over two ranks the all-reduce bound is $S$ bytes. A plain exchange (each sends its whole buffer,
# each adds) takes one round; a ring takes two. Which bounds does each meet? When does the ring win?
# ```
#
# ```{solution} collectives-two
# :class: dropdown
# The exchange meets the bound on rounds (1) and on bytes ($S$), but each rank adds $S$ bytes where
# $S/2$ would do. The ring meets bytes and additions and takes 2 rounds. It wins when
# $γ S/2 > α$: when adding half a buffer takes longer than a message's latency.
# ```
#
# ```{exercise}
# :label: collectives-bound
# Derive the byte bound of an all-to-all among $n$ ranks of which each sends a different block to
# each other one, then that of a scatter. Why are they equal, though the all-to-all moves $n$ times
# as much in all?
# ```
#
# ```{solution} collectives-bound
# :class: dropdown
# In both the busiest rank holds $n - 1$ blocks that others need: $(n - 1)/n · S$. In a scatter
# that rank is the root alone and the others have nothing to send; in an all-to-all every rank is in
# the root's place, and all send at once. The bound counts the busiest rank, not the sum.
# `must_move("all_to_all", 8)` and `must_move("scatter", 8)` both give 0.875.
# ```
#
# ```{exercise}
# :label: collectives-backwards
# Turn a binomial tree broadcast around with `backwards` and check that it is a reduce. Then try the
# same with a ring all-reduce. Is it an all-reduce again, and what have the two halves become?
# ```
#
# ```{solution} collectives-backwards
# :class: dropdown
# `verify(backwards(build("broadcast", "binomial", 8), "reduce"))` passes. The all-reduce turned
# around is an all-reduce again: its all-gather, played backwards and first, is now the
# reduce-scatter, and its reduce-scatter the all-gather.
# ```
#
# ## Where the token goes next
#
# The gradients of the running sentence are now a call with a name, a group and a size, and we know
# what no answer to the call can better. Chapter 15 gives the answers: the schedules that turn one
# call into messages, round by round.
