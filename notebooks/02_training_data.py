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
# # Training data
#
# ```{spine} text ids
# ```
#
# The sentence of chapter 1 has become a handful of ids. A model does not learn from one sentence:
# it learns from {term}`batches <global batch>` of them, dealt out to many machines.
#
# The question of this chapter: **what does each {term}`rank` read, how many bytes does a token cost
# before it meets the model, and what is that beside what the same step puts on the network?**

# %% tags=["parameters"]
vocabulary = "book"  # any of tokenlife.tokenizer.vocabularies.names()
sequence_length = 256  # ids in a row
global_batch = 32  # sequences in a step, over all ranks
micro_batch = 8  # sequences that a rank takes at a time
held_out = 0.05  # part of the documents that no rank trains on
seed = 0

# %% tags=["hide-input"]
import tempfile
import time
import timeit
from dataclasses import replace
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from tokenlife import charts, corpus
from tokenlife.catalog import read_reference, running
from tokenlife.charts import PALETTE
from tokenlife.collectives import ring_all_reduce
from tokenlife.corpus.loader import TokenBatches
from tokenlife.costs import count_parameters
from tokenlife.parallel import Plan, data_parallel_ops
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.units import format_bytes, format_count, format_time

charts.setup()
tokenizer = vocabularies.load(vocabulary)
sentence = running()["sentence"]
small = running()["small"]
# The running model, with an embedding row for each id of the vocabulary asked for.
model = ModelConfig.load(small["model"])
model = replace(model, vocab=tokenizer.n_vocab, positions=max(model.positions, sequence_length))
SOURCES = {"shakespeare": "Shakespeare", "udhr": "Declaration", "python": "Python"}
COLOURS = dict(zip(SOURCES.values(), ("blue", "orange", "violet"), strict=True))


def source_of(document):
    return SOURCES[document.name.split("/")[0]]


def by_source(sort=None, title=None):
    """One colour for each source, in every chart of the chapter."""
    scale = alt.Scale(domain=list(COLOURS), range=[PALETTE[name] for name in COLOURS.values()])
    return alt.Color("source:N", scale=scale, legend=None, title=title)


# %% [markdown]
# ## On the back of an envelope
#
# An id is a number below the size of the vocabulary. Two bytes hold it if the vocabulary has at
# most 65,536 ids, four if it has more. A step reads the ids of its batch once. After the step,
# every rank holds a gradient for each parameter, and ranks that train one model have to agree on
# their mean: in a ring of two, each sends as many bytes as its gradient has.

# %% tags=["hide-input"]
id_bytes = 2 if tokenizer.n_vocab <= 1 << 16 else 4
step_tokens = global_batch * sequence_length
guess_read, guess_sent = step_tokens * id_bytes, count_parameters(model) * 4
charts.prose(
    f"The running job has {format_count(count_parameters(model), 1)} parameters, {small['dp']} "
    f"ranks and {step_tokens:,} tokens in a step. It reads about "
    f"{{modelled}}`{format_bytes(guess_read, 1)}`, and each rank sends about "
    f"{{modelled}}`{format_bytes(guess_sent, 1)}`: some {guess_sent / guess_read:,.0f} times as "
    "much. Data looks free beside the network. The rest of the chapter does the sum on a real "
    "corpus, and finds the places where it is not."
)

# %% [markdown]
# ## The mechanism
#
# A {term}`document` ends with a special id, so that a model learns where texts end. Documents
# follow each other in one line; the line is cut into rows; the label of each place is the id that
# comes next. That is all of {term}`packing` as GPT-2 did it:

# %%
notes = [sentence, "To be, or not to be.", "import this"]
end = corpus.tokenfile.end_of_text(tokenizer)
row_length = 12

line = []
for note in notes:
    line += [*tokenizer.encode_ordinary(note), end]
starts = range(0, len(line), row_length)
rows = [line[at : at + row_length] for at in starts]
labels = [line[at + 1 : at + 1 + row_length] for at in starts]

# %% [markdown]
# Two things are wrong with it. The end of one note is asked to predict the start of the next, which
# nobody could. And a token of the second note can look back at the first. The library's batch
# carries what mends both: a {term}`loss mask` and the boundaries of documents.

# %% tags=["hide-input"]
folder = tempfile.TemporaryDirectory()
documents = [corpus.Document(f"note {i}", note, "", "", "") for i, note in enumerate(notes)]
file = corpus.write_tokens(Path(folder.name, "notes.tokens"), documents, tokenizer)
packing = corpus.chop(file.lengths, row_length)
tiny = corpus.make_batch(file, packing, range(packing.n_rows))
filled = tiny.documents.ravel() >= 0
assert tiny.ids.ravel()[filled].tolist() == [id_ for row in rows for id_ in row]
# Where the mask lets a label count, it is the one of the few lines above.
flat = [label for row in labels for label in row]
assert all(
    label == flat[at] for at, label in enumerate(tiny.labels.ravel()) if label != corpus.IGNORE
)


def spelt(id_):
    if id_ == end:
        return "end of text"
    return "–" if id_ == corpus.IGNORE else repr(tokenizer.decode([id_]))[1:-1].replace(" ", "␣")


boundary = int(np.flatnonzero(np.diff(tiny.documents.ravel()))[0])
window = slice(max(0, boundary - 4), boundary + 6)
charts.table(
    pd.DataFrame(
        {
            "place": np.arange(tiny.ids.size)[window],
            "document": tiny.documents.ravel()[window],
            "position": tiny.positions.ravel()[window],
            "reads": [spelt(i) for i in tiny.ids.ravel()[window]],
            "is to predict": [spelt(i) for i in tiny.labels.ravel()[window]],
            "in the loss": np.where(tiny.loss_mask.ravel()[window], "yes", "no"),
        }
    ),
    caption="Around the end of the running sentence: positions start again, "
    "and the end of text predicts nothing",
    label="measured",
)

# %% tags=["hide-input"]
which = tiny.documents.ravel()[filled]
n = len(which)
mask = pd.DataFrame(
    [
        {
            "query": q,
            "key": k,
            "looks": "its own document" if which[q] == which[k] else "another document",
        }
        for q in range(n)
        for k in range(q + 1)
    ]
)
across = (mask.looks == "another document").mean()
alt.Chart(
    mask,
    title=f"In one row of three notes, {across:.0%} of all looks back cross into another note",
    description=(
        f"Causal attention over {n} tokens of three notes in one row, as a lower triangle. "
        f"{across:.0%} of the squares lie outside the three blocks on the diagonal: a token looks "
        "at a document that is not its own."
    ),
).mark_rect().encode(
    x=alt.X("key:O", title="token looked at", axis=alt.Axis(labels=False, ticks=False)),
    y=alt.Y("query:O", title="token that looks", axis=alt.Axis(labels=False, ticks=False)),
    color=alt.Color(
        "looks:N",
        title=None,
        scale=alt.Scale(
            domain=["its own document", "another document"],
            range=[PALETTE["blue"], PALETTE["grey"]],
        ),
    ),
    tooltip=["query", "key", "looks"],
).properties(height=300)

# %% [markdown]
# The blue blocks are what a token should see. `cu_seqlens` lists where they start, which is the
# form that fused attention kernels take: they then neither compute nor leak the grey part.
#
# ## A real corpus
#
# Three sources, one for each kind of text that a general model meets: English prose and verse, many
# languages, and code. All of it is read from packages that carry the files; nothing is downloaded
# while the page is made.

# %%
texts = corpus.shakespeare() + corpus.udhr() + corpus.standard_library()
kept, copies = corpus.deduplicate(texts)
train, test = corpus.split(kept, held_out, seed=seed)

# %% tags=["hide-input"]
counted = pd.DataFrame(
    {
        "source": [source_of(text) for text in texts],
        "bytes": [text.n_bytes for text in texts],
        "licence": [text.licence for text in texts],
        "kept": np.isin([text.name for text in texts], [text.name for text in kept]),
    }
)
gone = counted[~counted.kept]
charts.prose(
    f"{len(texts):,} documents, {format_bytes(counted.bytes.sum())}. {len(copies)} of them are "
    f"copies ({format_bytes(gone.bytes.sum())}, {gone.bytes.sum() / counted.bytes.sum():.1%} of "
    f"the bytes): {sum(copy.exact for copy in copies)} exact, the others at least "
    f"{corpus.dedup.THRESHOLD:.0%} alike by the {{term}}`Jaccard index` of their "
    f"{{term}}`shingles <shingle>` of {corpus.dedup.SHINGLE} characters."
)

# %% [markdown]
# ### What the search for copies found
#
# Comparing all pairs of documents would take a square of their number. {term}`MinHash` draws a
# short signature from each document such that two signatures agree in a place about as often as the
# documents' shingles overlap {cite}`broder1997resemblance`; only documents that agree in a whole
# band of places are compared in full. A copy is removed *before* the corpus is split: a held-out
# document with a twin in the training part measures memory, not learning
# {cite}`lee2022deduplicating`.

# %% tags=["hide-input"]
language = {text.name: text.language for text in texts}
found = pd.DataFrame(
    [
        {
            "removed": copy.removed,
            "language": language[copy.removed],
            "kept instead": copy.kept,
            "whose language": language[copy.kept],
            "alike": copy.similarity,
            "how": "exact" if copy.exact else "near",
        }
        for copy in copies
        if copy.removed.startswith("udhr")
    ]
).sort_values("alike", ascending=False)
charts.table(
    found,
    caption="Declarations removed as copies: spelling reforms, scripts, neighbouring dialects, "
    "and one mistake of the source",
    label="measured",
    formats={"alike": ".1%"},
)

# %% tags=["hide-input"]
codecs = [copy for copy in copies if copy.removed.startswith("python/encodings/")]
other_code = [c for c in copies if c.removed.startswith("python/") and c not in codecs]
twin = next((c for c in copies if c.exact and c.removed.startswith("udhr")), None)
mistake = (
    f"One is no near-copy but the same text under two names: the file for "
    f"*{language[twin.removed]}* equals the file for *{language[twin.kept]}*. One of the two "
    "languages would count twice, the other not at all. "
    if twin
    else ""
)
charts.prose(
    mistake + f"In the standard library {len(codecs)} of the {len(codecs) + len(other_code)} "
    "copies are tables of `encodings/`: machine-made files that differ in a few characters. No "
    "work of Shakespeare's resembles another. A translation is no copy here: its shingles share "
    "next to nothing with the original. Whether that is right depends on what the held-out part "
    "is to measure."
)

# %% [markdown]
# ### Into token files
#
# Tokenising costs time, so it is done once. A token file holds ids at a fixed width behind a header
# of 128 bytes, and a table of where each document starts; it is mapped into memory, so many
# processes share one copy and each touches only the pages it reads. The header carries a hash of
# the vocabulary: ids without their vocabulary are noise, and a file opened with another one is
# refused. The width is two bytes up to 65,536 ids and four beyond: with Llama 3's vocabulary
# (re-run this page with `vocabulary="llama3"`) the file comes out larger than the text it was made
# from.

# %%
started = time.perf_counter()
file = corpus.write_tokens(Path(folder.name, "train.tokens"), train, tokenizer)
corpus.write_tokens(Path(folder.name, "held_out.tokens"), test, tokenizer)
tokenise_s = time.perf_counter() - started

# %% tags=["hide-input"]
held = corpus.TokenFile(Path(folder.name, "held_out.tokens"), tokenizer)
trained = pd.DataFrame(
    {
        "source": [source_of(text) for text in train],
        "bytes": [text.n_bytes for text in train],
        "tokens": file.lengths,
        "name": [text.name for text in train],
    }
)
overview = trained.groupby("source", sort=False).agg(
    documents=("bytes", "size"), bytes=("bytes", "sum"), tokens=("tokens", "sum")
)
overview.insert(0, "found", counted.groupby("source", sort=False).size())
overview["bytes a token"] = overview.bytes / overview.tokens
overview["licence"] = counted.groupby("source", sort=False).licence.first()
whole = overview.drop(columns=["bytes a token", "licence"]).sum().to_frame("all").T
overview = pd.concat(
    [overview, whole.assign(**{"bytes a token": whole.bytes / whole.tokens, "licence": ""})]
).rename_axis("source")
charts.table(
    overview.reset_index().rename(columns={"documents": "in training", "bytes": "bytes of text"}),
    caption=f"The corpus in the vocabulary {vocabulary}, copies and the held-out part removed",
    label="measured",
    formats={
        "found": ",.0f",
        "in training": ",.0f",
        "bytes of text": format_bytes,
        "tokens": ",.0f",
        "bytes a token": ".2f",
    },
)

# %% tags=["hide-input"]
on_disk = file.path.stat().st_size
charts.prose(
    f"{len(test)} documents with {held.n_tokens:,} tokens are held out. Tokenising both parts took "
    f"{{measured}}`{format_time(tokenise_s)}`. The training file has "
    f"{{measured}}`{format_bytes(on_disk)}`, {on_disk / file.n_tokens:.3f} B a token: "
    f"{file.width} B for the id, the rest for the header and the table of documents. The text it "
    f"came from has {format_bytes(trained.bytes.sum())}."
)

# %% [markdown]
# ## Rows of one length
#
# Documents have the lengths that their authors gave them; a model trains on rows of one length,
# because matrices have no ragged edge.

# %% tags=["hide-input"]
middle = trained.groupby("source", sort=False).tokens.median().reset_index()
longer = (trained.tokens > sequence_length).mean()
logarithmic = alt.X(
    "tokens:Q",
    title="tokens in a document (logarithmic)",
    axis=alt.Axis(format="~s", tickCount=6),
    scale=alt.Scale(type="log"),
)
by_row = alt.Y("source:N", title=None, sort=list(COLOURS))
ticks = (
    alt.Chart(trained[["source", "tokens", "name"]])
    .mark_tick(opacity=0.35, thickness=1.5, height=26)
    .encode(
        x=logarithmic,
        y=by_row,
        color=by_source(),
        tooltip=["name:N", alt.Tooltip("tokens:Q", format=",")],
    )
)
medians = (
    alt.Chart(middle.assign(shown=[f"median {t:,.0f}" for t in middle.tokens]))
    .mark_text(dy=-22)
    .encode(x="tokens:Q", y=by_row, text="shown:N")
)
one_row = (
    alt.Chart(pd.DataFrame({"tokens": [sequence_length]}))
    .mark_rule(strokeDash=[4, 3])
    .encode(x="tokens:Q")
)
alt.layer(
    ticks,
    medians,
    one_row,
    height=alt.Step(64),
    title=f"From {trained.tokens.min():,} to {trained.tokens.max():,} tokens: no one length fits",
    description=(
        f"Tokens in each of {len(trained)} documents on a logarithmic axis, a tick each. Medians: "
        + ", ".join(f"{row.source} {row.tokens:,.0f}" for row in middle.itertuples())
        + f". {longer:.0%} of the documents are longer than a row of {sequence_length}."
    ),
)

# %% [markdown]
# The dashed line is one row. Three ways to get from documents to rows:
#
# - **{term}`Padding <padding>`**: each document starts a row of its own; what it does not fill is
#   wasted.
# - **Chopping**: the line of documents above, cut wherever a row ends.
# - **Best fit**: long documents are cut into full rows; the rests are packed like items into bins,
#   the largest first, each into the fullest row that still takes it {cite}`ding2024fewer`.

# %%
lengths = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
order = corpus.shuffled(np.arange(file.n_documents), file.n_documents, seed=seed)
packings = {
    (name, size): packer(size)
    for size in sorted({*lengths, sequence_length})
    for name, packer in {
        "padding": lambda size: corpus.pad(file.lengths, size),
        "chopping": lambda size: corpus.chop(file.lengths, size, order),
        "best fit": lambda size: corpus.best_fit(file.lengths, size),
    }.items()
}

# %% tags=["hide-input"]
waste = pd.DataFrame(
    [
        {
            "way": name,
            "row length": size,
            "rows": packing.n_rows,
            "padding": packing.padding_ratio,
            "needless cuts": packing.needless_cuts,
            "crossing": 1
            - packing.attention_pairs(within_documents=True)
            / packing.attention_pairs(within_documents=False),
        }
        for (name, size), packing in packings.items()
    ]
)
WAYS = {"padding": "orange", "chopping": "blue", "best fit": "violet"}


def lines_by_way(frame, y, y_title, title, description):
    """Draw a part of the whole against the length of a row, one line for each way to pack."""
    ways = [way for way in WAYS if way in set(frame.way)]
    scale = alt.Scale(domain=ways, range=[PALETTE[WAYS[way]] for way in ways])
    x = alt.X(
        "row length:Q",
        title="tokens in a row (logarithmic)",
        scale=alt.Scale(type="log", base=2, domainMax=2 * frame["row length"].max()),
        axis=alt.Axis(format=",d", values=lengths, labelOverlap=True),
    )
    lines = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            x=x,
            y=alt.Y(f"{y}:Q", title=y_title, axis=alt.Axis(format="%")),
            color=alt.Color("way:N", legend=None, scale=scale),
            tooltip=["way", "row length", alt.Tooltip(f"{y}:Q", format=".2%"), "rows"],
        )
    )
    ends = frame[frame["row length"] == frame["row length"].max()]
    names = (
        alt.Chart(ends)
        .mark_text(align="left", dx=8)
        .encode(x="row length:Q", y=f"{y}:Q", text="way:N")
    )
    told = "; ".join(
        f"{way}: {group[y].iloc[0]:.2%} at {group['row length'].iloc[0]}, "
        f"{group[y].iloc[-1]:.2%} at {group['row length'].iloc[-1]}"
        for way, group in frame.groupby("way", sort=False)
    )
    return alt.layer(lines, names, title=title, description=f"{description} {told}.", height=280)


longest = waste[waste["row length"] == max(lengths)].set_index("way")
lines_by_way(
    waste,
    "padding",
    "places that hold no token",
    f"Padding to {max(lengths):,} wastes {longest.padding['padding']:.0%}, chopping nothing",
    "Part of all places that is padding against the length of a row.",
)

# %% tags=["hide-input"]
chosen = waste[waste["row length"].isin({sequence_length, 1024, max(lengths)})]
charts.table(
    chosen.drop(columns="crossing").sort_values(["row length", "way"])[
        ["row length", "way", "rows", "padding", "needless cuts"]
    ],
    caption="Rows, padding, and cuts beyond those that documents longer than a row need",
    label="measured",
    formats={"padding": ".2%"},
)

# %% tags=["hide-input"]
charts.prose(
    "A padded place costs as much arithmetic as a token. Chopping pads only the last row, and pays "
    f"elsewhere: at {max(lengths):,} it makes {longest['needless cuts']['chopping']} cuts where "
    "none was needed, and the tokens after a cut have lost their context. Best fit needs no such "
    f"cut, and {longest.padding['best fit']:.2%} of padding. The labels are the same in all three: "
    "every id but a document's first is predicted exactly once."
)

# %% [markdown]
# ### What attention would see
#
# Rows of many short documents let attention look across documents, unless it is told where they
# end. Telling it saves work as well:

# %% tags=["hide-input"]
here = packings["chopping", sequence_length]
at_here = waste[(waste.way == "chopping") & (waste["row length"] == sequence_length)].iloc[0]
lines_by_way(
    waste[waste.way != "padding"],
    "crossing",
    "query–key pairs across documents",
    f"In rows of {max(lengths):,}, {longest.crossing['chopping']:.0%} of attention is to strangers",
    "Part of the causal query–key pairs of a row that do not lie within one document, against the "
    "length of a row.",
)

# %% tags=["hide-input"]
charts.prose(
    f"At the running job's {sequence_length} tokens it is {at_here.crossing:.0%}: most documents "
    "are longer than a row, so most rows hold one. The longer the row, the more documents share "
    "it. Best fit crosses less, as the full rows of a long document hold nothing else. Attention "
    "is only a part of a layer's work; chapter 4 says how large a part."
)

# %% [markdown]
# ### A model beside the measurement
#
# Both charts follow from one thought. A document much longer than a row ends anywhere in its last
# row with equal chance. So padding wastes half a row for each of $n$ documents. And a boundary at
# place $u$ of a row of $S$ parts $u (S - u)$ pairs, on average $S^2/6$ of the row's $S^2/2$. With
# $T$ tokens in all,
#
# $$ \text{padding} \approx \frac{n S / 2}{T + n S / 2}, \qquad
# \text{crossing} \approx \frac{n S}{3 T} . $$

# %% tags=["hide-input"]
n_documents, n_tokens = file.n_documents, file.n_tokens
compared = pd.DataFrame({"row length": sorted({*lengths, sequence_length})})
half_rows = n_documents * compared["row length"] / 2
compared["padding, modelled"] = half_rows / (n_tokens + half_rows)
compared["padding, measured"] = waste[waste.way == "padding"].padding.to_numpy()
compared["error"] = compared["padding, modelled"] / compared["padding, measured"] - 1
compared["crossing, modelled"] = n_documents * compared["row length"] / (3 * n_tokens)
compared["crossing, measured"] = waste[waste.way == "chopping"].crossing.to_numpy()
compared["its error"] = compared["crossing, modelled"] / compared["crossing, measured"] - 1
charts.table(
    compared,
    caption="Padding of one document a row, and attention across documents when chopping",
    label={column: column.split(", ")[1] for column in compared if column.endswith("ed")},
    formats={column: "+.1%" if "error" in column else ".2%" for column in compared.columns[1:]},
)

# %% tags=["hide-input"]
short = compared["row length"] <= 2048
errors = compared[["error", "its error"]].abs().max(axis=1)
charts.prose(
    f"Two numbers, {n_documents:,} documents and {n_tokens:,} tokens, say what packing a corpus "
    f"costs: within {errors[short].max():.1%} in rows of up to 2,048. Beyond, rows grow as long as "
    f"documents, several boundaries share a row, and the model is off by up to "
    f"{errors[~short].max():.0%}. A corpus of short web pages gets there much earlier."
)

# %% [markdown]
# ### One batch, seen whole

# %%
layout = corpus.BatchLayout(global_batch, micro_batch, ranks=small["dp"])
batch = next(iter(TokenBatches(file, here, layout, rank=0, seed=seed)))

# The same with rows as long as the big sister's, where documents meet.
there = packings["chopping", max(lengths)]
long_stream = TokenBatches(file, there, layout, rank=0, seed=seed)
long_batch = next(iter(long_stream))

# %% tags=["hide-input"]
rows_drawn = long_stream.rows(layout.places(0, 0))
pieces = []
for place, row in enumerate(rows_drawn):
    at = 0
    for piece in range(there.first[row], there.first[row + 1]):
        document, until = train[there.document[piece]], at + int(there.length[piece])
        pieces.append((place, at, until, document.name, source_of(document)))
        at = until
pieces = pd.DataFrame(pieces, columns=["row", "from", "to", "document", "source"])
batch_bytes = sum(tensor.nbytes for tensor in batch.values()) / batch["ids"].numel()
masked = int((long_batch["labels"] == corpus.IGNORE).sum())
wide = pieces["to"] - pieces["from"] > max(lengths) / 3
pieces["name"] = pieces.document.where(wide, "")
row_axis = alt.Y("row:O", title="row of the micro-batch")
bars = (
    alt.Chart(pieces)
    .mark_bar(height=20, stroke="white", strokeWidth=1.5)
    .encode(
        x=alt.X(
            "from:Q",
            title="place in the row",
            scale=alt.Scale(domain=[0, max(lengths)], nice=False),
        ),
        x2="to:Q",
        y=row_axis,
        color=by_source(),
        tooltip=["document:N", "from:Q", "to:Q"],
    )
)
names = (
    alt.Chart(pieces)
    .mark_text(align="left", dx=6, color="white")
    .encode(x="from:Q", y=row_axis, text="name:N")
)
alt.layer(
    bars,
    names,
    height=alt.Step(27),
    title=f"{micro_batch} rows of {max(lengths):,} tokens hold {len(pieces)} pieces of documents",
    description=(
        f"{micro_batch} rows of {max(lengths)} tokens. Each bar is a piece of a document: "
        + "; ".join(f"row {r}: " + ", ".join(g.document) for r, g in pieces.groupby("row"))
        + f". {masked} places are masked out of the loss."
    ),
)

# %% tags=["hide-input"]
boundaries = ", ".join(map(str, long_batch["cu_seqlens"][:5].tolist()))
charts.prose(
    "Blue is Shakespeare, orange the Declaration, violet Python; a white line is where attention "
    f"is cut and positions start again. {masked} of the {long_batch['ids'].numel():,} places are "
    f"masked: those that hold an end of text. `cu_seqlens` starts with {boundaries}, … In memory "
    f"a token now takes {{measured}}`{batch_bytes:.1f} B`: id, label, position and document as "
    "64-bit integers, the form that PyTorch's kernels index with."
)

# %% [markdown]
# ## Who reads what
#
# A {term}`global batch` is what one step learns from. Each rank has memory for a
# {term}`micro-batch` at a time, so a step is a number of micro-steps, in each of which every rank
# takes the next share. Gradients are summed over a step's micro-steps before any is sent
# ({term}`gradient accumulation`): more of them mean fewer exchanges, not more data.

# %% tags=["hide-input"]
shown_batch, shown_steps = 24, 2
grid = pd.DataFrame(
    [
        {
            "ranks": ranks,
            "micro_batch": micro,
            "rank": rank,
            "place": place,
            "step": f"step {place // shown_batch}",
            "micro-step": micro_step % dealt.accumulation,
            "shade": 1.0 if micro_step % 2 == 0 else 0.55,
        }
        for ranks in (1, 2, 3, 4, 6, 12)
        for micro in (1, 2)
        for dealt in [corpus.BatchLayout(shown_batch, micro, ranks)]
        for micro_step in range(shown_steps * dealt.accumulation)
        for rank in range(ranks)
        for place in dealt.places(rank, micro_step)
    ]
)
ranks_shown = alt.param(
    "ranks", value=2, bind=alt.binding_select(options=[1, 2, 3, 4, 6, 12], name="ranks ")
)
micro_shown = alt.param(
    "micro", value=2, bind=alt.binding_radio(options=[1, 2], name="micro-batch ")
)
alt.Chart(
    grid,
    title="Each place is read exactly once, whatever the ranks",
    description=(
        f"Who reads which of the first {shown_batch * shown_steps} places of the global order, for "
        f"a global batch of {shown_batch} sequences; choose ranks and micro-batch. "
        "With 2 ranks and micro-batches of 2, rank 0 reads places 0, 1, 4, 5, and rank 1 reads "
        "places 2, 3, 6, 7, and so on. Every column holds exactly one cell."
    ),
).mark_rect(stroke="white", strokeWidth=0.5).encode(
    x=alt.X(
        "place:O",
        title="place in the global order (dark and light: micro-steps)",
        axis=alt.Axis(values=list(range(0, shown_batch * shown_steps, 6)), labelAngle=0),
    ),
    y=alt.Y("rank:O", title="rank"),
    color=alt.Color(
        "step:N",
        title=None,
        scale=alt.Scale(range=[PALETTE["blue"], PALETTE["orange"]]),
    ),
    opacity=alt.Opacity("shade:Q", scale=None, legend=None),
    tooltip=["rank", "place", "step", "micro-step"],
).add_params(ranks_shown, micro_shown).transform_filter(
    (alt.datum.ranks == ranks_shown) & (alt.datum.micro_batch == micro_shown)
).properties(height=220)

# %% [markdown]
# Whatever the ranks, what has been read after any micro-step is a *prefix* of the global order. So
# the state of the data is one number, and it does not know how many ranks there were. The order
# itself is not stored either: a keyed permutation computes which row stands at which place
# {cite}`black2002ciphers`, so rank 7 of a thousand can ask for place 10⁹ and get the answer that
# rank 0 would.
#
# A run stops in the middle of an epoch on two ranks, and goes on with four:


# %%
def reads(ranks, state=None, steps=5):
    """What the job trains on, in order, and where it then stands."""
    dealt = corpus.BatchLayout(global_batch, micro_batch=1, ranks=ranks)
    streams = []
    for rank in range(ranks):
        stream = TokenBatches(
            file,
            here,
            dealt,
            rank,
            seed=seed,
            steps=steps,
        )
        if state:
            stream.load_state_dict(state)
        streams.append(stream)
    ids = []
    for micro_step in zip(*streams, strict=True):
        ids += [batch["ids"] for batch in micro_step]
    return np.concatenate(ids), streams[0].state_dict()


in_one_go, _ = reads(ranks=2)
begun, state = reads(ranks=2, steps=3)
resumed, _ = reads(ranks=4, state=state)
assert np.array_equal(np.concatenate([begun, resumed]), in_one_go)

# %% tags=["hide-input"]
charts.prose(
    f"The {len(begun)} sequences of the first part and the {len(resumed)} of the second are, id by "
    f"id, the {len(in_one_go)} that an unbroken run reads. The saved state says "
    f"`consumed: {state['consumed']}`, and holds hashes of the data and the packing, and the seed: "
    "a run cannot go on with something else and not notice. With worker processes the number "
    "counts batches that were *used*: those made ahead and lost are made again."
)

# %% [markdown]
# ## A token's bytes, and how fast they come


# %% tags=["hide-input"]
def rate(make, seconds=1.2):
    """Tokens a second, after one batch to open files and warm caches."""
    source = iter(make())
    next(source)
    started, tokens = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        tokens += next(source)["ids"].numel()
    return tokens / (time.perf_counter() - started)


def fresh():
    return TokenBatches(file, here, layout, seed=seed)


inline = rate(fresh)
copy_s = np.median(timeit.repeat(lambda: np.array(file.tokens), number=1, repeat=9))
copied = file.n_tokens / copy_s
text_bytes = trained.bytes.sum() / file.n_tokens
speeds = pd.DataFrame(
    [
        ("copy the mapped ids, nothing else", copied, copied * file.width),
        ("shuffled, packed, masked batches", inline, inline * file.width),
    ],
    columns=["what", "tokens a second", "read from the file"],
)
charts.table(
    speeds,
    caption="One process, the file in the machine's page cache",
    label="measured",
    formats={
        "tokens a second": format_count,
        "read from the file": lambda b: f"{format_bytes(b)}/s",
    },
)

# %% tags=["hide-input"]
big = ModelConfig.load(running()["big"]["model"])
weights = pd.DataFrame(
    [
        ("text, UTF-8", text_bytes, "measured"),
        ("id in the token file", on_disk / file.n_tokens, "measured"),
        ("batch in memory", batch_bytes, "measured"),
        (f"vector in {model.name}, float32", model.hidden * 4, "modelled"),
        (f"vector in {big.name}, bfloat16", big.hidden * 2, "modelled"),
    ],
    columns=["a token as", "bytes", "label"],
)
weights["shown"] = [f"{b:.1f} B" if b < 100 else f"{b:,.0f} B" for b in weights.bytes]
heaviest = format_bytes(weights.bytes.max())
kinds = alt.Scale(domain=["measured", "modelled"], range=[PALETTE["orange"], PALETTE["blue"]])
shapes = alt.Scale(domain=["measured", "modelled"], range=["square", "circle"])
form = alt.Y("a token as:N", title=None, sort=None)
across = alt.X(
    "bytes:Q",
    title="bytes a token (logarithmic)",
    axis=alt.Axis(format="~s", tickCount=5),
    scale=alt.Scale(type="log", domain=[1, weights.bytes.max() * 6]),
)
points = (
    alt.Chart(weights)
    .mark_point(size=90)
    .encode(
        x=across,
        y=form,
        color=alt.Color("label:N", title=None, scale=kinds),
        shape=alt.Shape("label:N", title=None, scale=shapes),
    )
)
figures = alt.Chart(weights).mark_text(align="left", dx=10).encode(x=across, y=form, text="shown:N")
alt.layer(
    points,
    figures,
    height=alt.Step(32),
    title=f"A token is {file.width} B as an id, up to {heaviest} as a vector",
    description="Bytes of one token in each form, on a logarithmic axis: "
    + "; ".join(f"{row[1]} {row.shown} ({row.label})" for row in weights.itertuples()),
)

# %% [markdown]
# ## A first glimpse of the bill
#
# Now the sum of the envelope, with the library's own counts: what a step reads from its token
# files, and what the same step's gradients put on the network as a ring {term}`all-reduce`. Beside
# the running job stands its big sister, Llama 3.1 405B on {glue:text}`gpus` GPUs with the layout
# its makers published {cite}`llama2024herd`.

# %% tags=["hide-input"]
published = read_reference("04_llama3_training").set_index("quantity").value


def bill(name, config, plan, ranks_share, tokens, width):
    """Bytes of one step: read by all, sent by each GPU and by all GPUs together."""
    op = data_parallel_ops(plan, count_parameters(config) // ranks_share, item_bytes=4)[0]
    sent = int(ring_all_reduce(plan.dp).bytes_sent_per_rank(op.items, op.item_bytes)[0])
    return {
        "job": name,
        "gpus": plan.world,
        "parameters": count_parameters(config),
        "tokens a step": tokens,
        "read by a data-parallel rank": tokens * width // plan.dp,
        "sent by a GPU": sent,
        "read by the job": tokens * width,
        "sent by the job": sent * plan.world,
    }


tp, pp, dp = (int(published[axis]) for axis in ("tp", "pp", "dp"))
big_id_bytes = 2 if big.vocab <= 1 << 16 else 4
big_tokens = int(published.sequences_per_dp_rank * dp * published.sequence_length)
bills = pd.DataFrame(
    [
        bill(
            f"{model.name}, {small['dp']} ranks",
            model,
            Plan(dp=small["dp"]),
            1,
            step_tokens,
            file.width,
        ),
        bill(
            f"{big.name}, {int(published.gpus):,} GPUs",
            big,
            Plan(dp=dp, tp=tp, pp=pp),
            tp * pp,
            big_tokens,
            big_id_bytes,
        ),
    ]
)
bills["sent for a byte read"] = bills["sent by the job"] / bills["read by the job"]
shown = pd.DataFrame(
    {
        row["job"]: {
            column: f"{row[column]:,.0f}"
            if column in ("gpus", "sent for a byte read")
            else format_bytes(row[column])
            if column.startswith(("read", "sent"))
            else format_count(row[column])
            for column in bills.columns[1:]
        }
        for row in bills.to_dict("records")
    }
)
charts.table(
    shown.reset_index(names="in one step"),
    caption="One training step: ids read, gradients sent",
    label="modelled",
)

# %% tags=["remove-cell"]
from myst_nb import glue

glue("gpus", f"{int(published.gpus):,}", display=False)

# %% tags=["hide-input"]
long = bills.melt("job", ["read by the job", "sent by the job"], "what", "bytes")
long["shown"] = [
    f"{what.split()[0]} {format_bytes(bytes_)}"
    for what, bytes_ in zip(long.what, long.bytes, strict=True)
]
first_ratio, big_ratio = bills["sent for a byte read"]
wide = alt.Scale(type="log", domain=[long.bytes.min() / 3, long.bytes.max() * 1000])
across = alt.X(
    "bytes:Q",
    title="bytes in one step, all ranks (logarithmic)",
    axis=alt.Axis(format="~s", tickCount=6),
    scale=wide,
)
job = alt.Y("job:N", title=None, sort=None)
span = (
    alt.Chart(bills)
    .mark_rule(opacity=0.4)
    .encode(x=alt.X("read by the job:Q", scale=wide), x2="sent by the job:Q", y=job)
)
ends = (
    alt.Chart(long)
    .mark_point(size=110)
    .encode(
        x=across,
        y=job,
        color=alt.Color(
            "what:N", legend=None, scale=alt.Scale(range=[PALETTE["orange"], PALETTE["blue"]])
        ),
    )
)
figures = (
    alt.Chart(long).mark_text(align="left", dx=10, dy=-11).encode(x=across, y=job, text="shown:N")
)
alt.layer(
    span,
    ends,
    figures,
    height=alt.Step(62),
    title=f"Sent for each byte read: {first_ratio:,.0f} B here, {format_bytes(big_ratio)} there",
    description="Bytes of one training step over all ranks on a logarithmic axis: "
    + "; ".join(f"{row.job}: {row.shown}" for row in long.itertuples()),
)

# %% tags=["hide-input"]
step_s = 6 * count_parameters(big) * big_tokens / (published.flops_per_gpu * published.gpus)
big_read = bills["read by the job"][1]
charts.prose(
    f"The envelope said {format_bytes(guess_read, 1)} and {format_bytes(guess_sent, 1)} for the "
    f"small job; the count says {{modelled}}`{format_bytes(bills['read by the job'][0])}`, and "
    f"{{modelled}}`{format_bytes(bills['sent by a GPU'][0])}` from each rank.\n\n"
    f"The big job's GPUs ran at {{published}}`{published.flops_per_gpu / 1e12:,.0f} TFLOP/s` each. "
    "At 6 FLOPs for each parameter and token (chapter 4) its step takes "
    f"{{modelled}}`{format_time(step_s)}`, in which it reads {format_bytes(big_read)} of ids: "
    f"{{modelled}}`{format_bytes(big_read / step_s)}/s` for the whole cluster, whose storage "
    f"sustains {{published}}`{format_bytes(published.storage_sustained_Bps)}/s`. A data-parallel "
    f"rank consumes {{modelled}}`{format_count(big_tokens / step_s / dp)} tokens/s`; one process "
    f"of this machine makes {{measured}}`{format_count(inline)} tokens/s` of batches. All "
    f"{{published}}`{format_count(published.training_tokens)} tokens` of its training are "
    f"{{modelled}}`{format_bytes(published.training_tokens * big_id_bytes)}` of ids, which a few "
    "disks hold. What matters about data is its order and identity, not its bytes: those are made "
    "later, by the model."
)

# %% [markdown]
# ## Where this stops being true
#
# - **Text only.** The pixels of a small image (224 × 224, 150 kB) are over a hundred times heavier
#   than ids for its 256 patches would be. There the loader decodes and resizes, and reading does
#   become a bottleneck.
# - **The page cache.** The rates above are those of memory. A first read comes from a disk or, on a
#   cluster, over the storage network, in pages of 4 KiB: a shuffled row of 256 ids of 2 bytes uses
#   an eighth of its page. That is one reason for long rows, and for shuffling in blocks. What loads
#   a cluster's storage is not data but {term}`checkpoints <checkpoint>`, which weigh far more than
#   the batches read between two of them.
# - **Who reads.** The ranks of a tensor- or pipeline-parallel group need the same ids (the first
#   stage to embed them, the last to know the labels). They read the file once each, or one reads
#   and passes on: then ids travel on the network as well.
# - **One all-reduce.** The big job shards its optimiser and sends a reduce-scatter of float32
#   gradients and an all-gather of bfloat16 weights, three quarters of the all-reduce counted here.
#   Its tensor-parallel traffic, which is larger still, and its pipeline traffic are not in this
#   bill: chapters 7 to 12 add them.
# - **Near-copies only.** Shared passages inside different documents, quoted licences for instance,
#   pass this search. And documents held out from training are not held out from the vocabulary:
#   the book's own was trained on all of Shakespeare.
#
# ## Exercises
#
# ```{exercise} Rows by hand
# :label: ex-rows
#
# Three documents have 300, 90 and 400 tokens, their end-of-text ids included; a row has 256 places.
# How many rows do padding, chopping and best fit need, and how many needless cuts does each make?
# ```
#
# ```{solution-start} ex-rows
# :class: dropdown
# ```
#
# Padding: 300 takes two rows, 90 one, 400 two: five rows, no needless cut. Chopping: 790 tokens in
# a line fill ⌈790 / 256⌉ = 4 rows. They are cut at places 256, 512 and 768: once in the first
# document, which needs it, and twice in the third, which needs one. Best fit: full rows of 256 from
# the first and the third leave 44, 90 and 144; 144 and 90 share a row, 44 needs another: four rows,
# no needless cut.

# %%
{
    name: (packed.n_rows, packed.needless_cuts, f"{packed.padding_ratio:.1%}")
    for name, packed in {
        "padding": corpus.pad([300, 90, 400], 256),
        "chopping": corpus.chop([300, 90, 400], 256),
        "best fit": corpus.best_fit([300, 90, 400], 256),
    }.items()
}

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise} Who may take over?
# :label: ex-resume
#
# A run with a global batch of 24 on 3 ranks with micro-batches of 2 is stopped after 6 micro-steps.
# Which numbers of ranks, with the same micro-batch, may continue at once, and which could if it had
# stopped two micro-steps later?
# ```
#
# ```{solution-start} ex-resume
# :class: dropdown
# ```
#
# Six sequences go in each micro-step: 36 are consumed, 12 into the second step. A layout whose
# micro-steps (2 × ranks) divide both 24 and 12 lands on the end of the step: 1, 2, 3 or 6 ranks.
# After 8 micro-steps 48 are consumed, the end of a step, and every layout that can share 24 may
# take over.


# %%
def may_take_over(consumed):
    able = []
    for ranks in (1, 2, 3, 4, 6, 12):
        try:
            corpus.BatchLayout(24, 2, ranks).check_resume(consumed)
        except corpus.sharding.ResumeError:
            continue
        able.append(ranks)
    return able


may_take_over(36), may_take_over(48)

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise} When does reading catch up?
# :label: ex-catch-up
#
# Gradients do not grow with the batch, ids do. How many tokens must a step of the running job have
# until its two ranks read as many bytes as they send?
# ```
#
# ```{solution-start} ex-catch-up
# :class: dropdown
# ```
#
# The number of bytes that the job sends, over the bytes of an id. Compare it with the whole corpus:

# %%
tokens_needed = bills["sent by the job"][0] // file.width
f"{tokens_needed:,} tokens in a step: {tokens_needed / file.n_tokens:.0%} of the training corpus"

# %% [markdown]
# ```{solution-end}
# ```
#
# ```{exercise} A stricter eye
# :label: ex-threshold
#
# At which threshold do European and Brazilian Portuguese become copies of each other? Think first:
# is a document that is half a copy worth half?
# ```
#
# ```{solution-start} ex-threshold
# :class: dropdown
# ```

# %%
two = corpus.udhr(["por_PT", "por_BR"])
corpus.dedup.jaccard(*(corpus.dedup.shingles(text.text) for text in two))

# %% [markdown]
# One changed character breaks twelve shingles, so the index falls fast: texts that a reader calls
# almost equal may score below the threshold. Web corpora take thresholds from 0.7 to 0.9, and the
# choice shows in the model: too low, and a language with few documents loses them.
#
# ```{solution-end}
# ```
#
# ## Where the token goes next
#
# The ids of the running sentence lie in a row, with positions and a mask, in the memory of one
# rank. Next they are looked up in a table and become vectors: the first tensors of the journey.

# %% tags=["remove-cell"]
folder.cleanup()
