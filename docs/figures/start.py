"""Images of the pages in docs/start."""

from __future__ import annotations

import gzip
import re
import tempfile
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.settings.folder import SHIPPED

from .browser import ROOT, card, console, output
from .curves import drawn
from .panels import DOG, GERMAN, Panel, take
from .panels import card as nth_card

PAIRS = ROOT / "examples" / "data" / "tatoeba-de-en.tsv.gz"
SENTENCES = 3000
"""Number of pairs in the table of languages of the page, and of lines for each language."""


def install(browser: Any) -> NDArray[np.uint8]:
    commands = ("headway --version", "headway models")
    with tempfile.TemporaryDirectory() as folder:
        session = [(one, output(one, cwd=Path(folder))) for one in commands]
    return console(browser, session, width=700)


def five(browser: Any) -> NDArray[np.uint8]:
    """Four tasks of models that come with headway, without the lines about speed."""
    commands = (
        'headway predict tatoeba-de-en --text "Wo wohnst du?"',
        'headway predict stories --text "Once upon a time" --no-sample --beam 1 --max-len 20',
        "headway predict shapes example.png",
        "headway predict digits example.wav",
    )
    session = [(one, [line for line in output(one) if not line.startswith("headway predict:")])
               for one in commands]  # fmt: skip
    return console(browser, session, width=860)


@cache
def languages() -> list[str]:
    """What the training of the page prints."""
    with tempfile.TemporaryDirectory() as name:
        pairs = gzip.decompress(PAIRS.read_bytes()).decode().splitlines()[:SENTENCES]
        lines = (f"{german}\tGerman\n{english}\tEnglish\n"
                 for german, english in (pair.split("\t")[:2] for pair in pairs))  # fmt: skip
        (Path(name) / "languages.tsv").write_text("".join(lines), "utf-8")
        return output(TRAIN, cwd=Path(name))


TRAIN = "headway train classify languages.tsv --out runs/language train.steps=100"


def train(browser: Any) -> NDArray[np.uint8]:
    """The comparison with baselines at the end of a training."""
    lines = languages()
    first = next(i for i, line in enumerate(lines) if line.endswith("95 % intervals:"))
    return console(browser, [(TRAIN, ["…", *lines[first : first + 6]])], width=700)


def look(browser: Any) -> NDArray[np.uint8]:
    state = "tab=attention&kind=cross&layer=1&head=1&row=3"
    return take(
        Panel("", "tatoeba-de-en", "Wo wohnst du?", state, (nth_card(2),), width=760), browser
    )


def notebook(browser: Any) -> NDArray[np.uint8]:
    """A run and its answers as HTML, as a notebook shows them."""
    import headway

    run = headway.load("tatoeba-de-en", device="cpu")
    answers = run(["Guten Morgen.", GERMAN])
    shown = run._repr_html_().replace(str(SHIPPED.parent.parent), "…")
    cells = (
        ('headway.load("tatoeba-de-en")', shown),
        (f'run(["Guten Morgen.", "{GERMAN}"])', answers._repr_html_()),
    )
    body = "".join(f"<h2><code>{code}</code></h2>{html}" for code, html in cells)
    return card(browser, f"{NOTEBOOK}{body}", width=780)


COOKBOOK = ROOT / "docs" / "start" / "cookbook.md"


def baselines(browser: Any) -> NDArray[np.uint8]:
    """Accuracy of the classifier of the first program of the cookbook, and of baselines."""
    import headway

    program = re.findall(r"```python\n(.*?)```", COOKBOOK.read_text("utf-8"), re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        with chdir(folder):
            exec(program, {})
            scores = headway.load("runs/kinds").evaluate()
            ranges = scores.ranges("accuracy")
            named = {name: one["accuracy"] for name, one in scores.baselines.items()}
            named["this model"] = scores["accuracy"]
            return drawn(bars(named, ranges, scores.n or 0), browser, width=760)


def bars(values: dict[str, float], ranges: dict[str, tuple[float, float]], n: int) -> str:
    """A bar for each value in per cent, with its interval as a line."""
    left, width, height = 130, 480, 34
    parts = [f'<text x="0" y="16" font-weight="bold">Accuracy on {n} validation texts, %</text>']
    for number, (name, value) in enumerate(values.items()):
        top = 30 + number * height
        colour = "#2a62c9" if name == "this model" else "#9aa6b8"
        parts.append(f'<text x="{left - 10}" y="{top + 17}" text-anchor="end">{name}</text>')
        size = width * value / 100
        parts.append(f'<rect x="{left}" y="{top}" width="{size:.1f}" height="24" fill="{colour}"/>')
        label = f"{value:.1f}"
        if name in ranges:
            low, high = (left + width * one / 100 for one in ranges[name])
            ends = f"M{low:.1f} {top + 7}v10M{high:.1f} {top + 7}v10"
            parts.append(
                f'<path d="M{low:.1f} {top + 12}H{high:.1f}{ends}" stroke="#1b2330" fill="none" '
                'stroke-width="1.5"/>'
            )
            label += f"  ({ranges[name][0]:.1f} – {ranges[name][1]:.1f})"
        parts.append(f'<text x="{left + width + 14}" y="{top + 17}">{label}</text>')
    style = "font: 13px sans-serif; background: white"
    size = f'width="{left + width + 160}" height="{36 + len(values) * height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{"".join(parts)}</svg>'


def head(browser: Any) -> NDArray[np.uint8]:
    state = "tab=attention&kind=cross&layer=1&head=0&row=2"
    return take(Panel("", "tatoeba-de-en", DOG, state, (nth_card(2),), width=860), browser)


def hugging_face(browser: Any) -> NDArray[np.uint8]:
    """The proof of an export for transformers."""
    command = "headway export tatoeba-de-en --to hf --out de-en-hf"
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for line in output(command, cwd=Path(folder)) if "so far" not in line]
    return console(browser, [(command, lines)], width=700)


NOTEBOOK = """<style>td, th { border: 1px solid #e3e7ee; padding: 3px 8px; vertical-align: top;
white-space: normal } table { margin-bottom: 12px }</style>"""

FIGURES = {
    "start-install": install, "start-five": five, "start-train": train, "start-look": look,
    "start-notebook": notebook, "start-baselines": baselines, "start-head": head,
    "start-hf": hugging_face,
}  # fmt: skip
