"""What was taken for what is shown, and kept under the names that the columns have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headway.data.binding_table import TrainingTables
from headway.data.check_report import Report
from headway.data.predict_input import questions
from headway.data.schema import text_schema
from headway.data.source import DataSource
from headway.settings.run import RunSettings, run_settings
from headway.settings.task_rows import spec_of
from tests.facts import missing

Write = Callable[[str, list[str]], str]


def settings_of(task: str, **data: Any) -> RunSettings:
    return run_settings({"task": task, "data": data})


def tables_of(task: str, **data: Any) -> TrainingTables:
    settings = settings_of(task, **data)
    return TrainingTables.of(settings, spec_of(settings), {})


def test_columns_are_shown_with_an_example_and_the_classes(write: Write) -> None:
    lines = ["id\treview\tstars", "1\ta witty comedy\tpos", "2\tno\tneg"]
    found = tables_of("classify", text=[write("reviews.tsv", lines)], label_field="stars")
    report = Report(10_662, None, labels={"neg": (5_331, 0), "pos": (5_331, 0)})
    table, text, label, unused = found.lines(report)
    assert not missing(table, "reviews.tsv", "10,662")
    assert not missing(text, "review", "text", '"a witty comedy"', 3)
    assert not missing(label, "stars", "label", 2)
    assert "neg 5,331, pos 5,331" in label
    assert unused.split()[0] == "id"
    assert missing(unused, "text", "label") == ["text", "label"]
    assert found.columns == {"id": "", "review": "text", "stars": "label"}


def test_columns_without_names_are_shown_by_number_and_not_kept(write: Write) -> None:
    path = write("a.tsv", ["good film\tpos", "bad\tneg"])
    found = tables_of("classify", text=[path])
    table, text, *_ = found.lines(Report(2))
    assert not missing(table, "a.tsv", 2)
    assert not missing(text, "text", '"good film"', 2)
    assert text.split()[0] == "1"
    data = settings_of("classify", text=[path]).data
    assert found.named(data) == data


def test_names_that_were_found_are_kept_where_all_files_agree(write: Write) -> None:
    one = write("a.csv", ["opinion,stars", "fine,5"])
    data = settings_of("classify", text=[one]).data
    kept = tables_of("classify", text=[one]).named(data)
    assert (kept.text_field, kept.label_field) == ("opinion", "stars")
    assert kept.text == data.text
    other = write("b.csv", ["text,label", "fine,5"])
    found = tables_of("classify", text=[one, other])
    assert found.named(data) == data
    texts = [line for line in found.lines(Report(2)) if '"fine"' in line]
    assert [line.split()[0] for line in texts] == ["opinion", "text"]
    assert not any(missing(line, "text", 1) for line in texts)
    alike = tables_of("classify", text=[other, write("c.csv", ["text,label", "poor,1"])])
    assert not missing(alike.lines(Report(7))[0], "b.csv", 1, 7)


def test_column_names_of_a_run_come_before_the_usual_ones(
    write: Write,
) -> None:
    asked = settings_of("classify", text=["x"])
    kept = settings_of("classify", text=["x"], text_field="opinion", label_field="stars")
    run = RunSettings(task="classify", data=kept.data, asked=asked.asked)
    both = write("a.csv", ["text,opinion,stars", "no,yes,1"])
    assert list(questions(both, run)) == ["yes"]
    source = DataSource(text_schema("labelled", run), run, (both,))
    assert [one.text("text") for one in source] == ["yes"]
    usual = write("b.tsv", ["text\tlabel", "no\t1"])
    assert list(questions(usual, run)) == ["no"]


def test_folders_and_lists_of_media_are_shown_too(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "in" / name / "a.png")
    data = {"media": [str(tmp_path / "in")]}
    settings = run_settings({"task": "classify", "data": data, "classify": {"modality": "image"}})
    [line] = TrainingTables.of(settings, spec_of(settings), {}).lines(Report(2))
    assert line.split()[0] == "in"
    assert not missing(line.splitlines()[0], 2)
    assert "cat 1, dog 1" in line
    rows = [json.dumps({"image": "in/cat/a.png", "Caption": "a cat", "id": 1, "box": [0, 0, 2, 2]})]
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    found = tables_of("caption", media=[str(tmp_path / "m.jsonl")])
    table, *columns = found.lines(Report(1))
    assert not missing(table, "m.jsonl", 1)
    assert [line.split()[0] for line in columns] == ["image", "Caption", "box", "id"]
    image, caption, box, unused = columns
    assert not missing(image, "image", '"in/cat/a.png"')
    assert not missing(caption, "text", '"a cat"', 2)
    assert box.split()[1:] != unused.split()[1:]
    assert (found.columns["image"], found.columns["Caption"]) == ("image", "text")
    assert found.columns["id"] == ""
    assert found.columns["box"] != ""
    kept = found.named(settings_of("caption", media=["x"]).data)
    assert (kept.path_field, kept.text_field) == ("image", "Caption")


@pytest.mark.parametrize(
    ("answer", "value", "kind"),
    [("auto", ["a", "b"], "labels"), ("labels", "a,b", "labels"), ("number", 1.5, "number"),
     ("auto", "a", "label")],
)  # fmt: skip
def test_labels_of_media_are_shown_as_they_are_learned(
    tmp_path: Path, answer: str, value: object, kind: str
) -> None:
    (tmp_path / "m.jsonl").write_text(json.dumps({"path": "a.png", "label": value}))
    data = {"media": [str(tmp_path / "m.jsonl")]}
    own = {"modality": "image", "answer": answer}
    settings = run_settings({"task": "classify", "data": data, "classify": own})
    tables = TrainingTables.of(settings, spec_of(settings), {})
    assert tables.columns["label"] == kind
    assert not missing(tables.lines(Report(1))[2], kind)


def test_only_some_of_many_files_are_shown() -> None:
    lines = TrainingTables((), tuple("abcdef")).lines(Report(6))
    assert lines[:3] == ["a", "b", "c"]
    [rest] = lines[3:]
    assert not missing(rest, 3)
