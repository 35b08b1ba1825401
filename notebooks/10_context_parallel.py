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
# # Context parallelism
#
# ```{spine} communication messages
# ```
#
# The running sentence is short. A book, or a code base, is a hundred thousand tokens, and a model
# that is to use them all must be trained on sequences of that length. Data parallelism does not
# help: one sequence is the least it can deal. Tensor and pipeline parallelism cut the model, and
# every rank still reads the whole sequence. So the sequence itself is cut.
#
# All parts of a layer but one work on each token alone and do not notice. The one is
# {term}`attention`, where a token asks all before it. **When each rank holds a part of the
# sequence, what must travel so that every token still sees all of its past?**

# %% tags=["parameters"]
ranks = 4
length = 2048  # tokens of the sequence that is really trained on; divisible by 2 × ranks
long_length = 131_072  # tokens of the sequence that does not fit
repeats = 7  # of each timed run
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
from dataclasses import replace
from functools import cache

import altair as alt
import pandas as pd
from tokenlife import charts, corpus, lab
from tokenlife.catalog import read_accelerator, read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.costs import training_flops
from tokenlife.costs.operations import layer_operations
from tokenlife.jobs import traffic
from tokenlife.jobs.left import in_words, left
from tokenlife.lab.gloo import gloo_sends
from tokenlife.parallel import Plan, PlanError, communication
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_flops, format_time

charts.setup()
METHODS = {"ring": "ring", "all_gather": "all-gather", "ulysses": "Ulysses"}
big = ModelConfig.load(running()["big"]["model"])
paper = read_reference("04_llama3")
h100 = read_accelerator("h100-sxm")
peak = h100["peak_flops"]["bfloat16"]
network_bps = float(paper.set_index("quantity").value["link speed"]) * 1e9  # published, Gbit/s
page = lab.Page(
    "10_context_parallel",
    ["lab/calls.py", "lab/program.py", "transformer/attention.py", "transformer/model.py"],
)


def size(value, digits=3):
    return format_bytes(value, digits).replace(" ", "\u00a0")


# %% [markdown]
# ## On the back of an envelope
#
# What a layer keeps for its backward pass grows with the tokens that a rank holds. What attention
# must hear from elsewhere is at most the keys and values of all tokens.

# %% tags=["hide-input"]
a = big.attention
tp = 8
keys_bytes = 2 * long_length * a.kv_heads * a.head_dim * 2
stream_bytes = 2 * long_length * big.hidden
needs = {}
for cp in (1, 16):  # the second is the layout of Llama 3, 16 sequences to each copy of the model
    layout = Plan(
        cp=cp, dp=128 // cp, tp=tp, pp=16, sequence=long_length, sequence_parallel=True, zero=2,
        global_batch=16 * 128 // cp,
    )  # fmt: skip
    needs[cp] = traffic.sweep(big, layout).iloc[0]
needs_plan = layout
charts.prose(
    f"{big.name}, {long_length:,} tokens, 16 bits a number. Each layer's stream is "
    f"$S · h$ numbers, {{modelled}}`{size(stream_bytes)}`. With tp {tp} and a pipeline of 16 "
    f"stages the library counts {{modelled}}`{size(needs[1].activations)}` of activations on the "
    f"fullest GPU, which holds {size(h100['memory_bytes'])}. Cut among 16 ranks they are "
    f"{{modelled}}`{size(needs[16].activations)}`, still too much without giving some up and "
    "computing them again, but in reach.\n\nBut keys and values are narrow: "
    f"{a.kv_heads} heads of {a.head_dim} numbers, twice, are {{modelled}}`{size(keys_bytes)}` a "
    f"layer for all {long_length:,} tokens, {keys_bytes / stream_bytes:.0%} of one stream. If "
    "it is only these that travel, the bill may be small. And the work they are for grows with the "
    "square of the length."
)

# %% [markdown]
# ## Attention block by block
#
# A row of attention is a weighted mean: $\sum_j e^{s_j} v_j / \sum_j e^{s_j}$. Sums can be made a
# block at a time, so a rank needs no more than one block of keys and values at any moment. Only the
# exponentials must not overflow. So each row keeps the highest score that it has met, and when a
# higher one comes, what was summed so far is shrunk to the new scale. This is the {term}`online
# softmax` {cite}`milakov2018online`, which fused kernels use between tiles on one chip
# {cite}`dao2022flashattention`. {term}`Ring attention` {cite}`liu2024ring` uses it between
# machines: the blocks of keys and values go round a ring, and each rank computes with the block it
# has while the next one is on its way.
#
# Backward nothing new is needed. Each row has kept the logarithm of its sum, so the weights of any
# block can be made again when the block comes by a second time. The gradient of a block of keys
# gets a part from every rank, so it travels along, grows at each stop, and makes one hop more than
# the block, to come home.
#
# PyTorch has `context_parallel`, for its GPU kernels; on CPUs it stops, since the attention
# operator used there has no rule for a cut sequence. The following is all one needs: two sends that
# do not wait, and sums.


# %%
def attend_block(q, k, scale, diagonal):
    """Scores of a block of queries and one of keys; on the diagonal the future is hidden."""
    import torch

    scores = scale * q @ k.transpose(-1, -2)  # (B, groups, heads of a group, S, T)
    if diagonal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return scores


def pass_on(block, tag):
    """Send a block to the next rank; return a function that waits for the previous rank's."""
    import torch
    import torch.distributed as dist

    here, ranks = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(block)
    sent = dist.isend(block, (here + 1) % ranks, tag=tag)
    received = dist.irecv(arriving, (here - 1) % ranks, tag=tag)

    def wait():
        sent.wait(), received.wait()
        return arriving

    return wait


# %%
def ring_attention(q, k, v, scale, pieces):
    """Causal attention of this rank's queries over the keys and values of all ranks.

    q: (B, heads, S, width); k, v: (B, kv_heads, S, width); pieces[r]: which pieces rank r holds.
    """
    import torch
    import torch.distributed as dist

    here, ranks = dist.get_rank(), dist.get_world_size()
    mine = pieces[here]

    def pairs(step):  # what this rank's queries need of the block at hand, piece by piece
        theirs = pieces[(here - step) % ranks]
        size = q.shape[2] // len(mine)
        for i, a in enumerate(mine):
            for j, b in enumerate(theirs):
                if a >= b:
                    yield slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size), a == b

    class Ring(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            q = q.unflatten(1, (k.shape[1], -1))  # (B, groups, heads of a group, S, width)
            block = own = torch.stack((k, v)).unsqueeze(3)  # (2, B, groups, 1, S, width)
            out, total = torch.zeros_like(q), torch.zeros_like(q[..., :1])
            highest = torch.full_like(total, -torch.inf)
            for step in range(ranks):
                arriving = pass_on(block, tag=0) if step < ranks - 1 else None
                for rows, columns, diagonal in pairs(step):
                    k, v = block[..., columns, :]
                    scores = attend_block(q[..., rows, :], k, scale, diagonal)
                    new = torch.maximum(highest[..., rows, :], scores.amax(-1, keepdim=True))
                    weights, shrunk = (scores - new).exp(), (highest[..., rows, :] - new).exp()
                    out[..., rows, :] = out[..., rows, :] * shrunk + weights @ v
                    total[..., rows, :] = total[..., rows, :] * shrunk + weights.sum(
                        -1, keepdim=True
                    )
                    highest[..., rows, :] = new
                block = arriving() if arriving else block
            out = out / total
            ctx.save_for_backward(q, own, out, highest + total.log())
            return out.flatten(1, 2)

        @staticmethod
        def backward(ctx, d_out):
            q, block, out, log_sum = ctx.saved_tensors
            d_out = d_out.unflatten(1, (q.shape[1], -1))
            delta = (d_out * out).sum(-1, keepdim=True)
            d_q, coming = torch.zeros_like(q), lambda: torch.zeros_like(block)
            for step in range(ranks):
                arriving = pass_on(block, tag=0) if step < ranks - 1 else None
                d_block = torch.zeros_like(block)
                for rows, columns, diagonal in pairs(step):
                    k, v = block[..., columns, :]
                    scores = attend_block(q[..., rows, :], k, scale, diagonal)
                    weights = (scores - log_sum[..., rows, :]).exp()
                    d_weights = d_out[..., rows, :] @ v.transpose(-1, -2)
                    d_scores = scale * weights * (d_weights - delta[..., rows, :])
                    d_q[..., rows, :] += d_scores @ k
                    d_k = (d_scores.transpose(-1, -2) @ q[..., rows, :]).sum(2, keepdim=True)
                    d_v = (weights.transpose(-1, -2) @ d_out[..., rows, :]).sum(2, keepdim=True)
                    d_block[..., columns, :] += torch.stack((d_k, d_v))
                coming = pass_on(coming() + d_block, tag=1)  # the block's gradients follow it
                block = arriving() if arriving else block
            d_k, d_v = coming().squeeze(3)  # after as many hops as ranks they are home
            return d_q.flatten(1, 2), d_k, d_v

    return Ring.apply(q, k, v)


# %% [markdown]
# `pieces` says who holds what. The sequence is cut into pieces; rank $r$ holds those of
# `pieces[r]`. A piece of queries needs all earlier pieces of keys whole, its own up to the
# diagonal, and the later ones not at all. Those are not computed, but they are still passed on:
# somebody further round the ring needs them.


# %%
def deal(ranks, balanced):
    """Say which pieces of the sequence each rank holds."""
    return [[r, 2 * ranks - 1 - r] if balanced else [r] for r in range(ranks)]


def part(x, held, pieces, dim):
    """Return what a rank holds of a whole tensor."""
    import torch

    cut = x.chunk(sum(map(len, pieces)), dim)
    return torch.cat([cut[p] for p in held], dim)


# %% [markdown]
# ## Two other ways
#
# **Gather first.** Llama 3 {cite}`llama2024herd` collects the keys and values of all ranks
# at once, by one {term}`all-gather`, and attends as if nothing had been cut. Backward the gradients
# of all keys and values are added up and dealt out again: a {term}`reduce-scatter`.


# %%
def gathered_attention(q, k, v, scale, pieces):
    """The same with all keys and values gathered first; q, k, v and pieces as for the ring."""
    import torch
    import torch.distributed as dist

    here, ranks = dist.get_rank(), dist.get_world_size()

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            whole = part.new_empty(ranks * len(part), *part.shape[1:])
            dist.all_gather_into_tensor(whole, part)
            return whole

        @staticmethod
        def backward(ctx, d_whole):
            d_part = d_whole.new_empty(len(d_whole) // ranks, *d_whole.shape[1:])
            dist.reduce_scatter_tensor(d_part, d_whole.contiguous())
            return d_part

    def places(held):  # the place in the sequence of each token of a rank
        size = q.shape[2] // len(held)
        return torch.cat([torch.arange(p * size, (p + 1) * size) for p in held])

    whole = Gather.apply(torch.stack((k, v)))  # (2 · ranks, B, kv_heads, S, width)
    k, v = whole.unflatten(0, (ranks, 2)).movedim(0, 3).flatten(3, 4)
    where = torch.cat([places(held) for held in pieces])
    seen = places(pieces[here])[:, None] >= where  # (S, T): who may look at whom
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=scale, enable_gqa=True
    )


# %% [markdown]
# **Turn the cut.** DeepSpeed Ulysses {cite}`jacobs2023ulysses` uses that heads do not talk to each
# other. An {term}`all-to-all` turns *a part of the sequence with all heads* into *the whole
# sequence with a part of the heads*, for queries, keys and values; attention is then local, and one
# more turns its output back. Backward the same four again.


# %%
def ulysses_attention(q, k, v, scale, pieces):
    """The same with the whole sequence for a part of the heads; the split must be contiguous."""
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, parts):  # one for each rank in, one from each rank out
            parts = parts.contiguous()
            came = torch.empty_like(parts)
            dist.all_to_all_single(came, parts)
            return came

        @staticmethod
        def backward(ctx, d_came):
            d_came = d_came.contiguous()
            d_parts = torch.empty_like(d_came)
            dist.all_to_all_single(d_parts, d_came)
            return d_parts

    def sequence(x):  # (B, heads, S, width) → (B, heads / ranks, S · ranks, width)
        x = Exchange.apply(x.unflatten(1, (ranks, -1)).movedim(1, 0))
        return x.movedim(0, 2).flatten(2, 3)

    out = torch.nn.functional.scaled_dot_product_attention(
        sequence(q), sequence(k), sequence(v), is_causal=True, scale=scale, enable_gqa=True
    )
    out = Exchange.apply(out.unflatten(2, (ranks, -1)).movedim(2, 0))
    return out.movedim(0, 1).flatten(1, 2)


# %% [markdown]
# ## Really run: equal to one process?
#
# The functions above are sent as text to {term}`ranks <rank>` in the lab, processes in network
# namespaces of their own. All draw the same random queries, keys, values and gradient of the
# output, keep their parts, and run attention forward and backward. Then each does the whole
# sequence alone, by the definition, and compares.


# %%
def compare(here, method, balanced, shape, dtype):
    """Attention and its gradients on all ranks, beside the definition on the whole sequence."""
    import torch
    from tokenlife.transformer.attention import naive_attention

    attention = {"ring": ring_attention, "all_gather": gathered_attention,
                 "ulysses": ulysses_attention}[method]  # fmt: skip
    batch, heads, kv_heads, length, width = shape
    pieces = deal(here.ranks, balanced)
    torch.manual_seed(0)  # all ranks draw the same
    whole = [torch.randn(batch, h, length, width, dtype=getattr(torch, dtype)) for h in
             (heads, kv_heads, kv_heads, heads)]  # fmt: skip
    *inputs, d_out = [part(x, pieces[here.rank], pieces, 2) for x in whole]
    for x in (*inputs, *whole[:3]):
        x.requires_grad_()
    out = attention(*inputs, width**-0.5, pieces)
    out.backward(d_out)
    future = torch.full((length, length), -torch.inf, dtype=whole[0].dtype).triu(1)
    right = naive_attention(*whole[:3], future, scale=width**-0.5)
    right.backward(whole[3])
    found = [out, *(x.grad for x in inputs)]
    wanted = [part(x, pieces[here.rank], pieces, 2) for x in (right, *(x.grad for x in whole[:3]))]
    return {
        name: float((a - b).abs().max() / b.abs().max())
        for name, a, b in zip(("output", "d q", "d k", "d v"), found, wanted, strict=True)
    }


# %%
SPLITS = {"ring": True, "all_gather": True, "ulysses": False}  # balanced, see below
shape = [1, 8, 4, 512, 32]  # sequences, heads, heads of keys and values, tokens, width
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
cases = [(method, dtype) for method in METHODS for dtype in TOLERANCE]
ran = page.on_ranks(
    "equal",
    *(
        (compare, {"method": m, "balanced": SPLITS[m], "shape": shape, "dtype": t})
        for m, t in cases
    ),
    ranks=ranks,
)
found, label, _ = ran
rows = []
for (method, dtype), on_each in zip(cases, found, strict=True):
    worst = {what: max(rank[what] for rank in on_each) for what in on_each[0]}
    assert max(worst.values()) <= TOLERANCE[dtype], (method, dtype, worst)
    rows.append({"method": METHODS[method], "numbers": dtype} | worst)

# %% tags=["hide-input"]
charts.prose(ran.where)

# %% tags=["hide-input"]
charts.table(
    pd.DataFrame(rows),
    caption=f"Largest difference between {ranks} ranks and one process, relative to the largest "
    f"number: {shape[3]} tokens, {shape[1]} heads, {shape[2]} of keys and values",
    label=label,
    formats=dict.fromkeys(("output", "d q", "d k", "d v"), ".1e"),
)

# %% tags=["hide-input"]
worst = {t: max(max(list(r.values())[2:]) for r in rows if r["numbers"] == t) for t in TOLERANCE}
charts.prose(
    f"With 64-bit numbers the worst difference is {{{label}}}`{worst['float64']:.0e}`, with 32 "
    f"bits {{{label}}}`{worst['float32']:.0e}`. (A run is refused above "
    f"{TOLERANCE['float64']:.0e} and {TOLERANCE['float32']:.0e}.) Both are a few units of the last "
    "place, and shrink with it: what differs is the order of the sums and nothing else."
)

# %% [markdown]
# ## A whole model, one step
#
# In a model nothing else has to change. Each rank embeds its own tokens, tells the model where they
# stand (RoPE turns by the *position*, not by the place in the batch), and swaps one method of each
# block. What is left is data parallelism in another dress: every rank has the gradient that its
# tokens gave, and the sum over ranks is the gradient of the whole.


# %%
def train_step(here, sizes, ids, method, balanced):
    """Forward and backward of a whole model whose sequence lies on all ranks; then one process."""
    import torch
    import torch.distributed as dist
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer import ModelConfig
    from tokenlife.transformer.model import Decoder
    from tokenlife.transformer.train import loss_sum

    attention = {"ring": ring_attention, "all_gather": gathered_attention,
                 "ulysses": ulysses_attention}[method]  # fmt: skip
    ids, pieces = torch.tensor(ids), deal(here.ranks, balanced)
    length = ids.shape[1] - 1
    held = pieces[here.rank]

    def model():
        torch.manual_seed(0)
        return Decoder(ModelConfig.from_hf(sizes, "small"))

    def gradient(model):
        return torch.cat([w.grad.flatten() for w in model.parameters()])

    split = model()
    for block in split.blocks:
        scale = block.attention.scale
        block.attention.attend = lambda q, k, v, context, scale=scale: attention(
            q, k, v, scale, pieces
        )
    inputs, labels = (part(x, held, pieces, 1) for x in (ids[:, :-1], ids[:, 1:]))
    where = part(torch.arange(length), held, pieces, 0)
    with here.counted() as sent, Calls() as calls:
        loss = loss_sum(split(inputs, positions=where), labels) / (len(ids) * length)
        loss.backward()
    summed, total = gradient(split), loss.detach().clone()
    dist.all_reduce(summed), dist.all_reduce(total)  # the weights' own exchange: data parallelism
    alone = model()
    whole = loss_sum(alone(ids[:, :-1]), ids[:, 1:]) / (len(ids) * length)
    whole.backward()
    right = gradient(alone)
    return {
        "loss": float(total), "alone": float(whole), "calls": calls.rows(), **sent,
        "gradient": float((summed - right).abs().max() / right.abs().max()),
        "weights": len(right),
    }  # fmt: skip


# %%
sizes = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 256, "vocab_size": 4096,
    "max_position_embeddings": length, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip
small = ModelConfig.from_hf(sizes, "small")
text = corpus.shakespeare()[0].text[: 8 * length]
ids = vocabularies.load("book").encode_ordinary(text)[: length + 1]
steps, label, _ = page.on_ranks(
    "step",
    *(
        (train_step, {"sizes": sizes, "ids": [ids], "method": m, "balanced": SPLITS[m]})
        for m in METHODS
    ),
    ranks=ranks,
)

# %% [markdown]
# What the calls should be is what the library says of a {term}`plan`; what they were is what
# PyTorch dispatched, on every rank.

# %%
plans = {
    m: Plan(cp=ranks, cp_method=m, sequence=length, recipe="float32", regather=False)
    for m in METHODS
}


def foretold(plan, rank):
    """Return {(kind, group, bytes): calls} of the library's communication operations."""
    calls = {}
    for op in communication(small, plan, rank, axis="cp"):
        key = op.kind, op.group, op.bytes_
        calls[key] = calls.get(key, 0) + op.count
    return calls


for (method, plan), on_each in zip(plans.items(), steps, strict=True):
    for rank, found in enumerate(on_each):
        seen = {(c["kind"], tuple(c["group"]), c["bytes"]): c["count"] for c in found["calls"]}
        assert seen == foretold(plan, rank), (method, rank, seen)
        assert abs(found["loss"] / found["alone"] - 1) < 1e-6 and found["gradient"] < 1e-5

# %% tags=["hide-input"]
rows = []
for (method, plan), on_each in zip(plans.items(), steps, strict=True):
    for (kind, _, bytes_), count in foretold(plan, 0).items():
        seen = sum(
            c["count"] for c in on_each[0]["calls"] if (c["kind"], c["bytes"]) == (kind, bytes_)
        )
        rows.append(
            {"method": METHODS[method], "call": kind.replace("_", "-"), "bytes": bytes_,
             "calls, by the library": count, "calls seen": seen}
        )  # fmt: skip
charts.table(
    pd.DataFrame(rows),
    caption=f"Calls of rank 0 in one step of {small.layers} layers on {length:,} tokens; every "
    "rank's were compared, and are equal in kind, group, bytes and count",
    label={"calls, by the library": "modelled", "calls seen": label},
)

# %% tags=["hide-input"]
worst = max(found["gradient"] for on_each in steps for found in on_each)
first = steps[0][0]
charts.prose(
    f"The loss of the {len(ids) - 1:,} tokens of Shakespeare is {{{label}}}`{first['loss']:.4f}` "
    f"on {ranks} ranks and {{{label}}}`{first['alone']:.4f}` on one, in all three ways. The "
    f"gradients of all {first['weights']:,} weights differ by {{{label}}}`{worst:.0e}` of the "
    "largest at worst."
)

# %% [markdown]
# ### And on the wire
#
# From a call to bytes on a socket one must know how {term}`gloo` carries it, which
# [chapter 16](16_measuring.ipynb) found out: all-gathers and all-reduces go round a ring in
# messages, an all-to-all sends to each other rank, a reduce-scatter is an all-reduce underneath.
# Each message costs its sender two headers of 48 bytes and its receiver one notice, so where
# everyone sends and receives, a message carries 144 bytes more than its payload.


# %%
def as_gloo_does_it(op):
    """Return payload and headers that rank 0 sends for an operation, once."""
    both = gloo_sends(op.kind, len(op.group), op.bytes_)
    if op.kind == "send":  # along a ring: for each message that leaves, one comes
        return [each.sum() for each in both]
    return [each[0] for each in both]


rows = []
for (method, plan), on_each in zip(plans.items(), steps, strict=True):
    ops = communication(small, plan, axis="cp")
    data, headers = (sum(op.count * as_gloo_does_it(op)[i] for op in ops) for i in (0, 1))
    ideal = sum(
        row.demand.count * row.sent_bytes
        for row in traffic.rows(small, plan)
        if row.demand.axis == "cp"
    )
    counted = [found["payload_bytes"] for found in on_each]
    assert all(abs(c / (data + headers) - 1) <= 0.005 for c in counted), (method, counted)
    rows.append(
        {"method": METHODS[method], "by the best algorithm": ideal, "as gloo does it": data,
         "its headers": headers, "on the sockets": max(counted),
         "difference": max(counted) / (data + headers) - 1}
    )  # fmt: skip
wire = pd.DataFrame(rows)

# %% tags=["hide-input"]
charts.table(
    wire,
    caption="Payload that a rank sends for context parallelism in the step, bytes (all ranks "
    "alike; the busiest is shown)",
    label={"by the best algorithm": "modelled", "as gloo does it": "modelled",
           "its headers": "modelled", "on the sockets": label},
    formats={"difference": "+.2%", "by the best algorithm": ",.0f", "as gloo does it": ",.0f",
             "its headers": ",.0f", "on the sockets": ",.0f"},
)  # fmt: skip

# %% tags=["hide-input"]
gathered = wire.set_index("method").loc["all-gather"]
extra = gathered["as gloo does it"] / gathered["by the best algorithm"]
charts.prose(
    "The sum of calls, algorithms and headers is what the sockets sent, "
    f"{'to the byte' if wire.difference.abs().max() == 0 else 'nearly to the byte'}. The "
    f"gather pays {{modelled}}`{extra:.2f}` "
    "times what it would have to, because of that reduce-scatter; on NCCL it would not."
)

# %% [markdown]
# ## Who has how much to do
#
# A causal mask spares half of the square, but not evenly. If rank $r$ holds the $r$-th part of the
# sequence, the last rank's queries look at everything, the first rank's at next to nothing; and the
# step waits for the last. The cure is the order in which pieces are dealt: $2n$ pieces, and rank
# $r$ gets pieces $r$ and $2n - 1 - r$, one early and one late. This {term}`zig-zag split` is
# Llama 3's too.


# %%
def work(here, balanced, shape, repeats):
    """Count the FLOPs of this rank in ring attention, and the processor's time for them."""
    import time

    import torch
    from torch.utils.flop_counter import FlopCounterMode

    batch, heads, kv_heads, length, width = shape
    pieces = deal(here.ranks, balanced)
    sizes = [(batch, h, length // here.ranks, width) for h in (heads, kv_heads, kv_heads, heads)]
    *inputs, d_out = [torch.randn(each) for each in sizes]

    def once():
        q, k, v = (x.clone().requires_grad_() for x in inputs)
        ring_attention(q, k, v, width**-0.5, pieces).backward(d_out)

    with FlopCounterMode(display=False) as flops:
        once()
    times = []
    for _ in range(repeats):
        here.together()
        start = time.thread_time()
        once()
        times.append(time.thread_time() - start)
    return {"flops": flops.get_total_flops(), "cpu_s": times}


# %%
heavy = [1, 4, 2, 4096, 32]
splits = {"contiguous": False, "zig-zag": True}
worked, label, _ = page.on_ranks(
    "work",
    *((work, {"balanced": b, "shape": heavy, "repeats": repeats}) for b in splits.values()),
    ranks=ranks,
)

# %% tags=["hide-input"]
tone = charts.LABELS[label]
own = pd.DataFrame(
    {
        "split": split,
        "rank": f"rank {rank}",
        "FLOPs": found["flops"],
        "time": min(found["cpu_s"]),
    }
    for split, on_each in zip(splits, worked, strict=True)
    for rank, found in enumerate(on_each)
)
own["share"] = own.FLOPs / own.groupby("split").FLOPs.transform("sum")
own["time share"] = own.time / own.groupby("split").time.transform("sum")
most = own.groupby("split").time.max()
spared = 1 - most["zig-zag"] / most["contiguous"]
base = alt.Chart(own).encode(
    y=alt.Y("rank:N", title=None),
    x=alt.X("time:Q", title="processor time of forward and backward, ms").axis(
        labelExpr="datum.value * 1000", tickCount=5
    ),
    yOffset=alt.YOffset("split:N", sort=list(splits)),
    color=alt.Color("split:N", sort=list(splits), legend=None).scale(
        domain=list(splits), range=[PALETTE["orange"], PALETTE["blue"]]
    ),
)
tags = (
    base.transform_filter(alt.datum.rank == f"rank {ranks - 1}")
    .mark_text(align="left", dx=5)
    .encode(text="split:N")
)
(base.mark_bar() + tags).properties(
    title=f"Dealt zig-zag, the busiest rank computes {spared:.0%} less",
    description=f"Processor time of each rank in ring attention over {heavy[3]} tokens, for two "
    "ways to deal the sequence. "
    + "; ".join(f"{r.split}, {r.rank}: {format_time(r.time)}" for r in own.itertuples())
    + ".",
    height=alt.Step(22),
)

# %% tags=["hide-input"]
charts.table(
    own[["split", "rank", "FLOPs", "share", "time", "time share"]],
    caption=f"Work of each rank: ring attention over {heavy[3]:,} tokens, forward and backward",
    label={"FLOPs": label, "time": label},
    formats={"FLOPs": lambda v: format_flops(v), "share": ".1%", "time": format_time,
             "time share": ".1%"},
)  # fmt: skip

# %% tags=["hide-input"]
by = own.set_index(["split", "rank"]).FLOPs
steep = by["contiguous"].iloc[-1] / by["contiguous"].iloc[0]
edge = by["contiguous"].max() / by["contiguous"].mean()
charts.prose(
    f"Counted by PyTorch's own FLOP counter, the last rank of the contiguous split does "
    f"{{{label}}}`{steep:.0f}` times the work of the "
    f"first and {{{label}}}`{edge:.2f}` times the mean; with many ranks that tends to 2, since "
    "the triangle is twice as wide at its foot as on average. Zig-zag, all do the same: each has "
    f"one diagonal piece early, one late, and $2n - 1$ whole ones. (Times are of the processor, "
    f"not of the clock, as {ranks} ranks share a few cores here. On the diagonal this code "
    "computes whole squares and throws half away; a fused kernel does not.) The bytes are the "
    "same in both."
)

# %% [markdown]
# ## What it costs at scale
#
# Now the library's formulas, for models that cannot run here. Per layer and step, a rank sends for
# the ring $(n-1)$ blocks forward, $(n-1)$ blocks and $n$ blocks of gradients backward; for the
# gather three times $(n-1)/n$ of all keys and values (forward, again for the backward pass, and
# the gradients); for Ulysses eight all-to-alls, of which four are as wide as the stream.

# %% tags=["hide-input"]
POSITIONS = 2**21


@cache
def longer(name):
    """A named model, as if it had been made for longer sequences."""
    return replace(ModelConfig.load(name), positions=POSITIONS)


def per_layer(config, plan):
    """Bytes that a GPU sends for context parallelism, per layer and step; None if it cannot."""
    try:
        found = traffic.rows(config, plan)
    except PlanError:
        return None
    sent = sum(r.demand.count * r.sent_bytes for r in found if r.demand.axis == "cp")
    return float(sent) / config.layers


volumes = pd.DataFrame(
    {
        "model": name,
        "method": METHODS[method],
        "cp": cp,
        "bytes": per_layer(longer(name), Plan(cp=cp, cp_method=method, sequence=long_length)),
    }
    for name in ("llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
    for method in METHODS
    for cp in (2, 4, 8, 16, 32, 64)
).dropna()

# %% tags=["hide-input"]
names = volumes.model.unique().tolist()
groups = {n: longer(n).attention for n in names}
kinds = {n: f"{n} ({g.heads // g.kv_heads} to 1)" for n, g in groups.items()}
volumes["model"] = volumes.model.map(kinds)
which = alt.param(
    name="model", value=kinds["llama-3.1-405b"],
    bind=alt.binding_select(options=list(kinds.values()), name="model (queries per key) "),
)  # fmt: skip
TONES = {"ring": PALETTE["blue"], "all-gather": PALETTE["orange"], "Ulysses": PALETTE["violet"]}
methods_tone = alt.Color("method:N", legend=None).scale(
    domain=list(TONES), range=list(TONES.values())
)
base = (
    alt.Chart(volumes)
    .transform_filter("datum.model === model")
    .encode(
        x=alt.X("cp:Q", title="ranks that share a sequence (logarithmic)")
        .scale(type="log", base=2, domain=[1.7, 150], nice=False)
        .axis(values=[2, 4, 8, 16, 32, 64]),
        y=alt.Y("bytes:Q", title="sent per GPU, layer and step")
        .scale(type="log", base=2)
        .axis(labelExpr=charts.SIZE_TICKS),
        color=methods_tone,
        tooltip=["method:N", "cp:Q", alt.Tooltip("bytes:Q", format=".3s")],
    )
)
last = base.transform_joinaggregate(widest="max(cp)", groupby=["method"]).transform_filter(
    "datum.cp === datum.widest"
)
TAGS = {"ring": -10, "all-gather": 12, "Ulysses": 0}
tags = [
    last.transform_filter(alt.datum.method == m).mark_text(align="left", dx=9, dy=dy)
    .encode(text="method:N")
    for m, dy in TAGS.items()
]  # fmt: skip
alt.layer(base.mark_line(), base.mark_point(), *tags).add_params(which).properties(
    title="Ring and gather level off; Ulysses falls with the ranks, and ends early",
    description=f"Bytes that a GPU sends per layer and training step for sequences of "
    f"{long_length:,} tokens, against the number of ranks, for a model to be chosen. Ring and "
    "all-gather level off close to each other; Ulysses falls with the number of ranks and "
    "ends where there are no more heads of keys to deal.",
    height=300,
)

# %% tags=["hide-input"]
wide = volumes[volumes.cp == 8].pivot_table(
    index="model", columns="method", values="bytes", sort=False
)
wide["gather ÷ Ulysses"] = wide["all-gather"] / wide["Ulysses"]
charts.table(
    wide.reset_index(),
    caption=f"Sent per GPU, layer and step over 8 ranks, {long_length:,} tokens, no tensor "
    "parallelism; in brackets queries per key",
    label="modelled",
    formats=dict.fromkeys(TONES, size) | {"gather ÷ Ulysses": ".2f"},
)

# %% tags=["hide-input"]
try:
    Plan(tp=8, cp=16, cp_method="ulysses", sequence=long_length).check(longer(big.name))
    refusal = ""
except PlanError as error:
    refusal = str(error)
thin, fat = wide.iloc[-1], wide.iloc[0]
charts.prose(
    "Keys and values of all tokens have to reach every rank that holds a query; no cut of the "
    "sequence makes that less. So ring and gather rise towards three times all keys and values, "
    "and stay there however many ranks there are. Ulysses moves each number once and each rank "
    "holds fewer, so its bill falls as $1/n$. "
    "But it moves queries and outputs too, which are wide. Grouped queries make keys narrow: with "
    f"as many keys as queries a gather costs {{modelled}}`{fat['gather ÷ Ulysses']:.1f}` times "
    f"Ulysses over 8 ranks, with 16 queries to a key {{modelled}}`{thin['gather ÷ Ulysses']:.1f}` "
    "times.\n\nAnd Ulysses has an end: it deals heads, and there are as many shares as heads of "
    "keys. Under tensor parallelism these are dealt already. Asked for the layout of the long "
    f"sequences of Llama 3, the library answers: *{refusal}*."
)

# %% [markdown]
# ## When the ring hides
#
# The ring's sends have something to hide behind: the attention with the block at hand. For one hop
# a rank computes with $S/n$ queries and $S/n$ keys, and moves $S/n$ keys and values. Work grows
# with the square of $S/n$, bytes with $S/n$. So there is a length above which the network does not
# matter, and it depends on three ratios only: FLOPs per second to bytes per second, queries to
# keys, tokens to ranks. The explorer takes both times from the library, for accelerators at their
# peak (a real kernel is slower, and hides more).

# %% tags=["hide-input"]
LENGTHS = [2**k for k in range(13, 21)]
CARDS = {name: read_accelerator(name) for name in ("a100-sxm", "h100-sxm", "b200-sxm")}


def hop(config, plan, flops_per_s, Bps):
    """Seconds of attention with one block, and of the block's journey, forward."""
    (send,) = (
        op for op in communication(config, plan, axis="cp")
        if op.phase == "forward"
    )  # fmt: skip
    core = sum(
        op.flops
        for op in layer_operations(config, config.layers - 1, 1, plan.sequence, causal=True)
        if op.core
    )
    # A causal sequence has cp² pairs of parts, dealt evenly: each rank does cp of them.
    return core / (plan.tp * plan.cp**2) / flops_per_s, send.bytes_ / Bps


grid = []
for name, shown in kinds.items():
    for card in CARDS.values():
        for network, Bps in (
            ("inside the node", card["scale_up_Bps"]), ("400 Gbit/s", network_bps / 8)
        ):  # fmt: skip
            for cp in (2, 4, 8, 16, 32):
                for tokens in LENGTHS:
                    plan = Plan(cp=cp, cp_method="ring", sequence=tokens)
                    times = hop(longer(name), plan, card["peak_flops"]["bfloat16"], Bps)
                    grid += [
                        {"model": shown, "machine": card["title"], "network": network, "cp": cp,
                         "tokens": tokens, "what": what, "s": time}
                        for what, time in zip(("attention", "journey"), times, strict=True)
                    ]  # fmt: skip
grid = pd.DataFrame(grid)

# %% tags=["hide-input"]
selects = {
    "hop_model": ("model (queries per key) ", list(kinds.values()), kinds["llama-3.1-405b"]),
    "hop_machine": ("accelerator ", [c["title"] for c in CARDS.values()], h100["title"]),
    "hop_network": ("network ", ["inside the node", "400 Gbit/s"], "400 Gbit/s"),
    "hop_cp": ("ranks ", [2, 4, 8, 16, 32], 16),
}
params = [
    alt.param(name=n, value=value, bind=alt.binding_select(options=options, name=text))
    for n, (text, options, value) in selects.items()
]
base = (
    alt.Chart(grid)
    .transform_filter(
        "datum.model === hop_model && datum.machine === hop_machine"
        " && datum.network === hop_network && datum.cp === hop_cp"
    )
    .encode(
        x=alt.X("tokens:Q", title="tokens of the sequence (logarithmic)")
        .scale(type="log", base=2, domain=[LENGTHS[0], 4 * LENGTHS[-1]], nice=False)
        .axis(values=LENGTHS, labelExpr="datum.value / 1024 + ' Ki'", labelOverlap=True),
        y=alt.Y("s:Q", title="time of one hop (logarithmic)")
        .scale(type="log")
        .axis(**charts.LOG_TIME_AXIS),
        color=alt.Color("what:N", legend=None).scale(
            domain=["attention", "journey"], range=[PALETTE["blue"], PALETTE["orange"]]
        ),
        tooltip=["what:N", "tokens:Q", alt.Tooltip("s:Q", format=".3s")],
    )
)
tags = base.transform_filter(alt.datum.tokens == LENGTHS[-1]).mark_text(align="left", dx=8)
(base.mark_line() + base.mark_point() + tags.encode(text="what:N")).add_params(*params).properties(
    title="Attention outgrows the journey: from where the lines cross, the ring hides",
    description="For a chosen model, accelerator, network and number of ranks: the time that "
    "attention with one block takes at the accelerator's peak, and the time that the next block "
    "takes to come, against the tokens of the sequence. Attention grows with the square, the "
    "journey in proportion; above their crossing the journey is hidden.",
    height=300,
)


# %% tags=["hide-input"]
def crossing(name, card, Bps):
    """Tokens on a rank above which attention with a block outlasts the next one's journey."""
    plan = Plan(cp=2, cp_method="ring", sequence=2**16)
    attention_s, journey_s = hop(longer(name), plan, card["peak_flops"]["bfloat16"], Bps)
    return plan.sequence / plan.cp * journey_s / attention_s


rows = [
    {
        "model": shown,
        "network": network,
        **{c["title"]: crossing(name, c, Bps or c["scale_up_Bps"]) for c in CARDS.values()},
    }
    for name, shown in kinds.items()
    for network, Bps in (("inside the node", 0), ("400 Gbit/s", network_bps / 8))
]
edges = pd.DataFrame(rows)
charts.table(
    edges,
    caption="Tokens that each rank must hold for the ring to hide, forward, at peak FLOP/s; in "
    "brackets queries per key",
    label="modelled",
    formats={c["title"]: ",.0f" for c in CARDS.values()},
)

# %% tags=["hide-input"]
inside, outside = (crossing(big.name, h100, Bps) for Bps in (h100["scale_up_Bps"], network_bps / 8))
mha = crossing("llama-2-7b", h100, network_bps / 8)
charts.prose(
    "Attention grows with the square of the tokens on a rank, the journey in proportion, so the "
    "table holds for any number of ranks: divide the sequence. On an H100 with 400 Gbit/s, "
    f"{big.name} hides the ring from {{modelled}}`{outside:,.0f}` tokens a rank on, a model with "
    f"as many keys as queries only from {{modelled}}`{mha:,.0f}`. Inside the node "
    f"{{modelled}}`{inside:,.0f}` are enough. Tensor parallelism cuts both sides alike. Backward "
    "there are 2.5 times the FLOPs and twice the bytes, so what hides forward hides backward, but "
    "for the last hop of the gradients."
)

# %% [markdown]
# ## Why Llama 3 gathers
#
# Llama 3 trained its last stage on sequences of 131,072 tokens with 16 ranks to a sequence. It
# does not use a ring. Its report gives two reasons: masks that keep documents apart are easy when
# all keys are at hand, and the gather's time, though exposed, is small, because with grouped
# queries keys are narrow and attention's own work grows with the square. The second can be checked.

# %% tags=["hide-input"]
conditions = paper.conditions.fillna("")
TABLE = paper.table == "Table 4"


def published(what, layout):
    line = paper[TABLE & (paper.quantity == what) & conditions.str.contains(layout, regex=False)]
    return float(line.value.iloc[0])


long = Plan(tp=8, cp=16, sequence=long_length, sequence_parallel=True)
work_flops = training_flops(longer(big.name), 1, long_length, causal=True)
layer_flops = (work_flops.total) / big.layers / (long.tp * long.cp)
core_flops = sum(
    op.flops for op in layer_operations(longer(big.name), 0, 1, long_length, causal=True) if op.core
) / (long.tp * long.cp)
short_rate = published("BF16 TFLOP/s per GPU", "16384 H100, TP8 CP1") * 1e12
long_rate = published("BF16 TFLOP/s per GPU", "TP8 CP16") * 1e12
layer_s = layer_flops / short_rate
choices = []
for method, regather in (("ring", True), ("all_gather", True), ("all_gather", False)):
    plan = replace(long, cp_method=method, regather=regather)
    found = [r for r in traffic.rows(longer(big.name), plan) if r.demand.axis == "cp"]
    sent = sum(r.demand.count * r.sent_bytes for r in found) / big.layers
    calls = sum(r.demand.count for r in found) / big.layers
    journey_s = sent / (network_bps / 8)
    forward_s, send_s = (
        hop(longer(big.name), plan, short_rate, network_bps / 8) if method == "ring" else (0, 0)
    )
    hidden = method == "ring" and send_s <= forward_s
    choices.append(
        {
            "method": METHODS[method] + ("" if regather or method == "ring" else ", kept"),
            "calls a layer": calls,
            "sent a layer": sent,
            "keys held": (2 if method == "ring" else plan.cp) * 2 * plan.tokens
            * a.kv_heads * a.head_dim * 2 / plan.tp,
            "on the network": journey_s,
            # The last hop of the gradients has no work left to hide behind.
            "exposed": send_s if hidden else journey_s,
        }
    )  # fmt: skip
choices = pd.DataFrame(choices)
choices["share of a layer"] = choices.exposed / (choices.exposed + layer_s)

# %% tags=["hide-input"]
charts.table(
    choices,
    caption=f"{big.name}, {long_length:,} tokens, tp 8, cp 16, 400 Gbit/s to a GPU: what context "
    "parallelism asks for, per GPU, layer and sequence ('kept': gathered keys stay for the "
    "backward pass)",
    label="modelled",
    formats={"calls a layer": ",.0f", "sent a layer": size, "keys held": size,
             "on the network": format_time, "exposed": format_time, "share of a layer": ".1%"},
)  # fmt: skip

# %% tags=["hide-input"]
drop = 1 - long_rate / short_rate
again, once = choices["share of a layer"].iloc[1], choices["share of a layer"].iloc[2]
charts.prose(
    f"Forward and backward of a layer are {{modelled}}`{format_flops(layer_flops)}` on each GPU, "
    f"{core_flops * 3 / layer_flops:.0%} of it attention's core. At the "
    f"{{published}}`{short_rate / 1e12:.0f} TFLOP/s` that Llama 3 reached with short sequences "
    f"this takes {{modelled}}`{format_time(layer_s)}`. A fully exposed gather costs "
    f"{{modelled}}`{once:.1%}` to {{modelled}}`{again:.1%}` of the step, the second if keys are "
    f"gathered again. Published is a fall from {short_rate / 1e12:.0f} to "
    f"{{published}}`{long_rate / 1e12:.0f} TFLOP/s` with 16 ranks to a sequence: "
    f"{{published}}`{drop:.1%}`. The model is {100 * (drop - again):.1f} to "
    f"{100 * (drop - once):.1f} points short; it knows nothing of what else changed between the "
    f"two runs, such as longer tails of the pipeline, so a closer match would be luck.\n\n"
    f"With {long.tokens:,} tokens a rank the ring would hide all but its last hop by this "
    f"arithmetic, and needs {choices['calls a layer'].iloc[0]:.0f} messages a layer for it, each "
    f"with its latency and its small kernel. It would win back a few per cent at best, and pay "
    f"with masks that are hard to get right. That is the choice in numbers."
)

# %% tags=["hide-input"]
charts.table(
    pd.DataFrame(
        {
            "": ["ring", "all-gather", "Ulysses"],
            "sent a layer and step": ["(3n − 2) blocks", "3 (n − 1) blocks",
                                      "2 (n − 1)/n of q, k, v and out"],
            "falls with ranks": ["no", "no", "as 1/n"],
            "can hide": ["behind attention", "hardly: attention waits", "hardly: attention waits"],
            "keys held at once": ["2 blocks", "all", "all, of 1/n of the heads"],
            "limit": ["2n divides the sequence", "memory for all keys",
                      "tp · cp ≤ heads of keys"],
            "odd masks": ["by hand, block by block", "easy", "easy"],
        }
    ),
    caption="Three ways; a block is the keys and values of one rank's tokens",
    label="modelled",
)  # fmt: skip

# %% tags=["hide-input"]
if keep:
    page.keep()

# %% [markdown]
# ## The traffic this strategy leaves
#
# Keys and values of every layer, in each forward and each backward pass, between few ranks. The
# ring hides its hops behind attention and waits only for the last; a gather hides behind nothing.
# Volume grows with the length of the sequence, the work it may hide behind with its square: long
# sequences forgive a slow link, short ones do not, and then it is latency that counts.

# %% tags=["hide-input"]
charts.table(
    in_words(left(["dp", "tp", "pp", "cp"])), caption="What the large jobs leave", label="modelled"
)

# %% [markdown]
# ## Where this stops being true
#
# - **Documents in one sequence.** With masks that keep documents apart, work is no longer a
#   triangle, and zig-zag balances only the triangle. Somebody has to deal by documents then.
# - **Windows.** A layer that looks back over 4,096 tokens needs its neighbours' blocks only. The
#   library still counts the whole ring.
# - **A ring of calls, not of wires.** The model lets each hop have its link to itself. Where all
#   rings of a job cross the same spine, they share it (chapter 17).
# - **Peak FLOP/s.** Blocks of a few hundred tokens do not fill an accelerator. Then attention takes
#   longer than its FLOPs say, and the ring hides at shorter lengths than computed, for a bad
#   reason.
# - **Latency.** Bytes over rate is all the journey that the arithmetic knows. At 32 ranks and short
#   blocks the 94 messages of a layer cost more by their number.
#
# ## Exercises
#
# ```{exercise}
# :label: context-hops
# The ring passes on blocks that the receiver does not need: with a contiguous split, rank 0 needs
# none at all. How many of the $n(n-1)$ block journeys of a forward pass are needed by their
# receiver? Could one leave the others out?
# ```
#
# ```{solution} context-hops
# :class: dropdown
# Rank $r$ needs the blocks before it: $r$ of $n - 1$, together $n(n-1)/2$, half. But a block gets
# to rank $r$ through all ranks between: block 0 is needed at the last rank and passes everyone.
# Leaving out only the tail of each journey saves what lies behind the last who needs it. With a
# chain instead of a ring (block $j$ travels from $j$ to $n - 1$ and stops) it is exactly half; the
# time is the same, since the busiest link carries as much as before.
# ```
#
# ```{exercise}
# :label: context-mla
# DeepSeek-V3 keeps one vector of 512 + 64 numbers per token in its cache, and makes keys and values
# of 128 heads from it. What would the ring have to send if it passed on the vector, what if the
# keys and values? What does the library assume, and what does the cheaper way cost?
# ```
#
# ```{solution} context-mla
# :class: dropdown
# 576 numbers against 128 · (192 + 128) = 40,960: 71 times fewer. The library sends the expanded
# ones (`communication(ModelConfig.load("deepseek-v3"), Plan(cp=4, sequence=4096), axis="cp")`).
# Passing on the vector, every rank must expand every block itself: $n$ times the FLOPs of the
# projection from 512 to 32,768 numbers.
# ```
#
# ```{exercise}
# :label: context-crossing
# Derive the crossing of the explorer: for how many tokens on a rank does attention with one block
# take as long as its journey? Take a causal mask, 16 bits, $H$ heads of queries, $G$ of keys, $F$
# FLOP/s, $B$ bytes per second. Check one cell of the table.
# ```
#
# ```{solution} context-crossing
# :class: dropdown
# With $t$ tokens and heads of width $d$: $4 · t^2 · H d / 2$ FLOPs on average (half the blocks are
# masked away) and $2 · 2 · t · G d$ bytes. Equal for $t = 2 · (G/H) · F/B$. For 16 queries to a
# key, 989 TFLOP/s and 50 GB/s: $2/16 · 19{,}780 ≈ 2{,}470$ tokens.
# ```
#
# ```{exercise}
# :label: context-last
# The backward ring passes on a block and its gradients, but the gradients make one hop more. Change
# `ring_attention` so that the last hop is left out. What is wrong on which rank?
# ```
#
# ```{solution} context-last
# :class: dropdown
# After $n - 1$ hops the gradients of a rank's keys are complete at the rank *before* it. Every rank
# then holds its neighbour's gradients, and `compare` reports `d k` and `d v` as wrong on all, while
# output and `d q` stay right.
# ```
#
# ## Where the token goes next
#
# The token now shares its sequence with ranks that it never meets but in attention. In the next
# chapter it is the token itself that travels: the experts it asks for live elsewhere.
