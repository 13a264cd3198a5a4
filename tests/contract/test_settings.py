"""Which settings a row reads, measured: those that nobody reads are refused, and only those.

Each row is trained for two steps, scored and asked, on every form of data that its columns allow,
while every reading of a setting outside `headway.settings` is written down.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import headway
from headway.errors import UserError
from headway.settings.run import FILES, SETTINGS, load_run_settings
from headway.specs.tasks import SPECS, Spec
from headway.specs.values import setting_types
from headway.training.check_settings import check_files, check_training

from . import columns
from .tiny import ANSWERING, ROWS, Tiny, command, settings_of

NOT_READING = (
    "headway.settings.",
    "headway.specs.",
    "headway.training.check_settings",
    "headway.training.request",
    "dataclasses",
    "copy",
    __name__,
)
"""Who looks at a setting only to check it, to copy it or to write it down."""

DEFAULTS = "headway.settings.default_facts"
"""Who looks at a setting because defaults of others depend on it."""

ELSEWHERE = ("start", "lora", "distil")
"""Sections that mean the same to every task; they have tests of their own."""

Said = dict[str, Any]


class Recorder:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: set[str] = set()
        for section, kind in SETTINGS.items():
            watched = self._watched(section, kind)
            monkeypatch.setattr(kind, "__getattribute__", watched, raising=False)

    def _watched(self, section: str, kind: type[Any]) -> Callable[[Any, str], Any]:
        names = {one.name for one in fields(kind)}

        def get(settings: Any, name: str) -> Any:
            if name in names:
                reader = sys._getframe(1)
                is_check = reader.f_locals.get("self") is settings
                module = reader.f_globals["__name__"]
                counts = module == DEFAULTS or not module.startswith(NOT_READING)
                if counts and not is_check:
                    self.read.add(f"{section}.{name}")
            return object.__getattribute__(settings, name)

        return get


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


TOGETHER: dict[str, Said] = {
    "decode.groups": {"decode.beam": 8},
    "data.max_ratio": {"data.max_ratio": 2.0},
    "train.metric": {"train.metric": "loss"},
    "identify.scale": {"identify.margin": 0.25},
}
"""Values that go with one, or its own."""

ONLY = {"mean": "number", "std": "number", "balance": "label", "teacher": "label"}
"""Settings of a section that go with one kind of answer alone."""


def files_of(row: Spec) -> str:
    """The setting that takes its files."""
    if row.modality != "text":
        return "data.media"
    return "data.pairs" if row.reads == "pairs" else "data.text"


def changed(row: Spec, *keys: str) -> Said:
    """Values for settings that they do not have anyway, for a run of the row."""
    found: Said = {"task": row.name, files_of(row): ["x"]}
    found |= {key: x for key, x in settings_of(row).items() if key.startswith(f"{row.name}.")}
    for key in keys:
        section, leaf = key.split(".")
        hint = setting_types(SETTINGS[section])[leaf]
        found |= {key: another(hint, getattr(SETTINGS[section](), leaf)), **TOGETHER.get(key, {})}
    return found


def accepted(row: Spec, *keys: str) -> bool:
    """Whether someone may set them."""
    try:
        settings = load_run_settings(None, [], changed(row, *keys))
        check_files(settings)
        check_training(settings)
    except UserError:
        return False
    return True


def keys_of(row: Spec) -> list[str]:
    """All settings that might be its own."""
    every = [
        f"{section}.{one.name}"
        for section, kind in SETTINGS.items()
        if section not in ELSEWHERE and (section not in SPECS or section == row.name)
        for one in fields(kind)
    ]
    no_choice = {f"data.{name}" for name in FILES}
    no_choice |= {
        f"{row.name}.{name}" for name in ("modality", "answer")
    }  # the row is of one of them
    no_choice |= {f"{row.name}.{name}" for name, answer in ONLY.items() if answer != row.answers}
    return [key for key in every if key not in no_choice]


def own_of(row: Spec) -> Said:
    """Settings of its own section with other values, as many as go together."""
    taken: list[str] = []
    for key in keys_of(row):
        section, leaf = key.split(".")
        kind = setting_types(SETTINGS[section])[leaf]
        if section == row.name and kind not in (str, str | None):
            taken += [key] * accepted(row, *taken, key)
    found = changed(row, *taken)
    return {key: found[key] for key in taken}


Rows = list[dict[str, Any]]


def forms(tiny: Tiny, folder: Path) -> Iterator[tuple[Rows | Path, Said]]:
    """Its examples with other columns, each with settings that say so; in memory, or in a file."""
    row, plain = tiny.row, tiny.examples
    yield plain, {"augment.rand": 1} if accepted(row, "augment.rand") else {}
    yield plain, own_of(row)
    inputs = [need.name for need in row.needs if need.role == "input"]
    if accepted(row, "data.fields"):
        parts = [{"title": one[inputs[0]][:3], "body": one[inputs[0]]} for one in plain]
        rest = [{k: v for k, v in one.items() if k not in inputs} for one in plain]
        yield (
            [a | b for a, b in zip(parts, rest, strict=True)],
            {"data.fields": ["title", "body"]},
        )
    for need in row.needs:
        if need.optional:
            more = [
                columns.KINDS[columns.kind_of(need)](n + 1, need, tiny.files)
                for n in range(len(plain))
            ]
            yield [one | {need.name: x} for one, x in zip(plain, more, strict=True)], {}
    if "data.unit" in keys_of(row) and accepted(row, "data.unit"):
        (folder / "lines.txt").write_text("".join(f"{one[inputs[0]]}\n" for one in plain))
        yield folder / "lines.txt", {}
    if row.reads == "texts":  # two of each, in place of one that is read twice
        yield [{k: v for k, v in one.items() if k not in inputs[:1]} for one in plain], {}


SEARCHES = (
    ("decode.sample=true",),
    ("decode.sample=false", "decode.beam=2", "decode.groups=2", "decode.length_penalty=power"),
)
"""Ways to write that read settings which the others do not."""


def in_use(tiny: Tiny, rows: Rows | Path, said: Said, out: Path) -> None:
    """Trained, scored and asked."""
    row = tiny.row
    short = {"train.steps": 2, "train.eval_every": 2, "train.average": 1}
    said = {key: value for key, value in settings_of(row).items() if key not in said} | said
    run = headway.train(
        row.name, rows, out=out, settings=said | short, device="cpu", quiet=True
    )  # fmt: skip
    if isinstance(rows, Path):
        return
    if run.evaluate(rows[:6]) and row not in ANSWERING:
        return
    targets = {columns.name_of(need) for need in row.needs if need.role == "target"}
    asked = tiny.questions[:2]
    if rows[0].keys() - targets != asked[0].keys():
        asked = [{k: v for k, v in one.items() if k not in targets} for one in rows[:2]]
    file = columns.write(out.parent / f"{out.name}.jsonl", asked)
    field = ["--field", "body"] if "field" in row.options and "title" in asked[0] else []
    for more in SEARCHES if "sample" in row.decode else [()]:
        code, _, wrong = command("predict", str(out), file, "--device", "cpu", *field, *more)
        assert code == 0, wrong


REFUSED_THOUGH_READ = {
    "train.rdrop": "one loss is for all tasks, also for those whose answers cannot be compared",
    "data.unit": "one cache is for all open files, and files of plain text differ by it",
    "data.on_bad_row": "documents without fields have no wrong lines",
    "data.fields": "one way reads questions of all tasks in one language",
    "data.other_field": "and with them a second text",
    "data.text_field": "one binding asks what columns are called",
    "data.label_field": "one binding asks what columns are called",
    "decode.n_best": "one printer is for all answers",
    "classify.teacher": "videos are read as images are",
    "augment.mixup": "one augmentation is for all images, also for those without labels",
    "augment.cutmix": "one augmentation is for all images, also for those without labels",
}


def test_a_row_takes_the_settings_that_it_reads_and_no_others(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder = Recorder(monkeypatch)
        for number, (rows, found) in enumerate(forms(tiny, tmp_path)):
            in_use(tiny, rows, found, tmp_path / str(number))
    keys = keys_of(tiny.row)
    taken = {key for key in keys if accepted(tiny.row, key)}
    assert sorted(taken - recorder.read) == []  # these would be lies
    assert sorted((recorder.read & set(keys)) - taken - REFUSED_THOUGH_READ.keys()) == []


def test_every_setting_is_of_some_row() -> None:
    rows: dict[str, list[Spec]] = {}
    for row in ROWS:
        for key in keys_of(row):
            rows.setdefault(key, []).append(row)
    assert [key for key, of in rows.items() if not any(accepted(row, key) for row in of)] == []
