"""Which settings a task reads, measured: those that nobody reads are refused, and only those.

Each task is trained for two steps and asked once, in every form that its data can have, while every
reading of a setting outside `headway.config` is written down.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from headway.cli.main import main
from headway.config.hints import setting_types
from headway.config.run import FILES, SETTINGS, load_run_settings
from headway.errors import UserError
from headway.tasks.specs import SPECS, spec_of
from headway.text.tokenizer import MASK
from headway.training.asking import check_files, check_training
from headway.training.run import Training

from ..training import every, labelled

NOT_READING = (
    "headway.config.", "headway.training.asking", "dataclasses", "copy",
)  # fmt: skip
"""Who looks at a setting only to check it, to copy it or to write it down."""

ELSEWHERE = ("start", "lora", "distil")
"""Sections that mean the same to every task; they have tests of their own."""

Files = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One form of data, and what else must be set for all that it has to be read."""

    name: str
    """Of `every.DATA`."""

    data: Callable[[Path], Files] | None = None
    given: Files = field(default_factory=dict)
    asked: str | None = "the film"
    """What a run is asked; None: nothing."""

    words: tuple[str, ...] = ()
    """Settings of another way to decode."""

    scored: str = ""
    """The option that gives the data to `evaluate`, where a run does not answer."""


def _records(folder: Path) -> Files:
    """Documents with fields."""
    lines = [json.dumps({"title": label, "body": text}) for text, label in labelled.sentiments()]
    return {"data.text": every._lines(folder, "all.jsonl", lines), "data.fields": ["title", "body"]}


def _labelled_records(folder: Path) -> Files:
    rows = labelled.sentiments()
    lines = [json.dumps({"title": x[:3], "body": x, "label": label}) for x, label in rows]
    return {"data.text": every._lines(folder, "all.jsonl", lines), "data.fields": ["title", "body"]}


def _json_texts(folder: Path) -> Files:
    lines = [json.dumps({"text": text}) for text, _ in labelled.sentiments()]
    return {"data.text": every._lines(folder, "all.jsonl", lines)}


def _hummed(folder: Path) -> Files:
    return every.DATA["identify"](folder) | {"fill.what": "sounds"}


GROUPS = ("decode.groups=2", "decode.length_penalty=power")
DRAWN = ("decode.sample=true",)
WAYS = [
    Way("translate", words=DRAWN),
    Way("translate", every.DATA["embed"], words=GROUPS),
    Way("complete", words=("decode.sample=false", "decode.beam=2", *GROUPS, "decode.stop=['x']")),
    Way("complete", _records, asked=None),
    Way("complete", _json_texts, {"data.unit": "line"}),
    Way("fill", asked=f"the {MASK} film"),
    Way("fill", _json_texts, asked=None),
    Way("fill pictures", given={"augment.rand": 1}, asked=None, scored="--media"),
    Way("fill pictures", _hummed, asked=None),
    Way("classify"),
    Way("classify", _labelled_records, asked=None),
    Way("tag"),
    Way("embed"),
    Way("embed", _json_texts),
    Way("classify pictures", given={"augment.rand": 1}, asked="pictures/left/0.png"),
    Way("classify videos", given={"augment.rand": 1}, asked="videos/*.jsonl"),
    Way("classify sounds", asked="speakers/a/0.wav"),
    Way("identify", given={"identify.margin": 0.2}, asked="speakers/a/0.wav"),
    Way("caption", given={"augment.rand": 1}, words=DRAWN, asked="scenes.jsonl"),
    Way("caption", words=GROUPS, asked="scenes.jsonl"),
    Way("transcribe", words=DRAWN, asked="said.jsonl"),
    Way("transcribe", words=GROUPS, asked="said.jsonl"),
]


class Recorder:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: set[str] = set()
        for section, kind in SETTINGS.items():
            monkeypatch.setattr(
                kind, "__getattribute__", self._watched(section, kind), raising=False
            )

    def _watched(self, section: str, kind: type[Any]) -> Callable[[Any, str], Any]:
        names = {one.name for one in fields(kind)}

        def get(settings: Any, name: str) -> Any:
            if name in names:
                reader = sys._getframe(1)
                is_check = reader.f_locals.get("self") is settings
                if not is_check and not reader.f_globals["__name__"].startswith(NOT_READING):
                    self.read.add(f"{section}.{name}")
            return object.__getattribute__(settings, name)

        return get


def _question(folder: Path, asked: str) -> list[str]:
    """A file with one line, or a file of the data; of a list its first line."""
    found = list(folder.glob(asked)) if "." in asked else []
    if found and found[0].suffix != ".jsonl":
        return [str(found[0])]
    text = found[0].read_text().split("\n")[0] if found else asked
    path = (found[0].parent if found else folder) / ("ask.jsonl" if found else "ask.txt")
    path.write_text(f"{text}\n")
    return [str(path)]


def _trained_and_asked(way: Way, folder: Path) -> None:
    folder.mkdir()
    task = way.name.split()[0]
    given = {"task": task, "data.valid_size": 12} | labelled.TINY | labelled.SHORT
    given |= (way.data or every.DATA[way.name])(folder) | way.given
    given |= {"train.steps": 2, "train.eval_every": 2, "train.average": 1}
    if task == "embed":
        del given["train.micro_tokens"]
    run = folder / "run"
    settings = load_run_settings(None, [], given)
    assert not Training(settings=settings, out=run, device="cpu").train()
    if way.scored:
        (files,) = given["data.media"]
        assert main(["evaluate", str(run), way.scored, files, "--device", "cpu"]) == 0
    if way.asked is not None:
        command = ["predict", str(run), *_question(folder, way.asked), "--device", "cpu"]
        assert main(command) == 0
        if way.words:
            assert main([*command, *way.words]) == 0


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By the names of `every.DATA`."""
    found: dict[str, set[str]] = {name: set() for name in every.DATA}
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder = Recorder(monkeypatch)
        for number, way in enumerate(WAYS):
            recorder.read = set()
            _trained_and_asked(way, tmp_path_factory.mktemp("way") / str(number))
            found[way.name] |= recorder.read
    return found


def another(hint: Any, usual: Any) -> Any:
    """A value that the setting does not have anyway."""
    if get_origin(hint) is Literal:
        return next(word for word in get_args(hint) if word != usual)
    if hint is bool:
        return not usual
    if get_origin(hint) is tuple:
        return ["x"]
    if hint in (int, int | None):
        return 2 * (usual or 4)
    if hint in (float, float | None):
        return 0.5 if usual != 0.5 else 0.25
    return "x"


TOGETHER: dict[str, Files] = {
    "decode.groups": {"decode.beam": 8},
    "data.max_ratio": {"data.max_ratio": 2.0},
}  # fmt: skip
"""Values that go with one, or its own."""


def accepted(name: str, key: str) -> bool:
    """Whether someone may set it."""
    task, *what = name.split()
    media = what or spec_of(task).modality != "text"
    usual = "data.media" if media else "data.pairs" if task == "translate" else "data.text"
    section, leaf = key.split(".")
    value = another(setting_types(SETTINGS[section])[leaf], getattr(SETTINGS[section](), leaf))
    if key == "train.metric":
        value = "loss"
    given = {"task": task, usual: ["x"], key: value, **TOGETHER.get(key, {})}
    given |= {f"{task}.what": one for one in what}
    try:
        settings = load_run_settings(None, [], given)
        check_files(settings)
        check_training(settings)
    except UserError:
        return False
    return True


REFUSED_THOUGH_READ = {
    "train.rdrop": "one loss is for all tasks, also for those whose answers cannot be compared",
    "data.bad": "documents without fields are read as those with them, but have no wrong lines",
    "data.fields": "one way reads questions of all tasks in one language",
    "decode.n_best": "one printer is for all answers",
    "classify.teacher": "videos are read as pictures are",
    "fill.what": "it says of which data a task is, which must be the data that is given",
}


@pytest.mark.parametrize("name", every.DATA)
def test_a_task_takes_the_settings_that_it_reads_and_no_others(
    name: str, read: dict[str, set[str]]
) -> None:
    task = name.split()[0]
    keys = {
        f"{section}.{one.name}"
        for section, kind in SETTINGS.items()
        if section not in ELSEWHERE and (section not in SPECS or section == task)
        for one in fields(kind)
        if section != "data" or one.name not in FILES
    }
    taken = {key for key in keys if accepted(name, key)}
    assert sorted(taken - read[name]) == []  # these would be lies
    assert sorted((read[name] & keys) - taken - REFUSED_THOUGH_READ.keys()) == []


def test_every_setting_has_a_reader(read: dict[str, set[str]]) -> None:
    everywhere = {
        f"{section}.{one.name}"
        for section, kind in SETTINGS.items()
        if section not in ELSEWHERE
        for one in fields(kind)
    }
    assert sorted(everywhere - set().union(*read.values())) == []
