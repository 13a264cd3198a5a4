"""Pairs from aligned files, columns and JSON, and where aligned files come apart."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headway.data import source as reading
from headway.data.pairs import read_pairs
from headway.data.readers.lines import UnequalCounts
from headway.data.shifted_lines import first_misaligned_row
from headway.data.source import Example, in_example_blocks, sources
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from tests.facts import naming

from .conftest import sentences

Write = Callable[[str, list[str]], str]


def from_pairs(path: str, **settings: str) -> list[tuple[str, str]]:
    return list(read_pairs((), (), (path,), DataSettings(**settings)))  # type: ignore[arg-type]


def from_aligned(*paths: str) -> list[tuple[str, str]]:
    half = len(paths) // 2
    return list(read_pairs(paths[:half], paths[half:], (), DataSettings()))


def test_aligned_files_follow_each_other(write: Write) -> None:
    paths = [write("a.de", ["eins", ""]), write("b.de", ["drei"])]
    paths += [write("a.en", ["one", "two"]), write("b.en", ["three"])]
    assert from_aligned(*paths) == [("eins", "one"), ("", "two"), ("drei", "three")]


def test_columns_are_the_first_two_or_as_numbered_or_as_named(write: Write) -> None:
    path = write("a.tsv", ["a\tb\tc", "d\te\tf"])
    assert from_pairs(path) == [("a", "b"), ("d", "e")]
    assert from_pairs(path, source_field="3", target_field="1") == [("c", "a"), ("f", "d")]
    assert from_pairs(path, source_field="c", target_field="b") == [("f", "e")]
    named = write("b.tsv", ["target\tsource", "d\te"])
    assert from_pairs(named) == [("e", "d")]


def test_csv_has_its_columns_by_name_or_by_number(write: Write) -> None:
    path = write("a.csv", ["id,en,de", '1,"Good day, Max","Guten Tag, ""Max"""'])
    day = ('Guten Tag, "Max"', "Good day, Max")
    assert from_pairs(path, source_field="de", target_field="en") == [day]
    assert from_pairs(path, source_field="3", target_field="2") == [("de", "en"), day]
    assert from_pairs(write("b.csv", ["source,target", "a,b", "", "c,d"])) == [
        ("a", "b"), ("", ""), ("c", "d"),
    ]  # fmt: skip
    assert from_pairs(write("tabs.csv", ["a, b\tc"])) == [("a, b", "c")]
    with pytest.raises(DataError, match=naming("a.csv", "data.source_field data.target_field")):
        from_pairs(path)
    assert from_pairs(write("c.csv", ["source,target", '"a', 'b",c'])) == [("a\nb", "c")]
    with pytest.raises(DataError, match=naming("e.csv", 2, "unexpected")):
        from_pairs(write("e.csv", ["source,target", '"a']))
    with pytest.raises(DataError, match=naming("d.csv", 3, 1, 2)):
        from_pairs(write("d.csv", ["source,target", "a,b", "a"]))


def test_fields_of_json_lines_may_be_nested(write: Write) -> None:
    path = write("a.jsonl", ['{"source": "ä", "target": "b", "n": 1}', ""])
    assert from_pairs(path) == [("ä", "b"), ("", "")]
    path = write("a.txt", [json.dumps({"translation": {"de": "ja", "en": "yes\nyes"}})])
    fields = {"source_field": "translation.de", "target_field": "translation.en"}
    assert from_pairs(path, **fields) == [("ja", "yes\nyes")]


def test_a_pair_keeps_the_number_of_its_line(write: Write) -> None:
    path = write("a.tsv", ["source\ttarget", "a\tb", "", "c\td"])
    assert from_pairs(path) == [("a", "b"), ("", ""), ("c", "d")]
    run = RunSettings(task="translate", data=DataSettings(pairs=(path,)))
    assert [one.place for one in sources(run)[0]] == ["a.tsv:2", "a.tsv:3", "a.tsv:4"]


@pytest.mark.parametrize(
    ("name", "line", "settings", "facts"),
    [
        ("a.tsv", "only one", {}, "a.tsv 3 1 2 'only one'"),
        ("a.tsv", "a\tb", {"source_field": "5"}, "a.tsv data.source_field='5'"),
        (
            "a.tsv",
            "a\tb",
            {"source_field": "0", "target_field": "1"},
            "a.tsv data.source_field='0'",
        ),
        (
            "a.tsv",
            "a\tb",
            {"source_field": "1", "target_field": "3"},
            "a.tsv data.target_field='3'",
        ),
        ("a.jsonl", "{", {}, "a.jsonl 3 JSON data.on_bad_row=skip"),
        ("a.jsonl", "[" * 100_000, {}, "a.jsonl 3 JSON recursion"),
        ("a.jsonl", '"text"', {}, "a.jsonl 3 '\"text\"'"),
        ("a.jsonl", '{"src": 1}', {}, "a.jsonl 3 'source' 'src' data.source_field"),
        ("a.jsonl", '{"source": 1, "target": "b"}', {}, "a.jsonl 3 'source' 1"),
        ("a.jsonl", r'{"source": "\ud800", "target": "b"}', {}, "a.jsonl 3 'source' surrogate"),
    ],
)
def test_a_line_that_is_not_a_pair_is_named(
    write: Write, name: str, line: str, settings: dict[str, str], facts: str
) -> None:
    good = '{"source": "a", "target": "b"}' if name.endswith("jsonl") else "a\tb"
    with pytest.raises(DataError, match=naming(facts)):
        from_pairs(write(name, [good, good, line]), **settings)


def test_unequal_files_give_both_counts_and_the_place(write: Write) -> None:
    pairs = sentences()
    random.Random(0).shuffle(pairs)
    source, target = map(list, zip(*pairs, strict=True))
    del target[250]

    def is_quoted(message: str) -> bool:
        return any(repr(line) in message for line in source)

    with pytest.raises(UnequalCounts, match=naming("a.de 400 a.en 399")) as slipped:
        from_aligned(write("a.de", source), write("a.en", target))
    message = str(slipped.value)
    assert any(240 <= int(number) < 260 for number in re.findall(r"(?<![\w-])\d+\b", message))
    assert is_quoted(message)
    assert any(repr(line) in message for line in target)
    with pytest.raises(UnequalCounts, match=naming("a.de 400 a.en 300")) as cut:
        from_aligned(write("a.de", source), write("a.en", target[:249] + pairs_end(pairs)))
    assert not is_quoted(str(cut.value))
    with pytest.raises(UnequalCounts, match=naming("a.de 400 a.en 0")):
        from_aligned(write("a.de", source), write("a.en", []))


def pairs_end(pairs: list[tuple[str, str]]) -> list[str]:
    return [target for _, target in pairs[249:300]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("places", [[300], [300, 700], [300, 301, 302, 900], list(range(300, 330))])
def test_the_first_missing_line_is_found_by_lengths(seed: int, places: list[int]) -> None:
    draw = np.random.default_rng(seed)
    source = draw.integers(20, 150, 1000).astype(float)
    target = np.maximum(source * draw.normal(1.1, 0.15, 1000), 1)
    left = np.delete(target, places)
    for slip in (first_misaligned_row(source, left), first_misaligned_row(left, source)):
        assert abs(slip - 300) <= 4
    assert first_misaligned_row(source, target[:980]) == 980  # cut short at the end


def test_files_of_no_pairs_give_none(write: Write, tmp_path: Path) -> None:
    assert from_pairs(write("a.tsv", [])) == []
    assert from_aligned(write("a.de", []), write("a.en", [])) == []
    with pytest.raises(DataError, match=naming(tmp_path / "none")):
        from_aligned(write("a.de", []), str(tmp_path / "none"))


def test_blocks_are_small_where_pairs_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("a", "b")] * 5 + [("long" * 9, "c")] * 2 + [("d", "e")] * 2
    monkeypatch.setattr(reading, "BLOCK", 4)
    monkeypatch.setattr(reading, "BLOCK_CHARACTERS", 30)
    examples = [Example({"source": one, "target": two}, "") for one, two in pairs]
    blocks = list(in_example_blocks(examples, ("source", "target")))
    assert [one for block in blocks for one in block] == examples
    assert [len(block) for block in blocks] == [4, 2, 1, 2]
    assert list(in_example_blocks([], ())) == []
