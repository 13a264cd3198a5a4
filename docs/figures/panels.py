"""Images of `headway look` pages of the shipped models, and of runs in a folder that exist."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .browser import MARGIN, View, shot

GERMAN = "Ich habe gestern ein altes Buch gelesen."
STORY = "Once upon a time, there was a little girl named Lily. She loved to play in the garden."
KITE = "Tom was sad because his kite was stuck in the tall tree."
DOG = "Ein Hund hat ihr ins Bein gebissen."


@dataclass(frozen=True)
class Panel:
    """Part of a look page."""

    name: str
    run: str
    text: str
    view: str
    """The state of the page, as after the `#` of its address."""

    parts: tuple[str, ...]
    width: int = 760
    below: int = MARGIN
    new: int = 24
    extras: dict[str, Any] = field(default_factory=dict)
    """More arguments of `headway.inside.page.look.look`."""


def card(number: int) -> str:
    return f".card >> nth={number - 1}"


def steps(first: int, last: int) -> tuple[str, ...]:
    return tuple(f".step >> nth={number - 1}" for number in range(first, last + 1))


HABE = {"walk": ("encoder", 1, 1, 1)}
PANELS = (
    Panel("01-soft-lookup", "tatoeba-de-en", GERMAN,
            "tab=attention&kind=cross&layer=1&head=1&row=5", (card(2),), width=820),
    Panel("02-queries-keys-values", "tatoeba-de-en", GERMAN, "tab=walk", steps(3, 5), below=0,
            extras=HABE),
    Panel("03-why-one-over-root-d", "tatoeba-de-en", GERMAN, "tab=walk", steps(6, 7), below=0,
            extras=HABE),
    Panel("04-many-heads", "stories", STORY, "tab=attention&kind=self&layer=2&head=0",
            (card(1),), width=480),
    Panel("05-order-and-positions", "tatoeba-en-de", "The dog bites the man.", "tab=positions",
            (card(1),)),
    Panel("06-masks", "stories", "The cat sat on the mat and slept.",
            "tab=attention&kind=self&layer=2&head=0&row=7", (card(2),), width=820, new=1),
    Panel("07-cross-attention", "tatoeba-de-en", GERMAN,
            "tab=attention&kind=cross&layer=0&head=1&row=1", (card(2),), width=820),
    Panel("08-residuals-and-norms", "stories", KITE, "tab=lens&row=12", (card(1),), width=700,
            new=1),
    Panel("09-all-positions-at-once", "stories",
            "Once upon a time, there was a little girl with a purple nose.",
            "tab=overview&overview_item=10", (card(1),), new=1),
    Panel("10-decoding-and-beams", "tatoeba-de-en", DOG, "tab=beam", (card(1),), width=900),
    Panel("readme-attention", "tatoeba-de-en", GERMAN,
            "tab=attention&kind=cross&layer=1&head=3&row=1", (card(1),), width=960),
    Panel("readme-beam", "tatoeba-de-en", DOG, "tab=beam&beamShow=kept", (card(1),), width=960),
    Panel("readme-lens", "stories", "The little dog was hungry. He wanted to", "tab=lens",
            (card(1),), width=700, new=8),
    Panel("look-ngrams", "runs/sst", "the plot is not good but the acting is wonderful",
            "tab=ngrams", (card(1), card(2)), width=820, extras={"checkpoints": False}),
)  # fmt: skip
"""Without names, images of a run in a folder are made if it is there. `docs/look/page.md` has the
command that trains it."""


PAGES: dict[tuple[object, ...], Path] = {}
"""Pages that were written, by what they show: several images come from one."""


def take(panel: Panel, browser: Any) -> NDArray[np.uint8]:
    from headway.inside.capture.reading import GenerationOptions
    from headway.inside.page.look import look

    key = (panel.run, panel.text, panel.new, str(panel.extras))
    if key not in PAGES:
        PAGES[key] = Path(tempfile.mkdtemp()) / "look.html"
        options = GenerationOptions(max_new_tokens=panel.new)
        look(panel.run, panel.text, options, **panel.extras).save(PAGES[key])
    view = View(panel.parts, panel.width, panel.view, panel.below)
    return shot(browser, PAGES[key], view)


FIGURES = {
    panel.name: partial(take, panel)
    for panel in PANELS
    if "/" not in panel.run or Path(panel.run).is_dir()
}
