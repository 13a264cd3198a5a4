"""Labelled texts out of every format; what does not fit is named with its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data.schema import text_schema
from headway.data.source import DataSource, Example
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.specs.tasks import Reads
from tests.facts import naming

Write = Callable[[str, list[str]], str]


def examples(path: str, kind: Reads = "labelled", **changes: Any) -> list[Example]:
    settings = RunSettings(task="classify", data=DataSettings(text=(path,), **changes))
    return list(DataSource(text_schema(kind, settings), settings, (path,)))


def read(path: str, **changes: Any) -> list[tuple[Any, ...]]:
    names = ("text", "other", "label")
    return [(*map(one.values.get, names), one.place) for one in examples(path, **changes)]


def fields(path: str, *names: str, **changes: Any) -> list[dict[str, Any]]:
    found = examples(path, "fields", fields=names, **changes)
    return [{name: value for name, value in one.values.items() if value} for one in found]


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
    others = write("d.tsv", ["label\tsentence", "pos\tgood"])  # the label's name tells the text's
    assert read(others) == [("good", None, "pos", "d.tsv:2")]


def test_columns_that_have_names_can_be_counted(write: Write) -> None:
    for name, between in (("a.tsv", "\t"), ("a.csv", ",")):
        lines = [between.join(row) for row in (("label", "text", "id"), ("pos", "good", "7"))]
        wanted = [("good", None, "pos", f"{name}:2")]
        assert read(write(name, lines), text_field="2", label_field="1") == wanted
        assert read(write(name, lines), text_field="2") == wanted


@pytest.mark.parametrize("label", ["a\nb", "a\rb", "a\tb", "\u2029b", "a\x1eb"])
def test_a_label_with_a_line_break_is_an_error_with_its_place(write: Write, label: str) -> None:
    with pytest.raises(DataError, match=naming("a.jsonl", 1, repr(label))):
        read(write("a.jsonl", [json.dumps({"text": "good", "label": label})]))
    if label != "\u2029b":  # which goes with the blanks around a cell
        with pytest.raises(DataError, match=naming("b.csv", 2, repr(f"x{label}x"))):
            read(write("b.csv", ["text,label", f'good,"x{label}x"']))
    path = write("a.jsonl", [json.dumps({"text": "t", "label": label})])
    with pytest.raises(DataError, match=naming("a.jsonl", 1, repr(label))):
        fields(path, "text")


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
    ("name", "lines", "changes", "facts"),
    [
        ("a.tsv", ["a\tb", "a\tb", "c"], {}, ("a.tsv", 3, 1, 2, "'c'")),
        ("a.tsv", [*["a\tb"] * 3, "c\td\te"], {}, ("a.tsv", 4, 3, 2, r"'c\td\te'")),
        (
            "a.tsv",
            ["a\tb\tc"],
            {},
            ("a.tsv", "data.text_field data.label_field", "'1' 'a' '2' 'b' '3' 'c'"),
        ),
        ("a.tsv", ["text\tb"], {"label_field": "y"}, ("data.label_field='y'", "a.tsv", "'b'")),
        (
            "a.tsv",
            ["a\tb"],
            {"text_field": "1", "label_field": "3"},
            ("data.label_field='3'",),
        ),
        ("a.txt", ["just text"], {}, ("a.txt", "data.label_field", "'just text'")),
        ("a.csv", ["text,y,z", "a,b,c"], {}, ("data.label_field", "'y'", "'z'")),
        ("a.csv", ["text,label", "a,b", "a"], {}, ("a.csv", 3, 1, 2, "'a'")),
        ("a.csv", ["text,label", 'a,"b'], {}, ("a.csv", 2, "unexpected")),
        (
            "a.jsonl",
            ['{"text": "a"}'],
            {},
            ("a.jsonl", "data.label_field", "'text'", "'a'"),
        ),
        ("a.jsonl", ['{"label": 1}'], {}, ("a.jsonl", "data.text_field", "'label'", 1)),
        ("a.jsonl", ['{"text": 5, "label": 1}'], {}, ("a.jsonl", 1, "'text'", 5)),
        ("a.jsonl", ['{"text": "a", "label": {}}'], {}, ("a.jsonl", 1, "'label'", "{}")),
        ("a.jsonl", ['"a"'], {}, ("a.jsonl", 1, "'\"a\"'")),
        ("a.json", ['[{"text": "a"},'], {}, ("a.json", 1, "json.load(sys.stdin)", "FILE.jsonl")),
        ("a.jsonl", ["no json"], {}, ("a.jsonl", 1, "JSON", "Expecting")),
        ("a.jsonl", [r'{"text": "\ud83d", "label": 1}'], {}, ("a.jsonl", 1, "'text'", "surrogate")),
    ],
)
def test_records_that_do_not_fit_are_named(
    write: Write, name: str, lines: list[str], changes: dict[str, Any], facts: tuple[object, ...]
) -> None:
    with pytest.raises(DataError, match=naming(*facts)):
        read(write(name, lines), **changes)


def test_fields_are_those_named_and_there(write: Write) -> None:
    lines = [
        '{"title": "T", "date": 2019, "body": "B", "more": [], "label": "human"}',
        '{"body": "C", "tags": ["x", "y"], "title": null, "date": " "}',
    ]
    names = ("title", "date", "tags", "body")
    assert fields(write("a.jsonl", lines), *names) == [
        {"title": "T", "date": "2019", "body": "B", "label": "human"},
        {"tags": "x, y", "body": "C"},
    ]
    with pytest.raises(DataError, match=naming("'headline'", "data.fields", "'title'", "'T'")):
        fields(write("a.jsonl", lines), "headline")
    with pytest.raises(DataError, match=naming("a.txt", "data.fields", "'tags'", "'A text.'")):
        fields(write("a.txt", ["A text."]), *names)
    table = write("a.csv", ["body,title,more", "B,T,m", "C,,n"])
    assert fields(table, *names) == [{"title": "T", "body": "B"}, {"body": "C"}]


def test_records_have_their_place(write: Write) -> None:
    [one] = examples(write("f", ["a\tx"]))
    assert one == Example({"text": "a", "label": "x"}, "f:1")


def test_files_of_fasttext_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("__label__pos good, really good\n\n__label__neg  bad\nno label\n")
    assert [(one[2], one[0]) for one in read(str(path))] == [
        ("pos", "good, really good"),
        ("neg", " bad"),
        ("", "no label"),
    ]


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("text,label\na,b\n", 1),
        ("a sentence, with a comma\tx\nother\ty\n", 2),
        ('label,text\nb,"a, c"\n', 1),
    ],
)
def test_a_comma_does_not_turn_text_into_a_table(tmp_path: Path, text: str, n: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    assert len(read(str(path))) == n
