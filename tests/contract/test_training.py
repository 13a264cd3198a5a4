"""What a training leaves: the same bytes however often it was broken off, settings that can be read
again, scores that the table has."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway.metrics import classification
from headway.models.folder import model_weights
from headway.models.parts.output_heads import apply_temperature
from headway.settings.run import resolved_toml
from headway.tasks.dataset import EvalPass
from headway.tasks.losses import plain
from headway.tasks.ngram_fit import ngrams_of
from headway.tasks.scores import MODEL, NEURAL, NGRAMS, Scores, of_metric, standings
from headway.training.loop import ranking
from tests.stored import read_back

from .tiny import CPU, STEPS, Tiny, assert_same, train


class Break(Exception):
    """Of whoever listens."""


def logged(folder: Path) -> list[dict[str, Any]]:
    """The curves of a run, without what a clock said."""
    clocks = ("seconds", "tokens_per_s", "stall", "time")
    return [{k: v for k, v in row.items() if k not in clocks} for row in log_of(folder)
            if row["kind"] in ("train", "valid")]  # fmt: skip


def log_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def broken_off(tiny: Tiny, out: Path, at: int) -> None:
    """Training that ends at this step: by what it was told by whoever listens to it."""

    def hear(row: Any) -> None:
        if row["kind"] == "train" and row["step"] == at:
            raise Break

    with pytest.raises(Break):
        train(tiny.row, tiny.files, out, on=hear)


def test_broken_off_twice_it_ends_with_the_same_bytes(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "run"
    broken_off(tiny, out, 3)
    broken_off(tiny, out, 6)
    train(tiny.row, tiny.files, out)
    name = "model.safetensors"
    assert (out / name).read_bytes() == (tiny.folder / name).read_bytes()
    steps = [row["step"] for row in logged(out) if row["kind"] == "train"]
    assert steps[-1] == STEPS
    assert_same(logged(out), logged(tiny.folder), tolerance=0.0)


def test_what_is_done_stays_done(tiny: Tiny, tmp_path: Path) -> None:
    """The same call again trains nothing."""
    out = tmp_path / "run"
    shutil.copytree(tiny.folder, out)
    train(tiny.row, tiny.files, out)
    name = "model.safetensors"
    assert (out / name).read_bytes() == (tiny.folder / name).read_bytes()
    assert len(logged(out)) == len(logged(tiny.folder))


def test_weights_and_settings_are_read_as_they_were_written(tiny: Tiny, tmp_path: Path) -> None:
    run = tiny.run
    assert read_back(run.settings) == run.settings
    assert resolved_toml(run.settings) in (tiny.folder / "config.toml").read_text(encoding="utf-8")
    assert headway.load(tiny.folder, device="cpu").settings == run.settings
    assert run.task == tiny.row.name
    one, other = model_weights(run.model), model_weights(tiny.model)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def scores_of(tiny: Tiny, full: bool) -> Scores:
    with torch.no_grad():
        return tiny.task.evaluate(EvalPass(tiny.model, CPU, full=full))


def test_it_reports_the_scores_that_the_table_has(tiny: Tiny) -> None:
    wanted = set(tiny.row.scores)
    if 0 < len(tiny.run.labels) <= 5:
        wanted -= {"top5"}
    scores, metric = scores_of(tiny, full=True), tiny.task.metric
    assert set(scores) == wanted
    assert all(math.isfinite(value) for value in scores.values())
    assert metric.name in wanted
    assert tiny.run.settings.train.metric == metric.name
    assert tiny.run.scores
    assert set(tiny.run.scores) <= wanted
    worse = dict(scores)
    worse[metric.name] += 1.0 if metric.lower else -1.0
    assert ranking(scores, tiny.task) > ranking(worse, tiny.task)


def test_a_run_is_scored_on_its_own_validation_set(tiny: Tiny) -> None:
    """Without a test set; the whole set and the first of it agree where they are the same."""
    found = tiny.run.evaluate()
    assert_same(dict(found), dict(scores_of(tiny, full=True)))


def test_its_validation_set_scores_the_same_as_a_test_set(tiny: Tiny) -> None:
    rows = []
    for example in tiny.task.prepared.valid_examples:
        if "place" in example:
            rows.append(tiny.examples[int(example["place"].rpartition(":")[2]) - 1])
        else:
            first = next(iter(example.values()))
            rows.append(next(row for row in tiny.examples if first in row.values()))
    assert_same(dict(tiny.run.evaluate(rows)), dict(tiny.run.evaluate()))


def test_a_test_set_in_memory_and_in_a_file_score_the_same(tiny: Tiny, tmp_path: Path) -> None:
    from .columns import write

    rows = tiny.examples[:9]
    by_table = tiny.run.evaluate(rows)
    by_file = tiny.run.evaluate(write(tmp_path / "test.jsonl", rows))
    assert set(by_table) <= set(tiny.row.scores)
    assert_same(dict(by_file), dict(by_table))


def test_it_has_a_baseline_of_its_own_metric(tiny: Tiny) -> None:
    metric = tiny.task.metric
    for full in (True, False):
        scores = scores_of(tiny, full)
        assert "_baselines" not in vars(scores)  # they cost nothing until they are read
        found = of_metric(scores.baselines, metric)
        assert found, "no baseline"
        ranges = scores.ranges(metric.name)
        rows = standings(scores[metric.name], scores.baselines, ranges, metric, scores.members)
        members = [NEURAL, NGRAMS] if ngrams_of(tiny.model) is not None else []
        assert sorted(scores.members) == sorted(members)
        assert [row.name for row in rows if row.name not in members][-2:] == [
            next(iter(found)),
            MODEL,
        ]
        assert set(ranges) <= {row.name for row in rows}
        for row in rows:
            assert row.range is None or row.range[0] <= row.value <= row.range[1]
        assert all(math.isfinite(value) for value in found.values())


def test_a_temperature_divides_all_scores_of_labels_and_changes_no_label(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fitted on validation examples is a part of the weights, whoever reads them. Where
    n-grams have a share of the scores, that is fitted too, and labels may change with it; so is
    the threshold of several labels."""
    monkeypatch.setattr(classification, "best_temperature", lambda *_: 2.0)
    with torch.no_grad():
        found = tiny.task.evaluate(EvalPass(tiny.model, CPU, calibrate=True))
    before = scores_of(tiny, full=True)
    assert before.temperature is None
    if tiny.row.answers not in ("label", "labels", "tags"):
        if ngrams_of(tiny.model) is None:
            assert found.temperature is None
            assert_same(dict(found), dict(before))
        else:
            assert found.temperature is not None
            assert (found.temperature.value, found.temperature.has_probabilities) == (1.0, False)
        return
    assert found.temperature is not None
    assert found["loss"] != pytest.approx(before["loss"], rel=1e-3)
    assert (found.temperature.ngram_weight is None) == (ngrams_of(tiny.model) is None)
    if found.temperature.ngram_weight is None and tiny.row.answers != "labels":
        assert list(found.answers) == list(before.answers)
    model = copy.deepcopy(tiny.model)
    apply_temperature(model, found.temperature.value, found.temperature.ngram_weight)
    with torch.no_grad():
        after = tiny.task.evaluate(EvalPass(model, CPU))
    assert_same(dict(after), dict(found))


def test_a_finished_run_has_the_temperature_that_its_log_names(tiny: Tiny) -> None:
    """Its weights are those of a checkpoint but for the head of labels, and fit as they are."""
    [end] = [row for row in log_of(tiny.folder) if row["kind"] == "end"]
    has = tiny.row.answers in ("label", "labels", "tags") or ngrams_of(tiny.model) is not None
    assert ("temperature" in end) == has
    if not has:
        return
    assert (
        1 / classification.MAX_APPLIED_TEMPERATURE
        <= end["temperature"]["value"]
        <= classification.MAX_APPLIED_TEMPERATURE
    )
    assert end["temperature"]["examples"] >= len(tiny.task.valid_dataset.lengths) // 2
    for one in end["scores"].values():
        assert math.isfinite(one["loss"])
    members = {NEURAL, NGRAMS} if ngrams_of(tiny.model) is not None else set()
    assert set(end.get("members", {})) == members
    for one in end.get("members", {}).values():
        assert math.isfinite(one[tiny.task.metric.name])
    kept = end["scores"][end["kept"]]
    assert_same(dict(scores_of(tiny, full=True)), kept)


def test_frequencies_give_the_loss_that_training_must_fall_below(tiny: Tiny) -> None:
    """A fresh model is no better than the frequencies of the answers."""
    from headway.models.build import build_model

    frequencies = tiny.task.frequencies()
    if frequencies is None:
        assert tiny.row.answers in ("vector", "gaps", "labels", "number")
        return
    model = build_model(tiny.run.settings.model, seed=1).eval()
    parts = [part for step in tiny.task.epoch(0) for part in tiny.task.parts(step, 10_000)]
    loss = plain(tiny.task)
    with torch.no_grad():
        nll = sum(float(loss(model, tiny.task.batch(part, CPU, None)).nll) for part in parts)
    assert nll / sum(part.n_targets for part in parts) > 0.8 * frequencies.train_loss
    assert 0.0 < frequencies.train_loss < 10.0
