"""What was taken for what is shown, and kept under the names that the columns have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headway.data.binding_table import Tables
from headway.data.check_report import Report
from headway.data.example import Source
from headway.data.prediction_files import questions
from headway.settings.run import RunSettings, run_settings
from headway.tasks.specs import spec_of

Write = Callable[[str, list[str]], str]


def settings_of(task: str, **data: Any) -> RunSettings:
    return run_settings({"task": task, "data": data})


def tables_of(task: str, **data: Any) -> Tables:
    settings = settings_of(task, **data)
    return Tables.of(settings, spec_of(settings), {})


def test_columns_are_shown_with_an_example_and_the_classes(write: Write) -> None:
    lines = ["id\treview\tstars", "1\ta witty comedy\tpos", "2\tno\tneg"]
    found = tables_of("classify", text=[write("reviews.tsv", lines)], label_field="stars")
    report = Report(10_662, None, labels={"neg": (5_331, 0), "pos": (5_331, 0)})
    assert found.lines(report) == [
        "reviews.tsv   tab-separated, header, 10,662 rows",
        '  review → text    text    "a witty comedy"   3 words',
        "  stars  → label   label   2 classes: neg 5,331, pos 5,331",
        "  id     (not used)",
    ]
    assert found.columns == {"id": "", "review": "text", "stars": "label"}


def test_what_has_no_names_is_shown_by_number_and_nothing_is_kept_of_it(write: Write) -> None:
    path = write("a.tsv", ["good film\tpos", "bad\tneg"])
    found = tables_of("classify", text=[path])
    assert found.lines(Report(2))[:2] == [
        "a.tsv   tab-separated, no header, 2 rows",
        '  1 → text    text    "good film"   2 words',
    ]
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
    assert [line for line in found.lines(Report(2)) if "→ text" in line] == [
        '  opinion → text    text    "fine"   1 word',
        '  text  → text    text    "fine"   1 word',
    ]
    alike = tables_of("classify", text=[other, write("c.csv", ["text,label", "poor,1"])])
    assert alike.lines(Report(7))[0] == "b.csv and 1 more file   comma-separated, header, 7 rows"


def test_the_names_of_a_run_come_first_and_others_will_do_unless_someone_said_so(
    write: Write,
) -> None:
    asked = settings_of("classify", text=["x"])
    kept = settings_of("classify", text=["x"], text_field="opinion", label_field="stars")
    run = RunSettings(task="classify", data=kept.data, asked=asked.asked)
    both = write("a.csv", ["text,opinion,stars", "no,yes,1"])
    assert list(questions(both, "labelled", run)) == ["yes"]
    assert [one.text("text") for one in Source("labelled", run, (both,))] == ["yes"]
    usual = write("b.tsv", ["text\tlabel", "no\t1"])
    assert list(questions(usual, "labelled", run)) == ["no"]


def test_folders_and_lists_of_media_are_shown_too(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "in" / name / "a.png")
    data = {"media": [str(tmp_path / "in")]}
    settings = run_settings({"task": "classify", "data": data, "classify": {"what": "pictures"}})
    [line] = Tables.of(settings, spec_of(settings), {}).lines(Report(2))
    assert line.startswith("in   a folder a class, 2 pictures")
    assert "2 classes: cat 1, dog 1" in line
    rows = [json.dumps({"image": "in/cat/a.png", "Caption": "a cat", "id": 1, "box": [0, 0, 2, 2]})]
    (tmp_path / "m.jsonl").write_text("\n".join(rows))
    found = tables_of("caption", media=[str(tmp_path / "m.jsonl")])
    assert [" ".join(line.split()) for line in found.lines(Report(1))] == [
        "m.jsonl lines of JSON, 1 row",
        'image → image image "in/cat/a.png"',
        'Caption → text text "a cat" 2 words',
        "box (what of the file)",
        "id (not used)",
    ]
    kept = found.named(settings_of("caption", media=["x"]).data)
    assert (kept.path_field, kept.text_field) == ("image", "Caption")


@pytest.mark.parametrize(
    ("answer", "value", "kind"),
    [("auto", ["a", "b"], "labels"), ("labels", "a,b", "labels"), ("number", 1.5, "number"),
     ("auto", "a", "label")],
)  # fmt: skip
def test_labels_of_media_are_shown_as_what_they_are_learned(
    tmp_path: Path, answer: str, value: object, kind: str
) -> None:
    (tmp_path / "m.jsonl").write_text(json.dumps({"path": "a.png", "label": value}))
    data = {"media": [str(tmp_path / "m.jsonl")]}
    own = {"what": "pictures", "answer": answer}
    settings = run_settings({"task": "classify", "data": data, "classify": own})
    lines = Tables.of(settings, spec_of(settings), {}).lines(Report(1))
    assert f"label → {kind}" in lines[2]


def test_of_many_files_some_are_shown() -> None:
    lines = Tables((), tuple("abcdef")).lines(Report(6))
    assert lines == ["a", "b", "c", "and 3 more files or folders"]
