"""Bits: the estimators against sources whose entropy is known, the codes against their inverses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife.catalog import running
from tokenlife.tokenizer import codes, entropy, vocabularies
from tokenlife.tokenizer.errors import CorruptCode, EmptyCorpus, IdOutOfRange

IDS = st.lists(st.integers(0, 4095), max_size=200)


def geometric(n: int, rng: np.random.Generator) -> np.ndarray:
    """Ids of a source with exactly 2 bits of entropy."""
    return rng.geometric(0.5, n)


def test_entropy_of_a_known_source():
    ids = geometric(200_000, np.random.default_rng(0))
    assert entropy.plug_in(ids) == pytest.approx(2, abs=0.02)


def test_plug_in_is_too_low_and_miller_madow_less_so():
    rng = np.random.default_rng(1)
    samples = [rng.integers(0, 64, 200) for _ in range(200)]  # 6 bits
    plug_in = np.mean([entropy.plug_in(sample) for sample in samples])
    corrected = np.mean([entropy.miller_madow(sample) for sample in samples])
    assert plug_in < 6 - 0.15
    assert abs(corrected - 6) < 0.05


def markov(n: int, rng: np.random.Generator) -> np.ndarray:
    """A walk that stays with probability 0.9: 0.469 bits a step, 1 bit a symbol."""
    return np.cumsum(rng.random(n) < 0.1) % 2


def test_conditional_entropy_and_cross_entropy_of_a_markov_chain():
    rate = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
    ids = markov(100_000, np.random.default_rng(2))
    assert entropy.plug_in(ids) == pytest.approx(1, abs=0.01)
    for n in (2, 3):
        assert entropy.conditional_entropy(ids, n) == pytest.approx(rate, abs=0.01)
        bits = entropy.cross_entropy(ids[:50_000], ids[50_000:], 2, n)
        assert bits == pytest.approx(rate, abs=0.02)


def test_on_a_small_sample_the_two_estimates_stand_on_both_sides_of_the_truth():
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 256, 4000)  # 8 bits, whatever came before
    assert entropy.conditional_entropy(ids, 3) < 1
    assert entropy.cross_entropy(ids[:2000], ids[2000:], 256, 3) > 8


def test_cross_entropy_is_a_distribution():
    """Summed over all next tokens, the chances are one."""
    known = [1, 2, 3, 1, 2, 1]
    for context in ([1, 2], [2, 1], [0, 0], [3]):
        total = 0.0
        for token in range(5):
            with_it = len(context) + 1
            longer = entropy.cross_entropy(known, [*context, token], 5, 3) * with_it
            total += 2 ** -(longer - entropy.cross_entropy(known, context, 5, 3) * len(context))
        assert total == pytest.approx(1)


@pytest.mark.parametrize("measure", [entropy.plug_in, entropy.miller_madow])
def test_no_sample_no_entropy(measure):
    with pytest.raises(EmptyCorpus):
        measure([])
    with pytest.raises(EmptyCorpus):
        entropy.cross_entropy([1], [], 2, 1)


@given(ids=st.lists(st.integers(0, 2**40)))
def test_varint_reads_back(ids):
    assert codes.unvarint(codes.varint(ids)) == ids


def test_a_cut_off_varint_is_refused():
    with pytest.raises(CorruptCode):
        codes.unvarint(codes.varint([300])[:1])


@given(ids=IDS, n_vocab=st.sampled_from([4096, 65_536, 65_537]))
def test_fixed_width_reads_back(ids, n_vocab):
    data = codes.pack(ids, n_vocab)
    assert len(data) == len(ids) * (2 if n_vocab <= 65_536 else 4)
    assert np.frombuffer(data, codes.fixed_width(n_vocab)).tolist() == ids


@pytest.mark.parametrize("ids", [[4096], [-1]])
def test_fixed_width_refuses_what_does_not_fit(ids):
    with pytest.raises(IdOutOfRange):
        codes.pack(ids, 4096)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 9), max_size=300), seed=st.integers(0, 1000))
def test_the_arithmetic_code_reads_back_and_is_as_short_as_it_says(ids, seed):
    counts = np.random.default_rng(seed).integers(1, 10 ** np.arange(1, 7).max(), 10)
    data = codes.arithmetic_encode(ids, counts)
    assert codes.arithmetic_decode(data, counts, len(ids)) == ids
    # Two bits to end, a hair for rounding, and whole bytes.
    assert len(data) * 8 <= entropy.code_length(ids, counts) + 2 + 0.001 * len(ids) + 8


def test_the_arithmetic_code_at_the_edges():
    for counts in ([1, 1], [1, 2**29], [2**29, 1], [1, 1, 2**29, 1]):
        ids = [n % len(counts) for n in range(50)]
        data = codes.arithmetic_encode(ids, counts)
        assert codes.arithmetic_decode(data, counts, 50) == ids


@pytest.mark.parametrize(
    ("ids", "counts"), [([1], [5, 0]), ([2], [1, 1]), ([0], [0, 0]), ([0], [])]
)
def test_the_arithmetic_code_refuses_what_has_no_room(ids, counts):
    with pytest.raises(CorruptCode):
        codes.arithmetic_encode(ids, counts)


def test_representations_of_the_running_sentence():
    book = vocabularies.load("book")
    encoding = book.encoding(running()["sentence"])
    counts = entropy.unigram_counts(encoding.ids, book.n_vocab)
    bits = {r.name: r.bits for r in entropy.representations(encoding, book.n_vocab, counts)}
    assert bits["UTF-8"] == 8 * 69
    assert bits["uint16 ids"] == 16 * encoding.n_tokens
    assert bits["log₂ V"] == 12 * encoding.n_tokens
    assert bits["unigram, ideal"] <= bits["unigram, coded"] <= bits["unigram, ideal"] + 10
    assert bits["gzip of UTF-8"] > bits["UTF-8"]  # alone, a sentence is too short for gzip


def test_large_vocabularies_have_no_uint16():
    encoding = vocabularies.load("llama3").encoding("a word")
    names = {r.name for r in entropy.representations(encoding, 128_256)}
    assert "uint16 ids" not in names
    assert "uint32 ids" in names


def test_compression_needs_a_known_method():
    with pytest.raises(CorruptCode, match="known: gzip, zstd"):
        codes.compress(b"x", "rar")
