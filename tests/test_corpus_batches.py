"""Packing, batches, who reads what, and the stream that resumes."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlife import corpus
from tokenlife.corpus import IGNORE, PADDING, BatchLayout, Document, loader, packing, sharding
from tokenlife.corpus.tokenfile import EmptyCorpusError
from tokenlife.errors import TokenlifeError
from tokenlife.tokenizer import vocabularies
from torch.utils.data import DataLoader

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)
SIZES = st.integers(2, 33)
PACKERS = [packing.pad, packing.chop, packing.best_fit]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    texts = ["light " * (7 * i % 23 + 1) for i in range(60)]
    documents = [Document(str(i), text, "", "English", "") for i, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("tokens") / "notes"
    return corpus.write_tokens(path, documents, vocabularies.load("book"))


# Packing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packer", PACKERS)
@given(LENGTHS, SIZES)
@settings(max_examples=80, deadline=None)
def test_every_id_has_exactly_one_place(packer, lengths, size):
    packed = packer(lengths, size)
    seen = [
        (document, start + i)
        for document, start, length in zip(
            packed.document, packed.start, packed.length, strict=True
        )
        for i in range(length)
    ]
    assert sorted(seen) == [(d, i) for d, n in enumerate(lengths) for i in range(n)]
    assert packed.n_tokens == sum(lengths)
    fill = np.add.reduceat(packed.length, packed.first[:-1])
    assert packed.first[0] == 0 and packed.first[-1] == len(packed.length)
    assert (fill >= 1).all() and (fill <= size).all()
    assert packed.padding_ratio == pytest.approx((size - fill).sum() / (size * len(fill)))


@given(LENGTHS, SIZES, st.randoms())
@settings(max_examples=80, deadline=None)
def test_chop_is_a_line_cut_into_rows(lengths, size, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    packed = packing.chop(lengths, size, order)
    line = [(d, i) for d in order for i in range(lengths[d])]
    pieces = zip(packed.document, packed.start, packed.length, strict=True)
    assert [(d, s + i) for d, s, n in pieces for i in range(n)] == line
    fill = np.add.reduceat(packed.length, packed.first[:-1])
    assert (fill[:-1] == size).all()  # only the last row may be short


@given(LENGTHS, SIZES)
@settings(max_examples=80, deadline=None)
def test_best_fit_cuts_nothing_needlessly_and_packs_close_to_the_bound(lengths, size):
    packed = packing.best_fit(lengths, size)
    assert packed.needless_cuts == 0 == packing.pad(lengths, size).needless_cuts
    least = -(-sum(lengths) // size)
    # Best-fit decreasing needs at most 11/9 of the optimum and 4 bins (Johnson 1974).
    assert least <= packed.n_rows <= packing.pad(lengths, size).n_rows
    single = [n % size for n in lengths if n % size]
    at_most = sum(n // size for n in lengths) + 11 / 9 * _fewest_bins(single, size) + 4
    assert packed.n_rows <= at_most


def _fewest_bins(items, size):
    """A lower bound of the optimum: volume, or items of more than half a bin."""
    return max(-(-sum(items) // size), sum(2 * item > size for item in items))


def test_best_fit_solves_a_case_by_hand():
    packed = packing.best_fit([9, 6, 4, 3, 1, 7], 10)
    rows = np.repeat(np.arange(packed.n_rows), np.diff(packed.first))
    together = {frozenset(packed.document[rows == r].tolist()) for r in range(packed.n_rows)}
    assert together == {frozenset({0, 4}), frozenset({5, 3}), frozenset({1, 2})}


@pytest.mark.parametrize("packer", PACKERS)
@given(LENGTHS, SIZES)
@settings(max_examples=40, deadline=None)
def test_attention_pairs_are_those_of_the_mask(packer, lengths, size):
    packed = packer(lengths, size)
    inside = whole = 0
    for row in range(packed.n_rows):
        pieces = packed.length[packed.first[row] : packed.first[row + 1]]
        piece = np.repeat(np.arange(len(pieces) + 1), [*pieces, size - pieces.sum()])
        causal = np.tri(size, dtype=bool)
        filled = np.arange(size) < pieces.sum()
        inside += (causal & (piece[:, None] == piece) & filled[:, None]).sum()
        whole += causal.sum()
    assert packed.attention_pairs(within_documents=True) == inside
    assert packed.attention_pairs(within_documents=False) == whole


@pytest.mark.parametrize("packer", PACKERS)
def test_bad_packings_are_refused(packer):
    for size in (1, 0, -3):
        with pytest.raises(packing.SequenceLengthError, match="at least 2"):
            packer([5], size)
    for lengths in ([], [3, 0]):
        with pytest.raises(EmptyCorpusError):
            packer(lengths, 8)


# Batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("size", [2, 7, 16, 64])
def test_batch_holds_what_its_definition_says(file, packer, size):
    packed = packer(file.lengths, size)
    rows = np.arange(packed.n_rows)[::-1]
    batch = corpus.make_batch(file, packed, rows)
    predicted = {}
    for i, row in enumerate(rows):
        place, boundaries = 0, []
        for piece in range(packed.first[row], packed.first[row + 1]):
            document, start = packed.document[piece], packed.start[piece]
            ids = file.document(document)
            boundaries.append(i * size + place)
            for inside in range(packed.length[piece]):
                assert batch.ids[i, place] == ids[start + inside]
                assert batch.documents[i, place] == document
                assert batch.positions[i, place] == inside
                last = start + inside + 1 == len(ids)
                label = IGNORE if last else ids[start + inside + 1]
                assert batch.labels[i, place] == label
                if not last:
                    predicted[document, start + inside + 1] = label
                place += 1
        if place < size:
            boundaries.append(i * size + place)
        assert (batch.documents[i, place:] == PADDING).all()
        assert (batch.labels[i, place:] == IGNORE).all() and (batch.ids[i, place:] == 0).all()
        inside_row = batch.cu_seqlens[(batch.cu_seqlens >= i * size)]
        assert inside_row[inside_row < (i + 1) * size].tolist() == boundaries
    assert batch.cu_seqlens[-1] == len(rows) * size
    # Every id but each document's first is predicted exactly once, however rows were cut.
    assert len(predicted) == file.n_tokens - file.n_documents == batch.loss_mask.sum()


def test_cross_entropy_ignores_what_the_mask_says(file):
    batch = corpus.make_batch(file, packing.pad(file.lengths, 16), range(8))
    logits = torch.randn(8, 16, file.n_vocab, generator=torch.Generator().manual_seed(0))
    labels = torch.from_numpy(batch.labels)
    mask = torch.from_numpy(batch.loss_mask)
    ours = torch.nn.functional.cross_entropy(logits[mask], labels[mask])
    default = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert torch.allclose(ours, default)


# Who reads what -----------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_ranks_share_every_step_without_overlap(ranks, micro_batch, accumulation, steps):
    layout = BatchLayout(ranks * micro_batch * accumulation, micro_batch, ranks)
    assert layout.accumulation == accumulation
    consumed = []
    for micro_step in range(steps * accumulation):
        shares = [layout.places(rank, micro_step) for rank in range(ranks)]
        assert {len(share) for share in shares} == {micro_batch}
        consumed += itertools.chain(*shares)
        assert consumed == list(range((micro_step + 1) * layout.micro_step_batch))
        layout.check_resume(len(consumed))
    assert len(consumed) == steps * layout.global_batch


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_another_world_size_continues_the_same_order(data):
    global_batch = data.draw(st.sampled_from([12, 24, 60]))
    layouts = [
        BatchLayout(global_batch, micro, ranks)
        for micro in range(1, 7)
        for ranks in range(1, 13)
        if global_batch % (micro * ranks) == 0
    ]
    before, after = data.draw(st.sampled_from(layouts)), data.draw(st.sampled_from(layouts))
    stop = data.draw(st.integers(0, 2 * before.accumulation)) * before.micro_step_batch
    into = stop % global_batch
    if into % after.micro_step_batch:
        with pytest.raises(sharding.ResumeError, match="end of a step"):
            after.check_resume(stop)
        return
    after.check_resume(stop)
    todo = 3 * global_batch - stop
    rest = [
        place
        for micro_step in range(todo // after.micro_step_batch)
        for rank in range(after.ranks)
        for place in after.places(rank, micro_step, after=stop)
    ]
    assert rest == list(range(stop, 3 * global_batch))


def test_bad_layouts_and_ranks_are_refused():
    for bad in ((7, 2, 2), (0, 1, 1), (8, 0, 1), (8, 1, -1), (8, 1.0, 1), (8, True, 1)):
        with pytest.raises(sharding.BatchLayoutError) as error:
            BatchLayout(*bad)
        assert "\n" not in str(error.value)
    layout = BatchLayout(8, 2, 2)
    for rank in (-1, 2, "0", True):
        with pytest.raises(sharding.RankError, match="ranks 0 to 1"):
            layout.places(rank, 0)
    with pytest.raises(sharding.ResumeError):
        layout.check_resume(-8)


# The stream ---------------------------------------------------------------------------------------

SIZE, GLOBAL = 16, 12


@pytest.fixture(scope="module")
def packed(file):
    order = corpus.shuffled(np.arange(file.n_documents), file.n_documents, seed=3)
    return packing.chop(file.lengths, SIZE, order)


def stream(file, packed, rank=0, ranks=2, micro=2, **more):
    return loader.TokenBatches(file, packed, BatchLayout(GLOBAL, micro, ranks), rank, **more)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_all_ranks_together_read_each_row_once_an_epoch(file, packed):
    counts = np.zeros(packed.n_rows, int)
    ranks = [stream(file, packed, rank) for rank in range(2)]
    n_steps = 3 * packed.n_rows // 4
    drawn = [r.rows(r.layout.places(r.rank, k)) for k in range(n_steps) for r in ranks]
    epoch = np.concatenate(drawn)[: packed.n_rows]
    np.add.at(counts, epoch, 1)
    assert (counts == 1).all()
    second = np.concatenate(drawn)[packed.n_rows : 2 * packed.n_rows]
    assert sorted(second) == sorted(epoch) and (second != epoch).any()
    for rank, batches in enumerate(ranks):
        first = corpus.make_batch(file, packed, drawn[rank])
        assert torch.equal(next(iter(batches))["ids"], torch.from_numpy(first.ids))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_resume_in_the_middle_of_an_epoch_is_exact(file, packed, workers):
    whole = list(stream(file, packed, steps=7))
    assert len(whole) == 7 * 3
    for stop in (0, 1, 4, 9):
        first = stream(file, packed, steps=7)
        begun = list(itertools.islice(first.loader(workers), stop))
        state = pickle.loads(pickle.dumps(first.state_dict()))
        assert state["consumed"] == stop * 4  # used, not merely made ahead
        second = stream(file, packed, steps=7)
        second.load_state_dict(state)
        rest = list(second.loader(workers))
        assert len(begun) + len(rest) == len(whole)
        assert all(map(same, begun + rest, whole))
        assert second.state_dict()["consumed"] == 7 * GLOBAL


@pytest.mark.parametrize("layout", [(1, 12), (1, 1), (3, 2), (4, 3), (12, 1)])
def test_resume_on_another_number_of_ranks_reads_the_same_rows(file, packed, layout):
    ranks, micro = layout

    def rows(ranks, micro, state=None, steps=None):
        streams = [stream(file, packed, r, ranks, micro, steps=steps) for r in range(ranks)]
        for one in streams if state else ():
            one.load_state_dict(state)
        read = [list(one) for one in streams]
        micro_steps = zip(*read, strict=True)
        return torch.cat([b["ids"] for step in micro_steps for b in step]), streams[0].state_dict()

    whole, _ = rows(2, 2, steps=5)
    begun, state = rows(2, 2, steps=2)
    rest, end = rows(ranks, micro, state, steps=5)
    assert torch.equal(torch.cat([begun, rest]), whole)
    assert end["consumed"] == 5 * GLOBAL


def test_iterating_again_goes_on(file, packed):
    batches, whole = stream(file, packed, steps=3), list(stream(file, packed, steps=3))
    parts = [next(iter(batches)) for _ in range(3)]
    assert all(map(same, parts, whole[:3]))


def test_a_saved_state_of_something_else_is_refused(file, packed):
    state = stream(file, packed).state_dict()
    others = [
        stream(file, packed, seed=1),
        stream(file, packing.chop(file.lengths, SIZE)),
        stream(file, packing.chop(file.lengths, 8)),
        loader.TokenBatches(file, packed, BatchLayout(8, 2, 2)),
    ]
    for other, name in zip(
        others, ("seed", "packing", "sequence_length", "global_batch"), strict=True
    ):
        with pytest.raises(sharding.ResumeError, match=f"has {name}"):
            other.load_state_dict(state)
    with pytest.raises(sharding.ResumeError, match=r"content, .* missing"):
        others[0].load_state_dict({"consumed": 4})
    middle = dict(state, consumed=4)
    with pytest.raises(sharding.ResumeError, match="end of a step"):
        stream(file, packed, ranks=3, micro=2).load_state_dict(middle)


def test_workers_of_a_plain_loader_are_refused(file, packed):
    with pytest.raises(loader.WorkerError, match=r"TokenBatches\.loader"):
        next(iter(DataLoader(stream(file, packed), batch_size=None, num_workers=1)))


def test_no_such_rank(file, packed):
    with pytest.raises(sharding.RankError, match="no data-parallel rank 2"):
        stream(file, packed, rank=2)


def test_the_stream_pickles_without_its_tokens(file, packed):
    assert len(pickle.dumps(file)) < 500
    again = pickle.loads(pickle.dumps(stream(file, packed)))
    assert same(next(iter(again)), next(iter(stream(file, packed))))


def test_errors_are_the_books_own():
    errors = [
        packing.SequenceLengthError,
        sharding.BatchLayoutError,
        sharding.RankError,
        sharding.ResumeError,
        loader.WorkerError,
    ]
    assert all(issubclass(error, TokenlifeError) for error in errors)
