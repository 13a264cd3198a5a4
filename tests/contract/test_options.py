"""Every option of every row changes something, or is an error; those that only save time change
nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UserError
from headway.run import COMMAND_OPTIONS, CONSTRAINTS
from headway.specs.tasks import Spec
from tests.facts import naming

from .columns import write
from .tiny import ANSWERING, Tiny, assert_same, named

Said = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """Values under which an option has something to change."""

    value: Any
    """Or a function of the run and a folder that makes one."""

    beside: Said = field(default_factory=dict)
    """Other options, which are said with and without it."""

    instead: Any = None
    """What is said where this is not, if that may be what is usual."""

    long: bool = False
    """Of a text that is longer than any of training."""


BEST = {"beam": 4, "n_best": 4}
DRAWN = {"sample": True, "n_best": 8}
LONG = {"min_len": 5, "max_len": 12}
"""What is written repeats itself."""


def last_word(asked: Tiny, folder: Path) -> list[str]:
    """Of what is written at length."""
    beside = {name: one for name, one in LONG.items() if name in asked.run.options()}
    return [asked.run(asked.questions[0], **beside).text.split()[-1]]


def one_file(asked: Tiny, folder: Path) -> str:
    """What it is asked, in a file; of media the first of them."""
    (name, *_) = asked.questions[0]
    value = str(asked.questions[0][name])
    if Path(value).is_file():
        return value
    (folder / "lines.txt").write_text("".join(f"{one[name]}\n" for one in asked.questions))
    return str(folder / "lines.txt")


def shots(asked: Tiny, folder: Path) -> str:
    rows = [{"prompt": "the film", "answer": "long"}, {"prompt": "a day", "answer": "great"}]
    return write(folder / "shots.jsonl", rows)


OPTIONS: dict[str, Way | tuple[Way, ...]] = {
    "beam": (Way(4, LONG, instead=1), Way(4, instead=1)),
    "length_penalty": (Way("none", BEST), Way("power", {"length_penalty_alpha": 5.0})),
    "length_penalty_alpha": Way(9.0, BEST),
    "coverage": Way(9.0, BEST),
    "n_best": (Way(3, {"beam": 4}), Way(8, {"sample": True}, instead=1)),
    "extra_len": Way(0, {"min_len": 29, "max_len": 30}),
    "max_len": Way(2),
    "min_len": Way(9),
    "sample": Way(True),
    "temperature": Way(9.0, DRAWN),
    "top_k": Way(1, DRAWN),
    "top_p": Way(0.01, DRAWN),
    "min_p": Way(1.0, DRAWN),
    "seed": Way(7, DRAWN),
    "groups": (Way(2, BEST), Way(2, {"beam": 2})),
    "diversity": Way(99.0, {**BEST, "groups": 2}),
    "repetition_penalty": Way(99.0, LONG),
    "no_repeat_ngram": Way(1, LONG),
    "unknown": Way("keep", {**DRAWN, "n_best": 64}),
    "stop": Way(last_word, LONG),
    "alignments": Way(True),
    "on_long": Way("error", long=True),
    "prefix": Way("dada"),
    "required": Way(["dada"]),
    "banned": Way(last_word, LONG),
    "shots": Way(shots),
    "field": Way("body"),
    "top": Way(1),
    "nearest": Way(one_file),
    "against": Way(one_file),
}
"""By the names of options, of whatever task."""

QUICKER: dict[str, Way | tuple[Way, ...]] = {
    "batch_tokens": Way(8),
    "draft": Way(lambda asked, folder: str(asked.folder)),
}
"""Nothing but time is to depend on these."""

KNOWN = OPTIONS | QUICKER


def calls(asked: Tiny, folder: Path, name: str) -> Iterator[tuple[Any, Any]]:
    """The answers without the option and with it, in each of its ways."""
    found = KNOWN[name]
    for way in found if isinstance(found, tuple) else (found,):
        yield call(asked, folder, name, way)


def call(asked: Tiny, folder: Path, name: str, way: Way) -> tuple[Any, Any]:
    questions = asked.questions
    if way.long:
        questions = [{key: " ".join([one[key]] * 60) for key in one} for one in questions]
    value = way.value(asked, folder) if callable(way.value) else way.value
    beside = {key: one for key, one in way.beside.items() if key in asked.run.options()}
    instead = {} if way.instead is None else {name: way.instead}
    usual = asked.run(questions, **beside, **instead)
    return usual.to_dicts(), asked.run(questions, **beside, **{name: value}).to_dicts()


def offered(row: Spec) -> set[str]:
    """What calls of its runs may say, by the table."""
    own = row.options - COMMAND_OPTIONS
    return row.decode - {"precision"} | (
        own - {"constraints"} | CONSTRAINTS if "constraints" in own else own
    )


def pairs(names: Iterable[str]) -> Any:
    """A row and an option of it, once for each."""
    found = [(row, name) for row in ANSWERING for name in names if name in offered(row)]
    ids = [f"{named(row)}-{name}" for row, name in found]
    return pytest.mark.parametrize(("asked", "name"), found, ids=ids, indirect=["asked"])


def test_options_are_those_of_the_table_and_all_have_a_way_here(asked: Tiny) -> None:
    assert set(asked.run.options()) == offered(asked.row)
    assert sorted(offered(asked.row) - KNOWN.keys()) == []


def test_an_option_of_another_task_is_an_error(asked: Tiny) -> None:
    for name in KNOWN.keys() - offered(asked.row):
        with pytest.raises(TypeError, match=naming(f"{name}=")):
            asked.run(asked.questions[0], **{name: 1})


@pairs(OPTIONS)
def test_an_option_changes_something_or_is_an_error(asked: Tiny, name: str, tmp_path: Path) -> None:
    try:
        found = any(usual != changed for usual, changed in calls(asked, tmp_path, name))
    except UserError as error:
        found = name in str(error) or name.replace("_", " ") in str(error)
    assert found, "the answers are the same with it and without it, and it is not an error"


@pairs(QUICKER)
def test_what_saves_time_changes_nothing(asked: Tiny, name: str, tmp_path: Path) -> None:
    [(usual, changed)] = calls(asked, tmp_path, name)
    assert_same(changed, usual)
