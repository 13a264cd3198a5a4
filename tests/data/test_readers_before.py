"""Files that the old readers could read are read as they read them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config.data import DataSettings
from headway.config.run import RunSettings
from headway.data.example import Source, TextKind
from headway.data.pairs import read_pairs
from headway.errors import DataError
from tests.golden import before

EXAMPLES = int(os.environ.get("BEFORE_EXAMPLES", "60"))

CELL = st.text(st.sampled_from("ab ,\"'ä{;_1"), max_size=6)
WORDS = st.sampled_from(["text", "label", "source", "target", "id", "pos", "neg", "1", "a film"])
ROW = st.lists(CELL | WORDS, min_size=1, max_size=3)
LINES = st.lists(ROW.map("\t".join) | ROW.map(",".join) | st.just(""), max_size=6)
TEXTS = st.fixed_dictionaries({}, optional={"text": CELL, "label": CELL | st.integers(0, 3)})
JSON = st.lists(TEXTS.map(json.dumps), max_size=4)
NAMES = st.sampled_from(["a.tsv", "a.txt", "a.csv", "a.jsonl"])
UNITS = st.sampled_from(["auto", "line", "paragraph", "file"])


def written(folder: Path, name: str, lines: list[str]) -> str:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def old(name: str) -> Any:
    try:
        return before.before(name)
    except before.Unavailable as error:
        pytest.skip(str(error))


def outcome(read: Callable[[], list[Any]], refusal: type[Exception]) -> list[Any] | None:
    try:
        return read()
    except refusal:
        return None


def examples(kind: TextKind, path: str, data: DataSettings) -> list[Any]:
    return list(Source(kind, RunSettings(task="classify", data=data), (path,)))


@pytest.mark.before
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_labelled_texts_and_pairs(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """Unless a header, or the only way that fits, was not known as such before: what is read now
    is never less."""
    folder = tmp_path_factory.mktemp("files", numbered=True)
    name = data.draw(NAMES)
    path = written(folder, name, data.draw(JSON if name == "a.jsonl" else LINES))
    records, errors = old("data.records"), old("errors")
    numbers = data.draw(st.sampled_from([{}, {"text_field": "2", "label_field": "1"}]))
    said = old("config.data").DataSettings(**numbers)
    then = outcome(
        lambda: [(one.text, one.label, one.place) for one in records.read_records([path], said)],
        errors.UserError,
    )
    now = outcome(
        lambda: [(one.text("text"), one.text("label"), one.place)
                 for one in examples("labelled", path, DataSettings(**numbers))],
        DataError,
    )  # fmt: skip
    if then is not None and not has_header(path):
        assert now == then


def has_header(path: str) -> bool:
    """By the names of columns, of which one is enough now."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    first = next((line for line in lines if line.strip()), "")
    cells = {cell.strip().strip('"') for cell in first.replace(",", "\t").split("\t")}
    return not cells.isdisjoint({"text", "label", "source", "target"})


@pytest.mark.before
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_pairs_in_columns(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("files", numbered=True)
    lines = data.draw(st.lists(ROW.map("\t".join) | st.just(""), max_size=6))
    path = written(folder, "a.tsv", lines)
    pairs, errors = old("data.pairs"), old("errors")
    given = old("config.data").DataSettings()
    then = outcome(lambda: list(pairs.read_pairs((), (), (path,), given)), errors.UserError)
    now = outcome(lambda: list(read_pairs((), (), (path,), DataSettings())), DataError)
    if then is not None and not has_header(path):
        assert now == then


@pytest.mark.before
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_documents(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("files", numbered=True)
    path = written(folder, "a.txt", data.draw(LINES))
    unit = data.draw(UNITS)
    documents = old("data.documents")
    said = old("config.data").DataSettings(unit=unit)
    then = [(one.text, one.ends) for one in documents.read_pieces(path, said)]
    found = examples("documents", path, DataSettings(unit=unit))
    assert [(one.text("text"), one.ends) for one in found] == then
