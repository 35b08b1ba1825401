"""Encoding and decoding, tokenizer.json, the named vocabularies, and the command `tokens`."""

import argparse
import io
import json
import warnings
from importlib import metadata

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife import corpus
from tokenlife.catalog import running
from tokenlife.cli import tokens as command
from tokenlife.tokenizer import Pretokenizer, Tokenizer, naive, pretokenizer, train, vocabularies
from tokenlife.tokenizer.byte_alphabet import byte_order, to_bytes, to_characters
from tokenlife.tokenizer.errors import (
    BadPattern,
    BrokenMerges,
    CorruptTokenizer,
    IdOutOfRange,
    MissingByte,
    MissingVocabulary,
    SpecialTokenInText,
    TokenizerError,
    TrainingStopped,
    UnknownVocabulary,
)
from tokenlife.tokenizer.merge import by_pair, merge, pick, scan
from tokenlife.tokenizer.pretokenize import PATTERNS


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return train([corpus.shakespeare()[0].text], n_vocab=700, special=["<|endoftext|>"])


# --- round trips -------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_text_comes_back(text):
    for name in ("book", "gpt2", "o200k", "deepseek"):
        encoding = vocabularies.load(name).encoding(text, disallowed_special=())
        assert vocabularies.load(name).decode(encoding.ids) == text
        assert b"".join(encoding.pieces) == text.encode()
        assert [text.encode()[start:end] for start, end in encoding.spans] == list(encoding.pieces)


@settings(max_examples=200, deadline=None)
@given(data=st.binary())
def test_any_bytes_decode(data):
    book = vocabularies.load("book")
    ids = [byte_order().index(byte) for byte in data]
    assert book.decode_bytes(ids) == data
    assert book.decode(ids) == data.decode(errors="replace")


def test_a_token_may_end_inside_a_character(small):
    ids = small.encode("💡")
    assert len(ids) > 1
    assert small.decode(ids[:1]) == "\ufffd"
    with pytest.raises(UnicodeDecodeError):
        small.decode(ids[:1], errors="strict")


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("the ROMEO,.'\né"), max_size=200))
def test_encoding_equals_the_naive_one(small, text):
    ids = naive.encode(text, list(small.merges), small.pretokenizer)
    assert small.encode(text) == ids
    assert naive.decode(ids, list(small.merges)) == text.encode()


def test_the_running_sentence():
    sentence = running()["sentence"]
    assert vocabularies.load("book").encoding(sentence).n_bytes == len(sentence.encode()) == 69
    assert vocabularies.load("gpt2").encoding(sentence).n_tokens == 19


def test_lone_surrogates_become_replacement_characters(small):
    assert small.decode(small.encode("a\ud800b")) == "a\ufffdb"
    assert small.decode(small.encode("\ud83d\ude00")) == "😀"
    assert small.encoding("a\ud800b").text == "a\ufffdb"


def test_qwen_normalises_and_says_so_in_the_text_it_returns():
    encoding = vocabularies.load("qwen").encoding("cafe\u0301")
    assert encoding.text == "café"
    assert encoding.n_bytes == 5


# --- long pieces -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["book", "gpt2", "deepseek"])
def test_a_million_spaces_and_a_megabyte_without_one(name):
    tokenizer = vocabularies.load(name)
    for text in (" " * 10**6, "antidisestablishmentarianism" * 36_000, "\n" * 10**5 + "x"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["a" * 20_000, "abcdefghij" * 2000, "ab" * 10_000])
def test_a_piece_costs_a_few_look_ups_a_byte(text):
    rank = by_pair(train([text], n_merges=18, pattern="none").merges)
    asked = []

    def counting(left, right):
        asked.append(1)
        return rank(left, right)

    merge([byte_order().index(b) for b in text.encode()], counting, lambda r: 256 + r)
    assert len(asked) <= 3 * len(text)


WORDY = st.text(st.sampled_from("ab1,'\n\r\t \u00a0\u3000\x1c日é!/"), max_size=60)


@settings(max_examples=400, deadline=None)
@given(text=WORDY)
def test_the_coarse_cut_is_a_part_of_each_cut(text):
    for pattern in PATTERNS:
        cut = pretokenizer(pattern)
        assert [piece for word in cut.words(text) for piece in cut.split(word)] == cut.split(text)
        assert "".join(cut.split(text)) == text


def test_patterns_that_we_do_not_know_are_not_cut_coarsely():
    cut = Pretokenizer((r"\S+ \S+|\s+|\S+",))
    assert cut.split("a b c") == ["a b", " ", "c"]
    assert cut.words("a b c") == ["a b c"]


def test_deepseeks_file_has_the_cut_that_we_know():
    assert vocabularies.load("deepseek").pretokenizer == pretokenizer("deepseek")


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab"), min_size=2, max_size=150), data=st.data())
def test_scanning_and_picking_merge_alike(text, data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingStopped)
        merges = train([text], n_merges=data.draw(st.integers(0, 20)), pattern="none").merges
    symbols = [byte_order().index(byte) for byte in text.encode()]
    scanned = scan(list(symbols), by_pair(merges), lambda rank: 256 + rank)
    assert scanned == pick(list(symbols), by_pair(merges), lambda rank: 256 + rank)
    assert scanned == naive.encode(text, list(merges), pretokenizer("none"))


# --- special tokens ----------------------------------------------------------------------------


def test_special_tokens_are_refused_unless_allowed(small):
    text, end = "one<|endoftext|>two", small.special["<|endoftext|>"]
    with pytest.raises(SpecialTokenInText, match=r"'<\|endoftext\|>'; pass it in allowed_special"):
        small.encode(text)
    assert small.encode(text, "all") == [*small.encode("one"), end, *small.encode("two")]
    assert small.encode(text, {"<|endoftext|>"}).count(end) == 1
    assert end not in small.encode(text, disallowed_special=())
    assert small.encode_ordinary(text) == small.encode(text, disallowed_special=())
    assert small.decode(small.encode(text, "all")) == text


def test_the_longest_of_two_special_tokens_wins():
    tokenizer = train(["abc"], n_merges=0, special=["<s>", "<s>>"])
    assert tokenizer.encode("<s>><s>", "all") == [257, 256]


@pytest.mark.parametrize("ids", [[700], [-1], [0, 10**9], ["the"], [None]])
def test_ids_out_of_range_are_named(small, ids):
    with pytest.raises(IdOutOfRange, match=r"no token .*; ids run from 0 to 699"):
        small.decode(ids)


def test_a_hole_in_a_vocabulary_is_no_token():
    with pytest.raises(IdOutOfRange, match="cl100k has no token 100256"):
        vocabularies.load("cl100k").decode([100256])


# --- tokenizer.json ----------------------------------------------------------------------------

SAMPLES = [
    "It's 1,448 bytes, isn't it?\n\n  Yes.\t",
    "naïve café 日本語 Привет 안녕 👩‍🚀 שלום",
    "def f(x):\n    return x ** 2  # squared\n",
    "<|endoftext|>",
    "",
]


@pytest.mark.parametrize("name", vocabularies.names())
def test_what_we_save_loads_in_tokenizers_and_here(name, tmp_path):
    tokenizer, path = vocabularies.load(name), tmp_path / "tokenizer.json"
    tokenizer.save(path)
    judge, back = tokenizers.Tokenizer.from_file(str(path)), Tokenizer.load(path, name)
    assert (back.n_vocab, back.special) == (tokenizer.n_vocab, tokenizer.special)
    texts = SAMPLES + [d.text for d in (*corpus.udhr()[::25], *corpus.standard_library()[::150])]
    for text in texts:
        ids = tokenizer.encode(text, "all")
        assert judge.encode(text, add_special_tokens=False).ids == ids
        assert back.encode(text, "all") == ids
        # `tokenizers` leaves special tokens as they are only if it is told to.
        assert judge.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids)
    assert all(judge.token_to_id(text) == id_ for text, id_ in tokenizer.special.items())


def written_by_tokenizers(tmp_path, prefix_space: bool, **options):
    judge = tokenizers.ByteLevelBPETokenizer(add_prefix_space=prefix_space, **options)
    texts = [corpus.shakespeare()[0].text[:50_000]]
    judge.train_from_iterator(texts, vocab_size=600, special_tokens=["<s>"], show_progress=False)
    path = tmp_path / "tokenizer.json"
    judge.save(str(path))
    return judge, path


@pytest.mark.parametrize("prefix_space", [False, True])
def test_what_tokenizers_writes_loads_here(prefix_space, tmp_path):
    judge, path = written_by_tokenizers(tmp_path, prefix_space)
    ours = Tokenizer.load(path)
    for text in [*SAMPLES, "no space", " a space", "a<s>b <s> c"]:
        assert ours.encode(text, "all") == judge.encode(text, add_special_tokens=False).ids
    ours.save(tmp_path / "again.json")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "again.json"))
    for text in [*SAMPLES, "no space", "a<s>b"]:
        assert again.encode(text).ids == ours.encode(text, "all")


def test_digits_and_older_merges_load_too(tmp_path):
    judge = tokenizers.Tokenizer(tokenizers.models.BPE())
    judge.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, show_progress=False
    )
    judge.train_from_iterator([corpus.shakespeare()[0].text[:50_000] + "1448 1448"], trainer)
    document = json.loads(judge.to_str())
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    for text in SAMPLES:
        assert Tokenizer.load(path).encode_ordinary(text) == judge.encode(text).ids


def broken(change, tmp_path):
    """The book's file with something wrong in it."""
    document = json.loads(vocabularies.locate("book").read_bytes())
    change(document)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _wrong(*keys, to):
    def change(document):
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


BAD = {
    "unigram model": (
        _wrong("model", "type", to="Unigram"),
        CorruptTokenizer,
        "only byte-level BPE",
    ),
    "no model": (_wrong("model", to=None), CorruptTokenizer, "no tokenizer.json"),
    "no vocabulary": (_wrong("model", "vocab", to=[]), CorruptTokenizer, "no tokenizer.json"),
    "id is text": (_wrong("model", "vocab", "!", to="0"), CorruptTokenizer, "whole number"),
    "two tokens, one id": (_wrong("model", "vocab", "!", to=5), CorruptTokenizer, "share an id"),
    "not bytes": (
        _wrong("model", "vocab", "▁the", to=9999),
        CorruptTokenizer,
        "stands for no byte",
    ),
    "unknown part": (_wrong("model", "merges", 7, to=["t", "nope"]), BrokenMerges, "merge 7 needs"),
    "unknown product": (_wrong("model", "merges", 7, to=["!", "!"]), BrokenMerges, "merge 7 joins"),
    "merge of three": (_wrong("model", "merges", 7, to="a b c"), CorruptTokenizer, "broken.json"),
    "dropout": (_wrong("model", "dropout", to=0.1), CorruptTokenizer, "dropout"),
    "lower-casing": (
        _wrong("normalizer", to={"type": "Lowercase"}),
        CorruptTokenizer,
        "normaliser",
    ),
    "no cut": (_wrong("pre_tokenizer", to=None), CorruptTokenizer, "no ByteLevel"),
    "other cut": (_wrong("pre_tokenizer", to={"type": "Metaspace"}), CorruptTokenizer, "Metaspace"),
    "stripped": (_wrong("added_tokens", 0, "lstrip", to=True), CorruptTokenizer, "lstrip"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_corrupt_file_says_what_is_wrong(case, tmp_path):
    change, error, words = BAD[case]
    with pytest.raises(error, match=words) as caught:
        Tokenizer.load(broken(change, tmp_path))
    assert "\n" not in str(caught.value)
    assert "broken.json" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"3", b'"x"', b"{}"])
def test_no_json_or_another_json_says_so(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(CorruptTokenizer, match=r"x\.json is no"):
        Tokenizer.load(path)


def test_files_that_cannot_be_read_or_written(tmp_path, small):
    with pytest.raises(CorruptTokenizer, match="No such file"):
        Tokenizer.load(tmp_path / "missing.json")
    with pytest.raises(CorruptTokenizer, match="cannot write"):
        small.save(tmp_path / "nowhere" / "x.json")
    small.save(tmp_path / "x.json")
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_byte_without_a_token_is_named():
    tokenizer = Tokenizer("ab", {b"a": 0, b"b": 1}, pretokenizer("none"), merges=[])
    with pytest.raises(MissingByte, match="no token for byte 0x63"):
        tokenizer.encode("abc")


@pytest.mark.parametrize("pattern", ["(", "(a)|b"])
def test_a_bad_pattern_is_refused(pattern):
    with pytest.raises(BadPattern):
        Pretokenizer((pattern,))


def test_gaps_between_matches_are_pieces_too():
    assert Pretokenizer((r"\d+",)).split("ab12c3") == ["ab", "12", "c", "3"]


@pytest.mark.parametrize("byte", range(256))
def test_each_byte_has_one_printable_character(byte):
    assert to_bytes(to_characters(bytes([byte]))) == bytes([byte])
    assert to_characters(bytes([byte])).isprintable()


# --- named vocabularies ------------------------------------------------------------------------


def test_all_vocabularies_are_here():
    assert vocabularies.available() == vocabularies.names()


def test_an_unknown_vocabulary_lists_the_known():
    with pytest.raises(UnknownVocabulary) as caught:
        vocabularies.load("gpt9")
    assert all(name in str(caught.value) for name in vocabularies.names())


def test_a_missing_package_says_what_to_install(monkeypatch):
    def not_there(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(vocabularies.metadata, "distribution", not_there)
    with pytest.raises(MissingVocabulary, match="pip install --no-deps llama-models"):
        vocabularies.locate("llama3")
    assert vocabularies.available() == ("book",)


@pytest.mark.parametrize("content", [b"", b"IQ==", b"IQ== x\n", b"!!! 0\n", b"IQ== 0\nIQ== 1\n"])
def test_a_corrupt_list_of_ranks_is_refused(content, tmp_path):
    path = tmp_path / "x.tiktoken"
    path.write_bytes(content)
    with pytest.raises(CorruptTokenizer):
        vocabularies.read_ranks(path)


def test_a_cut_off_gzip_is_refused(tmp_path):
    path = tmp_path / "x.tiktoken.gz"
    path.write_bytes(vocabularies.locate("cl100k").read_bytes()[:5000])
    with pytest.raises(CorruptTokenizer):
        vocabularies.read_ranks(path)


def test_gpt2_merges_that_do_not_chain_are_refused(tmp_path):
    merges = tmp_path / "vocab.bpe"
    lines = vocabularies.locate("gpt2", "merges").read_text(encoding="utf-8").splitlines()
    merges.write_text("\n".join([lines[0], *lines[2:]]), encoding="utf-8")
    with pytest.raises(BrokenMerges, match="does not make token 256"):
        vocabularies.read_gpt2(vocabularies.locate("gpt2"), merges)


# --- the command -------------------------------------------------------------------------------


class Pipe:
    """Standard input that holds bytes."""

    def __init__(self, data: bytes):
        self.buffer = io.BytesIO(data)

    def isatty(self):
        return False


def tokens(*argv: str):
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(list(argv)))


def test_command_gives_the_books_tokens():
    data = tokens("A token leaves").data
    assert data["vocabulary"] == "book"
    assert data["pieces"] == ["A", " to", "ken", " lea", "ves"]
    assert (data["n_tokens"], data["n_bytes"]) == (5, 14)
    assert vocabularies.load("book").decode(data["ids"]) == "A token leaves"


def test_command_writes_bytes_exactly_where_text_cannot():
    data = tokens("💡").data
    assert "\ufffd" in "".join(data["pieces"])
    assert bytes.fromhex("".join(data["pieces_hex"])).decode() == "💡"


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["--vocabulary", "gpt2", "--vocabulary", "qwen"], ["gpt2", "qwen"]),
        (["--vocabulary", "gpt2,qwen, gpt2"], ["gpt2", "qwen"]),
        (["--vocabulary", "all"], list(vocabularies.names())),
    ],
)
def test_command_takes_several_vocabularies(asked, names):
    result = tokens("1,448 bytes", *asked)
    assert [record["vocabulary"] for record in result.data] == names
    assert all(name in result.text for name in names)


def test_command_reads_files_and_pipes(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    path.write_text("naïve\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", Pipe("naïve\n".encode()))
    from_pipe = tokens().data
    monkeypatch.setattr("sys.stdin", Pipe("naïve\n".encode()))
    assert tokens("-").data == from_pipe == tokens("--file", str(path)).data
    assert from_pipe["n_bytes"] == 7


def test_command_handles_special_tokens():
    assert tokens("<|endoftext|>", "--special", "token").data["ids"] == [4095]
    assert tokens("<|endoftext|>", "--special", "text").data["n_tokens"] > 1


def test_command_shortens_for_people_only():
    result = tokens("word " * 200)
    assert len(result.data["ids"]) > 150
    assert "more; --json has all" in result.text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["x", "--vocabulary", "gpt9"], "known: book, gpt2"),
        (["x", "--vocabulary", ","], "known: book, gpt2"),
        (["x", "--file", "y"], "give one"),
        (["--file", "no-such-file"], "cannot read no-such-file: No such file"),
        (["--file", "."], "cannot read .: Is a directory"),
        (["<|endoftext|>"], "--special token or --special text"),
    ],
)
def test_command_explains_bad_input_in_one_line(argv, words):
    with pytest.raises(Exception, match=words) as caught:
        tokens(*argv)
    assert isinstance(caught.value, TokenizerError | command.InputError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\x7fELF\0\0", b"caf\xe9", "word".encode("utf-16")])
def test_command_refuses_what_is_no_text(content, tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(command.InputError, match=r"x\.bin is no .*text: .* at offset"):
        tokens("--file", str(path))
