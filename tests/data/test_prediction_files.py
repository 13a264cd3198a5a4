"""Questions are read by the columns of training, whatever stands beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data.prediction_files import Question, questions
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.tasks.specs import Reads

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
    found = list(questions(path, reads, settings, notes.append))
    assert len(notes) < 2
    return found, "".join(notes)


TWO = {"text_field": "premise", "other_field": "guess"}
PAIRS = {"pairs": ("train.tsv",)}
CASES: list[tuple[Reads, str, list[str], dict[str, Any], list[Question], str]] = [
    # A text a line, whatever it holds
    ("labelled", "a.txt", ["good, film", "", "bad"], {}, ["good, film", "", "bad"], ""),
    ("labelled", "a.txt", ["one\ttab", "no tab"], {}, ["one\ttab", "no tab"], ""),
    ("labelled", "a.tsv", ["good", "bad"], {"text_field": "2"}, ["good", "bad"], ""),
    ("documents", "a.txt", ["text\tlabel", "a\tb"], {}, ["text\tlabel", "a\tb"], ""),
    ("pairs", "a.txt", ["a\tb", "c\td"], {}, ["a\tb", "c\td"], ""),
    ("tagged", "a.txt", ["He saw Rome .", "She left ."], {}, ["He saw Rome .", "She left ."], ""),
    # Labelled texts
    ("labelled", "a.tsv", ["good\tpos", "", "bad\tneg"], {}, ["good", "", "bad"],
     "column 1 is the text; column 2 is not read"),
    ("labelled", "a.txt", ["good\tpos", "bad\tneg"], {}, ["good", "bad"], "column 1 is the text"),
    ("labelled", "a.tsv", ["text\tlabel", "good\tpos"], {}, ["good"],
     "column 'text' is the text; column 'label' is not read"),
    ("labelled", "a.tsv", ["text", "good"], {}, ["good"], "column 'text' is the text"),
    ("labelled", "a.csv", ["id,label,text", '1,pos,"good, ""really"""', "", "2,neg,bad"], {},
     ['good, "really"', "", "bad"], "columns 'id', 'label' are not read"),
    ("labelled", "a.tsv", ["sentence\tlabel", "good\tpos"], {}, ["good"],
     "column 'sentence' is the text; column 'label' is not read"),
    ("labelled", "a.csv", ["label,review", "pos,good"], {}, ["good"],
     "column 'review' is the text; column 'label' is not read"),
    ("labelled", "a.csv", ["good,pos", "bad,neg"], {"text_field": "1"}, ["good", "bad"],
     "column 1 is the text; column 2 is not read"),
    ("labelled", "a", ["text,label", "good,pos"], {}, ["good"], "column 'text' is the text"),
    ("labelled", "a.tsv", ["pos\tgood", "neg\tbad"], {"text_field": "2", "label_field": "1"},
     ["good", "bad"], "column 2 is the text; column 1 is not read"),
    ("labelled", "a.jsonl", ['{"label": 1, "text": "a\\tb"}', "", '{"text": "c"}'], {},
     ["a\tb", "", "c"], "field 'text' is the text; field 'label' is not read"),
    ("labelled", "a.tsv", ["x\ty", "p\tq"], TWO, ["x\ty", "p\tq"], ""),
    ("labelled", "a.csv", ["guess,premise,label", "y,x,1"], TWO, [("x", "y")],
     "column 'premise' is the text; column 'guess' is the second text; column 'label' is not read"),
    ("labelled", "a.tsv", ["1\tx\ty", "", "0\tp\tq"], {"text_field": "2", "other_field": "3"},
     [("x", "y"), ("", ""), ("p", "q")], "column 3 is the second text"),
    ("labelled", "a.jsonl", ['{"title": "T", "label": 1, "body": "B"}', "", '{"body": "C"}'],
     {"fields": ("title", "body")}, [("T", "B"), ("", ""), ("", "C")],
     "the fields are 'title', 'body'; not read: 'label'"),
    # Texts and documents
    ("documents", "a.jsonl", ['{"text": "a", "meta": {}}'], {}, ["a"], "field 'meta' is not read"),
    ("documents", "a.csv", ["id,text", "1,a"], {}, ["a"], "column 'id' is not read"),
    ("documents", "a.tsv", ["a\tb"], {}, ["a\tb"], "every line is a text with its tabs"),
    ("texts", "a.jsonl", ['{"text": "a"}'], {}, ["a"], "field 'text' is the text"),
    # First sides of pairs
    ("pairs", "a.tsv", ["x\ty\tz", "", "p\tq\tr"], {}, ["x", "", "p"],
     "column 1 is the text; columns 2, 3 are not read"),
    ("pairs", "a.txt", ["x\ty", "p\tq"], PAIRS, ["x", "p"], "column 1 is the text"),
    ("pairs", "a.txt", ["x", "p"], PAIRS, ["x", "p"], ""),
    ("pairs", "a.tsv", ["en\tde", "x\ty"], {**PAIRS, "source_field": "de", "target_field": "en"},
     ["y"], "column 'de' is the text; column 'en' is not read"),
    ("pairs", "a.tsv", ["source", "x"], {}, ["x"], "column 'source' is the text"),
    ("pairs", "a.jsonl", ['{"translation": {"de": "x"}}'], {"source_field": "translation.de"},
     ["x"], "field 'translation.de' is the text"),
    ("pairs", "a.csv", ["target,source", "y,x"], {}, ["x"], "column 'source' is the text"),
    ("pairs", "a.csv", ["y,x", "v,u"], {"source_field": "2"}, ["x", "u"], "column 2 is the text"),
    ("texts", "a.tsv", ["x\ty"], PAIRS, ["x"], "column 1 is the text"),
]  # fmt: skip


@pytest.mark.parametrize(("reads", "name", "lines", "data", "found", "note"), CASES)
def test_columns_are_those_of_training(
    write: Write,
    reads: Reads,
    name: str,
    lines: list[str],
    data: dict[str, Any],
    found: list[Question],
    note: str,
) -> None:
    path = write(name, lines)
    got, said = read(path, reads, **data)
    assert got == found
    assert note in said
    assert bool(note) == bool(said)
    assert not said or said.startswith(f"{path}: ")


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
def test_words_in_columns_are_told_from_sentences(
    write: Write, name: str, lines: list[str], found: list[str]
) -> None:
    got, said = read(write(name, lines), "tagged", TAGS)
    assert got == found
    assert ("a word a line" in said) == (found != lines or "\t" in lines[0])


@pytest.mark.parametrize(
    ("reads", "name", "lines", "message"),
    [
        (
            "labelled",
            "a.csv",
            ["good", "bad"],
            r"which column is the text.*text_field=….*It has 'good': 'bad'",
        ),
        (
            "labelled",
            "a.csv",
            ["opinion,stars", "a,b"],
            r"the text\?.*data\.text_field=…",
        ),
        ("labelled", "a.tsv", ["a\tb\tc", "d\te\tf"], r"which column is the text.*'3': 'c', 'f'"),
        ("labelled", "a.tsv", ["a\tb", "c"], r"a\.tsv, line 2 has 1 column but the first has 2"),
        ("pairs", "a.csv", ["de,en", "a,b"], r"which column is the source.*data\.source_field=…"),
        (
            "documents",
            "a.csv",
            ["id,prompt", "1,a"],
            r"the text\?.*data\.text_field=…",
        ),
        (
            "labelled",
            "a.jsonl",
            ['{"txt": "a"}'],
            r"jsonl: which column is the text.* has 'txt'",
        ),
        ("tagged", "a.jsonl", ['{"words": ["a"]}', '{"x": 1}'], r"a\.jsonl, line 2 needs a list"),
    ],
)
def test_a_table_without_those_columns_says_how_to_name_them(
    write: Write, reads: Reads, name: str, lines: list[str], message: str
) -> None:
    told: list[str] = []
    settings = RunSettings(task=TASKS[reads])
    with pytest.raises(DataError, match=message):
        list(questions(write(name, lines), reads, settings, told.append))
    assert not (told and "column 1 is the text" in told[0] and name == "a.csv"), "and then refused"


def test_a_bad_line_is_answered_as_an_empty_one_where_it_may_be(write: Write) -> None:
    path = write("a.jsonl", ['{"text": "a"}', "no json", '{"txt": "b"}', '{"text": "b"}'])
    settings = RunSettings(task="classify", data=DataSettings(bad="skip"))
    told: list[str] = []
    assert list(questions(path, "labelled", settings, told.append)) == ["a", "", "", "b"]
    assert told[1].startswith(f"{path}, line 2 is not a line of JSON")
    assert told[2].startswith(f"{path}, line 3 has no 'text', only 'txt'")

    lines = ['{"words": ["a"]}', '{"wrds": ["b"]}', "{", '{"tokens": ["c"]}']
    path, told = write("b.jsonl", lines), []
    settings = RunSettings(task="tag", data=DataSettings(bad="skip"))
    found = list(questions(path, "tagged", settings, told.append))
    assert found == [lines[0], "", "", lines[3]]
    assert [note.partition(" needs")[0] for note in told[:1]] == [f"{path}, line 2"]

    path, told = write("c.jsonl", ['{"title": "a"}', '{"x": 1}', '{"title": "b"}']), []
    settings = RunSettings(task="classify", data=DataSettings(bad="skip", fields=("title",)))
    assert list(questions(path, "labelled", settings, told.append)) == [("a",), ("",), ("b",)]
    assert f"{path}, line 2 has none of the fields 'title'" in told[1]
    assert told[1].endswith("It is answered as an empty text")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        read(str(tmp_path / "none.tsv"), "labelled")
