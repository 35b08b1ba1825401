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
# # Serving traffic
#
# ```{spine} communication messages flows
# ```
#
# The model is trained. Now it answers. Nothing flows backward any more and no gradient is summed:
# what is left for the network to carry? **What does a served token put on which link, and what
# does the network allow it to cost in time?**

# %% tags=["parameters"]
model = "llama-3.1-70b"
tp = 8
cluster_name = "dgx-h100"
count = 2000  # requests in each simulated run
rates = [4, 8, 12, 16, 20, 24, 28, 32]  # requests a second, for two instances
slo_ttft_s, slo_tpot_s = 0.5, 0.02
seed = 0

# %% tags=["hide-input"]
import altair as alt
import numpy as np
import pandas as pd
import torch
from tokenlife import charts
from tokenlife.catalog import read_reference
from tokenlife.charts import PALETTE
from tokenlife.costs import forward_flops
from tokenlife.costs.memory import kv_bytes_per_token
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.serving import (
    Engine,
    Server,
    disaggregated,
    lengths,
    poisson,
    requests,
    simulate,
)
from tokenlife.parallel import Plan
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.generate import Request, serve
from tokenlife.transformer.model import Decoder
from tokenlife.units import format_bytes, format_time

charts.setup()
config, cluster = ModelConfig.load(model), Cluster.load(cluster_name)
engine = Engine(config, Plan(tp=tp), cluster)

# %% [markdown]
# ## On the back of an envelope

# %% tags=["hide-input"]
rounds = 2 * config.layers * 2 * (tp - 1)
floor_s = rounds * cluster.levels[0].latency_s
charts.prose(
    f"{config.layers} layers with two all-reduces each, in a ring of {tp}: {rounds:,} messages one "
    f"after another. At {format_time(cluster.levels[0].latency_s)} a message a token takes "
    f"{{modelled}}`{format_time(floor_s)}` before one byte is counted. A single stream then gets "
    f"at most {1 / floor_s:.0f} tokens a second, however fast the GPUs are."
)

# %% [markdown]
# ## The mechanism
#
# One call lists what a pass asks of the network. Decode is a pass of one token a row, prefill a
# pass of a whole prompt; nothing else differs.

# %%
decode, prefill = engine.traffic(tokens=64, sampled=64), engine.traffic(tokens=4096, sampled=1)

# %% tags=["hide-input"]
charts.table(
    pd.concat([decode.assign(of="64 rows decode"), prefill.assign(of="a prompt of 4,096")],
              ignore_index=True)[["of", "axis", "kind", "level", "count", "bytes"]],
    caption=f"What one rank sends in a pass of {model}, tp = {tp}",
    label={"bytes": "modelled"},
    formats={"bytes": format_bytes},
)  # fmt: skip

# %% [markdown]
# ## The floor of decode
#
# More ranks read the weights faster and wait for each other more often.

# %% tags=["hide-input"]
bloom = ModelConfig.load("bloom-176b")  # 112 heads of keys: it can be cut in 16
floor = pd.DataFrame(
    {
        "tp": n,
        "part": part,
        "ms": 1e3 * value,
    }
    for n in (1, 2, 4, 8, 16)
    for e in [Engine(bloom, Plan(tp=n), cluster)]
    for whole, net in [(float(e.seconds(0, 0, 1, 1024)), e.communication_s(1, 1))]
    for part, value in (("memory", whole - net), ("network", net))
)
alt.Chart(floor).mark_bar().encode(
    alt.X("tp:O", title="ranks that share each layer"),
    alt.Y("ms:Q", title="least time per token, ms"),
    alt.Color("part:N", title=None).scale(
        domain=["memory", "network"], range=[PALETTE["blue"], PALETTE["orange"]]
    ),
    tooltip=["tp:O", "part:N", alt.Tooltip("ms:Q", format=".2f")],
).properties(
    title="Past the node, one stream waits for the network",
    description="Least time per token of BLOOM 176B for 1 to 16 tensor-parallel ranks, split into "
    "reading memory and waiting for all-reduces: "
    + "; ".join(f"tp {r.tp} {r.part} {r.ms:.1f} ms" for r in floor.itertuples()),
    height=260,
)

# %% [markdown]
# ## The bill of a moved cache
#
# If one machine reads prompts and another writes answers, the cache must follow the prompt.

# %% tags=["hide-input"]
rate_Bps = cluster.levels[-1].Bps
bill = pd.DataFrame(
    {
        "model": name,
        "attention": c.attention.kind,
        "bytes a token": kv_bytes_per_token(c),
        "8,192 tokens": 8192 * kv_bytes_per_token(c),
        "one card": 8192 * kv_bytes_per_token(c) / rate_Bps,
        "eight cards": 8192 * kv_bytes_per_token(c) / (8 * rate_Bps),
        "read again on 8 GPUs": forward_flops(c, 1, 8192, causal=True) / (8 * cluster.peak(2)),
    }
    for name in ("llama-3.1-70b", "llama-3.1-405b", "deepseek-v3")
    for c in [ModelConfig.load(name)]
)
charts.table(
    bill,
    caption=f"Moving the cache of a prompt over {rate_Bps * 8 / 1e9:.0f} Gbit/s a card, or "
    "computing it again at the peak",
    label="modelled",
    formats={"bytes a token": format_bytes, "8,192 tokens": format_bytes}
    | dict.fromkeys(["one card", "eight cards", "read again on 8 GPUs"], format_time),
)

# %% [markdown]
# ## Three ways to mix reading and writing
#
# Two instances, three policies, the same requests: prompts and answers with the medians and means
# of the Azure conversation trace {cite}`patel2024splitwise`. *Continuous* stops all rows for a
# newcomer's prompt, *chunked* reads it in pieces beside them, *disaggregated* gives one instance
# the prompts and the other the answers.

# %%
trace = read_reference("12_traces").set_index("trace").loc["azure-conversation"]
lines = []
for rate in rates:
    asked = requests(
        poisson(count, rate, seed),
        lengths(count, trace.prompt_median, trace.prompt_mean, 8000, seed + 1),
        lengths(count, trace.output_median, trace.output_mean, 2000, seed + 2),
    )
    server = Server(rows=128, kv_tokens=1_000_000)
    chunked = Server(rows=128, kv_tokens=1_000_000, policy="chunked", chunk=512)
    runs = {
        "continuous": simulate(asked, engine, server, instances=2),
        "chunked": simulate(asked, engine, chunked, instances=2),
        "disaggregated": disaggregated(
            asked, (engine, Server(8), 1), (engine, server, 1), kv_bytes_per_token(config),
            tp * rate_Bps,
        ),
    }  # fmt: skip
    for policy, got in runs.items():
        lines.append(
            {"policy": policy, "rate": rate, "kept": got.goodput(slo_ttft_s, slo_tpot_s),
             "TTFT p99": got.table.ttft_s.quantile(0.99),
             "TPOT p99": got.table.tpot_s.quantile(0.99),
             "load": got.utilisation}
        )  # fmt: skip
found = pd.DataFrame(lines)

# %% tags=["hide-input"]
alt.Chart(found).mark_line(point=True).encode(
    alt.X("rate:Q", title="requests a second, on 16 GPUs"),
    alt.Y("kept:Q", title="requests that kept both limits").axis(format="%"),
    alt.Color("policy:N", title=None).scale(
        domain=["continuous", "chunked", "disaggregated"],
        range=[PALETTE["grey"], PALETTE["blue"], PALETTE["orange"]],
    ),
    tooltip=["policy:N", "rate:Q", alt.Tooltip("kept:Q", format=".1%"),
             alt.Tooltip("load:Q", format=".0%")],
).properties(
    title="How many requests keep their limits, by policy and load",
    description="Share of requests with a first token and tokens after it in time, for three "
    "policies, against requests a second.",
    height=260,
)  # fmt: skip

# %% tags=["hide-input"]
charts.table(
    found[found.rate == rates[len(rates) // 2]],
    caption=f"At {rates[len(rates) // 2]} requests a second",
    label="modelled",
    formats={"kept": ".1%", "TTFT p99": format_time, "TPOT p99": format_time, "load": ".0%"},
)

# %% [markdown]
# ## A real run beside the simulation
#
# The engine of chapter 6 serves a small model for real. Its passes are timed; their means by kind
# and by how many share one become the simulated server's, which then gets the same requests.

# %%
torch.manual_seed(seed)
torch.set_num_threads(1)
small = Decoder(ModelConfig.load("running-gpt")).eval()
rng = np.random.default_rng(seed)
shape = [
    (int(p), int(o)) for p, o in zip(rng.integers(8, 40, 40), rng.integers(4, 24, 40), strict=True)
]
serve(small, [Request(tuple(range(1, 9)), 4)], rows=4)  # warm up
came = poisson(40, 60.0, seed)
real, passes = serve(
    small,
    [Request(tuple(range(1, 1 + p)), o, arrival_s=float(t))
     for (p, o), t in zip(shape, came, strict=True)],
    rows=4,
)  # fmt: skip


class Fitted:
    """Seconds of a pass: a mean by kind and by how many share it."""

    def __init__(self, passes):
        table = pd.DataFrame(
            {"kind": p.kind, "n": len(p.requests), "s": p.end_s - p.start_s} for p in passes
        )
        self.s = table.groupby(["kind", "n"]).s.mean()

    def seconds(self, tokens, pairs, rows, context, sampled=None):
        kind = "prefill" if np.any(tokens) else "decode"
        known = self.s[kind]
        n = min(sampled or rows or 1, known.index.max()) if kind == "decode" else sampled or 1
        return np.interp(n, known.index, known) + 0.0 * (np.asarray(context) + np.asarray(tokens))


prompt, output = (np.array(c) for c in zip(*shape, strict=True))
played = simulate(requests(came, prompt, output), Fitted(passes), Server(rows=4))
beside = pd.DataFrame(
    {"of": ["mean TTFT", "mean TPOT", "end of the last"],
     "measured": [np.mean([d.ttft_s for d in real]), np.mean([d.tpot_s for d in real]),
                  max(d.times_s[-1] for d in real)],
     "simulated": [played.table.ttft_s.mean(), played.table.tpot_s.mean(),
                   played.table.end_s.max()]}
)  # fmt: skip
beside["error"] = beside.simulated / beside.measured - 1
charts.table(
    beside,
    caption="Forty requests on chapter 6's engine, four rows",
    label={"measured": "measured", "simulated": "modelled"},
    formats={"measured": format_time, "simulated": format_time, "error": "+.1%"},
)

# %% [markdown]
# ## Where the model stops being true
#
# Every pass runs at the roofline; real servers reach a part of it (chapter 6 found decode at
# several times its bound). Latencies are those of single messages, in a ring; libraries choose
# trees for small ones. A pipeline holds one batch at a time here. Nobody is preempted.
