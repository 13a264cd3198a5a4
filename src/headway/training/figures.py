"""Figures of `report.html` beside its curves: confusion matrix, reliability, scores of classes.

They come out of `metrics.jsonl`, so anything may be missing or damaged: what cannot be drawn is
left out. All text that came from data is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from headway.training.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from headway.training.gallery import captions, gallery, icons
from headway.training.history import number

MOST_LABELS = 40
"""Beyond that a confusion matrix is no longer read, and the most frequent mistakes are listed."""

MOST_MISTAKES = 20
BROAD = 8
"""Rows from which on the matrix does not fit beside another figure."""


def figures(found: dict[str, Any]) -> str:
    """All that can be drawn."""
    confusion = _confusion(found.get("confusion"), icons(found.get("pictures")))
    classes = _classes(found.get("classes"))
    # A matrix of many classes needs the width of the page.
    broad = confusion.count("<tr>") > BROAD
    columns = [
        classes if broad else confusion + classes,
        _reliability(found.get("calibration")) + _verification(found.get("verification")),
        _beside_teacher(found.get("distilled")),
    ]
    shown = "".join(f'<div class="column">{column}</div>' for column in columns if column)
    if broad:
        shown = f'<div class="column broad">{confusion}</div>' + shown
    return shown + gallery(found.get("pictures")) + captions(found.get("described"))


def _beside_teacher(found: Any) -> str:
    """A student's size, speed and score, and its teacher's."""
    try:
        metric = str(found["metric"])
        rows = [
            f"<tr><td>{who}</td><td class=num>{int(found[who]['parameters']):,}</td>"
            f"<td class=num>{number(found[who]['batches_per_s']):.3g}</td>"
            f"<td class=num>{number(found[who]['scores'][metric]):.4g}</td></tr>"
            for who in ("teacher", "student")
        ]
    except (TypeError, KeyError, ValueError):
        return ""
    names = ("", "parameters", "batches/s", metric)
    head = "".join(f"<th class=num>{escape(name)}</th>" for name in names)
    return f'<div class="wide">{_table(f"<tr>{head}</tr>" + "".join(rows))}</div>'


def _verification(found: Any) -> str:
    """Whether two recordings are of one speaker."""
    try:
        rows = [
            ("equal error rate", f"{100 * number(found['eer']):.2f} %"),
            ("the same speaker from a cosine of", f"{number(found['threshold']):.3f}"),
            ("pairs of one speaker", f"{int(found['same']):,}"),
            ("pairs of two", f"{int(found['other']):,}"),
        ]
    except (TypeError, KeyError, ValueError):
        return ""
    head = "<tr><th>verification, validation</th><th></th></tr>"
    lines = "".join(f"<tr><td>{name}</td><td class=num>{value}</td></tr>" for name, value in rows)
    return f'<div class="wide">{_table(head + lines)}</div>'


def _confusion(found: Any, pictures: Mapping[str, str]) -> str:
    """A heat map as a table: each row is coloured by the share of its class."""
    try:
        labels = [str(label) for label in found["labels"]]
        counts = [[int(cell) for cell in row] for row in found["counts"]]
    except (TypeError, KeyError, ValueError):
        return ""
    if len(counts) != len(labels) or any(len(row) != len(labels) for row in counts):
        return ""
    title = "<figcaption><b>Confusion matrix, validation</b></figcaption>"
    body = (
        _mistakes(labels, counts) if len(labels) > MOST_LABELS else _heat(labels, counts, pictures)
    )
    return f'<figure class="confusion">{title}{body}</figure>'


def _heat(labels: list[str], counts: list[list[int]], pictures: Mapping[str, str]) -> str:
    names = [f"{pictures.get(label, '')}{escape(_short(label))}" for label in labels]
    head = "".join(f'<th class="num" dir="auto">{name}</th>' for name in names)
    rows = [f"<tr><th>true ↓ answered →</th>{head}</tr>"]
    for i, row in enumerate(counts):
        total = max(1, sum(row))
        cells = "".join(
            f'<td class="{"right" if i == j else "wrong"} num" '
            f'style="--share:{100 * cell / total:.0f}%" '
            f'title="{escape(labels[i])} answered as {escape(labels[j])}: {cell / total:.1%}">'
            f"{cell:,}</td>"
            for j, cell in enumerate(row)
        )
        rows.append(f'<tr><th dir="auto">{names[i]}</th>{cells}</tr>')
    return f'<div class="heat">{_table("".join(rows))}</div>'


def _mistakes(labels: list[str], counts: list[list[int]]) -> str:
    cells = [
        (cell, labels[i], labels[j])
        for i, row in enumerate(counts)
        for j, cell in enumerate(row)
        if cell and i != j
    ]
    cells.sort(key=lambda one: (-one[0], one[1], one[2]))
    rows = "".join(
        f"<tr><td>{escape(true)}</td><td>{escape(said)}</td><td class=num>{cell:,}</td></tr>"
        for cell, true, said in cells[:MOST_MISTAKES]
    )
    head = "<tr><th>true</th><th>answered</th><th class=num>times</th></tr>"
    return f'<div class="heat">{_table(head + rows)}</div>'


def _reliability(found: Any) -> str:
    """How often answers of a probability are right: on the diagonal where that can be trusted."""
    try:
        bins = [
            tuple(number(one[name]) for name in ("low", "high", "count", "confidence", "accuracy"))
            for one in found["bins"]
        ]
        ece, temperature = number(found["ece"]), number(found["temperature"])
    except (TypeError, KeyError):
        return ""
    bins = [one for one in bins if all(map(math.isfinite, one)) and one[2] > 0]
    if not bins or not math.isfinite(ece):
        return ""
    most = max(count for _, _, count, _, _ in bins)
    shapes = [_frame()]
    for low, high, count, confidence, right in bins:
        x, width = _x(low) + 1, max(1.0, _x(high) - _x(low) - 2)
        y = _y(right)
        tip = f"probability {confidence:.2f}, right {right:.1%}, {count:,.0f} answers"
        shapes.append(
            f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{_y(0) - y:.1f}" opacity="{0.25 + 0.75 * count / most:.2f}">'
            f"<title>{escape(tip)}</title></rect>"
            f'<circle class="best" cx="{_x(confidence):.1f}" cy="{y:.1f}" r="3"></circle>'
        )
    after = number(found.get("ece_after"))
    note = f"calibration error {100 * ece:.1f} %"
    if math.isfinite(temperature) and math.isfinite(after):
        note += f"; {100 * after:.1f} % at a temperature of {temperature:.2f}"
    return (
        "<figure><figcaption><b>Reliability, validation</b>"
        f'<span class="legend">{escape(note)}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Reliability">'
        f"{''.join(shapes)}</svg></figure>"
    )


def _frame() -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y, x = _y(tick), _x(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="end">{tick:g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" class="mid">{tick:g}</text>')
    parts.append(
        f'<line class="cross" x1="{LEFT}" x2="{right}" y1="{_y(0):.1f}" y2="{_y(1):.1f}"/>'
    )
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 6}" class="mid">probability of the answer; '
        "height: share that is right</text>"
    )
    return "".join(parts)


def _x(share: float) -> float:
    return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - min(1.0, max(0.0, share)) * (HEIGHT - TOP - BOTTOM)


def _classes(found: Any) -> str:
    if not isinstance(found, list):
        return ""
    names = ("precision", "recall", "f1")
    rows = []
    for one in found:
        if not isinstance(one, dict):
            continue
        cells = "".join(f"<td class=num>{_percent(one.get(name))}</td>" for name in names)
        support = number(one.get("support"))
        count = f"{support:,.0f}" if math.isfinite(support) else "–"
        rows.append(
            f'<tr><td dir="auto">{escape(str(one.get("label")))}</td>{cells}'
            f"<td class=num>{count}</td></tr>"
        )
    head = "".join(f"<th class=num>{name}</th>" for name in ("precision", "recall", "F1", "number"))
    table = _table(f"<tr><th>class</th>{head}</tr>{''.join(rows)}")
    return f'<div class="wide">{table}</div>' if rows else ""


def _percent(value: object) -> str:
    found = number(value)
    return f"{100 * found:.1f}" if math.isfinite(found) else "–"


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:23] + "…"


def _table(rows: str) -> str:
    return f"<table>{rows}</table>"
