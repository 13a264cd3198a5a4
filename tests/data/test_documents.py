"""Documents come back exactly as they stand in the files, in pieces of bounded size."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data import files
from headway.data.readers import lines as documents
from headway.data.readers.lines import PIECE, SEPARATOR
from headway.data.schema import text_schema
from headway.data.source import DataSource, Example
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from tests.facts import naming

Write = Callable[[str, list[str]], str]


def read(text: str, folder: Path, name: str = "a.txt", **changes: Any) -> list[str]:
    path = folder / name
    path.write_bytes(text.encode())
    return whole(pieces_of(path, **changes))


def pieces_of(path: Path, **changes: Any) -> list[Example]:
    settings = RunSettings(task="complete", data=DataSettings(**changes))
    return list(DataSource(text_schema("documents", settings), settings, (str(path),)))


def whole(pieces: list[Example]) -> list[str]:
    found, parts = [], ""
    for piece in pieces:
        parts += piece.text("text")
        if piece.ends:
            found.append(parts)
            parts = ""
    return found


@pytest.mark.parametrize(
    ("unit", "text", "wanted"),
    [
        ("auto", "\nOne.\n\ntwo  \n", ["\nOne.\n\ntwo  \n"]),
        ("auto", "One", ["One"]),
        ("auto", "", []),
        ("auto", f"a\nb\n\n{SEPARATOR}\n\nc\n{SEPARATOR}  \n", ["a\nb", "c"]),
        ("auto", f"a\n{SEPARATOR}\n{SEPARATOR}\nc", ["a", "", "c"]),
        ("auto", f"{SEPARATOR}\na\n{SEPARATOR}", ["", "a"]),
        ("auto", f"a {SEPARATOR}\nb", [f"a {SEPARATOR}\nb"]),
        ("auto", f"{SEPARATOR}x\nb", [f"{SEPARATOR}x\nb"]),
        ("auto", "a\r\nb\rc\r\n", ["a\nb\rc\n"]),
        ("file", f"a\n{SEPARATOR}\nb\n", [f"a\n{SEPARATOR}\nb\n"]),
        ("line", "a\n\nb", ["a", "", "b"]),
        ("paragraph", "\n\na\nb\n \n\nc\n", ["a\nb", "c"]),
    ],
)
def test_what_a_document_is_follows_from_the_unit(
    tmp_path: Path, unit: str, text: str, wanted: list[str]
) -> None:
    assert read(text, tmp_path, unit=unit) == wanted


def test_lines_of_json_are_documents_by_their_field(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"body": text}) + "\n" for text in ("a\nb", "c"))
    assert read(lines, tmp_path, "a.jsonl", text_field="body") == ["a\nb", "c"]
    assert read(lines, tmp_path, "a", text_field="body") == ["a\nb", "c"]
    assert read(lines, tmp_path, "a.txt") == [lines]  # no field `text`: a text with brackets
    assert read(lines, tmp_path, "a.jsonl") == ["a\nb", "c"]  # only that can be meant
    more = json.dumps({"body": "a", "title": "b"})
    with pytest.raises(DataError, match=naming("data.text_field", "'body' 'a' 'title' 'b'")):
        read(more, tmp_path, "a.jsonl")
    with pytest.raises(DataError, match=naming("a.jsonl", 1, "'[1]'")):
        read("[1]\n", tmp_path, "a.jsonl")
    with pytest.raises(DataError, match=naming("a.jsonl", 2, "JSON")):
        read('{"text": "x"}\nplain text\n', tmp_path, "a.jsonl")


def test_long_documents_come_in_pieces_that_end_between_words(tmp_path: Path) -> None:
    text = "".join(f"word{i} and\nline " for i in range(10_000)) + "x" * 50_000 + " ä" * 20_000
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    pieces = pieces_of(path)
    assert whole(pieces) == [text]
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert max(len(piece.text("text")) for piece in pieces) <= 2 * PIECE
    inside = [(one.text("text")[-1:], two.text("text")[:1]) for one, two in pairwise(pieces)]
    assert sum(not one.isspace() and two in " \n" for one, two in inside) >= len(pieces) - 6


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from(["a", " ", "\n", "\r", f"\n{SEPARATOR}\n", SEPARATOR, "ab c", "\u0301"])
    ),
    st.integers(1, 9),
    st.sampled_from(["auto", "file"]),
)
def test_chunks_and_pieces_leave_no_trace(parts: list[str], size: int, unit: Any) -> None:
    """Read in chunks of a few characters and cut into pieces of three, it is the same."""
    text = "".join(parts)
    chunks = [text[i : i + size] for i in range(0, len(text), size)]

    def stream(chunked: list[str]) -> list[str]:
        feeds = documents._line_feeds(chunked)
        found = feeds if unit == "file" else documents._trimmed(documents._separated(feeds))
        made, held = [], ""
        for part in found:
            held += part or ""
            if part is None:
                made.append(held)
                held = ""
        return [*made, held]

    assert stream(chunks) == stream([text])
    if SEPARATOR not in text:
        assert "".join(stream(chunks)) == text.replace("\r\n", "\n")


def test_no_line_is_too_long_for_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK", 1 << 12)
    monkeypatch.setattr(documents, "MAX_LINE", 10_000)
    monkeypatch.setattr(documents, "PIECE", 5_000)
    text = "x" * 100_000 + f"\n{SEPARATOR}\nlast"
    assert read(text, tmp_path) == ["x" * 100_000, "last"]


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo \xe4\n")
    with pytest.raises(DataError, match=naming("a.txt", 2, "0xe4", 8, "UTF-8")):
        pieces_of(path)
    assert whole(pieces_of(path, encoding="latin-1")) == ["one\ntwo ä\n"]


def test_a_table_that_has_the_column_is_read_by_it(tmp_path: Path) -> None:
    assert read("id\ttext\n1\ta\tb\n", tmp_path, "a.txt") == ["id\ttext\n1\ta\tb\n"]
    assert read("id\ttext\n1\ta\n\n2\tb\n", tmp_path, "a.tsv") == ["a", "", "b"]
    assert read('id,body\n1,"a, b"\n', tmp_path, "a.csv", text_field="body") == ["a, b"]
    assert read("id\tbody\n1\ta\n", tmp_path, "a.tsv") == ["id\tbody\n1\ta\n"]
