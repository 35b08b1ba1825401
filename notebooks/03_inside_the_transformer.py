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
# # Inside the transformer
#
# ```{spine} tensors
# ```
#
# The sentence is a list of ids. Something turns it into a guess at the next word. What is passed
# along on the way, how large is it, and where could one cut the model in two and send it over a
# wire?
#
# This chapter takes a real language model apart: SmolLM2, 135 million parameters
# {cite}`allal2025smollm2`. It computes one layer by hand, runs the running sentence through all of
# them, and looks at what stands between each two stages.

# %% tags=["parameters"]
sentence = ""  # empty: the running sentence of this book
question = "The capital of France is"  # for what the model knows, layer by layer
big = ["llama-3.1-405b", "deepseek-v3"]  # named models to cut beside the small one
steps = 60  # training steps of the small mixture of experts
seed = 0

# %% tags=["hide-input"]
import math
import os
import warnings

os.environ["TQDM_DISABLE"] = "1"  # the judge's progress bars are no part of the page
warnings.filterwarnings("ignore", message="IProgress not found")

import altair as alt
import pandas as pd
import torch
import torch.nn.functional as F
import transformers
from tokenlife import charts, corpus
from tokenlife.catalog import running
from tokenlife.charts import PALETTE
from tokenlife.costs.memory import kv_bytes_per_token
from tokenlife.costs.stages import layer_table, stage_table
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig, weights
from tokenlife.transformer.cache import KVCache
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.position import cosines, rotate
from tokenlife.units import format_bytes
from tokenlife.wire import tcp_over_ethernet
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

charts.setup()
torch.manual_seed(seed)
torch.set_grad_enabled(False)
sentence = sentence or running()["sentence"]


def power(value: float) -> str:
    """Write a small number as people do: 3 × 10⁻⁵."""
    digits, exponent = f"{value:.0e}".split("e")
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return f"{digits} × 10{str(int(exponent)).translate(raised)}"


def shown(token: bytes) -> str:
    return token.decode(errors="replace").replace(" ", "␣").replace("\n", "⏎") or "∅"


# %% [markdown]
# ## On the back of an envelope

# %% tags=["hide-input"]
model = weights.smollm2()
tokenizer = weights.smollm2_tokenizer()
config = model.config
encoding = tokenizer.encoding(sentence)
pieces, n = [shown(piece) for piece in encoding.pieces], encoding.n_tokens
ids = torch.tensor([encoding.ids])  # (1, n)
text_bytes = len(sentence.encode())
stream_bytes = 4 * config.hidden
charts.prose(
    f"> {sentence}\n\n"
    f"{text_bytes} bytes of text are {n} {{term}}`tokens <token>` here. Inside the model a token "
    f"is a vector of {config.hidden} numbers. Each of {config.layers} layers reads that vector and "
    "adds to it, so what passes from one layer to the next is always one vector a token: "
    f"{config.hidden} × 4 bytes = {{modelled}}`{stream_bytes:,} bytes` in float32. For the "
    f"sentence: {{modelled}}`{n * stream_bytes:,} bytes`, "
    f"{{modelled}}`{n * stream_bytes / text_bytes:.0f} times` its text. The words have become the "
    "smallest part of their own journey."
)

# %% [markdown]
# ## One layer by hand
# The vector that runs through the model from bottom to top is the {term}`residual stream`. A layer
# has two parts, and both read the stream and add to it:
#
# - {term}`attention`, where a token takes something from the tokens before it, and
# - the {term}`MLP`, which works on each token alone.
#
# That is the whole architecture {cite}`vaswani2017attention`. Here is the first layer of SmolLM2,
# with its real weights and nothing but tensor products.

# %%
block = model.blocks[0]
a, m = block.attention, block.mlp
x = model.embed(ids)[0]  # (n, 576): one row of the embedding table for each id


def normalise(x, weight):  # divide by the root mean square, weigh each number
    return x / (x.pow(2).mean(-1, keepdim=True) + config.norm.eps).sqrt() * weight


read = normalise(x, block.attention_norm.weight)
q = (read @ a.query.weight.T).view(n, 9, 64).transpose(0, 1)  # nine heads ask
k = (read @ a.key.weight.T).view(n, 3, 64).transpose(0, 1)  # three answer
v = (read @ a.value.weight.T).view(n, 3, 64).transpose(0, 1)
turn = cosines(torch.arange(n), config.position)  # see below
q, k = rotate(q, *turn), rotate(k, *turn)
scores = q @ k.repeat_interleave(3, 0).transpose(1, 2) / 64**0.5  # (9, n, n)
future = torch.ones(n, n, dtype=torch.bool).triu(1)
shares = scores.masked_fill(future, -torch.inf).softmax(-1)  # each row sums to 1
mixed = shares @ v.repeat_interleave(3, 0)  # (9, n, 64)
joined = mixed.transpose(0, 1).reshape(n, 576)
x = x + joined @ a.out.weight.T  # attention adds to the stream
read = normalise(x, block.mlp_norm.weight)
inside = F.silu(read @ m.gate.weight.T) * (read @ m.up.weight.T)  # (n, 1536)
x = x + inside @ m.down.weight.T  # the MLP adds to the stream

# %% [markdown]
# Each {term}`head` asks with a {term}`query`, and every earlier token answers with a
# {term}`key`. Their product is a score, a {term}`softmax` turns a token's scores into shares, and
# the {term}`values <value>` are averaged by them. The library's layer, `Block` in
# `tokenlife.transformer.model`, is the same in general form. On these weights:

# %% tags=["hide-input"]
context = model.context(ids)
stream = [model.embed(ids)]
for block in model.blocks:
    stream.append(block(stream[-1], context))
stream = torch.cat(stream)  # (layers + 1, n, hidden): before each layer, and after the last
logits = model.head(stream[-1])  # (n, V)
by_hand = float((x - stream[1]).abs().max())
charts.prose(
    "the largest difference between the cell above and the library's layer is "
    f"{{measured}}`{power(by_hand)}`, in a stream whose largest number is "
    f"{{measured}}`{stream[1].abs().max():.1f}`."
)

# %% [markdown]
# ## Is it really the same model?
# The weights come from a GGUF file, where each is packed into about 5 bits; here they are widened
# to float32 once and stay there. Two questions are left. Is our decoder the architecture that the
# weights were trained in? And did we read the file right (GGUF keeps the rows of queries and keys
# in another order)? The judge is the `transformers` library: its own Llama, its own GGUF reader.

# %% tags=["hide-input", "remove-output"]
hf_config = transformers.LlamaConfig(
    num_hidden_layers=config.layers,
    hidden_size=config.hidden,
    intermediate_size=config.mlp.width,
    num_attention_heads=config.attention.heads,
    num_key_value_heads=config.attention.kv_heads,
    vocab_size=config.vocab,
    max_position_embeddings=config.positions,
    rms_norm_eps=config.norm.eps,
    rope_parameters={"rope_type": "default", "rope_theta": config.position.theta},
    tie_word_embeddings=True,
    attn_implementation="eager",
)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
with no_init_weights():
    judge = transformers.LlamaForCausalLM(hf_config)
read_by_judge = load_gguf_checkpoint(
    str(weights.smollm2_path()), return_tensors=True, model_to_load=judge
)
judge.load_state_dict(read_by_judge["tensors"], strict=False, assign=True)
judge.tie_weights()
judge.eval()

# %%
prompts = [
    sentence,
    question,
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "数学 ça va?",
]
rows = []
for prompt in prompts:
    prompt_ids = torch.tensor([tokenizer.encode(prompt)])
    ours, theirs = model(prompt_ids), judge(prompt_ids).logits
    same = int((ours.argmax(-1) == theirs.argmax(-1)).sum())
    rows.append(
        {
            "prompt": " ".join(prompt.split())[:34],
            "tokens": prompt_ids.shape[1],
            "same next token": same,
            "largest |logit|": float(theirs.abs().max()),
            "max |Δ|": float((ours - theirs).abs().max()),
        }
    )
equality = pd.DataFrame(rows)
assert equality["max |Δ|"].max() < 1e-3

# %% tags=["hide-input"]
charts.table(
    equality,
    "Logits of this book's decoder against those of transformers, float32",
    "measured",
    formats={"largest |logit|": ".1f", "max |Δ|": power},
)

# %% [markdown]
# The differences are rounding: sums of the same numbers in another order. The tests hold the same
# for 64 tokens of greedily chosen text, and for a small random model of every family that the
# library knows, from GPT-2 to DeepSeek-V3.
#
# ## What passes from stage to stage
# A model is a chain of stages, and between two stages there is one tensor. Below is every one that
# occurred in this run, and beside it the size that `tokenlife.costs` computes from the
# `config.json` alone.

# %% tags=["hide-input"]
passed = [
    ("tokeniser", "embedding", "token ids", ids),
    *(
        ("embedding" if i == 0 else f"layer {i - 1}", f"layer {i}", "residual stream", x[None])
        for i, x in enumerate(stream[:-1])
    ),
    (f"layer {config.layers - 1}", "head", "residual stream", stream[-1:]),
    ("head", "sampler", "logits", logits[None]),
]
modelled = stage_table(config, 1, n, bytes_per_number=4)
table = pd.DataFrame(
    [
        {
            "from": after,
            "to": before,
            "tensor": tensor,
            "shape": " × ".join(map(str, value.shape)),
            "bytes": value.nbytes,
            "bytes per token": value.nbytes / n,
            "modelled": row.bytes_,
        }
        for (after, before, tensor, value), row in zip(passed, modelled, strict=False)
    ]
)
assert (table.bytes == table.modelled).all()
cut = [0, 1, 2, 3, len(table) - 3, len(table) - 2, len(table) - 1]
charts.table(
    table.iloc[cut],
    f"The tensors between the stages, float32; the {config.layers - 5} rows left out in the "
    "middle are alike",
    {"bytes": "measured", "bytes per token": "measured", "modelled": "modelled"},
    formats={"bytes per token": ",.0f"},
)

# %% [markdown]
# Inside a layer more tensors stand. They matter when a layer itself is split over machines
# (chapter 8). These are the ones of the cell above:

# %% tags=["hide-input"]
by_name = {"queries": q, "keys": k, "values": v, "scores": scores, "heads, joined": joined}
by_name["MLP inside"] = inside
inner = pd.DataFrame(
    [
        {
            "tensor": row.tensor,
            "shape": " × ".join(map(str, by_name[row.tensor].shape)),
            "bytes per token": by_name[row.tensor].nbytes / n,
            "modelled": row.bytes_per_token,
        }
        for row in layer_table(config, 0, 1, n, bytes_per_number=4)
    ]
)
assert (inner["bytes per token"] == inner.modelled).all()
charts.table(
    inner,
    "The tensors inside the first layer, float32",
    {"bytes per token": "measured", "modelled": "modelled"},
    formats={"bytes per token": ",.0f", "modelled": ",.0f"},
)

# %% [markdown]
# The scores are the odd one out: their bytes per token grow with the length of the text. Everything
# else is a fixed number of bytes for each token, whatever the text.
#
# ## Who looks at whom
# The shares of the first layer are one of many maps: one for each head of each layer. Choose one. A
# row is a token, and the row's filled squares are the tokens that it takes from.

# %% tags=["hide-input"]
maps = torch.cat(
    [
        block.attention.weights(block.read(x[None]), context)
        for block, x in zip(model.blocks, stream, strict=False)
    ]
)  # (layers, heads, n, n)
labels = [f"{i + 1} {piece}" for i, piece in enumerate(pieces)]
# Whole percents, one short list a row: the page holds all maps in a few hundred kB.
percents = [
    {"layer": layer, "head": head, "token": labels[i], "shares": row[: i + 1]}
    for layer, heads in enumerate((100 * maps).round().int().tolist())
    for head, rows in enumerate(heads)
    for i, row in enumerate(rows)
]
later = maps[:, :, 1:]  # the first token has nowhere else to look
to_first = float(later[..., 0].mean())
by_layer = later[..., 0].mean((1, 2))
layer_slider = alt.param(
    name="map_layer",
    value=8,
    bind=alt.binding_range(min=0, max=config.layers - 1, step=1, name="layer "),
)
head_slider = alt.param(
    name="map_head",
    value=0,
    bind=alt.binding_range(min=0, max=config.attention.heads - 1, step=1, name="head "),
)
alt.Chart(alt.Data(values=percents)).mark_rect(color=PALETTE["blue"]).transform_filter(
    (alt.datum.layer == layer_slider) & (alt.datum.head == head_slider)
).transform_flatten(["shares"], as_=["share"]).transform_window(
    looked_at="row_number()", groupby=["token"]
).encode(
    y=alt.Y("token:N", sort=labels, title=None),
    x=alt.X("looked_at:O", title="takes from token number", axis=alt.Axis(labelAngle=0)),
    opacity=alt.Opacity("share:Q", title="share, %", legend=None).scale(
        domain=[0, 100], range=[0.02, 1], type="sqrt"
    ),
    tooltip=[
        alt.Tooltip("token:N"),
        alt.Tooltip("looked_at:O", title="takes from number"),
        alt.Tooltip("share:Q", title="share, %"),
    ],
).add_params(layer_slider, head_slider).properties(
    title=f"{to_first:.0%} of all attention goes to the first token",
    description=f"For a chosen layer and head, a square map of the {n} tokens of the sentence: "
    "each row is a token, each column an earlier token, and the strength is the share that the "
    f"row takes from the column. In most maps the first column is strong; over all "
    f"{maps.shape[0] * maps.shape[1]} maps it holds {to_first:.0%} of the shares.",
    height=alt.Step(19),
)

# %% tags=["hide-input"]
step = torch.arange(1, n)
to_self = maps[:, :, step, step].mean((1, 2))
to_previous = maps[:, :, step, step - 1].mean((1, 2))
where = pd.DataFrame(
    {
        "layer": range(config.layers),
        "to the first token": by_layer.tolist(),
        "to the token before": to_previous.tolist(),
        "to itself": to_self.tolist(),
    }
)
every = sorted({*range(0, config.layers, 5), config.layers - 1})
charts.table(
    where.iloc[every],
    "Where attention goes, mean over the heads of a layer and over all tokens but the first",
    "measured",
    formats=dict.fromkeys(where.columns[1:], ".0%"),
)

# %% tags=["hide-input"]
values = torch.cat(
    [
        block.attention.queries_keys_values(block.read(x[None]), context)[2].norm(dim=-1)
        for block, x in zip(model.blocks, stream, strict=False)
    ]
)  # (layers, pairs, n)
sink_value = float((values[..., 0] / values[..., 1:].mean(-1)).median())
charts.prose(
    "A softmax must give away all of its shares. A head that has found nothing gives them to the "
    "first token, whose values are short: in the median head "
    f"{{measured}}`{sink_value:.0%}` of the other tokens' length. So little is added: an "
    "{term}`attention sink` {cite}`xiao2024sinks`. Newer models provide a sink on purpose "
    "(gpt-oss). Other heads look one token back, or at an earlier copy of the same token."
)

# %% [markdown]
# ## The stream grows
# Every part only ever adds. So the stream gets longer as it rises, and a norm in front of each part
# keeps what that part reads at one size.

# %% tags=["hide-input"]
norms = stream.norm(dim=-1)  # (layers + 1, n)
first, others = norms[:, 0], norms[:, 1:].quantile(0.5, dim=1)
times = float((first / others).max())
growth = pd.DataFrame(
    [
        {"layer": layer, "token": name, "length": float(value)}
        for name, values in (("first token", first), ("median of the others", others))
        for layer, value in enumerate(values)
    ]
)
base = alt.Chart(growth).encode(
    x=alt.X("layer:Q", title="layers passed"),
    y=alt.Y(
        "length:Q",
        title="length of the vector (logarithmic)",
        axis=alt.Axis(format="~s", values=[1, 10, 100, 1e3, 1e4, 1e5]),
    ).scale(type="log"),
    color=alt.Color("token:N", legend=None).scale(range=[PALETTE["orange"], PALETTE["blue"]]),
    tooltip=["token", "layer", alt.Tooltip("length:Q", format=",.0f")],
)
middle = growth[growth.layer == config.layers // 2 + 4]
tags = (
    alt.Chart(middle)
    .mark_text(dy=-13)
    .encode(x="layer:Q", y="length:Q", text="token:N", color=alt.Color("token:N", legend=None))
)
(base.mark_line() + tags).properties(
    title=f"One token's vector is {times:.0f} times as long as others",
    description="Length of the residual stream's vector against layers passed, on a logarithmic "
    f"axis. The median token grows from {others[0]:.1f} to {others[-1]:.0f}; the first token "
    f"jumps to {first.max():,.0f} in the middle layers and is brought back to {first[-1]:,.0f} at "
    "the end.",
)

# %% tags=["hide-input"]
jump = int((first[1:] - first[:-1]).argmax())
squares = stream[jump + 1, 0].pow(2)
in_three = float(squares.topk(3)[0].sum() / squares.sum())
charts.prose(
    f"The median token's vector grows from {{measured}}`{others[0]:.1f}` to "
    f"{{measured}}`{others[-1]:.0f}`. The first token's is {{measured}}`{first.max():,.0f}` long "
    f"in the middle: one layer, number {jump}, adds nearly all of it, and "
    f"{{measured}}`{in_three:.1%}` of its square sits in 3 of {config.hidden} numbers. It is how "
    "this model marks its sink {cite}`sun2024massive`. For whoever quantises a stream before "
    "sending it the lesson is plain: one scale for a whole tensor would be set by three numbers "
    "of one token, and would round all others away."
)

# %% [markdown]
# ## What would it say now?
# The head can read the stream at any height, not only at the top. That is the {term}`logit lens`
# {cite}`nostalgebraist2020lens`: what would the model say if the layers ended here? Move through
# the sentence; the bars are the likeliest next token after each layer, and its probability.

# %% tags=["hide-input"]
guesses = model.head(stream).softmax(-1)  # (layers + 1, n, V)
probability, best = guesses.max(-1)
lens = [
    {
        "layers": layer,
        "after": i + 1,
        "guess": shown(tokenizer.token_bytes(int(best[layer, i]))),
        "p": round(float(probability[layer, i]), 3),
    }
    for layer in range(config.layers + 1)
    for i in range(n)
]
agree = (best == best[-1]).float().mean(1)
half = int((agree >= 0.5).float().argmax())
place = next((i + 1 for i, piece in enumerate(pieces) if "arrives" in piece), n)
token_slider = alt.param(
    name="after_token",
    value=place,
    bind=alt.binding_range(min=1, max=n, step=1, name="after token "),
)
base = (
    alt.Chart(pd.DataFrame(lens))
    .add_params(token_slider)
    .transform_filter(alt.datum.after == token_slider)
    .encode(
        y=alt.Y("layers:O", title="layers passed", sort="descending"),
        x=alt.X("p:Q", title="probability", axis=alt.Axis(format="%")).scale(domain=[0, 1.08]),
        tooltip=["layers", "guess", alt.Tooltip("p:Q", format=".1%")],
    )
)
(
    base.mark_bar(color=PALETTE["blue"], opacity=0.75)
    + base.mark_text(align="left", dx=5).encode(text="guess:N")
).properties(
    title=f"Half of the final guesses need {half} of {config.layers} layers",
    description="For a chosen token of the sentence, the likeliest next token after each number of "
    "layers, with its probability as a bar. Before the first layer the model repeats the token "
    "itself; commas and spaces follow; the final guess appears in the upper layers, for half of "
    f"the tokens from layer {half} on.",
    height=alt.Step(15),
)

# %% tags=["hide-input"]
question_ids = torch.tensor([tokenizer.encode(question)])
context_q = model.context(question_ids)
x = model.embed(question_ids)
answers = [x[0, -1]]
for block in model.blocks:
    x = block(x, context_q)
    answers.append(x[0, -1])
answers = model.head(torch.stack(answers)).softmax(-1)
final = int(answers[-1].argmax())
heights = sorted({0, 5, 10, 15, 20, 24, 26, 28, config.layers})
charts.table(
    pd.DataFrame(
        {
            "layers passed": heights,
            "likeliest next token": [
                shown(tokenizer.token_bytes(int(answers[i].argmax()))) for i in heights
            ],
            "its probability": [float(answers[i].max()) for i in heights],
            f"probability of {shown(tokenizer.token_bytes(final))}": [
                float(answers[i, final]) for i in heights
            ],
            "its rank": [int((answers[i] > answers[i, final]).sum()) + 1 for i in heights],
        }
    ),
    f"The same for a question with an answer: “{question}”",
    "measured",
    formats={
        "its probability": ".1%",
        f"probability of {shown(tokenizer.token_bytes(final))}": ".1%",
    },
)

# %% tags=["hide-input"]
near = heights[-2]
rank, its = int((answers[near] > answers[near, final]).sum()) + 1, float(answers[near, final])
charts.prose(
    f"{config.layers - near} layers below the top the model's answer is number "
    f"{{measured}}`{rank}` of {config.vocab:,}, at {{measured}}`{its:.1%}`. "
    'What the lower layers say is not what they "think": the head was trained to read the top of '
    "the stream, and reads lower floors in a foreign language."
)

# %% [markdown]
# ## Where a token stands
# Nothing so far knows about order, except that the future is hidden. {term}`RoPE` puts order in
# {cite}`su2021roformer`: before the product, a query and a key are cut into pairs of numbers, and
# each pair is turned like the hand of a clock, by an angle that grows with the position. Every pair
# has its own speed. The picture shows how far each of the 32 hands of a head has come at each
# position.

# %% tags=["hide-input"]
farthest = 160
cos, _ = cosines(torch.arange(farthest + 1), config.position)  # (positions, pairs)
hands = [
    {"pair": pair, "cos": row} for pair, row in enumerate((100 * cos.T).round().int().tolist())
]
slowest = 2 * math.pi * config.position.theta ** (1 - 2 / config.position.rotary_dim)
shade = alt.Scale(domain=[-100, 0, 100], range=[PALETTE["orange"], "#d8d8d8", PALETTE["blue"]])
alt.Chart(alt.Data(values=hands)).mark_rect(strokeWidth=0.7).transform_flatten(
    ["cos"]
).transform_window(number="row_number()", groupby=["pair"]).transform_calculate(
    position="datum.number - 1"
).encode(
    x=alt.X(
        "position:O",
        title="position",
        axis=alt.Axis(labelAngle=0, values=list(range(0, farthest + 1, 20))),
    ),
    y=alt.Y("pair:O", title="pair of numbers", axis=alt.Axis(values=[0, 8, 16, 24, 31])),
    color=alt.Color("cos:Q", legend=None, scale=shade),
    stroke=alt.Stroke("cos:Q", legend=None, scale=shade),
    tooltip=["pair:O", "position:O", alt.Tooltip("cos:Q", title="cosine, %")],
).properties(
    title="Fast hands tell neighbours, slow ones chapters",
    description=f"A grid of {len(hands)} pairs by {farthest + 1} positions, coloured by the cosine "
    "of the pair's angle at that position: blue is 1, grey 0, orange −1. The first pairs go round "
    "every few positions and show fine stripes; the stripes widen from pair to pair, and the last "
    "pairs stay blue.",
    height=alt.Step(8),
)

# %%
read = normalise(stream[0], model.blocks[0].attention_norm.weight)
head_q, head_k = (read @ a.query.weight.T)[:, :64], (read @ a.key.weight.T)[:, :64]


def scores_from(start: int) -> torch.Tensor:
    turn = cosines(torch.arange(start, start + n), config.position)
    return rotate(head_q, *turn) @ rotate(head_k, *turn).T / 8


shift = 1000
moved = float((scores_from(shift) - scores_from(0)).abs().max())

# %% tags=["hide-input"]
charts.prose(
    "Turning both vectors leaves a product that depends on the difference of their angles alone, "
    f"so on the distance. Moving the whole sentence {shift:,} positions on changes no score by "
    f"more than {{measured}}`{power(moved)}`; the scores themselves reach "
    f"{{measured}}`{scores_from(0).abs().max():.1f}`. The slowest hand of this model needs "
    f"{{modelled}}`{slowest:,.0f} positions` to go round once, far more than the "
    f"{config.positions:,} it was trained for. That is what stretching a model to longer texts "
    "turns on: the hands are slowed down, each by its own factor."
)

# %% [markdown]
# ## What has to be kept
# A token's keys and values do not change when later tokens come. They are computed once and kept in
# the {term}`key–value cache`; without it, every new word would cost a pass over all words before
# it. It is also what must be moved when one machine reads the prompt and another writes the answer
# (chapter 13). Its size is a design choice, and models have changed their minds:
#
# - **MHA**: every head keeps its own keys and values.
# - **GQA**: heads share them in groups {cite}`ainslie2023gqa`; SmolLM2 has 9 heads and 3 pairs.
# - **MLA**: one narrow vector a token, from which all heads' keys and values are made again
#   {cite}`deepseek2024v2`.

# %% tags=["hide-input"]
compared = ["gpt2-xl", "gpt3-175b", "llama-2-7b", "smollm2-135m", "mixtral-8x7b"]
compared += ["llama-3.1-405b", "qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v3"]
kept = []
for name in compared:
    c = ModelConfig.load(name)
    h = c.attention
    kept.append(
        {
            "model": name,
            "kind": h.kind,
            "kept": kv_bytes_per_token(c, 2),
            "own": 2 * c.layers * h.heads * (h.head_dim + h.value_dim),
        }
    )
kept = pd.DataFrame(kept).sort_values("kept")
kept["shown"] = [f"{format_bytes(b)}  {kind}" for b, kind in zip(kept.kept, kept.kind, strict=True)]
v3 = kept.set_index("model").loc["deepseek-v3"]
base = alt.Chart(kept).encode(y=alt.Y("model:N", sort=list(kept.model), title=None))
x_axis = alt.X(
    "kept:Q",
    title="bytes per token in all layers, bfloat16 (logarithmic)",
    axis=alt.Axis(format="~s", values=[1e4, 1e5, 1e6, 1e7]),
).scale(type="log", domain=[10_000, 1e8], nice=False)
span = base.mark_rule(opacity=0.4).encode(x=x_axis, x2="own:Q")
dots = base.mark_point(size=90, color=PALETTE["blue"]).encode(x=x_axis, tooltip=["model", "shown"])
ends = base.mark_tick(thickness=2, color=PALETTE["grey"]).encode(x=alt.X("own:Q"))
names = base.mark_text(align="left", dx=9, dy=-9, fontSize=11).encode(x=x_axis, text="shown:N")
(span + ends + dots + names).properties(
    title=f"DeepSeek-V3 keeps {v3.own / v3.kept:.0f} times less than MHA would",
    description="Bytes of key–value cache per token for nine models, a dot each, with a line to "
    "the grey tick where the model would be if every head kept its own keys and values. "
    + "; ".join(f"{row.model} {row.shown}" for row in kept.itertuples())
    + ".",
    height=alt.Step(30),
)

# %% tags=["hide-input"]
cache = KVCache(config, batch=1, capacity=n)
with_cache = [model(ids[:, i : i + 1], cache=cache)[0, 0] for i in range(n)]
apart = float((torch.stack(with_cache) - logits).abs().max())
charts.table(
    kept.assign(ratio=kept.own / kept.kept)[["model", "kind", "kept", "own", "ratio"]].rename(
        columns={
            "kept": "bytes per token",
            "own": "if every head kept its own",
            "ratio": "saved, ×",
        }
    ),
    "Key–value cache per token in all layers, bfloat16",
    "modelled",
    formats={"saved, ×": ".1f"},
)

# %% tags=["hide-input"]
charts.prose(
    f"The cache of this run, in float32, takes {{measured}}`{cache.bytes_per_token:,} bytes` a "
    f"token; computed from the config: {{modelled}}`{kv_bytes_per_token(config, 4):,} bytes`. "
    "Reading the sentence one token at a time with the cache gives the logits of reading it at "
    f"once, to {{measured}}`{power(apart)}`."
)

# %% [markdown]
# ## Many MLPs, few visited
# Most parameters of a model are in its MLPs. A {term}`mixture of experts` has many of them in each
# layer, and a {term}`router` sends each token to a few. Parameters grow, work does not. On many
# machines the experts lie apart, and the router decides what is sent where (chapter 11).
#
# No mixture of a useful size fits this page. So here is a very small one, of Mixtral's shape
# {cite}`jiang2024mixtral`: 2 layers, 8 experts, 2 visited, trained on Shakespeare for the few
# seconds below. It writes no English. What it shows is what a router does when it is left to
# itself, and what it does when an unequal load costs something {cite}`fedus2022switch`.

# %%
small = ModelConfig.from_hf(
    {
        "model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
        "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 128,
        "vocab_size": 4096, "tie_word_embeddings": True,
    },
    "small mixture",
)  # fmt: skip
book = vocabularies.load("book")
text = torch.tensor(book.encode_ordinary(corpus.shakespeare()[0].text))


training, held = text[:-2048], text[-2048:].view(32, 64)


def train(balance: float) -> Decoder:
    torch.manual_seed(seed)
    mixture = Decoder(small)
    optimiser = torch.optim.AdamW(mixture.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(len(training) - 65, (8,))
        rows = torch.stack([training[i : i + 65] for i in starts])
        loss = F.cross_entropy(mixture(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        (loss + balance * mixture.load_balance_loss()).backward()
        optimiser.step()
        optimiser.zero_grad()
    return mixture


threads = torch.get_num_threads()
torch.set_num_threads(1)  # so small that two threads would only wait for each other
with torch.enable_grad():
    alone, balanced = train(balance=0.0), train(balance=0.2)

# %% tags=["hide-input"]
torch.manual_seed(seed)
loads, losses = [], {}
for name, mixture in (
    ("untrained", Decoder(small)),
    ("left to itself", alone),
    ("unequal loads penalised", balanced),
):
    losses[name] = float(
        F.cross_entropy(mixture(held[:, :-1]).flatten(0, 1), held[:, 1:].flatten())
    )
    load = mixture.blocks[1].mlp.routing.load().sort(descending=True)[0]
    loads += [{"router": name, "expert": e + 1, "share": float(v)} for e, v in enumerate(load)]
torch.set_num_threads(threads)
loads = pd.DataFrame(loads)
busiest = loads.groupby("router", sort=False).share.max()
idlest = loads.groupby("router", sort=False).share.min()
even = 1 / small.moe.experts
base = alt.Chart(loads).encode(
    x=alt.X("expert:O", title="expert, the busiest first", axis=alt.Axis(labelAngle=0)),
    y=alt.Y("share:Q", title="share of visits", axis=alt.Axis(format="%", tickCount=5)),
    color=alt.Color("router:N", legend=None, sort=None),
    tooltip=["router", "expert", alt.Tooltip("share:Q", format=".1%")],
)
ideal = (
    alt.Chart(pd.DataFrame({"share": [even]}))
    .mark_rule(strokeDash=[4, 4], opacity=0.6)
    .encode(y="share:Q")
)
tags = [
    base.transform_filter((alt.datum.router == name) & (alt.datum.expert == expert))
    .mark_text(align="left", dx=8, dy=dy)
    .encode(text="router:N")
    for name, expert, dy in (
        ("left to itself", 2, -6),
        ("unequal loads penalised", 2, -8),
        ("untrained", 1, 14),
    )
]
alt.layer(ideal, base.mark_line(point=True), *tags).properties(
    title=f"Left alone, one expert gets {busiest['left to itself'] / even:.1f} times its share",
    description="Share of visits to each of the 8 experts of the second layer, from the busiest to "
    "the idlest, for three routers: "
    + "; ".join(f"{name}, {busiest[name]:.1%} to {idlest[name]:.1%}" for name in busiest.index)
    + f". A dashed line marks an even share, {even:.1%}.",
)

# %% tags=["hide-input"]
charts.table(
    loads.pivot_table(index="router", columns="expert", values="share", sort=False)
    .reset_index()
    .rename(columns=str),
    "Share of visits to each expert of the second layer, the busiest first, on held-out text",
    "measured",
    formats={str(e): ".1%" for e in range(1, small.moe.experts + 1)},
)

# %% tags=["hide-input"]
sentence_ids = torch.tensor([book.encode(sentence)])
balanced(sentence_ids)
routing = balanced.blocks[1].mlp.routing
sentence_pieces = [shown(book.token_bytes(int(i))) for i in sentence_ids[0]]
charts.table(
    pd.DataFrame(
        {
            "token": sentence_pieces[:10],
            "visits experts": [
                " and ".join(map(str, chosen)) for chosen in routing.chosen[:10].tolist()
            ],
            "with weights": [
                " and ".join(f"{w:.2f}" for w in pair) for pair in routing.weights[:10].tolist()
            ],
        }
    ),
    "Where the second layer of the balanced small mixture sends the first tokens of the sentence",
    "measured",
)

# %% tags=["hide-input"]
visit = small.moe.top_k * small.hidden * 4
lost = losses["unequal loads penalised"] - losses["left to itself"]
price = "pays for itself here" if lost < 0 else "costs a little here"
charts.prose(
    f"Balance {price}: on held-out text the loss fell from "
    f"{{measured}}`{losses['untrained']:.2f}` (even guesses: $\\ln {small.vocab:,}$ = "
    f"{math.log(small.vocab):.2f}) to {{measured}}`{losses['left to itself']:.2f}` alone and to "
    f"{{measured}}`{losses['unequal loads penalised']:.2f}` with the penalty. Experts that nobody "
    "visits learn nothing. Seen from a wire, a token that visits "
    f"{small.moe.top_k} experts elsewhere sends its vector {small.moe.top_k} times, "
    f"{{modelled}}`{visit} bytes`, and as much comes back; and the step waits for the machine with "
    "the busiest expert."
)

# %% [markdown]
# ## If the model were cut here
# Now the question of the beginning. A model too large for one machine is cut, and at each cut a
# tensor becomes a message. The chart sets the same cuts of three models side by side, in bytes per
# token, in the 16 bits that large models run in.

# %% tags=["hide-input"]
order = ["text", "token ids", "residual stream", "dispatched tokens", "cache", "logits"]
places = {
    "text": "what the user sends",
    "token ids": "tokeniser | embedding",
    "residual stream": "between any two layers",
    "dispatched tokens": "router | experts, each mixture",
    "cache": "prefill | decode, all layers",
    "logits": "head | sampler",
}
cuts = []
for name in ["smollm2-135m", *big]:
    c = ModelConfig.load(name)
    found = {"text": text_bytes / n}
    for row in (*stage_table(c, 1, n, 2), *layer_table(c, c.layers - 1, 1, n, 2)):
        key = "cache" if row.tensor.endswith("cache") else row.tensor
        if key in places:
            found[key] = row.bytes_per_token
    cuts += [
        {"model": name, "tensor": key, "cut": places[key], "bytes": found[key]}
        for key in order
        if key in found
    ]
cuts = pd.DataFrame(cuts)
cuts["size"] = cuts.bytes.map(format_bytes)
between = cuts[cuts.tensor == "residual stream"].set_index("model").bytes
most = between.max() / (text_bytes / n)
base = alt.Chart(cuts).encode(
    y=alt.Y("cut:N", sort=[places[key] for key in order], title=None),
    x=alt.X(
        "bytes:Q",
        title="bytes per token (logarithmic)",
        axis=alt.Axis(format="~s", values=[1, 10, 100, 1e3, 1e4, 1e5, 1e6]),
    ).scale(type="log", domain=[1, 3e6], nice=False),
    color=alt.Color("model:N", title=None, sort=None, legend=alt.Legend(columns=2)),
    shape=alt.Shape("model:N", title=None, sort=None, legend=alt.Legend(columns=2)),
    yOffset=alt.YOffset("model:N", sort=None),
    tooltip=["model", "cut", "tensor", "size"],
)
base.mark_point(size=110).properties(
    title=f"Inside, a token is up to {most:,.0f} times its text",
    description="Bytes per token at six places where a model may be cut, for three models, on a "
    "logarithmic axis. "
    + "; ".join(f"{row.model}, {row.cut}: {row.size}" for row in cuts.itertuples())
    + ".",
    height=alt.Step(38, **{"for": "position"}),
)

# %% tags=["hide-input"]
charts.table(
    cuts.pivot_table(index="cut", columns="model", values="bytes", sort=False)
    .loc[[places[key] for key in order if places[key] in set(cuts.cut)]]
    .reset_index(),
    "Bytes per token at each cut; bfloat16, token ids in 64 bits",
    "modelled",
    formats=dict.fromkeys(["smollm2-135m", *big], ",.0f"),
)

# %% tags=["hide-input"]
segment = tcp_over_ethernet(mtu=1500).payload_per_packet
rows = [
    f"- **{name}**: {{modelled}}`{value:,.0f} bytes` between two layers, "
    f"packets of at most {segment:,} bytes for one token: "
    f"{{modelled}}`{math.ceil(value / segment)}`"
    for name, value in between.items()
]
charts.prose(
    "\n".join(rows)
    + f"\n\nThe running sentence says how a token travels: {segment:,} bytes at a time. That is "
    "the payload of an ordinary TCP packet (chapter 18), and now we know how many of them one "
    "token fills. Three things are worth keeping:\n\n"
    "1. **All cuts between layers cost the same.** Where to cut a model in layers is a question "
    "of work and memory, not of traffic.\n"
    "2. **The narrowest tensor is at the bottom.** Ids are a few bytes. Nobody would send logits "
    "where an id will do.\n"
    "3. **A cut inside a layer is paid in every layer.** What goes to experts, and what tensor "
    "parallelism adds up (chapter 8), crosses once or more per layer; a cut between layers once "
    "per pass."
)

# %% [markdown]
# ## Where this stops being true
# - **The weights are rounded.** The file holds about 5 bits a weight. Ours and the judge's logits
#   agree on the rounded weights, not on the ones that were trained.
# - **float32 is for checking.** Sizes in the stage table are those of this run; served models use
#   16 bits or fewer, so halve them, as the last chart does.
# - **A map is not an explanation.** Shares say where a head took from, not what it took or whether
#   it mattered. A share on the sink adds next to nothing.
# - **The lens has a bias.** It reads every floor with the top floor's dictionary.
# - **One sentence, one model.** How far a stream grows, which token becomes the sink and when a
#   guess settles differ between models. The shapes and bytes do not: they follow from the config.
# - **The mixture is a toy.** Its numbers of visits mean nothing for a trained model of a thousand
#   times its size; the mechanism is the same.
# - **Windows are ignored in the cache.** Models with windowed layers (Gemma 3, gpt-oss) may drop
#   old tokens in those layers; the chart counts every layer as if it kept all.
#
# ## Exercises
#
# ```{exercise}
# :label: inside-positions
# Give every token position 0: `model(ids, positions=torch.zeros(1, n, dtype=torch.long))`. Do the
# logits change? Does the model still know anything about order?
# ```
#
# ```{solution} inside-positions
# :class: dropdown
# They change a lot: compare `softmax` of both at the last token. All hands stand still, so a score
# depends on the two tokens and no longer on their distance. A little order is left, because the
# future stays hidden: each token still knows which tokens are not behind it. That is why models
# without any positions can be trained at all.
# ```
#
# ```{exercise}
# :label: inside-first
# Put the end-of-text token (id 0) in front of the sentence. Which token has the long vector now?
# ```
#
# ```{solution} inside-first
# :class: dropdown
# Build `longer = torch.cat((torch.zeros(1, 1, dtype=torch.long), ids), 1)`, run the layers as above
# and print `stream.norm(dim=-1)[15]`. The new first token has it, and the old one has become
# ordinary: the sink is a place, not a word. The first place is the one that every token can see.
# ```
#
# ```{exercise}
# :label: inside-heads
# Suppose SmolLM2 used multi-head attention: 9 pairs of keys and values instead of 3. How do the
# cache and the parameters grow?
# ```
#
# ```{solution} inside-heads
# :class: dropdown
# The cache triples, since its width is the number of pairs. Each layer's two projections grow from
# 192 to 576 rows of 576 weights: 2 · 384 · 576 more in each of 30 layers. Check with
# `dataclasses.replace(config, attention=dataclasses.replace(config.attention, kv_heads=9))` and
# `count_parameters`: about a tenth more parameters buy no smaller cache, but three times the cache.
# ```
#
# ```{exercise}
# :label: inside-cut
# Two machines are to hold half of SmolLM2's weights each. After which layer do you cut, and what is
# sent for each token?
# ```
#
# ```{solution} inside-cut
# :class: dropdown
# Not in the middle: the embedding table is a fifth of the weights, and since it is tied, the
# machine with the head needs it as well. If the first machine keeps the table for look-ups and the
# second a copy for the head, the layers are best shared evenly after all, at the cost of holding
# the table twice. Either way one vector crosses: 1,152 bytes a token in bfloat16, and one sampled
# id back.
# ```
#
# ## Where the token goes next
# We know the shape of everything that passes. The next chapter counts what it costs to compute it:
# every parameter, every multiplication and every byte held, exactly.
