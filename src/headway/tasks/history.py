"""Reader for the log of a run, `metrics.jsonl`, which tolerates incomplete and damaged lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.settings.renamed import METRIC_NAMES
from headway.specs.metrics import METRICS, Metric

LOG = "metrics.jsonl"

LogEntry = dict[str, Any]
"""One line of the log `metrics.jsonl`."""

StepValue = tuple[float, float]
"""A step and a value."""


@dataclass
class History:
    """The lines of `metrics.jsonl` by kind, in the order of their steps."""

    train: list[LogEntry] = field(default_factory=list)
    valid: list[LogEntry] = field(default_factory=list)
    event: list[LogEntry] = field(default_factory=list)
    end: list[LogEntry] = field(default_factory=list)
    scores: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    """Definitions of the metrics that the run may have logged, by name."""

    @property
    def last(self) -> LogEntry:
        """The entry for the end of the run; empty if the run has not ended."""
        return self.end[-1] if self.end else {}

    @property
    def kept_scores(self) -> dict[str, float]:
        """Scores of the final weights; empty if they were not logged."""
        return named_scores(self.last.get("scores")).get(str(self.last.get("kept")), {})

    def points(self, kind: str, name: str) -> list[StepValue]:
        entries = getattr(self, kind)
        return [(entry["step"], number(entry[name])) for entry in entries if name in entry]


def read_history(folder: Path) -> History:
    """The history of a run folder. Entries with an invalid step are skipped."""
    history = History()
    kinds = {"train", "valid", "event", "end"}
    for entry in entries(folder / LOG):
        if entry.get("kind") in kinds:
            step = entry.get("step", 0)
            if isinstance(step, int | float) and math.isfinite(step):
                getattr(history, entry["kind"]).append({**entry, "step": step})
    for kind in kinds:
        getattr(history, kind).sort(key=lambda entry: entry["step"])
    return history


def entries(path: Path) -> Iterator[LogEntry]:
    """The entries of `metrics.jsonl`. Damaged lines, such as one cut off by a kill, are skipped."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.split("\n"):
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield _with_current_names(entry)


def _with_current_names(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of an older log, with the metric names that are used now."""
    return {
        METRIC_NAMES.get(name, name): _with_current_names(value)
        if isinstance(value, dict)
        else value
        for name, value in entry.items()
    }


def named_scores(found: object) -> dict[str, dict[str, float]]:
    """Scores by name from a log entry, for example of each baseline; malformed entries are left
    out."""
    every = found.items() if isinstance(found, dict) else ()
    return {str(name): values for name, values in every if isinstance(values, dict)}


def number(value: object) -> float:
    """A logged value as a float; NaN if it is not a number."""
    return float(value) if isinstance(value, int | float) else math.nan


def mean(points: Sequence[StepValue]) -> float:
    """Mean value of the points, of which there must be at least one."""
    return sum(value for _, value in points) / len(points)


def finite(points: Iterable[StepValue]) -> list[StepValue]:
    """The points whose value is neither NaN nor infinite."""
    return [point for point in points if math.isfinite(point[1])]
