"""Questions are read by the columns of training, whatever stands beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data.predict_input import Question, questions
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.specs.tasks import Reads
from tests.facts import missing, naming

Write = Callable[[str, list[str]], str]

TASKS: dict[Reads, str] = {
    "labelled": "classify", "tagged": "tag", "documents": "complete", "texts": "embed",
    "pairs": "translate",
}  # fmt: skip


def read(
    path: str, reads: Reads, labels: tuple[str, ...] = (), **data: Any
) -> tuple[list[Question], str]:
    settings = RunSettings(task=TASKS[reads], labels=labels, data=DataSettings(**data))
    notes: list[str] = []
    found = list(questions(path, settings, notes.append))
    assert len(notes) < 2
    return found, "".join(notes)


TWO = {"text_field": "premise", "other_field": "guess"}
PAIRS = {"pairs": ("train.tsv",)}
CASES: list[tuple[Reads, str, list[str], dict[str, Any], list[Question], str | None]] = [
    # A text a line, whatever it holds
    ("labelled", "a.txt", ["good, film", "", "bad"], {}, ["good, film", "", "bad"], None),
    ("labelled", "a.txt", ["one\ttab", "no tab"], {}, ["one\ttab", "no tab"], None),
    ("labelled", "a.tsv", ["good", "bad"], {"text_field": "2"}, ["good", "bad"], None),
    ("documents", "a.txt", ["text\tlabel", "a\tb"], {}, ["text\tlabel", "a\tb"], None),
    ("pairs", "a.txt", ["a\tb", "c\td"], {}, ["a\tb", "c\td"], None),
    ("tagged", "a.txt", ["He saw Rome .", "She left ."], {}, ["He saw Rome .", "She left ."], None),
    # Labelled texts
    ("labelled", "a.tsv", ["good\tpos", "", "bad\tneg"], {}, ["good", "", "bad"],
     "1 2"),
    ("labelled", "a.txt", ["good\tpos", "bad\tneg"], {}, ["good", "bad"], "1"),
    ("labelled", "a.tsv", ["text\tlabel", "good\tpos"], {}, ["good"],
     "'text' 'label'"),
    ("labelled", "a.tsv", ["text", "good"], {}, ["good"], "'text'"),
    ("labelled", "a.csv", ["id,label,text", '1,pos,"good, ""really"""', "", "2,neg,bad"], {},
     ['good, "really"', "", "bad"], "'text' 'id' 'label'"),
    ("labelled", "a.tsv", ["sentence\tlabel", "good\tpos"], {}, ["good"],
     "'sentence' 'label'"),
    ("labelled", "a.csv", ["label,review", "pos,good"], {}, ["good"],
     "'review' 'label'"),
    ("labelled", "a.csv", ["good,pos", "bad,neg"], {"text_field": "1"}, ["good", "bad"],
     "1 2"),
    ("labelled", "a", ["text,label", "good,pos"], {}, ["good"], "'text'"),
    ("labelled", "a.tsv", ["pos\tgood", "neg\tbad"], {"text_field": "2", "label_field": "1"},
     ["good", "bad"], "2 1"),
    ("labelled", "a.jsonl", ['{"label": 1, "text": "a\\tb"}', "", '{"text": "c"}'], {},
     ["a\tb", "", "c"], "'text' 'label'"),
    ("labelled", "a.tsv", ["x\ty", "p\tq"], TWO, ["x\ty", "p\tq"], None),
    ("labelled", "a.csv", ["guess,premise,label", "y,x,1"], TWO, [("x", "y")],
     "'premise' 'guess' 'label'"),
    ("labelled", "a.tsv", ["1\tx\ty", "", "0\tp\tq"], {"text_field": "2", "other_field": "3"},
     [("x", "y"), ("", ""), ("p", "q")], "2 3 1"),
    ("labelled", "a.jsonl", ['{"title": "T", "label": 1, "body": "B"}', "", '{"body": "C"}'],
     {"fields": ("title", "body")}, [("T", "B"), ("", ""), ("", "C")],
     "'title' 'body' 'label'"),
    # Texts and documents
    ("documents", "a.jsonl", ['{"text": "a", "meta": {}}'], {}, ["a"], "'text' 'meta'"),
    ("documents", "a.csv", ["id,text", "1,a"], {}, ["a"], "'text' 'id'"),
    ("documents", "a.tsv", ["a\tb"], {}, ["a\tb"], ""),
    ("texts", "a.jsonl", ['{"text": "a"}'], {}, ["a"], "'text'"),
    # First sides of pairs
    ("pairs", "a.tsv", ["x\ty\tz", "", "p\tq\tr"], {}, ["x", "", "p"],
     "1 2 3"),
    ("pairs", "a.txt", ["x\ty", "p\tq"], PAIRS, ["x", "p"], "1"),
    ("pairs", "a.txt", ["x", "p"], PAIRS, ["x", "p"], None),
    ("pairs", "a.tsv", ["en\tde", "x\ty"], {**PAIRS, "source_field": "de", "target_field": "en"},
     ["y"], "'de' 'en'"),
    ("pairs", "a.tsv", ["source", "x"], {}, ["x"], "'source'"),
    ("pairs", "a.jsonl", ['{"translation": {"de": "x"}}'], {"source_field": "translation.de"},
     ["x"], "'translation.de'"),
    ("pairs", "a.csv", ["target,source", "y,x"], {}, ["x"], "'source'"),
    ("pairs", "a.csv", ["y,x", "v,u"], {"source_field": "2"}, ["x", "u"], "2"),
    ("texts", "a.tsv", ["x\ty"], PAIRS, ["x"], "1"),
]  # fmt: skip


@pytest.mark.parametrize(("reads", "name", "lines", "data", "found", "note"), CASES)
def test_columns_are_those_of_training(
    write: Write,
    reads: Reads,
    name: str,
    lines: list[str],
    data: dict[str, Any],
    found: list[Question],
    note: str | None,
) -> None:
    path = write(name, lines)
    got, shown = read(path, reads, **data)
    assert got == found
    if note is None:
        assert not shown
    else:
        assert not missing(shown, path, note)


TAGS = ("O", "B-per", "I-per", "B-loc", ".")


@pytest.mark.parametrize(
    ("name", "lines", "found"),
    [
        ("a.txt", ["Ada NNP S-per", "left VBD O", "", "Rome NNP U-loc"],
         ["Ada\tNNP\tS-per\t", "left\tVBD\tO\t", "", "Rome\tNNP\tU-loc\t"]),
        ("a.txt", ["-DOCSTART- O", "", "Ada B-per"], ["-DOCSTART- O", "", "Ada\tB-per\t"]),
        ("a.conll", ["Ada", "left", "", "Rome"], ["Ada\t", "left\t", "", "Rome\t"]),
        ("a.txt", ["Ada\tB-per", "left\tO"], ["Ada\tB-per", "left\tO"]),
        ("a.txt", ["She left .", "He stayed ."], ["She left .", "He stayed ."]),
        ("a.txt", ["She left", "Rome per"], ["She left", "Rome per"]),
        ("a.jsonl", ['{"words": ["Ada"], "tags": ["O"]}'], ['{"words": ["Ada"], "tags": ["O"]}']),
    ],
)  # fmt: skip
def test_words_in_columns_are_distinguished_from_sentences(
    write: Write, name: str, lines: list[str], found: list[str]
) -> None:
    path = write(name, lines)
    got, shown = read(path, "tagged", TAGS)
    assert got == found
    in_columns = found != lines or "\t" in lines[0]
    assert bool(shown) == in_columns
    assert not in_columns or not missing(shown, path)


@pytest.mark.parametrize(
    ("reads", "name", "lines", "facts"),
    [
        (
            "labelled",
            "a.csv",
            ["good", "bad"],
            "a.csv data.text_field 'good' 'bad'",
        ),
        (
            "labelled",
            "a.csv",
            ["opinion,stars", "a,b"],
            "a.csv data.text_field 'opinion' 'stars'",
        ),
        ("labelled", "a.tsv", ["a\tb\tc", "d\te\tf"], "data.text_field '3' 'c' 'f'"),
        ("labelled", "a.tsv", ["a\tb", "a\tb", "c"], "a.tsv 3 1 2 'c'"),
        ("pairs", "a.csv", ["de,en", "a,b"], "a.csv data.source_field 'de' 'en'"),
        (
            "documents",
            "a.csv",
            ["id,prompt", "1,a"],
            "a.csv data.text_field 'id' 'prompt'",
        ),
        (
            "labelled",
            "a.jsonl",
            ['{"txt": "a"}'],
            "a.jsonl data.text_field 'txt'",
        ),
        ("tagged", "a.jsonl", ['{"words": ["a"]}', '{"x": 1}'], "a.jsonl 2 'words' 'x'"),
    ],
)
def test_missing_columns_are_reported_with_their_settings(
    write: Write, reads: Reads, name: str, lines: list[str], facts: str
) -> None:
    notes: list[str] = []
    settings = RunSettings(task=TASKS[reads])
    with pytest.raises(DataError, match=naming(facts)):
        list(questions(write(name, lines), settings, notes.append))
    assert not (notes and name == "a.csv"), "a note about columns, and then an error"


def test_a_skipped_bad_line_is_an_empty_text(write: Write) -> None:
    path = write("a.jsonl", ['{"text": "a"}', "no json", '{"txt": "b"}', '{"text": "b"}'])
    settings = RunSettings(task="classify", data=DataSettings(on_bad_row="skip"))
    notes: list[str] = []
    assert list(questions(path, settings, notes.append)) == ["a", "", "", "b"]
    assert not missing(notes[1], path, 2, "JSON")
    assert not missing(notes[2], path, 3, "'text'", "'txt'")

    lines = ['{"words": ["a"]}', '{"wrds": ["b"]}', "{", '{"tokens": ["c"]}']
    path, notes = write("b.jsonl", lines), []
    settings = RunSettings(task="tag", data=DataSettings(on_bad_row="skip"))
    found = list(questions(path, settings, notes.append))
    assert found == [lines[0], "", "", lines[3]]
    assert not missing(notes[0], path, 2, "'words'")

    path, notes = write("c.jsonl", ['{"title": "a"}', '{"x": 1}', '{"title": "b"}']), []
    settings = RunSettings(task="classify", data=DataSettings(on_bad_row="skip", fields=("title",)))
    assert list(questions(path, settings, notes.append)) == [("a",), ("",), ("b",)]
    assert not missing(notes[1], path, 2, "'title'")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming(tmp_path / "none.tsv")):
        read(str(tmp_path / "none.tsv"), "labelled")
