"""Translation as a task: its loss against sums written out by hand, its scores, its examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.data.prepare import prepare
from headway.data.store import PreparedData
from headway.errors import Stopped
from headway.models.build import build_model
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.presets import preset
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.settings.train import TrainSettings
from headway.tasks.dataset import Batch, EvalPass
from headway.tasks.losses import plain as plain_loss
from headway.tasks.losses import rdrop
from headway.tasks.objective import EpochItems, MicroBatch
from headway.tasks.seq2seq import Seq2SeqObjective
from headway.tasks.seq2seq_dataset import TextTargets
from headway.tasks.translate import TranslateTask
from headway.training.distributed import Distributed
from headway.training.trainer import Trainer
from tests.data.conftest import sentences

CPU = torch.device("cpu")
ALPHA, SMOOTHING = 5.0, 0.2


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return made_of(tmp_path_factory.mktemp("prepared"), kind="words")


def made_of(folder: Path, **tokenizer: Any) -> PreparedData:
    for name, side in zip(("de", "en"), zip(*sentences(), strict=True), strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    data = DataSettings(
        source=(str(folder / "de"),), target=(str(folder / "en"),), valid_size=30, max_len=40
    )
    settings = RunSettings(task="translate", data=data, tokenizer=TokenizerSettings(**tokenizer))
    return prepare(settings, folder)


def task_of(
    prepared: PreparedData, quick_size: int = 500, lowercase: bool = False, **train: Any
) -> Seq2SeqObjective:
    values: dict[str, Any] = {"batch_tokens": 100, "label_smoothing": SMOOTHING, **train}
    settings = RunSettings(
        task="translate",
        train=TrainSettings(**values),
        decode=DecodeSettings(max_len=12),
        tokenizer=TokenizerSettings(lowercase=lowercase),
        model=preset("transformer-test"),
    )
    return Seq2SeqObjective(
        settings, prepared, TranslateTask(spec_of("translate")), quick_size=quick_size
    )  # type: ignore[arg-type]


def model_of(prepared: PreparedData, dropout: float = 0.0) -> Seq2Seq:
    shape = replace(
        preset("transformer-test"), vocab_size=prepared.vocab.target.vocab_size, dropout=dropout
    )
    model = build_model(shape, seed=3)
    assert isinstance(model, Seq2Seq)
    return model


def log_probs(model: Seq2Seq, prepared: PreparedData, row: int, store: str = "train") -> Tensor:
    """Of every word after the start and each prefix of the target: one pair, nothing else."""
    pairs, vocab = getattr(prepared, store), prepared.vocab
    source = [*pairs["source"][row].tolist(), vocab.source.eos]
    inputs = [vocab.target.bos, *pairs["target"][row].tolist()]
    x_ND = model(
        torch.tensor(source),
        Layout.of([len(source)]),
        torch.tensor(inputs),
        Layout.of([len(inputs)]),
    )
    return model.scores(x_ND).float().log_softmax(-1)


def labels(prepared: PreparedData, row: int, store: str = "train") -> list[int]:
    return [*getattr(prepared, store)["target"][row].tolist(), prepared.vocab.target.eos]


def by_hand(logs_NV: Tensor, said: list[int]) -> tuple[Tensor, Tensor]:
    """Smoothed loss and plain likelihood, a word at a time, as the paper says it."""
    n_words = logs_NV.shape[1]
    loss, nll = torch.zeros(()), torch.zeros(())
    for logs_V, right in zip(logs_NV, said, strict=True):
        aim_V = torch.full((n_words,), SMOOTHING / (n_words - 1))
        aim_V[right] = 1 - SMOOTHING
        loss = loss - (aim_V * logs_V).sum()
        nll = nll - logs_V[right]
    return loss, nll


def some(task: Seq2SeqObjective, n: int = 7) -> MicroBatch:
    rows = np.arange(3, 3 + n)
    return MicroBatch(EpochItems(0, rows), task.train_dataset.n_targets(rows))


def test_the_loss_is_the_sum_over_every_word_of_every_pair(prepared: PreparedData) -> None:
    task, model = task_of(prepared), model_of(prepared)
    part = some(task)
    found = plain_loss(task)(model, task.batch(part, CPU, None))
    hand = [by_hand(log_probs(model, prepared, r), labels(prepared, r)) for r in part.rows.rows]
    loss, nll = (sum(values) for values in zip(*hand, strict=True))
    torch.testing.assert_close(found.sum, loss, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.nll, nll, rtol=1e-5, atol=0.0)


def test_the_fixed_form_of_a_batch_costs_the_same(prepared: PreparedData) -> None:
    task, model = task_of(prepared), model_of(prepared)
    part = some(task)
    plain = plain_loss(task)(model, task.batch(part, CPU, None))
    fixed = plain_loss(task)(model, task.batch(part, CPU, task.fixed(60)))
    torch.testing.assert_close(tuple(fixed), tuple(plain), rtol=1e-5, atol=0.0)


# R-Drop


def rdrop_by_hand(
    model: Seq2Seq, batch: Batch[TextTargets], said: list[int]
) -> tuple[Tensor, Tensor]:
    """½ (loss₁ + loss₂) + α/4 Σ (p₁ − p₂)(log p₁ − log p₂), which is the sum of both KLs."""
    streams = [x for stream in batch.streams for x in (stream.values, stream.layout)]
    logs = [model.scores(model(*streams)).log_softmax(-1)[: len(said)] for _ in range(2)]
    (loss_1, nll_1), (loss_2, nll_2) = (by_hand(logs_NV, said) for logs_NV in logs)
    apart = ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum()
    return (loss_1 + loss_2) / 2 + ALPHA / 4 * apart, (nll_1 + nll_2) / 2


def gradient(loss: Tensor, model: Seq2Seq) -> Tensor:
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in found])


@pytest.mark.parametrize("tokens", [None, 60], ids=["flat", "with dummy rows"])
def test_rdrop_is_its_formula(prepared: PreparedData, tokens: int | None) -> None:
    task, model = task_of(prepared), model_of(prepared, dropout=0.3).train()
    part = some(task)
    batch = task.batch(part, CPU, tokens and task.fixed(tokens))
    result = [word for row in part.rows.rows for word in labels(prepared, row)]
    assert (len(batch.targets.targets_N) > len(result)) == (tokens is not None)
    torch.manual_seed(5)  # the same numbers are dropped in both computations
    found = rdrop(task, ALPHA)(model, batch)
    torch.manual_seed(5)
    loss, nll = rdrop_by_hand(model, batch, result)
    torch.testing.assert_close(found.sum, loss, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.nll, nll, rtol=1e-5, atol=0.0)
    ours, theirs = gradient(found.sum, model), gradient(loss, model)
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()
    assert found.sum > 1.01 * plain_loss(task)(model, batch).sum  # a price one can see


def test_rdrop_costs_nothing_where_both_passes_agree(prepared: PreparedData) -> None:
    model = model_of(prepared).train()
    task = task_of(prepared)
    batch = task.batch(some(task), CPU, None)
    twice, once = (loss(model, batch) for loss in (rdrop(task, ALPHA), plain_loss(task)))
    torch.testing.assert_close(tuple(twice), tuple(once), rtol=1e-5, atol=0.0)
    ours, theirs = gradient(twice.sum, model), gradient(once.sum, model)
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


# Steps


def test_every_step_keeps_to_its_tokens_and_an_epoch_has_all_pairs(prepared: PreparedData) -> None:
    task = task_of(prepared)
    steps = task.epoch(0)
    every = np.concatenate([step.rows for step in steps])
    assert sorted(every.tolist()) == list(range(prepared.train.n))
    for step in steps:
        parts = task.parts(step, 30)
        assert np.concatenate([p.rows.rows for p in parts]).tolist() == step.rows.tolist()
        words = sum(len(labels(prepared, row)) for row in step.rows)
        assert sum(part.n_targets for part in parts) == words
        assert all(part.n_targets <= 30 for part in parts)
        assert sum(part.n_targets for part in parts) <= 100


def test_a_pair_longer_than_a_step_is_a_step(prepared: PreparedData) -> None:
    task = task_of(prepared, batch_tokens=2)
    longest = max(len(labels(prepared, r)) for r in range(prepared.train.n))
    for step in task.epoch(0):
        for part in task.parts(step, 1):
            assert part.n_targets <= longest
            assert task.batch(part, CPU, task.fixed(1)).targets.targets_N.shape[0] == 128


def test_examples_are_shown_as_text(prepared: PreparedData) -> None:
    task = task_of(prepared)
    pairs = set(sentences()) - set(prepared.valid_pairs)
    shown = task.show(some(task, 4))
    assert [example["pair"] for example in shown] == [3, 4, 5, 6]
    assert all((example["source"], example["target"]) in pairs for example in shown)


# Evaluation


def test_the_validation_loss_is_the_likelihood_of_a_word_however_it_is_cut(
    prepared: PreparedData,
) -> None:
    model = model_of(prepared).eval()
    rows = range(prepared.valid.n)
    with torch.no_grad():
        total = sum(
            by_hand(log_probs(model, prepared, r, "valid"), labels(prepared, r, "valid"))[1].item()
            for r in rows
        )
        count = sum(len(labels(prepared, r, "valid")) for r in rows)
        for tokens in (5, 40, 10_000):
            task = task_of(prepared, batch_tokens=tokens)
            found = task.evaluator.target_loss.mean(EvalPass(model, CPU), task.valid_dataset)
            assert found == pytest.approx(total / count, rel=1e-5)


class Parrot:
    """Stands for the writer: says what it is told to, and remembers how it was asked."""

    asked: list[tuple[DecodeSettings, int]]
    answers: dict[str, str]
    options: dict[str, Any]

    def __init__(self, models: Any, vocab: Any, settings: DecodeSettings, **options: Any) -> None:
        self.settings, Parrot.options = settings, options

    def write(self, lines: Iterable[str], on_progress: Any) -> Iterator[Any]:
        sources = list(lines)
        Parrot.asked.append((self.settings, len(sources)))
        for source in sources:
            yield Said(Parrot.answers[source])


class Said:
    def __init__(self, text: str) -> None:
        self.text = text


@pytest.fixture
def parrot(prepared: PreparedData, monkeypatch: pytest.MonkeyPatch) -> type[Parrot]:
    Parrot.asked, Parrot.answers = [], dict(prepared.valid_pairs)
    monkeypatch.setattr("headway.tasks.seq2seq.Writer", Parrot)
    return Parrot


def evaluated(task: Seq2SeqObjective, prepared: PreparedData, full: bool = False) -> Any:
    with torch.no_grad():
        return task.evaluate(EvalPass(model_of(prepared).eval(), CPU, full))


def test_the_right_translations_score_100(prepared: PreparedData, parrot: type[Parrot]) -> None:
    scores = evaluated(task_of(prepared), prepared)
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)
    assert scores["ppl"] == pytest.approx(np.exp(scores["loss"]))
    assert [(s["source"], s["target"]) for s in scores.samples] == prepared.valid_pairs[
        : TranslateTask.samples
    ]
    assert all(s["output"] == s["target"] for s in scores.samples)
    parrot.answers[prepared.valid_pairs[0][0]] = "Completely wrong !"
    assert evaluated(task_of(prepared), prepared)["bleu"] < 99.9


def test_case_counts_unless_the_tokenizer_lowers_it(
    prepared: PreparedData, parrot: type[Parrot]
) -> None:
    parrot.answers = {source: target.lower() for source, target in prepared.valid_pairs}
    cased = evaluated(task_of(prepared), prepared)
    lowered = evaluated(task_of(prepared, lowercase=True), prepared)
    assert cased["bleu"] < 90
    assert lowered["bleu"] == pytest.approx(100)
    assert lowered["chrf"] == pytest.approx(100) != cased["chrf"]


def test_a_look_on_the_way_is_quick_and_the_last_one_is_careful(
    prepared: PreparedData, parrot: type[Parrot]
) -> None:
    task = task_of(prepared, quick_size=7)
    for full in (False, True):
        evaluated(task, prepared, full)
    (quick, few), (careful, all_of_them) = parrot.asked
    assert (few, all_of_them) == (7, len(prepared.valid_pairs))
    assert (quick.beam, quick.max_len) == (1, 12)
    assert careful == task.settings.decode
    assert careful.beam == 4


def test_an_evaluation_is_cancelled_at_any_stop_request(
    prepared: PreparedData, parrot: type[Parrot]
) -> None:
    task = task_of(prepared, batch_tokens=60, quick_size=5)
    looks = 0

    def count() -> bool:
        nonlocal looks
        looks += 1
        return False

    task.evaluate(EvalPass(model_of(prepared).eval(), CPU, full=False, should_stop=count))
    assert looks > 7
    for at in (0, 1, looks // 2, looks - 1):
        left = iter([False] * at + [True])
        with pytest.raises(Stopped):
            task.evaluate(
                EvalPass(
                    model_of(prepared).eval(),
                    CPU,
                    full=False,
                    should_stop=lambda left=left: next(left),
                )
            )


def test_a_real_translator_gives_one_output_per_source_and_reports_progress(
    prepared: PreparedData,
) -> None:
    told: list[tuple[int, int]] = []
    with torch.no_grad():
        scores = task_of(prepared, quick_size=6).evaluate(
            EvalPass(model_of(prepared).eval(), CPU, False, on_progress=lambda *at: told.append(at))
        )
    n = prepared.valid.n
    assert ((n, n) in told, told[-1]) == (True, (6, 6))  # the loss, then what it writes
    assert len(scores.samples) == TranslateTask.samples
    assert set(scores) == {"loss", "ppl", "bleu", "chrf"}


def test_long_validation_pairs_are_translated_whole(
    prepared: PreparedData, parrot: type[Parrot]
) -> None:
    """As `predict` does with a run that was trained on pairs of that length."""
    evaluated(task_of(prepared), prepared)
    assert parrot.options["max_len"] is None  # none is too long


def test_the_settings_of_the_tokenizer_reach_the_scores(tmp_path: Path) -> None:
    prepared = made_of(tmp_path, kind="words", lowercase=True)
    model = replace(preset("transformer-test"), vocab_size=prepared.vocab.target.vocab_size)
    settings = RunSettings(
        task="translate",
        tokenizer=TokenizerSettings(lowercase=True),
        model=model,
        train=TrainSettings(steps=1, batch_tokens=100, micro_tokens=100, precision="fp32"),
    )
    assert Trainer(settings, prepared, Distributed()).objective.settings.tokenizer.lowercase
    plain = replace(settings, tokenizer=TokenizerSettings())
    assert not Trainer(plain, prepared, Distributed()).objective.settings.tokenizer.lowercase
