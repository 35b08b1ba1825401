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
# # One token at a time
#
# ```{spine} tensors operations
# ```
#
# A trained model is put to use. It gets a page of text and is asked to go on. A while nothing
# happens, then the first word stands there, then the second, the third, in an even drip.
#
# The model read the page faster than any person could. Now it writes more slowly than many people
# read. **Why does the second word take so much longer, for each token, than the first thousand?**
# The answer decides how large a batch is, what a conversation costs in memory, and in the end what
# serving puts on a network.

# %% tags=["parameters"]
device = "auto"  # cuda where there is one
prompt_tokens = 1024  # of the long prompt
reply_tokens = 12
prefill_lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
batches = [1, 2, 4, 8, 16, 32, 64]
contexts = [64, 512, 2048]  # tokens in the cache of each sequence
cache_limit = 1_600_000_000  # bytes; larger points of the grid are left out
rounds = 3  # repetitions of each timing; the median counts
queue_length, rows = 12, 4  # requests, and how many may be in flight
seed = 0

# %% tags=["hide-input"]
import statistics
import time

import altair as alt
import numpy as np
import pandas as pd
import torch
from tokenlife import charts, corpus
from tokenlife.catalog import model_names, read_accelerator, read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.costs import count_parameters, roofline
from tokenlife.costs.memory import bytes_of, kv_bytes_per_token, kv_cache_bytes
from tokenlife.costs.roofline import Roofline, stage_work
from tokenlife.transformer import ModelConfig, weights
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.generate import (
    LookupDraft,
    ModelDraft,
    Request,
    Sampler,
    expected_tokens,
    generate,
    prefill,
    serve,
    speculate,
    stream,
)
from tokenlife.transformer.model import Decoder
from tokenlife.units import format_bytes, format_count, format_time

charts.setup()
device = roofline.resolve(device)
dtype = "bfloat16" if device.type == "cuda" else "float32"
width = bytes_of(dtype)
sentence = running()["sentence"]
model = weights.smollm2(dtype=getattr(torch, dtype)).to(device)
tokenizer = weights.smollm2_tokenizer()
config = model.config
COLOURS = {"prefill": PALETTE["orange"], "decode": PALETTE["blue"], "wait": PALETTE["grey"]}


def timed(run):
    """Seconds of each of a few calls, until the GPU is done where there is one."""
    samples = []
    while len(samples) < rounds and sum(samples) < 2:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - start)
    return samples


def cap(text):
    return text[0].upper() + text[1:]


# %% [markdown]
# ## On the back of an envelope
#
# To give one token, every weight must be multiplied by something, so every weight must come out
# of memory once. To read a thousand tokens, every weight must come out of memory once as well, and
# is then used a thousand times. What the machine can do is measured first, as in chapter 4: how
# fast it multiplies, and how fast bytes come from memory.

# %%
sizes = (1024,) if device.type == "cpu" else None  # None: those for a GPU
roof = roofline.measure(device, (dtype,), sizes)
weight_bytes = count_parameters(config) * width
envelope_decode = weight_bytes / roof.bandwidth_Bps
envelope_prefill = 2 * count_parameters(config) / roof.peak(dtype)

# %% tags=["hide-input"]
h100, llama = Roofline.of("h100-sxm"), ModelConfig.load("llama-3.1-8b")
charts.prose(
    f"SmolLM2 has {format_count(count_parameters(config))} parameters, here of {width} bytes: "
    f"{{modelled}}`{format_bytes(weight_bytes)}`. Memory gives "
    f"{{measured}}`{roof.bandwidth_Bps / 1e9:.1f} GB/s`, so a token takes "
    f"{{modelled}}`{format_time(envelope_decode)}` at least, however fast the arithmetic is. "
    f"A token costs 2 FLOPs for each parameter; at "
    f"{{measured}}`{roof.peak(dtype) / 1e9:,.0f} GFLOP/s` that is "
    f"{{modelled}}`{format_time(envelope_prefill)}`. Reading should be about "
    f"**{envelope_decode / envelope_prefill:.0f} times** as fast as writing. "
    f"The same sum for Llama 3.1 8B in bfloat16 on an H100: "
    f"{format_bytes(2 * count_parameters(llama))} at {h100.bandwidth_Bps / 1e12:.2f} TB/s is "
    f"{{modelled}}`{format_time(2 * count_parameters(llama) / h100.bandwidth_Bps)}` a token, and "
    f"reading is {h100.ridge('bfloat16'):.0f} times as fast."
)

# %% [markdown]
# ## The mechanism
#
# A model gives the next token only. To write a text, its own token is added and the model is run
# again. Done literally, each step reads the whole text once more:

# %%
prompt = tokenizer.encode(sentence)


@torch.inference_mode()
def write_and_reread(ids, count):
    ids = list(ids)
    for _ in range(count):
        logits = model(torch.tensor([ids], device=device))[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


# %% [markdown]
# The keys and values of a token do not depend on what comes after it. So they are kept: the
# {term}`key–value cache` of chapter 3. Now there are two phases. {term}`Prefill <prefill>` reads
# the prompt in one pass and fills the cache. {term}`Decode <decode>` passes one new token at a
# time through the model, which looks back at the cache:


# %%
@torch.inference_mode()
def write(ids, count):
    cache = KVCache(config, 1, len(ids) + count, device, model.dtype)
    logits = prefill(model, [ids], cache)  # one pass over the prompt
    new = [int(logits[0].argmax())]
    while len(new) < count:
        last = torch.tensor([new[-1:]], device=device)
        logits = model(last, cache=cache)  # one pass for one token
        new.append(int(logits[0, -1].argmax()))
    return new


# %% tags=["hide-input"]
start = time.perf_counter()
with_cache = write(prompt, reply_tokens)
middle = time.perf_counter()
without = write_and_reread(prompt, reply_tokens)
end = time.perf_counter()
library = generate(model, [prompt], reply_tokens)[0]
if dtype == "float32":
    assert with_cache == without == library
charts.prose(
    f"Both write the same {reply_tokens} tokens after the running sentence, in "
    f"{{measured}}`{format_time(middle - start)}` with the cache and "
    f"{{measured}}`{format_time(end - middle)}` without. The text goes on: "
    f"*{tokenizer.decode(with_cache).strip()!r}*. It is a small model, and it does not know what "
    "the sentence means. The library's `generate` gives the same ids."
)

# %% [markdown]
# How the next id is chosen is a small matter beside this, but it is where the text comes from.
# Always taking the likeliest id is called greedy. A {term}`temperature` above 0 draws from the
# distribution; *top-k*, *top-p* {cite}`holtzman2020curious` and *min-p* {cite}`nguyen2024turning`
# first cut off its tail:

# %% tags=["hide-input"]
with torch.inference_mode():
    logits = model(torch.tensor([prompt], device=device))[0, -1].cpu()
SAMPLERS = {
    "temperature 1": Sampler(1.0),
    "temperature 0.6": Sampler(0.6),
    "top-k 40": Sampler(1.0, top_k=40),
    "top-p 0.9": Sampler(1.0, top_p=0.9),
    "min-p 0.1": Sampler(1.0, min_p=0.1),
    "greedy": Sampler(),
}
sampling = pd.DataFrame(
    [
        {
            "sampler": name,
            "ids that can come": int((p > 0).sum()),
            "likeliest": f"{tokenizer.decode([int(p.argmax())])!r}",
            "its probability": float(p.max()),
            "entropy in bits": abs(float((p[p > 0] * p[p > 0].log2()).sum())),
        }
        for name, sampler in SAMPLERS.items()
        for p in [sampler.probabilities(logits)]
    ]
)
charts.table(
    sampling,
    caption="What may follow the running sentence, by sampler",
    label={"ids that can come": "measured", "its probability": "measured",
           "entropy in bits": "measured"},
    formats={"its probability": ".1%", "entropy in bits": ".2f"},
)  # fmt: skip

# %% [markdown]
# ## The question, measured
#
# A page of Shakespeare as a prompt, the running sentence at its end, and an answer that is read
# token by token as it comes. Two times matter to whoever waits. The {term}`time to first token`
# (TTFT) runs from the request to the first token of the answer. The {term}`time per output token`
# (TPOT) is the mean time between tokens after the first.

# %%
page = tokenizer.encode(corpus.shakespeare()[0].text[: 8 * prompt_tokens])
long_prompt = [*page[: prompt_tokens - len(prompt)], *prompt]
moments = [time.perf_counter()]
for _ in stream(model, long_prompt, reply_tokens):
    moments.append(time.perf_counter())
ttft, tpot = moments[1] - moments[0], statistics.mean(np.diff(moments[1:]))

# %% tags=["hide-input"]
charts.prose(
    f"The first token came after {{measured}}`{format_time(ttft)}`: the prompt took "
    f"{{measured}}`{format_time(ttft / prompt_tokens)}` a token. Each further token took "
    f"{{measured}}`{format_time(tpot)}`, **{tpot * prompt_tokens / ttft:.0f} times as long**. "
    f"The envelope said {envelope_decode / envelope_prefill:.0f}."
)

# %% [markdown]
# ## A pass and its roofline
#
# Is it a matter of prefill and decode? Or only of how many tokens share a pass? Two series of
# passes are timed: a prompt of $n$ tokens for one sequence, and one token for each of $n$
# sequences. Beside them stands the least time that the {term}`roofline` allows: for each stage of
# the model the longer of its arithmetic at the measured peak and its bytes at the measured
# bandwidth.


# %%
def least_s(sequences, length, past, where=roof, of=config, kind=dtype):
    """The least time of a pass; only the last token of a sequence is scored."""
    number = bytes_of(kind)
    *layers, _ = stage_work(of, sequences, length, past, number)
    head = stage_work(of, sequences, 1, past, number)[-1]
    return sum(where.time_s(work, kind) for work in (*layers, head))


@torch.inference_mode()
def time_pass(sequences, length, past):
    """Time a pass. What a cache holds does not matter: it holds zeros."""
    cache = KVCache(config, sequences, past + length, device, model.dtype)
    ids = [[1] * length] * sequences

    def run():
        cache.set_lengths([past] * sequences)
        prefill(model, ids, cache)

    return timed(run)


# %% tags=["hide-input"]
def measure(phase, sequences, length, past):
    samples = time_pass(sequences, length, past)
    middle = statistics.median(samples)
    return {
        "phase": phase, "tokens": sequences * length, "batch": sequences, "context": past,
        "time": middle, "fastest": min(samples), "slowest": max(samples),
        "model": least_s(sequences, length, past),
    }  # fmt: skip


def fits(batch, context):
    need = kv_cache_bytes(config, batch, context + 1, width)
    return need <= cache_limit and context < config.positions


prefills = pd.DataFrame([measure("prefill", 1, n, 0) for n in prefill_lengths])
decodes = pd.DataFrame(
    [
        measure("decode", b, 1, c)
        for c in contexts
        for b in (batches if c == contexts[0] else batches[::2])
        if fits(b, c)
    ]
)
NAMES = {"prefill": "one prompt of n tokens", "decode": "n sequences, a token each"}
passes = pd.concat([prefills, decodes[decodes.context == contexts[0]]], ignore_index=True)
passes["series"] = passes.phase.map(NAMES)
# Where a pass takes twice the time of its weights' way from memory.
knee = next(n for n in range(1, 4096) if least_s(1, n, 0) > 2 * least_s(1, 1, 0))

# %% tags=["hide-input"]
x = alt.X("tokens:Q", title="new tokens in the pass").scale(type="log", base=2)
y = alt.Y("time:Q", title="seconds for the pass").scale(type="log", nice=False)
colour = alt.Color("series:N", legend=None).scale(
    domain=list(NAMES.values()), range=[COLOURS["prefill"], COLOURS["decode"]]
)
base = alt.Chart(passes)
tips = ["series:N", "tokens:Q", alt.Tooltip("time:Q", format=".3g", title="measured, s"),
        alt.Tooltip("model:Q", format=".3g", title="roofline, s")]  # fmt: skip
spread = base.mark_rule(opacity=0.5).encode(x, alt.Y("fastest:Q"), alt.Y2("slowest:Q"), colour)
points = base.mark_point(shape="square").encode(x, y, colour, tooltip=tips)
floor = base.mark_line(strokeDash=[5, 3]).encode(x, alt.Y("model:Q"), colour)
ends = passes.loc[passes.groupby("series").tokens.idxmax()]
names = (
    alt.Chart(ends).mark_text(align="right", dx=-10, dy=-9).encode(x, y, colour, text="series:N")
)
(floor + spread + points + names).properties(
    height=300,
    title="What a pass costs is decided by how many tokens share it",
    description="Time of a pass against its number of new tokens, both logarithmic: measured "
    "points with their spread, and the roofline's least time dashed, for one prompt and for a "
    "batch of sequences. Both series lie close together: flat at first, then rising in proportion.",
)

# %% tags=["hide-input"]
fold = float(passes[passes.tokens == 16].time.mean() / passes[passes.tokens == 1].time.mean())
charts.prose(
    "Squares are {measured}`measured` (bars from the fastest to the slowest of "
    f"{rounds}), dashed lines {{modelled}}`modelled`. The two series tell one story: it does not "
    "matter whether tokens stand behind each other or side by side. A pass over one token moves "
    f"all weights; a pass over 16 moves the same weights and took {fold:.1f} times as long for 16 "
    f"times the work. By the roofline the weights' way from memory hides up to about {knee} "
    "tokens on this machine. Decoding alone, at one token a pass, pays full price."
)

# %% tags=["hide-input"]
charts.table(
    pd.DataFrame(
        {
            "tokens": prefills.tokens,
            "time (ms)": prefills.time * 1e3,
            "roofline (ms)": prefills.model * 1e3,
            "tokens/s": prefills.tokens / prefills.time,
            "measured ÷ roofline": prefills.time / prefills.model,
        }
    ),
    caption=f"Prompts of n tokens through SmolLM2 in {dtype}",
    label={"time (ms)": "measured", "roofline (ms)": "modelled", "tokens/s": "measured"},
    formats={"time (ms)": ".0f", "roofline (ms)": ".0f", "tokens/s": ",.0f",
             "measured ÷ roofline": ".2f"},
)  # fmt: skip

# %% tags=["hide-input"]
ratio = (passes.time / passes.model).groupby(passes.phase)
charts.prose(
    "The roofline is a bound, not a forecast. Prefill took a median of "
    f"{ratio.median()['prefill']:.2f} times the bound and decode "
    f"{ratio.median()['decode']:.2f} times. What lies between: the bound counts each byte once and "
    "lets products of any shape run at the peak of large square ones, while a product with 4 or 8 "
    "rows reaches neither rate; and norms, RoPE, softmax and some hundreds of small operations "
    "started from Python take time that it does not know."
)

# %% [markdown]
# ## The cache grows
#
# Weights are shared by all sequences of a batch. The cache is not: each sequence brings its own,
# and it grows by a fixed number of bytes with every token, those of one key and one value for each
# key–value head and layer. Decoding reads all of it for every token.

# %% tags=["hide-input"]
NAMED = [name for name in model_names() if name not in ("gpt2", "running-gpt")] + ["gpt2"]


def cache_of(name, tokens=8):
    """A real cache, on a device that keeps shapes and types but no bytes."""
    return KVCache(ModelConfig.load(name), 1, tokens, device="meta", dtype=torch.bfloat16)


growth = pd.DataFrame(
    [
        {
            "model": name, "attention": c.attention.kind, "parameters": count_parameters(c),
            "allocated": cache_of(name).bytes_per_token, "counted": kv_bytes_per_token(c, 2),
        }
        for name in NAMED
        for c in [ModelConfig.load(name)]
    ]
)  # fmt: skip
live = KVCache(config, 3, 100, device, model.dtype)
assert (growth.allocated == growth.counted).all()
assert live.bytes == kv_cache_bytes(config, 3, 100, width)

SHOWN = ["gpt2", "smollm2-135m", "llama-2-7b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-405b",
         "gpt3-175b", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"]  # fmt: skip
few = growth[growth.model.isin(SHOWN)].sort_values("counted", ascending=False)
few = few.assign(name=few.model + "  " + few.attention, shown=few.counted.map(format_bytes))
base = alt.Chart(few).encode(
    x=alt.X("counted:Q", title="cache bytes for each token, bfloat16 (logarithmic)")
    .scale(type="log", domainMin=1e4, domainMax=1e7)
    .axis(format="~s"),
    y=alt.Y("name:N", sort=None, title=None),
)
stems = base.mark_rule(opacity=0.35).encode(x2=alt.datum(1e4))
dots = base.mark_point(size=80).encode(tooltip=["model:N", "attention:N", "shown:N"])
(stems + dots + base.mark_text(align="left", dx=9).encode(text="shown:N")).properties(
    height=alt.Step(25),
    title="Fewer key–value heads, or a latent vector, buy longer conversations",
    description="Bytes of key-value cache for each token, for eleven models in bfloat16: "
    + "; ".join(f"{row.model} ({row.attention}) {row.shown}" for row in few.itertuples()),
)

# %% tags=["hide-input"]
published = read_reference("12_inference")
UNITS = {"GiB": 2**30, "GB": 1e9, "kB": 1e3}
printed = published[(published.quantity == "kv_bytes") & (published.model != "llama-2-13b")].copy()
is_int8 = printed.conditions.str.contains("int8")
printed["counted"] = [
    kv_cache_bytes(ModelConfig.load(row.model), 1, row.context, 1 if small else 2)
    for row, small in zip(printed.itertuples(), is_int8, strict=True)
]
printed["printed"] = printed.value * printed.unit.map(UNITS)
printed["error"] = printed.counted / printed.printed - 1
charts.table(
    printed.assign(source=printed.source.str.split(",").str[0].str[:40])[
        ["model", "context", "conditions", "counted", "printed", "error", "source"]
    ],
    caption="Cache bytes, counted and published",
    label={"counted": "modelled", "printed": "published"},
    formats={"counted": format_bytes, "printed": format_bytes, "error": "+.1%"},
)

# %% tags=["hide-input"]
smollm_cross = weight_bytes // kv_bytes_per_token(config, width)
llama_cross = 2 * count_parameters(llama) // kv_bytes_per_token(llama, 2)
charts.prose(
    f"All {len(growth)} named models were given a real cache, and each took exactly the bytes "
    f"counted. SmolLM2's cache grows by {{measured}}`{format_bytes(live.bytes_per_token)}` a "
    f"token; {smollm_cross:,} tokens of it, over all sequences, weigh as much as the model. For "
    f"Llama 3.1 8B in bfloat16 it is {llama_cross:,} tokens, {llama_cross / 8192:.0f} "
    "conversations of 8,192. From there on a step of decoding reads more of its users' texts than "
    "of its own weights."
)

# %% [markdown]
# The errors in the table are roundings of what was printed. Two notes on units: the gigabytes of
# two sources are GiB by the count, and those of one are gigabytes that it calls GiB.
#
# ### Batch and context, measured
#
# Here is the step of decoding for batches from 1 to 64 and for contexts as long as the memory set
# aside for this page allows.

# %% tags=["hide-input"]
decodes["sequence"] = decodes.context.map("{:,} tokens each".format)
decodes["cache"] = [
    kv_cache_bytes(config, b, c, width) for b, c in zip(decodes.batch, decodes.context, strict=True)
]
fine = pd.DataFrame(
    [
        {"batch": b, "context": c, "sequence": f"{c:,} tokens each", "model": least_s(b, 1, c)}
        for c in contexts
        for b in sorted({*batches, *np.geomspace(1, max(batches), 25).astype(int).tolist()})
        if fits(b, c)
    ]
)
shades = alt.Color("sequence:N", sort=None, legend=None).scale(
    domain=[f"{c:,} tokens each" for c in contexts],
    range=[PALETTE["sky"], PALETTE["blue"], PALETTE["violet"]],
)
x = alt.X("batch:Q", title="sequences in the batch").scale(type="log", base=2)
y = alt.Y("time:Q", title="seconds for a step").scale(type="log", nice=False)
base = alt.Chart(decodes)
spread = base.mark_rule(opacity=0.5).encode(x, alt.Y("fastest:Q"), alt.Y2("slowest:Q"), shades)
points = base.mark_point(shape="square").encode(
    x, y, shades,
    tooltip=["batch:Q", "context:Q", alt.Tooltip("time:Q", format=".3g"),
             alt.Tooltip("model:Q", format=".3g")],
)  # fmt: skip
floor = alt.Chart(fine).mark_line(strokeDash=[5, 3]).encode(x, alt.Y("model:Q"), shades)
ends = decodes.loc[decodes.groupby("context").batch.idxmax()]
names = (
    alt.Chart(ends).mark_text(align="right", dx=-10, dy=-8).encode(x, y, shades, text="sequence:N")
)
(floor + spread + points + names).properties(
    height=300,
    title="Weights are shared by a batch, caches are not",
    description="Time of a decode step against the batch, for three lengths of context: measured "
    "points, dashed roofline. Short contexts start flat; long ones rise sooner, because every "
    "sequence brings its own cache.",
)

# %% tags=["hide-input"]
wide = decodes.assign(
    **{
        "time (ms)": decodes.time * 1e3,
        "roofline (ms)": decodes.model * 1e3,
        "measured ÷ roofline": decodes.time / decodes.model,
    }
)[["context", "batch", "cache", "time (ms)", "roofline (ms)", "measured ÷ roofline"]]
charts.table(
    wide,
    caption="A decode step of SmolLM2 by context and batch",
    label={"cache": "modelled", "time (ms)": "measured", "roofline (ms)": "modelled"},
    formats={"cache": format_bytes, "time (ms)": ".0f", "roofline (ms)": ".0f",
             "measured ÷ roofline": ".2f"},
)  # fmt: skip

# %% [markdown]
# ## What a batch buys, and who pays
#
# A larger batch gives more tokens a second in all, and fewer to each. The same measurements, drawn
# as an operator reads them: what one user waits for a token against what the machine earns.

# %% tags=["hide-input"]
for frame, value in ((decodes, "time"), (fine, "model")):
    frame["tokens/s"] = frame.batch / frame[value]
x = (
    alt.X("time:Q", title="time per output token, seconds")
    .scale(type="log", nice=False)
    .axis(values=[m * 10.0**e for e in range(-4, 2) for m in (1, 2, 5)])
)
y = alt.Y("tokens/s:Q", title="tokens per second, all sequences").scale(type="log", nice=False)
base = alt.Chart(decodes).encode(x, y, shades)
order = alt.Order("batch:Q")
lines = base.mark_line(opacity=0.6).encode(order=order)
dots = base.mark_point(shape="square").encode(
    tooltip=["batch:Q", "context:Q", alt.Tooltip("tokens/s:Q", format=".0f")]
)
batch_names = base.mark_text(dy=-11).encode(text="batch:Q")
floor = (
    alt.Chart(fine).mark_line(strokeDash=[5, 3]).encode(alt.X("model:Q"), y, shades, order=order)
)
last = alt.Chart(ends.assign(**{"tokens/s": ends.batch / ends.time}))
names = last.mark_text(align="right", dx=-10, dy=12).encode(x, y, shades, text="sequence:N")
(floor + lines + dots + batch_names + names).properties(
    height=320,
    title="Throughput is bought with everybody's latency",
    description="Tokens per second of the whole batch against the time between two tokens of one "
    "sequence, for three lengths of context; each point is a batch size. Curves rise steeply at "
    "small batches and bend to the right; longer contexts bend sooner.",
)

# %% tags=["hide-input"]
short = decodes[decodes.context == contexts[0]].set_index("batch")
first, best = short.iloc[0], short.loc[short["tokens/s"].idxmax()]
charts.prose(
    f"Labels are batch sizes. With {contexts[0]} tokens behind each sequence, "
    f"{best.name} sequences together got {{measured}}`{best['tokens/s']:,.0f} tokens/s`, "
    f"{best['tokens/s'] / first['tokens/s']:.0f} times what one got alone, and each of them waited "
    f"{best.time / first.time:.1f} times as long for a token."
)

# %% [markdown]
# On accelerators the bend comes later, since they have more arithmetic for each byte. Choose a
# model and a machine; each point is a batch, drawn while weights and cache fit its memory.

# %% tags=["hide-input"]
MODELS = ["llama-3.1-8b", "llama-2-7b", "qwen2.5-7b", "mistral-7b"]
MACHINES = ["a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "tpu-v5p", "mi300x"]
grid = []
for name in MODELS:
    of = ModelConfig.load(name)
    for machine in map(read_accelerator, MACHINES):
        where = Roofline(machine["title"], machine["peak_flops"], machine["memory_Bps"])
        for context in (1024, 4096, 16384):
            for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
                if context >= of.positions:
                    continue
                need = 2 * count_parameters(of) + kv_cache_bytes(of, batch, context + 1, 2)
                if need > machine["memory_bytes"]:
                    continue
                step = least_s(batch, 1, context, where, of, "bfloat16")
                grid.append(
                    {"model": name, "machine": where.name, "batch": batch, "ms": step * 1e3,
                     "rate": batch / step, "context": f"{context:,} tokens each"}
                )  # fmt: skip
grid = pd.DataFrame(grid)
chosen_model, chosen_machine = (
    alt.param(name=name, value=value, bind=alt.binding_select(options=options, name=f"{label} "))
    for name, label, value, options in (
        ("chosen_model", "model", MODELS[0], MODELS),
        ("chosen_machine", "machine", h100.name, grid.machine.unique().tolist()),
    )
)
contexts_shown = alt.Color("context:N", sort=None, title=None).scale(
    domain=[f"{c:,} tokens each" for c in (1024, 4096, 16384)],
    range=[PALETTE["sky"], PALETTE["blue"], PALETTE["violet"]],
)
base = (
    alt.Chart(grid)
    .transform_filter(alt.datum.model == chosen_model)
    .transform_filter(alt.datum.machine == chosen_machine)
    .encode(
        alt.X("ms:Q", title="least time per output token, ms")
        .scale(type="log", domain=[1, 100])
        .axis(values=[1, 2, 5, 10, 20, 50, 100]),
        alt.Y("rate:Q", title="tokens per second, all sequences")
        .scale(type="log", domain=[30, 100_000])
        .axis(format="~s"),
        contexts_shown,
        order="batch:Q",
    )
)
dots = base.mark_point().encode(
    tooltip=["batch:Q", alt.Tooltip("ms:Q", format=".1f"), alt.Tooltip("rate:Q", format=",.0f")]
)
(base.mark_line() + dots + base.mark_text(dy=-11).encode(text="batch:Q")).add_params(
    chosen_model, chosen_machine
).properties(
    height=320,
    title="The bound of a real accelerator, batch by batch",
    description="For a chosen model and accelerator: the roofline's tokens per second against its "
    "time per output token, for batches of 1 to 256 and three lengths of context. At first "
    "throughput rises at the same time per token; longer contexts bend earlier and end earlier, "
    "because their caches fill the memory.",
)

# %% tags=["hide-input"]
one = grid[grid.model.eq("llama-3.1-8b") & grid.machine.eq(h100.name)]
largest = one.loc[one.groupby("context", sort=False).batch.idxmax()]
charts.table(
    largest[["context", "batch", "ms", "rate"]].rename(
        columns={"batch": "largest batch drawn", "ms": "TPOT (ms)", "rate": "tokens/s"}
    ),
    caption="Llama 3.1 8B in bfloat16 on one H100: the last point of each curve",
    label="modelled",
    formats={"TPOT (ms)": ".1f", "tokens/s": ",.0f"},
)

# %% [markdown]
# ### Beside published measurements
#
# The Splitwise authors timed Llama 2 70B on eight A100s and on eight H100s, which share the model
# by tensor parallelism {cite}`patel2024splitwise`. Eight GPUs have eight times the
# arithmetic and the bandwidth; the bound divides by eight and knows nothing of what they have to
# tell each other.

# %% tags=["hide-input"]
splitwise = read_reference("12c_splitwise_medians")
splitwise = splitwise[(splitwise.tensor_parallel == 8) & (splitwise.new_tokens == 128)]
seventy = ModelConfig.load("llama-2-70b")
MACHINE_OF = {"a100-80gb": "a100-sxm", "h100-80gb": "h100-sxm"}
lines = []
for row in splitwise.itertuples():
    # float16 runs at the rate of bfloat16 on both.
    eight = Roofline.of(MACHINE_OF[row.hardware])
    if row.prompt_tokens < seventy.positions:
        past = row.prompt_tokens + row.new_tokens // 2
        read = least_s(row.batch, row.prompt_tokens, 0, eight, seventy, "bfloat16") / 8
        step = least_s(row.batch, 1, past, eight, seventy, "bfloat16") / 8
        lines.append(
            {"machine": f"8 × {eight.name}", "prompt": row.prompt_tokens, "batch": row.batch,
             "prefill": row.prompt_time_ms, "prefill bound": read * 1e3,
             "decode": row.token_time_ms, "decode bound": step * 1e3}
        )  # fmt: skip
big = pd.DataFrame(lines)
big["prefill ÷ bound"] = big.prefill / big["prefill bound"]
big["decode ÷ bound"] = big.decode / big["decode bound"]
charts.table(
    big[big.batch.isin([1, 8, 64]) & big.prompt.isin([512, 2048])],
    caption="Llama 2 70B, tensor parallel over 8 GPUs: published times and the roofline, in ms",
    label={"prefill": "published", "prefill bound": "modelled", "decode": "published",
           "decode bound": "modelled"},
    formats=dict.fromkeys(["prefill", "prefill bound", "decode", "decode bound"], ".1f")
    | dict.fromkeys(["prefill ÷ bound", "decode ÷ bound"], ".1f"),
)  # fmt: skip

# %% tags=["hide-input"]
medians = big[["prefill ÷ bound", "decode ÷ bound"]].median()
at = big.set_index(["machine", "prompt", "batch"])
old, new = big.machine.unique()  # A100, H100
one_old, one_new, eight_new = at.loc[(old, 512, 1)], at.loc[(new, 512, 1)], at.loc[(new, 512, 8)]
faster_memory = h100.bandwidth_Bps / Roofline.of("a100-sxm").bandwidth_Bps
charts.prose(
    "The shape is the model's. On the H100s a step for eight sequences took "
    f"{eight_new.decode / one_new.decode:.2f} times a step for one, and their prefill "
    f"{eight_new.prefill / one_new.prefill:.1f} times; a token came "
    f"{one_old.decode / one_new.decode:.1f} times as fast as on the A100s, whose memory is slower "
    f"by a factor of {faster_memory:.1f}. The level is not: prefill took a median of "
    f"{medians.iloc[0]:.1f} times the bound, decode {medians.iloc[1]:.1f} times. Part of that is "
    "software, which starts thousands of kernels for each token. Part of it is the subject of "
    f"this book: {2 * seventy.layers} times in each pass, eight GPUs stop to add up what they "
    "have, and the bound knows nothing of it."
)

# %% tags=["hide-input"]
table = published[published.model == "llama-2-13b"].pivot_table("value", "batch", "quantity")
thirteen, tpu = ModelConfig.load("llama-2-13b"), read_accelerator("tpu-v5e")
tpu_lines = []
for batch, row in table.iterrows():
    cache = batch * 8192 * kv_bytes_per_token(thirteen, 2)  # beyond its 4,096 positions
    bytes_read = 2 * count_parameters(thirteen) + cache
    tpu_lines.append(
        {"batch": int(batch), "bytes counted": bytes_read, "bytes printed": row.bytes_read * 1e9,
         "step counted": bytes_read / (8 * tpu["memory_Bps"]), "step printed": row.step_time / 1e3}
    )  # fmt: skip
tpu_table = pd.DataFrame(tpu_lines)
tpu_table["error"] = tpu_table["step counted"] / tpu_table["step printed"] - 1
charts.table(
    tpu_table,
    caption="Llama 2 13B with 8,192 tokens each on 8 TPU v5e: our count and the Scaling Book's",
    label={"bytes counted": "modelled", "step counted": "modelled", "bytes printed": "published",
           "step printed": "published"},
    formats={"bytes counted": format_bytes, "bytes printed": format_bytes,
             "step counted": format_time, "step printed": format_time, "error": "+.1%"},
)  # fmt: skip

# %% [markdown]
# The last table compares two models, not a model and a machine: the Scaling Book divides bytes by
# bandwidth as we do {cite}`austin2025scaling`. It shows what a cache without shared heads does: at
# a batch of 240 the weights are 2 % of what is read, and throughput has stopped growing.
#
# ## A queue
#
# Requests do not come in batches. They come one by one, and they end one by one: one wants four
# tokens, the next thirty. A batch that is filled and then run to its end leaves rows empty while
# others finish. With {term}`continuous batching`, requests join and leave between two tokens
# {cite}`yu2022orca`. The core of it is short:
#
# ```python
# while waiting or batch.rows:
#     while waiting and len(new) < batch.free and arrived(waiting[0]):
#         new.append(waiting.popleft())  # first come, first served
#     if new:
#         batch.join(new)  # one prefill, the first token of each
#     if batch.rows:
#         batch.step()     # one token for every row; finished rows leave
# ```
#
# Here is a queue served for real under both policies. Requests have prompts of 8 to 64 tokens and
# want 4 to 32; they arrive at random, a little faster than the model can follow.

# %%
random = np.random.default_rng(seed)
step_s = float(short.time.loc[rows])  # a decode step of a full batch
lengths = random.integers(8, 65, queue_length)
wanted = random.integers(4, 33, queue_length)
arrivals = np.cumsum(random.exponential(3 * step_s, queue_length))
starts = random.integers(0, len(page) - 64, queue_length)
queue = [
    Request(page[a : a + n], int(w), arrival_s=float(t - arrivals[0]))
    for a, n, w, t in zip(starts, lengths, wanted, arrivals, strict=True)
]
runs = {}
for policy in ("continuous", "static"):
    runs[policy] = serve(model, queue, rows, policy=policy)

# %% tags=["hide-input"]
spans = []
for policy, (done, _) in runs.items():
    for number, got in enumerate(done, 1):
        first = got.times_s[0]
        for what, begin, stop in (
            ("waiting", got.request.arrival_s, got.joined_s),
            ("prefill", got.joined_s, first),
            ("decode", first, got.times_s[-1]),
        ):
            spans.append(
                {"policy": policy, "request": f"{number:2d}: {len(got.ids)} tokens", "what": what,
                 "from": begin, "to": stop, "seconds": stop - begin,
                 "thick": 3 if what == "waiting" else 13}
            )  # fmt: skip
spans = pd.DataFrame(spans)
horizon = spans.to.max()
states = alt.Color("what:N", sort=None, title=None).scale(
    domain=["waiting", "prefill", "decode"],
    range=[COLOURS["wait"], COLOURS["prefill"], COLOURS["decode"]],
)


def time_line(policy, title):
    """One bar a request; what waits is thinner, so that colour is not alone."""
    base = alt.Chart(spans[spans.policy == policy]).encode(
        x=alt.X("from:Q", title="seconds since the first request").scale(domain=[0, horizon]),
        x2="to:Q",
        y=alt.Y("request:N", sort=None, title=None),
        color=states,
        size=alt.Size("thick:Q", legend=None, scale=None),
        tooltip=["request:N", "what:N", alt.Tooltip("seconds:Q", format=".2f")],
    )
    done = runs[policy][0]
    return base.mark_bar().properties(
        height=alt.Step(17),
        title=title,
        description=f"Time line of {queue_length} requests under {policy} batching with {rows} "
        f"rows: waiting, prefill, decode. The last ended after {horizon_of(done):.1f} seconds; the "
        f"longest wait for a row was {max(c.joined_s - c.request.arrival_s for c in done):.1f} "
        "seconds.",
    )


def horizon_of(done):
    return max(c.times_s[-1] for c in done)


time_line("continuous", "Continuous: a row is taken again as soon as it is free")

# %% tags=["hide-input"]
time_line("static", "Static: everybody waits for the longest of the batch before")

# %% tags=["hide-input"]
lines = []
for policy, (done, work) in runs.items():
    steps = [p for p in work if p.kind == "decode"]
    lines.append(
        {
            "policy": policy,
            "tokens/s": sum(len(c.ids) for c in done) / horizon_of(done),
            "median TTFT": statistics.median(c.ttft_s for c in done),
            "worst TTFT": max(c.ttft_s for c in done),
            "median TPOT": statistics.median(c.tpot_s for c in done),
            "rows in use": statistics.mean(len(p.requests) for p in steps) / rows,
            "decode steps": len(steps),
        }
    )
served = pd.DataFrame(lines)
same = sum(a.ids == b.ids for a, b in zip(runs["continuous"][0], runs["static"][0], strict=True))
shortest = min(range(queue_length), key=lambda i: wanted[i])
alone_ids = generate(model, [queue[shortest].prompt], int(wanted[shortest]))[0]
as_alone = alone_ids == list(runs["continuous"][0][shortest].ids)
charts.table(
    served,
    caption=f"{queue_length} requests, {rows} rows, {sum(wanted)} tokens",
    label="measured",
    formats={"median TTFT": format_time, "worst TTFT": format_time, "median TPOT": format_time,
             "rows in use": ".0%", "tokens/s": ".1f"},
)  # fmt: skip

# %% tags=["hide-input"]
a, b = (served.set_index("policy").loc[p] for p in ("continuous", "static"))
charts.prose(
    f"Continuous batching took {a['decode steps']:.0f} decode steps where static batches took "
    f"{b['decode steps']:.0f}, and kept {a['rows in use']:.0%} of the rows busy instead of "
    f"{b['rows in use']:.0%}. The wait until the first token fell from a median of "
    f"{{measured}}`{format_time(b['median TTFT'])}` to "
    f"{{measured}}`{format_time(a['median TTFT'])}`. It has a price that the table shows too: "
    "whoever is being served waits while a newcomer's prompt is read. Nobody's text changes: "
    f"{same} of {queue_length} answers are the same ids under both policies, and the shortest "
    + ("is what it is when it runs alone." if as_alone else "differs by rounding from a run alone.")
)

# %% [markdown]
# ## Guess, then check
#
# A pass over a few tokens costs little more than a pass over one. So let something cheap guess the
# next $k$ tokens, and let the model read all guesses in one pass: its logits at each place say
# whether it would have written the same. That is {term}`speculative decoding`
# {cite}`leviathan2023fast,chen2023accelerating`. A guess $x$ drawn from the draft's distribution
# $q$ is accepted with probability
#
# $$ \min\left(1, \frac{p(x)}{q(x)}\right), $$
#
# where $p$ is the model's own; the first refused guess is replaced by a draw from
# $\max(0, p - q)$, scaled to sum 1. Then each token is distributed by $p$, exactly, however bad the
# draft is. If each guess is accepted with probability $\alpha$, a pass yields on average
#
# $$ 1 + \alpha + \dots + \alpha^k = \frac{1 - \alpha^{k+1}}{1 - \alpha} $$
#
# tokens. First the formula alone, where it can be counted well: a small random model as target,
# and as drafts the same model at other temperatures.

# %%
torch.manual_seed(seed)
threads = torch.get_num_threads()
torch.set_num_threads(1)  # products this small only lose by being shared
toy = Decoder(ModelConfig.load("running-gpt")).eval()
toy.reset_parameters(std=0.2)
toy_runs = {}
for heat in (0.9, 0.75, 0.5):
    draft = ModelDraft(toy, Sampler(heat))
    for k in (1, 2, 4, 8):
        toy_runs[heat, k] = [
            speculate(toy, draft, [n], 60, Sampler(1.0, seed=n), (), k) for n in range(4)
        ]
torch.set_num_threads(threads)

# %% tags=["hide-input"]
counted, curve = [], []
for (heat, k), many in toy_runs.items():
    # The end of a text cuts the guesses short: count the passes that had all of them.
    steps = [s for run in many for s in run.steps if s.proposed == k]
    gained = np.array([s.accepted + 1 for s in steps])
    counted.append(
        {"heat": heat, "k": k, "tokens": gained.mean(), "passes": len(steps),
         "error": gained.std() / len(steps) ** 0.5,
         "judged": sum(len(s.chances) for s in steps), "taken": sum(s.accepted for s in steps)}
    )  # fmt: skip
counted = pd.DataFrame(counted)
sums = counted.groupby("heat")[["taken", "judged"]].sum()
alphas = (sums.taken / sums.judged).to_dict()
counted["alpha"] = counted.heat.map(alphas)
counted["draft"] = counted.alpha.map("α = {:.2f}".format)
counted["model"] = [expected_tokens(a, k) for a, k in zip(counted.alpha, counted.k, strict=True)]
curve = pd.DataFrame(
    [
        {"draft": f"α = {alpha:.2f}", "k": k, "tokens": expected_tokens(alpha, k)}
        for alpha in alphas.values()
        for k in range(9)
    ]
)
counted["low"], counted["high"] = (counted.tokens + sign * 2 * counted.error for sign in (-1, 1))
x = alt.X("k:Q", title="guesses before each pass (k)").scale(domain=[0, 9.5]).axis(tickCount=9)
y = alt.Y("tokens:Q", title="tokens gained by a pass")
drafts = alt.Color("draft:N", legend=None)
lines = alt.Chart(curve).mark_line(strokeDash=[5, 3]).encode(x, y, drafts)
points = (
    alt.Chart(counted)
    .mark_point(shape="square")
    .encode(x, y, drafts, tooltip=["draft:N", "k:Q", alt.Tooltip("tokens:Q", format=".2f"),
                                   "passes:Q"])
)  # fmt: skip
bars = alt.Chart(counted).mark_rule().encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), drafts)
names = (
    alt.Chart(curve[curve.k == 8])
    .mark_text(align="left", dx=8)
    .encode(x, y, drafts, text="draft:N")
)
(lines + bars + points + names).properties(
    height=280,
    title="A good draft pays for long guesses, a poor one for short",
    description="Tokens gained by a pass of the target against the number of guesses, for three "
    "drafts: measured points with two standard errors on the dashed curves of the formula.",
)

# %% tags=["hide-input"]
charts.table(
    counted[["draft", "k", "passes", "tokens", "model"]].assign(
        off=(counted.tokens - counted.model) / counted.error
    ),
    caption="Tokens gained by a pass: counted, and by the formula with the counted α",
    label={"tokens": "measured", "model": "modelled", "passes": "measured"},
    formats={"tokens": ".2f", "model": ".2f", "off": "+.1f"},
)

# %% [markdown]
# The column *off* is the distance in standard errors. The formula takes every guess to be accepted
# alike, whatever the text. Here that nearly holds.
#
# On real text it does not. The cheapest draft is no model at all: look where the last few tokens
# stood before, and guess what followed them. It is right where a text repeats itself and wrong
# elsewhere. Three prompts for SmolLM2, and the time that the whole takes:


# %%
def ask(words):
    text = f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(text, allowed_special="all")


TASKS = {
    "repeat it": ask(f"Repeat this sentence three times: {sentence}"),
    "code": tokenizer.encode(
        "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n"
    ),
    "explain it": ask(f"What does this sentence mean? {sentence}"),
}
k = 4
trials = {}
for name, task in TASKS.items():
    start = time.perf_counter()
    plain = generate(model, [task], 2 * reply_tokens)[0]
    middle = time.perf_counter()
    guessed = speculate(model, LookupDraft(), task, 2 * reply_tokens, proposals=k)
    trials[name] = (plain, guessed, middle - start, time.perf_counter() - middle)

# %% tags=["hide-input"]
pass_s = prefills.set_index("tokens").time
wider = float(np.interp(k + 1, pass_s.index, pass_s) / pass_s[1])
lines = []
for name, (plain, guessed, plain_s, guessed_s) in trials.items():
    if dtype == "float32":
        assert list(guessed.ids) == plain
    offered = [s.proposed for s in guessed.steps]
    alpha = guessed.acceptance
    # Passes with fewer guesses gain less and cost less; one without any is a plain step.
    gain = statistics.mean(expected_tokens(alpha, n) for n in offered)
    cost = statistics.mean(float(np.interp(n + 1, pass_s.index, pass_s)) for n in offered)
    lines.append(
        {
            "task": name,
            "guesses a pass": statistics.mean(offered),
            "α": alpha,
            "tokens a pass": guessed.tokens_per_pass,
            "by the formula": gain,
            "gain in time": plain_s / guessed_s,
            "expected gain": gain * float(pass_s[1]) / cost,
        }
    )
tried = pd.DataFrame(lines)
charts.table(
    tried,
    caption=f"Speculative decoding of SmolLM2 by look-up, up to {k} guesses, greedy",
    label={"guesses a pass": "measured", "α": "measured", "tokens a pass": "measured",
           "by the formula": "modelled", "gain in time": "measured", "expected gain": "modelled"},
    formats={"guesses a pass": ".1f", "α": ".2f", "tokens a pass": ".2f",
             "by the formula": ".2f", "gain in time": ".2f", "expected gain": ".2f"},
)  # fmt: skip

# %% tags=["hide-input"]
top = tried.loc[tried["gain in time"].idxmax()]
off = (tried["by the formula"] / tried["tokens a pass"] - 1).abs().max()
charts.prose(
    f"The text is the same token by token each time. *{cap(top.task)}* gained most: "
    f"{{measured}}`{top['gain in time']:.2f}` times as fast as plain decoding. A pass over "
    f"{k + 1} tokens took {wider:.2f} times a pass over one, which is the price of a full guess. "
    f"The formula is off by up to {off:.0%}: acceptance comes in runs. A copied line is guessed "
    "right from end to end, a new thought wrong at once, and a mean α describes neither."
)

# %% [markdown]
# ## Where the model stops being true
#
# - The roofline takes each byte once and each product at the peak of a large one. Small products
#   run slower, above all on a CPU with 2 to 8 rows; starting a small operation takes time that is
#   neither arithmetic nor memory. On the GPUs of the table above that time is most of a step.
# - A cache row here owns its capacity from the start. Servers cut caches into pages, or they would
#   waste most of them {cite}`kwon2023efficient`; long prompts are cut too, so that nobody's next
#   token waits for somebody's page of Shakespeare.
# - Batching changes the order of sums. In float32 that hardly ever changes a token, in bfloat16 it
#   sometimes does: the same prompt may get another answer on a busy server.
# - Nothing here leaves the machine. The next sum is a first look at what does.
#
# ## What would cross a network
#
# Cut a model in two between layers, and each decoded token sends one vector across the cut, in
# each direction nothing more. Share each layer's matrices among GPUs, and all of them add up a
# vector twice in every layer. Read the prompt on one machine and write on another, and the whole
# cache of the prompt has to move.

# %% tags=["hide-input"]
crossing = []
for name in ("smollm2-135m", "llama-3.1-8b", "llama-3.1-405b", "deepseek-v3"):
    of = ModelConfig.load(name)
    vector = 2 * of.hidden
    crossing.append(
        {
            "model": name,
            "one cut between layers": vector,
            "all matrices shared": 2 * of.layers * vector,
            "cache of a prompt token": kv_bytes_per_token(of, 2),
            "cache of 8,192 tokens": 8192 * kv_bytes_per_token(of, 2),
        }
    )
crossing = pd.DataFrame(crossing)
charts.table(
    crossing,
    caption="Bytes for each token, bfloat16: what a split model has to pass on",
    label="modelled",
    formats=dict.fromkeys(crossing.columns[1:], format_bytes),
)

# %% tags=["hide-input"]
four = crossing.set_index("model").loc["llama-3.1-405b"]
letters = len(sentence.encode()) / len(prompt)
charts.prose(
    f"A token of the running sentence is {letters:.1f} bytes of text. Decoded by Llama 3.1 405B "
    "on GPUs that share its matrices, it is "
    f"{{modelled}}`{format_bytes(four['all matrices shared'])}` of vectors to be summed, before "
    "any algorithm multiplies that by the number of ranks: "
    f"{four['all matrices shared'] / letters:,.0f} bytes between GPUs for each byte that the "
    "reader gets."
)

# %% [markdown]
# ## Exercises
#
# ```{exercise}
# :label: inference-crossover
# From how many sequences of 8,192 tokens on does a decode step of Llama 3.1 8B in bfloat16 read
# more cache than weights? What if it had as many key–value heads as query heads?
# ```
#
# ```{solution} inference-crossover
# :class: dropdown
# Weights are 16.06 GB, a token of cache 131,072 B, a sequence 1.07 GB: from 15 sequences on. With
# 32 key–value heads instead of 8 a sequence takes 4.29 GB: from 4 on. Grouped-query attention buys
# a batch four times as large.
# ```
#
# ```{exercise}
# :label: inference-floor
# What is the least time per output token of Llama 3.1 405B on 8 H200s for one sequence with a short
# context, in bfloat16 and in 8 bits? Why is the time that you would measure longer?
# ```
#
# ```{solution} inference-floor
# :class: dropdown
# 811.7 GB over 8 × 4.8 TB/s is 21.1 ms, half of that in 8 bits. (The weights in bfloat16 leave
# 400 GB of the 1.2 TB for caches.) The pass has 252 sums over the eight GPUs, one after the other;
# at 10 µs each they add 2.5 ms, and nothing can hide them, since the next product needs the sum.
# ```
#
# ```{exercise}
# :label: inference-guesses
# A draft takes 5 % of the target's time for a pass and 70 % of its guesses are accepted. How many
# guesses are best, if a pass over $k + 1$ tokens costs as much as over one? Use
# `expected_speedup`.
# ```
#
# ```{solution} inference-guesses
# :class: dropdown
# `max(range(1, 20), key=lambda k: expected_speedup(0.7, k, 0.05))` gives 6, with a gain of 2.35;
# 5 is as good to five digits, and from 3 to 9 it stays above 2.2. With 40 % accepted the best is
# 2 guesses and a gain of 1.42.
# ```
#
# ```{exercise}
# :label: inference-rows
# Run this chapter with `rows` = 1 and 8. Predict first what happens to throughput, TTFT and TPOT.
# ```
#
# ```{solution} inference-rows
# :class: dropdown
# One row serves one request after the other: both policies are the same, TPOT is the shortest
# possible, and the queue grows, so TTFT is mostly waiting. Eight rows: hardly anybody waits for a
# row, TTFT falls to little more than a prefill, throughput rises, and TPOT is longer, by the ratio
# that the throughput–latency curve shows between batches of 4 and 8.
# ```
#
# ## Where the token goes next
#
# On one machine the token is now written. But a model that does not fit one machine, or is to
# learn from more text than one machine can read, is spread over many; and from there on they have
# to talk. Part II cuts the model in all the ways that are in use, and counts what crosses each
# cut.
