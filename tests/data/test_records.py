"""Labelled texts out of every format; what does not fit is named with its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.config.data import DataSettings
from headway.data.records import Record, field_records, read_records
from headway.errors import DataError

Write = Callable[[str, list[str]], str]


def read(path: str, *, labels: bool = True, **changes: Any) -> list[tuple[Any, ...]]:
    found = read_records([path], DataSettings(**changes), labels=labels)
    return [(r.text, r.other, r.label, r.place) for r in found]


def test_tab_separated_columns_by_place_number_and_name(write: Write) -> None:
    plain = write("a.tsv", ["good film\tpos", "", "bad\t neg "])
    assert read(plain) == [
        ("good film", None, "pos", "a.tsv:1"),
        ("bad", None, "neg", "a.tsv:3"),
    ]
    three = write("b.tsv", ["1\twhy\tgood film", "0\twhat\tbad"])
    wanted = [("good film", "why", "1", "b.tsv:1"), ("bad", "what", "0", "b.tsv:2")]
    assert read(three, text_field="3", other_field="2", label_field="1") == wanted
    named = write("c.txt", ["id\tlabel\ttext", "7\tpos\tgood"])
    assert read(named) == [("good", None, "pos", "c.txt:2")]
    assert read(plain, labels=False)[0] == ("good film", None, None, "a.tsv:1")
    others = write("d.tsv", ["label\tsentence", "pos\tgood"])  # the label's name tells the text's
    assert read(others) == [("good", None, "pos", "d.tsv:2")]


@pytest.mark.parametrize("label", ["a\nb", "a\rb", "a\tb", "\u2029b", "a\x1eb"])
def test_a_label_that_breaks_lines_is_refused_with_its_place(write: Write, label: str) -> None:
    said = "the label .* holds a line break"
    with pytest.raises(DataError, match=rf"a\.jsonl, line 1: {said}"):
        read(write("a.jsonl", [json.dumps({"text": "good", "label": label})]))
    if label != "\u2029b":  # which goes with the blanks around a cell
        with pytest.raises(DataError, match=rf"b\.csv:2: {said}"):
            read(write("b.csv", ["text,label", f'good,"x{label}x"']))
    given = DataSettings(fields=("text",), label_field="label")
    path = write("a.jsonl", [json.dumps({"text": "t", "label": label})])
    with pytest.raises(DataError, match=rf"a\.jsonl, line 1: {said}"):
        list(field_records([path], given))


def test_csv_follows_the_rules_of_quotes(write: Write) -> None:
    lines = ["text, label", '"one, ""two""', 'and three",pos', "", "plain,neg"]
    wanted = [('one, "two"\nand three', None, "pos", "a.csv:2"), ("plain", None, "neg", "a.csv:5")]
    assert read(write("a.csv", lines)) == wanted
    unnamed = write("c.csv", ['7,pos," one, two"', "8,neg,plain"])
    wanted = [(" one, two", None, "pos", "c.csv:1"), ("plain", None, "neg", "c.csv:2")]
    assert read(unnamed, text_field="3", label_field="2") == wanted
    long = "x" * 300_000
    assert read(write("b.csv", ["label,text", f"a,{long}"]))[0][0] == long


def test_json_fields_may_be_nested_and_labels_of_any_kind(write: Write, tmp_path: Path) -> None:
    lines = [json.dumps({"a": {"b": "t"}, "q": "o", "y": label}) for label in (True, 3, "x", 0.5)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = read(str(path), text_field="a.b", other_field="q", label_field="y")
    assert [record[2] for record in found] == ["true", "3", "x", "0.5"]
    assert found[0][:2] == ("t", "o")
    sniffed = write("noname", ['{"text": "a", "label": "b"}'])
    assert read(sniffed) == [("a", None, "b", "noname:1")]


@pytest.mark.parametrize(
    ("name", "lines", "changes", "message"),
    [
        ("a.tsv", ["a\tb", "c"], {}, r"a\.tsv, line 2 has 1 column but the first has 2.*'c'"),
        ("a.tsv", ["a\tb", "c\td\te"], {}, r"line 2 has 3 columns but the first has 2"),
        ("a.tsv", ["a\tb\tc"], {}, r"no column 'text' or 'label'; it has 3 columns: 'a', 'b', 'c'"),
        ("a.tsv", ["text\tb"], {"label_field": "y"}, r"names no column 'y'"),
        ("a.tsv", ["a\tb"], {"text_field": "1", "label_field": "3"}, "column 3 is asked for"),
        ("a.txt", ["just text"], {}, r"line 1 has one column, but 2 are needed \(text, label\)"),
        ("a.csv", ["text,y", "a,b"], {}, r"no column 'label'; it has 2 columns: 'text', 'y'"),
        ("a.csv", ["text,label", "a"], {}, r"a\.csv, line 2 has 1 column but the header has 2"),
        ("a.csv", ["text,label", 'a,"b'], {}, r"a\.csv, line 2: unexpected end of data"),
        (
            "a.jsonl",
            ['{"text": "a"}'],
            {},
            r"line 1 has no field 'label', only 'text'.*label_field",
        ),
        ("a.jsonl", ['{"label": 1}'], {}, r"line 1 has no field 'text', only 'label'"),
        ("a.jsonl", ['{"text": 5, "label": 1}'], {}, r"field 'text' is 5, not text"),
        ("a.jsonl", ['{"text": "a", "label": {}}'], {}, r"field 'label' is \{\}, not text"),
        ("a.jsonl", ['"a"'], {}, r"a\.jsonl, line 1 is a text, not an object"),
        ("a.json", ['[{"text": "a"},'], {}, r"begins a JSON array.*> FILE\.jsonl$"),
        ("a.jsonl", ["no json"], {}, r"a\.jsonl, line 1 is not a line of JSON"),
        ("a.jsonl", [r'{"text": "\ud83d", "label": 1}'], {}, "half of a surrogate pair"),
    ],
)
def test_what_does_not_fit_is_named(
    write: Write, name: str, lines: list[str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(write(name, lines), **changes)


def test_fields_are_those_named_and_there(write: Write) -> None:
    lines = [
        '{"title": "T", "date": 2019, "body": "B", "more": [], "label": "human"}',
        '{"body": "C", "tags": ["x", "y"], "title": null, "date": " "}',
    ]
    settings = DataSettings(fields=("title", "date", "tags", "body"))
    assert list(field_records([write("a.jsonl", lines)], settings)) == [
        {"title": "T", "date": "2019", "body": "B", "label": "human"},
        {"tags": "x, y", "body": "C"},
    ]
    other = DataSettings(fields=("headline",))
    with pytest.raises(DataError, match=r"line 1 has none of the fields 'headline', only 'title'"):
        list(field_records([write("a.jsonl", lines)], other))
    with pytest.raises(DataError, match=r"a\.txt, line 1 is not a line of JSON"):
        list(field_records([write("a.txt", ["A text."])], settings))


def test_records_are_told_apart_by_their_place(write: Write) -> None:
    one = Record("a", None, "x", "f:1")
    assert one == next(read_records([write("f", ["a\tx"])], DataSettings()))


def test_files_of_fasttext_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("__label__pos good, really good\n\n__label__neg  bad\nno label\n")
    found = list(read_records([str(path)], DataSettings()))
    assert [(one.label, one.text) for one in found] == [
        ("pos", "good, really good"),
        ("neg", " bad"),
        ("", "no label"),
    ]
    asked = [one.text for one in read_records([str(path)], DataSettings(), labels=False)]
    assert asked == ["good, really good", "", " bad", "no label"]


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("text,label\na,b\n", 1),
        ("a sentence, with a comma\tx\nother\ty\n", 2),
        ('label,text\nb,"a, c"\n', 1),
    ],
)
def test_a_comma_makes_no_table_of_a_file_of_text(tmp_path: Path, text: str, n: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    assert len(list(read_records([str(path)], DataSettings()))) == n
