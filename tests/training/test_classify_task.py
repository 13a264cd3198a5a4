"""Classification: its loss by hand, its windows, its answers and its scores."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headway.data.store import ImpossibleData, PreparedData
from headway.errors import ConfigError, DataError, Stopped
from headway.models.build import build_model
from headway.models.parts.output_heads import apply_temperature
from headway.nn.layout import Layout
from headway.progress import SILENT
from headway.settings.folder import load_run
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.tasks.dataset import EvalPass
from headway.tasks.format import PrintOptions
from headway.tasks.label import ClassifyObjective, ClassifyPredictor, ItemLogits
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.losses import plain as plain_loss
from headway.tasks.losses import rdrop
from headway.tasks.objective import EpochItems, MicroBatch
from headway.tasks.task import InferenceRequest, make_task
from headway.training.run import Training
from headway.web.pack import unpack
from tests.training.labelled import (
    CPU,
    entries,
    resolved,
    same_after_stops,
    sentiments,
    settings_of,
    write_tsv,
)

CLASSIFY = make_task(spec_of("classify"))

Made = tuple[RunSettings, PreparedData]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("classify")
    text = write_tsv(folder / "texts.tsv", sentiments())
    return resolved(CLASSIFY, settings_of("classify", text, model__dropout=0.0), folder)


def task_of(made: Made, **train: Any) -> ClassifyObjective:
    settings, prepared = made
    return ClassifyObjective(replace(settings, train=replace(settings.train, **train)), prepared)


def part_of(rows: Any) -> MicroBatch:
    return MicroBatch(EpochItems(0, rows), len(rows))


def labeller(model: nn.Module, prepared: PreparedData, settings: Any) -> ClassifyPredictor:
    opened = LoadedRun.of(Path(), settings, model, prepared.vocab)
    return ClassifyPredictor(InferenceRequest(opened, settings))


def model_of(settings: RunSettings) -> nn.Module:
    assert settings.model is not None
    return build_model(settings.model, seed=3).eval()


def logs_of(model: Any, tokens: list[int]) -> Tensor:
    """One text, nothing else."""
    return scores_of(model, torch.tensor(tokens), Layout.of([len(tokens)]))[0].log_softmax(-1)


def scores_of(model: Any, tokens_N: Tensor, layout: Layout) -> Tensor:
    """Scores of the layers and the n-grams together."""
    neural_BC = model.classes(model(tokens_N, layout), layout)
    return torch.lerp(neural_BC, model.ngrams(tokens_N, layout), float(model.ngrams.share))


def tokens_of(prepared: PreparedData, row: int, split: str = "train") -> list[int]:
    tokenizer = prepared.tokenizer
    return [tokenizer.bos, *getattr(prepared, split)["text"][row].tolist(), tokenizer.eos]


# The loss


@pytest.mark.parametrize("fixed", [False, True], ids=["flat", "with dummies"])
def test_the_loss_is_the_sum_over_the_texts(made: Made, fixed: bool) -> None:
    settings, prepared = made
    task, model = task_of(made, label_smoothing=0.2), model_of(settings)
    rows = np.arange(4, 15)
    batch = task.batch(part_of(rows), CPU, task.fixed(200) if fixed else None)
    found = plain_loss(task)(model, batch)
    labels = prepared.train["label"]
    assert labels is not None
    loss, nll = torch.zeros(()), torch.zeros(())
    for row in rows:
        logs_C = logs_of(model, tokens_of(prepared, int(row)))
        aim_C = torch.full_like(logs_C, 0.1)
        aim_C[labels[row]] = 0.8
        loss, nll = loss - (aim_C * logs_C).sum(), nll - logs_C[labels[row]]
    torch.testing.assert_close(found.sum, loss, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found.nll, nll, rtol=1e-5, atol=0.0)
    assert (len(batch.streams[0].values) % 128 == 0) == fixed


def test_balanced_classes_count_the_same(tmp_path: Path) -> None:
    rows = sentiments(120)
    rows = [row for i, row in enumerate(rows) if row[1] == "neg" or i < 30]
    settings = settings_of("classify", write_tsv(tmp_path / "t.tsv", rows), classify__balance=True)
    task = task_of(resolved(CLASSIFY, settings, tmp_path))
    weights = task.weights_N
    assert weights is not None
    sums = np.bincount(task.truth_N, weights)
    assert sums == pytest.approx(np.full(3, sums.mean()))
    assert weights.mean() == pytest.approx(1.0)
    assert task.prior_loss() is None
    plain = replace(settings, classify=replace(settings.classify, balance=False))
    assert task_of(resolved(CLASSIFY, plain, tmp_path)).prior_loss() is not None


def test_rdrop_adds_the_price_of_two_answers(made: Made) -> None:
    settings, prepared = made
    assert settings.model is not None
    shape = replace(settings.model, dropout=0.3)
    noisy = (replace(settings, model=shape), prepared)
    task = task_of(noisy, label_smoothing=0.0)
    model = build_model(shape, seed=3).train()
    batch = task.batch(part_of(np.arange(6)), CPU, None)
    torch.manual_seed(1)
    found = rdrop(task, 4.0)(model, batch)
    [stream] = batch.streams
    torch.manual_seed(1)
    first, second = (
        model.classes(model(stream.values, stream.layout), stream.layout).log_softmax(-1)  # type: ignore[operator]
        for _ in range(2)
    )
    nlls = [-x.gather(1, batch.targets[:, None]).sum() for x in (first, second)]
    apart = ((first.exp() - second.exp()) * (first - second)).sum()
    torch.testing.assert_close(found.sum, sum(nlls) / 2 + apart)
    assert apart > 0.001


def test_steps_keep_to_their_tokens_and_hold_every_text(made: Made) -> None:
    task = task_of(made, batch_tokens=100)
    steps = task.epoch(0)
    assert sorted(np.concatenate([s.rows for s in steps]).tolist()) == list(range(made[1].train.n))
    assert steps[0].rows.tolist() != task.epoch(1)[0].rows.tolist()
    for step in steps:
        parts = task.parts(step, 40)
        assert sum(part.n_targets for part in parts) == len(step.rows)
        lengths = task.train_dataset.lengths
        assert all(lengths[part.rows.rows].sum() <= 40 for part in parts)
    shown = task.show(task.parts(steps[0], 40)[0])[0]
    assert (shown["text"], shown["label"]) in sentiments()


# Pairs and windows


def test_pairs_are_read_with_segments(tmp_path: Path) -> None:
    rows = [(f"{text} a", text, label) for text, label in sentiments()]
    settings = settings_of(
        "classify", write_tsv(tmp_path / "t.tsv", rows),
        data__text_field="1", data__other_field="2", data__label_field="3", model__n_segments=2,
    )  # fmt: skip
    settings, prepared = resolved(CLASSIFY, settings, tmp_path)
    task, model = ClassifyObjective(settings, prepared), model_of(settings)
    batch = task.batch(part_of(np.array([3, 1])), CPU, None)
    [stream] = batch.streams
    assert stream.segments_N is not None
    assert stream.segments_N.unique().tolist() == [0, 1]
    plain = plain_loss(task)(model, replace(batch, streams=(replace(stream, segments_N=None),)))
    assert plain.nll.item() != plain_loss(task)(model, batch).nll.item()
    classifier = labeller(model, prepared, settings)
    with pytest.raises(DataError, match=r"line 2\b.*'only one'"):
        list(classifier.answers(["a\tb", "only one"]))
    assert len(list(classifier.answers(["a\tb", "", "c\td\n"]))) == 3


def test_long_texts_are_answered_with_the_mean_of_their_windows(made: Made) -> None:
    settings, prepared = made
    assert settings.model is not None
    model = model_of(settings)
    narrow = replace(settings, model=replace(settings.model, max_len=8))
    classifier = labeller(model, prepared, narrow)
    text = "the great film and the long music of a scene"
    ids = prepared.tokenizer.encode(text)
    assert len(ids) > 8
    bos, eos = prepared.tokenizer.bos, prepared.tokenizer.eos
    starts = [*range(0, len(ids) - 6, 3), len(ids) - 6]
    with torch.no_grad():
        p = [logs_of(model, [bos, *ids[s : s + 6], eos]).exp() for s in starts]
    [answer] = classifier.answers([text])
    found = answer.probs
    assert found == pytest.approx(torch.stack(p).mean(0).numpy(), rel=1e-4)
    assert re.findall(r"\d+", classifier.summary()) == ["1", "1"]  # of one text, one in windows
    assert "windows" in classifier.summary()


def test_long_texts_without_windows_are_an_error(made: Made, tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "texts.tsv", [*sentiments(), ("film " * 60, "pos")])
    wanted = settings_of("classify", text, data__on_long="error", model__max_len=16)
    with pytest.raises(DataError, match=r"\b16\b.*data\.on_long=split.*model\.max_len"):
        resolved(CLASSIFY, wanted, tmp_path)
    settings, prepared = made
    assert settings.model is not None
    strict = replace(
        settings,
        data=replace(settings.data, on_long="error"),
        model=replace(settings.model, max_len=16),
    )
    classifier = labeller(model_of(settings), prepared, strict)
    with pytest.raises(DataError, match=r"\b2\b.*\b16\b.*data\.on_long=split"):
        list(classifier.answers(["fine", "film " * 60]))


def test_windows_of_long_texts_are_trained_with_the_label_of_the_text(tmp_path: Path) -> None:
    long = [("film " * n, "pos") for n in range(30, 50)]
    text = write_tsv(tmp_path / "texts.tsv", [*sentiments(), *long])
    settings = settings_of("classify", text, model__max_len=16)
    settings, prepared = resolved(CLASSIFY, settings, tmp_path)
    task = ClassifyObjective(settings, prepared)
    lengths = task.train_dataset.lengths
    assert len(lengths) > prepared.train.n
    assert lengths.max() == 16
    labels = prepared.train["label"]
    assert labels is not None
    batch = task.batch(part_of(np.arange(len(lengths))), CPU, None)
    assert batch.targets.tolist() == labels[task.train_dataset.example_index].tolist()


def test_a_temperature_is_for_each_window_as_the_weights_have_it(tmp_path: Path) -> None:
    long = [("film " * n, "pos") for n in range(30, 50)]
    text = write_tsv(tmp_path / "texts.tsv", [*sentiments(), *long])
    settings, prepared = resolved(
        CLASSIFY, settings_of("classify", text, model__max_len=16), tmp_path
    )
    task, model = ClassifyObjective(settings, prepared), model_of(settings)
    apply_temperature(model, 0.2)
    result = ItemLogits.compute(EvalPass(model, CPU), task.label_type, settings, task.valid_dataset)
    owner = task.valid_dataset.example_index
    assert len(owner) > result.n == prepared.valid.n
    apply_temperature(model, 3.0)
    after = ItemLogits.compute(EvalPass(model, CPU), task.label_type, settings, task.valid_dataset)
    np.testing.assert_allclose(result.per_example(3.0), after.per_example(), rtol=1e-4)
    assert np.abs(result.per_example() - after.per_example()).max() > 0.01
    np.testing.assert_array_equal(result.first(5).per_example(3.0), result.per_example(3.0)[:5])
    found = result.first(5).temperature(task.valid_truth_N)
    assert found is not None
    assert found.examples == 5


# Evaluation


def test_scores_are_those_of_each_text_alone(made: Made) -> None:
    settings, prepared = made
    task, model = task_of(made), model_of(settings)
    labels = prepared.valid["label"]
    assert labels is not None
    with torch.no_grad():
        logs = torch.stack(
            [logs_of(model, tokens_of(prepared, i, "valid")) for i in range(len(labels))]
        )
        scores = task.evaluate(EvalPass(model, CPU))
    right = logs.argmax(1).numpy() == labels
    assert scores["accuracy"] == pytest.approx(100 * right.mean())
    nll = -logs[torch.arange(len(labels)), torch.from_numpy(labels)].mean()
    assert scores["loss"] == pytest.approx(float(nll), rel=1e-5)
    assert np.sum(scores.figures["confusion"]["counts"]) == len(labels)
    assert scores.baselines["bag of words"]["accuracy"] > 90
    assert scores.baselines["majority class"]["accuracy"] < 60
    assert scores.samples[0]["target"] in prepared.labels
    with pytest.raises(Stopped):
        task.evaluate(EvalPass(model, CPU, full=False, should_stop=lambda: True))


def test_a_look_on_the_way_reads_the_first_texts_only(made: Made) -> None:
    task, model = task_of(made), model_of(made[0])
    task.quick_size = 5
    quick, full = (task.evaluate(EvalPass(model, CPU, full=f)) for f in (False, True))
    assert np.sum(quick.figures["confusion"]["counts"]) == 5
    assert quick.samples == full.samples[:5]
    assert "baselines" not in vars(quick)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_few_steps_learn_the_labels_of_the_texts(tmp_path: Path, family: str) -> None:
    """From files to a folder that answers; both families."""
    text = write_tsv(tmp_path / "texts.tsv", sentiments())
    more = {"model__family": "decoder", "model__dropout": 0.0} if family == "decoder" else {}
    steps = 120 if family == "decoder" else 40
    settings = settings_of(
        "classify", text, train__steps=steps, train__eval_every=20, train__lr=8e-3,
        train__optimizer="muon", train__label_smoothing=0.0, train__schedule="linear", **more,
    )  # fmt: skip
    out = tmp_path / "run"
    assert Training(settings=settings, out=out, device="cpu").train() == []
    assert max(e["accuracy"] for e in entries(out) if e["kind"] == "valid") == 100
    run = load_run(out)
    assert run.labels == ("neg", "pos", "so")
    report = unpack((out / "report.html").read_text())["looks"][0]["sections"]
    assert report["answers"]["figures"]["confusion"]["labels"] == ["neg", "pos", "so"]
    assert report["data"]["tables"][0]["columns"]
    lines = ["an awful film", "", "great music", "x" * 300 + " ok"]
    predictor = CLASSIFY.predictor(InferenceRequest(open_run(out, device="cpu"), run))
    answers = list(predictor.answers(lines))
    assert answers[0].to_dict()["label"] == "neg"
    assert answers[2].lines(PrintOptions(scores=True)).startswith("pos\t0.")
    assert len(answers) == 4
    assert sum(answers[0].to_dict()["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    one_by_one = [next(iter(predictor.answers([line]))).text for line in lines]
    assert one_by_one == [a.text for a in answers]
    _check_evaluation(out, run, tmp_path)


def _check_evaluation(out: Path, run: RunSettings, tmp_path: Path) -> None:
    test = write_tsv(tmp_path / "test.tsv", [*sentiments(30), ("", "so")])
    files = replace(run.data, text=(test,))
    found = CLASSIFY.evaluation(InferenceRequest(open_run(out, device="cpu"), run), files)
    names = [name for name, _, _ in found.rows]
    assert names[:3] == ["texts", "accuracy", "F1"]
    assert [value for _, value, _ in found.rows].count("1") == 1  # the text without a word
    assert found.facts["n"] == 31
    assert found.facts["accuracy"] > 90
    low, high = found.facts["intervals"]["accuracy"]
    assert low <= found.facts["accuracy"] <= high
    assert found.facts["baselines"]["bag of words"]["accuracy"] > 90
    json.dumps(found.facts)
    bad = write_tsv(tmp_path / "bad.tsv", [("a film", "neg"), ("another", "meh")])
    with pytest.raises(DataError, match=r"bad\.tsv:2\b.*'meh'.*'neg', 'pos', 'so'"):
        CLASSIFY.evaluation(
            InferenceRequest(open_run(out, device="cpu"), run), replace(run.data, text=(bad,))
        )
    shutil.rmtree(out / "data")
    found = CLASSIFY.evaluation(InferenceRequest(open_run(out, device="cpu"), run), files)
    rows = {name: (value, remark) for name, value, remark in found.rows}
    value, remark = rows["bag of words"]
    assert value == "–"
    assert remark
    assert "majority class" in found.facts["baselines"]


def test_a_run_that_is_stopped_and_taken_up_again_ends_the_same(tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "texts.tsv", sentiments())
    settings = settings_of(
        "classify", text, train__steps=14, train__eval_every=5, model__dropout=0.2, train__lr=1e-3
    )
    settings, prepared = resolved(CLASSIFY, settings, tmp_path)
    assert same_after_stops(settings, prepared, tmp_path)


def test_documents_with_fields_are_read_with_their_marks(tmp_path: Path) -> None:
    """`detect`: the fields, each between its marks, are one text."""
    path = tmp_path / "docs.jsonl"
    rows = [
        {"title": f"{text[:4]} t", "body": text, "label": label} for text, label in sentiments()
    ]
    del rows[0]["title"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = settings_of("classify", str(path), data__fields=["title", "body"])
    settings, prepared = resolved(CLASSIFY, settings, tmp_path)
    task, model = ClassifyObjective(settings, prepared), model_of(settings)
    tokenizer = prepared.tokenizer
    names = [unit.text for unit in task.train_dataset.describe_positions(0)[0]]
    assert names.count("<body>") == names.count("</body>") == 1
    assert ("<title>" in names) == bool(len(prepared.train.tokens("title")[0]))
    found = plain_loss(task)(model, task.batch(part_of(np.arange(3)), CPU, None))
    assert found.nll.isfinite()
    classifier = labeller(model, prepared, settings)
    row = 5
    line = json.dumps(
        {name: tokenizer.decode(s[row].tolist()) for name, s in prepared.train.parts.items()}
    )
    [ours] = classifier.answers([line])
    [stream] = task.batch(part_of(np.array([row])), CPU, None).streams
    with torch.no_grad():
        theirs = scores_of(model, stream.values, stream.layout)
    assert ours.probs == pytest.approx(theirs.softmax(-1)[0].numpy(), rel=1e-4)
    assert len(list(classifier.answers([line, "", line]))) == 3
    with pytest.raises(DataError, match=r"line 1\b.*JSON"):
        list(classifier.answers(["no json"]))


# What cannot be


def test_a_single_class_is_an_error(tmp_path: Path) -> None:
    rows = [(text, "same") for text, _ in sentiments(40)]
    settings = settings_of("classify", write_tsv(tmp_path / "t.tsv", rows))
    with pytest.raises(ImpossibleData) as error:
        CLASSIFY.prepare(settings, tmp_path, SILENT)
    assert any("'same'" in f.text for f in error.value.report.findings if f.level == "error")


def test_empty_texts_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [*sentiments(), ("", "pos"), ("  ", "neg")]
    settings = settings_of("classify", write_tsv(tmp_path / "t.tsv", rows))
    prepared = CLASSIFY.prepare(settings, tmp_path, SILENT)
    assert prepared.dropped["empty"] == 2
    assert prepared.train.n + prepared.valid.n == 120


def test_a_metric_of_another_task_is_an_error(tmp_path: Path) -> None:
    text = write_tsv(tmp_path / "t.tsv", sentiments())
    with pytest.raises(ConfigError, match=r"train\.metric='bleu'.*\baccuracy, f1\b"):
        resolved(CLASSIFY, settings_of("classify", text, train__metric="bleu"), tmp_path)


def test_models_that_answer_together_need_the_same_classes(made: Made, tmp_path: Path) -> None:
    from headway.settings.run import resolved_toml

    settings, _ = made
    for name, labels in (("one", ("neg", "pos", "so")), ("two", ("pos", "neg", "so"))):
        (tmp_path / name).mkdir()
        other = replace(settings, labels=labels)
        (tmp_path / name / "config.toml").write_text(resolved_toml(other))
    with pytest.raises(ConfigError, match=r"(?=.*/one\b)(?=.*/two\b)(?=.*\blabels\b)"):
        open_run(tmp_path / "one", tmp_path / "two", device="cpu")
