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
# # Serving across sites
#
# ```{spine} communication flows packets bits
# ```
#
# A conversation was begun on another continent, and its {term}`key–value cache` is still there.
# Now its next question arrives here. **Should the cache come to the question, should the question
# go to the cache, or should everything be read again?** And once the answer is written: how many
# bits does the line to the reader carry for one token?

# %% tags=["parameters"]
near, far = "paris", "new york"
route = 1.3  # length of the fibre over the distance along the ground
cluster_name = "dgx-h100"
prompt_tokens = 8192
link_rates = [10e9, 100e9, 400e9]  # bit/s between sites
live_prompt, live_new, live_delay_s = 256, 8, 0.02  # the cache that really moves
live_rates = [250e6, 50e6]
answer_tokens, gap_s = 32, 0.02  # the streamed answer, and its pace when it is replayed
user_rate, user_delay_s = 100e6, 0.02
sites_of = ["paris", "new york", "singapore"]
count, request_rate, seed = 6000, 6.0, 0  # simulated requests, and how many come a second
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
import base64
import math
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, corpus, lab
from tokenlife.catalog import running
from tokenlife.charts import PALETTE
from tokenlife.costs.memory import kv_bytes_per_token
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration
from tokenlife.jobs.serving import Engine, across, routing
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig, weights
from tokenlife.units import format_bytes, format_time
from tokenlife.wan.link import Link, distance_km
from tokenlife.wire import events
from tokenlife.wire.decode import TcpFrames
from tokenlife.wire.framing import FRAME_CHECK, INTERFRAME_GAP, PREAMBLE, tcp_over_ethernet
from tokenlife.wire.stack import Stack

charts.setup()
page = lab.Page(
    "22_serving_across_sites", ["lab/meter.py", "lab/program.py", "wire/events.py"]
)  # fmt: skip
cluster, reached = Cluster.load(cluster_name), Calibration.fitted()
PLANS = {
    "gpt3-175b": Plan(tp=8),
    "llama-3.1-8b": Plan(tp=8),
    "llama-3.1-70b": Plan(tp=8),
    "llama-3.1-405b": Plan(tp=8, pp=2),
    "deepseek-v3": Plan(tp=8, pp=4, ep=8, etp=1, sequence_parallel=True),
}
engines = {}
for name, plan in PLANS.items():
    config = ModelConfig.load(name)
    config = replace(config, vocab=-(-config.vocab // plan.tp) * plan.tp)  # padded, to be split
    engines[name] = Engine(config, plan, cluster, reached)
link = Link(distance_km(near, far), link_rates[1], route)

# %% [markdown]
# ## On the back of an envelope

# %% tags=["hide-input"]
llama = engines["llama-3.1-70b"]
cache_size = float(across.cache_bytes(llama, prompt_tokens))
again_s = float(across.read_s(llama, prompt_tokens))
charts.prose(
    f"A prompt of {prompt_tokens:,} tokens leaves {{modelled}}`{format_bytes(cache_size)}` of "
    f"cache in Llama 3.1 70B. From {far.title()} to {near.title()} light takes {{modelled}}"
    f"`{format_time(link.delay_s)}`, and 100 Gbit/s carry the cache in {{modelled}}"
    f"`{format_time(cache_size * 8 / 100e9)}`. Eight H100s read the prompt again in {{modelled}}"
    f"`{format_time(again_s)}`. The three are close: a rule of thumb will not do.\n\n"
    "The answer is another matter. A token of a vocabulary of 128,256 holds "
    f"{math.log2(128256):.0f} bits; a chat service wraps it in a JSON object of some 200 bytes, "
    "and TCP, IP and Ethernet in 90 more. Expect over a hundred bits for each bit of token."
)

# %% [markdown]
# ## The mechanism
#
# Three ways lead to the first token. Each is a sum of a few terms: the delay $d$, the bytes $B$ of
# the cache over the rate $r$, and the time $t$ of a pass.
#
# - read again: $t(n)$
# - fetch: $2d + B(n)/r + t(1)$, as the answer needs the last token to be read in any case
# - ask there: $2d + t(1)$, and the answer's tokens stream back

# %%
for way, seconds in across.first_token_s(llama, prompt_tokens, link.delay_s, 100e9).items():
    print(f"{way:10} {1e3 * float(seconds):6.1f} ms")

# %% [markdown]
# ## Reading makes cache at a rate
#
# Delay apart, the cache must come faster than it could be made. So one number describes a model on
# a machine: the bytes of cache that it makes in a second of reading. A link above this rate is
# better than the GPUs; one below is worse. Grouped heads keep less than one pair for each head, a
# latent vector keeps less still, and more arithmetic for each token makes the rate lower too.

# %% tags=["hide-input"]
SHOWN = {"gpt3-175b": 2048}
made = pd.DataFrame(
    {
        "model": name,
        "attention": "MHA" if name.startswith("gpt3") else e.config.attention.kind.upper(),
        "GPUs": e.plan.tp * e.plan.pp,
        "prompt": n,
        "cache a token": kv_bytes_per_token(e.config),
        "read in": float(across.read_s(e, n)),
        "makes, Gbit/s": float(across.cache_bps(e, n)) / 1e9,
    }
    for name, e in engines.items()
    for n in [SHOWN.get(name, prompt_tokens)]
).sort_values("makes, Gbit/s", ascending=False, ignore_index=True)
charts.table(
    made,
    caption="Cache made while a prompt is read, on H100s, at what the training runs of chapter 12 "
    "reached of the peaks; 16 bits a number",
    label="modelled",
    formats={"cache a token": format_bytes, "read in": format_time, "makes, Gbit/s": ".0f"},
)

# %% tags=["hide-input"]
charts.prose(
    f"Between {made.model.iloc[0]} and {made.model.iloc[-1]} lies a factor of {{modelled}}"
    f"`{made['makes, Gbit/s'].iloc[0] / made['makes, Gbit/s'].iloc[-1]:.0f}`. At these lengths, "
    + "; ".join(
        f"over {rate / 1e9:.0f} Gbit/s the cache of "
        + (", ".join(made.model[made["makes, Gbit/s"] < rate / 1e9]) or "none of them")
        + " is worth fetching"
        for rate in link_rates
    )
    + ", the delay left aside."
)

# %% [markdown]
# ## Which way wins
#
# Choose a model, a distance and a rate. The far site is idle here, so asking there is a round trip
# and a single pass; the interesting pair is the two others.

# %% tags=["hide-input"]
DISTANCES = [100, 1000, 6000, 12000]
RATES = {"1 Gbit/s": 1e9, "10 Gbit/s": 1e10, "100 Gbit/s": 1e11, "400 Gbit/s": 4e11}
rows = []
for name, e in engines.items():
    lengths = np.unique(np.geomspace(64, min(e.config.positions, 131072), 12).astype(int))
    for km in DISTANCES:
        for label, rate in RATES.items():
            d = Link(km, rate, route).delay_s
            for way, seconds in across.first_token_s(e, lengths, d, rate).items():
                rows += [
                    {"model": name, "km": km, "rate": label, "prompt": int(n), "way": way, "s": s}
                    for n, s in zip(lengths, seconds.round(5).tolist(), strict=True)
                ]
explorer = pd.DataFrame(rows)
NAMES = {"recompute": "read again", "fetch": "fetch the cache", "ask": "ask there"}
explorer["way"] = explorer.way.map(NAMES)
menus = [
    alt.param(name=key, value=value, bind=alt.binding_select(options=options, name=text))
    for key, value, options, text in (
        ("model_", "llama-3.1-70b", list(engines), "model "),
        ("km_", 6000, DISTANCES, "distance, km "),
        ("rate_", "100 Gbit/s", list(RATES), "rate "),
    )
]
even = across.break_even(llama, Link(6000, 1e11, route).delay_s, 1e11, 131072)
base = (
    alt.Chart(explorer)
    .transform_filter("datum.model == model_ && datum.km == km_ && datum.rate == rate_")
    .encode(
        alt.X("prompt:Q", title="tokens of the prompt").scale(type="log"),
        alt.Y("s:Q", title="time to first token, s").scale(type="log"),
        alt.Color("way:N", title=None)
        .scale(
            domain=list(NAMES.values()),
            range=[PALETTE["blue"], PALETTE["orange"], PALETTE["violet"]],
        )
        .legend(orient="top"),
        alt.StrokeDash("way:N", title=None, legend=None),
        tooltip=["way:N", "prompt:Q", alt.Tooltip("s:Q", format=".3g")],
    )
)
base.mark_line(point=True).add_params(*menus).properties(
    title=f"Llama 70B over 6,000 km at 100 Gbit/s: from {even:,} tokens on a fetch beats reading"
    if even
    else "Llama 70B over 6,000 km at 100 Gbit/s: reading again beats a fetch",
    description="Time to first token against the length of the prompt, both logarithmic, for "
    "reading the prompt again, fetching its cache and asking the far site. Menus choose the model, "
    "the distance and the rate.",
    height=300,
)

# %% tags=["hide-input"]
broken = pd.DataFrame(
    {"model": name, "distance, km": km}
    | {
        f"{rate / 1e9:.0f} Gbit/s": across.break_even(
            e, Link(km, rate, route).delay_s, rate, min(e.config.positions, 131072)
        )
        or math.nan
        for rate in link_rates
    }
    for name, e in engines.items()
    for km in (1000, 6000)
)
charts.table(
    broken,
    caption="Tokens from which on fetching beats reading again; a dash where no prompt that the "
    "model takes is long enough",
    label="modelled",
    formats={f"{rate / 1e9:.0f} Gbit/s": lambda n: "–" if math.isnan(n) else f"{n:,.0f}"
             for rate in link_rates},
)  # fmt: skip

# %% tags=["hide-input"]
ways = {k: float(v) for k, v in
        across.first_token_s(llama, prompt_tokens, link.delay_s, 100e9).items()}  # fmt: skip
cold = float(
    across.first_token_s(llama, prompt_tokens, link.delay_s, 100e9, window_bytes=14480)["fetch"]
)
patience = min(ways["fetch"], ways["recompute"]) - ways["ask"]
charts.prose(
    "A mixture of experts comes out ahead early: a pass of a few dozen tokens visits nearly all "
    "experts and must read them, a pass of one token a few.\n\n"
    "Asking there wins wherever the far site is free: a question is a few kilobytes and its cache "
    f"gigabytes. For {prompt_tokens:,} tokens of Llama 70B over 100 Gbit/s the next best way is "
    f"{{modelled}}`{format_time(patience)}` slower, so as soon as the far site's queue is longer "
    "than that, something should move. A connection that is new changes the picture too: its "
    f"window must first grow to {format_bytes(link.bdp_bytes)}, and the fetch takes {{modelled}}"
    f"`{format_time(cold)}` instead of {{modelled}}`{format_time(ways['fetch'])}`. Links for "
    "caches are kept open and warm."
)

# %% [markdown]
# ## Sent while it is made
#
# Where one site reads prompts and another writes answers, the cache crosses for every request. But
# a layer's keys and values are final as soon as that layer has run. Sent at once
# {cite}`patel2024splitwise`, they travel while the next layers compute; only what the link did not
# manage meanwhile is left at the end. With $L$ layers that each compute for $c$ and send for $s$:
# $\max(Lc + s,\; c + Ls) + d$ instead of $Lc + Ls + d$.
#
# Here two ranks do so. Rank 0 reads a page of Shakespeare with SmolLM2, and sends the cache over a
# link with a rate and a delay; rank 1 writes on from it. This function is what they run.


# %%
def hand_over(here, prompt, new, ways):
    """Rank 0 reads a prompt and sends its cache, rank 1 goes on; what is there when, in seconds."""
    import time

    import torch
    import torch.distributed as dist
    from tokenlife.transformer import weights
    from tokenlife.transformer.cache import KVCache
    from tokenlife.transformer.generate import generate

    torch.set_num_threads(1)
    model, ids = weights.smollm2(), torch.tensor([prompt])
    config, n = model.config, len(prompt)
    shape = (config.layers, 2, config.attention.kv_heads, n, config.attention.head_dim)

    @torch.inference_mode()
    def read(cache, made):
        context = model.context(ids, cache=cache)
        x = model.embed(ids, context.positions)
        for layer, block in enumerate(model.blocks):
            x = block(x, context)
            made(layer)
        cache.lengths += n
        return int(model.head(x[:, -1])[0].argmax())

    @torch.inference_mode()
    def write(cache, last):
        while True:
            last = int(model(torch.tensor([[last]]), cache=cache)[0, -1].argmax())
            yield last

    read(KVCache(config, 1, n), lambda layer: None)  # warm up
    found = []
    for way in ways:
        cache, first = KVCache(config, 1, n + new), torch.empty(1, dtype=torch.int64)
        layers, moments, posted = torch.empty(shape), [], []
        with here.counted() as sent:
            here.together(0.3)
            start = time.monotonic()
            if here.rank == 0:

                def made(layer, way=way, cache=cache, layers=layers, moments=moments, start=start,
                         posted=posted):  # fmt: skip
                    moments.append(time.monotonic() - start)
                    layers[layer, 0] = cache.keys[layer, 0, :, :n]
                    layers[layer, 1] = cache.values[layer, 0, :, :n]  # noqa: PD011
                    if way == "by layer":
                        posted.append(dist.isend(layers[layer], 1))

                first[0] = read(cache, made)
                moments.append(time.monotonic() - start)
                posted.append(dist.isend(first, 1))
                if way != "by layer":
                    posted.append(dist.isend(layers, 1))
                for one in posted:
                    one.wait()
            else:
                if way == "by layer":
                    posted = [dist.irecv(part, 0) for part in layers]
                head = dist.irecv(first, 0)  # in the order in which they are sent
                if way != "by layer":
                    posted.append(dist.irecv(layers, 0))
                for one in posted:
                    one.wait()
                    moments.append(time.monotonic() - start)
                head.wait()
                cache.keys[:, 0, :, :n] = layers[:, 0]
                cache.values[:, 0, :, :n] = layers[:, 1]  # noqa: PD011
                cache.lengths += n
                texts, told = [int(first)], write(cache, int(first))
                while len(texts) < new:
                    texts.append(next(told))
                    moments.append(time.monotonic() - start)
        found.append({"way": way, "moments": moments, **sent})
        if here.rank:
            found[-1]["equal"] = texts == generate(model, [prompt], new)[0]
    return found


# %% tags=["hide-input"]
tokenizer = weights.smollm2_tokenizer()
small = ModelConfig.load("smollm2-135m")
prompt = list(tokenizer.encode(corpus.shakespeare()[0].text[: 8 * live_prompt])[:live_prompt])
WAYS = ["new connection", "after it is made", "by layer"]
kv = kv_bytes_per_token(small, 4) * live_prompt
GLOO = 48  # bytes of a header, and of the notice that a receiver is ready
frame = tcp_over_ethernet(1500)
on_wire = kv + (frame.overhead_per_packet - FRAME_CHECK) * frame.frame(kv).packets
window = 10 * frame.payload_per_packet
lines, curves, calm, ahead = [], [], None, {}
for rate in live_rates:
    call = (hand_over, {"prompt": prompt, "new": live_new, "ways": WAYS})
    ran = page.on_ranks(
        f"hand over {rate:g}", call, ranks=2, namespaces=True, rate=rate, delay=live_delay_s
    )
    reader, writer = ran.found[0]
    for a, b in zip(reader, writer, strict=True):
        layers = b["way"] == "by layer"
        messages = 1 + (small.layers if layers else 1)
        assert b["equal"], "the tokens differ from those of one process"
        assert a["payload_bytes"] == kv + 8 + 2 * GLOO * messages
        assert b["payload_bytes"] == GLOO * messages
        took, there = np.array(a["moments"]), b["moments"][small.layers - 1 if layers else 0]
        if layers:
            shares = np.full(small.layers, on_wire / small.layers)
            says, ahead[rate] = (
                float(across.streamed_s(np.diff(t, prepend=0)[:-1], shares, rate, live_delay_s))
                for t in (took, calm)  # its own layers' times, and those of the run before
            )
            came = b["moments"][: small.layers]
            for event, times in (("made at rank 0", took[:-1]), ("there at rank 1", came)):
                curves += [
                    {"rate": f"{rate / 1e6:.0f} Mbit/s", "event": event, "layer": i + 1, "s": s}
                    for i, s in enumerate(times)
                ]
        else:
            calm, new = took, window if b["way"] == "new connection" else None
            says = took[-1] + float(across.transfer_s(on_wire, live_delay_s, rate, new))
        lines.append({"rate, Mbit/s": rate / 1e6, "sent": b["way"], "read in": took[-1],
                      "cache there": there, "modelled": says, "error": says / there - 1,
                      "next token": b["moments"][len(b["moments"]) - live_new + 1]})  # fmt: skip
handed = pd.DataFrame(lines)
charts.table(
    handed,
    caption=f"{live_prompt} tokens of SmolLM2, {format_bytes(kv)} of cache in 32 bits, "
    f"{1e3 * live_delay_s:.0f} ms one way: from the start of reading",
    label={"read in": ran.label, "cache there": ran.label, "modelled": "modelled",
           "next token": ran.label},
    formats=dict.fromkeys(["read in", "cache there", "modelled", "next token"], format_time)
    | {"error": "+.1%", "rate, Mbit/s": ".0f"},
)  # fmt: skip

# %% tags=["hide-input"]
by = handed.set_index(["rate, Mbit/s", "sent"])
makes = kv * 8 / by.loc[(live_rates[0] / 1e6, "after it is made"), "read in"]
pairs = [
    (r, by.loc[(r / 1e6, "after it is made"), "cache there"],
     by.loc[(r / 1e6, "by layer"), "cache there"])
    for r in live_rates
]  # fmt: skip
charts.prose(
    f"{ran.where} In every run rank 1 wrote the tokens that one process writes alone. The sockets "
    f"carried {kv:,} bytes of cache, 8 of the first token, and for each message two times "
    f"{GLOO} bytes of gloo's from rank 0 and {GLOO} from rank 1: equal to the byte, "
    f"{{{ran.label}}}`{reader[-1]['payload_bytes']:,} bytes` by layer. Reading made cache at "
    f"{{{ran.label}}}`{makes / 1e6:.0f} Mbit/s`: "
    + "; ".join(
        f"at {r / 1e6:.0f} Mbit/s, {'above' if r > makes else 'below'} that, sending by layer "
        "saved "
        f"{{{ran.label}}}`{format_time(whole - layered)}`"
        for r, whole, layered in pairs
    )
    + ". The table's model takes the times of each run's own layers. With those of the run before, "
    "in which nothing was sent meanwhile, it says "
    + " and ".join(
        f"{{modelled}}`{format_time(ahead[r])}` ({ahead[r] / layered - 1:+.0%})"
        for r, _, layered in pairs
    )
    + ": reading slows down while it sends, as both need the processor. A new connection is "
    f"{{modelled}}`{handed.error[handed.sent == 'new connection'].abs().max():.0%}` off at worst: "
    "it starts more slowly than by doubling a window each round trip, and why we did not find."
)

# %% tags=["hide-input"]
curves = pd.DataFrame(curves)
alt.Chart(curves).mark_line(point=alt.OverlayMarkDef(size=18)).encode(
    alt.X("s:Q", title="seconds since reading began"),
    alt.Y("layer:Q", title="layer"),
    alt.Color("rate:N", title="link").scale(range=[PALETTE["orange"], PALETTE["blue"]])
    .legend(orient="top"),
    alt.StrokeDash("event:N", title=None).legend(orient="top"),
    tooltip=["rate:N", "event:N", "layer:Q", alt.Tooltip("s:Q", format=".3f")],
).properties(
    title="A link faster than reading hides all layers but the last; a slower one makes them queue",
    description="For each of SmolLM2's layers, when rank 0 had made its cache and when rank 1 had "
    "it, for links of " + " and ".join(f"{r / 1e6:.0f} Mbit/s" for r in live_rates)
    + ". On the fast link the two run side by side, on the slow one they part.",
    height=280,
)  # fmt: skip

# %% [markdown]
# ## Which site should answer
#
# Three cities, one model. Each request begins with one of a few hundred documents or instructions,
# the popular ones far more often than the others, and a site keeps the caches that it used last.
# Most requests come from one city: there is day and there is night. A router knows queues and
# caches, and follows one of five rules.

# %%
delays = np.array([[Link(distance_km(a, b), 1e11, route).delay_s for b in sites_of]
                   for a in sites_of])  # fmt: skip
sites = routing.Sites(
    delays,
    rate_bps=link_rates[1],
    read_s=lambda new, past: across.read_s(llama, new, past),
    kv_bytes=kv_bytes_per_token(llama.config),
    keeps=1_000_000,
)
asked = routing.workload(
    count, request_rate, [0.6, 0.3, 0.1], 300, (6000, 8000, 60000), (500, 800, 8000), seed
)
routed = {rule: routing.route(asked, sites, rule) for rule in routing.RULES}

# %% tags=["hide-input"]
home = asked.home.to_numpy()
judged = pd.DataFrame(
    {
        "rule": rule,
        "TTFT mean": got.ttft_s.mean(),
        "p50": got.ttft_s.quantile(0.5),
        "p99": got.ttft_s.quantile(0.99),
        "tokens not read": got.hit.sum() / (got.shared + got.own).sum(),
        "answered elsewhere": (got.site != got.home).mean(),
        "caches moved": got.fetched_bytes.sum() / len(got),
    }
    for rule, got in routed.items()
)
charts.table(
    judged,
    caption=f"{count:,} requests, {request_rate:g} a second, to three sites of eight H100s with "
    "Llama 3.1 70B; moved bytes are for each request",
    label="modelled",
    formats=dict.fromkeys(["TTFT mean", "p50", "p99"], format_time)
    | {"tokens not read": ".0%", "answered elsewhere": ".0%", "caches moved": format_bytes},
)

# %% tags=["hide-input"]
load_rows = []
for rate in (2.0, 4.0, 6.0, 8.0):
    drawn = routing.workload(
        count // 3, rate, [0.6, 0.3, 0.1], 300, (6000, 8000, 60000), (500, 800, 8000), seed
    )
    load_rows += [
        {"rule": rule, "rate": rate, "s": routing.route(drawn, sites, rule).ttft_s.quantile(0.9)}
        for rule in routing.RULES
    ]
loads = pd.DataFrame(load_rows)
best = judged.sort_values("TTFT mean").iloc[0]
alt.Chart(loads).mark_line(point=True).encode(
    alt.X("rate:Q", title="requests a second, all sites"),
    alt.Y("s:Q", title="90th percentile of the time to first token, s").scale(type="log"),
    alt.Color("rule:N", title=None, sort=list(routing.RULES))
    .scale(domain=list(routing.RULES), range=[PALETTE[c] for c in ("grey", "blue", "sky",
                                                                   "orange", "violet")])
    .legend(orient="top", columns=3),
    alt.Shape("rule:N", title=None, sort=list(routing.RULES), legend=None),
    tooltip=["rule:N", "rate:Q", alt.Tooltip("s:Q", format=".3g")],
).properties(
    title=f"At {request_rate:g} requests a second the best mean is that of “{best.rule}”",
    description="90th percentile of time to first token against requests a second for five rules: "
    + "; ".join(
        f"{r.rule} at {r.rate:g}: {r.s:.2f} s"
        for r in loads[loads.rate == request_rate].itertuples()
    )
    + ".",
    height=300,
)  # fmt: skip

# %% tags=["hide-input"]
line = judged.set_index("rule")
charts.prose(
    f"“Nearest” leaves the busy city's queue where it is: a mean of {{modelled}}"
    f"`{format_time(line.loc['nearest', 'TTFT mean'])}`. “Least loaded” evens the queues out, "
    f"but scatters the documents: {{modelled}}`{line.loc['least loaded', 'tokens not read']:.0%}` "
    "of the tokens need not be read, against {modelled}"
    f"`{line.loc['longest prefix', 'tokens not read']:.0%}` where the prefix decides, which in its "
    "turn heeds no queue: {modelled}"
    f"`{format_time(line.loc['longest prefix', 'TTFT mean'])}`. Adding up all that a request will "
    f"wait for gives {{modelled}}`{format_time(line.loc['cost', 'TTFT mean'])}`, and with leave to "
    f"move caches {{modelled}}`{format_time(line.loc['cost, may fetch', 'TTFT mean'])}` for "
    f"{{modelled}}`{format_bytes(line.loc['cost, may fetch', 'caches moved'])}` a request between "
    "sites. A single site without a cache is a queue that can be solved: a test holds its mean "
    "wait to the formula of Pollaczek and Khinchine."
)

# %% [markdown]
# ## The last mile
#
# The answer goes to a browser. The usual way is {term}`server-sent events`: one HTTP response that
# does not end, in chunks, each with a line of JSON. Rank 0 is such a server, rank 1 its client, and
# a capture runs between them. First SmolLM2 writes at its own pace; then the same answer is sent
# again at a steady pace in other ways.


# %%
def stream_answers(here, prompt, new, ways, named):
    """Rank 0 serves one answer in several ways over HTTP, rank 1 asks and reads; the frames."""
    import base64
    import fcntl
    import http.client
    import socket
    import struct
    import threading
    import time
    from http.server import BaseHTTPRequestHandler, HTTPServer

    import torch
    import torch.distributed as dist
    from tokenlife.lab.meter import Capture
    from tokenlife.transformer import weights
    from tokenlife.transformer.generate import Sampler, stream
    from tokenlife.wire import events

    told, pieces, ids, known, found = [None], [], [], [], []
    if here.rank == 0:
        torch.set_num_threads(1)
        model, tokenizer = weights.smollm2(), weights.smollm2_tokenizer()
        sampler = Sampler(0.7, seed=1)

        def written(way):
            """Yield texts of events as they are known."""
            if way["gap_s"] is None:
                for one in stream(model, prompt, new, sampler):
                    ids.append(one)
                    pieces.append(tokenizer.decode([one]))
                    known.append(time.monotonic())
                    yield pieces[-1]
                return
            due = time.monotonic()
            for text in events.group(pieces, way["size"]):
                for _ in range(min(way["size"], len(pieces) - len(known))):
                    due += way["gap_s"]
                    known.append(due)
                time.sleep(max(0.0, due - time.monotonic()))
                yield text

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                way = ways[int(self.path.strip("/"))]
                tcp = self.connection
                tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, way["socket"] != "Nagle")
                tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, way["socket"] == "cork")
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for text in written(way):
                    self.wfile.write(events.chunk(events.event(text, way["envelope"], **named)))
                self.wfile.write(events.LAST_CHUNK)
                tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

            def log_message(self, *_):
                pass

        server = HTTPServer(("", 0), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name = struct.pack("256s", here.interface.encode())
        with socket.socket() as any_socket:
            mine = fcntl.ioctl(any_socket, 0x8915, name)[20:24]  # SIOCGIFADDR
        told = [(socket.inet_ntoa(mine), server.server_port)]
    dist.broadcast_object_list(told, 0)
    for index, way in enumerate(ways):
        known.clear()
        with Capture(here.interface, 2048, 4096) as capture:
            here.together(0.4)
            come, text = [], b""
            if here.rank:
                line = http.client.HTTPConnection(*told[0], timeout=60)
                line.request("GET", f"/{index}")
                answer = line.getresponse()
                while part := answer.read1():
                    come.append((time.monotonic(), len(part)))
                    text += part
                line.close()
            here.together(0.4)
            frames, lengths, _, outgoing, dropped = capture.read()
        ports = frames[:, 34:38].astype(int) @ [[256, 0], [1, 0], [0, 256], [0, 1]]
        rows = [
            (base64.b64encode(f[:n].tobytes()).decode(), bool(out))
            for f, n, out in zip(frames, lengths, outgoing, strict=True)
        ]
        rows = [r for r, p in zip(rows, ports.tolist(), strict=True) if told[0][1] in p]
        found.append({**way, "known": list(known), "come": come, "dropped": int(dropped)})
        found[-1] |= {"text": text.decode()} if here.rank else {"frames": rows}
    if here.rank:
        return {"ways": found}
    server.shutdown()
    bits = []
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]]))[0, len(prompt) - 1 : -1]
    for row in logits:
        p = sampler.probabilities(row)
        bits.append(float(-(p[p > 0] * p[p > 0].log2()).sum()))
    return {"ways": found, "ids": ids, "pieces": pieces, "entropy": bits}


# %% tags=["hide-input"]
question = list(tokenizer.encode(running()["sentence"]))
named = {"model": "smollm2-135m", "moment": 1_700_000_000}
HOW = [("chat", 1, "no delay", None)] + [
    (envelope, size, socket, gap_s)
    for envelope, size, socket in (
        ("chat", 1, "no delay"), ("chat", 1, "Nagle"), ("chat", 1, "cork"),
        ("chat", 2, "no delay"), ("chat", 4, "no delay"), ("chat", 8, "no delay"),
        ("short", 1, "no delay"), ("text", 1, "no delay"),
    )
]  # fmt: skip
how = [dict(zip(("envelope", "size", "socket", "gap_s"), one, strict=True)) for one in HOW]
arguments = {"prompt": question, "new": answer_tokens, "ways": how, "named": named}
told = page.on_ranks("stream", (stream_answers, arguments), ranks=2, namespaces=True,
                     rate=user_rate, delay=user_delay_s)  # fmt: skip
server, client = told.found[0]
pieces = server["pieces"]


def segments(rows, out):
    """The TCP segments of one direction, and the number that each acknowledges."""
    kept = [base64.b64decode(text) for text, outgoing in rows if outgoing == out]
    table, sizes = np.zeros((len(kept), 2048), np.uint8), np.array([len(f) for f in kept])
    for row, one in zip(table, kept, strict=True):
        row[: len(one)] = np.frombuffer(one, np.uint8)
    return TcpFrames.read(table, sizes), table[:, 42:46].astype(int) @ [2**24, 2**16, 256, 1]


def account(way, read):
    """Frames of one answer's events, and when each token was there."""
    assert way["dropped"] == 0
    texts = events.group(pieces, way["size"])
    writes = [events.chunk(events.event(t, way["envelope"], **named)) for t in texts]
    assert read["text"].encode() == b"".join(events.event(t, way["envelope"], **named)
                                             for t in texts)  # fmt: skip
    data, _ = segments(way["frames"], True)
    back, answers = segments(way["frames"], False)
    first = int(data.seq[data.has("syn")][0]) + 1
    ends = np.where(data.payload_bytes > 0, (data.seq - first) % 2**32 + data.payload_bytes, 0)
    head = int(ends[ends > 0].min())  # the head is a write of its own
    last = head + sum(map(len, writes))
    part = (ends > head) & (ends - data.payload_bytes < last)
    up_to = (answers - first) % 2**32
    bare = (back.payload_bytes == 0) & ~back.has("syn") & (up_to > head) & (up_to <= last + 5)
    bare &= np.concatenate([[True], np.diff(up_to) != 0]) & (up_to < last + 5)
    around = FRAME_CHECK + PREAMBLE + INTERFRAME_GAP
    reached = np.cumsum([n for _, n in read["come"]])
    wanted = np.cumsum([len(events.event(t, way["envelope"], **named)) for t in texts])
    at = np.array([t for t, _ in read["come"]])[np.searchsorted(reached, wanted)]
    late = np.repeat(at, way["size"])[: len(pieces)] - way["known"]
    everything = data.frame_bytes.sum() + back.frame_bytes.sum()
    everything += around * (len(data.seq) + len(back.seq))
    return {
        "envelope": way["envelope"], "tokens an event": way["size"], "socket": way["socket"],
        "packets": int(part.sum()), "sizes": data.payload_bytes[part].tolist(),
        "writes": [len(w) for w in writes], "frames": int(data.frame_bytes[part].sum()),
        "acknowledgements": int(bare.sum()),
        "bits": 8 * float(data.frame_bytes[part].sum() + back.frame_bytes[bare].sum()
                          + around * (part.sum() + bare.sum())) / len(pieces),
        "late": float(late.mean()), "worst": float(late.max()), "everything": int(everything),
        "again": data.count()["retransmissions"],
    }  # fmt: skip


seen = [account(a, b) for a, b in zip(server["ways"], client["ways"], strict=True)]
live, steady = seen[0], pd.DataFrame(seen[1:])
tcp = Stack("tcp", 1500)
bill = events.bill(pieces, tcp, "chat", **named)
modelled_frames = sum(
    n + (frame.overhead_per_packet - FRAME_CHECK) * frame.frame(n).packets for n in live["writes"]
)
known_bits = math.log2(small.vocab)
entropy = float(np.mean(server["entropy"]))

# %% tags=["hide-input"]
charts.prose(
    f"SmolLM2 went on from the running sentence: *{''.join(pieces).strip()!r}*. Each of its "
    f"{len(pieces)} tokens is one of {small.vocab:,}, {{modelled}}`{known_bits:.1f} bits`; knowing "
    f"what came before, the model's own distribution had an entropy of {{{told.label}}}"
    f"`{entropy:.1f} bits` in the mean. **On the wire a token took {{{told.label}}}"
    f"`{live['bits']:,.0f} bits`**, acknowledgements included: "
    f"{live['bits'] / known_bits:.0f} for each bit that names it, and "
    f"{live['bits'] / entropy:,.0f} for each bit of news."
)

# %% tags=["hide-input"]
order = [name for name in bill if bill[name]]
layers = pd.DataFrame(
    {"layer": name, "bytes": bill[name] / len(pieces), "share": bill[name] / sum(bill.values())}
    for name in order
)
colours = [PALETTE["orange"]] + [PALETTE["blue"]] * 3 + [PALETTE["grey"]] * (len(order) - 4)
alt.Chart(layers).mark_bar().encode(
    alt.X("bytes:Q", title="bytes for each token"),
    alt.Y("layer:N", sort=order, title=None),
    alt.Color("layer:N", legend=None).scale(domain=order, range=colours),
    tooltip=["layer:N", alt.Tooltip("bytes:Q", format=".1f"), alt.Tooltip("share:Q", format=".1%")],
).properties(
    title=f"The text is {layers.share.iloc[0]:.1%} of what is sent; JSON is "
    f"{layers.share.iloc[1]:.0%}",
    description="Bytes for each token by layer, an event for each token: "
    + "; ".join(f"{r.layer} {r.bytes:.1f}" for r in layers.itertuples()) + ".",
    height=26 * len(order),
)  # fmt: skip

# %% tags=["hide-input"]
exact = live["sizes"] == live["writes"]
gap = live["frames"] - modelled_frames
ack_words = f"{live['acknowledgements']} against {len(pieces)} modelled"
charts.prose(
    f"The model frames each event by itself: {{modelled}}`{modelled_frames:,} bytes` in "
    f"{len(pieces)} frames. The capture holds {{{told.label}}}`{live['frames']:,} bytes` in "
    f"{live['packets']} frames, a difference of {gap:+,}; "
    + ("the sizes are equal frame by frame" if exact else "the sizes are not equal frame by frame")
    + f". Of acknowledgements there are {ack_words}: each small segment was answered at once, not "
    "every second one. "
    if live["acknowledgements"] > 0.9 * len(pieces)
    else f"Of acknowledgements there are {ack_words}: the client merged some. "
)

# %% tags=["hide-input"]
tls = sum(events.bill(pieces, tcp, "chat", tls=True, **named).values()) / len(pieces)
once = live["everything"] - live["bits"] / 8 * len(pieces)
charts.prose(
    f"Handshake, request, head of the answer and farewell took {{{told.label}}}`{once:,.0f} bytes` "
    "once. Over TLS 1.3, which the lab leaves out, each event would be a record with "
    f"{events.TLS_RECORD} bytes around it: {{modelled}}`{8 * tls:,.0f} bits` a token."
)

# %% [markdown]
# ## Fewer bits, later
#
# Several tokens can share an event, and several events a packet. The first the server does; the
# second TCP does by itself, if it is let: Nagle's algorithm {cite}`rfc896` holds a small segment
# back while another is on its way, and a corked socket waits for a full one. Both wait. A token's
# lateness is counted from the moment it is known to that at which the client has it.

# %% tags=["hide-input"]
steady["how"] = [
    f"{r.envelope}, " + (f"{r.size} an event" if r.size > 1 else r.socket)
    for r in steady.rename(columns={"tokens an event": "size"}).itertuples()
]  # fmt: skip
charts.table(
    steady[["how", "packets", "acknowledgements", "bits", "late", "worst"]].assign(
        ratio=steady.bits / known_bits
    ),
    caption=f"{len(pieces)} tokens, one each {1e3 * gap_s:.0f} ms, {1e3 * user_delay_s:.0f} ms one "
    "way; bits for each token, and bits for each bit that names it",
    label={"bits": told.label, "late": told.label, "worst": told.label},
    formats={"bits": ",.0f", "late": format_time, "worst": format_time, "ratio": ",.0f"},
)

# %% tags=["hide-input"]
steady["late, ms"] = 1e3 * steady.late
points = alt.Chart(steady).encode(
    alt.X("late, ms:Q", title="mean lateness of a token, ms").scale(type="log", nice=False,
          domain=[0.8 * steady["late, ms"].min(), 2.2 * steady["late, ms"].max()]),
    alt.Y("bits:Q", title="bits on the wire for each token").scale(type="log", nice=False,
          domain=[0.7 * steady.bits.min(), 1.4 * steady.bits.max()]),
)  # fmt: skip
by_how = steady.set_index("how")
one, eight = by_how.loc["chat, no delay"], by_how.loc["chat, 8 an event"]
(
    points.mark_point(filled=True, size=70, color=PALETTE["blue"]).encode(
        tooltip=["how:N", alt.Tooltip("late, ms:Q", format=".1f"),
                 alt.Tooltip("bits:Q", format=",.0f")]
    )
    + points.mark_text(align="left", dx=8).encode(text="how:N")
).properties(
    title=f"Eight tokens an event: {one.bits / eight.bits:.1f} times fewer bits, "
    f"{1e3 * (eight.late - one.late):.0f} ms later",
    description="Bits on the wire for each token against its mean lateness: "
    + "; ".join(f"{r.how} {r.bits:,.0f} bits, {1e3 * r.late:.0f} ms" for r in steady.itertuples())
    + ".",
    height=320,
)  # fmt: skip

# %% tags=["hide-input"]
smaller = by_how.bits["chat, no delay"] / by_how.bits["text, no delay"]
charts.prose(
    f"Leaving the JSON away saves a factor of {{{told.label}}}`{smaller:.1f}` and delays nothing: "
    "the headers around a packet remain. Nagle's algorithm put "
    f"{len(pieces) / by_how.packets['chat, Nagle']:.1f} tokens into a packet, as many as came in "
    f"a round trip, and the mean token was {{{told.label}}}"
    f"`{format_time(by_how.late['chat, Nagle'] - by_how.late['chat, no delay'])}` later; the cork "
    f"filled packets, {len(pieces) / by_how.packets['chat, cork']:.1f} tokens each, and cost "
    f"{{{told.label}}}`{format_time(by_how.late['chat, cork'] - by_how.late['chat, no delay'])}`. "
    "For one reader the bits do not matter: "
    f"{by_how.bits['chat, no delay'] / gap_s / 1e3:.0f} kbit/s. For a service with a million "
    f"readers it is {by_how.bits['chat, no delay'] / gap_s * 1e6 / 1e9:.0f} Gbit/s instead of "
    f"{by_how.bits['text, no delay'] / gap_s * 1e6 / 1e9:.0f}."
)

# %% tags=["hide-input"]
if keep:
    page.keep()

# %% [markdown]
# ## Where the model stops being true
#
# One cache at a time crosses a link here, at the full rate; chapter 20 says what TCP really gives
# over a distance. Passes take what a fit to training runs says, and nobody shares them: a served
# prompt is batched with others. A cache is read from far memory at no cost. Caches can be sent in
# fewer bits, and a window of attention keeps less than is counted.
#
# The router knows all queues at once; a real one knows those of a round trip ago. Prefixes are kept
# whole or not at all.
#
# The last mile is one clean link with HTTP/1.1. HTTP/2 and QUIC frame otherwise, a proxy may
# gather events, and radio links have headers and retransmissions of their own.
#
# ## Exercises
#
# ```{exercise}
# :label: across-eight
# A cache is sent in 8 bits a number instead of 16. What happens to the rate from which on fetching
# is worth it, and to the time to ask there?
# ```
#
# ```{solution} across-eight
# :class: dropdown
# The rate halves: as many tokens need half the bytes, and reading takes as long as before. Asking
# there does not change, as no cache moves.
# ```
#
# ```{exercise}
# :label: across-layers
# A model has 80 layers and reads a prompt in 0.8 s. Its link needs 0.4 s for the cache. When is the
# cache there if it is sent after reading, and when by layer? What if the link needs 1.6 s?
# ```
#
# ```{solution} across-layers
# :class: dropdown
# Delay apart, 1.2 s, and by layer 0.8 + 0.4/80 = 0.805 s. With the slow link 2.4 s, and by layer
# 0.8/80 + 1.6 = 1.61 s: now the computation hides, not the transfer.
# ```
#
# ```{exercise}
# :label: across-nagle
# Tokens come every 20 ms and a round trip takes 40 ms. How many tokens does Nagle's algorithm put
# into a packet? And at a round trip of 10 ms?
# ```
#
# ```{solution} across-nagle
# :class: dropdown
# While one segment is on its way and unacknowledged, what comes is gathered: two tokens in 40 ms.
# At 10 ms each is acknowledged before the next comes, so each travels alone.
# ```
#
# ## Where the token goes next
#
# The token has reached its reader, as a word again. The last chapter adds up the whole bill.
