"""Curves of measured results: accuracy over labels, time and memory over length."""

from __future__ import annotations

import json
import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .browser import ROOT, View, shot

RESULTS = ROOT / "benchmarks" / "results"
LINES = {
    "tuned": ("base-en, tuned", "#1f5fbf"),
    "neighbours": ("neighbours of base-en's vectors", "#c2571a"),
    "tf-idf": ("tf-idf, logistic regression", "#767676"),
}


GROWTH = {"bodies": "cuda", "bodies-cpu": "growth-cpu"}
"""Images of the growth with length, and the device of the result that each is drawn from."""

BODIES = {
    "transformer": "#2a62c9",
    "transformer, written out": "#8fb0ea",
    "lstm": "#c2571a",
    "gru": "#d9a441",
    "convolution": "#3a8f4d",
    "sha-rnn": "#7a4fb5",
}
"""Lines of the growth with length, and their colours."""


def curves(sets: dict[str, Any], width: int = 220, height: int = 150, columns: int = 3) -> str:
    """A page with a panel for each set: per cent right over labels a class, the spread as a bar."""
    parts = []
    for number, (name, found) in enumerate(sets.items()):
        left = (number % columns) * (width + 44) + 30
        top = (number // columns) * (height + 56) + 26
        parts.append(
            f'<g transform="translate({left} {top})">{panel(name, found, width, height)}</g>'
        )
    below = -(-len(sets) // columns) * (height + 56) + 20
    for number, (label, colour) in enumerate(LINES.values()):
        x = 30 + 245 * number
        parts.append(f'<path d="M{x} {below}h22" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="{below + 4}">{label}</text>')
    size = f'width="{columns * (width + 44) + 20}" height="{below + 16}"'
    style = "font: 12px sans-serif; background: white"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{"".join(parts)}</svg>'


def panel(name: str, found: dict[str, Any], width: int, height: int) -> str:
    numbers = [int(n) for n in found["scores"]]
    across = {n: (i + 0.5) * width / len(numbers) for i, n in enumerate(sorted(numbers))}
    parts = [f'<text x="0" y="-9" font-weight="bold">{name}, {found["labels"]} labels</text>']
    for percent in range(0, 101, 25):
        y = height * (1 - percent / 100)
        parts.append(f'<path d="M0 {y}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="-6" y="{y + 4}" text-anchor="end" fill="#555">{percent}</text>')
    for n, x in across.items():
        parts.append(f'<text x="{x}" y="{height + 17}" text-anchor="middle" fill="#555">{n}</text>')
    for system, (_, colour) in LINES.items():
        points = []
        for n, x in across.items():
            if system in found["scores"][str(n)]:
                value = found["scores"][str(n)][system]
                y, spread = (height * z / 100 for z in (100 - value["mean"], value["deviation"]))
                points.append(f"{x:.1f},{y:.1f}")
                parts.append(
                    f'<path d="M{x:.1f} {y - spread:.1f}v{2 * spread:.1f}" stroke="{colour}"/>'
                )
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        line = f'fill="none" stroke="{colour}" stroke-width="2.5"'
        parts.append(f'<polyline points="{" ".join(points)}" {line}/>')
    return "".join(parts)


def growth(found: dict[str, Any], width: int = 300, height: int = 230) -> str:
    """A page with two panels, time and memory of a step over the length, both axes by powers."""
    parts = []
    panels = (("seconds", "milliseconds", 1e3), ("bytes", "MB", 1e-6))
    for number, (key, unit, scale) in enumerate(panels):
        lines = {body: {int(n): one[key] * scale for n, one in found[body].items()}
                 for body in BODIES if body in found}  # fmt: skip
        inner = growth_panel(f"{unit} of a step", lines, width, height)
        parts.append(f'<g transform="translate({60 + number * (width + 80)} 28)">{inner}</g>')
    below = height + 72
    shown = [(body, colour) for body, colour in BODIES.items() if body in found]
    for number, (body, colour) in enumerate(shown):
        x = 60 + 100 * number + 70 * (number > 1)
        parts.append(f'<path d="M{x} {below}h22" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 28}" y="{below + 4}">{body}</text>')
    size = f'width="{2 * (width + 80) + 20}" height="{below + 16}"'
    style = "font: 12px sans-serif; background: white"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{"".join(parts)}</svg>'


def growth_panel(title: str, lines: dict[str, dict[int, float]], width: int, height: int) -> str:
    lengths = sorted({n for line in lines.values() for n in line})
    values = [value for line in lines.values() for value in line.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    span = max(1.0, math.log2(lengths[-1] / lengths[0]))

    def at(n: int, value: float) -> tuple[float, float]:
        across = math.log2(n / lengths[0]) / span
        return across * width, height * (1 - (math.log10(value) - low) / max(1, high - low))

    parts = [f'<text x="0" y="-10" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        y = at(lengths[0], 10.0**power)[1]
        parts.append(f'<path d="M0 {y:.1f}h{width}" stroke="#ddd"/>')
        label = f"{10.0**power:,.10g}"
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end" fill="#555">{label}</text>')
    for number, n in enumerate(lengths):
        x = at(n, 10.0**low)[0]
        if len(lengths) > 5 and number % 2:
            continue  # there is no room for all
        parts.append(
            f'<text x="{x:.1f}" y="{height + 17}" text-anchor="middle" fill="#555">{n}</text>'
        )
    parts.append(f'<text x="{width / 2}" y="{height + 34}" text-anchor="middle">tokens</text>')
    for body, line in lines.items():
        points = " ".join("{:.1f},{:.1f}".format(*at(n, line[n])) for n in sorted(line))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{BODIES[body]}" stroke-width="2.5"/>'
        )
    return "".join(parts)


def drawn(svg: str, browser: Any, width: int = 900) -> NDArray[np.uint8]:
    """The pixels of an SVG image."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        page.write_text(f'<meta charset="utf-8">{svg}', "utf-8")
        return shot(browser, page, View(("svg",), width=width))


def few_texts(browser: Any) -> NDArray[np.uint8]:
    results = json.loads((RESULTS / "few-texts-cpu.json").read_text("utf-8"))
    return drawn(curves(results["sets"]), browser)


def grown(device: str, browser: Any) -> NDArray[np.uint8]:
    results = json.loads((RESULTS / f"bodies-{device}.json").read_text("utf-8"))
    return drawn(growth(results["growth"]), browser)


FIGURES = {
    "few-texts": few_texts,
    **{
        name: partial(grown, device)
        for name, device in GROWTH.items()
        if (RESULTS / f"bodies-{device}.json").is_file()
    },
}
