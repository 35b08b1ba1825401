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
# # A training step
#
# ```{spine} tensors operations communication
# ```
#
# So far the model was read and counted. Now it learns. A {term}`training step` takes a batch,
# guesses every next token in it, asks how wrong the guesses were, and moves every weight a little.
#
# The question of this chapter: **what does one step compute, what does it hold in memory and when,
# how close does it come to what the machine could do, and what would it have to send?** At the end
# the running model has been trained for real, and we know what a token of unseen text costs it.

# %% tags=["parameters"]
steps = 3500  # of the training run at the end; more steps, a better model, a longer page
micro_batch = 16  # sequences that go through the model at once
accumulation = 1  # micro-batches in a step of the run
length = 64  # tokens in a sequence of the run
held_out = 0.1  # part of the documents that the run never sees
precision = "bfloat16"  # of the run's matrix products, or "float32"
seed = 0

# %% tags=["hide-input"]
import math
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
import torch
from tokenlife import charts, corpus
from tokenlife.catalog import read_reference, running
from tokenlife.charts import LABELS, PALETTE
from tokenlife.corpus import BatchLayout
from tokenlife.corpus.loader import TokenBatches
from tokenlife.costs import count_parameters, training_flops
from tokenlife.costs.activations import activation_bytes
from tokenlife.costs.memory import state_bytes
from tokenlife.costs.memory_trace import MemoryTrace
from tokenlife.costs.roofline import measure, resolve, seconds
from tokenlife.parallel import Plan, data_parallel_ops
from tokenlife.provenance import machine
from tokenlife.tokenizer import codes, vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.ngram import Ngram
from tokenlife.transformer.train import (
    Trainer,
    TrainingRecipe,
    evaluate,
    learning_rate,
    loss_sum,
    make_optimiser,
)
from tokenlife.units import format_bytes, format_count, format_flops, format_rate, format_time

charts.setup()
torch.manual_seed(seed)
device = resolve("auto")
if device.type == "cpu":
    torch.set_num_threads(min(2, machine()["cores"]))
job = running()
sentence, small, big = job["sentence"], job["small"], job["big"]
tokenizer = vocabularies.load(small["vocabulary"])
config = ModelConfig.load(small["model"])
folder = tempfile.TemporaryDirectory()
n_parameters = count_parameters(config)

# %% [markdown]
# ## On the back of an envelope
#
# Forward costs about two FLOPs for each {term}`parameter` and token, backward twice that: six in
# all. And a step of Adam with 32-bit numbers holds four of them for each parameter: the weight, its
# {term}`gradient`, and two averages of past gradients.

# %% tags=["hide-input"]
micro_tokens = 8 * config.positions
envelope_flops = 6 * n_parameters * micro_tokens
charts.prose(
    f"The running model has {format_count(n_parameters)} parameters. A batch of 8 sequences of "
    f"{config.positions} tokens costs 6 × {format_count(n_parameters)} × {micro_tokens:,} = "
    f"{{modelled}}`{format_flops(envelope_flops)}`, which a machine that does 100 GFLOP/s works "
    f"off in {{modelled}}`{format_time(envelope_flops / 100e9, 2)}`. Its states take "
    f"{{modelled}}`{format_bytes(16 * n_parameters)}`. Its big sister "
    f"{big['model']}, with {format_count(count_parameters(ModelConfig.load(big['model'])))}, would "
    "need "
    f"{{modelled}}`{format_bytes(16 * count_parameters(ModelConfig.load(big['model'])))}`: "
    "no one chip holds that, which is why there is a part II."
)

# %% [markdown]
# ## The mechanism
#
# One step, on nothing but the running sentence. The {term}`loss` is the mean of −ln p over its
# tokens, p being the probability that the model gave to the token that really came.

# %%
model = Decoder(config).to(device)
recipe = TrainingRecipe(steps=20, learning_rate=3e-3, warmup=2)
optimiser = make_optimiser(model, recipe)
ids = torch.tensor([tokenizer.encode_ordinary(sentence)], device=device)
context, labels = ids[:, :-1], ids[:, 1:]

losses = []
for step in range(1, recipe.steps + 1):
    loss = loss_sum(model(context), labels) / labels.numel()  # forward
    loss.backward()  # a gradient for every weight
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(recipe, step) * group["rate"]
    optimiser.step()  # every weight moves
    optimiser.zero_grad()
    losses.append(loss.item())

# %% tags=["hide-input"]
charts.prose(
    f"A new model knows nothing: each of {config.vocab:,} tokens is as likely as any other, and "
    f"the loss starts at {{measured}}`{losses[0]:.2f}` nats, where ln {config.vocab:,} = "
    f"{math.log(config.vocab):.2f}. After {recipe.steps} steps on one sentence it is "
    f"{{measured}}`{losses[-1]:.2f}`. The model has not understood the sentence. It has memorised "
    "it, which is why everything below is judged on text that it has not seen."
)

# %% [markdown]
# Three things are hidden in these lines.
#
# **Backward.** Each operation keeps what it needs to say how its result would change with its
# inputs; `backward` goes through them in reverse. A product $Y = XW$ needs two more products,
# $\partial X = \partial Y\,W^\top$ and $\partial W = X^\top \partial Y$, hence the factor two.
#
# **{term}`AdamW`** {cite}`loshchilov2019decoupled`. With $g$ the gradient, $m$ and $v$ the running
# means of $g$ and $g^2$, both corrected for their start at zero,
#
# $$ w \leftarrow w - \eta \left( \frac{\hat m}{\sqrt{\hat v} + \epsilon} + \lambda w \right). $$
#
# Each weight moves about $\eta$ a step, whatever the size of its gradient. The last term, weight
# decay, is for matrices only.
#
# **The learning rate** $\eta$ climbs during a warm-up, while the means are still made of few
# gradients, then falls along half a cosine {cite}`loshchilov2017sgdr`.
#
# ## One step under the microscope
#
# How long does each part take, and how far is that from what the machine could do? First the
# machine: its {term}`roofline`, measured with a matrix product and with a sum of two long arrays.

# %%
roof = measure(device)

# %% tags=["hide-input"]
batch, span = 8, config.positions
ids, targets = torch.randint(config.vocab, (2, batch, span), device=device)
model = Decoder(config).to(device)
optimiser = make_optimiser(model, recipe)


def forward():
    return loss_sum(model(ids), targets) / targets.numel()


def forward_backward():
    forward().backward()


def whole_step():
    forward_backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()


rounds = 9
forward_s = seconds(forward, device, rounds)
both_s = seconds(forward_backward, device, rounds)
step_s = seconds(whole_step, device, rounds)
counted = training_flops(config, batch, span)
peak32 = roof.peak("float32")
# The optimiser reads weight, gradient and two moments and writes all but the gradient; clipping
# reads the gradient for its norm, reads it again and writes it scaled; zeroing is free, the tensors
# are let go.
update_bytes = (4 + 3 + 3) * 4 * n_parameters
parts = pd.DataFrame(
    [
        {"part": "forward", "FLOPs": counted.forward, "time": forward_s,
         "at least": counted.forward / peak32},
        {"part": "backward", "FLOPs": counted.backward, "time": both_s - forward_s,
         "at least": counted.backward / peak32},
        {"part": "clip and update", "FLOPs": math.nan, "time": step_s - both_s,
         "at least": update_bytes / roof.bandwidth_Bps},
    ]
)  # fmt: skip
parts["of the roofline"] = parts["at least"] / parts["time"]
charts.prose(
    f"This machine multiplies float32 matrices at {{measured}}`{format_flops(peak32)}/s`, "
    f"bfloat16 ones at {{measured}}`{format_flops(roof.peak('bfloat16'))}/s`, and moves "
    f"{{measured}}`{format_bytes(roof.bandwidth_Bps)}/s`. One step over {batch} × {span} tokens "
    f"takes {{measured}}`{format_time(step_s)}`:"
)

# %% tags=["hide-input"]
charts.table(
    parts,
    caption=f"One float32 step of {config.name}, {batch} × {span} tokens: "
    "medians, beside the least time of the roofline",
    label={"FLOPs": "modelled", "time": "measured", "at least": "modelled"},
    formats={"FLOPs": format_flops, "time": format_time, "at least": format_time,
             "of the roofline": ".0%"},
)  # fmt: skip

# %% tags=["hide-input"]
ratio = (both_s - forward_s) / forward_s
long = parts.assign(
    shown=[format_time(t) for t in parts.time],
    milliseconds=1e3 * parts.time,
    least=1e3 * parts["at least"],
)[["part", "shown", "milliseconds", "least"]]
order = list(parts.part)
chart = alt.Chart(long).encode(y=alt.Y("part:N", sort=order, title=None))
bars = chart.mark_bar(height=20, color=LABELS["measured"].colour).encode(
    x=alt.X(
        "milliseconds:Q",
        title="milliseconds",
        scale=alt.Scale(domainMax=1.25 * long.milliseconds.max()),
    ),
    tooltip=["part:N", alt.Tooltip("milliseconds:Q", format=".2f")],
)
least = chart.mark_tick(thickness=3, size=30, color=LABELS["modelled"].colour).encode(
    x="least:Q", tooltip=["part:N", alt.Tooltip("least:Q", title="roofline (ms)", format=".2f")]
)
text = chart.mark_text(align="left", dx=6).encode(x="milliseconds:Q", text="shown:N")
alt.layer(
    bars,
    least,
    text,
    title=f"Backward takes {ratio:.1f} times as long as forward; the roofline is the blue tick",
    description=f"Time of each part of a step. {'; '.join(long.part + ' ' + long.shown)}. "
    "A tick marks the least time that the roofline allows: "
    + "; ".join(f"{p} {format_time(t)}" for p, t in zip(parts.part, parts["at least"], strict=True))
    + ".",
    height=alt.Step(42),
)  # fmt: skip

# %% [markdown]
# The roofline counts matrix products at the rate of a large one. Here the matrices are small, and
# between them stand softmaxes, norms, GELUs and the loss over the vocabulary: hardly any FLOPs, but
# every number read and written once more. On a large model the products win; on this one they do
# not. Chapter 4 places each stage of a model on the roofline.
#
# ## Where memory goes, and when
#
# PyTorch lets us see every tensor that an operation makes, and tells us when it goes. So we can
# watch one step: what lives after each operation, by kind.

# %%
trace = MemoryTrace(model, optimiser, (ids, targets))
with trace.following():
    with trace.phase("forward"):
        loss = forward()
    with trace.phase("backward"):
        loss.backward()
    del loss
    with trace.phase("optimiser"):
        optimiser.step()
    optimiser.zero_grad()

# %% tags=["hide-input"]
samples = trace.samples()
SHOWN = ("weights", "optimiser", "gradients", "activations", "temporary")
COLOURS = dict(zip(SHOWN, ("blue", "sky", "violet", "orange", "grey"), strict=True))
rows = [
    {
        "operation": s.operation,
        "kind": kind,
        "rank": i,
        "MB": s.bytes_[kind] / 1e6,
        "phase": s.phase,
    }
    for s in samples
    for i, kind in enumerate(SHOWN)
]
peak = trace.peak()
kept_peak = max(s.bytes_["activations"] for s in samples)
phases = pd.DataFrame(samples).groupby("phase", sort=False).operation.agg(["min", "max"])
phases = phases[phases.index != ""].reset_index()
phases["middle"] = (phases["min"] + phases["max"]) / 2
high = peak.total / 1e6
areas = alt.Chart(pd.DataFrame(rows)).mark_area(interpolate="step-after").encode(
    x=alt.X("operation:Q", title="operations of the step, in order",
            scale=alt.Scale(nice=False)),
    y=alt.Y("MB:Q", title="live memory (MB)", scale=alt.Scale(domain=[0, 1.2 * high], nice=False)),
    color=alt.Color("kind:N", sort=list(SHOWN), title=None,
                    scale=alt.Scale(domain=list(SHOWN),
                                    range=[PALETTE[COLOURS[k]] for k in SHOWN])),
    order="rank:Q",
    tooltip=["operation", "phase", "kind", alt.Tooltip("MB:Q", format=".1f")],
)  # fmt: skip
ends = alt.Chart(phases).mark_rule(strokeDash=[3, 3], opacity=0.5).encode(x="max:Q")
names = alt.Chart(phases).mark_text(baseline="top", fontWeight=600).encode(
    x="middle:Q", y=alt.value(4), text="phase:N"
)  # fmt: skip
alt.layer(
    areas,
    ends,
    names,
    title=f"Activations pile up forward and melt backward; the peak is {high:.0f} MB",
    description="Live bytes by kind after each operation of a training step. Weights and optimiser "
    f"states are flat; activations grow through the forward pass to {kept_peak / 1e6:.0f} MB and "
    "shrink through the backward pass while gradients appear; the peak of "
    f"{high:.0f} MB is in the {peak.phase}.",
    height=300,
)

# %% [markdown]
# Weights and the optimiser's states are always there. What a batch costs is the activations: each
# operation puts aside what its backward pass will need. They are dropped one by one on the way
# back, while the gradients of the weights appear. The grey peak is the gradient of the logits, one
# number for each token and each entry of the vocabulary: beside a small model, the vocabulary is
# large.

# %% tags=["hide-input"]
states = state_bytes(config, "float32")
logit_bytes = ids.numel() * config.vocab * 4
modelled = {
    "weights": states["weights"],
    "gradients": states["gradients"],
    "optimiser": states["moments"],
    "activations": activation_bytes(config, batch, span, 4, "sdpa") + logit_bytes,
}
found = {
    "weights": samples[-1].bytes_["weights"],
    "gradients": max(s.bytes_["gradients"] for s in samples),
    "optimiser": samples[-1].bytes_["optimiser"],
    "activations": kept_peak,
}
by_kind = pd.DataFrame(
    [
        {"kind": kind, "model": modelled[kind], "measured": found[kind],
         "error": modelled[kind] / found[kind] - 1, "grows with": grows}
        for kind, grows in (("weights", "parameters"), ("gradients", "parameters"),
                            ("optimiser", "parameters"), ("activations", "tokens of a micro-batch"))
    ]
)  # fmt: skip
charts.table(
    by_kind,
    caption="Memory by kind: chapter 4's formulas beside the tensors that were alive. "
    "The log-probabilities of the loss count as activations",
    label={"model": "modelled", "measured": "measured"},
    formats={"model": format_bytes, "measured": format_bytes, "error": "+.3%"},
)

# %% [markdown]
# ## Mixed precision
#
# A bfloat16 has the range of a float32 and keeps 8 of its 24 binary digits. Products of matrices
# are sums of many terms, and errors of single terms average out; moving fewer bytes and
# multiplying shorter numbers is faster. But a weight is not a sum. It moves by about $\eta$ a
# step, and from 1 upwards a bfloat16 can only move by 2⁻⁷ or not at all.

# %%
one = torch.tensor(1.0, dtype=torch.bfloat16)
lost, kept = one + 0.0035, one + 0.0045

# %% tags=["hide-input"]
late = 3e-5  # learning rates fall a hundredfold towards the end of a run
for group in optimiser.param_groups:
    group["lr"] = late
before = [p.detach().clone() for p in model.parameters()]
forward_backward()
optimiser.step()
optimiser.zero_grad()
moved = [(b, p.detach()) for b, p in zip(before, model.parameters(), strict=True)]
changed = sum(int((a != b).sum()) for a, b in moved)
stuck = sum(
    int(((a != b) & ((a.bfloat16() + (b - a).bfloat16()) == a.bfloat16())).sum()) for a, b in moved
)
faster = roof.peak("bfloat16") / roof.peak("float32")


def with_precision(dtype):
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        return loss_sum(model(ids), targets).item() / targets.numel()


exact, rough = with_precision("float32"), with_precision("bfloat16")
charts.prose(
    f"1 + 0.0035 is {lost.item():g} and 1 + 0.0045 is {kept.item():g}. In one step of this model "
    f"at a learning rate of {late:g}, as late in a run, {{measured}}`{stuck / changed:.0%}` of the "
    "weights that moved would have stayed where they were, had they been kept in bfloat16. So "
    "{term}`mixed precision` keeps weights, moments and updates in 32 bits, and multiplies in 16. "
    f"The loss of the batch then differs by {{measured}}`{abs(rough / exact - 1):.1e}`, and the "
    f"products run {{measured}}`{faster:.1f}` times as fast on this machine."
)

# %% [markdown]
# ## A batch too big for memory
#
# Activations grow with the tokens that go through at once; the gradient does not. So a big batch
# can be cut into micro-batches whose gradients are added up: {term}`gradient accumulation`. It is
# the same step, if the sum is divided once, by all labels of the step. The mean of the
# micro-batches' means is another number as soon as they hold unequally many labels, as packed
# batches do.

# %%
torch.manual_seed(seed)
masked = targets.clone()
masked[0, 20:] = -100  # a short document: the rest of its row is padding
whole = Decoder(config).to(device)


def gradient(parts, mean_of_means=False):
    whole.zero_grad()
    for x, y in zip(ids.chunk(parts), masked.chunk(parts), strict=True):
        counts = (y != -100).sum() * parts if mean_of_means else (masked != -100).sum()
        (loss_sum(whole(x), y) / counts).backward()
    return torch.cat([p.grad.flatten() for p in whole.parameters()])


big_batch = gradient(1)

# %% tags=["hide-input"]
accumulated = []
for count in (1, 2, 4, 8):
    errors = [
        ((gradient(count, wrong) - big_batch).norm() / big_batch.norm()).item()
        for wrong in (False, True)
    ]
    accumulated.append(
        {"micro-batches": count, "sequences in each": batch // count,
         "activations": activation_bytes(config, batch // count, span, 4, "sdpa"),
         "sum over all labels": errors[0], "mean of means": errors[1]}
    )  # fmt: skip
charts.table(
    pd.DataFrame(accumulated),
    caption="Relative distance of the accumulated gradient from that of the whole batch",
    label={"activations": "modelled", "sum over all labels": "measured",
           "mean of means": "measured"},
    formats={"micro-batches": "d", "activations": format_bytes,
             "sum over all labels": ".1e", "mean of means": ".1e"},
)  # fmt: skip

# %% [markdown]
# ## Trained for real
#
# The text: Shakespeare's works, one of the three sources of chapter 2, split by document. The
# yardstick: {term}`n-gram models <n-gram model>`, which guess a token from the n − 1 before it by
# counting. Ours are smoothed as well as counting allows {cite}`chen1998empirical`, and see all the
# training text at once. If a transformer cannot beat them, it has not learnt to use more than two
# tokens of context.

# %%
documents = corpus.shakespeare()
train, unseen = corpus.split(documents, held_out, seed=seed)
file = corpus.write_tokens(Path(folder.name, "train.tokens"), train, tokenizer)
held = corpus.write_tokens(Path(folder.name, "held_out.tokens"), unseen, tokenizer)

known = [file.document(i) for i in range(file.n_documents)]
new = [held.document(i) for i in range(held.n_documents)]
started = time.perf_counter()
ngrams = {n: Ngram(known, tokenizer.n_vocab, n) for n in (1, 2, 3)}
ngram_bits = {n: -torch.tensor(ngram.probabilities(new)).log2() for n, ngram in ngrams.items()}
ngram_s = time.perf_counter() - started

# %% tags=["hide-input"]
n_bytes = sum(document.n_bytes for document in unseen)
charts.prose(
    f"{len(train)} works with {file.n_tokens:,} tokens to learn from, {len(unseen)} with "
    f"{held.n_tokens:,} to be judged on ({format_bytes(n_bytes)}). Counting and judging three "
    f"n-gram models takes {{measured}}`{format_time(ngram_s)}`. A token of the unseen works costs "
    + ", ".join(
        f"{{measured}}`{bits.mean():.2f}` bits with n = {n}" for n, bits in ngram_bits.items()
    )
    + f"; log₂ {tokenizer.n_vocab:,} = {math.log2(tokenizer.n_vocab):.0f} would be no knowledge "
    "at all."
)

# %% [markdown]
# Now the transformer. Everything in the loop is the few lines above; the library's `Trainer` adds
# what a run needs that lasts longer than a page: a stream that resumes, checkpoints that are
# written whole or not at all, and a stop with a diagnosis if a loss is no number.
#
# Both are judged on the same tokens of the unseen works. The n-gram models always have the two
# tokens before; the transformer gets half a row of them for each token that it is judged on.

# %%
config = replace(config, positions=length)
layout = BatchLayout(micro_batch * accumulation, micro_batch)
batches = TokenBatches(file, corpus.chop(file.lengths, length), layout, seed=seed)
recipe = TrainingRecipe(
    steps=steps,
    learning_rate=2e-3,
    embedding_rate=20,  # a short run: each row of the table is met a few times only
    warmup=steps // 20,
    final_share=0.02,
    precision=precision,
    checkpoint_every=max(1, steps // 4),
)
torch.manual_seed(seed)
trainer = Trainer(
    # Rows this short do not pay for a fused kernel: on a CPU in 16 bits the naive path is faster.
    Decoder(config, attention="naive"),
    batches,
    recipe,
    Path(folder.name, "last.pt"),
)

# %% tags=["hide-input"]
# The held-out text in half rows; each is read behind the half row before it and judged there, so
# that no guess is made with an empty past. All its tokens are judged once, in their order.
half = length // 2
packing = corpus.chop(held.lengths, half)
halves = corpus.make_batch(held, packing, range(packing.n_rows))
exam, labels = (
    torch.from_numpy(np.hstack([part[:-1], part[1:]])) for part in (halves.ids, halves.labels)
)
counts = labels != corpus.IGNORE
judged = counts.clone()
judged[1:, :half] = False
asked = labels.where(judged, corpus.IGNORE)
# Every label's place among the n-grams' bits, which stand in the same order.
order = np.full(halves.labels.shape, -1)
order[halves.loss_mask] = np.arange(halves.loss_mask.sum())
where = torch.from_numpy(np.hstack([order[:-1], order[1:]]))
sampled = torch.arange(0, len(exam), max(1, len(exam) // 320))


def papers(rows, size=64):
    """Yield held-out rows as batches."""
    for part in rows.split(size):
        yield {"ids": exam[part], "labels": asked[part]}


at = sorted(
    {max(1, round(steps * share)) for share in (0, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1)}
)
reports, curve = [], []
started = time.perf_counter()
for stop in at:
    reports += trainer.run(until=stop)
    so_far = evaluate(trainer.model, papers(sampled), precision)
    curve.append({"step": stop, "tokens": sum(r.tokens for r in reports),
                  "bits": so_far.bits_per_token})  # fmt: skip
run_s = time.perf_counter() - started
step_times = sorted(r.seconds for r in reports)
step_tokens = reports[0].tokens
tokens_per_s = step_tokens / step_times[len(step_times) // 2]

# The whole held-out part once, token by token: the charts below ask where it was cheap.
own_bits = torch.full(labels.shape, math.nan)
with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
    for rows in torch.arange(len(exam)).split(64):
        logits = trainer.model(exam[rows].to(device)).float()
        target = labels[rows].clamp(min=0).to(device)
        nats = torch.nn.functional.cross_entropy(logits.mT, target, reduction="none")
        own_bits[rows] = nats.cpu() / math.log(2)
final_bits = own_bits[judged].mean().item()
beaten = [n for n, bits in ngram_bits.items() if final_bits < bits.mean().item()]

# %% tags=["hide-input"]
sampled_at = where[sampled][judged[sampled]]
lines = pd.DataFrame(
    [
        {"n": n, "bits": bits[sampled_at].mean().item(), "name": f"n = {n}"}
        for n, bits in ngram_bits.items()
    ]
)
ends = {3: "below all three n-gram models", 0: "above all three n-gram models"}
ends = ends.get(len(beaten), f"below n = {max(beaten, default=1)}, above n = {len(beaten) + 1}")
verdict = f"After {curve[-1]['tokens']:,} tokens the transformer ends {ends}"
x = alt.X("tokens:Q", title="tokens read", axis=alt.Axis(format="~s", tickCount=6))
y = alt.Y("bits:Q", title="held-out cost (bits per token)", scale=alt.Scale(zero=False))
learnt = alt.Chart(pd.DataFrame(curve)).mark_line(
    point={"color": PALETTE["orange"]}, color=PALETTE["orange"]
).encode(
    x=x, y=y, tooltip=["step", alt.Tooltip("tokens:Q", format=","),
                       alt.Tooltip("bits:Q", format=".2f")]
)  # fmt: skip
rules = alt.Chart(lines).mark_rule(strokeDash=[5, 4]).encode(y="bits:Q")
rule_names = (
    alt.Chart(lines)
    .mark_text(align="left", baseline="bottom", dy=-3)
    .encode(x=alt.value(4), y="bits:Q", text="name:N")
)
own_name = (
    alt.Chart(pd.DataFrame(curve[2:3]).assign(name="transformer"))
    .mark_text(align="left", dx=8, dy=-8)
    .encode(x="tokens:Q", y="bits:Q", text="name:N")
)
alt.layer(
    rules,
    learnt,
    rule_names,
    own_name,
    title=verdict,
    description="Held-out cost in bits per token against tokens read. The transformer falls from "
    f"{curve[0]['bits']:.1f} to {curve[-1]['bits']:.2f}; n-gram models lie at "
    + ", ".join(f"{row.bits:.2f} ({row.name})" for row in lines.itertuples(index=False))
    + ".",
    height=300,
)

# %% tags=["hide-input"]
raw = "".join(document.text for document in unseen).encode()
costs = [
    {"reader": "no knowledge: log₂ V", "bits per token": math.log2(tokenizer.n_vocab)},
    *({"reader": f"n-gram, n = {n}", "bits per token": b.mean().item()}
      for n, b in ngram_bits.items()),
    {"reader": f"{config.name}, trained here", "bits per token": final_bits},
]  # fmt: skip
for cost in costs:
    cost["bits per byte"] = cost["bits per token"] * int(judged.sum()) / n_bytes
costs += [
    {"reader": method, "bits per token": math.nan,
     "bits per byte": 8 * len(codes.compress(raw, method)) / n_bytes}
    for method in ("gzip", "zstd")
]  # fmt: skip
charts.table(
    pd.DataFrame(costs).sort_values("bits per byte", ascending=False),
    caption="What the whole held-out part costs each reader",
    label="measured",
    formats={"bits per token": ".3f", "bits per byte": ".3f"},
)

# %% [markdown]
# Bits per byte is where this chapter meets chapter 1: it is what a text takes if it is written with
# an arithmetic code that asks the reader for its probabilities. A compressor is a reader too, one
# that starts from nothing and learns from the text itself. And the unit does not depend on the
# vocabulary, as bits per token do.
#
# ### Where the transformer gains
#
# An n-gram model's context ends after two tokens. The transformer's grows along a row: at its start
# there is nothing to look back on, later there is.

# %% tags=["hide-input"]
edges = sorted({0, *(2**k for k in range(round(math.log2(length)) + 1))})
by_place = []
for first, last in pairwise(edges):
    here = counts[:, first:last]
    trigram = ngram_bits[3][where[:, first:last][here]].mean().item()
    by_place += [
        {"tokens before": first + 1 if last == first + 1 else (first + last + 1) / 2,
         "reader": name, "bits": bits}
        for name, bits in (("transformer", own_bits[:, first:last][here].mean().item()),
                           ("n = 3", trigram))
    ]  # fmt: skip
by_place = pd.DataFrame(by_place)
ours = by_place[by_place.reader == "transformer"].reset_index()
theirs = by_place[by_place.reader == "n = 3"].reset_index()
below = ours["tokens before"][ours.bits < theirs.bits]
crossing = (
    f"With {below.min():.0f} tokens before it, a token is cheaper for the transformer"
    if len(below)
    else "The trigram model stays cheaper at every place of a row"
)
place = alt.X("tokens before:Q", title="tokens of context in the row (logarithmic)",
              scale=alt.Scale(type="log", base=2, domainMax=2 * length))  # fmt: skip
readers = alt.Scale(domain=["transformer", "n = 3"], range=[PALETTE["orange"], PALETTE["blue"]])
base = alt.Chart(by_place).encode(
    x=place,
    y=alt.Y("bits:Q", title="held-out cost (bits per token)", scale=alt.Scale(zero=False)),
    color=alt.Color("reader:N", legend=None, scale=readers),
    tooltip=["reader", alt.Tooltip("tokens before:Q", format=".0f"),
             alt.Tooltip("bits:Q", format=".2f")],
)  # fmt: skip
last = by_place[by_place["tokens before"] == by_place["tokens before"].max()]
alt.layer(
    base.mark_line(point=True),
    alt.Chart(last).mark_text(align="left", dx=8).encode(x=place, y="bits:Q", text="reader:N"),
    title=crossing,
    description="Held-out bits per token by how many tokens of its row a token can look back on. "
    f"Transformer: {ours.bits.iloc[0]:.2f} at the first place, {ours.bits.iloc[-1]:.2f} in the "
    f"last half of a row. Trigram model: {theirs.bits.iloc[0]:.2f} and {theirs.bits.iloc[-1]:.2f}.",
    height=260,
)

# %% tags=["hide-input"]
written = torch.tensor([tokenizer.encode_ordinary(sentence)], device=device)
with torch.no_grad():
    guesses = trainer.model(written[:, :-1]).float().log_softmax(-1)
spelt_bits = -guesses.gather(-1, written[:, 1:, None]).sum().item() / math.log(2)
trigram_bits = -torch.tensor(ngrams[3].probabilities(written.cpu().numpy())).log2().sum().item()
n_ids = written.shape[1] - 1
charts.prose(
    f"And the running sentence? Its {n_ids} tokens after the first take "
    f"{n_ids * math.log2(tokenizer.n_vocab):.0f} bits as plain ids. The model that we trained "
    f"would pay {{measured}}`{spelt_bits:.0f} bits`, the trigram model "
    f"{{measured}}`{trigram_bits:.0f}`. Shakespeare did not write of bytes on a wire, and a reader "
    "is as good as what it has read."
)

# %% [markdown]
# ### Stopping and going on
#
# A long run is stopped more often than it ends: machines fail, jobs are moved. A {term}`checkpoint`
# holds the weights, both moments of each, the state of the random generators, and how many
# sequences the data have given. On a CPU the resumed run is the same to the last bit:

# %%
short = replace(recipe, steps=6, warmup=2, checkpoint_every=0)


def fresh(name):
    torch.manual_seed(seed)
    stream = TokenBatches(file, corpus.chop(file.lengths, length), layout, seed=seed)
    return Trainer(Decoder(config), stream, short, Path(folder.name, name))


straight = fresh("straight.pt").run()
fresh("stopped.pt").run(until=3)
resumed = fresh("stopped.pt")
resumed.load()
after = resumed.run()
equal = [a.loss for a in straight[3:]] == [a.loss for a in after]

# %% tags=["hide-input"]
checkpoint_bytes = Path(folder.name, "last.pt").stat().st_size
if device.type == "cpu":
    assert equal, "a resumed run must equal the run without a stop"
charts.prose(
    f"Losses of steps 4 to 6 with and without a stop after step 3: "
    f"{{measured}}`{'equal to the last bit' if equal else 'equal to rounding'}`. The checkpoint "
    f"has {{measured}}`{format_bytes(checkpoint_bytes)}`, where three float32 numbers for each of "
    f"{count_parameters(config):,} parameters make "
    f"{{modelled}}`{format_bytes(12 * count_parameters(config))}`. It is written beside its place "
    "and moved there in one operation, so a crash leaves the old one or the new one, never a half."
)

# %% [markdown]
# ## How well was the machine used?
#
# {term}`Model FLOPs utilisation` (MFU) is the share of a machine's peak that goes into the FLOPs
# that the model needs {cite}`chowdhery2022palm`. It depends on what one calls the peak: makers
# print the peak of their matrix units, while here it is the best product that was measured.

# %% tags=["hide-input"]
per_token = training_flops(config, 1, length).total / length
mfu = tokens_per_s * per_token / roof.peak(precision)
published = pd.concat(
    [read_reference("07_flops_mfu_scaling"), read_reference("04_llama3")], ignore_index=True
)
seen = published.confidence.str.startswith("seen")
percent = published[seen & published.unit.eq("%") & published.quantity.str.endswith(" MFU")]
points = [
    {"run": "Llama 3.1 405B" if row.quantity == "BF16 MFU" else row.quantity.removesuffix(" MFU"),
     "on": row.conditions.split(", TP")[0].strip(), "MFU": float(row.value) / 100,
     "label": "published", "source": row.source.split(", http")[0].replace('"', "")}
    for row in percent.itertuples()
]  # fmt: skip
points = [
    point | {"run": point["run"] + (" (long context)" if "CP16" in row.conditions else "")}
    for point, row in zip(points, percent.itertuples(), strict=True)
]
points.append(
    {"run": f"{config.name}, this page", "on": f"{machine()['cores']} CPU cores", "MFU": mfu,
     "label": "measured", "source": "against the measured peak"}
)  # fmt: skip
points = pd.DataFrame(points)
points["name"] = points.run + ", " + points.on.where(points.label == "published", "")
points["name"] = points.name.str.removesuffix(", ")
points["shown"] = [f"{value:.0%}" for value in points.MFU]
styles = [LABELS[label] for label in ("published", "measured")]
key = alt.Legend(direction="vertical")
dots = alt.Chart(points).encode(
    y=alt.Y("name:N", sort="-x", title=None, axis=alt.Axis(labelLimit=260)),
    x=alt.X("MFU:Q", title="model FLOPs utilisation", axis=alt.Axis(format="%"),
            scale=alt.Scale(domain=[0, max(0.65, 1.15 * mfu)])),
    tooltip=["run", "on", alt.Tooltip("MFU:Q", format=".1%"), "label", "source"],
)  # fmt: skip
best = points[points.label == "published"].MFU
alt.layer(
    dots.mark_point(size=90).encode(
        color=alt.Color("label:N", title=None, legend=key, scale=alt.Scale(
            domain=["published", "measured"], range=[style.colour for style in styles])),
        shape=alt.Shape("label:N", title=None, legend=key, scale=alt.Scale(
            domain=["published", "measured"], range=[style.shape for style in styles])),
    ),
    dots.mark_text(align="left", dx=9).encode(text="shown:N"),
    title=f"Published runs reach {best.min():.0%} to {best.max():.0%}, this page {mfu:.0%}",
    description="Model FLOPs utilisation: "
    + "; ".join(f"{row.name} {row.shown}" for row in points.itertuples(index=False)) + ".",
    height=alt.Step(28),
)  # fmt: skip

# %% tags=["hide-input"]
charts.prose(
    f"The run read {{measured}}`{tokens_per_s:,.0f} tokens/s` at {per_token / 1e6:.1f} MFLOP each. "
    "The two kinds of points differ in more than the machine: a published MFU has waiting for the "
    "network in it, and idle pipeline stages, and a peak that no product reaches. Ours has small "
    "matrices in it, and the steps in between that are no products. Long contexts lower Llama's "
    "figure; older runs were measured on slower networks and with younger software."
)

# %% [markdown]
# ## What this step would put on the network
#
# On one machine a step ends here. With two, each has read other sequences and holds another
# gradient, and they must agree before either moves a weight. That is a {term}`collective`: an
# {term}`all-reduce` over all gradients, once a step.

# %%
op = data_parallel_ops(Plan(dp=small["dp"]), count_parameters(config), item_bytes=4)[0]

# %% tags=["hide-input"]
median_s = step_times[len(step_times) // 2]
sister = ModelConfig.load(big["model"])
charts.prose(
    f"`{op.kind}` over ranks {list(op.group)}: {{modelled}}`{format_bytes(op.bytes_)}` in each "
    f"rank, after {op.after}. A step of this page takes {{measured}}`{format_time(median_s)}`, so "
    f"with no overlap two such machines in a ring would each send "
    f"{{modelled}}`{format_rate(8 * op.bytes_ / median_s)}` on average, in a burst at the end of "
    f"each step. The step reads {format_bytes(step_tokens * 2)} of ids for it. For {big['model']} "
    f"the gradients in 16 bits are {{modelled}}`{format_bytes(2 * count_parameters(sister))}` a "
    "step."
)

# %% [markdown]
# ## Where this stops being true
#
# - **One device.** No exchange, no waiting. From two machines on, the time of a step has a part
#   that this chapter does not know. Part II adds it.
# - **A small model.** At this size norms, softmaxes and the vocabulary weigh as much as the
#   products. The share of a step that is matrix products grows with width, so MFU does too.
# - **A short run.** The learning rate was chosen for this budget. A longer run wants lower rates,
#   above all for the embeddings, and reads its corpus more than once, where it may begin to
#   memorise: with more steps, watch the held-out curve turn up.
# - **Documents in one row.** A token here sees whatever stands before it in its row. Works of
#   Shakespeare are long, so few rows hold two; in a corpus of short texts a mask is needed.
# - **The peak.** The measured peak is of one matrix size on an otherwise idle machine. With other
#   work beside it, both the peak and the step change, and their ratio with them.
# - **n-gram models of higher order.** n = 4 and 5 would gain a little more, and mixtures with
#   caches more again. The chart compares with the three that chapter 1 introduced.

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: ex-batch-memory
# The running model with 8 sequences of 256 tokens peaks at what the chart shows. Which of the kinds
# changes, and by what factor, with 16 sequences? With gradient accumulation over two micro-batches
# of 8?
# ```
#
# ```{solution} ex-batch-memory
# :class: dropdown
# With 16 sequences activations and temporaries double; weights, gradients and states do not
# change. With accumulation nothing changes but that gradients stay alive during the second forward
# pass: the peak grows by at most the bytes of the gradients.
# ```
#
# ```{exercise}
# :label: ex-adam-first-step
# Show that in Adam's very first step every weight with a gradient moves by almost exactly the
# learning rate, however small its gradient. What does that have to do with the warm-up?
# ```
#
# ```{solution} ex-adam-first-step
# :class: dropdown
# After one step the corrected means are $\hat m = g$ and $\hat v = g^2$, so the move is
# $\eta\, g / (|g| + \epsilon) \approx \pm\eta$. The signs are those of a single noisy batch,
# and all weights move at once. The warm-up keeps $\eta$ small until $\hat m$ averages over
# several batches.
# ```
#
# ```{exercise}
# :label: ex-mfu-hfu
# PaLM reports an MFU of 46.2 % and a hardware utilisation of 57.8 % for the same run. Where does
# the difference go? What would full recomputation of the forward pass do to an MFU of 46 % if the
# hardware kept its pace?
# ```
#
# ```{solution} ex-mfu-hfu
# :class: dropdown
# Hardware utilisation counts the FLOPs that were really done, recomputed ones included:
# 57.8 / 46.2 = 1.25, a quarter more than the model needs. Full recomputation does forward twice, 4
# parts of work where 3 are needed: the same pace is an MFU of 3/4 of the hardware's.
# ```
#
# ```{exercise}
# :label: ex-bits-sent
# Our run reads its step's ids and, with two ranks, would send its gradients. For which batch, in
# tokens, would a step read as many bytes as it sends? Why does nobody train like that?
# ```
#
# ```{solution} ex-bits-sent
# :class: dropdown
# A rank sends 4 B for each parameter (in a ring of two) and reads 2 B for each token, so with some
# 0.9 million parameters the batch would be about 1.9 million tokens: more than our whole corpus
# in one step. A batch that large wastes tokens, since one step can only follow one gradient,
# however precisely it is known. Large models do train with millions of tokens a step, and have a
# hundred thousand times the parameters: their gradients stay far larger than what they read.
# ```
#
# ## Where the token goes next
#
# The model has learnt, and its weights stand still. Chapter 6 lets it speak: one token at a time,
# each from all before it, where not the FLOPs but the bytes of the weights decide the pace.
