"""What a run wrote about itself: `metrics.jsonl`, read back whatever state it is in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.tasks.specs import METRICS as SCORES
from headway.tasks.specs import Metric
from headway.training.chart import Point
from headway.training.log import METRICS, Entry, entries


@dataclass
class History:
    """The lines of `metrics.jsonl` by kind, in the order of their steps."""

    train: list[Entry] = field(default_factory=list)
    valid: list[Entry] = field(default_factory=list)
    event: list[Entry] = field(default_factory=list)
    end: list[Entry] = field(default_factory=list)
    scores: Mapping[str, Metric] = field(default_factory=lambda: SCORES)
    """The records of all that it may report."""

    @property
    def kept(self) -> dict[str, float]:
        """Scores of the model that was kept in the end; empty where that is not noted."""
        end = self.end[-1] if self.end else {}
        scores = end.get("scores")
        found = scores.get(end.get("kept")) if isinstance(scores, dict) else None
        return found if isinstance(found, dict) else {}

    def points(self, kind: str, name: str) -> list[Point]:
        entries = getattr(self, kind)
        return [(entry["step"], number(entry[name])) for entry in entries if name in entry]


def read_history(folder: Path) -> History:
    """Of a run. Lines without a step are passed over."""
    history = History()
    kinds = {"train", "valid", "event", "end"}
    for entry in entries(folder / METRICS):
        if entry.get("kind") in kinds:
            step = entry.get("step", 0)
            if isinstance(step, int | float) and math.isfinite(step):
                getattr(history, entry["kind"]).append({**entry, "step": step})
    for kind in kinds:
        getattr(history, kind).sort(key=lambda entry: entry["step"])
    return history


def number(value: object) -> float:
    """A value that should be a number, or NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def mean(points: Sequence[Point]) -> float:
    """Of the values of at least one point."""
    return sum(value for _, value in points) / len(points)


def finite(points: Iterable[Point]) -> list[Point]:
    """The points whose value is a number."""
    return [point for point in points if math.isfinite(point[1])]
