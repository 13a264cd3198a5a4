"""Tagged words: every scheme comes out as BIO, mixtures and broken lines are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.schema import text_schema
from headway.data.source import DataSource, Example
from headway.data.tag_schemes import TagScheme, TagSchemeDetector, to_bio
from headway.errors import DataError
from headway.settings.run import RunSettings, run_settings
from tests.facts import naming

Write = Callable[[str, list[str]], str]
Span = tuple[str, int]

SPANS = st.lists(st.tuples(st.sampled_from(["PER", "LOC", "O"]), st.integers(1, 4)), max_size=8)


def source(*paths: str, scheme: str = "auto", **data: Any) -> DataSource:
    values: dict[str, Any] = {"task": "tag", "data": {"text": list(paths), **data}}
    settings = run_settings(values)
    found = DataSource(text_schema("tagged", settings), settings, paths)
    return replace(found, scheme=found.detected() if scheme == "auto" else scheme)  # type: ignore[arg-type]


def read(*paths: str, scheme: str = "auto", **data: Any) -> list[Example]:
    return list(source(*paths, scheme=scheme, **data))


def words_of(found: list[Example]) -> list[list[str]]:
    return [list(one.strings("words")) for one in found]


def spelled(spans: list[Span], scheme: str) -> list[str]:
    """The tags of spans that stand one after another, in any scheme."""
    tags: list[str] = []
    before = "O"
    for kind, size in spans:
        if kind == "O":
            tags += ["O"] * size
        elif scheme == "bio":
            tags += [f"B-{kind}"] + [f"I-{kind}"] * (size - 1)
        elif scheme == "iob1":
            tags += [f"{'B' if before == kind else 'I'}-{kind}"] + [f"I-{kind}"] * (size - 1)
        else:
            one, last = ("S", "E") if scheme == "bioes" else ("U", "L")
            inner = [f"B-{kind}", *[f"I-{kind}"] * (size - 2), f"{last}-{kind}"]
            tags += [f"{one}-{kind}"] if size == 1 else inner
        before = kind
    return tags


@given(SPANS, st.sampled_from(["bio", "iob1", "bioes", "bilou"]))
def test_every_scheme_comes_out_as_bio(spans: list[Span], scheme: str) -> None:
    read_as: Any = "bioes" if scheme == "bilou" else scheme
    made, misfits = to_bio(spelled(spans, scheme), read_as)
    assert made == spelled(spans, "bio")
    assert misfits == 0


@given(st.lists(SPANS, min_size=1, max_size=5), st.sampled_from(["bio", "iob1", "bioes"]))
def test_a_scheme_that_is_found_reads_the_tags_right(texts: list[list[Span]], scheme: str) -> None:
    """Where several fit, such as where no spans touch, all of them mean the same."""
    detection = TagSchemeDetector()
    for i, spans in enumerate(texts):
        detection.add(spelled(spans, scheme), f"f:{i}")
    found = detection.scheme()
    for spans in texts:
        assert to_bio(spelled(spans, scheme), found) == (spelled(spans, "bio"), 0)


@pytest.mark.parametrize(
    ("tags", "scheme", "wanted", "misfits"),
    [
        (["O", "I-X", "I-X"], "bio", ["O", "B-X", "I-X"], 1),
        (["B-X", "I-Y"], "bio", ["B-X", "B-Y"], 1),
        (["E-X", "I-X"], "bioes", ["B-X", "B-X"], 2),
        (["B-X", "B-X"], "iob1", ["B-X", "B-X"], 1),
        (["X", "B-X"], "bio", ["O", "B-X"], 1),
        (["B-a-b", "I-a-b"], "bio", ["B-a-b", "I-a-b"], 0),
        (["NN", "B-X", "-LRB-"], "plain", ["NN", "B-X", "-LRB-"], 0),
    ],
)
def test_tags_that_do_not_fit_are_read_and_counted(
    tags: list[str], scheme: TagScheme, wanted: list[str], misfits: int
) -> None:
    assert to_bio(tags, scheme) == (wanted, misfits)


def test_columns_are_read_with_tabs_or_blanks(write: Write) -> None:
    tabs = write("a.conll", ["New York\tB-LOC", "is\tO", "", " ", "en:en:x\tB-LOC", "en:\tO"])
    settings: RunSettings = run_settings({"task": "tag", "tag": {"prefix_strip": "en:"}})
    [one, two] = DataSource(text_schema("tagged", settings), settings, (tabs,))
    assert one.values == {
        "text": "New York is", "words": ["New York", "is"], "tags": ["B-LOC", "O"],
    }  # fmt: skip
    assert (one.place, two.place) == ("a.conll:1", "a.conll:5")
    assert two.values["words"] == ["en:x", "en:"]
    blanks = write("b.conll", ["-DOCSTART- -X- O", "EU NNP I-ORG", "-DOCSTART- -X- O", "x NN O"])
    assert [one.strings("tags") for one in read(blanks)] == [["B-ORG"], ["O"]]
    assert words_of(read(blanks)) == [["EU"], ["x"]]
    brackets = write("c.conll", ["{ O", "x B-X"])
    assert words_of(read(brackets)) == [["{", "x"]]


def test_columns_may_be_in_any_order(write: Write) -> None:
    path = write("a.conll", ["B-X 1 Rome", "O 2 is", "", "O 1 so"])
    found = read(path, words_field="3", tags_field="1")
    assert words_of(found) == [["Rome", "is"], ["so"]]
    assert [one.strings("tags") for one in found] == [["B-X", "O"], ["O"]]
    lines = ["# sent_id = 1", "1-2\tdu\t_\t_", "1\tde\tde\tADP", "2\tle\tle\tDET", "", "1\tx\tx\tX"]
    found = read(write("a.conllu", lines))
    assert words_of(found) == [["de", "le"], ["x"]]
    assert [one.strings("tags") for one in found] == [["ADP", "DET"], ["X"]]
    with pytest.raises(DataError, match=naming("a.conll", "data.words_field='4'")):
        read(path, words_field="4")


def test_lines_of_json_hold_words_and_tags(write: Write) -> None:
    path = write("a.jsonl", ['{"tokens": ["a", "b"], "ner_tags": ["B-X", "O"]}', "",
                             '{"words": ["c"], "tags": [3]}'])  # fmt: skip
    with pytest.raises(DataError, match=naming("a.jsonl", 1, "'words' 'tokens' 'ner_tags'")):
        read(path)  # one file has one name for them
    named = write("b.jsonl", ['{"words": ["a", "b"], "ner_tags": ["B-X", "O"]}', "",
                              '{"words": ["c"], "ner_tags": [3]}'])  # fmt: skip
    found = read(named, scheme="plain")
    assert [(one.values["words"], one.values["tags"], one.place) for one in found] == [
        (["a", "b"], ["B-X", "O"], "b.jsonl:1"),
        (["c"], ["3"], "b.jsonl:3"),
    ]
    own = write("c.jsonl", ['{"forms": ["a"], "pos": ["N"]}'])
    assert words_of(read(own, words_field="forms", tags_field="pos")) == [["a"]]


@pytest.mark.parametrize(
    ("name", "lines", "facts"),
    [
        ("a.conll", ["a\tO", "b"], "a.conll 2 'b'"),
        ("a.conll", ["a O", "", "", "b NN O"], "a.conll 4 3 2 'b NN O'"),
        ("a.conll", ["a\tO", "\tO"], "a.conll 2 1"),
        ("a.conll", ["a\tO", "c\tO", "b\t"], "a.conll 3 2"),
        (
            "a.jsonl",
            ['{"words": ["a"], "tags": ["O"]}', '{"words": ["a"], "tags": []}'],
            "a.jsonl 2 1 0",
        ),
        (
            "a.jsonl",
            ['{"words": "a", "tags": []}'],
            "a.jsonl 1 'words' 'a'",
        ),
        ("a.jsonl", ['{"words": [1], "tags": ["O"]}'], "a.jsonl 1 words [1]"),
        (
            "a.jsonl",
            ['{"words": [""], "tags": ["O"]}'],
            "a.jsonl 1 data.on_bad_row=skip",
        ),
        ("a.jsonl", ["a O"], "a.jsonl 1 JSON"),
        ("a.jsonl", ["[]"], "a.jsonl 1 '[]'"),
    ],
)
def test_broken_lines_are_named(write: Write, name: str, lines: list[str], facts: str) -> None:
    with pytest.raises(DataError, match=naming(facts)):
        read(write(name, lines))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            ["B-X", "O"],
            ["O", "I-X"],
            r"B-X\b.*\b1\b.*\ba:1\b.*\bBIO\b.*I-X\b.*\b2\b.*\bb:1\b.*\bIOB1\b",
        ),
        (["S-X"], ["B-X", "O"], r"S-X\b.*\bBIOES\b.*B-X\b.*\bBIO\b"),
        (["NN"], ["B-X"], r"NN\b.*\bplain\b.*B-X\b.*\bBIO\b"),
        (["E-X"], ["I-X"], r"E-X\b.*\bBIOES\b.*I-X\b.*\bIOB1\b"),
    ],
)
def test_mixed_schemes_are_shown_with_their_places(
    write: Write, first: list[str], second: list[str], message: str
) -> None:
    paths = [
        write(name, [f"w {tag}" for tag in tags]) for name, tags in (("a", first), ("b", second))
    ]
    with pytest.raises(DataError, match=rf"(?s){message}.*tag\.scheme=bio"):
        source(*paths)
    assert read(*paths, scheme="bio")  # told which, it is read


def test_a_span_without_an_end_does_not_go_with_bioes() -> None:
    """`B I O` is whole in BIO and has no end in BIOES, wherever the two stand."""
    seen = TagSchemeDetector()
    seen.add(["B-per", "I-per", "O"], "a.conll:1")
    assert seen.scheme() == "bio"
    seen.add(["B-per", "E-per", "O", "S-per"], "b.conll:1")
    with pytest.raises(DataError, match=r"E-per\b.*\bBIOES\b.*I-per\b.*a\.conll:1\b.*\bBIO\b"):
        seen.scheme()


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("a.conll", "Rome B-LOC\nis O\n\nalone\nhere O\n\nso O\n\nx O y\n", ["1", "4", "7", "9"]),
        (
            "a.jsonl",
            '{"words": ["Rome", "is"], "tags": ["B-LOC", "O"]}\n{"words": ["a"], "tags": []}\n'
            '{"words": ["so"], "tags": ["O"]}\nnone\n',
            ["1", "2", "3", "4"],
        ),
    ],
)
def test_bad_sentences_come_without_words_where_they_are_left_out(
    tmp_path: Path, name: str, text: str, places: list[str]
) -> None:
    (tmp_path / name).write_text(text)
    found = read(str(tmp_path / name), on_bad_row="skip")
    assert words_of(found) == [["Rome", "is"], [], ["so"], []]
    assert [one.place.partition(":")[2] for one in found] == places
    assert [bool(one.problem) for one in found] == [False, True, False, True]
    with pytest.raises(DataError, match=naming(name, places[1], 2)):
        read(str(tmp_path / name))


def test_marks_of_spans_in_the_first_column_are_the_tags(write: Write) -> None:
    found = read(write("a.conll", ["O\tin", "B-LOC\tRome", "", "O\tso"]))
    assert words_of(found) == [["in", "Rome"], ["so"]]
    both = read(write("b.conll", ["O\tO", "B-X\tB-LOC"]))
    assert words_of(both) == [["O", "B-X"]]
