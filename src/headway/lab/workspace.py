"""Workspace for one seed of an experiment, with its folder, resumable training runs and cached
measurements."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import headway
from headway.errors import DataError, FolderError
from headway.lab.verdict import plain
from headway.models.parts.custom import Parts
from headway.progress import SILENT, Progress, ProgressStage
from headway.run import Run
from headway.settings.folder import WEIGHTS
from headway.storage import replace_text

Value = TypeVar("Value")

QUICK_SETTINGS: dict[str, Any] = {
    "model.d_model": 64, "model.n_heads": 4, "model.d_ff": 128, "model.n_layers": 2,
    "model.dropout": 0.0, "train.label_smoothing": 0.0, "train.schedule": "cosine",
    "train.lr": 2e-3,
    "train.batch_tokens": 1024, "train.average": 1, "train.keep": 1, "train.metric": "loss",
    "train.threads": 1, "train.precision": "fp32", "tokenizer.kind": "words", }  # fmt: skip
"""Settings of all training runs in a quick experiment. An experiment may override them."""


REVERSAL_SETTINGS: dict[str, Any] = {
    "model.block_layout": "pre", "model.n_layers": 1, "model.n_heads": 2, "model.d_model": 48,
    "model.d_ff": 96, "train.lr": 8e-3, "train.batch_tokens": 512, "train.steps": 300,
    "train.warmup": 30, "train.clip": 1.0, "decode.beam": 1,
}  # fmt: skip
"""Settings of a small translator that learns to reverse eight words within eight seconds."""


class OutOfTime(Exception):
    """Raised when the time budget is used up. Finished measurements are kept."""


@dataclass(kw_only=True)
class Workspace:
    folder: Path
    """Folder for the files of this seed."""

    seed: int
    quick: bool
    data: Path | None = None
    device: str = "auto"
    progress: Progress = SILENT
    stage: ProgressStage | None = None
    deadline: float | None = None
    """Deadline, as a `time.monotonic()` value; None if there is none."""

    doubts: list[str] = field(default_factory=list)

    def choose(self, quick: Value, full: Value) -> Value:
        """Return `quick` in a quick run and `full` in a full run."""
        return quick if self.quick else full

    def doubt(self, reason: str) -> None:
        """Record a reason why the data is insufficient. The verdict will then be `undecided`."""
        if reason not in self.doubts:
            self.doubts.append(reason)

    def train(
        self,
        name: str,
        task: str,
        data: object,
        *,
        valid: object = None,
        settings: Mapping[str, Any] | None = None,
        parts: Parts | None = None,
        columns: Mapping[str, Any] | None = None,
        start: str | os.PathLike[str] = "none",
    ) -> Run:
        """Train a run, resume it if it was stopped, or load it if it is finished.

        `name`: name of the run's folder in the folder of the seed. `settings`: override
        `QUICK_SETTINGS`. `start`: run whose weights are used; settings that are inherited with the
        weights are then ignored.
        """
        out = self.folder / "runs" / name
        said = {**QUICK_SETTINGS, "train.seed": 1 + self.seed, **(settings or {})}
        # Evaluate once at the end, unless the experiment sets an interval.
        steps = said.get("train.steps")
        if steps is not None:
            said.setdefault("train.eval_every", steps)
        if start != "none":
            said = {key: value for key, value in said.items() if not is_inherited(key)}
        if not self.quick and "train.threads" not in (settings or {}):
            del said["train.threads"]  # the default number of threads
        said = {key: value for key, value in said.items() if value is not None}
        if (out / WEIGHTS).is_file():
            run = headway.load(out, device=self.device, parts=parts)
            self.done()
            return run
        self._check_deadline()
        run = headway.train(
            task, data, valid=valid, out=out, settings=said, device=self.device, quiet=True,
            parts=parts, start=start, on=self._on_event(name, steps), **(columns or {}),
        )  # fmt: skip
        self.done()
        return run

    def cached(self, name: str, measure: Callable[[], Value]) -> Value:
        """Return the result of `measure`, converted to JSON types.

        It is computed once and stored in the folder of the seed under `name`.
        """
        path = self.folder / "measured" / f"{name}.json"
        if path.is_file():
            self.done()
            kept: Value = read_json(path)
            return kept
        self._check_deadline()
        self._report(name)
        value: Value = plain(measure())
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(value))
        self.done()
        return value

    def lines(self, path: Path, least: int, what: str) -> list[str]:
        """Return the lines of the user's file. With fewer than `least` lines, the verdict will be
        undecided."""
        try:
            found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {path}: {error}.") from error
        if len(found) < least:
            self.doubt(f"{path.name} has {len(found):,} {what}, but {least:,} are needed")
        return found

    def text(self, usual: Callable[[], str], least: int = 100_000) -> str:
        """Return the user's text, or the default one. If it has fewer than `least` characters, the
        verdict will be undecided."""
        if self.data is None:
            return usual()
        text = "\n".join(self.lines(self.data, 1, "lines"))
        if len(text) < least:
            self.doubt(f"{self.data.name} has {len(text):,} characters, but {least:,} are needed")
        return text

    # -- progress and time

    def _on_event(self, name: str, steps: int | None) -> Callable[[Mapping[str, Any]], None]:
        def on(row: Mapping[str, Any]) -> None:
            if row.get("kind") == "train":
                self._report(name, step=float(row["step"]))
            self._check_deadline()

        self._report(name)
        return on

    def _report(self, name: str, **numbers: float) -> None:
        if self.stage is not None:
            self.stage.what = f"seed {self.seed + 1}, {name}:"
            self.stage.numbers.clear()
            self.stage.update(self.stage.done, None, **numbers)

    def done(self) -> None:
        if self.stage is not None:
            self.stage.advance()

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime


def is_inherited(key: str) -> bool:
    """Return whether a run that starts from another run inherits this setting with the weights."""
    return key.startswith("tokenizer.") or (key.startswith("model.") and key != "model.dropout")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{path} is damaged ({error}). Delete this file and repeat the command, which then "
            "measures its values again."
        ) from error
