"""Where an experiment works: a folder, a seed, and trainings that go on where they stopped."""

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
from headway.progress import SILENT, Progress, Stage
from headway.run import Run
from headway.settings.folder import WEIGHTS
from headway.storage import replace_text

Value = TypeVar("Value")

SMALL: dict[str, Any] = {
    "model.d_model": 64, "model.n_heads": 4, "model.d_ff": 128, "model.n_layers": 2,
    "model.dropout": 0.0, "train.smoothing": 0.0, "train.schedule": "cosine", "train.lr": 2e-3,
    "train.batch_tokens": 1024, "train.average": 1, "train.keep": 1, "train.metric": "loss",
    "train.threads": 1, "train.precision": "fp32", "tokenizer.kind": "words", }  # fmt: skip
"""What every training of a quick experiment begins with; each says what it has otherwise."""


PAIRS: dict[str, Any] = {
    "model.wiring": "pre", "model.n_layers": 1, "model.n_heads": 2, "model.d_model": 48,
    "model.d_ff": 96, "train.lr": 8e-3, "train.batch_tokens": 512, "train.steps": 300,
    "train.warmup": 30, "train.clip": 1.0, "decode.beam": 1,
}  # fmt: skip
"""A translator that learns to turn eight words round in eight seconds."""


class OutOfTime(Exception):
    """The time that was given is spent; what is done is kept."""


@dataclass(kw_only=True)
class Bench:
    folder: Path
    """Of this seed."""

    seed: int
    quick: bool
    data: Path | None = None
    device: str = "auto"
    progress: Progress = SILENT
    stage: Stage | None = None
    deadline: float | None = None
    """By `time.monotonic`."""

    doubts: list[str] = field(default_factory=list)

    def choose(self, quick: Value, full: Value) -> Value:
        """One of two sizes."""
        return quick if self.quick else full

    def doubt(self, reason: str) -> None:
        """Note why what is measured here cannot carry a verdict: it will be `undecided`."""
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
        """A run of this seed, trained once: a finished one is opened, a stopped one goes on.

        `name` is its folder in that of the seed; `settings` are said over `SMALL`. Of both, what
        `start` brings with its weights is left out."""
        out = self.folder / "runs" / name
        said = {**SMALL, "train.seed": 1 + self.seed, **(settings or {})}
        # One evaluation, at the end, unless the experiment wants more of them.
        steps = said.get("train.steps")
        if steps is not None:
            said.setdefault("train.eval_every", steps)
        if start != "none":
            said = {key: value for key, value in said.items() if not of_start(key)}
        if not self.quick and "train.threads" not in (settings or {}):
            del said["train.threads"]  # as many as are quick
        said = {key: value for key, value in said.items() if value is not None}
        if (out / WEIGHTS).is_file():
            run = headway.load(out, device=self.device, parts=parts)
            self.done()
            return run
        self._in_time()
        run = headway.train(
            task, data, valid=valid, out=out, settings=said, device=self.device, quiet=True,
            parts=parts, start=start, on=self._heard(name, steps), **(columns or {}),
        )  # fmt: skip
        self.done()
        return run

    def once(self, name: str, measure: Callable[[], Value]) -> Value:
        """What `measure` gives, as JSON has it: measured once and kept."""
        path = self.folder / "measured" / f"{name}.json"
        if path.is_file():
            self.done()
            kept: Value = read_json(path)
            return kept
        self._in_time()
        self._say(name)
        value: Value = plain(measure())
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(value))
        self.done()
        return value

    def lines(self, path: Path, least: int, what: str) -> list[str]:
        """Lines of a file of the user's; too few of them make a verdict impossible."""
        try:
            found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read {path}: {error}.") from error
        if len(found) < least:
            self.doubt(f"{path.name} has {len(found):,} {what}, and {least:,} are needed")
        return found

    def text(self, usual: Callable[[], str], least: int = 100_000) -> str:
        """The user's text, or else the usual one; of a short one not much can be said."""
        if self.data is None:
            return usual()
        text = "\n".join(self.lines(self.data, 1, "lines"))
        if len(text) < least:
            self.doubt(f"{self.data.name} has {len(text):,} letters, and {least:,} are needed")
        return text

    # -- progress and time

    def _heard(self, name: str, steps: int | None) -> Callable[[Mapping[str, Any]], None]:
        def on(row: Mapping[str, Any]) -> None:
            if row.get("kind") == "train":
                self._say(name, step=float(row["step"]))
            self._in_time()

        self._say(name)
        return on

    def _say(self, name: str, **numbers: float) -> None:
        if self.stage is not None:
            self.stage.what = f"seed {self.seed + 1}, {name}:"
            self.stage.numbers.clear()
            self.stage.update(self.stage.done, None, **numbers)

    def done(self) -> None:
        if self.stage is not None:
            self.stage.advance()

    def _in_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime


def of_start(key: str) -> bool:
    """Whether a run that starts from another takes this setting over with its weights."""
    return key.startswith("tokenizer.") or (key.startswith("model.") and key != "model.dropout")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{path} is damaged ({error}). Delete it: the same command measures it again."
        ) from error
