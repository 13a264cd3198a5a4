"""Images of the pages in docs/start."""

from __future__ import annotations

import gzip
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.settings.folder import SHIPPED

from .browser import ROOT, card, console, output
from .panels import GERMAN, Panel, take
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


NOTEBOOK = """<style>td, th { border: 1px solid #e3e7ee; padding: 3px 8px; vertical-align: top;
white-space: normal } table { margin-bottom: 12px }</style>"""

FIGURES = {
    "start-install": install, "start-five": five, "start-train": train, "start-look": look,
    "start-notebook": notebook,
}  # fmt: skip
