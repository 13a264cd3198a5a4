"""Output of a run during training: `metrics.jsonl` for programs, a progress bar or lines of text
for people."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from headway.errors import needs
from headway.progress import Progress, ProgressStage
from headway.storage import replace_text
from headway.tasks.history import LOG, LogEntry, entries

LogCallback = Callable[[Mapping[str, Any]], object]
"""Callback for each line of the log. It ends training by returning True, or text that gives the
reason."""


class RunLog:
    """Log of a run, written only by rank 0. If a line cannot be written, training continues."""

    def __init__(
        self, folder: Path | None, progress: Progress, on: LogCallback | None = None
    ) -> None:
        """Create the log.

        `on`: called with every line that is written.
        """
        self.path = None if folder is None else folder / LOG
        self.progress = progress
        self.tensorboard: TensorBoardWriter | None = None
        self.report: Callable[[], None] | None = None
        """Function that updates the report, called after every evaluation. None: there is no
        report."""

        self.failed = False
        """Whether a line could not be written."""

        self._on = on
        self.end_reason = ""
        """Reason that the callback `on` gave for ending the training; empty if it gave none."""

        self.error: BaseException | None = None
        """Exception raised by the callback `on`. It is raised again after the run is saved. None:
        no exception."""

    def numbers(self, kind: str, step: int, **values: Any) -> None:
        if self.tensorboard is not None:
            self.tensorboard.numbers(kind, step, values)
        self._write({"kind": kind, "step": step, "time": round(time.time(), 3), **values})
        if kind == "train":
            names = ("loss", "tokens_per_s", "padding")
            shown = {name: values[name] for name in names if name in values}
            self.progress.update(step, **shown)
        elif kind == "plan":
            self.progress.expect(values["steps"])
        elif kind == "valid":
            scores = {
                name: value
                for name, value in values.items()
                if isinstance(value, float) and name != "seconds"
            }
            usual = ("loss", "ppl")
            self.progress.update(
                step, **{name: value for name, value in scores.items() if name not in usual}
            )
            text = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
            mark = "  (best so far)" if values.get("best") else ""
            self.progress.note(f"step {step:,}: validation {text}{mark}")
            for sample in values.get("samples", [])[:1]:
                self.progress.note(f"  {sample['source']} → {sample['output']}")
            if self.report is not None:
                self.report()

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()

    def event(self, step: int, text: str) -> None:
        self._write({"kind": "event", "step": step, "time": round(time.time(), 3), "text": text})
        self.progress.note(text)

    def stage(self, what: str) -> ProgressStage:
        """Open a progress display for work that may take a while."""
        return self.progress.stage(what)

    def rewind(self, step: int) -> None:
        """Remove the log lines after this step, which a killed process wrote, and the lines that
        mark the end of a run."""
        if self.path is None or not self.path.exists():
            return
        kept = [
            _line(entry)
            for entry in entries(self.path)
            if entry.get("kind") != "end" and entry.get("step", 0) <= step
        ]
        replace_text(self.path, "".join(kept))

    def _write(self, entry: LogEntry) -> None:
        if self.path is None:
            return
        try:
            _append(self.path, _line(entry))
        except OSError as error:
            if not self.failed:
                self.failed = True
                self.progress.note(f"warning: cannot write {self.path}: {error}")
        self._call_back(entry)

    def _call_back(self, entry: Mapping[str, object]) -> None:
        if self._on is None or self.error is not None:
            return
        try:
            said = self._on(MappingProxyType(entry))
        except BaseException as error:
            self.error = error
            return
        if isinstance(said, str) and said:
            self.end_reason = self.end_reason or said
        elif isinstance(said, bool | np.bool_) and said:
            self.end_reason = self.end_reason or "the on= callback returned True"


def _line(entry: LogEntry) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


FOLDER = "tensorboard"


class TensorBoardWriter:
    """Writes metrics to RUN/tensorboard. A resumed run appends to the existing files."""

    def __init__(self, folder: Path) -> None:
        needs("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / FOLDER))

    def numbers(self, kind: str, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.writer.add_scalar(f"{kind}/{name}", value, step)
        self.writer.flush()

    def close(self) -> None:
        """Close the TensorBoard writer and end its thread."""
        self.writer.close()
