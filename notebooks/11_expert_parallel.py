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
# # Expert parallelism
#
# ```{spine} communication messages
# ```
#
# In a {term}`mixture of experts` each token visits a few of many small networks. The parameters are
# those of all experts, so no GPU can hold them; the work is that of the few. So the experts of a
# layer are spread over ranks, and in this one kind of parallelism it is the token that travels: its
# vector is sent to the experts that the {term}`router` chose, worked on there, and sent back.
# Twice per layer and direction, to wherever the text asks for. **How many bytes is that, who gets
# how many, and what happens when everybody wants the same expert?**

# %% tags=["parameters"]
ranks = 4
steps = 100  # of training, for each of two routers
length, rows = 64, 4  # tokens of a sequence, sequences of a rank in each step
balance = 0.2  # weight of the penalty on unequal loads, for the second router
seed = 0  # of what is simulated
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
import re
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
import torch
from tokenlife import charts, corpus, lab
from tokenlife.catalog import read_reference
from tokenlife.charts import PALETTE
from tokenlife.jobs import traffic
from tokenlife.jobs.left import in_words, left
from tokenlife.lab.result import GLOO_HEADER
from tokenlife.parallel import Plan, communication
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.moe import route
from tokenlife.units import format_bytes, format_time

charts.setup()
v3 = ModelConfig.load("deepseek-v3")
published = read_reference("05_deepseek_v3")  # DeepSeek-V3 and its machines
h800 = published[published.table == "sections 2-4"].set_index("quantity").value
card_Bps, inside_Bps = (float(h800[k]) * 1e9 for k in ("H800 IB per NIC", "usable NVLink"))
page = lab.Page(
    "11_expert_parallel",
    ["lab/calls.py", "lab/program.py", "transformer/model.py", "transformer/moe.py"],
)


def size(value, digits=3):
    return format_bytes(value, digits).replace(" ", "\u00a0")


# %% [markdown]
# ## On the back of an envelope
#
# A visit is one vector out and one back, and as much again for the gradients.

# %% tags=["hide-input"]
mixtures = sum(map(v3.is_moe, range(v3.layers)))
per_token = v3.moe.top_k * v3.hidden * 2
whole = 4 * per_token * mixtures
charts.prose(
    f"{v3.name} has {v3.moe.experts} experts in each of {mixtures} layers, and a token visits "
    f"{v3.moe.top_k}. In 16 bits one way of one layer is {v3.moe.top_k} × {v3.hidden:,} × 2 = "
    f"{{modelled}}`{size(per_token)}` per token. Four ways (out and back, forward and backward) "
    f"and all layers: {{modelled}}`{size(whole)}` for every token that is trained on. The token "
    f"itself came as 4 bytes. Over a card of {{published}}`{size(card_Bps)}/s` that is "
    f"{{modelled}}`{format_time(whole / card_Bps)}` a token and GPU, if nothing is spared; so "
    f"something has to be."
)

# %% [markdown]
# ## The mechanism
#
# In principle it is a matter of sorting. Each rank sorts the visits of its tokens by expert, and so
# by rank, and sends each rank its share. How much that is nobody knew before: the numbers of rows
# are exchanged first, a few bytes to everyone, and then the rows, in an {term}`all-to-all` whose
# parts are unequal. This is the {term}`dispatch`. The results go the same way back, the
# {term}`combine`, and are added up with the router's weights. The gradient of a dispatch is a
# combine, and the other way round.


# %%
def exchange(rows, send, receive):
    """Send `send[r]` rows to each rank r and receive `receive[r]`; backward the other way round."""
    import torch
    import torch.distributed as dist

    def swap(x, out, into):
        came = x.new_empty(sum(into), *x.shape[1:])
        dist.all_to_all_single(came, x.contiguous(), into, out)
        return came

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return swap(x, send, receive)

        @staticmethod
        def backward(ctx, d_came):
            return swap(d_came, receive, send)

    return Exchange.apply(rows)


def travelling_mixture(mixture, x, log):
    """Do what Mixture.forward does, with each rank's experts on that rank alone."""
    import torch
    import torch.distributed as dist
    from tokenlife.transformer.moe import route

    here, ranks, moe = dist.get_rank(), dist.get_world_size(), mixture.moe
    own = moe.experts // ranks  # experts on each rank
    tokens = x.flatten(0, -2)  # (tokens, hidden)
    mixture.routing = routing = route(mixture.router(tokens), moe, mixture.choice_bias)

    visits = routing.chosen.flatten()  # (tokens · top_k,) which expert
    order = visits.argsort(stable=True)  # expert by expert, and so rank by rank
    rows = order // moe.top_k  # whose token
    mine = torch.bincount(visits, minlength=moe.experts).view(ranks, own)
    theirs = torch.empty_like(mine)  # (from which rank, to which of my experts)
    dist.all_to_all_single(theirs, mine)  # all must know how much will come
    send, receive = mine.sum(1).tolist(), theirs.sum(1).tolist()

    came = exchange(tokens[rows], send, receive)  # dispatch
    expert = torch.arange(own).repeat(ranks).repeat_interleave(theirs.flatten())
    done = torch.zeros_like(came)
    for e in range(own):
        places = torch.where(expert == e)[0]
        done = done.index_copy(0, places, mixture.experts[here * own + e](came[places]))
    back = exchange(done, receive, send)  # combine

    weights = routing.weights.flatten()[order, None].to(x.dtype)
    out = torch.zeros_like(tokens).index_add(0, rows, back * weights)
    if mixture.shared is not None:
        out = out + mixture.shared(tokens)
    log.append(mine.tolist())
    return out.view_as(x)


# %% [markdown]
# That is all of {term}`expert parallelism` {cite}`lepikhin2021gshard`. What large systems add are
# kernels that pack, send and sort at once, and limits, which come below.
#
# ## Really run: a mixture is trained across ranks
#
# The small mixture of [chapter 3](03_inside_the_transformer.ipynb) is trained again, from nothing,
# on Shakespeare, with its experts spread over the ranks of the lab and each rank's tokens its own.
# Only a mixture that has learnt something routes as real ones do. The last batch is looked at more
# closely: calls and bytes are counted, and one process does the same alone, from the same weights.
# (So that it can, every rank keeps a copy of all experts, which only their own rank uses, and their
# gradients are summed like all others. A real job keeps its own, which is the point.)


# %%
def train(here, sizes, ids, steps, rate, balance, length, rows):
    """Train a mixture whose experts lie on all ranks; at the end compare with one process."""
    import torch
    import torch.distributed as dist
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer import ModelConfig
    from tokenlife.transformer.model import Decoder
    from tokenlife.transformer.train import loss_sum

    torch.manual_seed(0)
    model = Decoder(ModelConfig.from_hf(sizes, "small mixture"))
    mixtures = [block.mlp for block in model.blocks]
    whole, log = [m.forward for m in mixtures], []
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    ids = torch.tensor(ids)
    draw = torch.Generator().manual_seed(0)  # all ranks draw all rows, and take their own

    def batch():
        starts = torch.randint(len(ids) - length, (here.ranks * rows,), generator=draw)
        return torch.stack([ids[i : i + length + 1] for i in starts])

    def loss(part, labels):
        return loss_sum(model(part[:, :-1]), part[:, 1:]) / labels

    def spread(on):
        for mixture, alone in zip(mixtures, whole, strict=True):
            travels = lambda x, mixture=mixture: travelling_mixture(mixture, x, log)  # noqa: E731
            mixture.forward = travels if on else alone

    def gradient():  # experts that are not here have none
        return torch.cat([
            (torch.zeros_like(w) if w.grad is None else w.grad).flatten()
            for w in model.parameters()
        ])  # fmt: skip

    spread(True)
    counts, losses, labels = [], [], here.ranks * rows * length
    for step in range(steps + 1):
        now = batch()
        part = now[here.rank * rows :][:rows]
        log.clear()
        optimiser.zero_grad()
        if step == steps:  # the last is not taken but looked at
            with here.counted() as sent, Calls() as calls:
                value = loss(part, labels)
                value.backward()
        else:
            value = loss(part, labels)
            penalty = balance * model.load_balance_loss() / here.ranks
            (value + penalty).backward()
        counts.append([list(layer) for layer in log])
        total, summed = value.detach().clone(), gradient()
        dist.all_reduce(total), dist.all_reduce(summed)
        losses.append(float(total))
        if step < steps:
            place = 0
            for w in model.parameters():
                w.grad = summed[place : place + w.numel()].view_as(w)
                place += w.numel()
            optimiser.step()
    spread(False)
    optimiser.zero_grad()
    alone = loss(now, labels)
    alone.backward()
    right = gradient()
    return {
        "losses": losses, "alone": float(alone.detach()), "counts": counts, "calls": calls.rows(),
        **sent, "gradient": float((summed - right).abs().max() / right.abs().max()),
    }  # fmt: skip


# %%
sizes = {
    "model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
    "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 128,
    "vocab_size": 4096, "tie_word_embeddings": True,
}  # fmt: skip
small = ModelConfig.from_hf(sizes, "small mixture")
ids = vocabularies.load("book").encode_ordinary(corpus.shakespeare()[0].text)
ROUTERS = {"left to itself": 0.0, "unequal loads penalised": balance}
common = {"sizes": sizes, "ids": ids, "steps": steps, "rate": 3e-3, "length": length, "rows": rows}
ran = page.on_ranks(
    "trained",
    *((train, common | {"balance": penalty}) for penalty in ROUTERS.values()),
    ranks=ranks,
)
trained, label, _ = ran
for on_each in trained:
    for found in on_each:
        assert found["gradient"] < 1e-5
        assert abs(found["losses"][-1] / found["alone"] - 1) < 1e-6

# %% tags=["hide-input"]
first = trained[0][0]
worst = max(found["gradient"] for on_each in trained for found in on_each)
charts.prose(
    f"{ran.where} The loss fell from {{{label}}}`{first['losses'][0]:.3f}` to "
    f"{{{label}}}`{first['losses'][-1]:.3f}` in {steps} steps. On the last batch one process finds "
    f"{{{label}}}`{first['alone']:.3f}` too, and the gradients of all weights differ by "
    f"{{{label}}}`{worst:.0e}` of the largest at worst, with either router (refused above 1e-05). "
    "What differs is the order of sums: an expert's gradient is a sum over tokens, and they came "
    "in another order."
)

# %% [markdown]
# ### The calls, beside the library's
#
# The library assumes that tokens choose evenly. What leaves a token's own rank does not depend on
# the choice: each token makes its visits, whatever they are. What leaves an expert's rank does.

# %%
plan = Plan(dp=ranks, ep=ranks, micro_batch=rows, sequence=length, recipe="float32")
ops = communication(small, plan, axis="ep")
(even_bytes,) = {op.bytes_ for op in ops}
calls_each = sum(op.count for op in ops)
VISIT = small.hidden * 4  # bytes of a vector
own = small.moe.experts // ranks


def matrices(on_each, step):
    """Visits from rank to rank in each layer of a step: (layers, ranks, ranks)."""
    return np.array([found["counts"][step] for found in on_each]).sum(-1).transpose(1, 0, 2)


def leaves(visits, rank):
    """Bytes that leave a rank in the calls of one layer: of tokens and of results, twice each."""
    return sorted(2 * [visits[rank].sum() * VISIT, visits[:, rank].sum() * VISIT])


for on_each in trained:
    last = matrices(on_each, -1)
    for rank, found in enumerate(on_each):
        seen = [c["bytes"] for c in found["calls"] for _ in range(c["count"])]
        counts = [small.moe.experts * 8] * small.layers  # how much will come
        assert sorted(seen) == sorted(counts + [size for m in last for size in leaves(m, rank)])
    # All tokens make their visits: the mean over ranks is what the library says, exactly.
    assert (last.sum(axis=2) * VISIT == even_bytes).all()
    assert (last.sum(axis=1).mean(axis=1) * VISIT == even_bytes).all()

# %% tags=["hide-input"]
wild = matrices(trained[0], -1)
lines = []
for layer, visits in enumerate(wild, 1):
    for kind, axis in (("tokens (dispatch, and gradients of combine)", 1),
                       ("results (combine, and gradients of dispatch)", 0)):  # fmt: skip
        sent = visits.sum(axis=axis) * VISIT
        lines.append(
            {"layer": layer, "what leaves": kind, "library": even_bytes}
            | {f"rank {r}": int(b) for r, b in enumerate(sent)}
            | {"mean": float(sent.mean())}
        )
charts.table(
    pd.DataFrame(lines),
    caption="Bytes of the buffer that leaves a rank in one call, last batch, router left to "
    f"itself; each kind is called twice a layer, {calls_each} calls in all",
    label={"library": "modelled", "mean": label} | {f"rank {r}": label for r in range(ranks)},
    formats={"mean": ",.0f"},
)

# %% tags=["hide-input"]
busy = max(visits.sum(axis=0).max() for visits in wild) * VISIT
charts.prose(
    f"The number of calls is the library's, {calls_each}, and {small.layers} more: the numbers of "
    f"rows, {small.moe.experts * 8} bytes each, which the library leaves out. What leaves the "
    "tokens' ranks is equal to the library's bytes on every rank. What leaves the experts' ranks "
    "is equal to it in the mean, since every visit that was sent is answered, and on no single "
    f"rank: it ranges up to {{{label}}}`{size(busy)}` where the library says {size(even_bytes)}. "
    "That difference is the imbalance."
)

# %% [markdown]
# ### On the sockets
#
# A visit to an expert on one's own rank is not sent. The rest is: so many rows of 256 bytes, and
# {term}`gloo`'s headers, 144 bytes for a message that is sent and one that comes.

# %%
lines = []
for router, on_each in zip(ROUTERS, trained, strict=True):
    last = matrices(on_each, -1)
    for rank, found in enumerate(on_each):
        rows_out = sum(2 * (m[rank].sum() + m[:, rank].sum() - 2 * m[rank, rank]) for m in last)
        numbers = small.layers * (ranks - 1) * own * 8
        headers = (calls_each + small.layers) * (ranks - 1) * 3 * GLOO_HEADER
        modelled = int(rows_out * VISIT + numbers + headers)
        evenly = int((ranks - 1) / ranks * even_bytes * calls_each + numbers + headers)
        error = found["payload_bytes"] / modelled - 1
        assert abs(error) <= 0.005, (router, rank, error)
        lines.append(
            {"router": router, "rank": rank, "if even": evenly, "by the visits": modelled,
             "on the sockets": found["payload_bytes"], "difference": error}
        )  # fmt: skip
sockets = pd.DataFrame(lines)

# %% tags=["hide-input"]
charts.table(
    sockets,
    caption="Payload that each rank sent for its experts in the last batch, bytes",
    label={"if even": "modelled", "by the visits": "modelled", "on the sockets": label},
    formats={"difference": "+.2%"},
)

# %% [markdown]
# ## Who visits whom
#
# Rows are ranks that hold tokens, columns ranks that hold experts. If all chose evenly, every cell
# would be 1. Move through the training.

# %% tags=["hide-input"]
cells = []
every = max(1, steps // 20)
for router, on_each in zip(ROUTERS, trained, strict=True):
    for step in range(0, steps + 1, every):
        for layer, visits in enumerate(matrices(on_each, step), 1):
            share = visits / visits.sum() * ranks**2
            cells += [
                {"router": router, "step": step, "layer": f"layer {layer}", "from": f"rank {i}",
                 "to": f"rank {j}", "share": float(share[i, j])}
                for i in range(ranks) for j in range(ranks)
            ]  # fmt: skip
cells = pd.DataFrame(cells)
params = [
    alt.param(name="seen_router", value="left to itself",
              bind=alt.binding_select(options=list(ROUTERS), name="router ")),
    alt.param(name="seen_layer", value="layer 2",
              bind=alt.binding_select(options=cells.layer.unique().tolist(), name="layer ")),
    alt.param(name="seen_step", value=int(cells.step.max()),
              bind=alt.binding_range(min=0, max=int(cells.step.max()), step=every, name="step ")),
]  # fmt: skip
at_end = cells[(cells.router == "left to itself") & (cells.layer == "layer 2")
               & (cells.step == cells.step.max())]  # fmt: skip
columns = at_end.groupby("to").share.mean()
base = (
    alt.Chart(cells)
    .transform_filter(
        "datum.router === seen_router && datum.layer === seen_layer && datum.step === seen_step"
    )
    .encode(
        x=alt.X("to:N", title="experts on", axis=alt.Axis(labelAngle=0, orient="top")),
        y=alt.Y("from:N", title="tokens from"),
    )
)
heat = base.mark_rect().encode(
    color=alt.Color("share:Q", legend=None).scale(
        domain=[0, 1, 4], range=["#f1f4f8", "#9cc3e6", PALETTE["blue"]], clamp=True
    ),
    tooltip=["from:N", "to:N", alt.Tooltip("share:Q", format=".2f")],
)
numbers = base.mark_text(fontSize=13).encode(
    text=alt.Text("share:Q", format=".2f"),
    color=alt.condition("datum.share > 2.2", alt.value("white"), alt.value("#222832")),
)
(heat + numbers).add_params(*params).properties(
    title=f"After {steps} steps {columns.idxmax()} gets {columns.max():.1f} times its share, "
    f"{columns.idxmin()} {columns.min():.1f}",
    description="Visits from the tokens of each rank to the experts of each rank, over an even "
    "share, for a router, a layer and a training step to be chosen. At the end, in layer 2, router "
    "left to itself, the columns are: "
    + "; ".join(f"{rank} {share:.2f}" for rank, share in columns.items())
    + ".",
    height=240,
)

# %% [markdown]
# The columns differ, the rows hardly: it is the text that decides, and all ranks read the same kind
# of text. So no clever placement of *tokens* helps. An all-to-all whose columns differ is bound by
# its widest column: that rank receives, works and answers last, and all wait.
#
# ## How uneven, over time
#
# Even a fair die is uneven over few throws. So the measured imbalance must be set against what
# choices at random would give.

# %% tags=["hide-input"]
chance = np.random.default_rng(seed)


def at_random(tokens, experts, top_k, ranks, draws=400):
    """Busiest over mean, of experts and of ranks, if visits fall evenly at random: two means."""
    loads = chance.multinomial(tokens * top_k, np.full(experts, 1 / experts), size=draws)
    by_rank = loads.reshape(draws, ranks, -1).sum(-1)
    return [float((each.max(1) / each.mean(1)).mean()) for each in (loads, by_rank)]


def busiest(loads):
    """Busiest over mean along the last axis."""
    return loads.max(-1) / loads.mean(-1)


curves, loads_of = [], {}
for router, on_each in zip(ROUTERS, trained, strict=True):
    loads = np.array([found["counts"] for found in on_each]).sum(0)  # (steps, layers, ranks, own)
    loads_of[router] = loads.reshape(*loads.shape[:2], -1)
    by_rank = busiest(loads.sum(-1))
    curves += [
        {"router": router, "step": step, "layer": f"layer {layer + 1}",
         "rank": float(by_rank[step, layer]),
         "expert": float(busiest(loads_of[router][step, layer]))}
        for step in range(len(loads)) for layer in range(small.layers)
    ]  # fmt: skip
curves = pd.DataFrame(curves)
tokens = ranks * rows * length
fair_expert, fair_rank = at_random(tokens, small.moe.experts, small.moe.top_k, ranks)
top = curves[curves.layer == "layer 2"]
TONES = {"left to itself": PALETTE["orange"], "unequal loads penalised": PALETTE["blue"]}
base = alt.Chart(top).encode(
    x=alt.X("step:Q", title="training step").scale(domain=[0, steps], nice=False),
    y=alt.Y("rank:Q", title="busiest rank ÷ mean").scale(domain=[0.9, ranks], nice=False),
    color=alt.Color("router:N", legend=None).scale(domain=list(TONES), range=list(TONES.values())),
)
late = top[top.step > steps * 0.7].groupby("router")["rank"].mean()
marks = pd.DataFrame(
    [{"step": steps * 0.98, "rank": late[r] + dy, "text": r}
     for r, dy in (("left to itself", 0.75), ("unequal loads penalised", 0.45))]
)  # fmt: skip
tags = (
    alt.Chart(marks)
    .mark_text(align="right")
    .encode(
        x="step:Q", y="rank:Q", text="text:N",
        color=alt.Color("text:N", legend=None).scale(
            domain=list(TONES), range=list(TONES.values())
        ),
    )
)  # fmt: skip
fair = pd.DataFrame({"rank": [fair_rank]})
(
    alt.Chart(fair).mark_rule(strokeDash=[4, 3]).encode(y="rank:Q")
    + base.mark_line(strokeWidth=1.6)
    + tags
).properties(
    title=f"Left to itself the busiest rank carries {late['left to itself']:.1f} times the mean",
    description="Visits that the busiest of "
    f"{ranks} ranks gets in layer 2, over the mean, at each training step, for two routers. In the "
    f"last third: left to itself {late['left to itself']:.2f}, penalised "
    f"{late['unequal loads penalised']:.2f}. A dashed line marks choices at random, "
    f"{fair_rank:.2f}.",
    height=260,
)

# %% tags=["hide-input"]
tail = curves[curves.step > steps * 0.7].groupby(["router", "layer"], sort=False)
table = tail[["expert", "rank"]].mean().reset_index()
table.loc[len(table)] = ["at random", "any", fair_expert, fair_rank]
charts.table(
    table.rename(columns={"expert": "busiest expert ÷ mean", "rank": "busiest rank ÷ mean"}),
    caption=f"Imbalance in the last third of the run, {tokens:,} tokens and {small.moe.top_k} "
    f"visits each; the last line is modelled",
    label=label,
    formats={"busiest expert ÷ mean": ".2f", "busiest rank ÷ mean": ".2f"},
)

# %% tags=["hide-input"]
charts.prose(
    f"Choices at random would put {{modelled}}`{fair_rank:.2f}` times the mean on the busiest rank "
    "(the dashed line: simulated, every visit falls on any expert alike). A router that is left to "
    f"itself puts {{{label}}}`{late['left to itself']:.2f}` times there, one whose unequal loads "
    f"are penalised {{{label}}}`{late['unequal loads penalised']:.2f}`. A rank with several "
    "experts is less uneven than an expert: some of it evens out inside. What is above the dashed "
    "line is not noise but taste, and a penalty {cite}`fedus2022switch` or a bias on the choice "
    "{cite}`deepseek2024v3` can move it."
)

# %% [markdown]
# ### And a fair router at scale
#
# How much unevenness is left when choices are as good as random depends on how many visits fall on
# an expert. In training that is thousands. In decoding, where each rank brings a few dozen tokens,
# it is not.

# %% tags=["hide-input"]
PER_RANK = [2**k for k in range(4, 14)]
SHAPES = {
    "mixtral-8x7b": [2, 4, 8], "qwen3-30b-a3b": [8, 16, 32, 64], "deepseek-v3": [8, 16, 32, 64, 128]
}  # fmt: skip
dice = []
for name, over in SHAPES.items():
    moe = ModelConfig.load(name).moe
    for n in over:
        for per_rank in PER_RANK:
            expert, rank = at_random(per_rank * n, moe.experts, moe.top_k, n, draws=200)
            dice += [
                {"job": f"{name}, {n} ranks", "tokens": per_rank, "what": what, "ratio": value}
                for what, value in (("expert", expert), ("rank", rank))
            ]
dice = pd.DataFrame(dice)
which = alt.param(
    name="dice_job", value="deepseek-v3, 64 ranks",
    bind=alt.binding_select(options=dice.job.unique().tolist(), name="model and ranks "),
)  # fmt: skip
base = (
    alt.Chart(dice)
    .transform_filter("datum.job === dice_job")
    .encode(
        x=alt.X("tokens:Q", title="tokens that each rank brings (logarithmic)")
        .scale(type="log", base=2, domain=[16, 3 * PER_RANK[-1]], nice=False)
        .axis(values=PER_RANK, labelOverlap=True),
        y=alt.Y("ratio:Q", title="busiest ÷ mean").scale(zero=False),
        color=alt.Color("what:N", legend=None).scale(
            domain=["expert", "rank"], range=[PALETTE["violet"], PALETTE["blue"]]
        ),
        tooltip=["what:N", "tokens:Q", alt.Tooltip("ratio:Q", format=".2f")],
    )
)
ends = base.transform_filter(alt.datum.tokens == PER_RANK[-1])
tags = [
    ends.transform_filter(alt.datum.what == what).mark_text(align="left", dx=8, dy=dy)
    .encode(text="what:N")
    for what, dy in (("expert", -7), ("rank", 6))
]  # fmt: skip
alt.layer(base.mark_line(), base.mark_point(), *tags).add_params(which).properties(
    title="Chance alone is uneven when each rank brings few tokens",
    description="Visits of the busiest expert and of the busiest rank over the mean, if all "
    "choices were even and at random, against the tokens that each rank brings, for a model and "
    "a number of ranks to be chosen. Both fall towards 1; experts lie above ranks.",
    height=280,
)

# %% tags=["hide-input"]
pick = dice[dice.job == "deepseek-v3, 64 ranks"].set_index(["what", "tokens"]).ratio
charts.prose(
    f"{v3.name} over 64 ranks, choices at random: with 4,096 tokens a rank the busiest expert gets "
    f"{{modelled}}`{pick['expert', 4096]:.2f}` times the mean and the busiest rank "
    f"{{modelled}}`{pick['rank', 4096]:.2f}`; with 32 tokens a rank, as in decoding, "
    f"{{modelled}}`{pick['expert', 32]:.2f}` and {{modelled}}`{pick['rank', 32]:.2f}`. To first "
    "order the busiest of $E$ is $1 + \\sqrt{2 \\ln E / m}$ with $m$ visits to an expert in the "
    "mean: what helps is more tokens, not a better router."
)

# %% [markdown]
# ## Capacity, and who is dropped
#
# Buffers of unknown size are awkward for compilers and dangerous for memory. GShard and Switch fix
# them: each expert takes at most the {term}`capacity factor` times an even share, and visits beyond
# are dropped. A dropped token passes the layer by its residual connection alone. The price can be
# counted from the visits above.

# %% tags=["hide-input"]
FACTORS = np.round(np.arange(0.25, 4.01, 0.125), 3)


def dropped(loads, factor):
    """Share of visits beyond the capacity of their expert; loads: (…, experts)."""
    capacity = np.ceil(factor * loads.mean(-1, keepdims=True))
    return float(np.maximum(loads - capacity, 0).sum() / loads.sum())


flat = chance.multinomial(tokens * small.moe.top_k, np.full(small.moe.experts,
                          1 / small.moe.experts), size=400)  # fmt: skip
sources = {r: loads[int(steps * 0.7) :, 1] for r, loads in loads_of.items()} | {"at random": flat}
drops = pd.DataFrame(
    {"router": r, "factor": float(f), "dropped": dropped(loads, f)}
    for r, loads in sources.items()
    for f in FACTORS
)
ALL = TONES | {"at random": PALETTE["grey"]}
base = alt.Chart(drops).encode(
    x=alt.X("factor:Q", title="capacity, in even shares").scale(domain=[0.25, 4], nice=False),
    y=alt.Y("dropped:Q", title="visits dropped").axis(format="%"),
    color=alt.Color("router:N", legend=None).scale(domain=list(ALL), range=list(ALL.values())),
    tooltip=["router:N", "factor:Q", alt.Tooltip("dropped:Q", format=".1%")],
)
cut = drops[drops.factor == 1.25].set_index("router").dropped
WHERE_TO = {"left to itself": (1.5, 8, -8), "unequal loads penalised": (0.875, 10, -8),
            "at random": (1.0, -8, -3)}  # fmt: skip
tags = [
    base.transform_filter((alt.datum.router == r) & (alt.datum.factor == at))
    .mark_text(align="left" if dx > 0 else "right", dx=dx, dy=dy)
    .encode(text="router:N")
    for r, (at, dx, dy) in WHERE_TO.items()
]
alt.layer(base.mark_line(), *tags).properties(
    title=f"At 1.25 shares {cut['left to itself']:.0%} of the visits are dropped, or "
    f"{cut['unequal loads penalised']:.0%}",
    description="Share of visits dropped against the capacity of an expert in even shares, layer "
    "2, last third of training: "
    + "; ".join(f"{r} at 1.25: {v:.1%}" for r, v in cut.items())
    + ".",
    height=260,
)

# %% tags=["hide-input"]
wanted = [0.75, 1.0, 1.25, 1.5, 2.0, 3.0]
charts.table(
    drops[drops.factor.isin(wanted)]
    .pivot_table(index="factor", columns="router", values="dropped", sort=False)
    .reset_index()
    .rename(columns={"factor": "capacity"}),
    caption="Visits dropped, layer 2, last third of training; counted from the visits of the run "
    "('at random': simulated)",
    label={"left to itself": label, "unequal loads penalised": label, "at random": "modelled"},
    formats={"capacity": ".2f"} | dict.fromkeys(ALL, ".1%"),
)

# %% [markdown]
# Capacity trades loss for a known buffer: at 1.25, every buffer is a quarter larger than an even
# share, sent or not. DeepSeek-V3 drops nothing, and keeps loads even by a bias on the choice and a
# small penalty.
#
# ## Fewer nodes, fewer bytes
#
# Inside a node a GPU has many times the bandwidth that it has to other nodes. So what crosses nodes
# counts most. With {term}`node-limited routing` a token may choose experts on a few nodes only
# (DeepSeek-V3: 4 of 8), is sent *once* to each of them, and handed on inside. And dispatch may
# travel in 8 bits.

# %% tags=["hide-input"]
per_gpu = 4096
moved = []
for shown, settings in (
    ("64 ranks, every visit sent", {"ep": 64}),
    ("one copy a node, 4 nodes", {"ep": 64, "ep_node": 8}),
    ("… and dispatch in 8 bits", {"ep": 64, "ep_node": 8, "dispatch": "fp8"}),
    ("8 ranks × 8 that split each expert", {"ep": 8, "etp": 8}),
):
    layout = Plan(dp=64, sequence=per_gpu, **settings)
    found = [r for r in traffic.rows(v3, layout) if r.demand.axis == "ep"]
    across = inside = 0.0
    for r in found:
        sent = r.demand.count * r.sent_bytes / mixtures
        outside = {"ep": 56 / 63 if settings["ep"] == 64 else 1, "ep_inter": 1}
        share = outside.get(r.demand.over, 0)
        across, inside = across + share * sent, inside + (1 - share) * sent
    moved.append({"layout": shown, "across nodes": across, "inside": inside})
moved = pd.DataFrame(moved)

# %% tags=["hide-input"]
moved["time across"] = moved["across nodes"] / card_Bps
moved["time inside"] = moved["inside"] / inside_Bps
charts.table(
    moved,
    caption=f"{v3.name}, {per_gpu:,} tokens a GPU, 64 GPUs in 8 nodes: sent per GPU and mixture, "
    "forward and backward; times at the published rates of an H800, 50 GB/s across and 160 inside",
    label="modelled",
    formats={"across nodes": size, "inside": size, "time across": format_time,
             "time inside": format_time},
)  # fmt: skip

# %% tags=["hide-input"]
torch.manual_seed(seed)
logits = torch.randn(per_gpu, v3.moe.experts)
free = replace(v3.moe, groups=1, top_groups=1)
nodes_seen = {}
for shown, moe in (("as it likes", free), ("on 4 nodes", v3.moe)):
    chosen = route(logits, moe).chosen * 8 // v3.moe.experts
    nodes_seen[shown] = float(np.mean([len(set(token)) for token in chosen.tolist()]))
spared = 1 - moved["across nodes"][2] / moved["across nodes"][0]
charts.prose(
    f"How many nodes would a token visit? With random scores and the library's own router it is "
    f"{{modelled}}`{nodes_seen['as it likes']:.2f}` of 8 if it may choose as it likes, and "
    f"{{modelled}}`{nodes_seen['on 4 nodes']:.2f}` if limited to 4 (simulated; the volumes assume "
    f"{v3.moe.top_groups}). So one copy a node already spares a third of {v3.moe.top_k} visits, "
    f"and the limit a quarter of what is left. With 8 bits on the way out, "
    f"{{modelled}}`{spared:.0%}` of the bytes across nodes are gone. The price is paid inside, "
    "where there is room.\n\nSplitting each expert over the GPUs of a node (expert tensor "
    "parallelism) is the opposite trade: every GPU of the group gathers all that came for the "
    "expert and reduce-scatters the results, and each expert's products become thin. Few large "
    "experts may need it; 256 small ones do not."
)

# %% [markdown]
# ## Beside what DeepSeek published
#
# DeepEP, the library that carries DeepSeek-V3's all-to-alls {cite}`deepseek2025deepep`, publishes
# times and rates of its low-latency kernels for 128 tokens a rank: their product is the bytes of a
# call. And an analysis of the system reckons the time of one dispatch and combine by hand
# {cite}`zhao2025insights`.

# %% tags=["hide-input"]
deep = published[published.table == "low-latency kernels"]
lines = []
for line in deep.itertuples():
    ep, way = re.match(r"EP(\d+) (\w+) latency", line.quantity).groups()
    latency_us, rate = (float(v) for v in line.value.split(";"))
    layout = Plan(dp=int(ep), ep=int(ep), sequence=128, dispatch="fp8")
    found = {op.bytes_ for op in communication(v3, layout, axis="ep") if op.after == way}
    (modelled_bytes,) = found
    lines.append({"way": way, "ranks": int(ep), "time": latency_us * 1e-6, "rate": rate * 1e9,
                  "time × rate": latency_us * rate * 1e3, "bytes": modelled_bytes})  # fmt: skip
deep = pd.DataFrame(lines).sort_values(["way", "ranks"], ascending=[False, True])
deep["error"] = deep.bytes / deep["time × rate"] - 1
charts.table(
    deep,
    caption="DeepEP on H800 with 400 Gbit/s: 128 tokens, 8 visits, dispatch in 8 bits and combine "
    "in 16, beside the bytes of the library's operation",
    label=dict.fromkeys(["time", "rate", "time × rate"], "published") | {"bytes": "modelled"},
    formats={"time": format_time, "rate": lambda v: size(v) + "/s", "time × rate": size,
             "bytes": size, "error": "+.1%"},
)  # fmt: skip

# %% tags=["hide-input"]
said_s = float(published[published.quantity == "EP dispatch+combine time"].value.iloc[0]) * 1e-6
layout = Plan(dp=32, ep=32, sequence=32, dispatch="fp8")
forward = [op for op in communication(v3, layout, axis="ep") if op.phase == "forward"]
ours_s = sum(op.bytes_ for op in forward) / card_Bps
ninth_s = ours_s * (v3.moe.top_k + 1) / v3.moe.top_k
by_way = deep.groupby("way").error.median()
charts.prose(
    f"The median error is {by_way['dispatch']:+.1%} for dispatch and {by_way['combine']:+.1%} for "
    "combine, whatever the number of ranks. Dispatch carries more than the library counts, since 8 "
    "bits need a scale for every 128 numbers: 4 bytes more for each 128, 3.1 %. With "
    "them both are a little above what is published, by nearly the same share; why, we do not "
    "know.\n\n"
    f"The hand calculation says {{published}}`{format_time(said_s)}` for one dispatch and combine "
    f"of 32 tokens over 50 GB/s. The library says {{modelled}}`{format_time(ours_s)}`, "
    f"{ours_s / said_s - 1:+.1%}: theirs lets the shared expert travel as a ninth. With nine it is "
    f"{{modelled}}`{format_time(ninth_s)}`, {ninth_s / said_s - 1:+.1%}, and what is left is that "
    f"they wrote 7K for a width of {v3.hidden:,}. In the times of the kernels themselves more than "
    "bytes shows: from 8 ranks to 128 the same bytes take "
    f"{deep.time[deep.way == 'dispatch'].iloc[-2] / deep.time[deep.way == 'dispatch'].iloc[0]:.1f} "
    "times as long, since they leave the node and there are more messages."
)

# %% tags=["hide-input"]
if keep:
    page.keep()

# %% [markdown]
# ## The traffic this strategy leaves
#
# All-to-alls in every mixture, four for each micro-batch, between many ranks, of sizes that the
# text decides. Nothing in the layer itself can hide them; DeepSeek hides them behind another
# micro-batch. They feel bandwidth across nodes first, in decoding latency, and always the busiest
# rank.

# %% tags=["hide-input"]
charts.table(
    in_words(left(["dp", "tp", "pp", "cp", "ep"])), caption="What the large jobs leave",
    label="modelled",
)  # fmt: skip

# %% [markdown]
# ## Where this stops being true
#
# - **Even choices.** All volumes of the library assume them. The busiest rank of a real job has
#   the imbalance on top, and the step waits for it: multiply the time, not the total.
# - **Small and short.** The mixture here has 8 experts and has seen a hundred steps. Its taste for
#   few experts is real, its size is not that of a large model's, whose routers are trained to be
#   even from the first step.
# - **Batches that are alike.** All ranks read one author. Jobs that mix languages and code see
#   columns move from batch to batch, and experts that are hot for one source.
# - **Many to one.** The model lets bytes flow at the rate of a port. When 63 ranks send to one at
#   the same moment, switches queue: incast, chapter 17.
# - **Latency.** With 128 tokens a call is microseconds long, and its time is that of messages, not
#   of bytes.
#
# ## Exercises
#
# ```{exercise}
# :label: expert-first
# The first all-to-all of `travelling_mixture` sends 64 bytes. Why can the second not be started
# without it? How does a fixed capacity do away with it, and what does it cost instead?
# ```
#
# ```{solution} expert-first
# :class: dropdown
# The receiver must know how many rows come from whom: to have room, and to know where one part
# ends. With a fixed capacity all parts have the same size; rows that are not used are sent as
# padding. At a factor of 1.25 that is at least a fifth of all bytes, for one small exchange less.
# ```
#
# ```{exercise}
# :label: expert-own
# Of even choices over $n$ ranks, $1/n$ of the visits stay at home. Someone proposes to let the
# router prefer experts at home by a bias. What falls, what rises, and what has the model to do with
# it?
# ```
#
# ```{solution} expert-own
# :class: dropdown
# Bytes fall. But which rank a token sits on is an accident of the batch: the same token would be
# worked on by other experts on another day, and at inference there is no such rank at all. Loads
# grow even, since all ranks bring as many tokens; the experts stop being specialists for anything
# but a rank number. Node-limited routing avoids this: it limits how many nodes, not which.
# ```
#
# ```{exercise}
# :label: expert-when
# For tensor parallelism over 8 ranks with sequence parallelism, a layer's MLP costs an
# all-gather and a reduce-scatter of the stream each way. For how many visits per token does expert
# parallelism over the same 8 ranks send as much, forward?
# ```
#
# ```{solution} expert-when
# :class: dropdown
# Per rank, with $t$ tokens of its own and width $h$: the gather and the scatter each send
# $(n-1) · t h$ numbers. Dispatch and combine each send $(n-1)/n · k · t h$. They are equal for
# $k = n = 8$. Below that experts send less, and above it one might as well gather everything.
# ```
#
# ```{exercise}
# :label: expert-hidden
# Take the two routers of this page and their loads in the last third (`loads_of`). If experts were
# placed anew for each batch, the two busiest never on one rank, how even could ranks be? Compute it
# for layer 2, pairing the busiest with the idlest.
# ```
#
# ```{solution} expert-hidden
# :class: dropdown
# With `s = np.sort(loads_of["left to itself"][70:, 1])`, the answer is `(s[:, :4] + s[:,
# :3:-1]).max(1) / (s.sum(1) / 4)`. If one expert alone gets more than a rank's share, no placement
# helps; it has to be held twice, as DeepSeek does with its hottest experts when it serves.
# ```
#
# ## Where the token goes next
#
# Tensors, layers, sequences, experts: everything has now been cut, one cut at a time. A real job
# makes all of them at once. Chapter 12 puts them together, on machines of which some are
# neighbours.
