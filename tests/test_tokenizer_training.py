"""Training: merges equal Hugging Face's and the naive trainer's; limits are said in words."""

import importlib.util
import json
import warnings

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers
from tokenlife import corpus
from tokenlife.catalog import data_dir
from tokenlife.tokenizer import Pretokenizer, bpe, naive, pretokenizer, train, vocabularies
from tokenlife.tokenizer.byte_alphabet import byte_order
from tokenlife.tokenizer.errors import EmptyCorpus, TrainingError, TrainingStopped


def hugging_face(texts: list[str], n_merges: int, patterns: tuple[str, ...]):
    """Merges that `tokenizers` learns with the same cut, as pairs of ids, and its tokeniser."""
    judge = tokenizers.Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    judge.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last])
    trainer = trainers.BpeTrainer(
        vocab_size=256 + n_merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    judge.train_from_iterator(texts, trainer)
    model = json.loads(judge.to_str())["model"]
    ids = model["vocab"]
    return [(ids[left], ids[right]) for left, right in model["merges"]], judge


def learnt(texts: list[str], n_merges: int, cut: Pretokenizer) -> list[tuple[int, int]]:
    return bpe.learn_merges(bpe.count_pieces(texts, cut), n_merges)


def shakespeare(n_works: int) -> list[str]:
    return [work.text for work in corpus.shakespeare()[:n_works]]


CORPORA = {
    "one play": (lambda: shakespeare(1), 2000),
    "eight plays": (lambda: shakespeare(8), 4096),
    "thirty languages": (lambda: [d.text for d in corpus.udhr()[:400:13]], 3000),
    "code": (lambda: [d.text for d in corpus.standard_library()[::60]], 3000),
    "repeated letters": (lambda: ["aaaa", "aaaaaaa aaa", "a" * 100, "abababab" * 9, "aabaab"], 60),
    "nothing but ties": (
        lambda: ["the quick brown fox jumps over", "lazy dogs vex my big kit"],
        40,
    ),
    "new lines and tabs": (lambda: ["\n\n\n\n\t\t\tx\n\n\n", "\r\n\r\n   \n"], 30),
    "not Latin": (lambda: ["日本語日本語日本", "Привет, привет", "💡💡💡💡"], 50),
}


@pytest.mark.parametrize("pattern", ["gpt2", "llama3", "o200k"])
@pytest.mark.parametrize("name", CORPORA)
def test_merges_equal_hugging_faces(name, pattern):
    make, n_merges = CORPORA[name]
    texts, cut = make(), pretokenizer(pattern)
    wanted, judge = hugging_face(texts, n_merges, cut.patterns)
    assert learnt(texts, n_merges, cut) == wanted
    ours = bpe.assemble(wanted, cut)
    for text in texts:
        assert ours.encode_ordinary(text) == judge.encode(text).ids


SMALL = st.lists(st.text(st.sampled_from("ab é"), max_size=40), min_size=1, max_size=5).filter(any)


@settings(max_examples=300, deadline=None)
@given(texts=SMALL, n_merges=st.integers(1, 40))
def test_merges_equal_hugging_faces_and_the_naive_on_any_small_corpus(texts, n_merges):
    cut = pretokenizer("gpt2")
    merges = learnt(texts, n_merges, cut)
    assert merges == naive.train(texts, n_merges, cut)
    assert merges == hugging_face(texts, n_merges, cut.patterns)[0]


def test_merges_equal_the_naive_ones_on_a_play():
    texts, cut = [shakespeare(1)[0][:40_000]], pretokenizer("gpt2")
    assert learnt(texts, 200, cut) == naive.train(texts, 200, cut)


def test_without_a_cut_merges_cross_words():
    texts = ["in the end in the end in the end"] * 3
    tokens = train(texts, n_merges=12, pattern="none").tokens().values()
    assert any(b" " in token.strip() for token in tokens)
    assert learnt(texts, 12, pretokenizer("none")) == hugging_face(texts, 12, ())[0]


def test_ties_go_to_the_smaller_pair():
    rank = {byte: n for n, byte in enumerate(byte_order())}
    a, b, c, space = (rank[ord(x)] for x in "abc ")
    # Both pairs twice: (a, b) before (b, a) before (c, a); a space comes after all letters.
    assert learnt(["ca ca", "ba ba", "ab ab"], 1, pretokenizer("none"))[0] == (a, b)
    assert learnt(["ca", "ba"], 2, pretokenizer("none")) == [(b, a), (c, a)]
    assert learnt([" a", "ba"], 2, pretokenizer("none")) == [(b, a), (space, a)]


def test_overlapping_pairs_count_as_places_and_merge_from_the_left():
    a = byte_order().index(ord("a"))
    # Then aa aa a: both pairs once, and the tie goes to (aa, a).
    assert learnt(["aaaaa"], 3, pretokenizer("none")) == [(a, a), (256, a), (256, 257)]
    assert train(["aaaaa"], n_merges=1).encoding("aaaaa").pieces == (b"aa", b"aa", b"a")


def test_a_trained_tokenizer_has_bytes_then_merges_then_special_tokens():
    tokenizer = train(shakespeare(1), n_vocab=500, special=["<|endoftext|>", "<|pad|>"])
    assert tokenizer.n_vocab == 500
    assert tokenizer.special == {"<|endoftext|>": 498, "<|pad|>": 499}
    assert [tokenizer.token_bytes(id_) for id_ in range(256)] == [bytes([b]) for b in byte_order()]


@pytest.mark.parametrize("texts", [[], [""], ["", ""], ""])
def test_an_empty_corpus_is_refused(texts):
    with pytest.raises(EmptyCorpus, match="nothing to learn"):
        train(texts, n_merges=10)


def test_more_merges_than_pairs_stops_early_and_says_so():
    with pytest.warns(TrainingStopped, match="after 3 of 100 merges: no pair is left"):
        tokenizer = train(["abcd"], n_merges=100, special=["<|end|>"])
    assert tokenizer.n_vocab == 256 + 3 + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(["abcd"], n_merges=3)


@pytest.mark.parametrize("size", [{}, {"n_vocab": 300, "n_merges": 3}, {"n_vocab": 255}])
def test_an_impossible_size_is_refused(size):
    with pytest.raises(TrainingError):
        train(["abc"], **size)


def test_training_touches_only_the_pieces_that_hold_the_pair(monkeypatch):
    """The work grows with the pieces that change, not with merges × corpus."""
    joined = []
    monkeypatch.setattr(bpe, "join", lambda *args, join=bpe.join: joined.append(1) or join(*args))
    pieces = bpe.count_pieces(shakespeare(4), pretokenizer("gpt2"))
    merges = bpe.learn_merges(pieces, 500)
    assert len(joined) < len(merges) * len(pieces) / 20


def book_recipe():
    path = data_dir() / "vocabularies" / "book.py"
    spec = importlib.util.spec_from_file_location("book_recipe", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_books_vocabulary_is_what_its_recipe_makes(tmp_path):
    made, stored = book_recipe().retrain(), vocabularies.load("book")
    assert made.merges == stored.merges
    made.save(tmp_path / "book.json")
    path = data_dir() / "vocabularies" / "book.json"
    assert (tmp_path / "book.json").read_bytes() == path.read_bytes()
    assert stored.n_vocab == vocabularies.describe("book")["n_vocab"] == 4096
    assert stored.special == {"<|endoftext|>": 4095}
    assert len(set(stored.tokens().values())) == 4095


def test_the_books_merges_equal_hugging_faces():
    recipe = book_recipe()
    cut = pretokenizer(recipe.recipe()["pattern"])
    stored = vocabularies.load("book")
    assert list(stored.merges) == hugging_face(recipe.texts(), len(stored.merges), cut.patterns)[0]
