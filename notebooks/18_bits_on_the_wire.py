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
# # Bits on the wire
#
# ```{spine} messages packets bits
# ```
#
# A gradient leaves a process as floats and arrives in another as floats. Between them it is cut
# into packets, and every layer puts its own bytes around each. **Can we open the packets, find one
# named gradient in them, and turn it back into the same floats, bit for bit?** And how many bits
# did the line carry for it?

# %% tags=["parameters"]
ranks = 4
steps = 20  # of training, before the gradient is looked at
keep = False  # write what was measured to data/results/

# %% tags=["hide-input"]
import base64

import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, lab
from tokenlife.catalog import running
from tokenlife.ledger import Ledger, Level, Term
from tokenlife.tokenizer import vocabularies
from tokenlife.wire.decode import TcpFrames
from tokenlife.wire.framing import FRAME_CHECK, INTERFRAME_GAP, PREAMBLE, FramingError
from tokenlife.wire.layers import dissect
from tokenlife.wire.physical import line_bits, line_code
from tokenlife.wire.stack import PATH_MTUS, Stack
from tokenlife.wire.stream import find_array, streams

charts.setup()
page = lab.Page(
    "18_bits_on_the_wire",
    ["lab/meter.py", "lab/program.py", "wire/decode.py", "wire/stream.py"],
)

# %% [markdown]
# ## On the back of an envelope
#
# The layer is the last matrix of a small model's feed-forward block, 64 × 96 numbers of four bytes:
# 24,576 bytes. A ring all-reduce over four ranks sends 2 · 3/4 of it from each rank, 36,864 bytes.
# At 1,448 bytes a packet that is at least 26 packets, each with 66 bytes of headers. Expect some
# 5 % more on the wire than in the messages, and a little more for acknowledgements.
#
# ## A gradient, captured
#
# Four ranks train a copy of one small model, each on one sentence; rank 0 has the running sentence.
# After some steps each computes the gradient of that one layer, and they all-reduce it with a
# capture running on every interface. This function is what the ranks run.

# %%
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


def reduce_seen(here, config, ids, steps, token, width):
    import base64

    import torch
    import torch.distributed as dist
    from tokenlife.lab.meter import Capture
    from tokenlife.transformer import ModelConfig
    from tokenlife.transformer.model import Decoder
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Decoder(ModelConfig.from_hf(config, "small"))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mine, losses = torch.tensor(ids[here.rank]), []
    layer = model.get_submodule("blocks.0.mlp.down")
    seen = {}
    for step in range(steps + 1):
        if step == steps:  # the gradient that we follow: keep what the layer got, x, and δ = ∂L/∂y
            layer.register_forward_hook(
                lambda _, x, y: (y.retain_grad(), seen.update(x=x[0].detach(), y=y))[0]
            )
        optimiser.zero_grad()
        loss = cross_entropy(model(mine[None, :-1])[0], mine[1:])
        loss.backward()
        losses.append(loss.item())
        if step < steps:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= here.ranks
            optimiser.step()
    gradient = layer.weight.grad.clone()
    x, delta = seen["x"][0], seen["y"].grad[0]
    fewer = delta.clone()
    fewer[token] = 0  # the same product without this token's term
    own, again, without = gradient.clone(), delta.T @ x, fewer.T @ x
    with Capture(here.interface, width, 512) as capture:
        here.together(0.3)
        with here.counted() as sent:
            dist.all_reduce(gradient)
        frames, lengths, _, outgoing, dropped = capture.read()
    if here.rank:
        return None  # the page follows rank 0
    texts = {"own": own, "again": again, "without": without, "sum": gradient}
    found = {k: base64.b64encode(v.numpy().tobytes()).decode() for k, v in texts.items()}
    rows = [
        base64.b64encode(f[:n].tobytes()).decode() for f, n in zip(frames, lengths, strict=True)
    ]
    rows = [row for row, out in zip(rows, outgoing, strict=True) if out]
    return {**found, **sent, "losses": losses, "frames": rows, "dropped": int(dropped)}


# %% tags=["hide-input"]
tokenizer = vocabularies.load("book")
texts = [running()["sentence"],
         "A gradient is a sum over tokens, and each of them adds its own small part to it.",
         "Every rank sends a block to the next one, and takes one from the rank before it.",
         "What a network card puts around the bytes is alike for every packet."]  # fmt: skip
ids = [list(tokenizer.encode(texts[r % len(texts)])) for r in range(ranks)]
pieces = [tokenizer.decode([one]) for one in ids[0]]
token = next(i for i, piece in enumerate(pieces) if "light" in piece or piece.strip() == "l")
arguments = {"config": {**CONFIG, "vocab_size": 1 + max(map(max, ids))}, "ids": ids,
             "steps": steps, "token": token}  # fmt: skip


def captured(run, offload, width):
    """Return what rank 0 saw; no capture is made where ranks share an interface."""
    call = (reduce_seen, arguments | {"width": width})
    ran = page.on_ranks(run, call, ranks=ranks, namespaces=True, offload=offload)
    return ran.found[0][0], ran.label


rank0, label = captured("capture", False, 2048)
joined, _ = captured("offloaded", True, 32768)
offloaded = [len(base64.b64decode(text)) for text in joined["frames"]]

frames = [base64.b64decode(text) for text in rank0["frames"]]
lengths = np.array([len(frame) for frame in frames])
rows = np.zeros((len(frames), 2048), np.uint8)
for row, frame in zip(rows, frames, strict=True):
    row[: len(frame)] = np.frombuffer(frame, np.uint8)
own, again, without, total = (
    np.frombuffer(base64.b64decode(rank0[k]), np.float32)
    for k in ("own", "again", "without", "sum")
)
assert rank0["dropped"] == 0
segments = TcpFrames.read(rows, lengths)
count = segments.count()
charts.prose(
    f"The loss of rank 0 fell from {rank0['losses'][0]:.2f} to {rank0['losses'][-1]:.2f}. In the "
    f"all-reduce its interface sent {{{label}}}`{len(frames)} frames`, the largest of "
    f"{lengths.max():,} bytes. With segmentation offload on, the same all-reduce shows "
    f"{{{label}}}`{len(offloaded)} frames`, the largest of "
    f"{max(offloaded):,} bytes: the capture then sits above the point where a card "
    "would cut them. What follows uses the frames that have the wire's size."
)

# %% [markdown]
# ## Found, and turned back into floats
#
# gloo cuts the buffer into two segments for each rank and sends them round a ring. In the first
# round a rank sends its own numbers; then partial sums, which are nobody's gradient; then, in the
# second half, reduced blocks. So of rank 0's own gradient exactly one rank's share should stand in
# its packets, and of the sum three quarters.

# %%
stream = streams(rows, lengths)
blocks = []
for what, values in (("own gradient", own), ("sum of all ranks", total)):
    for k, block in enumerate(np.split(values, 2 * ranks)):
        try:
            where, at, copy = find_array(stream, block)
        except FramingError:
            continue
        assert copy.tobytes() == block.tobytes()  # bit for bit
        blocks.append((what, k, at, where.pieces(at, block.nbytes), block, copy))
assert [b[0] for b in blocks].count("own gradient") == 2
assert [b[0] for b in blocks].count("sum of all ranks") == 2 * (ranks - 1)

# %% tags=["hide-input"]
charts.table(
    pd.DataFrame(
        [
            {"what": what, "block": k, "place in the stream": at,
             "frames": ", ".join(str(p.frame) for p in where), "bytes": copy.nbytes,
             "first two floats read from the packets": f"{copy[0]:.6g}, {copy[1]:.6g}",
             "equal": "bit for bit" if copy.tobytes() == block.tobytes() else "no"}
            for what, k, at, where, block, copy in blocks
        ]
    ),
    caption="Blocks of the gradient found in what rank 0 sent, and read back from the packets.",
    label=label,
)  # fmt: skip

# %% [markdown]
# ## One frame, byte by byte
#
# This is the frame in which the first of these blocks begins. The last 48 bytes before the gradient
# belong to gloo: they tell the receiver which message this is.

# %% tags=["hide-input"]
_, block_number, _, first_pieces, first_block, _ = blocks[0]
begin = first_pieces[0]
frame = frames[begin.frame]
spans = [(s.layer, s.start, s.stop) for s in dissect(frame) if s.layer != "payload"]
head = spans[-1][2]
spans += [("gloo header", head, begin.start), ("gradient", begin.start, begin.start + begin.length)]
SHOWN, ACROSS = 160, 16
owner = [name for name, start, stop in spans for _ in range(start, stop)][:SHOWN]
cells = pd.DataFrame(
    {"layer": owner, "at": range(len(owner)), "byte": [f"{b:02x}" for b in frame[: len(owner)]]}
)
cells["row"], cells["column"] = cells["at"] // ACROSS * ACROSS, cells["at"] % ACROSS
base = alt.Chart(cells).encode(
    x=alt.X("column:O", title="byte within the row", axis=alt.Axis(labelAngle=0)),
    y=alt.Y("row:O", title="first byte of the row"),
)
order = [name for name, _, _ in spans]
alt.layer(
    base.mark_rect().encode(
        color=alt.Color("layer:N", sort=order, scale=alt.Scale(domain=order, scheme="pastel1"),
                        legend=alt.Legend(orient="top", columns=3, title=None)),
        tooltip=["at:Q", "byte:N", "layer:N"],
    ),
    base.mark_text(font="monospace", fontSize=10, color="#111").encode(text="byte:N"),
).properties(
    title=f"{begin.start} bytes of headers stand before the first float",
    description=f"The first {len(owner)} bytes of a captured frame in hexadecimal, sixteen a row, "
    "coloured by layer: " + ", ".join(f"{n} {a} to {b - 1}" for n, a, b in spans) + ".",
    height=260, width="container",
)  # fmt: skip

# %% tags=["hide-input"]
values = {s.layer: s.values(frame) for s in dissect(frame)}
charts.table(
    pd.DataFrame(
        [
            {"layer": name, "bytes": stop - start, "from": start, "to": stop - 1,
             "says": ", ".join(f"{f} {v}" for f, v in values.get(name, [])
                               if f in ("type", "total length", "time to live", "sequence number",
                                        "window", "value"))}
            for name, start, stop in spans
        ]
    ),
    caption="Layers of the frame. The card adds the frame check (4 bytes): no capture shows it.",
    label=label,
)  # fmt: skip

# %% [markdown]
# ## The token's own part
#
# The gradient of a weight matrix is a sum over tokens: $\partial L/\partial W = \sum_t \delta_t
# x_t^\top$, an outer product for each. Leave out one token's term, compute the same product again,
# and compare bytes. (The token also acts on the terms of later ones through attention. That part
# stays.)

# %%
assert np.allclose(again, own, rtol=1e-4, atol=1e-8)  # the sum of outer products is the gradient
changed = (again.view(np.uint8) != without.view(np.uint8)).reshape(2 * ranks, -1)
touched = []
for what, k, _, where, *_ in blocks:
    at = 0
    for piece in where if what == "own gradient" else []:
        part = changed[k][at : at + piece.length]
        touched.append({"frame": piece.frame, "bytes of the gradient": piece.length,
                        "of them changed": int(part.sum()), "share": part.mean()})  # fmt: skip
        at += piece.length
charts.table(
    pd.DataFrame(touched),
    caption=f"Bytes of rank 0's first packets that differ without the token {pieces[token]!r}.",
    label=label,
    formats={"share": ".0%"},
)

# %% tags=["hide-input"]
share = np.linalg.norm(again - without) / np.linalg.norm(again)
per_place = changed.reshape(-1, 4).mean(axis=0)
charts.prose(
    f"The term of {pieces[token]!r} has {share:.0%} of the gradient's length. It changes "
    f"{changed.mean():.0%} of all bytes: nearly every byte of the mantissa "
    f"({per_place[0]:.0%} and {per_place[1]:.0%} of the two lowest), and {per_place[3]:.0%} of the "
    "highest, which holds the sign and most of the exponent. One token is in every packet, and in "
    "none of them alone."
)

# %% [markdown]
# ## The account, closed to the byte
#
# From the layer's gradient to what occupies rank 0's link in its own direction. Acknowledgements
# that rank 0 sends for the others' data are counted here too, by name.

# %% tags=["hide-input"]
ring = 2 * own.nbytes * (ranks - 1) // ranks - own.nbytes
notices = rank0["payload_bytes"] - own.nbytes - ring
captured = count["frame_bytes"] + FRAME_CHECK * len(frames)
headers = int(segments.header_bytes[segments.payload_bytes > 0].sum())
again_sent = count["retransmitted_bytes"]
bare = count["frame_bytes"] - count["payload_bytes"] - again_sent - headers
silent = (PREAMBLE + INTERFRAME_GAP) * len(frames)
size = own.nbytes
account = Ledger(
    (
        Level("text", len(texts[0].encode()), "the running sentence in UTF-8"),
        Level("ids", 4 * len(ids[0]), "one id of 4 bytes for each token"),
        Level("tensors", size, "the layer's gradient, 64 × 96 floats"),
        Level("operations", size, "the product of δ and x writes it"),
        Level("communication", size, "one all-reduce of it"),
        Level("messages", rank0["payload_bytes"], "what rank 0's sockets sent",
              (Term("ring", ring, "2(n−1)/n of the buffer instead of once"),
               Term("gloo's headers and notices", notices, "48 bytes each")), label),
        Level("flows", rank0["payload_bytes"], "two connections, one hop each", (), label),
        Level("packets", captured, "frames captured, with the frame check that the card adds",
              (Term("headers", headers, "Ethernet, IP, TCP and its timestamps"),
               Term("acknowledgements", bare, "for the other ranks' data"),
               Term("retransmissions", again_sent, "payload sent again"),
               Term("frame check", FRAME_CHECK * len(frames), "4 bytes a frame")), label),
        Level("bits", captured + silent, "everything that occupies the link",
              (Term("preamble and gap", silent, "20 bytes a frame"),)),
    )
)  # fmt: skip
charts.ledger(account)

# %% tags=["hide-input"]
tcp = Stack("tcp", 1500)
message = own.nbytes // (2 * ranks)
writes = 2 * 2 * (ranks - 1)
expected = writes * tcp.frame(message + 48).packets + 2 * writes
coded = line_bits(account["bits"].bytes_, 400e9)
charts.prose(
    f"The ledger refuses levels that do not add up, so this one closed. {writes} messages of "
    f"{message:,} + 48 bytes and {2 * writes} notices of 48 make {{modelled}}`{expected} packets`; "
    f"the capture holds {{{label}}}`{count['data_packets']}` with data, "
    f"{count['acknowledgements']} bare acknowledgements and {count['retransmissions']} "
    f"retransmissions. On a 400 Gbit/s Ethernet the physical layer ({line_code(400e9).name}) would "
    f"turn {account.wire_bits:,} bits into {{modelled}}`{float(coded):,.0f}`: such a line runs at "
    f"{float(400 * line_code(400e9).expansion):g} Gbit/s. Two codes make this: one that marks "
    "control among data, as {term}`64b/66b` did on slower lines, and {term}`RS-FEC`, which puts "
    "wrong bits right."
)

# %% [markdown]
# ## What RoCEv2 would have put there
#
# RDMA over Converged Ethernet ({term}`RoCEv2`) has no stream: each message is a write. Each packet
# says with its {term}`BTH` to whom it belongs, and ends in an {term}`ICRC`; the first names the
# address in a {term}`RETH`, the last asks for one acknowledgement. The card does it; no kernel adds
# timestamps.

# %%
kinds = [Stack("tcp", 1500), Stack("tcp", 9000), Stack("rocev2", 1024), Stack("rocev2", 4096),
         Stack("ib", 4096)]  # fmt: skip
against = pd.DataFrame(
    [
        {"transport": f"{s.transport}, MTU {s.mtu}", "packets": writes * f.packets,
         "headers": writes * sum(f.header_bytes.values()), "on the wire": writes * f.wire_bytes,
         "goodput": f.goodput_ratio,
         "acknowledgements": writes * (f.acknowledgement_bytes + f.acknowledgement_silent_bytes)}
        for s in kinds for f in [s.frame(message)]
    ]
)  # fmt: skip
charts.table(
    against,
    caption=f"The {writes} blocks of {message:,} bytes that rank 0 sends, by transport; bytes.",
    label="modelled",
    formats={"goodput": ".1%", "on the wire": ",", "headers": ",", "acknowledgements": ","},
)

# %% [markdown]
# ## Goodput by MTU, transport and size
#
# Choose the size of the message. A small one pays for one packet's headers whatever the MTU; a
# large one is told apart by the MTU alone.

# %% tags=["hide-input"]
sizes = {"64 B": 64, "1 KiB": 2**10, "16 KiB": 2**14, "1 MiB": 2**20, "64 MiB": 2**26}
grid = pd.DataFrame(
    [
        {"size": text, "transport": name, "mtu": s.mtu, "goodput": s.frame(n).goodput_ratio}
        for text, n in sizes.items()
        for name, options in {"TCP": ("tcp", {}), "RoCEv2": ("rocev2", {}),
                              "InfiniBand": ("ib", {}),
                              "RoCEv2 in VXLAN": ("rocev2", {"vxlan": True})}.items()
        for mtu in ((576, 1500, 4200, 9000) if name == "TCP" else PATH_MTUS)
        for s in [Stack(options[0], mtu, **options[1])]
    ]
)  # fmt: skip
chosen = alt.param(
    name="size_chosen", value="1 MiB", bind=alt.binding_select(options=list(sizes), name="message ")
)
base = alt.Chart(grid).transform_filter("datum.size == size_chosen").encode(
    x=alt.X("mtu:Q", title="MTU (bytes)", scale=alt.Scale(type="log", domain=[60, 9500]),
            axis=alt.Axis(values=[256, 512, 1024, 2048, 4096, 9000])),
    y=alt.Y("goodput:Q", title="payload per byte on the wire", axis=alt.Axis(format="%"),
            scale=alt.Scale(zero=False)),
    color=alt.Color("transport:N", legend=None),
    shape=alt.Shape("transport:N", legend=None),
)  # fmt: skip
# At the small end the lines lie apart: the names stand there.
ends = grid.sort_values("mtu").groupby(["size", "transport"]).head(1)
shift = {"InfiniBand": 0, "RoCEv2": 0, "RoCEv2 in VXLAN": 0, "TCP": 14}
labels = [
    alt.Chart(ends[ends.transport == name]).transform_filter("datum.size == size_chosen")
    .mark_text(align="left" if dy else "right", dx=8 if dy else -8, dy=dy).encode(
        x="mtu:Q", y="goodput:Q", text="transport:N", color=alt.Color("transport:N", legend=None))
    for name, dy in shift.items()
]  # fmt: skip
alt.layer(base.mark_line(), base.mark_point(filled=True, size=50), *labels).add_params(
    chosen
).properties(
    title="From 4 KiB on, a larger MTU buys little",
    description="Goodput against MTU for TCP, RoCEv2, RoCEv2 in VXLAN and InfiniBand; a menu "
    "chooses the size of the message.",
    height=300, width="container",
)  # fmt: skip

# %% tags=["hide-input"]
charts.table(
    grid[grid["size"] == "1 MiB"].drop(columns="size"),
    caption="Goodput of a message of 1 MiB.",
    label="modelled",
    formats={"goodput": ".1%"},
)

# %% tags=["remove-cell"]
if keep:
    page.keep()

# %% [markdown]
# ## Where this stops being true
#
# - **The wire is a virtual cable.** Its frames are those that a card would send, but preamble, gap,
#   frame check and coding are added by the model: nothing here has light in it.
# - **gloo sends floats as they lie in memory.** NCCL over RDMA does too, but with its own chunks
#   and, in one of its protocols, with flags between the numbers. Encrypted traffic shows nothing.
# - **Acknowledgements depend on timing.** Two runs of this page differ in them.
# - **Own numbers appear only in the first round.** Later packets hold partial sums.
#
# ## Exercises
#
# ```{exercise}
# :label: wire-count
# How many packets carry 4 MiB by RoCEv2 at a path MTU of 4096, and how many bytes are RETH?
# Check with `tokenlife wire`.
# ```
#
# ```{solution} wire-count
# :class: dropdown
# 1,024 packets; 16 bytes, in the first alone.
# ```
#
# ```{exercise}
# :label: wire-425
# Show that 257/256 · 544/514 is 17/16 exactly. What does 800 Gbit/s Ethernet run at?
# ```
#
# ```{solution} wire-425
# :class: dropdown
# 514 = 2 · 257 and 544 = 2 · 272, so the product is 272/256 = 17/16. 850 Gbit/s.
# ```
#
# ```{exercise}
# :label: wire-two
# With two ranks, which share of a rank's own gradient stands in its packets, and which of the sum?
# ```
#
# ```{solution} wire-two
# :class: dropdown
# Half of each: one round of own numbers and one of reduced ones, and no partial sum in between.
# ```
#
# ## Where the token goes next
#
# Its gradient is on the wire, alone. Chapter 19 lets a whole job send, step after step, and puts a
# second job beside it.
