"""Plots and tables of an experiment as data, which the page draws with the components of `web/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PlotPoint = tuple[float, float | None]


@dataclass(frozen=True, kw_only=True)
class Figure:
    title: str
    hint: str
    """Explanation of how to read the figure, in one line."""

    def data(self) -> dict[str, Any]:
        raise NotImplementedError

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return the data of the figure as column names and rows, for readers without scripts."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class LineChart(Figure):
    series: Sequence[tuple[str, Sequence[PlotPoint]]]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    levels: Sequence[tuple[str, float]] = ()
    """Horizontal lines with their names, such as chance level or a threshold."""

    def data(self) -> dict[str, Any]:
        return {
            "kind": "lines", "title": self.title, "hint": self.hint,
            "series": [{"name": name, "points": [list(p) for p in points]}
                       for name, points in self.series],
            "x": {"label": self.x, "log": self.log_x},
            "y": {"label": self.y, "log": self.log_y, "most": 100 if "%" in self.y else None},
            "levels": [list(level) for level in self.levels],
        }  # fmt: skip

    def table(self) -> tuple[list[str], list[list[Any]]]:
        xs = sorted({x for _, points in self.series for x, _ in points})
        by = [(name, dict(points)) for name, points in self.series]
        if len(xs) > 12:  # some of them show the course
            step = (len(xs) - 1) / 11
            xs = [xs[round(i * step)] for i in range(12)]
        return [self.x, *(name for name, _ in by)], [[x, *(p.get(x) for _, p in by)] for x in xs]


@dataclass(frozen=True, kw_only=True)
class BarChart(Figure):
    bars: Sequence[tuple[str, float, float, float]]
    """Bars, each with its name, its value, and the lower and upper bounds of its range."""

    unit: str = ""
    most: float | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def data(self) -> dict[str, Any]:
        notes = list(self.notes) or [""] * len(self.bars)
        least = 1e-4 * max((abs(bar[1]) for bar in self.bars), default=0.0)
        return {
            "kind": "bars", "title": self.title, "hint": self.hint, "unit": self.unit,
            "max": self.most,
            # Values too small to be visible become 0, because a tiny negative one would shift all
            # other bars.
            "bars": [{"label": name, "value": value if abs(value) > least else 0.0, "low": low,
                      "high": high, "note": note}
                     for (name, value, low, high), note in zip(self.bars, notes, strict=True)],
        }  # fmt: skip

    def table(self) -> tuple[list[str], list[list[Any]]]:
        unit = f", {self.unit}" if self.unit else ""
        rows = [list(bar) for bar in self.bars]
        return ["", f"mean{unit}", "low", "high"], rows


@dataclass(frozen=True, kw_only=True)
class TableFigure(Figure):
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def data(self) -> dict[str, Any]:
        return {
            "kind": "table", "title": self.title, "hint": self.hint,
            "columns": list(self.columns), "rows": [list(row) for row in self.rows],
        }  # fmt: skip

    def table(self) -> tuple[list[str], list[list[Any]]]:
        return list(self.columns), [list(row) for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Heatmap(Figure):
    """Matrix of values from `low` to `high`, drawn as a heatmap."""

    values: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    low: float = 0.0
    high: float = 1.0
    label: str = ""
    diverging: bool = False

    def data(self) -> dict[str, Any]:
        return {
            "kind": "heatmap", "title": self.title, "hint": self.hint, "label": self.label,
            "values": [list(row) for row in self.values], "rows": list(self.rows),
            "columns": list(self.columns), "low": self.low, "high": self.high,
            "map": "diverging" if self.diverging else "blues",
        }  # fmt: skip

    def table(self) -> tuple[list[str], list[list[Any]]]:
        rows = [[name, *row] for name, row in zip(self.rows, self.values, strict=True)]
        return ["", *self.columns], rows


def interval_bars(
    named: Sequence[tuple[str, Sequence[float]]],
) -> list[tuple[str, float, float, float]]:
    """Return one bar for each arm: the mean over seeds, with the lowest and the highest seed as its
    range."""
    return [(name, sum(all_) / len(all_), min(all_), max(all_)) for name, all_ in named]
