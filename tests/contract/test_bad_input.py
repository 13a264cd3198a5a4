"""What cannot be read is named where it stands, and nothing else suffers from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway.errors import DataError, UserError
from tests.facts import missing

from . import columns
from .test_answers import without_places
from .tiny import Tiny, assert_same, command, settings_of

Bad = Callable[[Path], Any]


def _file(name: str, data: bytes) -> Bad:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(data)
        return str(folder / name)

    return make


def _array(values: Any) -> Bad:
    def make(folder: Path) -> str:
        np.save(folder / "bad.npy", values)
        return str(folder / "bad.npy")

    return make


def _is(value: Any) -> Bad:
    return lambda folder: value


FILES: dict[str, Bad] = {
    "nowhere": lambda folder: str(folder / "nowhere.png"),
    "a folder": str,
    "empty": _file("empty.png", b""),
    "no such thing": _file("text.wav", b"this is no recording and no image"),
    "broken off": _file("broken.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"),
    "nothing": _is(None),
    "a number": _is(7),
}
TEXTS: dict[str, Bad] = {"a number": _is(7), "nothing": _is(None), "bytes": _is(b"film")}
BAD: dict[str, dict[str, Bad]] = {
    "text": TEXTS,
    "words": {"a number": _is(7), "nothing": _is(None), "numbers": _is([1, 2])},
    "image": FILES | {"one axis": _array(np.zeros(8, np.uint8))},
    "video": FILES | {"one axis": _array(np.zeros(8, np.uint8))},
    "audio": FILES | {"an array": _array(np.zeros((8, 8), np.uint8))},
    "duels": FILES | {"one of two": _file("text.duel", b"a.wav\n")},
}
"""Of what a run is asked, by the kind of the column."""

EMPTY_TEXTS: dict[str, Bad] = {"nothing": _is(None), "empty": _is(""), "spaces": _is("   ")}

UNTAUGHT: dict[str, dict[str, Bad]] = {
    "text": EMPTY_TEXTS,
    "captions": EMPTY_TEXTS,
    "words": {"nothing": _is(None), "empty": _is([]), "numbers": _is([1, 2])},
    "label": {"nothing": _is(None), "empty": _is("")},
    "labels": {"lists in it": _is([[1]])},
    "number": {"nothing": _is(None), "a word": _is("much")},
    "tags": {"nothing": _is(None), "too few": _is(["O"]), "numbers": _is([1, 2])},
    "image": FILES,
    "video": FILES,
    "audio": FILES,
    "duels": FILES | {"one of two": _file("text.duel", b"a.wav\n")},
}
"""Of what a run is trained on."""


MORE = "an unknown column"


def bad_questions(asked: Tiny, folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"nothing at all": {}}
    found[MORE] = {**asked.questions[0], "colour": "red"}
    for need in asked.inputs:
        for what, make in BAD[columns.kind_of(need)].items():
            place = folder / what
            place.mkdir(parents=True, exist_ok=True)
            found[what] = {**asked.questions[0], columns.name_of(need): make(place)}
    return found


def test_a_bad_input_is_an_error_at_its_place(asked: Tiny, tmp_path: Path) -> None:
    good = asked.questions[:2]
    wanted = [one.to_dict() for one in asked.answers[:2]]
    for what, bad in bad_questions(asked, tmp_path).items():
        with pytest.raises(DataError):
            asked.run(bad)
        if what == MORE:  # a table may have columns that are not read
            assert len(asked.run([good[0], bad, good[1]])) == 3
            continue
        places = [r"\b2\b", *(re.escape(str(value)) for value in bad.values())]
        with pytest.raises(DataError, match="|".join(places)):
            asked.run([good[0], bad, good[1]])
        found = list(asked.run.stream([good[0], {**bad, "id": what}, good[1]], errors="keep"))
        assert [bool(one.error) for one in found] == [False, True, False], what
        assert found[1].id == what
        assert_same([found[0].to_dict(), found[2].to_dict()], wanted)
        json.dumps(found[1].to_dict(), allow_nan=False)


def test_the_command_line_names_it_and_answers_what_is_before(asked: Tiny, tmp_path: Path) -> None:
    wanted = without_places([asked.answers[0].to_dict()])
    for number, (what, bad) in enumerate(bad_questions(asked, tmp_path).items()):
        if any(isinstance(value, bytes) for value in bad.values()):
            continue  # which no line of JSON holds
        rows = [asked.questions[0], bad, asked.questions[1]]
        file = columns.write(tmp_path / f"n{number}.jsonl", rows)
        code, out, found = command("predict", str(asked.folder), file, "--json", "--device", "cpu")
        lines = without_places([json.loads(line) for line in out.splitlines()])
        if not (len(lines) == 1 and "error" in lines[0]):  # of a whole list that cannot be read
            assert_same(lines[:1], wanted)
        if what == MORE or (code == 0 and None in bad.values()):
            assert (code, len(lines)) == (0, 3)  # a column that is not read, and a missing text
            continue
        assert code == 2, (what, found)
        named = [value for value in bad.values() if str(value) in found]
        assert named or not missing(found, 2), (what, found)


def test_data_that_cannot_be_learned_from_is_named(tiny: Tiny, tmp_path: Path) -> None:
    """By the check, before anything is trained."""
    for need in tiny.row.needs:
        if need.optional:
            continue
        for what, make in UNTAUGHT[columns.kind_of(need)].items():
            place = tmp_path / what
            place.mkdir(exist_ok=True)
            rows = [dict(one) for one in tiny.examples]
            rows[5][columns.name_of(need)] = make(place)
            with suppress(UserError):
                report = headway.check(tiny.row.name, rows, settings=settings_of(tiny.row))
                read = report.columns.get(columns.name_of(need), need.name)
                assert report.findings or not read, f"{need.name}: {what}"
