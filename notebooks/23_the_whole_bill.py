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
# # The whole bill
#
# ```{spine} text ids tensors operations communication messages flows packets bits
# ```
#
# Every chapter followed the token over one or two levels. Now all nine stand in one account.
# **How many bits cross a wire for one token, in the small job that runs here, in a model trained on
# 16,384 GPUs, and in a dozen systems that others have described? What are they spent on, and what
# would halve them?**

# %% tags=["parameters"]
model = "llama-3.1-8b"  # a job of your own: any named model, or a path to a config.json
layout = "dp=16,tp=8,zero=1,sequence_parallel=1,sequence=8192,global_batch=64"
cluster = "dgx-h100"
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
import altair as alt
import pandas as pd
from tokenlife import charts, lab
from tokenlife.catalog import read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.collectives import build
from tokenlife.costs import count_parameters
from tokenlife.jobs import trace
from tokenlife.jobs.systems import systems
from tokenlife.lab.gloo import gloo_sends
from tokenlife.ledger import LEVELS
from tokenlife.parallel import Plan
from tokenlife.units import format_bits, format_bytes
from tokenlife.wire.framing import FRAME_CHECK, INTERFRAME_GAP, PREAMBLE
from tokenlife.wire.stack import Stack

charts.setup()
page = lab.Page(
    "23_the_whole_bill",
    ["lab/meter.py", "lab/program.py", "transformer/model.py", "wire/decode.py"],
)
sentence = running()["sentence"]
small = trace()


def size(value, digits=3):
    return format_bytes(value, digits).replace(" ", "\u00a0")


def bits(value):
    return format_bits(value).replace(" ", "\u00a0")


# %% [markdown]
# ## On the back of an envelope
#
# Two ranks train the running model on one sentence each. The words do not cross the network. The
# gradients do: a number for every parameter, whatever the sentence says.

# %% tags=["hide-input"]
weights, tokens = count_parameters(small.config), small.tokens_per_step
guess = 8 * 2 * 4 * weights * 2 / tokens
charts.prose(
    f"{weights:,} parameters at 4 bytes; two ranks each send one copy; each copy goes up to the "
    f"switch and down again: {{modelled}}`{size(2 * 2 * 4 * weights)}` a step, and with "
    f"{tokens} tokens a step {{modelled}}`{bits(guess)}` for a token. Headers will add a few "
    f"per cent. The token itself, as text, has about "
    f"{8 * small.encoding.n_bytes / small.encoding.n_tokens:.0f} bits."
)

# %% [markdown]
# ## The mechanism
#
# Below communication the account is a balance, and it takes few lines. An algorithm turns the
# gradients into messages, each message crosses two links, and on each link it is cut into packets.
# Nothing else happens to a byte.

# %%
items, tcp = weights, Stack("tcp", 1500)
schedule = build("all_reduce", "ring", 2)
offsets = schedule.chunk_offsets(items) * 4
messages = [
    int(bytes_)
    for number in range(len(schedule.rounds))
    for bytes_ in schedule.messages(number, offsets)[2]
]
on_links = [bytes_ for bytes_ in messages for _ in ("up", "down")]
framed = [tcp.frame(bytes_) for bytes_ in on_links]
by_hand = {
    "messages": sum(messages),
    "flows": sum(on_links),
    "packets": sum(f.frame_bytes + f.acknowledgement_bytes for f in framed),
    "bits": sum(
        f.wire_bytes + f.acknowledgement_bytes + f.acknowledgement_silent_bytes for f in framed
    ),
}
assert by_hand == {name: small.ledger[name].bytes_ for name in by_hand}

# %% [markdown]
# ## The library at scale
#
# `tokenlife.jobs.trace` does the same for any model, layout, algorithm, transport and cluster. It
# asks every rank's operations of `tokenlife.parallel`, counts alike messages once, finds out where
# each lands, and frames it. A {term}`ledger` that loses a byte cannot be made: it raises an error.
# Here is the small job's, with a name for every byte between two levels.

# %%
print(small.ledger)

# %% [markdown]
# And here its big sister: the same sentence inside one step of Llama 3.1 405B, in the layout of its
# authors {cite}`llama2024herd`. What stays inside a node is a term of its own, with a minus: no
# paper describes the packets of those links, so the account follows what network cards send.

# %% tags=["hide-input"]
known = {system.name: system for system in systems()}
herd = known["Llama 3 405B, 16,384 H100s"]
big = trace(sentence, running()["big"]["model"], herd.plans[0], cluster="llama3-24k")
assert big.account.levels() == herd.taken.levels()
names = {term.name for level in big.ledger.levels for term in level.terms}
rows = []
for level in big.ledger.levels:
    rows.append({"level": level.name, "bytes": f"{level.bytes_:,}", "how": level.how})
    rows += [
        {"level": f"\u2003{term.name}", "bytes": f"{term.bytes_:+,}", "how": term.why}
        for term in level.terms
        if term.bytes_
    ]
charts.table(
    pd.DataFrame(rows),
    caption="One step of Llama 3.1 405B on 16,384 GPUs, summed over all network links",
    label={"bytes": "modelled"},
)

# %% [markdown]
# ## Measured at every level
#
# The small job truly runs. Each rank reads the sentence, goes forward and backward, and hands its
# gradients to one {term}`all-reduce`. What stands at each level is read where it stands: ids and
# tensors in memory, payload on the sockets, frames on the interfaces, each on both links that it
# crosses.


# %%
def one_step(here, ids):
    """Take the running job's step on this rank, and count what stands at every level."""
    import torch
    import torch.distributed as dist
    from tokenlife.lab.meter import Capture
    from tokenlife.transformer import ModelConfig
    from tokenlife.transformer.model import Decoder
    from tokenlife.wire.decode import TcpFrames
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, ids = Decoder(ModelConfig.load("running-gpt")), torch.tensor(ids, dtype=torch.uint16)
    passed = []
    model.blocks[0].register_forward_hook(lambda _, x, y: passed.append(y.nbytes))
    logits = model(ids[None].long())[0]
    cross_entropy(logits[:-1], ids[1:].long()).backward()
    gradients = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    with Capture(here.interface, 256, 1 << 14) as capture:
        here.together(0.3)
        with here.counted() as sent:
            dist.all_reduce(gradients)
        frames, lengths, _, outgoing, dropped = capture.read()
    ways = [TcpFrames.read(frames[way], lengths[way]).count()
            for way in (outgoing.astype(bool), ~outgoing.astype(bool))]  # fmt: skip
    return {
        "ids": ids.nbytes, "tensors": passed[0], "operations": gradients.nbytes,
        "payload": sent["payload_bytes"], "interface": sent["wire_bytes"],
        "out": ways[0], "in": ways[1], "dropped": int(dropped),
    }  # fmt: skip


# %% tags=["hide-input"]
ran = page.on_ranks(
    "step", (one_step, {"ids": list(small.encoding.ids)}), ranks=2, namespaces=True, offload=False
)
(on_each,), label = ran.found, ran.label
assert not any(rank["dropped"] for rank in on_each)
ways = [rank[way] for rank in on_each for way in ("out", "in")]
frames = sum(w["data_packets"] + w["acknowledgements"] for w in ways)
captured = sum(w["frame_bytes"] for w in ways) + FRAME_CHECK * frames
payload = sum(rank["payload"] for rank in on_each)
measured = {
    "text": len(sentence.encode()),
    "ids": on_each[0]["ids"],
    "tensors": on_each[0]["tensors"],
    "operations": on_each[0]["operations"],
    "communication": sum(rank["operations"] for rank in on_each),
    "messages": payload,
    "flows": sum(w["payload_bytes"] for w in ways),
    "packets": captured,
    "bits": captured + (PREAMBLE + INTERFRAME_GAP) * frames,
}
beside = pd.DataFrame(
    {"level": name, "modelled": small.ledger[name].bytes_, "seen": measured[name]}
    for name in LEVELS
)
beside["error"] = beside.modelled / beside.seen - 1
charts.table(
    beside,
    caption="The small job at every level, bytes of both ranks",
    label={"modelled": "modelled", "seen": label},
    formats={"modelled": ",", "seen": ",", "error": "+.2%"},
)

# %% tags=["hide-input"]
data, headers = (int(part.sum()) for part in gloo_sends("all_reduce", 2, 4 * weights))
extra = payload - small.ledger["messages"].bytes_
again = sum(w["retransmitted_bytes"] for w in ways) // 2
assert data == small.ledger["messages"].bytes_ and abs(extra - headers) <= 0.005 * data
acks = sum(w["acknowledgements"] for w in ways) // 2
model_acks = small.account.stack.frame(2 * weights).acknowledgements * 4
worst = beside.error.abs().max()
charts.prose(
    f"{ran.where} Down to communication the two are equal, since each is a formula. The sockets "
    f"sent {{{label}}}`{extra:,}` bytes more than the ring needs; gloo's own headers are "
    f"{{modelled}}`{headers:,}`. Each byte of payload was seen "
    f"on two links. Of {{modelled}}`{model_acks:,}` acknowledgements, one for every second "
    f"segment, {{{label}}}`{acks:,}` came: "
    + (
        "where data goes the same way it carries them, and a busy receiver merges some. "
        if acks < model_acks
        else "none was merged. "
    )
    + f"The largest error of any level is {{modelled}}`{worst:.1%}`."
)

# %% [markdown]
# ## From words to bits
#
# Both jobs, for one token of the sentence. From operations on, the step's bytes are divided by the
# step's tokens. The axis is logarithmic, so there are points and no bars: the length of a bar from
# an arbitrary zero would say nothing.

# %% tags=["hide-input"]
jobs = {"running-gpt, 2 ranks": small, "Llama 3.1 405B, 16,384 GPUs": big}
points = []
for name, job in jobs.items():
    for level in job.ledger.levels:
        own = level.name in ("text", "ids", "tensors")
        share = job.encoding.n_tokens if own else job.tokens_per_step
        points.append((name, level.name, 8 * level.bytes_ / share, "modelled"))
first = next(iter(jobs))
for name, value in measured.items():
    own = name in ("text", "ids", "tensors")
    share = small.encoding.n_tokens if own else small.tokens_per_step
    points.append((first, name, 8 * value / share, str(label)))
points = pd.DataFrame(points, columns=["job", "level", "bits", "label"])
points["shown"] = points.bits.map(format_bits)
points["place"] = points.level.map(LEVELS.index)
colours = alt.Color("job:N", sort=list(jobs), title=None, legend=alt.Legend(labelLimit=300)).scale(
    range=[PALETTE["blue"], PALETTE["orange"]]
)
line = alt.Chart(points).encode(
    alt.Y("level:N", sort=list(LEVELS), title=None),
    alt.X("bits:Q", title="bits for a token (logarithmic)", scale=alt.Scale(type="log"),
          axis=alt.Axis(format="~s", tickCount=8)),
    colours, tooltip=["job:N", "level:N", "label:N", "shown:N"],
)  # fmt: skip
small_bits, big_bits = (job.wire_bits_per_token for job in jobs.values())
typed = [8 * job.encoding.n_bytes / job.encoding.n_tokens for job in jobs.values()]
said = "; ".join(
    f"{job}: " + ", ".join(f"{r.level} {r.shown}" for r in rows_.itertuples())
    for job, rows_ in points[points.label == "modelled"].groupby("job", sort=False)
)
alt.layer(
    line.transform_filter("datum.label == 'modelled'").mark_line(strokeDash=[2, 3], opacity=0.6)
    .encode(order="place:Q"),
    line.transform_filter("datum.label == 'modelled'").mark_point(size=70, filled=True),
    line.transform_filter("datum.label != 'modelled'")
    .mark_point(size=190, filled=False, shape="square", strokeWidth=1.6),
).properties(
    title=f"A token of {typed[0]:.0f} or {typed[1]:.0f} bits puts {format_bits(small_bits)} or "
    f"{format_bits(big_bits)} on wires",
    description="Bits for a token at each level from text to bits, on a logarithmic axis, for the "
    "small job (modelled, and measured as squares around the points) and for Llama 3.1 405B. "
    + said,
    height=300,
)  # fmt: skip

# %% tags=["hide-input"]
words = {"modelled": "small, modelled", str(label): f"small, {label}"}
columns = {words[how]: points[(points.job == first) & (points.label == how)] for how in words}
columns["405B, modelled"] = points[points.job != first]
table = pd.DataFrame({"level": LEVELS} | {name: c.bits.tolist() for name, c in columns.items()})
charts.table(
    table, caption="Bits for a token at each level",
    label=dict(zip(columns, ["modelled", label, "modelled"], strict=True)),
    formats=dict.fromkeys(columns, bits),
)  # fmt: skip

# %% tags=["hide-input"]
ratio = big_bits / small_bits
per_weight = count_parameters(big.config) / count_parameters(small.config)
assert ratio < per_weight / 100
charts.prose(
    f"The large model has {per_weight:,.0f} times the weights and spends "
    f"{{modelled}}`{ratio:,.0f}` times the bits on a token. What saves it is the batch: a step of "
    f"{big.tokens_per_step:,} tokens sums its gradients once. In the small job the whole step is "
    f"{small.tokens_per_step} tokens. At every level below operations the bill is paid for the "
    "step, and shared by the tokens that ride in it."
)

# %% [markdown]
# ## Wire bits for a token, system by system
#
# `data/reference/23_systems.toml` holds systems that others have described, each with its source.
# What a source does not say is varied, and the least and the most are drawn. Counted as
# {term}`wire bits per token` is what leaves network cards, headers and acknowledgements included;
# hops inside the network are not, since few papers say how many there are.

# %% tags=["hide-input"]
found, shares, spent = [], [], []
for system in systems():
    taken, least, most = system.card_bits_per_token
    account = system.taken
    found.append(
        {"system": system.name, "does": "serves" if system.asked else "trains", "taken": taken,
         "least": least, "most": most,
         "in nodes": 8 * account.node_bytes() / account.tokens, "layout": system.layout,
         "unknown": system.unknown, "source": system.source}
    )  # fmt: skip
    shares += [
        {"system": system.name, "axis": axis, "bits": sums["card_bits_per_token"]}
        for axis, sums in account.per_axis().items()
    ]
    assert not account.card_bits("tp")  # all lay it inside a node
    if taken:
        levels = {level.name: level for level in account.levels()}
        terms = {t.name: t.bytes_ for level in levels.values() for t in level.terms}
        total, headers = levels["bits"].bytes_, levels["packets"].terms
        spent.append(
            {"system": system.name,
             "payload, once": (levels["flows"].bytes_ - terms["hops"]) / total,
             "hops": terms["hops"] / total,
             "headers": sum(t.bytes_ for t in headers if t.name != "acknowledgements") / total,
             "acknowledgements": terms["acknowledgements"] / total,
             "gaps": terms["preamble and gap"] / total}
        )  # fmt: skip
found = pd.DataFrame(found)
assert len(found) >= 12 and (found.least <= found.taken).all() and (found.taken <= found.most).all()

# %% tags=["hide-input"]
seen = found[found.taken > 0].copy()
order = seen.sort_values("taken", ascending=False).system.tolist()
seen["shown"] = seen.taken.map(format_bits)
base = alt.Chart(seen).encode(
    alt.Y("system:N", sort=order, title=None, axis=alt.Axis(labelLimit=260)),
    color=alt.Color("does:N", title=None).scale(
        domain=["trains", "serves"], range=[PALETTE["blue"], PALETTE["orange"]]),
    tooltip=["system:N", "shown:N", "unknown:N", "source:N"],
)  # fmt: skip
axis = alt.Axis(format="~s", values=[10.0**k for k in range(5, 11)], labelOverlap=True)
alt.layer(
    base.mark_rule(strokeWidth=2.5, opacity=0.55).encode(
        alt.X("least:Q", scale=alt.Scale(type="log"), axis=axis,
              title="bits for a token, log scale"),
        alt.X2("most:Q"),
    ),
    base.mark_point(size=85, filled=True).encode(
        alt.X("taken:Q"), alt.Shape("does:N", title=None).scale(
            domain=["trains", "serves"], range=["circle", "diamond"])),
    base.mark_text(align="left", dx=9, dy=-8).encode(alt.X("taken:Q"), text="shown:N"),
).properties(
    title=f"From {format_bits(seen.taken.min())} to {format_bits(seen.taken.max())}: "
    "no two systems pay alike",
    description="Bits out of network cards for a token, with the range of what is not known. "
    + "; ".join(f"{r.system}: {r.shown}" for r in seen.itertuples()),
    height=alt.Step(30),
)  # fmt: skip

# %% tags=["hide-input"]
charts.table(
    found[["system", "does", "taken", "least", "most", "in nodes"]],
    caption="Bits for a token: out of network cards as taken, at least, at most; and beside them "
    "on links inside nodes",
    label=dict.fromkeys(["taken", "least", "most", "in nodes"], "modelled"),
    formats=dict.fromkeys(["taken", "least", "most", "in nodes"], bits),
    sortable=True,
)

# %% tags=["hide-input"]
charts.table(
    found[["system", "layout", "unknown", "source"]],
    caption="Whence the layouts come, and what is not known",
    label={"layout": "published"},
)

# %% tags=["hide-input"]
told = read_reference("12_inference")
told = told[(told.quantity == "kv_bytes") & (told.model == "opt-66b")].iloc[0]
opt = known["OPT 66B, cache moved"]
ours = opt.taken.levels("kv")[0].bytes_ / opt.plans[0].micro_batch / 2**30
wide = seen.assign(factor=seen.most / seen.least).sort_values("factor").iloc[-1]
idle = found[found.taken == 0].system.tolist()
trained, served = (seen[seen.does == what].taken for what in ("trains", "serves"))
charts.prose(
    f"Training costs {{modelled}}`{bits(trained.min())}` to {{modelled}}`{bits(trained.max())}` "
    f"for a token, serving {{modelled}}`{bits(served.min())}` to "
    f"{{modelled}}`{bits(served.max())}`. {' and '.join(idle)} sends nothing past its node. The "
    f"widest range is that of {wide.system}, a factor of {{modelled}}`{wide.factor:.0f}`. Not "
    f"known there: {wide.unknown}. One flag does most of it: whether gradients are scattered once "
    "a step, or after each micro-batch. [Chapter 7](07_data_parallel.ipynb) takes the dearer way "
    "for Llama 3. A published check: DistServe gives the cache of 512 tokens of OPT 66B as "
    f"{{published}}`{told.value}` GiB; the account moves {{modelled}}`{ours:.3f}` GiB "
    f"({ours / float(told.value) - 1:+.1%})."
)

# %% [markdown]
# ## What the bits are spent on
#
# By axis of parallelism, as a share of what leaves the cards:

# %% tags=["hide-input"]
axes = pd.DataFrame(shares)
axes = axes[axes.bits > 0]
total = axes.groupby("system").bits.transform("sum")
axes["share"] = axes.bits / total
axes["shown"] = axes.bits.map(format_bits)
words = {"dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert",
         "kv": "moved cache"}  # fmt: skip
axes["axis"] = axes.axis.map(words)
used = [word for word in words.values() if word in set(axes.axis)]
first_axis = axes.loc[axes.groupby("system").share.idxmax()].set_index("system").axis
for system in systems():  # what the title says
    if system.name in first_axis:
        mixed = {"expert"} if system.config.moe else {"moved cache"}
        dense = {"data", "pipeline", "context"}
        assert first_axis[system.name] in (mixed if system.asked or system.config.moe else dense)
alt.Chart(axes).mark_bar().encode(
    alt.Y("system:N", sort=order, title=None, axis=alt.Axis(labelLimit=260)),
    alt.X("share:Q", title="share of the bits", axis=alt.Axis(format="%", tickCount=4),
          scale=alt.Scale(domain=[0, 1])),
    alt.Color("axis:N", sort=used, title=None).scale(
        domain=used, range=list(PALETTE.values())[: len(used)]),
    order=alt.Order("axis:N"), tooltip=["system:N", "axis:N", "shown:N",
                                        alt.Tooltip("share:Q", format=".1%")],
).properties(
    title="Dense training pays for stages and gradients, mixtures for experts, serving for caches",
    description="Shares of the bits out of network cards by axis. "
    + "; ".join(
        f"{name}: " + ", ".join(f"{r.axis} {r.share:.0%}" for r in part.itertuples())
        for name, part in axes.groupby("system", sort=False)
    ),
    height=alt.Step(24),
)  # fmt: skip

# %% [markdown]
# And by level, as a share of all bits on all links of the network:

# %% tags=["hide-input"]
spent = pd.DataFrame(spent)
parts = list(spent.columns[1:])
assert (abs(spent[parts].sum(axis=1) - 1) < 1e-9).all()
some = ["GPT 145.6B, 1,536 A100s", herd.name, "GPT-3 175B, 12,288 A100s",
        "DeepSeek-V3 writes, 144 H800s"]  # fmt: skip
charts.table(
    spent[spent.system.isin(some)],
    caption="What the links carry: payload on its first link and on others, and what packets add",
    label=dict.fromkeys(parts, "modelled"),
    formats=dict.fromkeys(parts, ".1%"),
)

# %% tags=["hide-input"]
added = spent.headers + spent.acknowledgements + spent.gaps
coded = big.to_dict()
coded = {"rate": big.rate_bps / 1e9, "name": coded["line_code"],
         "bits": coded["line_bits_per_token"]}  # fmt: skip
tiny = 1 - small.ledger["flows"].bytes_ / small.ledger["bits"].bytes_
charts.prose(
    f"Packets add {{modelled}}`{added.min():.1%}` to {{modelled}}`{added.max():.1%}`: RDMA's large "
    "packets and large messages leave little to win there. (In the small job, with TCP at an MTU "
    f"of 1500, it is {{modelled}}`{tiny:.1%}`.) Most of what the links carry is the same payload "
    "again, one hop on. The bill is made further up: in what must be said at all. Beneath the last "
    f"level a line of {coded['rate']:g} Gbit/s codes its bits ({coded['name']}): "
    f"{{modelled}}`{bits(big_bits)}` become {{modelled}}`{bits(coded['bits'])}`."
)

# %% [markdown]
# ## What would halve it
#
# The account answers by being asked again. Each line changes one thing.

# %% tags=["hide-input"]
NVLS = {"reduce_scatter": "nvls", "all_gather": "nvls"}
NODES = {"reduce_scatter": "hierarchical", "all_gather": "hierarchical"}
HERD, V3, WRITES = herd.name, "DeepSeek-V3, 2,048 H800s", "DeepSeek-V3 writes, 144 H800s"
GPT, MOVED = "GPT 145.6B, 1,536 A100s", "Llama 2 70B, cache moved"
asked = {
    (HERD, "twice the batch"): {"plan": {"global_batch": 4096}},
    (HERD, "gradients summed in 16 bits"): {"plan": {"communication": "bf16"}},
    (HERD, "one chunk a stage, not eight"): {"plan": {"virtual": 1, "schedule": "1f1b"}},
    (HERD, "switches that add and copy"): {"algorithms": NVLS},
    (HERD, "rings in two tiers of eight"): {"algorithms": NODES},
    (HERD, "gradients scattered after each micro-batch"): {"plan": {"zero": 2}},
    (HERD, "packets of 1,024 bytes"): {"mtu": 1024},
    (HERD, "TCP at an MTU of 1500"): {"transport": "tcp", "mtu": 1500},
    (HERD, "TCP with jumbo frames"): {"transport": "tcp", "mtu": 9000},
    (GPT, "a stage's ranks share out a send"): {"plan": {"sequence_parallel": True}},
    (V3, "dispatch in 16 bits, not 8"): {"plan": {"dispatch": ""}},
    (V3, "once to each expert, not to each node"): {"plan": {"ep_node": 1}},
    (WRITES, "once to each node, not to each expert"): {"plan": {"ep_node": 8}},
    (MOVED, "answers twice as long"): {"new": 422},
    (MOVED, "read and written on one machine"): {"moved": False},
}
changes = []
for (name, what), change in asked.items():
    now = known[name].card_bits_per_token[0]
    then = known[name].account(**change)
    then = then.card_bits() / then.tokens
    changes.append({"system": name, "change": what, "bits": then, "factor": then / now})
changes = pd.DataFrame(changes)
charts.table(
    changes,
    caption="Bits out of network cards for a token after one change, and over what they were",
    label={"bits": "modelled", "factor": "modelled"},
    formats={"bits": bits, "factor": "× {:.2f}".format},
)

# %% tags=["hide-input"]
by_change = changes.set_index("change").factor
halved = changes[changes.factor <= 0.5].change.tolist()
assert by_change["packets of 1,024 bytes"] < 1.1 and by_change["rings in two tiers of eight"] > 0.99
charts.prose(
    "What halves the bill, or more: " + "; ".join(halved) + ". Nothing in that list is a property "
    "of packets. Two-tier rings change nothing for Llama 3 "
    f"({{modelled}}`× {by_change['rings in two tiers of eight']:.2f}`), because no two members of "
    "a data-parallel group share a node: its nodes are full of tensor parallelism. Switches that "
    f"add give {{modelled}}`× {by_change['switches that add and copy']:.2f}`: they spare what a "
    "rank sends to gather, not the gradients that it sends to be summed."
)

# %% [markdown]
# ## The calculator
#
# Choose a system, and see its own way from communication to bits.

# %% tags=["hide-input"]
grid = []
for system in systems():
    account = system.taken
    for level in account.levels():
        grid.append((system.name, level.name, 8 * level.bytes_ / account.tokens))
    grid.append((system.name, "out of cards", account.card_bits() / account.tokens))
grid = pd.DataFrame(grid, columns=["system", "level", "bits"])
grid = grid[grid.bits > 0]
grid["shown"] = grid.bits.map(format_bits)
chosen = alt.param(
    name="system_chosen", value=herd.name,
    bind=alt.binding_select(options=grid.system.drop_duplicates().tolist(), name="system "),
)  # fmt: skip
dot = (
    alt.Chart(grid)
    .transform_filter("datum.system == system_chosen")
    .encode(
        alt.Y("level:N", sort=[*LEVELS, "out of cards"], title=None),
        alt.X("bits:Q", title="bits for a token (logarithmic)",
              scale=alt.Scale(type="log", domain=[grid.bits.min() / 2, grid.bits.max() * 4]),
              axis=alt.Axis(format="~s", tickCount=6)),
        tooltip=["level:N", "shown:N"],
    )
)  # fmt: skip
alt.layer(
    dot.mark_point(size=90, filled=True), dot.mark_text(align="left", dx=9).encode(text="shown:N")
).add_params(chosen).properties(
    title="The lower half of the spine, for one system",
    description="Bits for a token at the levels communication, messages, flows, packets and bits, "
    "and out of network cards, for a system chosen in a menu. The tables above hold the same.",
    height=alt.Step(30),
)

# %% [markdown]
# For any other job there is the command, or this page with other parameters. The parameters of this
# run ask for a job of their own:

# %%
own = trace(sentence, model, Plan.parse(layout), cluster=cluster)
print(own.ledger)

# %% [markdown]
# ```bash
# tokenlife trace "your words" --model llama-3.1-8b --cluster dgx-h100 --html bill.html \
#   --plan dp=16,tp=8,zero=1,sequence_parallel=1,sequence=8192,global_batch=64
# tokenlife trace "your words" --model llama-3.1-70b --cluster dgx-h100 --plan tp=8,micro_batch=16 \
#   --serve --new 200 --move-cache
# ```

# %% tags=["remove-cell"]
if keep:
    page.keep()

# %% [markdown]
# ## Where the model stops being true
#
# - **Errors that all systems share are in no range.** Each is priced by one model: even routing to
#   experts, rings, one write for a message. Where NCCL cuts a ring into channels and chunks there
#   are more messages, and a few more headers.
# - **A node's links are counted as payload.** NVLink has packets and headers too; they are not
#   public.
# - **Nothing is lost.** Retransmissions, pause and congestion frames, connection set-up, health
#   checks, checkpoints, the reading of data and the log are missing from the account.
# - **A token is not the same thing everywhere.** Vocabularies differ, and a served token, read or
#   written, costs less work than one trained on. Bits per token compare wires, not worth.
# - **Volume is not time.** What hides behind computing costs bits and no seconds;
#   [chapter 12](12_whole_jobs.ipynb) tells the two apart.
#
# ## Exercises
#
# ```{exercise}
# :label: bill-four
# Four ranks in place of two, each still with one sentence. By what factor do the wire bits for a
# token grow? Check with `tokenlife trace --plan dp=4`.
# ```
#
# ```{solution} bill-four
# :class: dropdown
# A ring sends $2(n - 1)$ copies of the gradients, and there are $n$ sentences: $2(n - 1)/n$ for a
# sentence grows from 1 to 1.5. With packets it is a little more or less than 1.5, as the last
# packet of each block is shorter.
# ```
#
# ```{exercise}
# :label: bill-zero
# In no system above does tensor parallelism send a bit out of a card. Where there is any, it still
# says more than all other axes together. How, and where do you see it?
# ```
#
# ```{solution} bill-zero
# :class: dropdown
# All lay it inside a node. It is most of the column "in nodes", and the minus of the ledger. On
# GPUs without such links it would be the bill.
# ```
#
# ```{exercise}
# :label: bill-own
# Find a layout of `llama-3.1-8b` on 128 GPUs of `dgx-h100` with a batch of 1,024 sequences of 8,192
# that sends less than 1 Mbit out of cards for a token. What do you pay for it?
# ```
#
# ```{solution} bill-own
# :class: dropdown
# Gradients are all that must leave a node, so let fewer copies sum them: `dp=16,tp=8,zero=1` with
# `sequence_parallel=1,sequence=8192,global_batch=1024`. About 15 copies' worth of gradients and of
# weights crosses for 8 million tokens; `tokenlife trace` with that plan shows it. The price stands
# in the column "in nodes": tensor parallelism says much more, on faster links.
# ```
#
# ## Where the token goes next
#
# Nowhere. Its gradient is in the weights, and the wire has long carried others. What is left of the
# token is a very small change in a very large number of floats, and the next word that the model
# writes.
