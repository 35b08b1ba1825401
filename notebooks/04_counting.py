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
# # Counting
#
# ```{spine} tensors operations
# ```
#
# The token has gone through the model. What did it cost? How many numbers did it meet, how many
# multiplications did it take, how many bytes have to be held so that the model can learn from it?
#
# None of this needs a machine. An architecture is a page of sizes, and the sizes fix every count:
# this chapter counts, then lets PyTorch count the same thing, and prints the difference.

# %% tags=["parameters"]
model = "gpt2"  # a name in data/models/, or a path to a config.json
length = 1024  # tokens in a sequence
seed = 0

# %% tags=["hide-input"]
import json

import altair as alt
import pandas as pd
import torch
from IPython.display import HTML
from tokenlife import charts
from tokenlife.catalog import accelerator_names, read_accelerator, read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.costs import (
    active_parameters,
    count_parameters,
    forward_flops,
    mtp_parameters,
    parameters_by_part,
    roofline,
    rules,
    training_flops,
)
from tokenlife.costs.activations import activation_bytes, layer_kept, peak_activation_bytes
from tokenlife.costs.memory import RECIPES, kv_bytes_per_token, kv_cache_bytes, state_bytes
from tokenlife.costs.meter import counted_flops, saved_bytes
from tokenlife.costs.roofline import Roofline
from tokenlife.costs.stages import layer_table, stage_table
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.model import Decoder
from tokenlife.units import format_bytes, format_count, format_flops, format_time

charts.setup()


def flops(count):
    return format_flops(count).replace(" ", "\u00a0")


def size(bytes_):
    return format_bytes(bytes_).replace(" ", "\u00a0")


def percent(error):
    """Write a relative error; an exact count has none."""
    return "0" if error == 0 else f"{error:+.2%}"


torch.manual_seed(seed)
threads = torch.get_num_threads()
torch.set_num_threads(1)  # the models measured here are tiny: a second thread only waits
config = ModelConfig.load(model)
length = min(length, config.positions)
sentence = running()["sentence"]
sentence_tokens = vocabularies.load("gpt2").encoding(sentence).n_tokens

# %% [markdown]
# ## On the back of an envelope
#
# A matrix with $N$ numbers turns one vector into another with $N$ multiplications and $N$
# additions. So a token that passes a model of $N$ parameters costs about $2N$ FLOPs. The running
# sentence, in a model of 124 million parameters:

# %% tags=["hide-input"]
estimate = 2 * count_parameters(config) * sentence_tokens
exact = forward_flops(config, 1, sentence_tokens)
charts.prose(
    f"{sentence_tokens} tokens × 2 × {format_count(count_parameters(config))} = "
    f"{{modelled}}`{format_flops(estimate)}`. Counted matrix by matrix, as below, it is "
    f"{{modelled}}`{format_flops(exact)}`: the envelope is off by {estimate / exact - 1:+.1%}."
)

# %% [markdown]
# To train on the sentence costs three times that, and to keep the model while it learns takes some
# sixteen bytes for each parameter. The rest of this chapter makes these three rules exact, and
# shows where they break.
#
# ## Parameters
#
# Everything is in a few sizes. Here is GPT-2, counted by hand:

# %%
layers, width, vocabulary, positions = 12, 768, 50257, 1024


def linear(width_in, width_out):
    return width_in * width_out + width_out  # weights and biases


attention = linear(width, 3 * width) + linear(width, width)
mlp = linear(width, 4 * width) + linear(4 * width, width)
norms = 2 * (2 * width)  # two of them, each with a weight and a bias
by_hand = (vocabulary + positions) * width + layers * (attention + mlp + norms) + 2 * width
by_hand

# %% [markdown]
# The output head is missing because GPT-2 has none of its own: it multiplies by the embedding
# table once more. That is called a {term}`tied head`. The library does the same from any Hugging
# Face `config.json`, with the parts that other families have: a gate in the MLP, fewer key–value
# heads, norms of queries and keys, experts, latent vectors.

# %%
parts = parameters_by_part(ModelConfig.load("gpt2"))
assert sum(parts.values()) == by_hand
{name: count for name, count in parts.items() if count}

# %% [markdown]
# ### Every named model
#
# The table counts each model of `data/models/` and puts the published number beside it. Some
# publishers give a count to the last digit; others a name with a rounded number in it (GPT-3,
# OPT). A name has to be right to its last digit too. Click a column's name to sort.

# %% tags=["hide-input"]
published = read_reference("06_models_params")
totals = published[published.quantity == "total"].set_index("model")
# Two listings count what is no parameter of the model; the text below says what.
BESIDE = {"falcon-180b": 65_024 * 14_848, "llama-2-70b": 80 * 64}
rows = []
for name, row in totals.iterrows():
    read = ModelConfig.load(name)
    counted = count_parameters(read)
    rows.append(
        {
            "model": name,
            "attention": read.attention.kind,
            "counted": counted,
            "published": int(row.value),
            "error": (counted + BESIDE.get(name, 0)) / int(row.value) - 1,
        }
    )
every = pd.DataFrame(rows)
exact_count = (totals.precision == "exact").to_numpy()


def as_printed(count):
    """Write a count as its source does: to the last digit, or in billions."""
    return f"{count / 1e9:g}B" if count % 10**8 == 0 else f"{count:,}"


charts.table(
    every,
    caption="Parameters of every named model, counted and published",
    label={"counted": "modelled", "published": "published"},
    formats={"published": as_printed, "error": percent},
    sortable=True,
)

# %% tags=["hide-input"]
met = int((every.error[exact_count] == 0).sum())
far = every.loc[every.error.abs().idxmax()]
charts.prose(
    f"Of {len(every)} models {exact_count.sum()} have a published exact count; {met} of these are "
    f"met to the last parameter. The others are known by a rounded name; the farthest from its "
    f"name is {far.model}, by {abs(far.error):.1%}. Two listings needed a note: Falcon's counts "
    "its stored head beside the embedding that it is tied to, and that of Llama 2 70B counts 5,120 "
    "rotary frequencies, which are no parameters."
)

# %% [markdown]
# A token of a mixture meets only the experts that it visits: the *active* parameters are all but
# the others. OpenAI, Moonshot and DeepSeek leave the embedding table out of that number, since a
# token reads one row of it.

# %% tags=["hide-input"]
rows = []
for row in published[published.quantity.str.startswith("active")].itertuples():
    read = ModelConfig.load(row.model)
    table = read.vocab * read.hidden
    active = active_parameters(read) - ("without" in row.quantity) * table
    rows.append(
        {
            "model": row.model,
            "experts": f"{read.moe.top_k} of {read.moe.experts}",
            "all": count_parameters(read),
            "active": active,
            "published": int(row.value),
            "embedding": "left out" if "without" in row.quantity else "counted",
        }
    )
charts.table(
    pd.DataFrame(rows),
    caption="Parameters that one token of a mixture meets",
    label={"all": "modelled", "active": "modelled", "published": "published"},
    formats={"all": format_count, "active": lambda n: format_count(n, 4), "published": as_printed},
)

# %% tags=["hide-input"]
v3 = ModelConfig.load("deepseek-v3")
charts.prose(
    "DeepSeek-V3 has one more block, trained to guess the token after next "
    "({term}`multi-token prediction`). It stands beside the model and adds "
    f"{{modelled}}`{format_count(mtp_parameters(v3), 4)}` parameters to its "
    f"{{modelled}}`{format_count(count_parameters(v3), 4)}`."
)

# %% [markdown]
# ### Where the parameters are

# %% tags=["hide-input"]
SHOWN = ("gpt2", "opt-6.7b", "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-405b", "gemma-2-2b",
         "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3")  # fmt: skip
KINDS = {
    "embedding, head": ("token embedding", "position embedding", "head"),
    "attention": ("attention",),
    "MLP": ("mlp",),
    "experts": ("experts", "shared experts", "router"),
}
shares = []
for name in SHOWN:
    counts = parameters_by_part(ModelConfig.load(name))
    total = sum(counts.values())
    for order, (kind, members) in enumerate(KINDS.items()):
        part = sum(counts[member] for member in members)
        shares.append({"model": name, "kind": kind, "order": order, "share": part / total})
shares = pd.DataFrame(shares)
colours = [PALETTE[name] for name in ("grey", "blue", "orange", "violet")]
scale = alt.Scale(domain=list(KINDS), range=colours)
bars = (
    alt.Chart(
        shares,
        description="Share of parameters by part for ten models. In small models a third or more "
        "is the embedding table, in large dense models four fifths are the MLP, in mixtures of "
        "experts nearly everything is experts.",
    )
    .mark_bar()
    .encode(
        x=alt.X("share:Q", title="share of all parameters").axis(format="%"),
        y=alt.Y("model:N", sort=None, title=None),
        color=alt.Color("kind:N", scale=scale, title=None, sort=list(KINDS)),
        order="order:Q",
        tooltip=["model:N", "kind:N", alt.Tooltip("share:Q", format=".1%")],
    )
    .properties(
        title="Small models are tables, large ones MLPs, mixtures experts", height=alt.Step(24)
    )
)
bars

# %% tags=["hide-input"]
wide = shares.pivot_table("share", "model", "kind").loc[list(SHOWN), list(KINDS)]
charts.table(
    wide.reset_index(),
    caption="Share of the parameters by part (norms, below 0.1 %, left out)",
    label="modelled",
    formats=dict.fromkeys(KINDS, ".1%"),
)

# %% [markdown]
# ## FLOPs
#
# A product of an $m × k$ with a $k × n$ matrix takes $2mkn$ FLOPs. A model of any family is a list
# of such products:

# %%
from tokenlife.costs import layer_operations

for operation in layer_operations(config, layer=0, sequences=1, length=length):
    print(f"{operation.name:22} {format_flops(operation.flops):>12}")

# %% [markdown]
# *Scores* and *mixing* multiply activations with activations. They hold no parameter, and they
# grow with the square of the length: the $2N$ of the envelope does not see them.
#
# The backward pass takes twice the forward pass: for $C = AB$ it needs the gradient of $A$ and
# that of $B$, each a product of the same size.
#
# ### Beside torch's own counter
#
# PyTorch can count the products that it really does. Here are small models of all our families,
# drawn at random, built by the decoder of chapter 3 and run forward and backward:

# %% tags=["hide-input"]
SMALL = {
    "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 88, "vocab_size": 211, "max_position_embeddings": 64,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 20, "q_lora_rank": 28, "qk_nope_head_dim": 8, "qk_rope_head_dim": 6,
    "v_head_dim": 10, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
TINY = {
    "GPT-2": {"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 6, "n_positions": 64,
              "vocab_size": 211},
    "Pythia": SMALL | {"model_type": "gpt_neox"},
    "BLOOM": {"model_type": "bloom", "n_layer": 3, "hidden_size": 48, "n_head": 6,
              "vocab_size": 211, "seq_length": 64},
    "Llama": SMALL | {"model_type": "llama"},
    "Qwen3": SMALL | {"model_type": "qwen3", "head_dim": 12},
    "Gemma 2": SMALL | {"model_type": "gemma2", "head_dim": 12, "query_pre_attn_scalar": 12,
                        "sliding_window": 5},
    "OLMo 2": SMALL | {"model_type": "olmo2"},
    "Mixtral": SMALL | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt-oss": SMALL | {"model_type": "gpt_oss", "head_dim": 12, "num_local_experts": 4,
                        "num_experts_per_tok": 2, "sliding_window": 5},
    "DeepSeek-V3": SMALL | LATENT | {"model_type": "deepseek_v3", "num_key_value_heads": 6},
}  # fmt: skip
tiny = {name: ModelConfig.from_hf(fields, name) for name, fields in TINY.items()}


# %%
def both_passes(decoder, ids):
    decoder(ids).sum().backward()


rows = []
for name, small in tiny.items():
    decoder = Decoder(small, attention="naive")
    ids = torch.randint(small.vocab, (2, 17))
    step = training_flops(small, *ids.shape)
    rows.append(
        {
            "family": name,
            "counted forward": step.forward,
            "torch forward": counted_flops(decoder, ids),
            "counted, both passes": step.total,
            "torch, both passes": counted_flops(both_passes, decoder, ids),
        }
    )
flops_table = pd.DataFrame(rows)
flops_table["error"] = flops_table["counted, both passes"] / flops_table["torch, both passes"] - 1

# %% tags=["hide-input"]
assert (flops_table.error == 0).all()
charts.table(
    flops_table,
    caption="FLOPs of small models over 2 × 17 tokens, naive attention",
    label={
        "counted forward": "modelled", "torch forward": "measured",
        "counted, both passes": "modelled", "torch, both passes": "measured",
    },
    formats={"error": percent},
)  # fmt: skip

# %% [markdown]
# The counts are equal, so the table says less about our formulas than about the counter. It sees
# matrix products only, and it sees them whole: that half of the square of scores is masked, it
# does not know; and for PyTorch's fused attention on a CPU it counts nothing at all. Three counts
# of one and the same layer are therefore in use:

# %% tags=["hide-input"]
long = ModelConfig.load("llama-3.1-8b")
rows = []
for tokens in (512, 2048, 8192, 32768, 131072):
    square = training_flops(long, 1, tokens)
    causal = training_flops(long, 1, tokens, causal=True)
    fused = training_flops(long, 1, tokens, causal=True, fused=True)
    rows.append(
        {
            "tokens": tokens,
            "whole square": square.total,
            "keys that count": causal.total,
            "fused kernel": fused.total,
            "6N": rules.six_n(long, tokens),
            "PaLM": rules.palm(long, tokens, tokens),
        }
    )
square_table = pd.DataFrame(rows)
charts.table(
    square_table,
    caption="Training FLOPs of one sequence, Llama 3.1 8B, by what is counted",
    label="modelled",
    formats=dict.fromkeys(square_table.columns[1:], flops),
)

# %% [markdown]
# - *Whole square*: what a naive implementation does and what most papers report ({term}`model
#   FLOPs`).
# - *Keys that count*: position $i$ looks at $i + 1$ keys, about half the square.
# - *Fused kernel*: as before, but the backward pass does not find the scores in memory and
#   computes them once more, five products for the forward pass's two.
#
# ### 6N, and where it is off
#
# Kaplan et al. count $6N$ FLOPs for a token of training, with $N$ the parameters outside the
# embeddings {cite}`kaplan2020scaling`. PaLM adds attention and the head: $6N + 12LHQT$
# {cite}`chowdhery2022palm`. Megatron's formula, $96Bslh^2(1 + s/6h + V/16lh)$, is exact for GPT
# with full recomputation {cite}`narayanan2021megatron`. The chart divides the exact count by $6N$.

# %% tags=["hide-input"]
lines = []
for name in ("gpt2-xl", "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-405b", "deepseek-v3"):
    read = ModelConfig.load(name)
    for power in range(7, 18):
        tokens = 2**power
        if tokens <= read.positions:
            exactly = training_flops(read, 1, tokens, causal=True).total
            ratio = exactly / rules.six_n(read, tokens)
            lines.append({"model": name, "tokens": tokens, "ratio": ratio})
lines = pd.DataFrame(lines)
ends = lines.loc[lines.groupby("model").tokens.idxmax()]
base = alt.Chart(lines).encode(
    x=alt.X("tokens:Q", title="tokens in a sequence")
    .scale(type="log", base=2, domain=[128, 131072 * 8])
    .axis(values=[2**p for p in range(7, 18, 2)], format=",d"),
    y=alt.Y("ratio:Q", title="training FLOPs ÷ 6N per token").scale(domainMin=1, nice=True),
    color=alt.Color("model:N", legend=None),
)
SHIFT = {"llama-3.2-1b": -7, "deepseek-v3": 7, "gpt2-xl": -12}
labels = [
    base.mark_text(align="left", dx=6, dy=SHIFT.get(name, 0))
    .encode(text="model:N")
    .properties(data=ends[ends.model == name])
    for name in ends.model
]
one = alt.Chart(pd.DataFrame({"y": [1]})).mark_rule(strokeDash=[4, 3]).encode(y="y:Q")
chart = alt.layer(base.mark_line(), *labels, one).properties(
    title="6N forgets the head of small models and the context of long ones",
    description="Exact training FLOPs, causal, over 6N, against the length of a sequence, for "
    "five models. All curves start above 1 by the cost of the output head, most for the smallest "
    "model, and rise once the sequence is longer than a few times the width.",
)
chart

# %% tags=["hide-input"]
at = lines.pivot_table("ratio", "model", "tokens")[[128, 1024, 8192, 131072]]
charts.table(
    at.rename(columns=lambda tokens: f"{tokens:,} tokens").reset_index(),
    caption="Training FLOPs (causal) divided by 6N",
    label="modelled",
    formats={f"{tokens:,} tokens": ".2f" for tokens in at.columns},
)

# %% [markdown]
# Two published sheets stand beside these counts: nanoGPT's, for GPT-2 at 1,024 tokens, and
# DeepSeek's, in FLOPs for each token of training at 4,096 tokens {cite}`zhao2025insights`.

# %% tags=["hide-input"]
sheet = read_reference("07_flops_mfu_scaling").set_index("quantity").value
step = training_flops(ModelConfig.load("gpt2"), 1, 1024)
rows = [
    ("nanoGPT's GPT-2, forward", step.forward, float(sheet["forward_total"])),
    ("nanoGPT's GPT-2, backward", step.backward, float(sheet["backward_total"])),
]
for row in published[published.quantity == "training_flops_per_token"].itertuples():
    per_token = training_flops(ModelConfig.load(row.model), 1, 4096, causal=True).total / 4096
    rows.append((f"{row.model}, both passes, per token", per_token, float(row.value)))
sheets = pd.DataFrame(rows, columns=["what", "ours", "published"])
sheets["error"] = sheets.ours / sheets.published - 1
charts.table(
    sheets,
    caption="Published FLOP counts beside ours",
    label={"ours": "modelled", "published": "published"},
    formats={"ours": format_flops, "published": format_flops, "error": percent},
)

# %% [markdown]
# nanoGPT's sheet counts the whole square and DeepSeek's only keys that count, and both agree with
# ours to their last printed digit. Llama is 1 % off. The number for Qwen is smaller than $6N$; it
# cannot have been counted by the rule of the others.
#
# ## Activations
#
# The backward pass needs numbers of the forward pass: to find the gradient of a matrix, the
# vectors that it multiplied. What autograd keeps until then are the {term}`activations <activation
# memory>`. They are no parameters, so no count of parameters knows of them, and in training they
# are often the larger part.
#
# One layer of GPT-2, tensor by tensor:

# %% tags=["hide-input"]
kept = pd.DataFrame(
    [
        {"part": item.part, "tensor": item.what, "bytes": item.bytes_(4)}
        for item in layer_kept(config, 0, 1, length)
    ]
)
kept["share"] = kept.bytes / kept.bytes.sum()
charts.table(
    kept,
    caption=f"What one layer of {config.name} keeps of {length} tokens, naive attention, float32",
    label="modelled",
    formats={"bytes": format_bytes, "share": ".1%"},
)

# %% [markdown]
# ### Beside what autograd keeps
#
# PyTorch calls a hook for every tensor that it puts aside. `saved_bytes` counts these tensors:
# each storage once, parameters left out. The formula counts without running anything. Both
# attention paths, several shapes:

# %%
rows = []
for name, small in tiny.items():
    for path in ("naive", "sdpa"):
        for sequences, tokens in ((1, 8), (4, 16), (2, 64)):
            decoder = Decoder(small, path)
            ids = torch.randint(small.vocab, (sequences, tokens))
            rows.append(
                {
                    "family": name,
                    "attention": path,
                    "shape": f"{sequences} × {tokens}",
                    "counted": activation_bytes(small, sequences, tokens, attention=path),
                    "kept": saved_bytes(decoder, ids),
                }
            )
memory = pd.DataFrame(rows)
memory["error"] = memory.counted / memory.kept - 1

# %% tags=["hide-input"]
worst = memory.error.abs().max()
charts.table(
    memory[memory["shape"] == "2 × 64"].drop(columns="shape"),
    caption="Activation memory of small models over 2 × 64 tokens, float32",
    label={"counted": "modelled", "kept": "measured"},
    formats={"counted": format_bytes, "kept": format_bytes, "error": percent},
)

# %% tags=["hide-input"]
assert worst <= 0.01
charts.prose(
    f"Over all {len(memory)} runs (two more shapes are not in the table) "
    + (f"the largest error is {worst:.2%}." if worst else "not one byte is missing or too many.")
)

# %% [markdown]
# Where the two paths agree in the table, the fused kernel cannot be used: Gemma 2 caps its scores,
# gpt-oss has {term}`attention sinks <attention sink>`, and DeepSeek's values are narrower than its
# keys. For the others the square is gone.
#
# ### Korthikanti's formula
#
# Korthikanti et al. give $sbh\,(34 + 5as/h)$ bytes for one layer in 16 bits
# {cite}`korthikanti2022reducing`. Ours for the same GPT-3 layer is smaller, and the difference can
# be named:

# %% tags=["hide-input"]
gpt3 = ModelConfig.load("gpt3-175b")
tokens, hidden, heads = gpt3.positions, gpt3.hidden, gpt3.attention.heads
ours = sum(item.bytes_(2) for item in layer_kept(gpt3, 0, 1, tokens))
theirs = rules.korthikanti(gpt3, 1, tokens)
dropped = 3 * heads * tokens * tokens
masks = 2 * tokens * hidden
statistics = -2 * 2 * tokens * 4
assert theirs - ours == dropped + masks + statistics
charts.table(
    pd.DataFrame(
        [
            ("ours: no dropout, statistics of norms kept", ours),
            ("dropout of the probabilities: its output, and a mask of one byte", dropped),
            ("dropout of what attention and MLP give: two masks of one byte", masks),
            ("statistics of two norms, which they neglect", statistics),
            ("Korthikanti et al.", theirs),
        ],
        columns=["one layer of GPT-3 175B, one sequence of 2,048 tokens", "bytes"],
    ),
    caption="From our count to Korthikanti's formula, in bytes",
    label={"bytes": "modelled"},
)

# %% [markdown]
# ### Recomputing instead of keeping
#
# *Selective* recomputation drops the square of probabilities and computes it again; *full* keeps
# only the input of each layer. A fused kernel does what selective recomputation does, without
# being asked.

# %% tags=["hide-input"]
big = ModelConfig.load("llama-3.1-405b")
WAYS = {
    "naive, all kept": ("naive", "none"),
    "naive, selective": ("naive", "selective"),
    "fused kernel": ("sdpa", "none"),
    "full recomputation": ("naive", "full"),
}
rows = []
for way, (path, recompute) in WAYS.items():
    for power in range(9, 18):
        peak = peak_activation_bytes(big, 1, 2**power, 2, path, recompute)
        rows.append({"way": way, "tokens": 2**power, "bytes": peak})
ways = pd.DataFrame(rows)
last = ways[ways.tokens == ways.tokens.max()]
scale = alt.Scale(domain=list(WAYS), range=list(PALETTE.values())[: len(WAYS)])
base = alt.Chart(ways).encode(
    x=alt.X("tokens:Q", title="tokens in the sequence")
    .scale(type="log", base=2, domain=[512, 131072 * 8])
    .axis(values=[2**p for p in range(9, 18, 2)], format=",d"),
    y=alt.Y("bytes:Q", title="bytes (logarithmic)")
    .scale(type="log")
    .axis(format="~s", tickCount=6),
    color=alt.Color("way:N", scale=scale, legend=None),
)
SHIFT = {"naive, selective": -7, "fused kernel": 7}
labels = [
    base.mark_text(align="left", dx=6, dy=SHIFT.get(way, 0))
    .encode(text="way:N")
    .properties(data=last[last.way == way])
    for way in WAYS
]
chart = alt.layer(base.mark_line(), *labels).properties(
    title="Long sequences are paid for in probabilities, until they are not kept",
    description="Activation bytes of Llama 3.1 405B in 16 bits for one sequence, by length and by "
    "what is kept. With naive attention the curve bends up above 4,096 tokens, the others grow "
    "in proportion to the length; full recomputation keeps about a fiftieth.",
)
chart

# %% tags=["hide-input"]
ratios = ways.pivot_table("bytes", "way", "tokens").loc[list(WAYS), [2048, 8192, 131072]]
extra = {}
for way, (path, recompute) in WAYS.items():
    again = training_flops(big, 1, 8192, recompute=recompute, fused=path == "sdpa").total
    extra[way] = again / training_flops(big, 1, 8192).total - 1
ratios = ratios.rename(columns=lambda tokens: f"{tokens:,} tokens").reset_index()
ratios["more FLOPs at 8,192"] = [extra[way] for way in ratios.way]
charts.table(
    ratios,
    caption="Activations of one sequence of Llama 3.1 405B at their peak, bfloat16, on one machine",
    label="modelled",
    formats=dict.fromkeys(ratios.columns[1:4], size) | {"more FLOPs at 8,192": ".1%"},
)

# %% [markdown]
# No single machine holds the long ones, and none holds the weights beside them. That is why the
# chapters of part II cut the model.
#
# ## What else has to be held
#
# In training each parameter has company: a gradient, Adam's two moments, and in mixed precision a
# 32-bit master copy {cite}`micikevicius2018mixed`. The recipes differ by more than a factor of
# two:

# %% tags=["hide-input"]
eight = ModelConfig.load("llama-3.1-8b")
rows = [
    {
        "recipe": name,
        "weight + gradient + master + moments": " + ".join(
            str(part) for part in (recipe.weights, recipe.gradients, recipe.master, recipe.moments)
        ),
        "bytes": recipe.per_parameter,
        "8B": sum(state_bytes(eight, name).values()),
        "405B": sum(state_bytes(big, name).values()),
    }
    for name, recipe in RECIPES.items()
]
charts.table(
    pd.DataFrame(rows),
    caption="Bytes for each parameter by recipe, and Llama 3.1 8B and 405B in it",
    label="modelled",
    formats={"8B": size, "405B": size},
)

# %% [markdown]
# In serving there are no gradients, but each token leaves keys and values in every layer: the
# {term}`key–value cache`. It is what grows with the conversation, and what architectures of the
# last years have fought. Multi-head attention (MHA) keeps keys and values for every head;
# grouped-query (GQA) for a few; multi-query (MQA) for one; latent attention (MLA) one narrow
# vector for all.

# %% tags=["hide-input"]
SERVED = ("gpt3-175b", "llama-2-7b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-405b", "falcon-7b",
          "qwen2.5-72b", "qwen3-30b-a3b", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3",
          "kimi-k2")  # fmt: skip
rows = []
for name in SERVED:
    read = ModelConfig.load(name)
    tokens = min(8192, read.positions)
    rows.append(
        {
            "model": name,
            "kind": read.attention.kind,
            "bytes": kv_bytes_per_token(read),
            "shown": f"{read.attention.kind}  {format_bytes(kv_bytes_per_token(read))}",
            "in use": kv_cache_bytes(read, 1, tokens) / tokens,
        }
    )
kv = pd.DataFrame(rows).sort_values("bytes", ascending=False)
kinds = alt.Scale(
    domain=["MHA", "GQA", "MQA", "MLA"],
    range=[PALETTE[name] for name in ("orange", "blue", "violet", "brick")],
)
base = alt.Chart(kv).encode(
    y=alt.Y("model:N", sort=None, title=None),
    x=alt.X("bytes:Q", title="bytes of cache for one more token, bfloat16")
    .scale(domain=[0, 5.8e6])
    .axis(format="~s"),
)
chart = (
    base.mark_bar().encode(color=alt.Color("kind:N", scale=kinds, legend=None))
    + base.mark_text(align="left", dx=5).encode(text="shown:N")
).properties(
    title="A token of GPT-3 weighs as much as 67 tokens of DeepSeek-V3",
    description="Key-value cache per token for twelve models. "
    + "; ".join(f"{row.model} {row.shown}" for row in kv.itertuples()),
    height=alt.Step(24),
)
chart

# %% tags=["hide-input"]
assert round(kv.bytes.max() / kv.set_index("model").bytes["deepseek-v3"]) == 67
charts.table(
    kv[["model", "kind", "bytes", "in use"]],
    caption="Key–value cache per token: in all layers, and on average over 8,192 tokens (or the "
    "model's positions) where windowed layers keep their window only",
    label="modelled",
    formats={"bytes": format_bytes, "in use": format_bytes},
)

# %% tags=["hide-input"]
stated = published[published.quantity == "kv_bytes_per_token"].set_index("model").value
assert all(kv_bytes_per_token(ModelConfig.load(name)) == value for name, value in stated.items())
charts.prose(
    "DeepSeek publishes three of these numbers {cite}`zhao2025insights`: "
    + ", ".join(f"{name} {{published}}`{value / 1000:.2f} kB`" for name, value in stated.items())
    + ". All three equal ours."
)

# %% [markdown]
# ## What passes from stage to stage
#
# Cut the model anywhere between two layers: what a network has to carry is the residual stream,
# and nothing else. Its size is the width of the model, whatever happens inside a layer.


# %% tags=["hide-input"]
def boundaries(read, sequences, tokens):
    table = stage_table(read, sequences, tokens, 2)
    rows = [table[0], table[1], *table[-3:]]
    inside = layer_table(read, read.layers - 1, sequences, tokens, 2)
    return pd.DataFrame(
        {
            "from": row.after,
            "to": row.before,
            "tensor": row.tensor,
            "shape": " × ".join(f"{extent:,}" for extent in row.shape),
            "bytes per token": row.bytes_per_token,
        }
        for row in (*rows[:2], *inside, *rows[2:])
    )


charts.table(
    boundaries(ModelConfig.load("llama-3.1-8b"), 1, 4096),
    caption="Tensors between and (in the middle rows) inside stages: Llama 3.1 8B, one sequence of "
    "4,096 tokens, bfloat16, ids as int64",
    label="modelled",
    formats={"bytes per token": ",.0f"},
)

# %% [markdown]
# A token is a few bytes as text and eight as an id. Between two layers it is a vector of 8 KiB, and
# that vector, or its gradient on the way back, is the unit in which pipeline and tensor parallelism
# pay.
#
# ## A calculator
#
# The same counts for shapes of your own, computed in your browser. It knows Llama's architecture,
# with experts if you ask for some; the models in the list start the sliders.


# %% tags=["hide-input"]
def preset(name):
    read = ModelConfig.load(name)
    a, moe = read.attention, read.moe
    return {
        "layers": read.layers, "hidden": read.hidden, "heads": a.heads, "kvHeads": a.kv_heads,
        "headDim": a.head_dim, "width": moe.width if moe else read.mlp.width,
        "experts": moe.experts if moe else 0, "topK": moe.top_k if moe else 1,
        "vocab": read.vocab, "tied": read.tied, "length": 4096,
    }  # fmt: skip


PRESETS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b", "smollm2-135m",
           "mistral-7b", "mixtral-8x7b", "mixtral-8x22b")  # fmt: skip
presets = json.dumps({name: preset(name) for name in PRESETS})
HTML(
    "<div data-calculator><p>The calculator runs in the built page.</p>"
    f'<script type="application/json">{presets}</script></div>'
)

# %% [markdown]
# ## From counts to time: the roofline
#
# FLOPs become seconds on a machine, and there a second count decides: the bytes that have to come
# from memory. Work of $F$ FLOPs that moves $B$ bytes runs at no more than
# $\min(\text{peak}, F/B · \text{bandwidth})$: the {term}`roofline` {cite}`williams2009roofline`.
# $F/B$ is the *intensity*. In prefill one read of the weights serves all tokens of the batch; in
# decoding it serves one token of each sequence.
#
# Both rates of this machine, measured:

# %% tags=["hide-input"]
torch.set_num_threads(threads)
device = roofline.resolve("auto")
here = roofline.measure(device, ("float32",), bytes_=2**26)
charts.prose(
    f"Matrix products reach {{measured}}`{flops(here.peak('float32'))}/s` in float32, memory gives "
    f"{{measured}}`{size(here.bandwidth_Bps)}/s`. The ridge, where both limit alike, lies at "
    f"{{measured}}`{here.ridge('float32'):.0f} FLOP/B`."
)

# %% tags=["hide-input"]
PHASES = {  # sequences, new tokens, tokens in the cache
    "decode, 1 sequence": (1, 1, 1024),
    "decode, 16": (16, 1, 1024),
    "decode, 256": (256, 1, 1024),
    "prefill, 1 × 1,024": (1, 1024, 0),
    "training, 8 × 2,048": (8, 2048, 0),  # backward: twice the FLOPs, twice the bytes
}
SERVED = ("smollm2-135m", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3")
work = {}  # by bytes of a number, model, phase and stage
for width in (2, 4):
    for name in SERVED:
        for phase, (sequences, new, past) in PHASES.items():
            works = roofline.stage_work(ModelConfig.load(name), sequences, new, past, width)
            work[width, name, phase, "one layer"] = works[-2]
            work[width, name, phase, "head"] = works[-1]
            work[width, name, phase, "whole pass"] = roofline.total(works, phase)

roofs = {"this machine": (here, "float32", 4)}
for name in accelerator_names():
    if "memory_Bps" in read_accelerator(name):
        roof = Roofline.of(name)
        roofs[roof.name] = (roof, "bfloat16", 2)
lines, points = [], []
for machine, (roof, dtype, bytes_per_number) in roofs.items():
    for x in (0.1, roof.ridge(dtype), 10_000):
        lines.append({"machine": machine, "intensity": x, "rate": roof.attainable(x, dtype)})
    for (width, name, phase, stage), done in work.items():
        if width == bytes_per_number:
            rate = roof.attainable(done.intensity, dtype)
            points.append(
                {
                    "machine": machine,
                    "model": name,
                    "phase": phase,
                    "stage": stage,
                    "intensity": done.intensity,
                    "rate": rate,
                    "share": rate / roof.peak(dtype),
                }
            )
points = pd.DataFrame(points)


# %% tags=["hide-input"]
def chosen(name, value, options):
    return alt.param(name, value=value, bind=alt.binding_select(options=options, name=f"{name} "))


x = alt.X("intensity:Q", title="FLOP for each byte moved").scale(type="log", domain=[0.1, 10_000])
y = (
    alt.Y("rate:Q", title="FLOP/s at most")
    .scale(type="log", domain=[1e9, 1e16])
    .axis(format="~s", tickCount=7)
)
line = alt.Chart(pd.DataFrame(lines)).transform_filter("datum.machine === machine")
dots = (
    alt.Chart(points)
    .transform_filter("datum.machine === machine && datum.model === model")
    .transform_filter("datum.stage === stage")
    .encode(
        x=x,
        y=y,
        tooltip=[
            "phase:N",
            alt.Tooltip("intensity:Q", format=".3g"),
            alt.Tooltip("share:Q", format=".1%", title="of the peak"),
        ],
    )
)
chart = (
    alt.layer(
        line.mark_line().encode(x=x, y=y),
        dots.mark_point(size=80, color=PALETTE["orange"]),
        # Labels climb from left to right, so those of one plateau do not meet.
        dots.mark_text(align="right", dx=-9, dy=-9).encode(text="phase:N"),
    )
    .add_params(
        chosen("machine", "H100 SXM", list(roofs)),
        chosen("model", "llama-3.1-8b", list(SERVED)),
        chosen("stage", "whole pass", ["whole pass", "one layer", "head"]),
    )
    .properties(
        title="Decoding waits for memory; only a crowd of sequences lifts it",
        description="Roofline of a machine and, on it, the phases of a stage of a model, chosen "
        "by the reader. Decoding one sequence lies far down the slope, sixteen sequences an order "
        "of magnitude higher, prefill and training on the flat part.",
    )
)
chart

# %% tags=["hide-input"]
machine = roofs["H100 SXM"][0]
rows = []
for phase in PHASES:
    done = work[2, "llama-3.1-8b", phase, "whole pass"]
    passes = 3 if phase.startswith("training") else 1
    rows.append(
        {
            "phase": phase,
            "FLOP per byte": done.intensity,
            "of the peak": machine.attainable(done.intensity, "bfloat16")
            / machine.peak("bfloat16"),
            "least time": passes * machine.time_s(done, "bfloat16"),
        }
    )
charts.table(
    pd.DataFrame(rows),
    caption="Llama 3.1 8B on an H100 SXM, bfloat16: the roofline's verdict for one pass, in "
    "training for forward and backward",
    label="modelled",
    formats={
        "FLOP per byte": lambda n: f"{n:,.3g}" if n < 100 else f"{n:,.0f}",
        "of the peak": ".1%",
        "least time": format_time,
    },
)

# %% [markdown]
# ### Model beside measurement
#
# A model of SmolLM2's shape, run on this machine. The roofline gives the least time; the decoder
# takes longer:

# %%
shape = ModelConfig.load("smollm2-135m")
decoder = Decoder(shape).to(device)
rows = []
with torch.no_grad():
    for phase, (sequences, new, past) in {
        "prefill, 64 tokens": (1, 64, 0),
        "decode, 1 sequence": (1, 1, 128),
        "decode, 8": (8, 1, 128),
    }.items():
        ids = torch.randint(shape.vocab, (sequences, new), device=device)
        cache = KVCache(shape, sequences, past + new, device)

        def run(ids=ids, cache=cache, past=past):
            cache.set_lengths([past] * cache.batch)
            decoder(ids, cache=cache)

        works = roofline.stage_work(shape, sequences, new, past)
        least = sum(here.time_s(work, "float32") for work in works)
        took = roofline.seconds(run, device, rounds=3)
        rows.append({"phase": phase, "least": least, "took": took, "of the roof": least / took})

# %% tags=["hide-input"]
charts.table(
    pd.DataFrame(rows),
    caption="SmolLM2-135M's shape in float32 on this machine: the roofline's least time, and the "
    "median of three runs",
    label={"least": "modelled", "took": "measured"},
    formats={"least": format_time, "took": format_time, "of the roof": ".0%"},
)

# %% [markdown]
# What is missing to 100 % are the norms, activations and softmaxes, which have no FLOPs here, thin
# matrices that do not reach the peak, and the time Python takes to start hundreds of kernels.
# Chapter 6 measures more of it.
#
# ## Where the counting stops being true
#
# - **FLOPs are not time.** A norm has next to no FLOPs and still reads and writes the whole
#   residual stream. A product with a thin matrix waits for memory. The roofline above says which
#   it is; a real kernel stays below it.
# - **A fused kernel works in tiles.** It skips tiles that are masked throughout, not single pairs:
#   the count of keys that count is its lower bound.
# - **Activations are those of our decoder in float32.** Another implementation keeps other
#   tensors: dropout keeps masks, a CPU's RMSNorm in bfloat16 keeps what it normalises in float32,
#   a fused GPU kernel keeps less. The table with Korthikanti's formula shows how to name such
#   differences.
# - **Allocators round up.** The memory that a process takes is larger than the tensors in it, by
#   fragmentation and by buffers that kernels ask for. Chapter 5 measures the whole.
# - **Experts are not visited evenly.** FLOPs do not depend on which experts are chosen. Time does,
#   and so does what the network carries (chapter 11).
#
# ## Exercises
#
# ```{exercise}
# :label: counting-tied
# Llama 3.2 1B ties its head to its embedding, Llama 3.1 8B does not. How many parameters would
# Llama 3.2 1B have without the tie, and by how much would its FLOPs for a token change?
# ```
#
# ```{solution} counting-tied
# :class: dropdown
# The table has 128,256 × 2,048 numbers, so the model grows from 1,235,814,400 to 1,498,482,688
# parameters, by 21 %. The FLOPs do not change at all: the head is multiplied by either way.
# ```
#
# ```{exercise}
# :label: counting-length
# At which length of a sequence do scores and mixing cost as much as all other products of a layer
# of GPT-2, if the whole square is counted? Derive it first, then check it with `layer_operations`.
# ```
#
# ```{solution} counting-length
# :class: dropdown
# For each token the matrices of a layer cost $2 · 12h^2$ and the square $4sh$. They are equal at
# $s = 6h = 4{,}608$ tokens. GPT-2 has 1,024 positions, so it never gets there; a model of the same
# width with a long context does.
# ```
#
# ```{exercise}
# :label: counting-cache
# Llama 3.1 405B in bfloat16 serves conversations of 32,768 tokens. How many of them hold as many
# bytes of cache as the model has bytes of weights? How many if it had one key–value head, and how
# many if it used DeepSeek-V3's latent attention in its 126 layers?
# ```
#
# ```{solution} counting-cache
# :class: dropdown
# The weights are 811.7 GB. A token leaves 2 × 126 × 8 × 128 × 2 B = 516 kB, a conversation 16.9 GB:
# 48 conversations. With one head a conversation takes 2.1 GB: 384. A latent vector has
# 512 + 64 numbers, 145 kB a token over 126 layers, 4.76 GB a conversation: 171. One head is smaller
# than the latent vector; what it costs is quality, which no count shows.
# ```
#
# ```{exercise}
# :label: counting-config
# Take the `config.json` of a model that is not in the table, run this chapter with `model` set to
# its path, and compare the count with the publisher's. If the family is refused, say which field of
# `ModelConfig` would have to change.
# ```
#
# ```{solution} counting-config
# :class: dropdown
# `papermill -p model path/to/config.json`, or `tokenlife model path/to/config.json` for the counts
# alone. A refusal names the families that are known and the fields that a model built like Llama
# needs.
# ```
#
# ## Where the token goes next
#
# The counts say what one pass costs. To learn, the model has to pass millions of times, and to
# change a little after each. Chapter 5 takes one such step apart, measures where its time and its
# memory go, and then trains a model for real.
