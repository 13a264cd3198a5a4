"""Curves as inline SVG: axes, ticks, a legend, and values under the pointer. Text is escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 40
MOST_POINTS = 400
FEW_POINTS = 40
WORTH_LOG = 5.0
"""A range of smaller ratio reads better on a straight scale, asked for or not."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point]
    """Steps and values; what is not a finite number interrupts the line."""


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: list[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the low end to 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def chart(
    title: str,
    series: Sequence[Series],
    *,
    log: bool = False,
    from_zero: bool = False,
    mark: tuple[Point, str] | None = None,
) -> str:
    """A figure, or nothing where there is no number to draw. `mark` names one point."""
    drawn = [Series(one.name, thinned(one.points)) for one in series]
    drawn = [one for one in drawn if any(_is_shown(y, log) for _, y in one.points)]
    if not drawn:
        return ""
    steps = [x for one in drawn for x, _ in one.points]
    values = [y for one in drawn for _, y in one.points if _is_shown(y, log)]
    across = linear_axis(0.0, max(steps), 6, tight=True)
    low, high = min(values + [0.0] * from_zero), max(values)
    log = log and high >= WORTH_LOG * low
    up = log_axis(low, high) if log else linear_axis(low, high, 5)
    body = [_grid(across, up)]
    body += [_line(one, number, across, up) for number, one in enumerate(drawn, 1)]
    if mark is not None and _is_shown(mark[0][1], log):
        body.append(_mark(*mark, across, up))
    data = [[one.name, [[x, _number(y)] for x, y in one.points]] for one in drawn]
    legend = "".join(
        f'<span><i class="key s{number}"></i>{escape(one.name)}</span>'
        for number, one in enumerate(drawn, 1)
    )
    return (
        f"<figure><figcaption><b>{escape(title)}</b>"
        f'<span class="legend">{legend if len(drawn) > 1 else ""}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'data-frame="{LEFT} {WIDTH - RIGHT} {TOP} {HEIGHT - BOTTOM}" '
        f'data-high="{across.high:g}" data-series="{escape(json.dumps(data))}">'
        f"{''.join(body)}</svg></figure>"
    )


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most so many points, each the mean of its neighbours; a gap stays where all are gaps."""
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 1:
        return list(points)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], _mean([y for _, y in group])) for group in groups]


def linear_axis(low: float, high: float, n_ticks: int, *, tight: bool = False) -> Axis:
    """Round ticks; the ends are ticks too unless `tight`, which ends the axis at the data."""
    if high - low <= 1e-9 * abs(high):  # ticks have twelve digits: less is no range
        room = abs(low) / 2 or 0.5
        low, high = (low, low + 1) if tight else (low - room, high + room)
    raw = (high - low) / n_ticks
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    if tight:
        return Axis(low, high, [tick for tick in ticks if low <= tick <= high])
    return Axis(ticks[0], ticks[-1], ticks)


def log_axis(low: float, high: float) -> Axis:
    """Ticks at 1, 2 and 5 times powers of ten, or at powers alone where those would be many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    fine = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    below = max(tick for tick in fine if tick <= low * 1.001)
    above = min(
        (tick for tick in fine if tick >= high * 0.999 and tick > below), default=10.0**last
    )
    ticks = [tick for tick in fine if below <= tick <= above]
    if len(ticks) > 7:
        every = math.ceil((last - first) / 6)
        powers = [10.0**power for power in range(first, last + 1, max(1, every))]
        ticks = [tick for tick in powers if below <= tick <= above]
    return Axis(below, above, ticks, log=True)


def short(value: float) -> str:
    """A number as an axis shows it: 0.5, 12k, 3.5M, 5e-4."""
    size = abs(value)
    if size >= 999_999.5:
        return f"{value / 1e6:.3g}M"
    if size >= 1000:
        return f"{value / 1e3:.4g}k"
    if 0 < size < 0.001:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:.4g}"


def _grid(across: Axis, up: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in up.ticks:
        y = _y(tick, up)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="end">{short(tick)}</text>')
    for tick in across.ticks:
        x = _x(tick, across)
        parts.append(
            f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" class="mid">{short(tick)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 6}" class="mid">step</text>')
    return "".join(parts)


def _line(series: Series, number: int, across: Axis, up: Axis) -> str:
    commands, dots, pen_down = [], [], False
    for x, y in series.points:
        if not _is_shown(y, up.log):
            pen_down = False
            continue
        place = f"{_x(x, across):.1f} {_y(y, up):.1f}"
        commands.append(("L" if pen_down else "M") + place)
        dots.append(place.split())
        pen_down = True
    path = f'<path class="line s{number}" d="{"".join(commands)}"/>'
    if len(dots) > FEW_POINTS:
        return path
    return path + "".join(
        f'<circle class="dot s{number}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in dots
    )


def _mark(point: Point, text: str, across: Axis, up: Axis) -> str:
    x, y = _x(point[0], across), _y(point[1], up)
    side = "end" if x > WIDTH / 2 else "start"
    label = y + 20 if y < TOP + 20 else y - 9
    return (
        f'<circle class="best" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        f'<text x="{x:.1f}" y="{label:.1f}" class="{side} strong">{escape(text)}</text>'
    )


def _x(step: float, axis: Axis) -> float:
    return LEFT + axis.share(step) * (WIDTH - LEFT - RIGHT)


def _y(value: float, axis: Axis) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM)


def _is_shown(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
