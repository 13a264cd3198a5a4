"""Errors name options as the user gives them: flags of a command, or arguments in Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import headway
from headway.cli.main import main
from headway.errors import (
    ColumnName,
    Edge,
    MissingColumnError,
    Option,
    UserError,
    called_by,
)
from tests.facts import missing

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reviews.tsv").write_text("review\tstars\n" + "good film\tup\nbad film\tdown\n" * 20)
    Path("a.txt").write_text("One.\nTwo.\n" * 20)


WRONG: dict[str, tuple[str, Callable[[], object], str, str]] = {
    "no data": (
        "train classify --out run", lambda: headway.train("classify", out="run"),
        "FILES", "data",
    ),
    "no pairs": (
        "train translate --out run", lambda: headway.train("translate", out="run"),
        "--source --target", "source=… target=…",
    ),
    "no task": (
        "train --out run", lambda: headway.train(out="run"), "--recipe", "recipe=…",
    ),
    "one side": (
        "train translate --source a.txt --out run",
        lambda: headway.train("translate", source="a.txt", out="run"), "--pairs", "pairs=",
    ),
    "no teacher": (
        "train distil a.txt --out run", lambda: headway.train("distil", "a.txt", out="run"),
        "--teacher RUN", "teacher=…",
    ),
    "a teacher without effect": (
        "check classify reviews.tsv --teacher shapes",
        lambda: headway.check("classify", "reviews.tsv", teacher="shapes"),
        "--teacher", "teacher=",
    ),
    "distillation without a teacher": (
        "train complete a.txt --out run distil.soft=0.2",
        lambda: headway.train("complete", "a.txt", out="run", settings={"distil.soft": 0.2}),
        "distil --teacher RUN", "distil teacher=…",
    ),
    "a teacher in the settings": (
        "train complete a.txt --out run distil.teacher=stories",
        lambda: headway.train(
            "complete", "a.txt", out="run", settings={"distil.teacher": "stories"}
        ),
        "distil.teacher=stories", "distil.teacher=stories",
    ),
    "validation data alone": (
        "train complete --text a.txt --valid a.txt --out run",
        lambda: headway.train("complete", text="a.txt", valid="a.txt", out="run"),
        "--valid FILES --valid-text", "valid= data valid_text=",
    ),
    "no run with fields": (
        "train detect a.txt --out run", lambda: headway.train("detect", "a.txt", out="run"),
        "--from RUN", "start=…",
    ),
    "from scratch": (
        "train complete a.txt --out run lora.rank=2",
        lambda: headway.train("complete", "a.txt", out="run", settings={"lora.rank": 2}),
        "--from RUN", "start=…",
    ),
    "budget": (
        "train complete a.txt --out run --budget soon",
        lambda: headway.train("complete", "a.txt", out="run", budget="soon"),
        "--budget soon", 'budget="soon"',
    ),
    "length twice": (
        "train complete a.txt --out run --budget 10m --steps 5",
        lambda: headway.train("complete", "a.txt", out="run", budget="10m", steps=5),
        "--budget 10m", 'budget="10m"',
    ),
    "column of another task": (
        "train complete a.txt --label x --out run",
        lambda: headway.train("complete", "a.txt", label="x", out="run"), "--label", "label=",
    ),
    "missing column": (
        "check classify reviews.tsv --text revew --label stars",
        lambda: headway.check("classify", "reviews.tsv", text="revew", label="stars"),
        "--text revew", 'text="revew"',
    ),
    "column given twice": (
        "check classify reviews.tsv --text review data.text_field=stars",
        lambda: headway.check(
            "classify", "reviews.tsv", text="review", settings={"data.text_field": "stars"}
        ),
        "--text review", 'text="review"',
    ),
    "files given twice": (
        "train complete a.txt data.text=b.txt --out run",
        lambda: headway.train("complete", "a.txt", out="run", settings={"data.text": "b.txt"}),
        "FILES data.text=b.txt", "data data.text=b.txt",
    ),
    "missing column of a setting": (
        "check classify reviews.tsv data.text_field=revew --label stars",
        lambda: headway.check(
            "classify", "reviews.tsv", label="stars", settings={"data.text_field": "revew"}
        ),
        "data.text_field='revew'", "data.text_field='revew'",
    ),
    "folder": (
        "train complete a.txt --out a.txt",
        lambda: headway.train("complete", "a.txt", out="a.txt", quiet=True),
        "--out", "out=",
    ),
    "decoding of another task": (
        "predict base-en a.txt --beam 3", lambda: headway.load("base-en")("One.", beam=3),
        "--beam translate caption", "beam= translate caption",
    ),
    "option of another task": (
        "predict tatoeba-de-en a.txt --draft stories",
        lambda: headway.load("tatoeba-de-en")("One.", draft="stories"),
        "--draft complete", "draft= complete",
    ),
    "engine": (
        "predict stories a.txt --engine jax", lambda: headway.load("stories", engine="jax"),
        "--engine", "engine=",
    ),
    "export": (
        "export stories --to nothing --out o",
        lambda: headway.load("stories").export("nothing", "o"), "--to", "to=",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_same_error_names_the_flag_or_the_argument(name: str, capsys: Capsys) -> None:
    words, call, flag, argument = WRONG[name]
    assert main(words.split()) == 2
    printed = capsys.readouterr().err
    assert not missing(printed, flag)
    with pytest.raises(UserError) as caught:
        call()
    assert not missing(caught.value, argument)
    own = {one for one in flag.split() if one.startswith("--")}
    assert not [one for one in own if one in str(caught.value).partition("headway ")[0]]


def test_an_option_is_named_as_it_is_given() -> None:
    options = {
        Option("n_best"): ("--n-best", "n_best="),
        Option("n_best", 3): ("--n-best 3", "n_best=3"),
        Option("beam", 1): ("--beam 1", "beam=1"),
        Option("restart", True): ("--restart", "restart=True"),
        Option("start", "my run"): ("--from 'my run'", 'start="my run"'),
        Option("start", "BASE"): ("--from BASE", 'start="BASE"'),
        Option("start", takes="RUN"): ("--from RUN", "start=…"),
        Option("out", Path("a/b")): ("--out a/b", 'out="a/b"'),
        Option("stream"): ("--stream", "write()"),
    }
    for option, (flag, argument) in options.items():
        with called_by(Edge.COMMAND_LINE):
            assert str(option) == flag
        with called_by(Edge.HTTP):
            assert str(option) == option.name
        assert str(option) == argument


def test_threads_of_a_command_name_flags() -> None:
    found: list[str] = []
    with called_by(Edge.COMMAND_LINE):
        worker = threading.Thread(target=lambda: found.append(f"{Option('out')}"))
        worker.start()
        worker.join()
    assert found == ["--out"]


def test_a_missing_column_is_named_by_a_setting_or_an_option() -> None:
    error = MissingColumnError(["no ", ColumnName("text", "data.text_field", "a b"), "\u202e"])
    assert str(error) == "no data.text_field='a b'\\u202e"
    error.name_options()
    assert str(error) == 'no text="a b"\\u202e'
