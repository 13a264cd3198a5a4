"""The pieces of a tiny run that are stored: one function per piece, from the run to plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import seams
from .cells import CELLS, TRAINING, Cell, settings_of
from .compare import array_facts, digest, plain
from .inputs import WRITERS

STEPS = int(TRAINING["train.steps"])
MEASURED = ("seconds", "tokens_per_s", "stall", "time")
"""Keys of the log whose values are measured times."""


@dataclass(frozen=True)
class TinyRun:
    """The run of a cell, in a folder of its own."""

    name: str
    root: Path

    @property
    def cell(self) -> Cell:
        return CELLS[self.name]

    @cached_property
    def made(self) -> seams.Run:
        # Relative paths: `config.toml` must not depend on where the folder is.
        with chdir(self.root):
            teacher = ""
            if self.cell.teacher:
                teacher = f"{self.cell.teacher}-run"
                self._make(CELLS[self.cell.teacher], "", teacher)
            return self._make(self.cell, teacher, "run")

    @staticmethod
    def _make(cell: Cell, teacher: str, folder: str) -> seams.Run:
        data = WRITERS[cell.data]()
        return seams.make_run(settings_of(cell, data, teacher), Path(folder))

    @cached_property
    def questions(self) -> list[str]:
        """Arguments of `predict`: six media files of the data, or one file with lines of text."""
        media = self.made.settings.data.media
        if not media:
            path = self.root / "questions.txt"
            path.write_text("".join(f"{line}\n" for line in self.lines()), encoding="utf-8")
            return [path.name]
        folder = self.root / media[0]
        if not folder.is_dir():
            lines = folder.read_text(encoding="utf-8").splitlines(keepends=True)[:6]
            (self.root / f"few-{media[0]}").write_text("".join(lines), encoding="utf-8")
            return [f"few-{media[0]}"]
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [str(path.relative_to(self.root)) for path in files[:: len(files) // 6]][:6]

    def lines(self) -> list[str]:
        texts = ["the film and the music", "great", "a long scene of the plot awful actor"]
        if self.cell.task == "fill":
            return [f"{text} [MASK] and [MASK]" for text in texts]
        if self.cell.task == "tag":
            return ["then mister Ada Turing in Lima", "the river"]
        return [*texts, "unknown wörds, 3!"]


Piece = Callable[[TinyRun], Any]


def loss(run: TinyRun) -> Any:
    """Loss and gradient norm of the first batch of the first epoch, without dropout."""
    task, loss_of, model = seams.in_training(run.made)
    model.train()
    torch.manual_seed(0)
    part = task.parts(task.epoch(0)[0], run.made.settings.train.micro_tokens)[0]
    found = loss_of(model, task.batch(part, seams.CPU, None))
    found.sum.backward()
    gradients = {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    return {
        "sum": plain(found.sum.item()),
        "nll": plain(found.nll.item()),
        "targets": part.n_targets,
        "gradient norm": plain(norm.item()),
        "without gradient": [n for n, _ in model.named_parameters() if n not in gradients],
    }


def weights(run: TinyRun) -> Any:
    """Weights after `STEPS` steps on one thread, and the log, whose last row has the scores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found, logged = seams.trained(run.made, STEPS, Path("steps"))
    finally:
        torch.set_num_threads(threads)
    return {
        "logged": [log_row(row) for row in logged],
        "weights": {name: array_facts(value.cpu().numpy()) for name, value in found.items()},
    }


def answers(run: TinyRun) -> Any:
    """What `predict --json` prints."""
    printed = seams.command("predict", str(run.made.folder), *run.questions, "--json")
    return [plain(json.loads(line)) for line in printed.splitlines()]


def log_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the log without measured times. Nested values (samples, figures) are condensed."""
    return {
        key: condensed(value) if isinstance(value, dict | list) and value != [] else plain(value)
        for key, value in row.items()
        if key not in MEASURED
    }


def condensed(value: Any) -> dict[str, Any]:
    """A hash of all words and whole numbers in a nested value, and sums of the other numbers."""
    exact: list[str] = []
    numbers: list[float] = []
    _gather(value, exact, numbers)
    found: dict[str, Any] = {"exact": digest(*(word.encode() for word in exact))}
    if numbers:
        found["numbers"] = array_facts(np.array(numbers))
    return found


def _gather(value: Any, exact: list[str], numbers: list[float]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            exact.append(str(key))
            _gather(item, exact, numbers)
    elif isinstance(value, list):
        exact.append(f"[{len(value)}")
        for item in value:
            _gather(item, exact, numbers)
    elif isinstance(value, float):
        numbers.append(value)
    else:
        exact.append(repr(value))


def pieces_of(name: str) -> dict[str, Piece]:
    """The pieces of a cell, in the order in which they are stored."""
    found: dict[str, Piece] = {"loss": loss, "weights": weights}
    if CELLS[name].answers:
        found["answers"] = answers
    return {piece: partial(_inside, make) for piece, make in found.items()}


def _inside(make: Piece, run: TinyRun) -> Any:
    """Compute a piece with the run's root as working folder: paths in its settings are relative."""
    with chdir(run.root):
        return make(run)
