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
# # Traffic over time
#
# ```{spine} communication flows
# ```
#
# The gradient of one layer has crossed the wire. A job sends the gradients of all layers, and does
# so at every step, thousands of times an hour. Between two sums it computes, and its links are
# silent. **What does the traffic of a training job look like over time, what happens when two jobs
# share a link, and what do a good order, smaller bursts or fewer bytes buy?**

# %% tags=["parameters"]
rate_bps = 200e6  # of each link of the lab
bucket_bytes = 2**19  # of gradients that are sent together, where sums overlap with work
interval_s = 0.01  # between two looks at the counter
steps = 20  # of training that are watched
shared_compute_s, shared_bytes = 0.15, 2_100_000  # a step of each job that shares the link
shared_steps = 28
sweep_steps = 240  # of training, for each code
seeds = [0, 1, 2]
live_steps = 8  # of them again in this run
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
import math
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
import torch
from tokenlife import charts, corpus, lab
from tokenlife.catalog import data_dir, read_accelerator, read_record, read_reference, running
from tokenlife.charts import LABELS, PALETTE
from tokenlife.costs import count_parameters, training_flops
from tokenlife.jobs import traffic
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.interleave import interleave
from tokenlife.jobs.multijob import ORDERS, Job, Phase, alone_s, play_jobs, two_equal_jobs_s
from tokenlife.jobs.rhythm import autocorrelation, period_s, phases_of, sample, spectrum
from tokenlife.jobs.step import step
from tokenlife.jobs.timeline import Task, play
from tokenlife.lab.gloo import gloo_seconds
from tokenlife.network import Routes, route
from tokenlife.network.fabrics import leaf_spine
from tokenlife.parallel import Plan
from tokenlife.parallel.data import data_parallel_ops
from tokenlife.provenance import write_record
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.train import TrainingRecipe, learning_rate, make_optimiser
from tokenlife.transformer.train.optimiser import set_rate
from tokenlife.units import format_bytes, format_rate, format_time
from tokenlife.wan.compression import Blocks, Feedback, Largest
from torch.nn.functional import cross_entropy

charts.setup()
page = lab.Page(
    "19_traffic_and_scheduling",
    ["lab/meter.py", "lab/program.py", "lab/strategies.py", "transformer/model.py"],
)
ONE_LINK = Routes(2, np.array([0, 1]), np.array([0, 0]), np.ones(2))  # two flows on it

# %% [markdown]
# ## On the back of an envelope
#
# One step of the large job of this book: how long does it compute, and for how long do its sums
# keep a network card busy?

# %% tags=["hide-input"]
large = running()["large"][0]
big, where = ModelConfig.load(large["model"]), Cluster.load(large["cluster"])
plan = replace(Plan(**large["plan"]), zero=1)  # gradients are summed once a step
priced = step(big, plan, where)
card_Bps = where.levels[1].Bps
sent = traffic.sweep(big, plan).iloc[0]
sums_bytes = float(sent.dp)
sums_s = sums_bytes / card_Bps
mean_Bps = (sums_bytes + float(sent.pp)) / priced.time_s
charts.prose(
    f"{big.name} on {plan.world:,} GPUs, gradients summed once a step: a step takes "
    f"{{modelled}}`{format_time(priced.time_s)}`, of which a GPU computes for "
    f"{{modelled}}`{format_time(priced.parts_s['compute'])}`. It sends "
    f"{{modelled}}`{format_bytes(sums_bytes)}` of gradients and weights, and a card of "
    f"{format_rate(8 * card_Bps)} needs {{modelled}}`{format_time(sums_s)}` for them: it is busy "
    f"with sums for {{modelled}}`{sums_s / priced.time_s:.0%}` of the time. This is the "
    "{term}`duty cycle`. An operator who reads a counter every five minutes sees "
    f"{{modelled}}`{format_rate(8 * mean_Bps, 2)}`, day and night, and orders slower switches. "
    "With them every sum would take longer, and every GPU would wait."
)

# %% [markdown]
# ## The mechanism
#
# A job repeats a step, and a step is a row of phases: compute for so long, send so much. Whoever
# sends alone has the whole link. Whoever meets another has half. That is all that is needed to
# foretell a duty cycle, a collision and a counter:

# %%
compute_s, send_s = 2.0, 1.0
phases = (Phase(compute_s), Phase(0.0, send_s * 1e9))  # on a link of 1 GB/s
together = [Job(phases, (k,), 4) for k in (0, 1)]
after = [Job(phases, (k,), 4, start_s=k * send_s) for k in (0, 1)]
for name, jobs in (("both at once", together), ("one a second later", after)):
    played = play_jobs(jobs, ONE_LINK, np.array([8e9]))
    counter = sample(played.edges_s, played.flow_bps.sum(axis=1) / 8e9, 1.0)
    print(f"{name}: steps of {played.step_s(0)[0]:g} s; each second of the link's counter:")
    print("   ", *counter.round(1))

# %% [markdown]
# Two jobs that begin together collide in every step, and wait for one another in every step: each
# gets half of the link until both are done, both begin to compute at once, and both come back at
# once. One second of patience, once, and they never meet again.
#
# The period of a job stands in its counter. Shift the counter against itself, multiply, sum: the
# {term}`autocorrelation` is high when the shift is a whole number of steps.


# %%
def shifted(counter):
    """Multiply a counter with itself, ever more samples later."""
    x = counter - counter.mean()
    return np.array([x[lag:] @ x[: len(x) - lag] for lag in range(len(x))]) / (x @ x)


alone = play_jobs([Job(phases, (0,), 12)], ONE_LINK, np.array([8e9]))
counter = sample(alone.edges_s, alone.flow_bps.sum(axis=1) / 8, 0.25)
np.testing.assert_allclose(shifted(counter), autocorrelation(counter), atol=1e-9)
print(f"step {compute_s + send_s:g} s; found in the counter: {period_s(counter, 0.25):g} s")

# %% [markdown]
# ## Two programs for the lab
#
# Now for real. In the first program two ranks train a small Llama under PyTorch's
# `DistributedDataParallel` ([chapter 7](07_data_parallel.ipynb)), while a thread reads the byte
# counter of the interface every few milliseconds. Before that, each rank computes a few steps
# alone, and notes when which gradient was there: the model needs no more than that.


# %%
def watched(here, sizes, rows, bucket_bytes, steps, interval_s):
    """Train under DDP while a thread reads the interface; first some steps without a network."""
    import threading
    import time

    import torch
    from tokenlife.lab import meter, strategies
    from tokenlife.transformer import ModelConfig

    config = ModelConfig.from_hf(sizes, "small")
    torch.manual_seed(here.rank)
    ids = torch.randint(config.vocab, (rows, config.positions + 1))
    copy, came, alone = strategies.model(config), [], []
    for weight in copy.parameters():
        weight.register_post_accumulate_grad_hook(
            lambda w: came.append((w.numel(), time.monotonic()))
        )
    for _ in range(8):
        here.together(0.02)
        came.clear()
        start = time.monotonic()
        copy.zero_grad()
        strategies.step(copy, ids)
        took = round(time.monotonic() - start, 5)
        alone.append({"s": took, "came": [(n, round(at - start, 5)) for n, at in came]})
    network = strategies.replicated(strategies.model(config), bucket_bytes)

    def train(number, ends=None):
        for _ in range(number):
            network.zero_grad()
            strategies.step(network, ids)
            if ends is not None:
                ends.append(time.monotonic())

    looks, over = [], threading.Event()

    def look():
        due = time.monotonic()
        while not over.is_set():
            looks.append((time.monotonic(), meter.interface(here.interface)["bytes"]))
            due += interval_s
            time.sleep(max(0.0, due - time.monotonic()))

    train(3)
    here.together(0.1)
    watcher, ends = threading.Thread(target=look), [time.monotonic()]
    watcher.start()
    train(steps, ends)
    over.set()
    watcher.join()
    (begin, already), found = looks[0], {"ends": [round(t - looks[0][0], 5) for t in ends]}
    if here.rank == 0:  # the page follows one interface
        found["looks"] = [(round(t - begin, 5), n - already) for t, n in looks]
        found["alone"] = alone[3:]
    return found


# %% [markdown]
# In the second, each of two hosts has a rank of two jobs, and the jobs share the host's one
# interface. They compute without the processor, as with a GPU: the program sleeps meanwhile. Each
# sums over connections of its own. The second job starts later by an offset.


# %%
def sharing(here, compute_s, bytes_, offset_s, steps, jobs=2):
    """Run jobs that share the interface; return when their steps ended."""
    import threading
    import time

    import torch
    import torch.distributed as dist

    groups = [dist.new_group(list(range(here.ranks))) for _ in range(jobs)]
    gradients = [torch.zeros(bytes_ // 4) for _ in range(jobs)]
    for group, gradient in zip(groups, gradients, strict=True):
        for _ in range(3):
            dist.all_reduce(gradient, group=group)
    here.together(0.2)
    begin, ends = time.monotonic(), [[] for _ in range(jobs)]

    def work(k):
        time.sleep(k * offset_s)
        ends[k].append(time.monotonic() - begin)
        for _ in range(steps):
            time.sleep(compute_s)
            dist.all_reduce(gradients[k], group=groups[k])
            ends[k].append(time.monotonic() - begin)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [[round(t, 5) for t in each] for each in ends] if here.rank == 0 else None


# %%
sizes = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 384, "vocab_size": 1024,
    "max_position_embeddings": 128, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
training = {"sizes": sizes, "rows": 8, "steps": steps, "interval_s": interval_s}
job = {"compute_s": shared_compute_s, "bytes_": shared_bytes}
send_s = gloo_seconds("all_reduce", 2, shared_bytes, rate_bps)
step_alone_s = shared_compute_s + send_s
offsets_s = [0.25 * step_alone_s, 0.5 * step_alone_s]
ran = page.on_ranks(
    "rhythm",
    (watched, {**training, "bucket_bytes": 2**30}),
    (watched, {**training, "bucket_bytes": bucket_bytes}),
    (sharing, {**job, "offset_s": 0.0, "steps": 8, "jobs": 1}),
    (sharing, {**job, "offset_s": 0.0, "steps": shared_steps}),
    *((sharing, {**job, "offset_s": offset, "steps": 6}) for offset in offsets_s),
    ranks=2, rate=rate_bps, namespaces=True,
)  # fmt: skip
label = ran.label
one_bucket, many_buckets, (single, _), (slid, _), *shifted_jobs = ran.found
charts.prose(ran.where)

# %% [markdown]
# ## On and off
#
# The model of this job: compute until a bucket's last gradient is there, as timed without a
# network; send each bucket at the link's rate, frames, headers and acknowledgements included, as
# gloo sends it. That is a time line, and a time line is a row of phases.


# %%
def line_of(found, bucket):
    """Return the time line of a DDP step, from when each gradient came."""
    numbers = [n for n, _ in found["alone"][0]["came"]]
    moments = np.median([[at for _, at in run["came"]] for run in found["alone"]], axis=0)
    compute_s = float(np.median([run["s"] for run in found["alone"]]))
    tasks, done, now = [], 0, 0.0
    for i, op in enumerate(data_parallel_ops(Plan(dp=2, bucket_bytes=bucket), numbers[::-1])):
        done += op.items
        ready = float(moments[int(np.searchsorted(np.cumsum(numbers), done))])
        takes = gloo_seconds("all_reduce", 2, op.bytes_, rate_bps)
        tasks += [
            Task(f"backward {i}", 0, "compute", ready - now),
            Task(f"bucket {i}", 0, "gradients", takes, (f"backward {i}",)),
        ]
        now = ready
    return play([*tasks, Task("rest", 0, "compute", max(0.0, compute_s - now))])


def even(looks):
    """Return bytes in intervals of equal length."""
    at, total = np.array(looks).T
    return np.diff(np.interp(np.arange(at[0], at[-1], interval_s), at, total))


# %% tags=["hide-input"]
HOW = {"one bucket": (one_bucket, 2**30),
       f"buckets of {format_bytes(bucket_bytes)}": (many_buckets, bucket_bytes)}  # fmt: skip
seen, rows, waves, lines = {}, [], [], {}
for name, (found, bucket) in HOW.items():
    first = found[0]
    line = line_of(first, bucket)
    lines[name] = line
    counted = even(first["looks"])
    seen[name] = counted
    took = np.diff(first["ends"])
    rows.append(
        {"job": name, "compute alone": float(line.spans(0)[:, 1].max()), "model": line.makespan_s,
         "clock": float(took.mean()), "period of the counter": period_s(counted, interval_s),
         "mean rate": 8 * counted.mean() / interval_s,
         "duty": float((counted > counted.max() / 2).mean())}
    )  # fmt: skip
    frequencies, shares = spectrum(counted, interval_s)
    waves.append(pd.DataFrame({"job": name, "frequency": frequencies, "share": shares}))
beats = pd.DataFrame(rows)
beats["model off by"] = beats.model / beats.clock - 1
beats["period off by"] = beats["period of the counter"] / beats.clock - 1
name = next(iter(HOW))
first, line = one_bucket[0], lines[name]
begin = first["ends"][2]
modelled_job = Job(phases_of(line, 0, rate_bps / 8), (0,), 5)
played = play_jobs([modelled_job], Routes(1, np.array([0]), np.array([0]), np.ones(1)),
                   np.array([rate_bps]))  # fmt: skip
foretold = sample(played.edges_s, played.flow_bps[:, 0] / 8, interval_s)
shown_s = 4 * line.makespan_s
grid = np.arange(len(seen[name])) * interval_s - begin
inside = (grid >= 0) & (grid < shown_s)
trace = pd.concat([
    pd.DataFrame({"what": label, "s": grid[inside],
                  "Mbit/s": 8e-6 * seen[name][inside] / interval_s}),
    pd.DataFrame({"what": "modelled", "s": np.arange(len(foretold)) * interval_s,
                  "Mbit/s": 8e-6 * foretold / interval_s}).query(f"s < {shown_s}"),
])  # fmt: skip
tones = {label: LABELS[label].colour, "modelled": LABELS["modelled"].colour}
base = alt.Chart(trace).encode(
    x=alt.X("s:Q", title="seconds").scale(nice=False),
    y=alt.Y("Mbit/s:Q", title="leaving the interface, Mbit/s"),
    color=alt.Color("what:N", legend=None).scale(
        domain=list(tones), range=list(tones.values())
    ),
)  # fmt: skip
area = base.transform_filter(f"datum.what === '{label}'").mark_area(
    interpolate="step-after", opacity=0.45
)
outline = base.transform_filter("datum.what === 'modelled'").mark_line(interpolate="step-after")
row = beats.iloc[0]
(area + outline).properties(
    title=f"Silent while it computes, at the line's rate while it sums: {row.duty:.0%} of the time",
    description=f"Rate out of rank 0's interface in intervals of {format_time(interval_s)}, over "
    f"four steps, one bucket. Filled: {label}; line: modelled. Both are zero for "
    f"{format_time(row['compute alone'])} and near {rate_bps / 1e6:.0f} Mbit/s for the rest of "
    "each step.",
    height=240,
)

# %% tags=["hide-input"]
charts.table(
    beats[["job", "clock", "model", "model off by", "period of the counter", "period off by"]],
    caption=f"A step of two ranks over links of {format_rate(rate_bps)}: by the ranks' clock, by "
    "the model, and as the counter alone shows it",
    label={"clock": label, "model": "modelled", "period of the counter": label},
    formats={"clock": lambda t: format_time(t, 4), "model": lambda t: format_time(t, 4),
             "model off by": "+.1%", "period of the counter": lambda t: format_time(t, 4),
             "period off by": "+.1%"},
)  # fmt: skip

# %% tags=["hide-input"]
peak = 8e-6 * max(counted.max() for counted in seen.values()) / interval_s
off = float(beats["period off by"].abs().max())
finds = (
    f"Nobody told the counter what a step is; its autocorrelation finds it within "
    f"{{{label}}}`{off:.1%}`."
    if off < 0.05
    else "On a machine that is busy with other things steps are too unequal: in this run the "
    f"autocorrelation misses the step by {{{label}}}`{off:.0%}`."
)
charts.prose(
    f"{finds} Any operator could do the same, with a counter that is read often enough. Some "
    f"intervals show up to {{{label}}}`{peak:.0f} Mbit/s`, more than the link has: a token bucket "
    "that was idle lets four milliseconds' worth pass at once, on top of the rate."
)

# %% [markdown]
# The {term}`spectrum` says the same in frequencies: a peak at one over the step time, and its
# multiples, because the bursts have edges. Long before packets are looked into, a job can be
# told by its beat.

# %% tags=["hide-input"]
tones = {name: PALETTE[tone] for name, tone in zip(HOW, ("blue", "orange"), strict=True)}
spectra = pd.concat(waves, ignore_index=True).query("frequency < 16")
tops = spectra.loc[spectra.groupby("job").share.idxmax()]
tops = tops.assign(text=[f"{r.job}: {r.frequency:.2f} Hz" for r in tops.itertuples()])
base = alt.Chart(spectra).encode(
    x=alt.X("frequency:Q", title="frequency (Hz)").scale(domain=[0, 16]),
    y=alt.Y("share:Q", title="share of the variance").axis(format="%"),
    color=alt.Color("job:N", legend=None).scale(domain=list(tones), range=list(tones.values())),
)
words = [
    alt.Chart(tops[tops.job == name]).mark_text(align="left", dx=8, dy=dy).encode(
        x="frequency:Q", y="share:Q", text="text:N",
        color=alt.Color("job:N", legend=None))
    for name, dy in zip(HOW, (4, 4), strict=True)
]  # fmt: skip
alt.layer(base.mark_line(strokeWidth=1.6), *words).properties(
    title=f"The strongest tone is the step: {tops.frequency.iloc[0]:.2f} and "
    f"{tops.frequency.iloc[1]:.2f} Hz",
    description="Spectra of the interface's counter of the two jobs. "
    + "; ".join(f"{r.job}: strongest at {r.frequency:.2f} Hz, {r.share:.0%} of the variance"
                for r in tops.itertuples())
    + "; smaller peaks stand at the multiples.",
    height=230,
)  # fmt: skip

# %% [markdown]
# ## Two jobs on one link
#
# With fair shares, two equal jobs that compute for $c$ and send for $s$ a step have a closed form.
# Where they overlap each is half as fast; so the one that began later ends later by as much, and
# the offset never changes. With an offset $o$ a step takes $c + 2s - o$ until the two no longer
# meet, and $c + s$ from there on (if $2s$ fits into it).

# %% tags=["hide-input"]
grid_s = np.linspace(0, step_alone_s, 101)
curve = pd.DataFrame({
    "offset": grid_s / step_alone_s,
    "ms": [1e3 * two_equal_jobs_s(shared_compute_s, send_s, offset) for offset in grid_s],
})  # fmt: skip
offsets = [0.0, *offsets_s]
firsts = [float(np.mean([each[1] - each[0] for each in ends]))
          for ends in (slid, *(found[0] for found in shifted_jobs))]  # fmt: skip
points = pd.DataFrame({
    "offset": np.array(offsets) / step_alone_s, "ms": 1e3 * np.array(firsts),
    "model": [1e3 * two_equal_jobs_s(shared_compute_s, send_s, offset) for offset in offsets],
})  # fmt: skip
points["error"] = points.model / points.ms - 1
single_s = float(np.median(np.diff(single[0])))
x = alt.X("offset:Q", title="offset of the second job, in steps alone").axis(format=".2f")
y = alt.Y("ms:Q", title="step of both (ms)").scale(zero=False, padding=12)
note = alt.Chart(points.head(1).assign(offset=0.5)).mark_text().encode(
    x, y, text=alt.value(f"points: {label}, first step; line: closed form")
)  # fmt: skip
(
    alt.Chart(curve).mark_line(color=LABELS["modelled"].colour).encode(x, y)
    + alt.Chart(points)
    .mark_point(filled=True, size=90, color=LABELS[label].colour, shape=LABELS[label].shape)
    .encode(x, y, tooltip=["offset:Q", alt.Tooltip("ms:Q", format=".0f")])
    + note
).properties(
    title=f"Started together, each takes {points.ms[0] / (1e3 * single_s):.2f} times its time "
    "alone; half a step apart, "
    f"{points.ms[2] / (1e3 * single_s):.2f} times",
    description="Step time of two jobs on one link against the offset between them. The closed "
    "form falls from collision to no contact and rises again; "
    + "; ".join(f"at {r.offset:.2f} {label} {r.ms:.0f} ms, modelled {r.model:.0f} ms"
                for r in points.itertuples())
    + ".",
    height=240,
)  # fmt: skip

# %% tags=["hide-input"]
charts.prose(
    f"A job alone takes {{{label}}}`{format_time(single_s)}` a step, by the model "
    f"{{modelled}}`{format_time(step_alone_s)}`. With both, the model is off by "
    + ", ".join(f"{{{label}}}`{error:+.1%}`" for error in points.error)
    + " at the three offsets, in the first step. The closed form says that all others are like it. "
    "Here are the two jobs that started together, step by step:"
)

# %% tags=["hide-input"]
steps_of = pd.DataFrame(
    [
        {"job": f"job {k + 1}", "step": i + 1, "ms": 1e3 * took}
        for k, ends in enumerate(slid)
        for i, took in enumerate(np.diff(ends))
    ]
)
apart = np.abs(np.subtract(*slid))
together_s = two_equal_jobs_s(shared_compute_s, send_s, 0.0)
refs = pd.DataFrame({
    "ms": [1e3 * together_s, 1e3 * step_alone_s],
    "text": ["fair shares: for ever", "no contact"],
})  # fmt: skip
tones = {"job 1": PALETTE["orange"], "job 2": PALETTE["violet"]}
first_ms, last_ms = (
    float(steps_of[steps_of.step.isin(chosen)].ms.mean())
    for chosen in (range(1, 4), range(shared_steps - 2, shared_steps + 1))
)
slides = last_ms < first_ms - 0.2 * 1e3 * send_s
ends_text = (
    f"TCP slides two jobs apart by itself: {first_ms:.0f} ms a step become {last_ms:.0f}"
    if slides
    else f"In this run the two stay together: {first_ms:.0f} ms a step, then {last_ms:.0f}"
)
y = alt.Y("ms:Q", title="step (ms)").scale(zero=False)
(
    alt.Chart(refs).mark_rule(strokeDash=[5, 4]).encode(y=y)
    + alt.Chart(refs)
    .mark_text(align="right", baseline="bottom", dx=-4, dy=-3)
    .encode(x=alt.value("width"), y=y, text="text:N")
    + alt.Chart(steps_of)
    .mark_line(point=True, strokeWidth=1.4)
    .encode(
        alt.X("step:Q", title="step of either job").scale(nice=False),
        y,
        alt.Color("job:N", title=None).scale(domain=list(tones), range=list(tones.values())),
        tooltip=["job:N", "step:Q", alt.Tooltip("ms:Q", format=".0f")],
    )
).properties(
    title=ends_text,
    description=f"Step times of two jobs that started together, {label}: the first three take "
    f"{first_ms:.0f} ms, the last three {last_ms:.0f} ms; fair shares would keep "
    f"{1e3 * together_s:.0f} ms, without contact it would be {1e3 * step_alone_s:.0f} ms.",
    height=250,
)

# %% tags=["hide-input"]
drift = [
    [abs(a - b) for a, b in ((ends[0][0], ends[1][0]), (ends[0][-1], ends[1][-1]))]
    for ends, _ in shifted_jobs
]
charts.prose(
    f"After {shared_steps} steps the two end {{{label}}}`{format_time(float(apart[-1]))}` apart; "
    f"{{modelled}}`{format_time(send_s)}` would be enough never to meet. From a quarter of a step "
    f"they went to {{{label}}}`{format_time(drift[0][1])}` from "
    f"{{{label}}}`{format_time(drift[0][0])}` in six steps. "
    + (
        "Nothing in fair sharing would do this. TCP's shares are fair only on average: who comes "
        "first finds the link empty, has its window open when the other arrives, and seems to keep "
        "more than half for a while. So it ends earlier, computes earlier, and is back earlier: "
        "the lead is kept, and may grow. How fast and how far differs from run to run. Some "
        "propose to help: open the window wider, the more of its step a flow has sent "
        "{cite}`rajasekaran2024mltcp`."
        if slides
        else "Where shares are not quite fair the leader gains a little in each step; here they "
        "were fair enough. Some propose to help: open the window wider, the more of its step a "
        "flow has sent {cite}`rajasekaran2024mltcp`."
    )
)

# %% [markdown]
# ## Offsets for many
#
# {term}`Interleaving <interleaving>` by an offset is a matter of angles. Lay the demand of each job
# on a circle whose turn is its step, and turn the circles until no place of the sum is above the
# link {cite}`rajasekaran2024cassini`. Jobs with different steps lie on the circle of their least
# common multiple. Two bursts can miss each other for ever only if both fit into the greatest common
# divisor of the periods: offsets are for jobs that keep the same beat.
#
# The alternative is an order. Who may send first: the one who came first (`fifo`), the one with the
# higher priority, the one with the fewest bytes left (`srpt`), or the one whose slowest link would
# need the least time (`sebf`, of Varys, for {term}`coflows <coflow>` {cite}`chowdhury2014varys`).
# The rest of the link goes to the next.
#
# Sixteen hosts under four leaves, one cable up for four down. Four jobs have four hosts each, one
# under each leaf, as happens on a cluster that is never empty. Every ring then crosses every leaf,
# and the four share each cable. The jobs are real models at 40 % of an H100's peak.

# %%
h100 = read_accelerator("h100-sxm")
fabric = leaf_spine(16, 400e9, per_leaf=4, oversubscription=4)
leaf, mine = np.tile(np.arange(4), 4), np.repeat(np.arange(4), 4)
ways = route(fabric, 4 * leaf + mine, 4 * ((leaf + 1) % 4) + mine)


def phases_on(model, tokens):
    """Return a step of data parallelism over four hosts: work, then a ring of float32."""
    config = ModelConfig.load(model)
    work = training_flops(config, 1, 8192, causal=True).total / 8192 * tokens
    weights = count_parameters(config)
    return Phase(work / (0.4 * h100["peak_flops"]["bfloat16"])), Phase(0.0, 2 * 3 / 4 * 4 * weights)


MIXES = {
    "alike": [("llama-3.1-8b", 32768)] * 4,
    "unlike": [("llama-3.1-8b", 49152), ("llama-3.1-8b", 32768), ("qwen2.5-7b", 16384),
               ("smollm2-135m", 65536)],
    "too many": [("llama-3.1-8b", 16384)] * 4,
}  # fmt: skip
SLOTS = 24  # of each job's circle


def with_offsets(jobs):
    """Return the jobs, started so that they meet least; all must keep one beat."""
    period = alone_s(jobs[0], ways, fabric.link_bps)
    on = [math.ceil(SLOTS * (1 - job.phases[0].compute_s / period)) for job in jobs]
    turns, _ = interleave([np.arange(SLOTS) < number for number in on])
    starts = [turn * period / SLOTS for turn in turns]
    return [replace(job, start_s=start) for job, start in zip(jobs, starts, strict=True)]


rows = []
for mix, models in MIXES.items():
    jobs = [
        Job(phases_on(*model), tuple(range(4 * k, 4 * k + 4)), priority=k)
        for k, model in enumerate(models)
    ]
    alone = [alone_s(job, ways, fabric.link_bps) for job in jobs]
    jobs = [
        replace(job, steps=max(2, int(30 * max(alone) / time)))
        for job, time in zip(jobs, alone, strict=True)
    ]
    ways_to_share = {order: (order, jobs) for order in ORDERS}
    if len(set(models)) == 1:
        ways_to_share["fair, with offsets"] = ("fair", with_offsets(jobs))
    for how, (order, started) in ways_to_share.items():
        played = play_jobs(started, ways, fabric.link_bps, order)
        over = min(ends[-1] for ends in played.finish_s)
        for k, model in enumerate(models):
            took = played.step_s(k)[played.finish_s[k] <= over]
            rows.append({"mix": mix, "how": how, "job": f"{model[0]}, {model[1] // 1024}k tokens",
                         "number": k, "slower": took.mean() / alone[k]})  # fmt: skip
slower = pd.DataFrame(rows)

# %% tags=["hide-input"]
chosen = alt.param(
    name="mix", value="alike", bind=alt.binding_select(options=list(MIXES), name="jobs ")
)
HOWS = ["fair", "fair, with offsets", *ORDERS[1:]]
means = slower.groupby(["mix", "how"]).slower
mean, worst = means.mean(), means.max()
base = (
    alt.Chart(slower)
    .transform_filter("datum.mix === mix")
    .encode(
        y=alt.Y("how:N", title=None, sort=HOWS).scale(domain=HOWS),
        x=alt.X("slower:Q", title="step, in times of the step alone (logarithmic)")
        .scale(type="log", domain=[0.95, 6], nice=False)
        .axis(values=[1, 1.2, 1.5, 2, 3, 5]),
    )
)
(
    base.mark_point(filled=True, size=80, opacity=0.75)
    .encode(
        color=alt.Color("number:N", legend=None).scale(
            range=[PALETTE[c] for c in ("blue", "orange", "violet", "grey")]
        ),
        tooltip=["job:N", "how:N", alt.Tooltip("slower:Q", format=".2f")],
    )
    .add_params(chosen)
    + base.mark_tick(thickness=3, size=22).encode(x="mean(slower):Q")
).properties(
    title=f"Four jobs alike: fair shares cost {mean['alike', 'fair'] - 1:.0%}, any order "
    f"at most {mean['alike'][list(ORDERS[1:])].max() - 1:.0%}",
    description="How many times longer a step takes than alone, for four jobs on one fabric, by "
    "the rule of sharing; a menu chooses the mix; a tick marks the mean. Means: "
    + "; ".join(f"{m}, {h} {v:.2f}" for (m, h), v in mean.items())
    + ".",
    height=alt.Step(34),
)

# %% tags=["hide-input"]
table = pd.DataFrame({"how": HOWS})
for mix in MIXES:
    table[f"{mix}: mean"] = [mean.get((mix, how), math.nan) for how in HOWS]
    table[f"{mix}: worst"] = [worst.get((mix, how), math.nan) for how in HOWS]
charts.table(
    table,
    caption="Step, in times of the step alone, over thirty steps of the slowest job",
    label=dict.fromkeys(table.columns[1:], "modelled"),
    formats=dict.fromkeys(table.columns[1:], ".2f"),
)

# %% tags=["hide-input"]
tiny = slower[(slower.mix == "unlike") & (slower.number == 3)].set_index("how").slower
others = slower[(slower.mix == "unlike") & (slower.number < 3)].groupby("how").slower.mean()
share = 4 * 0.75 * 8 * 4 * 2 * count_parameters(ModelConfig.load("llama-3.1-8b")) / 400e9
full_step = alone_s(
    Job(phases_on(*MIXES["too many"][0]), (0, 1, 2, 3)), ways, fabric.link_bps
)  # fmt: skip
least = share / full_step
charts.prose(
    f"Four jobs alike fit beside one another, and nearly anything but fair shares lets them. The "
    "order need not be clever: it only has to let one through before the other, once. Unlike jobs "
    f"are another matter. First come, first served makes the small one wait behind the large: "
    f"{{modelled}}`{tiny['fifo']:.1f}` times its time alone, and with the lowest "
    f"priority {{modelled}}`{tiny['priority']:.1f}`. With the fewest bytes first it is "
    f"{{modelled}}`{tiny['srpt']:.2f}`, and the three large ones take "
    f"{{modelled}}`{others['srpt']:.2f}` times theirs, where fair shares gave them "
    f"{{modelled}}`{others['fair']:.2f}`. Too many jobs, with "
    f"{{modelled}}`{least:.2f}` steps of sending in each step, cannot be saved by any order; one "
    "can only choose whether all lose, or the last."
)

# %% tags=["hide-input"]
claims = read_reference("19_traffic").set_index("quantity").value
gain = mean["alike", "fair"] / mean["alike", "fair, with offsets"]
charts.prose(
    "CASSINI's authors measured, on a cluster of 24 servers, jobs that were done up to "
    f"{{published}}`{claims.iloc[0]:g}` times sooner on average, and up to "
    f"{{published}}`{claims.iloc[1]:g}` times in the tail. Our four equal jobs gain "
    f"{{modelled}}`{gain:.2f}` by offsets against shares that are perfectly fair and never slip. "
    "The two are not the same experiment: theirs has 13 models, real congestion control and a "
    "scheduler that also chooses places."
)

# %% [markdown]
# ## Overlap and buckets flatten the bursts
#
# [Chapter 7](07_data_parallel.ipynb) cut gradients into {term}`buckets <bucket>` to hide sums
# behind the backward pass. For whoever shares the link it does something else: the same bytes leave
# in many small bursts. Take the first job of the mix, 32k tokens on each of four hosts, and look at
# a counter that is read every 100 ms.

# %%
eight = ModelConfig.load("llama-3.1-8b")
work, ring = phases_on("llama-3.1-8b", 32768)
layers, card = eight.layers, 400e9


def bucketed(number):
    """Return a step whose backward pass is cut: while a part is worked on, the last one is sent."""
    backward = 2 / 3 * work.compute_s
    part, bucket = backward / number, ring.bytes_ / number
    beside = (Phase(part, bucket),) * (number - 1)
    return Phase(work.compute_s - backward + part), *beside, Phase(0.0, bucket)


WAYS = {"one sum at the end": 1, f"{layers} buckets, one a layer": layers}
looks_s, parts, told = 0.1, [], []
for name, number in WAYS.items():
    jobs = [Job(bucketed(number), (k,), 6) for k in (0, 1)]
    takes_s = alone_s(jobs[0], ONE_LINK, np.array([card]))
    one = play_jobs(jobs[:1], ONE_LINK, np.array([card]))
    both = play_jobs(jobs, ONE_LINK, np.array([card]))
    seen_bytes = sample(one.edges_s, one.flow_bps.sum(axis=1) / 8, looks_s)
    told.append(
        {"job": name, "step alone": takes_s, "highest": 8 * seen_bytes.max() / looks_s,
         "mean": 8 * seen_bytes.mean() / looks_s,
         "both together": float(both.step_s(0)[1:-1].mean()) / takes_s}
    )  # fmt: skip
    shown = np.arange(len(seen_bytes)) * looks_s < 2 * takes_s
    parts.append(
        pd.DataFrame({"job": name, "s": (np.arange(len(seen_bytes)) * looks_s)[shown],
                      "Gbit/s": 8e-9 * seen_bytes[shown] / looks_s})
    )  # fmt: skip
told = pd.DataFrame(told)

# %% tags=["hide-input"]
tones = {name: PALETTE[tone] for name, tone in zip(WAYS, ("blue", "orange"), strict=True)}
flat = pd.concat(parts)
base = alt.Chart(flat).encode(
    x=alt.X("s:Q", title="seconds").scale(nice=False),
    y=alt.Y("Gbit/s:Q", title="leaving a host, Gbit/s"),
    color=alt.Color("job:N", title=None).scale(domain=list(tones), range=list(tones.values())),
)
base.mark_line(interpolate="step-after", strokeWidth=1.8).properties(
    title=f"Buckets lower the highest reading to {told.highest[1] / told.highest[0]:.0%}, with the "
    "same bytes",
    description=f"Modelled rate in intervals of {format_time(looks_s)} over two steps. "
    + "; ".join(f"{r.job}: highest {r.highest / 1e9:.0f} Gbit/s, mean {r.mean / 1e9:.0f}"
                for r in told.itertuples())
    + ".",
    height=230,
)  # fmt: skip

# %% tags=["hide-input"]
charts.table(
    told,
    caption="Alone, and with a second job of the same kind that starts at the same moment on the "
    "same link, fair shares",
    label=dict.fromkeys(["step alone", "highest", "mean", "both together"], "modelled"),
    formats={"step alone": format_time, "highest": lambda r: format_rate(r, 3),
             "mean": lambda r: format_rate(r, 3), "both together": "× {:.2f}".format},
)  # fmt: skip

# %% [markdown]
# Hidden sums have slack. Where a bucket takes longer because somebody else sends, the work on the
# next layer hides it. Two such jobs collide in every bucket and hardly notice, as long as a bucket
# takes less than half of that work. In the lab above it took more: the link was full, and the
# bursts only moved.
#
# ## Fewer bytes
#
# The last remedy is to send less. Gradients need not be float32: they are noisy anyway. A code
# makes them shorter and loses something; a worker that remembers what was lost, and adds it to the
# next gradient, loses nothing for ever: {term}`error feedback` {cite}`karimireddy2019error`. The
# codes of the library return the bytes that would really cross; part IV uses them between sites.
# One is missing there: float8, with one scale for all.


# %%
class Float8:
    """PyTorch's float8 of 4 exponent and 3 mantissa bits, with one scale for the whole vector."""

    def encode(self, values):
        x = torch.from_numpy(values)
        scale = (x.abs().max() / torch.finfo(torch.float8_e4m3fn).max).clamp(min=1e-30)
        short = (x / scale).to(torch.float8_e4m3fn)
        return scale.numpy().tobytes() + short.view(torch.uint8).numpy().tobytes()

    def decode(self, data, count):
        scale = np.frombuffer(data, np.float32, 1)
        short = torch.frombuffer(bytearray(data[4:]), dtype=torch.float8_e4m3fn)
        return short.float().numpy() * scale


CODES = {
    "float32": (Blocks(32), False), "bfloat16": (Blocks(16), False), "float8": (Float8(), False),
    "int8": (Blocks(8), False), "int4": (Blocks(4), False),
    "top 1 %": (Largest(0.01), False), "top 1 %, feedback": (Largest(0.01), True),
}  # fmt: skip

# %% tags=["hide-input"]
torch.set_num_threads(1)
works = [document.text.encode() for document in corpus.shakespeare()]
book, unseen = (torch.tensor(list(b"".join(part))) for part in (works[:-4], works[-4:]))
length, workers, rows_each = 64, 2, 4
gpt = ModelConfig.load(running()["small"]["model"])
gpt = replace(
    gpt, vocab=256, hidden=64, positions=length, mlp=replace(gpt.mlp, width=256),
    attention=replace(gpt.attention, head_dim=16, value_dim=16),
)  # fmt: skip


def draw(text, rows, generator):
    """Return rows of bytes from anywhere in a text."""
    at = torch.randint(len(text) - length - 1, (rows, 1), generator=generator)
    return text[at + torch.arange(length + 1)]


exam = draw(unseen, 256, torch.Generator().manual_seed(0))


def loss_of(model, ids):
    """Return the mean loss of rows: each byte but the last is asked for the next."""
    return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


# %% [markdown]
# Two workers train the running GPT, made narrow and given bytes for tokens, on Shakespeare, each on
# rows of its own. Both live in this process; what each would send is encoded to bytes, counted, and
# decoded again.


# %%
def train(code, feedback, seed, steps, until, looks):
    """Train with coded gradients; return (step, bytes that a worker sent, held-out loss)."""
    torch.manual_seed(seed)
    model = Decoder(gpt, attention="naive")
    recipe = TrainingRecipe(steps=steps, learning_rate=2e-3, warmup=steps // 20, final_share=0.02)
    optimiser, weights = make_optimiser(model, recipe), list(model.parameters())
    sizes = [weight.numel() for weight in weights]
    draws = [torch.Generator().manual_seed(100 * seed + worker) for worker in range(workers)]
    codes = [Feedback(code) if feedback else code for _ in range(workers)]
    sent, curve = 0, []
    for now in range(1, until + 1):
        total = np.zeros(sum(sizes), np.float32)
        for generator, own in zip(draws, codes, strict=True):
            model.zero_grad()
            loss_of(model, draw(book, rows_each, generator)).backward()
            gradient = torch.cat([weight.grad.flatten() for weight in weights]).numpy()
            data = own.encode(gradient)
            total += code.decode(data, gradient.size) / workers
        sent += len(data)
        for weight, part in zip(weights, torch.from_numpy(total).split(sizes), strict=True):
            weight.grad = part.view_as(weight)
        torch.nn.utils.clip_grad_norm_(weights, recipe.clip)
        set_rate(optimiser, learning_rate(recipe, now))
        optimiser.step()
        if now in looks:
            with torch.no_grad():
                curve.append((now, sent, float(loss_of(model, exam))))
    return curve


# %% tags=["hide-input"]
looks = sorted({live_steps, *(max(1, sweep_steps * k // 10) for k in range(1, 11))})
if keep:
    found = {
        name: [train(*code, seed, sweep_steps, sweep_steps, looks) for seed in seeds]
        for name, code in CODES.items()
    }
    write_record(
        data_dir() / "results" / "19_compression.json",
        {"steps": sweep_steps, "seeds": seeds, "curves": found},
        ["transformer/model.py", "wan/compression.py"],
    )
kept = read_record("19_compression")["values"]
curves = pd.DataFrame(
    [
        {"code": name, "seed": seed, "step": now, "bytes": sent, "loss": loss}
        for name, runs in kept["curves"].items()
        for seed, run in zip(kept["seeds"], runs, strict=True)
        for now, sent, loss in run
    ]
)
live = {
    name: train(*CODES[name], seeds[0], kept["steps"], live_steps, [live_steps])[-1]
    for name in ("float32", "top 1 %, feedback")
}
again = curves[(curves.step == live_steps) & (curves.seed == seeds[0])].set_index("code")
drift = max(abs(loss / again.loss[name] - 1) for name, (_, _, loss) in live.items())
last = curves[curves.step == curves.step.max()].groupby("code", sort=False)
final = last.loss.agg(["mean", "min", "max"])
final["bytes"] = last["bytes"].mean()
ended = curves[curves.step == curves.step.max()].pivot_table("loss", "seed", "code")
paired = ended.sub(ended["float32"], axis=0)  # each seed is one start, and one order of rows
whole = final.loc["float32"]
charts.prose(
    f"{len(kept['curves'])} codes, {len(kept['seeds'])} seeds, {kept['steps']} steps each: "
    "recorded. The first "
    f"{live_steps} steps of two of them ran again for this page; their losses differ from the "
    f"record's by {{measured}}`{drift:.1e}`."
)

# %% tags=["hide-input"]
names = list(CODES)
mean_curves = curves.groupby(["code", "step"], as_index=False)[["bytes", "loss"]].mean()
ends = mean_curves[mean_curves.step == mean_curves.step.max()]
tones = dict(zip(names, ("grey", "sky", "violet", "blue", "brick", "brick", "orange"), strict=True))
base = alt.Chart(mean_curves[mean_curves.step >= 20]).encode(
    x=alt.X("bytes:Q", title="sent by a worker so far (bytes, logarithmic)")
    .scale(type="log", nice=False)
    .axis(format="~s", values=[10.0**k for k in range(4, 10)]),
    y=alt.Y("loss:Q", title="held-out loss (nats a byte)").scale(zero=False, padding=18),
    color=alt.Color("code:N", legend=None).scale(
        domain=names, range=[PALETTE[tones[n]] for n in names]
    ),
    detail="code:N",
    tooltip=["code:N", "step:Q", alt.Tooltip("loss:Q", format=".2f"),
             alt.Tooltip("bytes:Q", format=".3s")],
)  # fmt: skip
dash = base.transform_filter("datum.code === 'top 1 %'").mark_line(strokeDash=[4, 3])
solid = base.transform_filter("datum.code !== 'top 1 %'").mark_line(point={"size": 18})
lift = {"float32": 26, "bfloat16": 12, "float8": -12, "int8": 12, "int4": -10, "top 1 %": -10,
        "top 1 %, feedback": 14}  # fmt: skip
words = [
    alt.Chart(ends[ends.code == name])
    .mark_text(align="right" if name == "float32" else "center", dy=lift[name])
    .encode(x="bytes:Q", y="loss:Q", text="code:N")
    for name in names
]
sparse = final.loc["top 1 %, feedback"]
alt.layer(dash, solid, *words).properties(
    title=f"int8: a quarter of the bytes, {final['mean']['int8'] - whole['mean']:+.2f} nats; "
    f"the largest 1 %: 1/{whole.bytes / sparse.bytes:.0f}, "
    f"{final['mean']['top 1 %'] - whole['mean']:+.2f}",
    description="Held-out loss against the bytes that a worker has sent, mean over seeds, for each "
    "code. At the end: "
    + "; ".join(f"{n} {format_bytes(r.bytes)}, {r['mean']:.2f} nats" for n, r in final.iterrows())
    + ".",
    height=320,
)

# %% tags=["hide-input"]
shown = final.reset_index()
shown["fewer"] = whole.bytes / shown.bytes
shown["least"], shown["most"] = (paired[shown.code].agg(how).to_numpy() for how in ("min", "max"))
charts.table(
    shown[["code", "bytes", "fewer", "mean", "least", "most"]].rename(
        columns={"mean": "loss", "least": "against float32, least", "most": "most"}
    ),
    caption=f"After {kept['steps']} steps: what a worker has sent, the mean held-out loss (nats a "
    f"byte), and its difference from float32 of the same seed, over {len(kept['seeds'])} seeds",
    label=dict.fromkeys(["bytes", "loss", "against float32, least", "most"], "recorded"),
    formats={"bytes": format_bytes, "fewer": "× {:.0f}".format, "loss": ".3f",
             "against float32, least": "+.3f", "most": "+.3f"},
)  # fmt: skip

# %% tags=["hide-input"]
seeds_differ = float(final["max"]["float32"] - final["min"]["float32"])
cheap = [n for n in ("bfloat16", "float8", "int8", "int4") if paired[n].abs().max() < seeds_differ]
bare = final.loc["top 1 %"]
worse = sparse["mean"] > bare["mean"]
charts.prose(
    f"Seeds differ by {{recorded}}`{seeds_differ:.2f}` nats under float32 itself. "
    f"{', '.join(cheap).capitalize() if cheap else 'None of the short codes'} differ from it by "
    "less than that, with any seed. The largest 1 % costs "
    f"{{recorded}}`{bare['mean'] - whole['mean']:+.2f}` nats, and with feedback "
    f"{{recorded}}`{sparse['mean'] - whole['mean']:+.2f}`. "
    + (
        "So here feedback does harm. A likely reason: with 1 % a step a number waits about a "
        f"hundred steps for its turn, which is long in a run of {kept['steps']}, and then it comes "
        "at once, for all of them. AdamW divides by the root of the mean square, which such "
        "bursts make large; so the weight moves less than by the same sum sent evenly. What is "
        "proved of feedback is proved of plain descent. "
        if worse
        else ""
    )
    + "And bytes are not time: a "
    "ring adds as it goes, and neither int8 with scales of its own nor a list of places can be "
    "added without being decoded. Sent from each worker to each, what a worker receives grows "
    f"with their number, and above {round(1 / CODES['top 1 %'][0].share)} workers 1 % of the "
    "numbers with their places costs more than a ring of float32."
)

# %% tags=["remove-cell"]
if keep:
    page.keep()

# %% [markdown]
# ## Where this stops being true
#
# - **Steps are not equal.** Checkpoints, evaluation, a slow data loader or a straggler break the
#   beat, and offsets drift. Whoever interleaves by offsets must measure and correct.
# - **The link is not one.** A job that shares several links has one offset for all of them.
#   Schedules that agree on a graph of links are what the cited work solves; ours does not.
# - **Nobody knows the bytes left.** `srpt` and `sebf` ask for what a switch cannot see. Priorities
#   in a network are few, and set by hand.
# - **One beat for all.** A job with pipeline and tensor parallelism has traffic between the sums,
#   and its counter has more than one tone.
# - **A short training.** A few hundred steps of a small model say which codes break early. They do
#   not say what a code costs after a trillion tokens.
#
# ## Exercises
#
# ```{exercise}
# :label: traffic-fit
# Three equal jobs send for 30 % of their step at full rate. Can offsets keep them apart? And four?
# What does `least_excess` say?
# ```
#
# ```{solution} traffic-fit
# :class: dropdown
# Three bursts of 0.3 fit on a circle of 1. Four need 1.2: `least_excess([...])` of four demands
# with mean 0.3 is 0.2, which must wait in every step whatever the turns.
# ```
#
# ```{exercise}
# :label: traffic-gcd
# One job sends for 2 s of every 10 s, another for 2 s of every 15 s. Can they miss each other for
# ever? And if the second takes 14 s a step?
# ```
#
# ```{solution} traffic-gcd
# :class: dropdown
# 10 and 15 have the divisor 5, and 2 + 2 ≤ 5: yes, `can_avoid(10, 2, 15, 2)`. 10 and 14 have 2, and
# 4 > 2: every offset modulo 2 comes up, so they meet. It may pay to slow the second down to 15 s.
# ```
#
# ```{exercise}
# :label: traffic-nyquist
# A counter is read every 30 s. Which period would you find for a job whose step takes 20 s?
# ```
#
# ```{solution} traffic-nyquist
# :class: dropdown
# Not 20 s: sampled at 1/30 Hz, 1/20 Hz looks like 1/20 − 1/30 = 1/60 Hz, a period of one minute.
# Read at least twice a step, better several times a burst.
# ```
#
# ```{exercise}
# :label: traffic-topk
# At how many workers does an all-gather of top-k with share $p$ (8 bytes a number) make a worker
# receive as much as a ring all-reduce of float32?
# ```
#
# ```{solution} traffic-topk
# :class: dropdown
# The gather brings $8p(n-1)$ bytes a weight, the ring $8(n-1)/n$. Equal at $n = 1/p$: one hundred
# workers for 1 %.
# ```
#
# ```{exercise}
# :label: traffic-sgd
# Give `train` plain SGD with momentum instead of AdamW. What does feedback do then? Take more than
# one seed.
# ```
#
# ```{solution} traffic-sgd
# :class: dropdown
# `torch.optim.SGD(weights, 0.1, momentum=0.9)`, every step at that rate. In the one seed that was
# tried both ways of sending 1 % ended level: a sum that comes late and at once then moves a weight
# as far as one sent evenly. One seed proves nothing, hence yours.
# ```
#
# ## Where the token goes next
#
# All of this happened inside one building, where a message is there in microseconds and a link can
# be had for the asking. The next part, the long haul, puts kilometres between the ranks:
# light needs five microseconds for each, and no scheduler can make it faster.
