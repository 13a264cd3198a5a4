"""Reader of a run's log, `metrics.jsonl`, which tolerates incomplete and damaged lines."""

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
"""One line of the log `metrics.jsonl`, parsed from JSON."""

StepValue = tuple[float, float]
"""Training step, and the value of a metric at this step."""


@dataclass
class History:
    """Log entries of a run by kind, in the order of their steps."""

    train: list[LogEntry] = field(default_factory=list)
    valid: list[LogEntry] = field(default_factory=list)
    event: list[LogEntry] = field(default_factory=list)
    end: list[LogEntry] = field(default_factory=list)
    scores: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    """Definitions of the metrics in the log, by name."""

    @property
    def last(self) -> LogEntry:
        """Log entry for the end of the run; empty if the run has not ended."""
        return self.end[-1] if self.end else {}

    @property
    def kept_scores(self) -> dict[str, float]:
        """Scores of the final weights, by metric name; empty if they were not logged."""
        return named_scores(self.last.get("scores")).get(str(self.last.get("kept")), {})

    def points(self, kind: str, name: str) -> list[StepValue]:
        entries = getattr(self, kind)
        return [(entry["step"], number(entry[name])) for entry in entries if name in entry]


def read_history(folder: Path) -> History:
    """Return the log of a run folder. Entries with an invalid step are skipped."""
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
    """Yield the entries of `metrics.jsonl`. Damaged lines are skipped, for example one that was cut
    off when the process was killed."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.split("\n"):
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield _with_current_names(entry)


def _with_current_names(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an older log entry with its metric names converted to the current ones."""
    return {
        METRIC_NAMES.get(name, name): _with_current_names(value)
        if isinstance(value, dict)
        else value
        for name, value in entry.items()
    }


def named_scores(found: object) -> dict[str, dict[str, float]]:
    """Return groups of scores in a log entry, such as those of each baseline, by name. Malformed
    groups are left out."""
    every = found.items() if isinstance(found, dict) else ()
    return {str(name): values for name, values in every if isinstance(values, dict)}


def number(value: object) -> float:
    """Return a logged value as a float; NaN if it is not a number."""
    return float(value) if isinstance(value, int | float) else math.nan


def mean(points: Sequence[StepValue]) -> float:
    """Return the mean value of at least one point."""
    return sum(value for _, value in points) / len(points)


def finite(points: Iterable[StepValue]) -> list[StepValue]:
    """Return the points whose value is neither NaN nor infinite."""
    return [point for point in points if math.isfinite(point[1])]
