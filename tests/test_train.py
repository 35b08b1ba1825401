"""Training: schedule, loss, accumulation, checkpoints, resuming bit for bit, divergence."""

import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenlife import corpus
from tokenlife.corpus import BatchLayout, Document
from tokenlife.corpus.batch import IGNORE
from tokenlife.corpus.loader import TokenBatches
from tokenlife.corpus.sharding import ResumeError
from tokenlife.errors import TokenlifeError
from tokenlife.tokenizer import vocabularies
from tokenlife.transformer import ModelConfig
from tokenlife.transformer.model import Decoder
from tokenlife.transformer.train import (
    CheckpointError,
    DivergedError,
    RecipeError,
    Trainer,
    TrainingError,
    TrainingRecipe,
    decay_groups,
    evaluate,
    learning_rate,
    load_checkpoint,
    loss_sum,
    make_optimiser,
    save_checkpoint,
)
from tokenlife.transformer.train.loss import NoLabelsError

SIZE = 32
TINY = ModelConfig.from_hf(
    {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": SIZE,
     "vocab_size": 4096},
    "tiny",
)  # fmt: skip
RECIPE = TrainingRecipe(steps=8, learning_rate=3e-3, warmup=2)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    texts = [f"A token {i} leaves as a word. " * (5 * i % 13 + 1) for i in range(60)]
    documents = [Document(str(i), text, "", "English", "") for i, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("tokens") / "notes"
    return corpus.write_tokens(path, documents, vocabularies.load("book"))


def stream(file, global_batch=8, micro_batch=2, **rest):
    # pad: most rows end in padding, so micro-batches hold different numbers of labels
    packing = corpus.pad(file.lengths, SIZE)
    return TokenBatches(file, packing, BatchLayout(global_batch, micro_batch), **rest)


def trainer(file, recipe=RECIPE, checkpoint=None, seed=0, **layout):
    torch.manual_seed(seed)
    return Trainer(Decoder(TINY), stream(file, **layout), recipe, checkpoint, device="cpu")


def weights(of):
    return {name: tensor.clone() for name, tensor in of.model.state_dict().items()}


# Recipe -------------------------------------------------------------------------------------------


def test_schedule_warms_up_then_falls_along_a_cosine():
    recipe = TrainingRecipe(steps=50, learning_rate=0.4, warmup=7, final_share=0.05)
    rates = [learning_rate(recipe, step) for step in range(1, 51)]
    assert rates[:7] == pytest.approx([0.4 * i / 7 for i in range(1, 8)])
    assert max(rates) == rates[6] and rates[-1] == pytest.approx(0.02)
    assert all(a > b for a, b in pairwise(rates[6:]))
    # torch's own cosine, beside ours
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    judge = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=43, eta_min=0.02)
    for step in range(7, 51):
        assert learning_rate(recipe, step) == pytest.approx(judge.get_last_lr()[0])
        optimiser.step()
        judge.step()


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"warmup": 9},
     {"beta1": 1.0}, {"embedding_rate": 0.0}, {"clip": 0.0}, {"precision": "float8"},
     {"weight_decay": -1.0}, {"steps": 9.5}, {"clip": "1"}, {"precision": 16}, {"warmup": True},
     {"final_share": 2.0}, {"checkpoint_every": -1}, {"eps": 0.0}, {"beta2": -0.1}],
)  # fmt: skip
def test_a_recipe_out_of_range_names_the_number(wrong):
    with pytest.raises(RecipeError, match=next(iter(wrong))):
        replace(RECIPE, **wrong)


# Loss and optimiser -------------------------------------------------------------------------------


def test_loss_leaves_out_what_has_no_label():
    logits = torch.randn(2, 5, 11)
    labels = torch.randint(11, (2, 5))
    labels[0, 3] = labels[1, 1] = IGNORE
    chances = logits.log_softmax(-1)
    by_hand = -sum(
        chances[i, j, labels[i, j]] for i in range(2) for j in range(5) if labels[i, j] != IGNORE
    )
    assert loss_sum(logits, labels).item() == pytest.approx(by_hand.item(), rel=1e-6)


def test_matrices_decay_and_vectors_do_not():
    model = Decoder(TINY)
    groups = decay_groups(model, 0.1, embedding_rate=4.0)
    assert [{p.dim() for p in group["params"]} for group in groups] == [{2}, {2}, {1}]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.1, 0.0]
    assert [group["rate"] for group in groups] == [1.0, 4.0, 1.0]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    recipe = replace(RECIPE, learning_rate=0.1, weight_decay=0.5, embedding_rate=2.0)
    optimiser = make_optimiser(model, recipe)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser.step()  # no gradient: only decay moves a weight
    for name, parameter in model.named_parameters():
        share = 0.0 if parameter.dim() < 2 else 0.1 * 0.5 * (2.0 if "embedding" in name else 1.0)
        torch.testing.assert_close(parameter, before[name] * (1 - share))


def test_accumulation_equals_the_big_batch(file):
    """Micro-batches with unequal numbers of labels; the mean of means would differ."""
    grown = trainer(file, micro_batch=2)
    whole = trainer(file, micro_batch=8)
    parts = [
        (batch["labels"] != IGNORE).sum().item()
        for _, batch in zip(range(4), stream(file), strict=False)
    ]
    assert len(set(parts)) > 1, "this test needs unequal micro-batches"
    a, b = grown.step(), whole.step()
    assert a.loss == pytest.approx(b.loss, rel=1e-6)
    assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-5)
    for one, other in zip(grown.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_clipping_bounds_the_gradient(file):
    clipped = trainer(file, replace(RECIPE, clip=0.01))
    report = clipped.step()
    assert report.gradient_norm > 0.01
    squares = sum(p.grad.square().sum() for p in clipped.model.parameters())
    assert squares.sqrt().item() == pytest.approx(0.01, rel=1e-3)


def test_bfloat16_keeps_float32_weights_and_learns(file):
    recipe = replace(RECIPE, precision="bfloat16", steps=30)
    half, full = trainer(file, recipe), trainer(file, replace(recipe, precision="float32"))
    a, b = half.run(), full.run()
    assert all(p.dtype == torch.float32 for p in half.model.parameters())
    assert a[-1].loss < a[0].loss - 1
    assert a[0].loss == pytest.approx(b[0].loss, rel=1e-2) and a[0].loss != b[0].loss


def test_evaluation_is_the_mean_over_labels_and_teaches_nothing(file):
    model = Decoder(TINY)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = [batch for _, batch in zip(range(6), stream(file), strict=False)]
    got = evaluate(model, batches)
    logits = torch.cat([model(batch["ids"]) for batch in batches])
    labels = torch.cat([batch["labels"] for batch in batches])
    keep = labels != IGNORE
    want = torch.nn.functional.cross_entropy(logits[keep], labels[keep])
    assert got.labels == keep.sum() and got.loss == pytest.approx(want.item(), rel=1e-5)
    assert got.bits_per_token == pytest.approx(want.item() / math.log(2), rel=1e-5)
    assert model.training
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


# Stopping and going on ----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_resume_is_bit_equal(file, tmp_path, precision):
    """2n steps equal n, save, a new process's objects, load, n more: every bit."""
    recipe = replace(RECIPE, precision=precision)
    straight = trainer(file, recipe)
    reports = straight.run()

    first = trainer(file, recipe, tmp_path / "last.pt")
    first.run(until=4)
    second = trainer(file, recipe, tmp_path / "last.pt", seed=99)
    assert not torch.equal(second.model.token_embedding.weight, first.model.token_embedding.weight)
    second.load()
    assert second.done == 4
    rest = second.run()

    assert [r.loss for r in rest] == [r.loss for r in reports[4:]]
    assert [r.gradient_norm for r in rest] == [r.gradient_norm for r in reports[4:]]
    ours, theirs = weights(second), weights(straight)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    states = second.optimiser.state_dict()["state"], straight.optimiser.state_dict()["state"]
    for key in states[1]:
        assert all(torch.equal(states[0][key][n], states[1][key][n]) for n in states[1][key])


class WithDropout(torch.nn.Module):
    """Draws random numbers in each step: resuming must bring back the generator's state."""

    def __init__(self):
        super().__init__()
        self.inner, self.dropout = Decoder(TINY), torch.nn.Dropout(0.3)

    def forward(self, ids):
        return self.inner.head(self.dropout(self.inner.embed(ids)))


def test_resume_restores_the_random_generator(file, tmp_path):
    def make(seed, path=None):
        torch.manual_seed(seed)
        return Trainer(WithDropout(), stream(file), RECIPE, path, device="cpu")

    reports = make(0).run()
    make(0, tmp_path / "last.pt").run(until=4)
    torch.manual_seed(1234)
    second = make(5, tmp_path / "last.pt")
    second.load()
    assert [r.loss for r in second.run()] == [r.loss for r in reports[4:]]


def test_another_micro_batch_may_take_over(file, tmp_path):
    trainer(file, checkpoint=tmp_path / "last.pt").run(until=3)
    other = trainer(file, micro_batch=4, checkpoint=tmp_path / "last.pt")
    other.load()
    straight = trainer(file).run()
    assert [r.loss for r in other.run()] == pytest.approx([r.loss for r in straight[3:]], rel=1e-4)


def test_what_differs_is_named_when_resuming(file, tmp_path):
    path = tmp_path / "last.pt"
    trainer(file, checkpoint=path).run(until=1)
    with pytest.raises(CheckpointError, match=r"recipe learning_rate = 0\.003, this run has 0\.1"):
        trainer(file, replace(RECIPE, learning_rate=0.1), path).load()
    wider = Trainer(Decoder(replace(TINY, layers=3)), stream(file), RECIPE, path, device="cpu")
    with pytest.raises(CheckpointError, match="config layers = 2, this run has 3"):
        wider.load()
    with pytest.raises(ResumeError, match="seed"):
        Trainer(Decoder(TINY), stream(file, seed=7), RECIPE, path, device="cpu").load()
    with pytest.raises(CheckpointError, match="name its path"):
        trainer(file).load()


def test_a_broken_checkpoint_is_refused(file, tmp_path):
    path = tmp_path / "last.pt"
    with pytest.raises(CheckpointError, match="cannot read"):
        load_checkpoint(path)
    trainer(file, checkpoint=path).run(until=1)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not a checkpoint at all"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="no whole checkpoint"):
            load_checkpoint(path)
    torch.save({"weights": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint of this library"):
        load_checkpoint(path)


class Bomb:
    """Runs code when unpickled by a loader that lets it."""

    def __reduce__(self):
        return os.system, ("exit 1",)


def test_loading_runs_no_code(tmp_path):
    torch.save({"format": "tokenlife training checkpoint 1", "bomb": Bomb()}, tmp_path / "bad.pt")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        load_checkpoint(tmp_path / "bad.pt")


def test_a_failed_write_leaves_the_old_checkpoint_and_no_rubbish(tmp_path):
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises(AttributeError):  # a local function cannot be pickled: fails half-way
        save_checkpoint(path, {"step": 2, "big": torch.zeros(1000), "bad": lambda: None})
    assert load_checkpoint(path)["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.pt"]
    with pytest.raises(CheckpointError, match=r"cannot write .*No such file or directory"):
        save_checkpoint(tmp_path / "nowhere" / "last.pt", {})


def test_an_interrupt_leaves_the_last_checkpoint(file, tmp_path):
    path = tmp_path / "last.pt"
    interrupted = trainer(file, replace(RECIPE, checkpoint_every=2), path)

    def stop(report):
        if report.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted.run(progress=stop)
    assert caught.value.__notes__ == [
        f"stopped after step 5; the checkpoint of step 4 is in {path}"
    ]
    again = trainer(file, replace(RECIPE, checkpoint_every=2), path, seed=3)
    again.load()
    assert again.done == 4
    assert [r.loss for r in again.run()] == [r.loss for r in trainer(file).run()[4:]]


def test_an_interrupted_step_is_taken_again_on_the_same_data(file):
    run = trainer(file)
    whole = [report.loss for report in trainer(file).run()]
    first = [report.loss for report in run.run(until=3)]
    seen = []

    def stop(module, inputs):
        seen.append(torch.rand(1))  # a draw, as of dropout, must be taken back too
        if len(seen) == 3:
            raise KeyboardInterrupt

    hook, random = run.model.register_forward_pre_hook(stop), torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt) as caught:
        run.run()
    hook.remove()
    assert caught.value.__notes__ == ["stopped after step 3; no checkpoint was written"]
    assert torch.equal(torch.get_rng_state(), random)
    assert first + [report.loss for report in run.run()] == whole


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_stops_a_write_is_what_is_told(failure, tmp_path, monkeypatch):
    class Failing:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            raise failure

        def flush(self):
            self.file.flush()

    save = torch.save
    monkeypatch.setattr(torch, "save", lambda state, file: save(state, Failing(file)))
    told = CheckpointError if failure.args else KeyboardInterrupt
    with pytest.raises(told, match=r"cannot write .*No space left" if failure.args else "^$"):
        save_checkpoint(tmp_path / "last.pt", {"big": torch.zeros(1 << 20)})
    assert not list(tmp_path.iterdir())


def test_one_flipped_bit_in_a_checkpoint_is_seen(tmp_path):
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"weights": torch.full((999,), 7.5)})
    content = bytearray(path.read_bytes())
    content[content.index(torch.full((9,), 7.5).numpy().tobytes()) + 40] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        load_checkpoint(path)


def test_missing_parts_of_a_checkpoint_are_named(file, tmp_path):
    save_checkpoint(tmp_path / "last.pt", {"step": 1})
    with pytest.raises(CheckpointError, match="lacks recipe, config, model"):
        trainer(file).load(tmp_path / "last.pt")


def test_progress_sees_each_step(file):
    seen = []
    reports = trainer(file).run(until=3, progress=seen.append)
    assert seen == reports and [r.step for r in seen] == [1, 2, 3]
    assert all(r.tokens == 8 * SIZE and r.seconds > 0 for r in seen)


# Divergence ---------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint(file, tmp_path):
    path = tmp_path / "last.pt"
    run = trainer(file, replace(RECIPE, checkpoint_every=2), path)
    run.run(until=4)
    kept = Path(path).read_bytes()
    run.model.blocks[1].mlp.up.weight.data[3, 5] = math.nan
    before = weights(run)
    with pytest.raises(DivergedError) as caught:
        run.run()
    message = str(caught.value)
    assert caught.value.step == 5 and message.startswith("step 5: the loss is nan; likely cause:")
    assert "weight blocks.1.mlp.up.weight is not finite" in message
    assert f"the checkpoint of step 4 is in {path}" in message
    assert Path(path).read_bytes() == kept
    after = weights(run)
    assert all(torch.equal(before[n].nan_to_num(7), after[n].nan_to_num(7)) for n in before)
    again = trainer(file, replace(RECIPE, checkpoint_every=2), path)
    again.load()
    assert [r.loss for r in again.run()] == [r.loss for r in trainer(file).run()[4:]]


@pytest.mark.parametrize("kept", [True, False])
def test_weights_that_are_no_numbers_never_replace_a_checkpoint(file, tmp_path, kept):
    path = tmp_path / "last.pt" if kept else None
    run = trainer(file, checkpoint=path)
    run.run(until=2)

    def overflow(report):
        run.model.blocks[1].mlp.up.weight.data[3, 5] = math.inf

    with pytest.raises(DivergedError, match=r"after step 3.*weight blocks\.1\.mlp\.up") as caught:
        run.run(until=3, progress=overflow)
    assert caught.value.step == 3
    assert not kept or load_checkpoint(path)["step"] == 2


def test_a_learning_rate_far_too_high_is_named_as_the_cause(file):
    wild = replace(RECIPE, steps=200, learning_rate=1e18, warmup=0, clip=math.inf)
    with pytest.raises(DivergedError, match=r"likely cause: .*lower the learning rate"):
        trainer(file, wild).run()


def test_the_stage_that_overflows_is_named(file):
    run = trainer(file)
    run.model.blocks[0].mlp.down.bias.data.fill_(3e38)
    run.model.blocks[0].mlp.down.weight.data.fill_(3e38)
    with pytest.raises(DivergedError, match=r"output of blocks\.0\.mlp\.down is not finite"):
        run.step()


def test_what_cannot_be_trained_on_is_refused(file, tmp_path):
    with pytest.raises(TrainingError, match="dealt to 2 ranks"):
        packing = corpus.pad(file.lengths, SIZE)
        Trainer(Decoder(TINY), TokenBatches(file, packing, BatchLayout(8, 2, ranks=2)), RECIPE)
    ended = Trainer(Decoder(TINY), stream(file, steps=2), RECIPE, device="cpu")
    with pytest.raises(TrainingError, match="step 3: 0 of its 4 micro-batches"):
        ended.run()
    singles = [Document(str(i), "", "", "English", "") for i in range(9)]
    empty = corpus.write_tokens(tmp_path / "empty", singles, vocabularies.load("book"))
    with pytest.raises(NoLabelsError, match="nothing to learn"):
        trainer(empty).run()
    with pytest.raises(NoLabelsError):
        evaluate(Decoder(TINY), [])
    assert all(issubclass(e, TokenlifeError) for e in (DivergedError, CheckpointError, RecipeError))
