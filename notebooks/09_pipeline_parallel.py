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
# # Pipeline parallelism
#
# ```{spine} communication messages
# ```
#
# A layer of a large model fits on one GPU. A hundred of them do not. The plainest cut gives each
# GPU some whole layers, a {term}`pipeline stage`, and lets tokens walk through the GPUs as they
# walk through layers. What passes from one GPU to the next is the residual stream, and nothing
# else. No other cut sends so little.
#
# The price is time. Layer 2 cannot begin before layer 1 is done, so while the first GPU works the
# others wait. The batch is therefore cut into {term}`micro-batches <micro-batch>` that follow each
# other, as on an assembly line. **How long do GPUs stand idle all the same, what does each schedule
# pay to shorten that, and what does all this put on the network?**

# %% tags=["parameters"]
stages = 4
micro_batches = 8  # of each real run; a multiple of stages
rate = 300e6  # of each link of the lab in the timed runs, bit/s
repeats = 3  # of each timed run that computes
naps = 1  # of each run that sleeps instead, which varies little
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
import re
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, corpus, lab
from tokenlife.catalog import read_accelerator, read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.costs import layer_operations, training_flops
from tokenlife.jobs import traffic
from tokenlife.jobs.left import in_words, left
from tokenlife.jobs.timeline import pipeline_tasks, play
from tokenlife.lab.result import GLOO_HEADER
from tokenlife.parallel import Plan, PlanError, communication
from tokenlife.parallel.schedules import Action, pipeline_schedule
from tokenlife.parallel.shards import layers_on
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_time

charts.setup()
SHOWN = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved", "zb-h1": "ZB-H1",
    "zb-h2": "ZB-H2", "zb-v": "ZB-V",
}  # fmt: skip
big = ModelConfig.load(running()["big"]["model"])
llama3 = read_reference("04_llama3")
h100 = read_accelerator("h100-sxm")
network_Bps = float(llama3.set_index("quantity").value["link speed"]) * 1e9 / 8  # published, Gbit/s
page = lab.Page(
    "09_pipeline_parallel",
    ["lab/calls.py", "lab/program.py", "parallel/schedules.py", "transformer/model.py"],
)


def size(value, digits=3):
    return format_bytes(value, digits).replace(" ", "\u00a0")


def chunks_of(name):
    return 2 if name in ("interleaved", "zb-v") else 1


# %% [markdown]
# ## On the back of an envelope
#
# With $p$ stages, the last one gets its first micro-batch after $p - 1$ steps of the line, and at
# the end the first one waits as long for the last gradient. So $m$ micro-batches take the time of
# $m + p - 1$. The idle share is $(p - 1)/(m + p - 1)$; it is called the {term}`pipeline bubble`.

# %% tags=["hide-input"]
sheet = Plan(
    tp=8, pp=16, dp=128, sequence=8192, sequence_parallel=True, global_batch=16 * 128, zero=2,
    balance=True,
)  # fmt: skip
m = sheet.micro_batches
hop_bytes = sheet.tokens * big.hidden * 2 // sheet.tp
charts.prose(
    f"{big.name} on 16,384 GPUs has {sheet.pp} stages and {m} micro-batches of {sheet.tokens:,} "
    f"tokens a step. Idle: {sheet.pp - 1}/({m} + {sheet.pp - 1}) = "
    f"{{modelled}}`{(sheet.pp - 1) / (m + sheet.pp - 1):.0%}`, if nothing better is done.\n\n"
    f"A micro-batch hands on {sheet.tokens:,} × {big.hidden:,} numbers of 16 bits. Each of the "
    f"{sheet.tp} tensor-parallel ranks of a stage sends its part, {{modelled}}`{size(hop_bytes)}`, "
    f"once forward and once backward. That is 2 × {m} × {size(hop_bytes)} = "
    f"{{modelled}}`{size(2 * m * hop_bytes)}` a GPU and step, whatever the layers hold. Over "
    f"400 Gbit/s one message takes {{modelled}}`{format_time(hop_bytes / network_Bps)}`."
)

# %% [markdown]
# ## The mechanism
#
# A stage is some blocks of the model. The first also embeds, the last also scores the vocabulary.


# %%
def cut(whole, chunk, edges):
    """Return the blocks edges[chunk] to edges[chunk + 1] of a decoder, and the ends where due."""
    import torch

    class Chunk(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = whole.blocks[edges[chunk] : edges[chunk + 1]]
            first, last = chunk == 0, chunk == len(edges) - 2
            self.embedding = whole.token_embedding if first else None
            self.norm, self.head = (whole.final_norm, whole.unembedding) if last else (None, None)

        def forward(self, x):
            if self.embedding is not None:
                x = self.embedding(x)  # (B, S) → (B, S, hidden)
            context = whole.context(torch.zeros(x.shape[:2], dtype=torch.long))
            for block in self.blocks:
                x = block(x, context)
            return x if self.head is None else self.head(self.norm(x))

    return Chunk()


# %% [markdown]
# A {term}`schedule <pipeline schedule>` says in which order each stage works. It is a list of
# actions: `F` the forward pass of a chunk for a micro-batch, `B` its backward pass. All that is
# left is to carry out one's list: receive, work, send. This function does it for any schedule. It
# asks for everything that will come before it begins, so that no sender waits for an ear, and it
# never waits for its own sends until the end.


# %%
def pipeline_step(schedule, shape, work, early=True):
    """Work through the actions of this rank; `work` returns what the next chunk is to get."""
    import time

    import torch
    import torch.distributed as dist

    here, step = dist.get_rank(), {"F": 1, "B": -1, "W": 0}
    owner = {chunk: rank for rank, actions in enumerate(schedule) for _, chunk, _ in actions}
    arriving, inside, leaving, log = {}, {}, [], []

    def tag(kind, chunk, i):  # every message has its own number: order does not matter
        return 2 * (i * len(owner) + chunk) + (kind == "B")

    def ask(kind, chunk, i):
        sender = owner.get(chunk - step[kind], here)
        if sender != here:
            x = torch.empty(shape)
            arriving[kind, chunk, i] = x, dist.irecv(x, sender, tag=tag(kind, chunk, i))

    if early:
        for action in schedule[here]:
            ask(*action)
    for kind, chunk, i in schedule[here]:
        if not early:
            ask(kind, chunk, i)
        x, request = arriving.pop((kind, chunk, i), (inside.pop((kind, chunk, i), None), None))
        if request:
            request.wait()
        begin = time.monotonic()
        x = work(kind, chunk, i, x)
        log.append([kind, chunk, i, begin, time.monotonic()])
        after = chunk + step[kind]
        if kind == "W" or after not in owner:
            continue
        if owner[after] == here:
            inside[kind, after, i] = x
        else:
            leaving.append((x, dist.isend(x, owner[after], tag=tag(kind, after, i))))
    for _, request in leaving:
        request.wait()
    return log


# %% [markdown]
# The work itself is a forward pass that keeps its input and output, and a backward pass that is
# given the gradient of the output and returns that of the input.


# %%
def chunk_work(parts, inputs, labels, scale, losses):
    """Return the `work` of a rank: forward keeps what backward will need."""
    from tokenlife.transformer.train import loss_sum

    held = {}

    def work(kind, chunk, i, x):
        if kind == "F":
            x = inputs[i] if chunk == 0 else x.requires_grad_()
            y = parts[chunk](x)
            if parts[chunk].head is not None:
                y = loss_sum(y, labels[i]) / scale
                losses.append(float(y.detach()))
            held[chunk, i] = x, y
            return y.detach()
        before, y = held.pop((chunk, i))
        y.backward(x)  # x: the gradient of y; none for the loss itself
        return before.grad

    return work


# %% [markdown]
# ## Really run: equal to one process?
#
# Four {term}`ranks <rank>` of the lab train on Shakespeare for one step, by the function above and
# then by PyTorch's own `torch.distributed.pipelining`, with each schedule that it has. Each rank
# then does the whole batch alone and compares the gradients of the layers that it holds.


# %%
def setting(sizes, ids):
    """Return what all ranks build alike: a model and a batch, labels, their number."""
    import torch
    from tokenlife.transformer import ModelConfig
    from tokenlife.transformer.model import Decoder

    torch.manual_seed(0)
    torch.set_num_threads(1)
    ids = torch.tensor(ids)
    model = Decoder(ModelConfig.from_hf(sizes, "small"))
    return model, ids[:, :-1], ids[:, 1:], ids[:, 1:].numel()


def compare(parts, whole, sizes, ids):
    """Do the batch alone; return the loss and the worst gradient of a rank's own chunks."""
    from tokenlife.transformer.train import loss_sum

    alone, inputs, labels, number = setting(sizes, ids)
    loss = loss_sum(alone(inputs), labels) / number
    loss.backward()
    right = dict(alone.named_parameters())
    own = {id(w) for part in parts for w in part.parameters()}
    most = max(float(w.grad.abs().max()) for w in right.values())
    worst = 0.0
    for name, w in whole.named_parameters():
        if id(w) in own:
            grad = w.grad.full_tensor() if hasattr(w.grad, "full_tensor") else w.grad
            worst = max(worst, float((grad - right[name].grad).abs().max()) / most)
    return {"alone": float(loss.detach()), "gradient": worst}


def alone_times(parts, work, shape, passes=2):
    """Seconds of forward and backward of this rank's first chunk, without any network."""
    import time

    import torch

    chunk, part = next(iter(parts.items()))
    times = []
    for _ in range(passes):
        begin = time.monotonic()
        work("F", chunk, 0, torch.zeros(shape))
        turn = time.monotonic()
        work("B", chunk, 0, torch.zeros(shape) if part.head is None else None)
        times.append([turn - begin, time.monotonic() - turn])
    return times


def train_step(here, sizes, ids, schedule, edges, early=True, repeats=0):
    """One counted training step by `pipeline_step`, some timed ones, and one process beside it."""
    from tokenlife.lab.calls import Calls

    whole, inputs, labels, number = setting(sizes, ids)
    micro = 1 + max(i for _, _, i in schedule[0])
    parts = {c: cut(whole, c, edges) for c in sorted({c for _, c, _ in schedule[here.rank]})}
    losses, logs, alone = [], [], []
    work = chunk_work(parts, inputs.chunk(micro), labels.chunk(micro), number, losses)
    shape = (len(ids) // micro, inputs.shape[1], sizes["hidden_size"])
    for _ in range(repeats):
        here.together()
        before = alone_times(parts, work, shape)
        here.together(0.1)  # time enough for token buckets to fill
        logs.append(pipeline_step(schedule, shape, work, early))
        here.together()
        alone.append(before + alone_times(parts, work, shape))
    whole.zero_grad(), losses.clear()
    with here.counted() as sent, Calls() as calls:
        pipeline_step(schedule, shape, work, early)
    found = compare(parts.values(), whole, sizes, ids)
    return {
        "loss": sum(losses),
        "calls": calls.rows(),
        "logs": logs,
        "times": alone,
        **sent,
        **found,
    }


# %%
def torch_step(here, sizes, ids, name, micro, edges, folded):
    """The same by PyTorch's pipelining: two steps, counted, and the order it worked in."""
    import torch
    import torch.distributed.pipelining.schedules as schedules
    from tokenlife.lab.calls import Calls
    from tokenlife.transformer.train import loss_sum
    from torch.distributed.pipelining import PipelineStage

    whole, inputs, labels, number = setting(sizes, ids)
    chunks = len(edges) - 1
    mine = list(range(here.rank, chunks, here.ranks))
    if folded:  # down to the last rank and back
        mine = [here.rank, chunks - 1 - here.rank]
    cpu = torch.device("cpu")
    parts = [PipelineStage(cut(whole, c, edges), c, chunks, cpu) for c in mine]
    pipeline = getattr(schedules, f"Schedule{name}")(
        parts if len(parts) > 1 else parts[0], micro, scale_grads=False,
        loss_fn=lambda logits, labels: loss_sum(logits, labels) / number,
    )  # fmt: skip
    found = []
    for _ in range(2):
        whole.zero_grad()
        losses = []
        given = {"target": labels, "losses": losses} if chunks - 1 in mine else {}
        with here.counted() as sent, Calls() as calls:
            pipeline.step(*([inputs] if 0 in mine else []), **given)
        found.append({"loss": float(sum(losses)), "calls": calls.rows(), **sent})
    first, second = found
    order = [str(a) for a in (getattr(pipeline, "pipeline_order", None) or {}).get(here.rank, [])]
    compared = compare([part.submod for part in parts], whole, sizes, ids)
    return {**second, "first": first, "order": order, **compared}


# %%
sizes = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 128, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 256, "vocab_size": 4096,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
small = ModelConfig.from_hf(sizes, "small")
length, rows = sizes["max_position_embeddings"], 2  # tokens of a sequence, sequences at a time
stream = vocabularies.load("book").encode_ordinary(corpus.shakespeare()[0].text[:40_000])
batch = [stream[k * length : (k + 1) * length + 1] for k in range(rows * micro_batches)]


def even(chunks):
    return [k * small.layers // chunks for k in range(chunks + 1)]


OURS = ("gpipe", "1f1b", "interleaved")
TORCH = {
    "GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved",
    "InterleavedZeroBubble": "interleaved", "ZBVZeroBubble": "zb-v", "DualPipeV": "zb-v",
}  # fmt: skip
both = {"sizes": sizes, "ids": batch}
ran = page.on_ranks(
    "equal",
    *(
        (train_step, both | {"schedule": pipeline_schedule(name, stages, micro_batches),
                             "edges": even(stages * chunks_of(name))})
        for name in OURS
    ),
    *(
        (torch_step, both | {"name": theirs, "micro": micro_batches, "folded": name == "zb-v",
                             "edges": even(stages * chunks_of(name))})
        for theirs, name in TORCH.items()
    ),
    ranks=stages,
)  # fmt: skip
runs, label, _ = ran

# %% tags=["hide-input"]
charts.prose(ran.where)

# %% [markdown]
# What a rank should send is what the library says of a {term}`plan`. DualPipeV folds the model as
# ZB-V does, so it sends the same, at other times.


# %%
def plan_of(name, **others):
    asked = {"global_batch": rows * micro_batches} | others
    return Plan(
        pp=stages, schedule=name, virtual=chunks_of(name), micro_batch=rows, sequence=length,
        recipe="float32", **asked,
    )  # fmt: skip


def foretold(plan, rank, axis="pp"):
    """Return {(kind, group, bytes): calls} of the library's communication operations."""
    calls = {}
    for op in communication(small, plan, rank, axis):
        key = op.kind, op.group, op.bytes_
        calls[key] = calls.get(key, 0) + op.count
    return calls


def seen(found):
    return {(c["kind"], tuple(c["group"]), c["bytes"]): c["count"] for c in found["calls"]}


def payload(calls_of, rank):
    """Return what gloo puts on a rank's sockets for sends: their bytes, and its own headers."""
    out = [(b, n) for (_, _, b), n in calls_of[rank].items()]
    comes = sum(n for calls in calls_of for (_, g, _), n in calls.items() if g[1] == rank)
    headers = GLOO_HEADER * (2 * sum(n for _, n in out) + comes)
    return sum(b * n for b, n in out), headers


TOLERANCE = 1e-5
table = []
who = [("ours", n, n) for n in OURS] + [("PyTorch", t, n) for t, n in TORCH.items()]
for (by, shown, name), on_each in zip(who, runs, strict=True):
    plan = plan_of(name)
    calls_of = [foretold(plan, rank) for rank in range(stages)]
    for rank, found in enumerate(on_each):
        assert seen(found) == calls_of[rank], (shown, rank, seen(found), calls_of[rank])
        assert found["gradient"] <= TOLERANCE, (shown, rank, found["gradient"])
        data, headers = payload(calls_of, rank)
        assert abs(found["payload_bytes"] / (data + headers) - 1) <= 0.005, (shown, rank)
    loss = sum(found["loss"] for found in on_each)  # only one rank has it
    assert abs(loss / on_each[0]["alone"] - 1) <= TOLERANCE, (shown, loss)
    data, headers = payload(calls_of, 1)
    table.append(
        {"run by": by, "schedule": SHOWN.get(shown, shown), "loss": loss,
         "gradients differ by": max(found["gradient"] for found in on_each),
         "sends of rank 1": sum(seen(on_each[1]).values()),
         "by the library": sum(calls_of[1].values()),
         "their bytes": data, "with headers": data + headers,
         "on the sockets": on_each[1]["payload_bytes"]}
    )  # fmt: skip
table = pd.DataFrame(table)

# %% tags=["hide-input"]
charts.table(
    table,
    caption=f"One step of {small.layers} layers on {stages} ranks, {micro_batches} micro-batches; "
    "'differ by': the worst gradient of any weight on any rank, as a share of the largest",
    label={"loss": label, "gradients differ by": label, "sends of rank 1": label,
           "by the library": "modelled", "their bytes": "modelled", "with headers": "modelled",
           "on the sockets": label},
    formats={"loss": ".6f", "gradients differ by": ".0e", "their bytes": ",d",
             "with headers": ",d", "on the sockets": ",d"},
)  # fmt: skip

# %% tags=["hide-input"]
off = (table["on the sockets"] / table["with headers"] - 1).abs().max()
alone = runs[0][0]["alone"]
charts.prose(
    f"One process finds a loss of {{{label}}}`{alone:.6f}`. All runs agree with it, and their "
    f"gradients to {{{label}}}`{table['gradients differ by'].max():.0e}` of the largest (a run is "
    f"refused above {TOLERANCE:.0e}): a weight's gradient is a sum over micro-batches here and "
    "over one batch there, and sums in another order round otherwise. Group, bytes and number of "
    "every rank's sends are those of the library, which the page has checked for all ranks and "
    "runs.\n\n"
    f"A send costs gloo {2 * GLOO_HEADER} bytes of headers at the sender, a notice and one on the "
    f"message itself, and {GLOO_HEADER} at the receiver, whose notice says that it is ready. "
    "With them the sockets sent "
    + ("what was foretold, to the byte." if off == 0 else f"what was foretold within {off:.2%}.")
    + " Interleaved and folded schedules cut the model into twice as many chunks, and send "
    "twice as often."
)

# %% [markdown]
# ### PyTorch's first step
#
# The second step is shown above. The first sends a little more.

# %%
extras = []
for (by, shown, _), on_each in zip(who, runs, strict=True):
    if by == "PyTorch":
        before = {(c["kind"], tuple(c["group"]), c["bytes"]): c["count"]
                  for c in on_each[1]["first"]["calls"]}  # fmt: skip
        extra = {k: n - seen(on_each[1]).get(k, 0) for k, n in before.items()}
        calls = {k: n for k, n in extra.items() if n}
        more = on_each[1]["first"]["payload_bytes"] - on_each[1]["payload_bytes"]
        data = sum(b * n for (_, _, b), n in calls.items())
        # Everything is answered: as many such messages come as go.
        assert abs(more - data - 3 * GLOO_HEADER * sum(calls.values())) <= 0.1 * more, (shown, more)
        votes, lengths = (sum(n for (_, _, b), n in calls.items() if b == k) for k in (4, 8))
        extras.append(
            {"schedule": shown, "votes (4 B)": votes, "lengths (8 B)": lengths,
             "descriptions": sum(calls.values()) - votes - lengths, "bytes of all": data,
             "more on the sockets": more}
        )  # fmt: skip
charts.table(
    pd.DataFrame(extras),
    caption="What rank 1 sends in PyTorch's first step and never again",
    label=label,
)

# %% [markdown]
# A stage does not know the shape of what will come. So before the first step the stages vote,
# along the line and back, whether all of them were told their shapes beforehand (4 bytes each way).
# If not, as here, each stage runs once without numbers, on tensors that have a shape only, and
# sends its neighbour a pickled description: its length in 8 bytes, then the description itself, of
# 166 or so. Backward likewise. Afterwards buffers are fixed, and every micro-batch of every step
# must have the same shape. That is a real limit: sequences of unequal length must be padded or
# packed.
#
# ## Two schedules on one page
#
# GPipe {cite}`huang2019gpipe` does all forward passes and then all backward passes, so the first
# stage must keep what *all* micro-batches need for their backward pass. {term}`1F1B`
# {cite}`narayanan2019pipedream` begins a backward pass as soon as it can, and from then on does one
# forward, one backward. The bubble is the same. What is held is not.

# %%
for name in ("gpipe", "1f1b"):
    print(name)
    for actions in pipeline_schedule(name, 3, 5):
        print("  ", " ".join(str(action) for action in actions))

# %% [markdown]
# (`0F3`: chunk 0, forward, micro-batch 3.) Three further ideas attack the bubble itself:
#
# - **Interleaved** {cite}`narayanan2021megatron`: each stage holds several chunks from different
#   places of the model. The line is longer, but its steps are shorter, so filling it takes less
#   time.
# - **Zero bubble** {cite}`qi2024zerobubble`: a backward pass is two jobs. `B` makes the gradient of
#   the input, for which the stage before is waiting. `W` makes those of the weights, for which
#   nobody waits. So `W` fills gaps. ZB-H1 does so within the memory of 1F1B; ZB-H2 takes in more
#   micro-batches first and closes the gap.
# - **Folding**: ZB-V lays the chunks down the line and back up. The stage that embeds also has the
#   loss, and a backward pass can begin where the forward pass has ended. DualPipe
#   {cite}`deepseek2024v3` feeds micro-batches from both ends at once, and pairs each forward with a
#   backward so that one computes while the other communicates; DualPipeV is its folded half.
#
# ## The library at scale: time lines
#
# `play` is a list scheduler: it carries a schedule out with given durations and notes who works
# when. Here a stage's share of a micro-batch costs 1 for each of F, B and W (with two chunks, half
# each), and sends are free.

# %% tags=["hide-input"]
UNIT = {"F": 1.0, "B": 1.0, "W": 1.0}


def line_of(name, p, m, send_s=0.0):
    """Play a schedule in units of one stage's forward pass of a micro-batch."""
    v = chunks_of(name)
    each = {kind: t / v for kind, t in UNIT.items()}
    return play(pipeline_tasks(pipeline_schedule(name, p, m), each, send_s))


bars, heads = [], []
for p in (2, 4, 8):
    for count in (4, 8, 16):
        for name, shown in SHOWN.items():
            case = f"{shown}, {p}, {count}"
            try:
                line = line_of(name, p, count)
            except PlanError as error:
                heads.append({"a": case, "t": f"cannot run: {error}"})
                continue
            held = max(map(line.most_held, range(p))) / chunks_of(name)
            heads.append(
                {"a": case, "t": f"{shown}: {line.bubble_fraction:.0%} idle, at most {held:g} "
                 f"micro-batches held, {line.makespan_s:g} units"}
            )  # fmt: skip
            for task, start, end in zip(line.tasks, line.start_s, line.finish_s, strict=True):
                action = task.name
                kind = next(k for k in "FBW" if k in action)
                chunk, i = action.split(kind)
                bars.append(
                    {"a": case, "r": task.rank, "k": kind, "s": start, "e": end, "i": int(i),
                     "c": int(chunk) // p}
                )  # fmt: skip
bars, heads = pd.DataFrame(bars), pd.DataFrame(heads)

# %% tags=["hide-input"]
WORK = alt.Scale(
    domain=["F", "B", "W"], range=[PALETTE["blue"], PALETTE["orange"], PALETTE["grey"]]
)
choose = [
    alt.param(name=name, value=value, bind=alt.binding_select(options=options, name=text))
    for name, text, options, value in (
        ("shown", "schedule ", list(SHOWN.values()), "1F1B"),
        ("deep", "stages ", [2, 4, 8], 4),
        ("many", "micro-batches ", [4, 8, 16], 8),
    )
]
wanted = "datum.a === shown + ', ' + deep + ', ' + many"
lines = alt.Chart(alt.Data(values=bars.to_dict("records"))).transform_filter(wanted)
y = alt.Y("r:O", title="stage").scale(paddingInner=0.12)
drawn = lines.mark_bar(stroke="#ffffff", strokeWidth=0.6).encode(
    y=y,
    x=alt.X("s:Q", title="time, in forward passes of a stage").axis(grid=False),
    x2="e:Q",
    color=alt.Color("k:N", legend=None, scale=WORK),
    opacity=alt.Opacity("c:O", legend=None).scale(domain=[0, 1], range=[1, 0.62]),
    tooltip=[
        alt.Tooltip("k:N", title="work"),
        alt.Tooltip("i:Q", title="micro-batch"),
        alt.Tooltip("c:Q", title="chunk of the stage"),
        alt.Tooltip("s:Q", title="from"),
        alt.Tooltip("e:Q", title="to"),
    ],
)
numbers = (
    lines.transform_filter("deep * many <= 32")
    .transform_calculate(mid="(datum.s + datum.e) / 2")
    .mark_text(fontSize=9, color="#ffffff")
    .encode(y=y, x="mid:Q", text="i:Q")
)
head = (
    alt.Chart(heads)
    .transform_filter(wanted)
    .mark_text(align="left", baseline="bottom", dy=-8, fontWeight="bold")
    .encode(x=alt.value(0), y=alt.value(0), text="t:N")
)
(drawn + numbers + head).add_params(*choose).properties(
    title=alt.Title(
        "All schedules do the same work; they differ in the gaps",
        subtitle=["Blue: forward (F). Orange: backward (B). Grey: gradients of weights (W), where",
                  "the schedule splits them off. Pale: a stage's second chunk."],
        offset=30,
    ),
    description="Time line of one training step for a chosen schedule, number of stages and number "
    "of micro-batches: each stage is a row, each bar a forward pass, a backward pass or the "
    "gradients of the weights of one micro-batch. A line above gives the idle share, the most "
    "micro-batches held, and the length of the step.",
    height=alt.Step(34),
)  # fmt: skip

# %% [markdown]
# Set 4 stages and 8 micro-batches and step through the schedules. GPipe and 1F1B end at the same
# time. Interleaving halves the gap. ZB-H1 leaves a third of it, ZB-H2 and ZB-V none. With 4
# micro-batches on 8 stages nothing helps much: a line needs something to carry.
#
# ### Bubbles against their closed forms
#
# With $F$, $B$, $W$ the times of a stage's share of a micro-batch, the gap of the worst stage is
# known for each schedule:

# %%
CLOSED = {
    "gpipe": lambda p, F, B, W, v: (p - 1) * (F + B + W),
    "1f1b": lambda p, F, B, W, v: (p - 1) * (F + B + W),
    "interleaved": lambda p, F, B, W, v: (p - 1) * (F + B + W) / v,
    "zb-h1": lambda p, F, B, W, v: (p - 1) * (F + B - W),
    "zb-h2": lambda p, F, B, W, v: (p - 1) * (F + B - 2 * W),
    "zb-v": lambda p, F, B, W, v: 0 * p,
}
p = 8
grid = []
for name, gap in CLOSED.items():
    for count in range(2 * p, 8 * p + 1, p):
        line = line_of(name, p, count)
        idle = gap(p, **UNIT, v=chunks_of(name))
        share = idle / (idle + count * 3)
        assert abs(line.bubble_fraction - share) < 1e-9, (name, count)
        grid.append({"schedule": SHOWN[name], "micro-batches": count, "idle": share,
                     "played": line.bubble_fraction})  # fmt: skip
grid = pd.DataFrame(grid)

# %% tags=["hide-input"]
alike = {"GPipe": "GPipe, 1F1B", "ZB-H2": "ZB-H2, ZB-V"}
drawn = grid[~grid.schedule.isin(["1F1B", "ZB-V"])].assign(
    named=lambda t: t.schedule.replace(alike)
)
base = alt.Chart(drawn).encode(
    x=alt.X("micro-batches:Q").scale(domain=[16, 78], nice=False).axis(values=[16, 32, 48, 64]),
    color=alt.Color("named:N", legend=None).scale(
        range=[PALETTE[c] for c in ("blue", "orange", "violet", "brick")]
    ),
    tooltip=["named:N", "micro-batches:Q", alt.Tooltip("idle:Q", format=".1%")],
)
tags = base.transform_filter("datum['micro-batches'] === 64").mark_text(align="left", dx=7, dy=-6)
(
    base.mark_line().encode(y=alt.Y("idle:Q", title="idle share of the step").axis(format="%"))
    + base.mark_point(filled=True, size=40).encode(y="played:Q")
    + tags.encode(y="idle:Q", text="named:N")
).properties(
    title=f"{p} stages: more micro-batches or a better schedule, one of them is needed",
    description=f"Idle share of a step on {p} stages against the number of micro-batches, lines "
    "from closed forms and points from played schedules, which coincide. GPipe and 1F1B idle most, "
    "interleaving with two chunks about half, ZB-H1 a third, ZB-H2 and ZB-V not at all.",
    height=290,
)

# %% tags=["hide-input"]
at = grid.set_index(["schedule", "micro-batches"]).idle
charts.prose(
    f"Points (played) lie on lines (closed forms), for every point. With {2 * p} micro-batches "
    f"1F1B idles {{modelled}}`{at['1F1B', 2 * p]:.0%}`, interleaved "
    f"{{modelled}}`{at['interleaved', 2 * p]:.0%}`, ZB-H1 {{modelled}}`{at['ZB-H1', 2 * p]:.0%}`; "
    f"with {8 * p} they idle {{modelled}}`{at['1F1B', 8 * p]:.0%}`, "
    f"{{modelled}}`{at['interleaved', 8 * p]:.0%}` and {{modelled}}`{at['ZB-H1', 8 * p]:.0%}`. "
    "The formulas need enough micro-batches to fill the line, and the zero of ZB-V needs F, B "
    "and W alike."
)

# %% [markdown]
# ### What is held

# %% tags=["hide-input"]
count = 16
held = pd.DataFrame(
    {"schedule": SHOWN[name], "stage": stage, "held": line.most_held(stage) / chunks_of(name)}
    for name in SHOWN
    for line in [line_of(name, p, count)]
    for stage in range(p)
)
same = {"ZB-H1": "ZB-H1, ZB-V"}
drawn = held[held.schedule != "ZB-V"].assign(named=lambda t: t.schedule.replace(same))
assert held[held.schedule == "ZB-V"].held.tolist() == held[held.schedule == "ZB-H1"].held.tolist()
base = alt.Chart(drawn).encode(
    x=alt.X("stage:Q").scale(domain=[0, 8.6], nice=False).axis(values=list(range(p))),
    y=alt.Y("held:Q", title="micro-batches held at most"),
    color=alt.Color("named:N", legend=None).scale(
        range=[PALETTE[c] for c in ("blue", "brick", "orange", "sky", "violet")]
    ),
    tooltip=["named:N", "stage:Q", "held:Q"],
)
tags = base.transform_filter(alt.datum.stage == p - 1).mark_text(align="left", dx=7)
(base.mark_line(point=True) + tags.encode(text="named:N")).properties(
    title="GPipe holds every micro-batch; 1F1B as many as stages follow",
    description=f"Most micro-batches whose activations a stage holds, on {p} stages with {count} "
    "micro-batches, counted in whole shares of a stage. GPipe 16 on all; ZB-H2 15 on all; ZB-H1 "
    "and ZB-V 8 on all; 1F1B 8 on the first falling to 1 on the last; interleaved from 11.5 to "
    "4.5.",
    height=290,
)

# %% [markdown]
# A schedule is therefore a trade of three things. DualPipeV is not in the library: what follows is
# PyTorch's own list of its actions, as the ranks above really carried it out, played with the same
# durations. Where it does a whole backward pass at once the player does `B`, then `W`.


# %%
def read_actions(words):
    """Read PyTorch's names of actions: 0F3, 3B1, 3I1, 3W1, and pairs in brackets."""
    found = []
    for chunk, does, i in re.findall(r"(\d+)([FBIW])(\d+)", " ".join(words)):
        for kind in {"F": "F", "B": "BW", "I": "B", "W": "W"}[does]:
            found.append(Action(kind, int(chunk), int(i)))
    return tuple(found)


dual = tuple(
    read_actions(found["order"]) for found in runs[len(OURS) + list(TORCH).index("DualPipeV")]
)
assert sum(map(len, dual)) == 3 * micro_batches * 2 * stages  # nothing is lost in reading

# %% tags=["hide-input"]
table = []
for name, shown in (SHOWN | {"dual": "DualPipeV (PyTorch's)"}).items():
    v = 2 if name == "dual" else chunks_of(name)
    schedule = dual if name == "dual" else pipeline_schedule(name, stages, micro_batches)
    line = play(pipeline_tasks(schedule, {kind: t / v for kind, t in UNIT.items()}))
    calls = sum(op.count for op in communication(
        small, plan_of("zb-v" if name == "dual" else name), 1, axis="pp"))  # fmt: skip
    table.append(
        {"schedule": shown, "step": line.makespan_s, "idle": line.bubble_fraction,
         "held, fullest stage": max(map(line.most_held, range(stages))) / v,
         "held, emptiest": min(map(line.most_held, range(stages))) / v,
         "sends of a middle stage": calls}
    )  # fmt: skip
charts.table(
    pd.DataFrame(table),
    caption=f"The trade, {stages} stages and {micro_batches} micro-batches, F = B = W; step in "
    "forward passes of a stage, held in micro-batches of a stage's whole share",
    label="modelled",
    formats={"idle": ".1%"},
)

# %% [markdown]
# Idle is what a stage waits between its own first and last work. ZB-H2 has none of that, yet its
# step is no shorter than ZB-H1's: its stages begin and end one after the other. The next step can
# begin as staggered, if nothing makes all stages meet; a global norm of the gradients does.
#
# (The original DualPipe keeps two copies of every weight, since both directions pass every stage;
# the folded one does not.) What DualPipe is built for does not show here: its pairs of a forward
# and a backward pass hide the {term}`all-to-all` of experts, chapter 11, and sends are free in this
# table.
#
# ### Virtual stages: bytes against bubble
#
# Llama 3 interleaves. More chunks a stage make the bubble smaller, and every chunk border is one
# more send.

# %% tags=["hide-input"]
table = []
for v in (1, 2, 4, 8):
    plan = replace(sheet, virtual=v, schedule="1f1b" if v == 1 else "interleaved")
    line = play(
        pipeline_tasks(
            pipeline_schedule(plan.schedule, plan.pp, m, v), {k: t / v for k, t in UNIT.items()}
        )
    )
    gap, work_ = max(map(line.bubble_s, range(plan.pp))), line.busy_s(0)
    assert abs(gap / work_ - (plan.pp - 1) / (v * m)) < 1e-9  # Llama 3's formula
    priced = traffic.sweep(big, plan).iloc[0]
    table.append(
        {"chunks a stage": v, "bubble to work": gap / work_, "sent, busiest GPU": priced.pp_busiest,
         "on the network": priced.pp_busiest / network_Bps,
         "activations, fullest GPU": priced.activations}
    )  # fmt: skip
virtual = pd.DataFrame(table)
charts.table(
    virtual,
    caption=f"{big.name}, tp 8, pp 16, {m} micro-batches of 8,192 tokens: a GPU's step",
    label="modelled",
    formats={"bubble to work": ".1%", "sent, busiest GPU": size, "on the network": format_time,
             "activations, fullest GPU": size},
)  # fmt: skip

# %% [markdown]
# The second column equals Llama 3's published formula $(p-1)/(v\,m)$ {cite}`llama2024herd`, from
# the played schedule. The last one is above the 80 GB of an H100, weights not yet counted: at this
# length something must be freed early, as Llama 3's report says of tensors that are not needed any
# more, or computed again.
#
# ## Model beside measurement
#
# ### Four stages, with sleep for work
#
# This machine has two processors, so four ranks cannot compute at once. Where time is measured on
# four stages, each rank therefore *sleeps* instead of computing: **sleep stands for the work of a
# GPU, and nothing else is played.** The order, the waiting, the messages and the network are real,
# and every link is held to a rate, so that sends cost something. What one message takes is measured
# by itself first.


# %%
def sleeping_step(here, schedule, shape, seconds, early, repeats):
    """Steps of a pipeline whose work is sleep; their logs."""
    import time

    import torch

    def work(kind, chunk, i, x):
        time.sleep(seconds[kind])
        return torch.zeros(shape)

    logs = []
    for _ in range(repeats):
        here.together(0.1)  # time enough for token buckets to fill
        logs.append(pipeline_step(schedule, shape, work, early))
    return logs


def journey(here, shape, repeats):
    """When rank 0 sends a message, and when rank 1, who waits for it, has it."""
    import time

    import torch
    import torch.distributed as dist

    times = []
    for _ in range(repeats):
        here.together(0.1)
        x = torch.zeros(shape)
        if here.rank == 1:
            request = dist.irecv(x, 0)
        here.together()
        times.append(time.monotonic())
        if here.rank == 0:
            dist.send(x, 1)
        elif here.rank == 1:
            request.wait()
            times[-1] = time.monotonic()
    return times


# %%
shape = [4, 128, 256]  # sequences, tokens, width of what passes between the stages
message_bytes = 4 * int(np.prod(shape))
seconds = {"F": 0.04, "B": 0.04, "W": 0.04}  # of a stage; a chunk's share of it where there are two


def sleeping(name, early=True):
    return sleeping_step, {
        "schedule": pipeline_schedule(name, stages, micro_batches), "shape": shape,
        "seconds": sleep_of(name), "early": early, "repeats": naps,
    }  # fmt: skip


def sleep_of(name):
    """Seconds of a chunk's F, B and W; a schedule without W does it in B."""
    each = {kind: t / chunks_of(name) for kind, t in seconds.items()}
    whole = {"B": each["B"] + each["W"]} if not name.startswith("zb") else {}
    return each | whole


timed, label, place = page.on_ranks(
    "slept",
    (journey, {"shape": shape, "repeats": 9}),
    *(sleeping(name) for name in SHOWN),
    sleeping("gpipe", early=False),
    ranks=stages,
    rate=rate,
)  # fmt: skip
travel, *slept, slept_late = timed
send_s = float(np.median(np.subtract(travel[1], travel[0])))


# %% tags=["hide-input"]
def measured_line(on_each, k):
    """Return one repeat as rows of (rank, kind, chunk, micro-batch, start, end), from its start."""
    rows = [(rank, *action) for rank, logs in enumerate(on_each) for action in logs[k]]
    line = pd.DataFrame(rows, columns=["rank", "kind", "chunk", "i", "start", "end"])
    line[["start", "end"]] -= line.start.min()
    return line


def idle_of(line):
    """Return the idle share of the rank that idles most, between its first work and its last."""
    each = line.assign(s=line.end - line.start).groupby("rank")
    busy, span = each.s.sum(), each.end.max() - each.start.min()
    return float((1 - busy / span).max())


def middle(on_each):
    """Say which repeat's step took the median time."""
    took = [measured_line(on_each, k).end.max() for k in range(len(on_each[0]))]
    return int(np.argsort(took)[len(took) // 2])


TIMES = ("modelled", "measured")
RATE = f"links of {rate / 1e6:.0f} Mbit/s" if place != "loopback" else "loopback, no rate held"
found, table = {}, []
for name, on_each in zip(SHOWN, slept, strict=True):
    v = chunks_of(name)
    line = play(pipeline_tasks(pipeline_schedule(name, stages, micro_batches),
                               {k: t / v for k, t in seconds.items()}, send_s))  # fmt: skip
    found[name] = line, measured_line(on_each, middle(on_each))
    took = found[name][1].end.max()
    table.append(
        {"schedule": SHOWN[name], "step, modelled": line.makespan_s, "step, measured": took,
         "error": line.makespan_s / took - 1, "idle, modelled": line.bubble_fraction,
         "idle, measured": idle_of(found[name][1])}
    )  # fmt: skip
slept_table = pd.DataFrame(table)
late = measured_line(slept_late, middle(slept_late)).end.max()

# %% tags=["hide-input"]
charts.table(
    slept_table,
    caption=f"{stages} stages that sleep {format_time(seconds['F'])} for each F, B and W, messages "
    f"of {size(message_bytes)}, {RATE}",
    label={"step, modelled": "modelled", "step, measured": label, "idle, modelled": "modelled",
           "idle, measured": label},
    formats={"step, modelled": format_time, "step, measured": format_time, "error": "+.1%",
             "idle, modelled": ".1%", "idle, measured": ".1%"},
)  # fmt: skip

# %% tags=["hide-input"]
worst = slept_table.error.abs().max()
modelled, measured = (slept_table.set_index("schedule")[f"step, {k}"] for k in TIMES)
charts.prose(
    f"One message takes {{{label}}}`{format_time(send_s)}` by itself; its bytes over the rate are "
    f"{{modelled}}`{format_time(8 * message_bytes / rate)}`. (The bucket that holds the rate lets "
    f"{format_time(lab.cluster.BURST_S)} worth of it through at once; headers and handling add.) "
    f"From this one number and the sleeps the model foretells the step within "
    f"{{{label}}}`{worst:.1%}` at worst, for all six schedules.\n\n"
    "Look at the first two lines. With free sends both would take equally long. Here a send costs "
    f"{send_s / seconds['F']:.0%} of a forward pass, and 1F1B takes "
    f"{{modelled}}`{modelled['1F1B'] / modelled['GPipe'] - 1:+.0%}` more than GPipe by the model, "
    f"{{{label}}}`{measured['1F1B'] / measured['GPipe'] - 1:+.0%}` in the lab. Why, comes below."
)

# %% tags=["hide-input"]
which = "1f1b"
line, real = found[which]
model = pd.DataFrame(
    {"rank": t.rank, "kind": next(k for k in "FBW" if k in t.name), "start": s, "end": e}
    for t, s, e in zip(line.tasks, line.start_s, line.finish_s, strict=True)
    if t.stream == "compute"
)
pair = pd.concat(
    [part.assign(row=lambda t, tag=tag: "stage " + t["rank"].astype(str) + ", " + tag)
     for part, tag in ((model, "modelled"), (real, label))]
)[["row", "kind", "start", "end"]].round(4)  # fmt: skip
alt.Chart(pair).mark_bar(stroke="#ffffff", strokeWidth=0.6).encode(
    y=alt.Y("row:N", title=None).sort(
        [f"stage {r}, {t}" for r in range(stages) for t in ("modelled", label)]
    ),
    x=alt.X("start:Q", title="seconds").axis(grid=False),
    x2="end:Q",
    color=alt.Color("kind:N", legend=None, scale=WORK),
    tooltip=["row:N", "kind:N", "start:Q", "end:Q"],
).properties(
    title=alt.Title(
        f"{SHOWN[which]}, played and really run: the same gaps at the same times",
        subtitle="Blue: forward. Orange: backward, gradients of weights included.",
    ),
    description=f"Time lines of {stages} stages under {SHOWN[which]}, one row modelled and one row "
    f"{label} for each stage. Bars of forward and backward passes stand at nearly the same places "
    "in both.",
    height=alt.Step(24),
)

# %% tags=["hide-input"]
early = found["gpipe"][1].end.max()
charts.prose(
    "`early=False` asks for a message only when it is needed, as a plain `recv` before the work "
    "does. gloo moves nothing until the receiver has asked, so the message then travels while its "
    f"receiver stands still: GPipe takes {{{label}}}`{format_time(late)}` instead of "
    f"{{{label}}}`{format_time(early)}`, {late / early - 1:+.0%}. Asking early costs a buffer; it "
    "is the difference between a send that hides and one that does not."
)

# %% [markdown]
# ### Two stages that really compute
#
# Two ranks have a processor each. They train for real, forward and backward. How long a chunk takes
# is measured just before and after each step, on both ranks at once and without any network; from
# that the model foretells the step. The layers are dealt in two ways. The vocabulary's scores are
# work too, and they all fall to the last stage.


# %%
heavier = sizes | {"hidden_size": 256, "intermediate_size": 768, "max_position_embeddings": 128}
long_batch = [stream[k * 128 : (k + 1) * 128 + 1] for k in range(4 * micro_batches)]
DEALS = {"4 + 4 layers": [0, 4, 8], "5 + 3 layers": [0, 5, 8]}
cases = [(name, deal) for deal in DEALS for name in ("gpipe", "1f1b")]
heavy = {"sizes": heavier, "ids": long_batch}
computed, label, _ = page.on_ranks(
    "computed",
    (journey, {"shape": shape, "repeats": 9}),
    *((train_step, heavy | {"schedule": pipeline_schedule(name, 2, micro_batches),
                            "edges": DEALS[deal], "repeats": repeats}) for name, deal in cases),
    ranks=2,
    rate=rate,
)  # fmt: skip

# %% tags=["hide-input"]
travel, *rest = computed
hop_s = float(np.median(np.subtract(travel[1], travel[0])))


def uneven(name, p, m, seconds_of, send_s, v=1):
    """Play a schedule whose chunks take unequal times: seconds_of[kind, chunk]."""
    tasks = []
    for task in pipeline_tasks(pipeline_schedule(name, p, m, v), UNIT, send_s):
        if task.stream == "compute":
            kind = next(k for k in "FBW" if k in task.name)
            task = replace(task, duration_s=seconds_of[kind, int(task.name.split(kind)[0])])
        tasks.append(task)
    return play(tasks)


table = []
for (name, deal), on_each in zip(cases, rest, strict=True):
    for rank, result in enumerate(on_each):
        assert result["gradient"] <= TOLERANCE, (name, deal, rank, result["gradient"])
    k = middle([result["logs"] for result in on_each])
    real = measured_line([result["logs"] for result in on_each], k)
    # What a chunk takes by itself, just before and just after this very step: (chunk, F or B)
    pace = np.median([result["times"][k] for result in on_each], axis=1)
    each = {(kind, c): pace[c][j] for j, kind in enumerate("FB") for c in (0, 1)}
    line = uneven(name, 2, micro_batches, each, hop_s)
    took = real.end.max()
    table.append(
        {"layers": deal, "schedule": SHOWN[name],
         "F + B, first stage": float(pace[0].sum()),
         "F + B, last stage": float(pace[1].sum()), "step, modelled": line.makespan_s,
         "step, measured": took, "error": line.makespan_s / took - 1,
         "idle, modelled": line.bubble_fraction, "idle, measured": idle_of(real)}
    )  # fmt: skip
computed_table = pd.DataFrame(table)
charts.table(
    computed_table,
    caption=f"Two stages that train for real, {micro_batches} micro-batches of 512 tokens, "
    f"messages of {size(message_bytes)}, {RATE}; the median of {len(rest[0][0]['logs'])}",
    label={"F + B, first stage": label, "F + B, last stage": label, "step, modelled": "modelled",
           "step, measured": label, "idle, modelled": "modelled", "idle, measured": label},
    formats=dict.fromkeys(("F + B, first stage", "F + B, last stage", "step, modelled",
                           "step, measured"), format_time)
    | {"error": "+.1%", "idle, modelled": ".1%", "idle, measured": ".1%"},
)  # fmt: skip

# %% tags=["hide-input"]
worst = computed_table.error.abs().max()
halves = computed_table[computed_table.schedule == "1F1B"].set_index("layers")
first, last = (halves.loc["4 + 4 layers", f"F + B, {end} stage"] for end in ("first", "last"))
slow = halves[["F + B, first stage", "F + B, last stage"]].max(axis=1).tolist()
charts.prose(
    f"The worst error of the four is {{{label}}}`{worst:.1%}`. The model has the times of one "
    "chunk, alone on its processor; in the run the processors also carry messages, and no two "
    "passes take equally long. With four layers each the last stage takes "
    f"{{{label}}}`{last / first:.2f}` times as long as the first, because of the vocabulary. "
    f"Moved by one layer, the slowest stage takes {{{label}}}`{format_time(slow[1])}` instead of "
    f"{{{label}}}`{format_time(slow[0])}`: whole layers are a coarse grain."
)

# %% [markdown]
# ## Unequal stages
#
# A pipeline is as fast as its slowest stage, once for every micro-batch. In a large model the
# embedding costs memory but hardly any work, while the head costs a product with the whole
# vocabulary.

# %% tags=["hide-input"]


def stage_flops(config, plan):
    """Forward FLOPs of each stage for one micro-batch; backward takes twice as many."""
    one = sum(op.flops for op in layer_operations(config, config.layers - 1, 1, plan.sequence,
                                                  causal=True))  # fmt: skip
    head = 2 * plan.sequence * config.hidden * config.vocab
    held = [layers_on(config, plan, s) for s in range(plan.pp)]
    return [int(h.dense + h.mixtures) for h in held], [
        (h.dense + h.mixtures) * one + h.last * head for h in held
    ], head / one  # fmt: skip


table = []
for name, p in (("llama-3.1-8b", 8), ("llama-3.1-70b", 16), ("llama-3.1-405b", 16)):
    config = ModelConfig.load(name)
    for balance in (False, True):
        plan = Plan(pp=p, balance=balance, sequence=8192, global_batch=2 * p)
        layers, flops, head = stage_flops(config, plan)
        ideal = sum(flops) / p
        each = {("F", c): f / ideal for c, f in enumerate(flops)}
        each |= {("B", c): 2 * f / ideal for c, f in enumerate(flops)}
        line = uneven("1f1b", p, 2 * p, each, 0)
        table.append(
            {"model": config.name, "stages": p, "head, in layers": head,
             "head and embedding count as layers": "yes" if balance else "no",
             "layers: first, second, last": f"{layers[0]}, {layers[1]}, {layers[-1]}",
             "slowest stage": max(flops) / ideal,
             "step": line.makespan_s / (3 * (2 * p + p - 1))}
        )  # fmt: skip
stages_table = pd.DataFrame(table)
charts.table(
    stages_table,
    caption="1F1B with twice as many micro-batches as stages; slowest stage and step as multiples "
    "of what they were if all stages were alike",
    label="modelled",
    formats={"head, in layers": ".2f", "slowest stage": ".3f", "step": ".3f"},
)

# %% tags=["hide-input"]
by = stages_table.set_index(["model", "head and embedding count as layers"]).step
names = list(dict.fromkeys(stages_table.model))
better = [n for n in names if by[n, "yes"] < by[n, "no"] - 1e-9]
others = [n for n in names if n not in better]
charts.prose(
    "Counting head and embedding as a layer each shortens the step of "
    + (", ".join(f"{n} by {{modelled}}`{1 - by[n, 'yes'] / by[n, 'no']:.1%}`" for n in better)
       or "none of them")
    + (f", and not that of {' and '.join(others)}, whose layers come out uneven either way"
       if others else "")
    + ". Llama 3 took one layer from its first and one from its last stage {cite}`llama2024herd`, "
    "and gives memory as a reason too: the first stage holds most micro-batches in flight. What "
    "remains is the grain: whole layers do not divide evenly, and interleaving, with fewer layers "
    "in a chunk, makes the grain coarser still."
)  # fmt: skip

# %% [markdown]
# ## Where latency matters
#
# So far sends were free, or a given cost. Let one send take a growing part of a forward pass.

# %% tags=["hide-input"]
p, count = 8, 32
grid = []
for name in SHOWN:
    free = line_of(name, p, count).makespan_s
    for cost in np.arange(0, 1.01, 0.1):
        took = line_of(name, p, count, float(cost)).makespan_s
        grid.append({"schedule": SHOWN[name], "send": cost, "longer": took / free - 1,
                     "step": took})  # fmt: skip
grid = pd.DataFrame(grid).round(4)
ends = grid[grid.send == 1].sort_values("longer").reset_index(drop=True)
spot = ends.longer.to_numpy().copy()
least = ends.longer.max() / 17  # names must not lie on each other
for k in range(1, len(spot)):
    spot[k] = max(spot[k], spot[k - 1] + least)
ends["spot"] = spot
base = alt.Chart(grid).encode(
    x=alt.X("send:Q", title="time of a send, as a part of a stage's forward pass")
    .scale(domain=[0, 1.36], nice=False)
    .axis(values=[0, 0.25, 0.5, 0.75, 1], format="%"),
    y=alt.Y("longer:Q", title="step longer by").axis(format="%"),
    color=alt.Color("schedule:N", legend=None).scale(
        domain=list(SHOWN.values()),
        range=[PALETTE[c] for c in ("sky", "blue", "orange", "brick", "violet", "grey")],
    ),
    tooltip=["schedule:N", alt.Tooltip("send:Q", format=".0%"),
             alt.Tooltip("longer:Q", format=".1%")],
)  # fmt: skip
tags = alt.Chart(ends).mark_text(align="left", dx=6).encode(
    x="send:Q", y="spot:Q", text="schedule:N",
    color=base.encoding.color,
)  # fmt: skip
by_name = ends.set_index("schedule").longer
hurt, calm = by_name.idxmax(), by_name.idxmin()
(base.mark_line() + tags).properties(
    title=f"Slow sends hurt {hurt} most and {calm} least",
    description=f"How much longer a step on {p} stages with {count} micro-batches takes when a "
    "send takes 0 to 100 % of a stage's forward pass, for six schedules. At 100 %: "
    + ", ".join(f"{n} {v:.0%}" for n, v in by_name.items()) + ".",
    height=300,
)  # fmt: skip

# %% tags=["hide-input"]
half = grid[grid.send.round(2) == 0.5].set_index("schedule").longer
charts.prose(
    "GPipe is patient: all forward passes follow each other without a question back, so a slow "
    "link delays only the first arrival at each stage; a send that takes half a forward pass costs "
    f"{{modelled}}`{half['GPipe']:.1%}`. 1F1B holds just as many micro-batches as it takes to hear "
    "back in time when sends are free. When they are not, each waits for the answer of one before, "
    f"over and over: {{modelled}}`{half['1F1B']:.1%}`. Interleaved sends twice as often, but has "
    f"taken in more beforehand: {{modelled}}`{half['interleaved']:.1%}`. ZB-H2 takes in more "
    f"micro-batches than it needs, and so has slack: {{modelled}}`{half['ZB-H2']:.1%}`. "
    "Slack is memory."
)

# %% [markdown]
# ### Why a pipeline may cross a slow link
#
# Beside the other axes a pipeline asks for little, in few and large messages, and knows long before
# what it will need.

# %% tags=["hide-input"]
priced = traffic.sweep(big, sheet).iloc[0]
axes = []
for axis, shown in (("tp", "tensor"), ("dp", "data"), ("pp", "pipeline")):
    found_rows = [r for r in traffic.rows(big, sheet) if r.demand.axis == axis and 1 in r.stages]
    calls = sum(r.demand.count for r in found_rows)
    axes.append(
        {"parallelism": shown, "ranks": getattr(sheet, axis), "sent by a GPU": priced[axis],
         "share": priced[axis] / sum(priced[a] for a in ("tp", "dp", "pp")),
         "calls": calls, "at 400 Gbit/s": priced[axis] / network_Bps}
    )  # fmt: skip
axes = pd.DataFrame(axes)
charts.table(
    axes,
    caption=f"{big.name} on 16,384 GPUs, one step: what each axis sends (mean of all GPUs; calls "
    "of a middle stage)",
    label="modelled",
    formats={"sent by a GPU": size, "share": ".1%", "at 400 Gbit/s": format_time},
)

# %% [markdown]
# Now let one border of the pipeline, in the middle, lie between two sites. Only its sends take
# longer, by the distance.

# %% tags=["hide-input"]
rate_flops = float(
    llama3[(llama3.quantity == "BF16 TFLOP/s per GPU")
           & llama3.conditions.fillna("").str.startswith("16384 H100, TP8 CP1")].value.iloc[0]
) * 1e12  # fmt: skip
forward_s = (
    training_flops(big, 1, sheet.sequence, causal=True).total
    / 3
    / (sheet.pp * sheet.tp * rate_flops)
)
near_s = hop_bytes / network_Bps


def across(name, far_s):
    """Play 16 stages whose middle border takes far_s longer to cross."""
    p, v = sheet.pp, chunks_of(name)
    each = dict.fromkeys(UNIT, forward_s / v)
    middle_chunks = {("F", c) for c in range(v * p) if c % p == p // 2 - 1}
    middle_chunks |= {("B", c) for c in range(v * p) if c % p == p // 2}
    tasks = []
    for task in pipeline_tasks(pipeline_schedule(name, p, m, v), each, near_s):
        if task.stream != "compute":
            kind = task.stream[-1]
            if (kind, int(task.name.removeprefix("send ").split(kind)[0])) in middle_chunks:
                task = replace(task, duration_s=near_s + far_s)
        tasks.append(task)
    return play(tasks).makespan_s


delays = {"same hall": 0, "1 ms (200 km)": 1e-3, "5 ms": 5e-3, "20 ms": 20e-3, "50 ms": 50e-3}
table = pd.DataFrame(
    {"one way": shown, **{SHOWN[n]: across(n, far) / across(n, 0) - 1 for n in
                          ("gpipe", "1f1b", "interleaved", "zb-h2")}}
    for shown, far in delays.items()
)  # fmt: skip
charts.table(
    table,
    caption=f"Step of {big.name} on 16 stages, {m} micro-batches, when the middle border has this "
    "delay more; longer by",
    label="modelled",
    formats=dict.fromkeys(table.columns[1:], "+.2%"),
)

# %% tags=["hide-input"]
worst = table.iloc[-1]
dp_s = axes.set_index("parallelism").loc["data", "at 400 Gbit/s"]
charts.prose(
    f"A stage's forward pass takes {{modelled}}`{format_time(forward_s)}` at the published "
    f"{{published}}`{rate_flops / 1e12:.0f} TFLOP/s`, one message "
    f"{{modelled}}`{format_time(near_s)}`. Even 50 ms one way, a border across a continent, "
    f"lengthen a 1F1B step by only {{modelled}}`{worst['1F1B']:.1%}`, as long as the far link has "
    "the rate. And it needs less of that than the others: the pipeline sends "
    f"{axes['share'].iloc[2]:.1%} of the bytes, while tensor parallelism would cross the border "
    "many times in every layer. This is why Llama 3 puts tp innermost, inside the node, and pp "
    "further out. Chapter 21 takes it across sites."
)

# %% [markdown]
# ## Together with others: really run
#
# A stage may itself be several ranks. With {term}`data parallelism` each copy of the pipeline takes
# its part of the batch, and stages sum their gradients with their likes at the end. With
# {term}`tensor parallelism` every rank of a stage sends its neighbour the whole stream, each its
# own copy, unless the sequence is split. Both are run on four ranks, two stages of two.


# %%
def combined_step(here, sizes, ids, micro, edges, axis):
    """A step of 1F1B on two stages of two ranks that share work along `axis`."""
    import contextlib
    from dataclasses import replace

    import torch
    import torch.distributed as dist
    from tokenlife.lab.calls import Calls
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tensor
    from torch.nn.functional import cross_entropy

    whole, inputs, labels, number = setting(sizes, ids)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", axis))
    chunk, other = mesh["pp"].get_local_rank(), mesh[axis]
    part = cut(whole, chunk, edges)
    losses_are = contextlib.nullcontext
    if axis == "dp":
        inputs, labels = (x.chunk(2)[other.get_local_rank()] for x in (inputs, labels))
    else:
        losses_are = tensor.loss_parallel
        columns, rows = tensor.ColwiseParallel(), tensor.RowwiseParallel()
        ways = {
            "embedding": tensor.RowwiseParallel(input_layouts=Replicate()),
            "head": tensor.ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        }
        ways = {name: way for name, way in ways.items() if getattr(part, name) is not None}
        for k, block in enumerate(part.blocks):
            a = block.attention.sizes
            block.attention.sizes = replace(a, heads=a.heads // 2, kv_heads=a.kv_heads // 2)
            for name, inner in (("attention", (None,)), ("mlp", ())):  # one sum for all inputs
                ways[f"blocks.{k}.{name}"] = tensor.PrepareModuleInput(
                    input_layouts=(Replicate(), *inner), desired_input_layouts=(Replicate(), *inner)
                )
            for name in ("attention.query", "attention.key", "attention.value"):
                ways[f"blocks.{k}.{name}"] = columns
            ways |= {f"blocks.{k}.mlp.gate": columns, f"blocks.{k}.mlp.up": columns}
            ways |= {f"blocks.{k}.attention.out": rows, f"blocks.{k}.mlp.down": rows}
        tensor.parallelize_module(part, other, ways)
    stage = PipelineStage(part, chunk, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    pipeline = Schedule1F1B(
        stage, micro, scale_grads=False,
        loss_fn=lambda logits, labels: (
            cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / number
        ),
    )  # fmt: skip

    def step(losses):
        given = {"target": labels, "losses": losses} if chunk else {}
        with losses_are():
            pipeline.step(*([] if chunk else [inputs]), **given)
        if axis == "dp":  # all gradients of the stage in one call
            weights = list(part.parameters())
            flat = torch.cat([w.grad.flatten() for w in weights])
            dist.all_reduce(flat, group=other.get_group())
            for w, grad in zip(weights, flat.split([w.numel() for w in weights]), strict=True):
                w.grad.copy_(grad.view_as(w))

    step([])  # the first also agrees on shapes
    whole.zero_grad()
    losses = []
    with here.counted() as sent, Calls() as calls:
        step(losses)
    total = sum((x.full_tensor() if hasattr(x, "full_tensor") else x).detach() for x in losses)
    found = {"loss": float(total), "calls": calls.rows(), **sent}
    return found | compare([part], whole, sizes, ids)


# %%
COMBINED = {
    "dp": plan_of("1f1b", dp=2) if stages == 2 else replace(plan_of("1f1b"), pp=2, dp=2),
    "tp": replace(plan_of("1f1b"), pp=2, tp=2),
}
combined, label, _ = page.on_ranks(
    "combined",
    *((combined_step, both | {"micro": plan.micro_batches, "edges": even(2), "axis": axis})
      for axis, plan in COMBINED.items()),
    ranks=4,
)  # fmt: skip
table = []
for (axis, plan), on_each in zip(COMBINED.items(), combined, strict=True):
    for rank, result in enumerate(on_each):
        said = foretold(plan, rank, axis=None)
        assert seen(result) == said, (axis, rank, seen(result), said)
        assert result["gradient"] <= TOLERANCE, (axis, rank, result["gradient"])
    losses = [result["loss"] for result in on_each[2:]]  # the last stage's ranks
    loss = sum(losses) if axis == "dp" else losses[0]
    assert abs(loss / on_each[0]["alone"] - 1) <= TOLERANCE, (axis, losses)
    for (kind, group, bytes_), n in foretold(plan, 0, axis=None).items():
        table.append(
            {"layout": f"{axis} 2 × pp 2", "call of rank 0": kind.replace("_", "-"),
             "ranks": ", ".join(map(str, group)), "bytes": bytes_, "calls, by the library": n,
             "calls seen": seen(on_each[0])[kind, group, bytes_]}
        )  # fmt: skip
charts.table(
    pd.DataFrame(table),
    caption="Calls of rank 0 in one step; those of all four ranks were compared and are equal",
    label={"calls, by the library": "modelled", "calls seen": label},
)

# %% tags=["hide-input"]
worst = max(result["gradient"] for on_each in combined for result in on_each)
charts.prose(
    f"Loss and gradients are those of one process again (worst {{{label}}}`{worst:.0e}`). In the "
    "table, sends are the pipeline's. Their number is that of micro-batches; the sum over data "
    "parallel ranks comes once, and those of tensor parallelism in every layer and micro-batch."
)

# %% tags=["hide-input"]
if keep:
    page.keep()

# %% [markdown]
# ## The traffic this strategy leaves

# %% tags=["hide-input"]
charts.table(
    in_words(left(["dp", "tp", "pp"])), caption="What the large jobs leave", label="modelled"
)

# %% [markdown]
# Next to the others the pipeline sends almost nothing, to one neighbour on each side, all through
# the step. Latency costs it little as long as other micro-batches fill the time: 1F1B and
# interleaved wait in every round, GPipe and ZB-H2 hardly.
#
# ## Where this stops being true
#
# - **Sleep is not work.** A sleeping rank leaves its processor to the network. Real GPUs share
#   memory and compute units between kernels and sends, and the two slow each other down.
# - **One link for each neighbour.** The time line lets a stage send forward and backward at once at
#   full rate. In the lab both leave by one interface, and in a cluster by one card.
# - **All micro-batches alike.** Sequences are packed to one length here. Where they are not, or
#   where a mixture's experts are unevenly loaded, the slowest of each diagonal sets the pace.
# - **A schedule that fits.** The closed forms want enough micro-batches, and those of zero bubble
#   want W as long as B. With recomputation B is longer and W is not, and gaps come back.
# - **The end of a step.** Gradients must be summed, clipped by their global norm, and the optimiser
#   must run, before the next step's first forward pass. ZB's authors validate the norm afterwards
#   to close even that gap; the library does not.
#
# ## Exercises
#
# ```{exercise}
# :label: pipeline-batch
# Someone doubles the number of GPUs by doubling data parallelism, and keeps the global batch. What
# happens to the bubble of 1F1B with 16 stages and 32 micro-batches? What must be given up to keep
# it?
# ```
#
# ```{solution} pipeline-batch
# :class: dropdown
# Each pipeline now has 16 micro-batches: $15/(32 + 15) = 32\,\%$ becomes $15/(16 + 15) = 48\,\%$.
# Either the batch must grow, which changes the training; or micro-batches must be smaller, if they
# hold more than one sequence; or the schedule better. The bubble is where a fixed batch meets more
# machines.
# ```
#
# ```{exercise}
# :label: pipeline-tied
# GPT-2 uses one table to embed and to score. First and last stage hold a copy each. What must be
# sent that this chapter's runs do not send, how much is it for `gpt2-xl` in float32, and which
# schedule needs none of it?
# ```
#
# ```{solution} pipeline-tied
# :class: dropdown
# The gradients of the two copies must be summed once a step: an all-reduce between the two ends, of
# 50,257 × 1,600 × 4 B = 322 MB. The library has it: `communication(ModelConfig.load("gpt2-xl"),
# Plan(pp=4, sequence=1024, recipe="float32"), axis="pp")`. With ZB-V both ends lie on one rank, so
# there is one table and nothing to send.
# ```
#
# ```{exercise}
# :label: pipeline-warmup
# Take 1F1B and let each stage do one forward pass more before its first backward pass. What does it
# hold then, and what does a send that takes half a forward pass cost? Change a schedule's list and
# play it.
# ```
#
# ```{solution} pipeline-warmup
# :class: dropdown
# Build the list by hand: with `after = p - 1 - stage`, take `w = min(after + 1, m)` forwards first,
# but none more on the last stage than its backward can wait for. Play it with
# `pipeline_tasks(schedule, UNIT, 0.5)`. Every stage but the last holds one micro-batch more, and
# the answer has one turn more to come back, so most of the loss disappears. This is what ZB-H2's
# deeper warm-up does, and what Megatron-LM's overlapped sends need.
# ```
#
# ```{exercise}
# :label: pipeline-early
# In `pipeline_step` all receives are asked for at the beginning, so there is a buffer for each. Ask
# instead for the message of the next action only, while the current one is worked on. Which
# schedules still hide their sends?
# ```
#
# ```{solution} pipeline-early
# :class: dropdown
# Those whose next action's message has been sent by then and takes no longer than the current
# action. With one ahead that is steady 1F1B with short sends. PyTorch asks just before it needs,
# action by action; frameworks that overlap keep one or two buffers for each direction.
# ```
#
# ## Where the token goes next
#
# The token has passed all its layers, on as many machines as it took. But it went as part of a
# sequence that one stage held as a whole. In the next chapter the sequence itself is cut.
