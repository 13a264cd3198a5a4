"""Filling gaps: the loss against sums written out by hand, learning, scores, answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.data.store import PreparedData
from headway.errors import ConfigError, DataError, Stopped
from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.nn.layout import Layout
from headway.progress import SILENT
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings
from headway.settings.start import StartSettings
from headway.settings.train import TrainSettings
from headway.specs.task_settings import FillSettings
from headway.specs.tasks import SPECS
from headway.tasks.dataset import EvalPass
from headway.tasks.fill_answers import MaskedLMPredictor
from headway.tasks.losses import plain as plain_loss
from headway.tasks.mask import MaskedLMObjective, MaskedLMTask, masked_outputs
from headway.tasks.masked_text import ENDS, room_of
from headway.tasks.objective import MicroBatch
from headway.tokens.tokenizer import Vocabularies
from headway.tokens.trainer import train_on_texts
from headway.training.distributed import Distributed
from headway.training.optim import build_optimizer
from headway.training.resolve import resolve_run
from headway.training.step import Step

CPU = torch.device("cpu")
FILL = MaskedLMTask(SPECS["fill"])
LINES = [
    "the red dog sees the old cat .",
    "a green house stands near the tall tree .",
    "my friend never finds his small boat .",
    "nobody likes cold rain in the morning .",
]


def settings_of(folder: Path, **more: Any) -> RunSettings:
    """Each line is a document; the last tenth of the lines is held out."""
    path = folder / "lines.txt"
    if not path.exists():
        lines = [f"{line} {number}" for number in range(40) for line in LINES]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    data = DataSettings(text=(str(path),), unit="line", valid_size=16)
    train = TrainSettings(batch_tokens=120, micro_tokens=60, label_smoothing=0.0)
    values: dict[str, Any] = {"tokenizer": TokenizerSettings(kind="words"), "train": train}
    return RunSettings(task="fill", data=data, **(values | more))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("fill")
    return FILL.prepare(settings_of(folder), folder / "run", SILENT)


def model_settings(prepared: PreparedData, **more: Any) -> EncoderSettings:
    shape: dict[str, Any] = {
        "vocab_size": prepared.tokenizer.vocab_size, "d_model": 32, "n_layers": 2, "n_heads": 2,
        "d_ff": 64, "max_len": 24, "dropout": 0.0, "attention_dropout": 0.0, "n_segments": 0,
        "heads": ("words",), "init": "small", "block_layout": "pre", "positions": "rotary",
    }  # fmt: skip
    return EncoderSettings(**(shape | more))


def task_of(prepared: PreparedData, tmp_path: Path, **more: Any) -> MaskedLMObjective:
    settings = settings_of(tmp_path, model=model_settings(prepared), **more)
    return MaskedLMObjective(settings, prepared)


def model_of(prepared: PreparedData, seed: int = 1) -> Encoder:
    model = build_model(model_settings(prepared), seed=seed)
    assert isinstance(model, Encoder)
    return model


def all_parts(task: MaskedLMObjective, epoch: int = 0, micro: int = 60) -> Iterator[MicroBatch]:
    for step in task.epoch(epoch):
        yield from task.parts(step, micro)


def test_the_loss_is_about_hidden_words_alone_a_text_at_a_time(
    prepared: PreparedData, tmp_path: Path
) -> None:
    task, model = task_of(prepared, tmp_path), model_of(prepared)
    part = next(all_parts(task))
    batch = task.batch(part, CPU, None)
    assert len(batch.rows_R) == part.n_targets == len(set(batch.rows_R.tolist()))
    by_hand, at = torch.zeros(()), 0
    [given] = batch.streams
    texts, starts = given.layout.split(given.values), given.layout.starts_B.tolist()
    for tokens, start in zip(texts, starts, strict=True):
        assert tokens[0] == prepared.tokenizer.bos
        assert tokens[-1] == prepared.tokenizer.eos
        logs_NV = model.scores(model(tokens, Layout.of([len(tokens)]))).log_softmax(-1)
        inside = [r - start for r in batch.rows_R.tolist() if 0 <= r - start < len(tokens)]
        assert len(inside) >= 1
        assert all(0 < row < len(tokens) - 1 for row in inside)
        for row in inside:
            by_hand = by_hand - logs_NV[row, batch.targets.targets[at]]
            at += 1
    found = plain_loss(task)(model, batch)
    torch.testing.assert_close(found.sum, by_hand, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.nll, by_hand.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fill", [FillSettings(), FillSettings(mask=0.3, whole_words=True)])
def test_the_fixed_form_costs_the_same(
    prepared: PreparedData, tmp_path: Path, fill: FillSettings
) -> None:
    task, model = task_of(prepared, tmp_path, fill=fill), model_of(prepared)
    fixed = task.fixed(60)
    shapes = set()
    for part in all_parts(task):
        plain, padded = task.batch(part, CPU, None), task.batch(part, CPU, fixed)
        shapes.add(
            (
                len(padded.streams[0].values),
                len(padded.rows_R),
                padded.streams[0].layout.n_sequences,
            )
        )
        assert padded.weights_R.sum() == part.n_targets
        torch.testing.assert_close(
            plain_loss(task)(model, padded).sum,
            plain_loss(task)(model, plain).sum,
            rtol=1e-5,
            atol=1e-5,
        )
    assert len(shapes) == 1


def test_an_epoch_has_every_document_once_and_other_gaps_than_the_next(
    prepared: PreparedData, tmp_path: Path
) -> None:
    task = task_of(prepared, tmp_path)
    seen = []
    for epoch in (0, 1):
        labels = [
            task.batch(part, CPU, None).targets.targets.tolist() for part in all_parts(task, epoch)
        ]
        again = [
            task.batch(part, CPU, None).targets.targets.tolist() for part in all_parts(task, epoch)
        ]
        assert labels == again
        documents = [d for part in all_parts(task, epoch) for d in part.rows.rows.tolist()]
        assert sorted(documents) == list(range(prepared.train.n))
        seen.append(sorted(token for part in labels for token in part))
    assert seen[0] != seen[1]


def test_how_a_step_is_cut_does_not_change_what_is_hidden(
    prepared: PreparedData, tmp_path: Path
) -> None:
    task = task_of(prepared, tmp_path)
    for step in task.epoch(3)[:3]:
        whole, cut = task.parts(step, 1000), task.parts(step, 40)
        assert len(whole) == 1 < len(cut)
        pieces = [t for part in cut for t in task.batch(part, CPU, None).targets.targets.tolist()]
        assert task.batch(whole[0], CPU, None).targets.targets.tolist() == pieces
        assert whole[0].n_targets == sum(part.n_targets for part in cut)


def test_long_documents_are_read_in_windows(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(" ".join(f"word{n % 50}" for n in range(2000)), encoding="utf-8")
    settings = settings_of(tmp_path)
    settings = replace(settings, data=DataSettings(text=(str(path),)))
    prepared = FILL.prepare(settings, tmp_path / "run", SILENT)
    model = model_settings(prepared, max_len=32)
    task = MaskedLMObjective(
        replace(settings, model=model, fill=FillSettings(context=20)), prepared
    )
    assert task.train_dataset.widest == 20
    for epoch in (0, 1):
        parts = list(all_parts(task, epoch))
        lengths = [
            n
            for part in parts
            for n in task.batch(part, CPU, None).streams[0].layout.known_lengths()
        ]
        assert max(lengths) <= 20
        assert sum(n - ENDS for n in lengths) == int(prepared.train["text"].lengths.sum())


def trained(task: MaskedLMObjective, model: Encoder, epochs: int) -> None:
    optimizer = build_optimizer(model, TrainSettings(optimizer="muon"), device="cpu")
    step = Step(model, plain_loss(task), optimizer, Distributed())
    for epoch in range(epochs):
        for examples in task.epoch(epoch):
            parts = task.parts(examples, 120)
            for part in parts:
                step.add(task.batch(part, CPU, None), sum(part.n_targets for part in parts))
            step.finish(1e-2 * (1 - epoch / epochs))


@pytest.fixture(scope="module")
def filler(prepared: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A model that knows the four sentences."""
    model = model_of(prepared)
    trained(task_of(prepared, tmp_path_factory.mktemp("task")), model, 22)
    return model.eval()


def test_it_learns_the_sentences_and_beats_frequency(
    prepared: PreparedData, tmp_path: Path, filler: Encoder
) -> None:
    task = task_of(prepared, tmp_path)
    with torch.no_grad():
        untrained = task.evaluate(EvalPass(model_of(prepared).eval(), CPU))
        scores = task.evaluate(EvalPass(filler, CPU))
    [trivial] = scores.baselines.values()
    assert scores["accuracy"] > 70 > trivial["accuracy"]
    assert scores["loss"] < 0.5 * trivial["loss"] < untrained["loss"]
    assert scores["ppl"] == pytest.approx(np.exp(scores["loss"]))
    assert all("[MASK]" in sample["source"] for sample in scores.samples)
    assert scores.samples[0].keys() == {"source", "target", "output"}


def test_validation_is_the_same_every_time_whatever_the_training_hides(
    prepared: PreparedData, tmp_path: Path, filler: Encoder
) -> None:
    tasks = [task_of(prepared, tmp_path, fill=fill) for fill in
             (FillSettings(), FillSettings(mask=0.5, whole_words=True))]  # fmt: skip
    with torch.no_grad():
        first, second = (task.evaluate(EvalPass(filler, CPU)) for task in tasks)
    assert first == second
    items = tasks[1].valid_dataset
    batch = items.batch(np.arange(len(items.lengths)), CPU)
    assert (batch.streams[0].values[batch.rows_R] == prepared.tokenizer.mask).all()


def test_the_scores_are_those_of_every_hidden_word(
    prepared: PreparedData, tmp_path: Path, filler: Encoder
) -> None:
    task = task_of(prepared, tmp_path)
    valid = task.valid_dataset
    nll, right, n = 0.0, 0, 0
    with torch.no_grad():
        for row in range(len(valid.lengths)):
            batch = valid.batch(np.array([row]), CPU)
            [given], words_R = batch.streams, batch.targets.targets
            x_RD = filler(given.values, given.layout)[batch.rows_R]
            logs_RV = filler.scores(x_RD).log_softmax(-1)
            nll -= float(logs_RV.gather(1, words_R[:, None]).sum())
            right += int((logs_RV.argmax(-1) == words_R).sum())
            n += len(words_R)
        outputs = masked_outputs(EvalPass(filler, CPU), "words", valid)
        values = task.head.predictions(outputs).values
    assert values["loss"] == pytest.approx(nll / n, rel=1e-4)
    assert values["accuracy"] == pytest.approx(100 * right / n)


def test_an_evaluation_can_be_cancelled(
    prepared: PreparedData, tmp_path: Path, filler: Encoder
) -> None:
    with pytest.raises(Stopped), torch.no_grad():
        task_of(prepared, tmp_path).evaluate(
            EvalPass(filler, CPU, full=False, should_stop=lambda: True)
        )


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_gaps_are_filled_with_ranked_words(
    prepared: PreparedData, filler: Encoder, mask: str
) -> None:
    made = MaskedLMPredictor([filler], prepared.tokenizer, 22, n_best=4)
    lines = [
        f"a green {mask} stands near the tall {mask} . 3",
        "",
        f"{mask} likes cold rain in the morning . 3",
    ]
    answers = list(made.answers(lines))
    assert [answer.to_dict()["text"] for answer in answers] == [
        "a green house stands near the tall tree . 3", "",
        "nobody likes cold rain in the morning . 3",
    ]  # fmt: skip
    first, second = answers[0].to_dict()["gaps"]
    for gap, word in ((first, "house"), (second, "tree")):
        chances = [one["probability"] for one in gap]
        assert gap[0]["word"] == word
        assert len(gap) == 4
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1.0
    assert answers[0].lines().splitlines()[0].split("\t")[:2] == ["1", "house"]
    assert answers[1].text == ""
    assert re.findall(r"\d+", made.summary()) == ["3", "3"]


def test_the_text_around_a_gap_is_read_as_without_it(
    prepared: PreparedData, filler: Encoder
) -> None:
    made, tokenizer = MaskedLMPredictor([filler], prepared.tokenizer, 22), prepared.tokenizer
    line = f"{LINES[0]} 3"
    whole = tokenizer.encode(line)
    for place, word in enumerate(line.split()):
        words = line.split()
        words[place] = "[MASK]"
        read = made.read(" ".join(words), "line 1")
        expected = [*whole[:place], tokenizer.mask, *whole[place + 1 :]]
        assert (read.tokens, read.gaps) == (expected, [place]), word


def test_answers_do_not_depend_on_the_batch_or_on_a_copy_of_the_model(
    prepared: PreparedData, filler: Encoder
) -> None:
    lines = [f"{line} 5".replace(word, "[MASK]") for line in LINES for word in line.split()[:3]]
    found = []
    for models, room in (([filler], 4096), ([filler], 1), ([filler, filler], 4096)):
        made = MaskedLMPredictor(models, prepared.tokenizer, 22, batch_tokens=room)
        found.append([answer.text for answer in made.answers(lines)])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == len(lines)


def test_a_line_without_a_gap_is_an_error_that_names_it(
    prepared: PreparedData, filler: Encoder
) -> None:
    made = MaskedLMPredictor([filler], prepared.tokenizer, 22)
    with pytest.raises(DataError, match=r"line 2\b.*'no gap'.*\[MASK\]"):
        list(made.answers(["a [MASK] house", "no gap"]))


def test_a_line_longer_than_the_model_is_read_around_its_gaps_or_is_an_error(
    prepared: PreparedData, filler: Encoder
) -> None:
    line = "cold rain " * 20 + "the red [MASK] sees the old cat . 3" + " cold rain" * 20
    made = MaskedLMPredictor([filler], prepared.tokenizer, 12)
    [answer] = made.answers([line])
    word = answer.to_dict()["gaps"][0][0]["word"]
    assert answer.to_dict()["text"] == line.replace("[MASK]", word).strip()
    [(tokens, gaps)] = made.read(line, "").windows(12)
    assert len(tokens) == 12
    assert tokens[gaps[0]] == prepared.tokenizer.mask
    strict = MaskedLMPredictor([filler], prepared.tokenizer, 12, on_long="error")
    with pytest.raises(DataError, match=r"line 1\b.*\b89\b.*\b12\b"):
        list(strict.answers([line]))


def test_a_context_that_does_not_fit_is_an_error(prepared: PreparedData, tmp_path: Path) -> None:
    model = model_settings(prepared)
    for context, found in ((99, r"fill\.context=99\b.*model\.max_len=24"), (2, r"\b2\b")):
        settings = settings_of(tmp_path, model=model, fill=FillSettings(context=context))
        with pytest.raises(ConfigError, match=found):
            room_of(settings.fill, model.max_len)


def test_a_vocabulary_without_a_mask_is_an_error(tmp_path: Path) -> None:
    tokenizer = train_on_texts(LINES, TokenizerSettings(kind="words"), 100)
    Vocabularies(tokenizer, tokenizer).save(tmp_path / "tokenizer.json")
    settings = settings_of(tmp_path, start=StartSettings(run=str(tmp_path)))
    with pytest.raises(ConfigError, match=rf"{re.escape(str(tmp_path))}.*\bmask\b"):
        FILL.prepare(settings, tmp_path / "run", SILENT)


def test_what_is_left_open_is_chosen(prepared: PreparedData, tmp_path: Path) -> None:
    found = resolve_run(settings_of(tmp_path, train=TrainSettings()), prepared, CPU)
    assert isinstance(found.model, EncoderSettings)
    assert found.model.heads == ("words",)
    assert found.model.max_len == int(prepared.train["text"].lengths.max()) + ENDS
    assert found.train.metric == "loss"
    assert found.decode.beam >= 20  # for --n-best
    bad = settings_of(tmp_path, train=TrainSettings(metric="bleu"))
    with pytest.raises(ConfigError, match=r"train\.metric='bleu'.*\bppl\b"):
        resolve_run(bad, prepared, CPU)


def test_examples_can_be_shown(prepared: PreparedData, tmp_path: Path) -> None:
    task = task_of(prepared, tmp_path)
    part = next(all_parts(task))
    shown = task.show(part)
    assert len(shown) == len(part.rows.rows)
    assert all(" . " in one["text"] for one in shown)


def test_blank_tokens_are_named(prepared: PreparedData, filler: Encoder) -> None:
    made, tokenizer = MaskedLMPredictor([filler], prepared.tokenizer, 22), prepared.tokenizer
    assert made._word(tokenizer.encode("dog")[0]) == "dog"
    blanks = [t for t in range(tokenizer.vocab_size) if not tokenizer.decode([t]).strip()]
    assert blanks
    assert all(made._word(token) for token in blanks)
