"""Training and encoding beside the naive version, Hugging Face `tokenizers` and tiktoken.

The corpus is Shakespeare, its first megabyte for training. The naive trainer would need the better
part of an hour for 4,096 merges, so its first merges are timed and scaled; it grows faster as its
lists grow shorter, so a second row scales by the number of symbols that are left at the end, which
is the least it could take.

Encoding looks up what it met before. "Cache empty" is a first pass, which also merges each new
word; "cache warm" is every later one, and what a long corpus comes to.
"""

import os
import warnings

import tiktoken
import tokenizers
from harness import row, seconds, side_by_side
from tokenizers import models, pre_tokenizers, trainers
from tokenlife import corpus
from tokenlife.tokenizer import Tokenizer, bpe, naive, pretokenizer, vocabularies

MERGES, NAIVE_MERGES = 4096, 40


def megabyte() -> str:
    text = "".join(work.text for work in corpus.shakespeare())
    return text.encode()[:1_000_000].decode(errors="ignore")


def train_hugging_face(text: str) -> tokenizers.Tokenizer:
    judge = tokenizers.Tokenizer(models.BPE())
    judge.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + MERGES, initial_alphabet=alphabet, show_progress=False
    )
    judge.train_from_iterator([text], trainer)
    return judge


def judge_of(tokenizer: Tokenizer) -> tiktoken.Encoding:
    ranks = {token: id_ for id_, token in tokenizer.tokens().items()}
    (pattern,) = tokenizer.pretokenizer.patterns
    return tiktoken.Encoding("judge", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def training(text: str) -> list[tuple[int, int]]:
    cut = pretokenizer("gpt2")

    def train():
        return bpe.learn_merges(bpe.count_pieces([text], cut), MERGES)

    merges = train()
    ours_s, hugging_face_s = side_by_side(train, lambda: train_hugging_face(text))
    row("train: 1 MB, 4,096 merges", ours_s, hugging_face_s, "tokenizers", "≥ 0.1×")

    assert naive.train([text], 3, cut) == merges[:3]
    naive_s = seconds(lambda: naive.train([text], NAIVE_MERGES, cut))
    cutting_s = seconds(lambda: naive.train([text], 0, cut))
    per_merge_s = (naive_s - cutting_s) / NAIVE_MERGES
    # What a merge costs the naive trainer goes down with the number of symbols left.
    left = len(bpe.assemble(merges, cut).encode_ordinary(text)) / len(text.encode())
    print(f"naive trainer: {NAIVE_MERGES} merges timed, scaled; {left:.0%} of the symbols are left")
    row("train, naive scaled by merges", ours_s, per_merge_s * MERGES, "naive", "≥ 50×")
    row("train, naive at its cheapest", ours_s, per_merge_s * MERGES * left, "naive", "≥ 50×")
    return merges


def encoding(text: str, merges: list[tuple[int, int]]) -> None:
    cut = pretokenizer("gpt2")
    part = text[:200_000]
    fresh = bpe.assemble(merges, cut)
    wanted = naive.encode(part, merges, cut)
    assert fresh.encode_ordinary(part) == wanted
    ours_s, naive_s = side_by_side(
        lambda: bpe.assemble(merges, cut).encode_ordinary(part),
        lambda: naive.encode(part, merges, cut),
        rounds=3,
    )
    row("encode 0.2 MB, our cache empty", ours_s, naive_s, "naive", "≥ 20×")
    ours_s, naive_s = side_by_side(
        lambda: fresh.encode_ordinary(part), lambda: naive.encode(part, merges, cut), rounds=3
    )
    row("encode 0.2 MB, our cache warm", ours_s, naive_s, "naive", "≥ 20×")
    whole = "".join(work.text for work in corpus.shakespeare())
    ours_s = seconds(lambda: empty(fresh).encode_ordinary(whole))
    scaled_s = naive_s * len(whole) / len(part)
    row("encode 5 MB, cache empty, naive scaled", ours_s, scaled_s, "naive", "")

    for name in ("gpt2", "cl100k", "o200k", "llama3", "qwen"):
        tokenizer = vocabularies.load(name)
        judge = judge_of(tokenizer)
        assert tokenizer.encode_ordinary(text) == judge.encode_ordinary(text)
        cold_s, tiktoken_s = side_by_side(
            lambda t=tokenizer: empty(t).encode_ordinary(text),
            lambda j=judge: j.encode_ordinary(text),
            rounds=3,
        )
        row(f"encode 1 MB, {name}, cache empty", cold_s, tiktoken_s, "tiktoken", "≥ 0.1×")
        warm_s, tiktoken_s = side_by_side(
            lambda t=tokenizer: t.encode_ordinary(text), lambda j=judge: j.encode_ordinary(text)
        )
        row(f"encode 1 MB, {name}, cache warm", warm_s, tiktoken_s, "tiktoken", "≥ 0.1×")
    deepseek = vocabularies.load("deepseek")
    judge = tokenizers.Tokenizer.from_file(str(vocabularies.locate("deepseek")))
    ours_s, judge_s = side_by_side(
        lambda: deepseek.encode_ordinary(text), lambda: judge.encode(text), rounds=3
    )
    row("encode 1 MB, deepseek, cache warm", ours_s, judge_s, "tokenizers", "≥ 0.1×")


def empty(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokeniser with nothing cached."""
    tokenizer._words.clear()
    tokenizer._pieces.clear()
    return tokenizer


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    warnings.simplefilter("error")
    shakespeare = megabyte()
    encoding(shakespeare, training(shakespeare))
