"""Several labels at once, and numbers, from files to columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data.media.store import ImageStore
from headway.data.source import resolve_answer, sources
from headway.data.store import ImpossibleData, PreparedData
from headway.errors import DataError
from headway.progress import SILENT
from headway.settings.run import RunSettings, load_run_settings
from headway.tasks.label_data import labelled_examples
from headway.tasks.task import find_task
from tests.facts import naming

SETS = [["art"], ["art", "food"], [], ["food"]]


def settings_for(path: Path, *words: str, files: str = "data.text", **more: Any) -> RunSettings:
    given = {"task": "classify", files: [str(path)], "data.valid_size": 4, **more}
    return load_run_settings(None, list(words), given)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def texts(n: int = 40) -> list[dict[str, Any]]:
    return [{"text": f"text of {'abcdefghij'[i % 10]} {i}", "label": SETS[i % 4]} for i in range(n)]


def prepared(settings: RunSettings, folder: Path) -> PreparedData:
    found: PreparedData = find_task(settings).prepare(settings, folder, SILENT)
    return found


def sets_of(found: PreparedData) -> set[tuple[str, ...]]:
    store = found.train["labels"]
    return {tuple(found.labels[i] for i in store[row].tolist()) for row in range(found.train.n)}


def test_lists_of_labels_select_the_multi_label_task(tmp_path: Path) -> None:
    settings = settings_for(written(tmp_path / "t.jsonl", texts()))
    assert resolve_answer(settings).classify.answer == "labels"
    found = prepared(settings, tmp_path)
    assert found.labels == ("art", "food")
    assert sets_of(found) == {("art",), ("art", "food"), (), ("food",)}
    assert "label" not in found.train
    one = [{**row, "label": "x"} for row in texts()]
    plain = settings_for(written(tmp_path / "one.jsonl", one))
    assert resolve_answer(plain).classify.answer == "label"


def test_cells_are_split_at_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("".join(f"{row['text']}\t{' ; '.join(row['label'])}\n" for row in texts()))
    settings = settings_for(path, "classify.answer=labels", "data.label_separator=;")
    assert sets_of(prepared(settings, tmp_path)) == {("art",), ("art", "food"), (), ("food",)}


def test_one_label_is_not_a_list(tmp_path: Path) -> None:
    settings = settings_for(written(tmp_path / "t.jsonl", texts()), "classify.answer=label")
    with pytest.raises(DataError, match=naming("t.jsonl", 2, "art", "food", 10)):
        list(sources(settings)[0])


def test_numbers_are_kept_as_they_are(tmp_path: Path) -> None:
    rows = [{"text": row["text"], "label": 0.5 * i} for i, row in enumerate(texts())]
    settings = settings_for(written(tmp_path / "n.jsonl", rows), "classify.answer=number")
    found = prepared(settings, tmp_path)
    both = np.concatenate([found.train["number"], found.valid["number"]])
    assert sorted(both.tolist()) == [row["label"] for row in rows]
    assert found.labels == ()
    facts = find_task(settings).facts(settings, found)
    assert (facts.answer, facts.mean) == ("number", pytest.approx(found.train["number"].mean()))
    examples, truth_N = labelled_examples(settings, settings.data)
    assert truth_N.tolist() == [row["label"] for row in rows]
    assert len(examples) == 40
    bad = written(tmp_path / "bad.jsonl", [*rows, {"text": "x", "label": "much"}])
    with pytest.raises(DataError, match=naming("bad.jsonl", 41, "'label' 'much'")):
        prepared(settings_for(bad, "classify.answer=number"), tmp_path / "bad")


@pytest.fixture
def images(tmp_path: Path) -> list[dict[str, Any]]:
    draw = np.random.default_rng(1)
    for i in range(40):
        np.save(tmp_path / f"{i}.npy", draw.integers(0, 255, (8, 8)).astype(np.uint8))
    return [{"path": f"{i}.npy", "label": SETS[i % 4]} for i in range(40)]


def test_images_have_several_labels_too(tmp_path: Path, images: list[dict[str, Any]]) -> None:
    path = written(tmp_path / "p.jsonl", images)
    settings = settings_for(path, files="data.media", **{"classify.modality": "image"})
    found = prepared(settings, tmp_path / "run")
    assert isinstance(found.train["image"], ImageStore)
    assert sets_of(found) == {("art",), ("art", "food"), (), ("food",)}
    assert {one["label"] for one in found.valid_examples} <= {"art", "art, food", "", "food"}


def test_images_may_have_numbers(tmp_path: Path, images: list[dict[str, Any]]) -> None:
    rows = [{**row, "label": 3 * i} for i, row in enumerate(images)]
    path = written(tmp_path / "n.jsonl", rows)
    regression = {"classify.modality": "image", "classify.answer": "number"}
    settings = settings_for(path, files="data.media", **regression)
    found = prepared(settings, tmp_path / "run")
    both = np.concatenate([found.train["number"], found.valid["number"]])
    assert sorted(both.tolist()) == [3.0 * i for i in range(40)]
    bad = written(tmp_path / "bad.jsonl", [*rows, {"path": "0.npy", "label": "much"}])
    with pytest.raises(DataError, match=naming("bad.jsonl", 41, "'label' 'much'")):
        prepared(settings_for(bad, files="data.media", **regression), tmp_path / "bad")


def findings(settings: RunSettings, folder: Path) -> dict[str, str]:
    try:
        report = prepared(settings, folder).report
    except ImpossibleData as error:
        report = error.report
    return {one.name: one.text for one in report.findings}


def labelled(labels: list[object]) -> list[dict[str, Any]]:
    return [{"text": f"text {i} of {i * i}", "label": label} for i, label in enumerate(labels)]


def test_labels_that_are_numbers_suggest_regression(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", labelled([str(1.5 * i) for i in range(40)]))
    found = findings(settings_for(path), tmp_path)
    assert "classify.answer=number" in found["no-split"]
    assert "classify.answer=number" in found["label-form"]
    few = written(tmp_path / "b.jsonl", labelled([str(i % 5) for i in range(80)]))
    assert "label-form" not in findings(settings_for(few), tmp_path / "b")


def test_cells_with_several_labels_suggest_sets(tmp_path: Path) -> None:
    cells = ["a; b; c", "a; b", "b; c", "a", "c; a", "b", "c"]
    path = written(tmp_path / "a.jsonl", labelled([cells[i % 7] for i in range(140)]))
    text = findings(settings_for(path), tmp_path)["label-form"]
    assert "classify.answer=labels" in text
    assert 'data.label_separator=";"' in text
    names = ["Rome, Italy", "Oslo, Norway", "Lima, Peru"]
    path = written(tmp_path / "b.jsonl", labelled([names[i % 3] for i in range(90)]))
    assert "label-form" not in findings(settings_for(path), tmp_path / "b")


@pytest.mark.parametrize("empty", ["", None, float("nan")])
def test_rows_without_a_label_may_be_skipped(empty: object, tmp_path: Path) -> None:
    labels = ["a", "b"] * 30
    path = written(tmp_path / "a.jsonl", labelled([*labels, empty, empty]))
    assert "data.on_bad_row=skip" in findings(settings_for(path), tmp_path / "strict")["no-label"]
    found = prepared(settings_for(path, "data.on_bad_row=skip"), tmp_path / "skip")
    assert found.train.n + found.valid.n == 60
    assert found.labels == ("a", "b") or list(found.labels) == ["a", "b"]


def test_labels_with_few_validation_examples_are_named(tmp_path: Path) -> None:
    labels = ["common"] * 300 + ["rare"] * 12
    path = written(tmp_path / "a.jsonl", labelled(labels))
    settings = settings_for(path, "data.valid_size=30")
    text = findings(settings, tmp_path)["few-valid"]
    assert "'rare' (1)" in text
    assert "'common'" not in text
