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
# # Data parallelism
#
# ```{spine} communication messages
# ```
#
# The first way to use more than one GPU is the oldest: copy the model, deal the batch. Each rank
# reads its own sentences, and each ends its backward pass with gradients of its own. Before
# anybody may take a step these must be made one, or the copies drift apart. **How many bytes must
# cross the network for one step, can they cross while the GPUs still compute, and what changes if
# nobody keeps a whole copy?**

# %% tags=["parameters"]
ranks = 4
sequences, length = 8, 128  # of the step that is really taken
bucket_bytes = 2**18  # of gradients that are sent together
rate_bps = 200e6  # of each link, where time is measured
repeats = 5
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, corpus, lab
from tokenlife.catalog import read_accelerator
from tokenlife.charts import PALETTE
from tokenlife.costs import count_parameters, training_flops
from tokenlife.jobs import traffic
from tokenlife.jobs.left import in_words, left
from tokenlife.lab.gloo import gloo_seconds, gloo_sends_of
from tokenlife.parallel import Plan, Plans, communication
from tokenlife.parallel.data import data_parallel_ops
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_time

charts.setup()
h100 = read_accelerator("h100-sxm")
page = lab.Page(
    "07_data_parallel",
    ["lab/calls.py", "lab/program.py", "lab/strategies.py", "transformer/model.py"],
)
sizes = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 384, "vocab_size": 4096,
    "max_position_embeddings": length, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
small = ModelConfig.from_hf(sizes, "small")
text = corpus.shakespeare()[0].text[: 8 * sequences * (length + 1)]
flat = vocabularies.load("book").encode_ordinary(text)[: sequences * (length + 1)]
ids = np.reshape(flat, (sequences, length + 1)).tolist()


def size(value, digits=3):
    return format_bytes(value, digits).replace(" ", "\u00a0")


# %% [markdown]
# ## On the back of an envelope
#
# The gradients are as many numbers as the model has weights, however long the batch is. To sum them
# over $n$ ranks, each rank must send at least $2(n - 1)/n$ of them
# ([chapter 14](14_collectives.ipynb) shows why). The work, on the other hand, grows with the
# tokens.

# %% tags=["hide-input"]
eight = ModelConfig.load("llama-3.1-8b")
weights = count_parameters(eight)
n, card_Bps, share = 128, 50e9, 0.4
sent_bytes = 2 * (n - 1) / n * 4 * weights
send_s = sent_bytes / card_Bps
work = training_flops(eight, 1, 8192, causal=True).total / 8192
token_s = work / (share * h100["peak_flops"]["bfloat16"])
charts.prose(
    f"{eight.name}: {weights / 1e9:.1f} billion weights, gradients of 4 bytes each. On {n} GPUs a "
    f"rank sends {{modelled}}`{size(sent_bytes)}` a step, and a card of 400 Gbit/s needs "
    f"{{modelled}}`{format_time(send_s)}` for it. At {share:.0%} of its peak an H100 trains on a "
    f"token in {{modelled}}`{format_time(token_s)}`. So work and sums take equally long at "
    f"{{modelled}}`{send_s / token_s:,.0f}` tokens a GPU and step. With fewer, the network "
    "decides; with more, it may be hidden, if somebody hides it."
)

# %% [markdown]
# ## Thirty lines
#
# All of data parallelism fits into one cell. Every rank builds the same model, takes its rows of
# the batch, goes forward and backward, and sums each gradient with everybody else's. The mean over
# ranks is the gradient of the whole batch, since all ranks have equally many tokens.


# %%
def naive(here, sizes, ids):
    """Sum each gradient once the backward pass is over; then take the same step alone."""
    import torch
    import torch.distributed as dist
    from tokenlife.lab import strategies
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer import ModelConfig

    config, ids = ModelConfig.from_hf(sizes, "small"), torch.tensor(ids)
    rows = len(ids) // here.ranks
    mine = ids[rows * here.rank : rows * (here.rank + 1)]
    copy = strategies.model(config)  # the same seed, so the same weights everywhere
    with here.counted() as sent, Calls() as calls:
        loss = strategies.step(copy, mine)  # forward, mean loss of these rows, backward
        for weight in copy.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= here.ranks
    dist.all_reduce(loss)
    return {
        **beside_one_process(copy, loss / here.ranks, config, ids),
        "calls": calls.rows(),
        **sent,
    }


def beside_one_process(network, loss, config, ids):
    """Take the step of the whole batch alone; return both losses, and the worst gradient."""
    from tokenlife.lab import strategies

    alone = strategies.model(config)
    whole = strategies.step(alone, ids)
    worst = max(strategies.gradient_errors(network, alone).values())
    return {"loss": float(loss), "alone": float(whole), "gradient": worst}


# %%
(plain,), label, _ = ran = page.on_ranks(
    "naive", (naive, {"sizes": sizes, "ids": ids}), ranks=ranks
)


# %% tags=["hide-input"]
def equal_to_one_process(on_each):
    """Hold every rank's step to that of one process."""
    for found in on_each:
        assert abs(found["loss"] / found["alone"] - 1) < 1e-6 and found["gradient"] < 2e-5


worst = max(each["gradient"] for each in plain)
equal_to_one_process(plain)
many = sum(call["count"] for call in plain[0]["calls"])
charts.prose(
    f"{ran.where} The mean loss of the ranks is {{{label}}}`{plain[0]['loss']:.6f}`, that of one "
    f"process {{{label}}}`{plain[0]['alone']:.6f}`; no gradient differs by more than "
    f"{{{label}}}`{worst:.0e}` of the largest of its tensor. Float32 keeps seven digits, and sums "
    f"in another order may differ in the last. It took {{{label}}}`{many}` calls, one for each "
    "tensor: many of them tiny, and none before the whole backward pass was over."
)

# %% [markdown]
# ## Buckets
#
# PyTorch's `DistributedDataParallel` does two things better {cite}`li2020pytorch`. Gradients appear
# from the last layer to the first, and it need not wait for the first to send the last. And it
# collects them in {term}`buckets <bucket>`, so that no call is tiny.


# %%
def strategy(here, sizes, ids, zero, bucket_bytes, warm):
    """A step under DDP (zero 0) or FSDP, after some others; then the same step alone."""
    import torch
    import torch.distributed as dist
    from tokenlife.lab import strategies
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer import ModelConfig
    from torch.distributed.device_mesh import init_device_mesh

    config, ids = ModelConfig.from_hf(sizes, "small"), torch.tensor(ids)
    rows = len(ids) // here.ranks
    mine = ids[rows * here.rank : rows * (here.rank + 1)]
    network, came = strategies.model(config), []
    if zero:
        strategies.sharded(network, init_device_mesh("cpu", (here.ranks,)), zero)
    else:
        network = strategies.replicated(network, bucket_bytes)
    for weight in network.parameters():
        weight.register_post_accumulate_grad_hook(lambda w: came.append(w.numel()))
    for _ in range(warm):
        strategies.step(network, mine)
        network.zero_grad()
        came.clear()
    with here.counted() as sent, Calls() as calls:
        loss = strategies.step(network, mine)
    dist.all_reduce(loss)
    return {
        **beside_one_process(network, loss / here.ranks, config, ids), "came": came,
        "calls": calls.rows(), **sent,
    }  # fmt: skip


# %%
shared = {"sizes": sizes, "ids": ids, "bucket_bytes": bucket_bytes}
in_turn, label, _ = page.on_ranks(
    "ddp", *((strategy, {**shared, "zero": 0, "warm": warm}) for warm in (0, 1, 2)), ranks=ranks
)

# %% tags=["hide-input"]
names = ["first step", "second step", "from the third on"]
rows = []
for name, on_each in zip(names, in_turn, strict=True):
    calls = [call for call in on_each[0]["calls"] if call["kind"] == "all_reduce"]
    others = [call for call in on_each[0]["calls"] if call["kind"] != "all_reduce"]
    rows.append(
        {"": name, "all-reduces": sum(c["count"] for c in calls),
         "largest": max(c["bytes"] for c in calls), "smallest": min(c["bytes"] for c in calls),
         "other calls": "; ".join(
             f"{c['count']} {c['kind']} of {size(c['bytes'])}" for c in others) or "none"}
    )  # fmt: skip
charts.table(
    pd.DataFrame(rows),
    caption=f"What DDP calls with buckets of {size(bucket_bytes)}: rank 0",
    label=dict.fromkeys(["all-reduces", "largest", "smallest", "other calls"], label),
    formats={"largest": size, "smallest": size},
)

# %% [markdown]
# In its first step DDP has no order of gradients yet to cut by, and sends what it has at once. It
# notes in which order they come, tells all ranks (the broadcasts), and cuts anew. A trace of the
# first step is a trace of no other step.
#
# The library cuts as PyTorch does: a bucket is full when the next gradient no longer fits in.

# %%
steady = in_turn[2]
replicated = Plan(dp=ranks, sequence=length, recipe="float32", bucket_bytes=bucket_bytes)
for found in steady:
    ops = data_parallel_ops(replicated, found["came"][::-1])
    seen = sorted(c["bytes"] for c in found["calls"] for _ in range(c["count"]))
    assert seen == sorted(op.bytes_ for op in ops)
equal_to_one_process(steady)

# %% [markdown]
# ## Nobody keeps a whole copy
#
# Each rank of DDP holds all weights, all gradients and all states of the optimiser, the same as
# everybody. ZeRO {cite}`rajbhandari2020zero` cuts what is held: stage 1 the optimiser's states,
# stage 2 the gradients too, stage 3 the weights too. PyTorch's `fully_shard` is stage 3, or 2 where
# weights stay after the forward pass {cite}`zhao2023fsdp`. An all-reduce is a reduce-scatter and an
# all-gather: stages 1 and 2 only put the optimiser's step between the two. Stage 3 must gather the
# weights twice, once for each pass.

# %%
zeros, label, _ = page.on_ranks(
    "fsdp", *((strategy, {**shared, "zero": zero, "warm": 1}) for zero in (2, 3)), ranks=ranks
)
plans = {
    zero: Plan(
        dp=ranks, zero=zero, sequence=length, micro_batch=sequences // ranks, recipe="float32"
    )
    for zero in (2, 3)
}


def foretold(plan, rank):
    """Return {(kind, bytes): calls} of the library's communication operations."""
    calls = {}
    for op in communication(small, plan, rank):
        calls[op.kind, op.bytes_] = calls.get((op.kind, op.bytes_), 0) + op.count
    return calls


for (zero, plan), on_each in zip(plans.items(), zeros, strict=True):
    for rank, found in enumerate(on_each):
        seen = {(c["kind"], c["bytes"]): c["count"] for c in found["calls"]}
        assert seen == foretold(plan, rank), (zero, rank)
    equal_to_one_process(on_each)

# %% tags=["hide-input"]
rows = []
for (zero, plan), on_each in zip(plans.items(), zeros, strict=True):
    seen = {(c["kind"], c["bytes"]): c["count"] for c in on_each[0]["calls"]}
    for (kind, bytes_), count in foretold(plan, 0).items():
        rows.append(
            {"ZeRO": zero, "call": kind.replace("_", "-"), "bytes": bytes_,
             "calls, by the library": count, "calls seen": seen[kind, bytes_]}
        )  # fmt: skip
charts.table(
    pd.DataFrame(rows),
    caption="Calls of one step under FSDP; every rank's were compared, and are equal",
    label={"calls, by the library": "modelled", "calls seen": label},
)

# %% [markdown]
# ## And on the wire
#
# From calls to sockets one must know {term}`gloo`: its all-reduce is a ring, and so is its
# all-gather, but its reduce-scatter is an all-reduce of which each rank keeps its part
# ([chapter 16](16_measuring.ipynb)).


# %% tags=["hide-input"]
rows = []
for name, on_each in (("tensor by tensor", plain), ("DDP", steady), ("ZeRO-2", zeros[0]),
                      ("ZeRO-3", zeros[1])):  # fmt: skip
    each = [gloo_sends_of(found["calls"], rank) for rank, found in enumerate(on_each)]
    data, headers = map(sum, zip(*each, strict=True))
    counted = sum(found["payload_bytes"] for found in on_each)
    least = sum(
        call["count"] * call["bytes"] * (1 + (call["kind"] == "all_reduce")) * (ranks - 1)
        for call in on_each[0]["calls"]
    )
    assert abs(counted / (data + headers) - 1) <= 0.005, name
    rows.append(
        {"strategy": name, "least": least, "as gloo does it": data, "its headers": headers,
         "on the sockets": counted, "difference": counted / (data + headers) - 1}
    )  # fmt: skip
wire = pd.DataFrame(rows)
charts.table(
    wire,
    caption="Payload that all ranks send in one step, bytes",
    label={"least": "modelled", "as gloo does it": "modelled", "its headers": "modelled",
           "on the sockets": label},
    formats={"difference": "+.2%", **dict.fromkeys(
        ["least", "as gloo does it", "its headers", "on the sockets"], ",.0f")},
)  # fmt: skip

# %% tags=["hide-input"]
gloo = wire.set_index("strategy")["as gloo does it"]
charts.prose(
    "Calls, algorithms and headers together are what the sockets sent, "
    f"{'to the byte' if wire.difference.abs().max() == 0 else 'nearly to the byte'}. ZeRO-2 should "
    f"cost what DDP costs, and sends {{modelled}}`{gloo['ZeRO-2'] / gloo['DDP']:.2f}` times as "
    "much: that is gloo's reduce-scatter, not ZeRO. On NCCL the second column holds."
)

# %% [markdown]
# ## What hides
#
# Buckets let sums start while the backward pass goes on. How much of them hides can be foretold
# from one run without a network: when does each gradient come? A {term}`bucket` may leave when its
# last gradient is there and the bucket before it is through.


# %%
def overlapped(here, sizes, sequences, buckets, repeats):
    """Times of steps: without a network, with one sum at the end, with buckets."""
    import time

    import torch
    import torch.distributed as dist
    from tokenlife.lab import strategies
    from tokenlife.transformer import ModelConfig

    config, vocabulary = ModelConfig.from_hf(sizes, "small"), sizes["vocab_size"]
    ids = torch.randint(vocabulary, (sequences, sizes["max_position_embeddings"] + 1))

    def step(network, after=None):
        network.zero_grad()
        here.together(0.05)
        start = time.monotonic()
        strategies.step(network, ids)
        if after:
            after()
        return start, time.monotonic() - start

    def sum_all():
        flat = torch.cat([weight.grad.flatten() for weight in copy.parameters()])
        dist.all_reduce(flat)

    copy, came = strategies.model(config), []
    for weight in copy.parameters():
        weight.register_post_accumulate_grad_hook(
            lambda w: came.append((w.numel(), time.monotonic()))
        )
    alone = []
    for _ in range(repeats + 2):
        came.clear()
        start, seconds = step(copy)
        alone.append({"s": seconds, "came": [(n, at - start) for n, at in came]})
    found = {"alone": alone[2:], "end": [step(copy, sum_all)[1] for _ in range(repeats)]}
    for bucket in buckets:
        network = strategies.replicated(strategies.model(config), bucket)
        found[str(bucket)] = [step(network)[1] for _ in range(repeats + 2)][2:]
    return found


# %%
sizes_tried = [2**30, 2**22, 2**21, 2**20, 2**19, 2**18, 2**16, 2**14]
(timed,), label, _ = ran = page.on_ranks(
    "overlap",
    (overlapped, {"sizes": sizes, "sequences": 8, "buckets": sizes_tried, "repeats": repeats}),
    ranks=2, rate=rate_bps, namespaces=True,
)  # fmt: skip


# %%
def sum_seconds(bytes_):
    """Return what an all-reduce over two ranks takes on the held link, in full frames."""
    return gloo_seconds("all_reduce", 2, bytes_, rate_bps)


def overlap(came, bucket):
    """Return when the last bucket is through, from when each gradient came."""
    numbers, moments = zip(*came, strict=True)
    through, done, last = 0.0, 0, np.cumsum(numbers)
    for op in data_parallel_ops(Plan(dp=2, bucket_bytes=bucket), list(numbers)[::-1]):
        done += op.items
        ready = moments[int(np.searchsorted(last, done))]
        through = max(through, ready) + sum_seconds(op.bytes_)
    return through


# %% tags=["hide-input"]
alone_s = float(np.median([run["s"] for run in timed[0]["alone"]]))
numbers = [n for n, _ in timed[0]["alone"][0]["came"]]
moments = np.median([[at for _, at in run["came"]] for run in timed[0]["alone"]], axis=0)
came = list(zip(numbers, moments, strict=True))
rows = [("all at the end", float(np.median(timed[0]["end"])),
         alone_s + sum_seconds(4 * sum(numbers)))]  # fmt: skip
for bucket in sizes_tried:
    name = f"buckets of {size(bucket)}" if bucket < 4 * sum(numbers) else "one bucket"
    rows.append(
        (name, float(np.median(timed[0][str(bucket)])), max(overlap(came, bucket), alone_s))
    )
hidden = pd.DataFrame(rows, columns=["how", "measured", "modelled"])
hidden["error"] = hidden.modelled / hidden.measured - 1
hidden["hidden"] = 1 - (hidden.measured - alone_s) / sum_seconds(4 * sum(numbers))
charts.table(
    hidden,
    caption=f"A step on two ranks, {rate_bps / 1e6:.0f} Mbit/s; without a network it takes "
    f"{format_time(alone_s)}, the sums alone {format_time(sum_seconds(4 * sum(numbers)))}",
    label={"measured": label, "modelled": "modelled"},
    formats={"measured": format_time, "modelled": format_time, "error": "+.1%", "hidden": ".0%"},
)

# %% [markdown]
# The embedding's gradient is the last to come and one of the largest. When it is there, no work is
# left to hide it behind. Smaller buckets help until the last bucket is that one tensor; below that
# they only add calls. What the model leaves out is what processors do for a sum: gloo adds and
# copies on the cores that also compute. On a busy machine a row may err by a fifth, either way.

# %% tags=["hide-input"]
whole_bytes = 4 * sum(numbers)
curve = pd.DataFrame(
    {"bucket": bucket, "s": max(overlap(came, bucket), alone_s)}
    for bucket in map(int, np.geomspace(min(sizes_tried), 2**23, 60))
)
points = pd.DataFrame(
    {"bucket": min(bucket, 2**23), "s": float(np.median(timed[0][str(bucket)]))}
    for bucket in sizes_tried
)
at_end = pd.DataFrame({"s": [float(np.median(timed[0]["end"]))], "what": "all at the end"})
best = points.loc[points.s.idxmin()]
assert whole_bytes < 2**23
x = (
    alt.X("bucket:Q", title="largest bucket, bytes (logarithmic)")
    .scale(type="log", base=2, domain=[min(sizes_tried), 2**23], nice=False)
    .axis(labelExpr=charts.SIZE_TICKS)
)
y = alt.Y("s:Q", title="a step, seconds").scale(zero=False)
tip = [alt.Tooltip("bucket:Q", format=",d"), alt.Tooltip("s:Q", format=".3f")]
(
    alt.Chart(curve).mark_line(color=PALETTE["blue"]).encode(x=x, y=y, tooltip=tip)
    + alt.Chart(points)
    .mark_point(filled=True, size=60, color=PALETTE["orange"])
    .encode(x=x, y=y, tooltip=tip)
    + alt.Chart(at_end).mark_rule(strokeDash=[4, 3]).encode(y=y)
    + alt.Chart(at_end).mark_text(align="left", dy=-8, dx=4).encode(
        x=alt.value(0), y=y, text="what:N")
).properties(
    title=alt.Title(
        f"With buckets of {size(best.bucket)} the step is shortest",
        subtitle=f"Line: modelled from one run without a network. Points: {label}.",
    ),
    description="Time of a step on two ranks against the largest bucket, a modelled line and "
    f"{label} points; a dashed line marks the step whose sums all come at the end. "
    + "; ".join(f"{size(p.bucket)}: {format_time(p.s)}" for p in points.itertuples()) + ".",
    height=280,
)  # fmt: skip

# %% [markdown]
# ## Memory against traffic
#
# Each stage of ZeRO buys memory. Were all numbers equally wide, stages 1 and 2 would buy it for
# nothing, since the all-reduce was a reduce-scatter and an all-gather all along, and stage 3 for
# half as much traffic again. They are not: gradients are summed in 4 bytes here and weights
# gathered in 2. An all-reduce of gradients moves 4 + 4 bytes a weight, ZeRO-1 4 + 2, ZeRO-3
# 4 + 2 + 2, for every micro-batch. Choose a model:

# %% tags=["hide-input"]
models = ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]
parts = []
for name in models:
    config = ModelConfig.load(name)
    grid = [(zero, dp) for zero in (0, 1, 2, 3) for dp in (8, 16, 32, 64, 128, 256, 512)]
    zero, dp = (np.array(column) for column in zip(*grid, strict=True))
    swept = traffic.sweep(config, Plans(dp=dp, zero=zero, sequence=8192, recompute="full"))
    swept["states"] = swept[["weights", "gradients", "optimiser"]].sum(axis=1)
    parts.append(swept[["dp", "states"]].assign(model=name, zero=zero, ranks=dp))
trade = pd.concat(parts, ignore_index=True)
least = trade[(trade.model == models[0]) & (trade.ranks == 64)].set_index("zero").dp
least = least / least[0]
chosen = alt.param(
    name="model", value=models[0], bind=alt.binding_select(options=models, name="model ")
)
fits = alt.Chart(pd.DataFrame({"states": [h100["memory_bytes"]]})).mark_rule(strokeDash=[4, 3])
(
    alt.Chart(trade)
    .mark_line(point=True)
    .add_params(chosen)
    .transform_filter("datum.model === model")
    .encode(
        alt.X("dp:Q", title="sent per GPU and step, bytes").axis(format="~s").scale(zero=False),
        alt.Y("states:Q", title="states held per GPU, bytes").axis(format="~s").scale(type="log"),
        alt.Color("zero:N", legend=None).scale(
            range=[PALETTE[c] for c in ("grey", "sky", "blue", "orange")]
        ),
        alt.Order("ranks:Q"),
        tooltip=["zero:N", "ranks:Q", alt.Tooltip("dp:Q", format=".3s"),
                 alt.Tooltip("states:Q", format=".3s")],
    )
    + alt.Chart(trade[trade.ranks == 8])
    .mark_text(align="left", dx=4, dy=-10)
    .transform_filter("datum.model === model")
    .transform_calculate(text="'stage ' + datum.zero")
    .encode(x="dp:Q", y="states:Q", text="text:N")
    + fits.encode(y="states:Q")
).properties(
    title=f"Against plain sums, stages 1 and 2 send {least[1]:.0%} and stage 3 {least[3]:.0%}, and "
    "hold ever less",
    description="Bytes sent against bytes held per GPU for ZeRO stages 0 to 3 on 8 to 512 ranks; "
    "a menu chooses the model. The dashed line is the memory of an H100. For llama-3.1-8b on 64: "
    + "; ".join(
        f"stage {r.zero} sends {size(r.dp)} and holds {size(r.states)}"
        for r in trade[(trade.model == models[0]) & (trade.ranks == 64)].itertuples()
    ),
    height=280,
)  # fmt: skip

# %% tags=["remove-cell"]
if keep:
    page.keep()

# %% [markdown]
# ## The traffic this strategy leaves

# %% tags=["hide-input"]
charts.table(in_words(left(["dp"])), caption="What the large job leaves", label="modelled")

# %% [markdown]
# ## Where this stops being true
#
# - **A link of one's own.** The sums here have the link to themselves. In a job with tensor and
#   pipeline parallelism they share cards with other axes (chapter 12).
# - **Work that does not mind.** A GPU that sums also computes, with the same memory and some of the
#   same units. Overlap costs work a few per cent that no time line here knows.
# - **Equal ranks.** Everybody waits for the slowest, at every step.
# - **Float32 sums.** With 16-bit gradients the bytes halve, and the order of the sum begins to
#   matter to the result.
#
# ## Exercises
#
# ```{exercise}
# :label: data-batch
# Someone doubles the GPUs and keeps the global batch. What happens to the bytes that a GPU sends,
# to its work, and to the part of the sums that can hide?
# ```
#
# ```{solution} data-batch
# :class: dropdown
# The bytes stay, but for $(n - 1)/n$; the work halves; so the sums hide behind half as much. This
# is what limits data parallelism: not the network's size, but the batch.
# ```
#
# ```{exercise}
# :label: data-zero
# Over $n$ ranks and $m$ micro-batches, how much more than ZeRO-1 does ZeRO-3 send if weights and
# gradients have equally many bytes?
# ```
#
# ```{solution} data-zero
# :class: dropdown
# ZeRO-1 sends one reduce-scatter and one all-gather a step: 2 units. ZeRO-3 sends two all-gathers
# and a reduce-scatter for every micro-batch: $3m$. The factor is $3m/2$.
# ```
#
# ```{exercise}
# :label: data-first
# You profile the first step of a job under DDP and see one call of all gradients. What do you
# conclude about overlap in the ten-thousandth?
# ```
#
# ```{solution} data-first
# :class: dropdown
# Nothing. DDP cuts its buckets by the order that it saw in the first step. Profile the third.
# ```
#
# ## Where the token goes next
#
# A copy of the model on each rank, or a part of it that is gathered when needed: in both, each
# product is computed whole by one GPU. [Chapter 8](08_tensor_parallel.ipynb) cuts the products.
