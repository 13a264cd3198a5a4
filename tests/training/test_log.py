"""The log of a run: a line for each thing, whole again after a kill, and never in the way."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headway.training.log
from headway.errors import UserError
from headway.progress import Progress
from headway.training.log import RunLog, TensorBoardWriter


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(tmp_path: Path, said: io.StringIO) -> RunLog:
    return RunLog(tmp_path, Progress(stream=said))


def entries(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n")[:-1]]


ODD = "one\u2028two\x85three\x0bfour\tfive"


def valid(log: RunLog, step: int) -> None:
    sample = {"source": ODD, "target": "ü", "output": "€"}
    log.numbers(
        "valid", step, loss=1.25, ppl=3.5, bleu=20.0, chrf=40.0, best=True, samples=[sample]
    )


def test_every_number_is_kept(tmp_path: Path, log: RunLog, said: io.StringIO) -> None:
    log.numbers("train", 1, loss=2.5, lr=1e-3)
    valid(log, 1)
    log.event(1, "something happened")
    first, second, third = entries(tmp_path)
    assert (first["kind"], first["step"], first["loss"], first["lr"]) == ("train", 1, 2.5, 1e-3)
    assert second["samples"] == [{"source": ODD, "target": "ü", "output": "€"}]
    assert (third["kind"], third["text"]) == ("event", "something happened")
    assert all(entry["time"] > 1e9 for entry in entries(tmp_path))
    assert re.search(
        r"\bstep 1\b.*\bloss 1\.25  ppl 3\.5  bleu 20  chrf 40\b.*\bbest\b", said.getvalue()
    )
    assert "→ €" in said.getvalue()


def test_the_scores_of_any_task_are_printed(log: RunLog, said: io.StringIO) -> None:
    log.numbers("valid", 3, loss=0.5, accuracy=80.25, f1=79.5, seconds=2.0, best=False, figures={})
    assert re.search(r"\bstep 3\b.*\bloss 0\.5  accuracy 80\.25  f1 79\.5\n", said.getvalue())


def test_rewinding_forgets_what_came_after_and_what_was_torn(tmp_path: Path, log: RunLog) -> None:
    for step in (1, 2, 3):
        log.numbers("train", step, loss=1.0)
        valid(log, step)
    log.numbers("end", 2, text="done")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('[1, 2]\n{"kind": "train", "st')
    log.rewind(2)
    kept = entries(tmp_path)
    assert [(e["kind"], e["step"]) for e in kept] == [
        ("train", 1), ("valid", 1), ("train", 2), ("valid", 2),
    ]  # fmt: skip
    assert kept[1]["samples"][0]["source"] == ODD  # characters that some take for a line's end
    log.numbers("train", 3, loss=1.0)
    assert entries(tmp_path)[-1]["step"] == 3


def test_rewinding_a_new_run_does_nothing(tmp_path: Path, log: RunLog) -> None:
    log.rewind(0)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_log_is_reported_once_and_stops_nothing(
    tmp_path: Path, log: RunLog, said: io.StringIO
) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    for step in range(5):
        log.numbers("train", step, loss=1.0)
        log.event(step, "hello")
    [warning] = [line for line in said.getvalue().splitlines() if line.startswith("warning: ")]
    assert "metrics.jsonl" in warning
    assert said.getvalue().count("hello") == 5


def test_a_rank_that_writes_nothing(tmp_path: Path) -> None:
    log = RunLog(None, Progress(enabled=False))
    log.numbers("train", 1, loss=1.0)
    log.event(1, "x")
    log.rewind(0)
    assert list(tmp_path.iterdir()) == []


def test_numbers_also_go_to_tensorboard_if_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    class Writer:
        def __init__(self, folder: str) -> None:
            written.append(folder)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None:
            pass

    monkeypatch.setattr(headway.training.log, "needs", lambda module, extra: None)
    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    log = RunLog(tmp_path, Progress(enabled=False))
    log.numbers("train", 1, loss=2.0)
    log.tensorboard = TensorBoardWriter(tmp_path)
    log.numbers("valid", 3, loss=1.5, ppl=4.5, bleu=10.0, chrf=20.0, best=True, samples=[])
    assert written == [
        str(tmp_path / "tensorboard"),
        ("valid/loss", 1.5, 3),
        ("valid/ppl", 4.5, 3),
        ("valid/bleu", 10.0, 3),
        ("valid/chrf", 20.0, 3),
    ]


def test_tensorboard_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"pip install .headway\[tensorboard\]"):
        TensorBoardWriter(tmp_path)
