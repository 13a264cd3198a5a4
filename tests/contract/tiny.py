"""A tiny run of every row of the table, trained once for all tests of the contract."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway.specs.needs import Need
from headway.specs.tasks import SPECS, Spec, spec_for_answer
from headway.tokens.tokenizer import MASK

from ..once import once
from . import columns, longer


def leaves_of(row: Spec) -> set[str]:
    """Names of the settings of its own section."""
    return set() if row.settings is None else {one.name for one in fields(row.settings)}


CHOICES = {"text": ("labels", "number"), "image": ("number",), "audio": ("labels",)}
"""Of answers, beside one label: for whatever is read they are made in one way."""


def rows_of(spec: Spec) -> Iterator[Spec]:
    """One for each kind of data, and for each kind of answer where that is a choice."""
    for row in spec.rows:
        yield row
        for answer in CHOICES.get(row.modality, ()) if "answer" in leaves_of(row) else ():
            yield spec_for_answer(row, answer)


ROWS = [row for spec in (*SPECS.values(), longer.ROW) for row in rows_of(spec)]
"""Of the table, and one from outside the package."""

ANSWERING = [row for row in ROWS if "rebuild" not in row.heads]
"""The others learn for those who start from them, and say so to whoever asks them."""

CPU = torch.device("cpu")
STEPS = 30
SETTINGS: dict[str, Any] = {
    "model.n_layers": 1, "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 48,
    "data.valid_size": 8, "train.batch_tokens": 192, "train.precision": "fp32", "train.threads": 1,
    "train.steps": STEPS, "train.eval_every": 15, "train.lr": 1e-2, "train.warmup": 4,
}  # fmt: skip


def named(row: Spec) -> str:
    usual = "answer" not in leaves_of(row) or row.answers == "label"
    return f"{row.name}-{row.modality}" + ("" if usual else f"-{row.answers}")


def settings_of(row: Spec) -> dict[str, Any]:
    """All that a tiny run asks for."""
    found = SETTINGS | columns.SMALL.get(row.modality, {})
    if "max_len" in row.decode:
        found["decode.max_len"] = 12
    if row.modality == "text" or row.writes:
        found["tokenizer.kind"] = "words"
    if "sample" in row.decode:
        found["decode.sample"] = False
    if row.modality != "text" and "modality" in leaves_of(row):
        found[f"{row.name}.modality"] = row.modality
    if "answer" in leaves_of(row):
        found[f"{row.name}.answer"] = row.answers
    return found


def train(row: Spec, files: Path, out: Path, **more: Any) -> headway.Run:
    """The same call every time; keywords are those of `headway.train`."""
    settings = settings_of(row) | more.pop("settings", {})
    table = columns.table(row, files)
    return headway.train(
        row.name, table, out=out, settings=settings, device="cpu", quiet=True, **more
    )


@dataclass(frozen=True)
class Tiny:
    row: Spec
    folder: Path
    """Of the finished run."""

    files: Path
    """Where images and recordings lie."""

    @cached_property
    def run(self) -> headway.Run:
        return headway.load(self.folder, device="cpu")

    @cached_property
    def examples(self) -> list[dict[str, Any]]:
        """What it was trained on, as a table in memory."""
        return columns.table(self.row, self.files)

    @property
    def inputs(self) -> tuple[Need, ...]:
        """What it is asked: of alternatives the first."""
        return self.run.needs[:1] if self.row.reads == "texts" else self.run.needs

    @cached_property
    def questions(self) -> list[dict[str, Any]]:
        """Examples without what is to be found out, of several lengths. There are gaps where
        something is to be filled in, and no ends where something goes on."""
        names = [columns.name_of(need) for need in self.inputs]
        found = [{name: one[name] for name in names} for one in self.examples[:6]]
        if self.row.answers == "gaps" and self.row.modality == "text":
            (name,) = names
            for number, one in enumerate(found):
                words = one[name].split()
                words[number % len(words)] = MASK
                one[name] = " ".join(words)
        if self.row.continues:
            (name,) = names
            found = [{name: " ".join(one[name].split()[: 1 + number % 2])}
                     for number, one in enumerate(found)]  # fmt: skip
        return found

    @cached_property
    def answers(self) -> headway.Answers:
        found = self.run(self.questions)
        assert isinstance(found, headway.Answers)
        return found

    def asked_in_a_file(self, folder: Path) -> str:
        return columns.write(folder / "questions.jsonl", self.questions)

    @cached_property
    def task(self) -> Any:
        """As the loop has it."""
        from headway.tasks.task import find_task

        kind = find_task(self.run.settings)
        return kind.objective(self.run.settings, kind.load_prepared(self.folder))

    @cached_property
    def model(self) -> Any:
        """Of the finished run, apart from the one that answers."""
        return headway.load(self.folder, device="cpu").model.eval()


def made(row: Spec, factory: pytest.TempPathFactory) -> Tiny:
    files = once(factory, "contract-files", write_files)
    folder = once(factory, f"contract-{named(row)}", lambda out: train(row, files, out / "run"))
    return Tiny(row, folder / "run", files)


def write_files(folder: Path) -> None:
    for row in ROWS:
        columns.table(row, folder)


def command(*words: str) -> tuple[int, str, str]:
    """The exit code of `headway WORDS`, and what it prints to its two outputs."""
    from headway.cli.main import main

    out, found = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    keyboard, sys.stdin = sys.stdin, io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(found):
            code = main(list(words))
    finally:
        sys.stdin = keyboard
    out.flush()
    return code, out.buffer.getvalue().decode(), found.getvalue()  # type: ignore[attr-defined]


def printed(*words: str) -> list[Any]:
    """The lines of JSON that a command prints."""
    code, out, found = command(*words)
    assert code == 0, found
    return [json.loads(line) for line in out.splitlines()]


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-4, where: str = "") -> None:
    """Texts, labels and counts equal; numbers that were computed nearly so."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_same(ours[key], theirs[key], tolerance, f"{where}.{key}")
    elif isinstance(ours, Sequence) and not isinstance(ours, str):
        assert len(ours) == len(theirs), where
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, tolerance, f"{where}[{number}]")
    elif isinstance(ours, float):
        np.testing.assert_allclose(theirs, ours, rtol=tolerance, atol=tolerance, err_msg=where)
    else:
        assert ours == theirs, where


def parts_of(tiny: Tiny, micro_tokens: int) -> Iterator[Any]:
    """The first two steps of the first epoch, cut into parts of about this size."""
    for step in tiny.task.epoch(0)[:2]:
        yield from tiny.task.parts(step, micro_tokens)
