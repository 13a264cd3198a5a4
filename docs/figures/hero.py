"""The first image of the README: a translation, and the attention of each of its words."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .browser import IMAGES, STYLE, View, png, shot
from .panels import GERMAN, Panel, take

WORDS = 6
"""Frames: one for each word of the translation."""

SECONDS = 1.4
"""How long a frame is seen: enough to follow the ribbon from a word to its source."""


def frame(browser: Any, row: int) -> NDArray[np.uint8]:
    """The command, its answer, and the attention of one word of the answer."""
    panel = Panel("", "tatoeba-de-en", GERMAN,
                  f"tab=attention&kind=cross&layer=0&head=1&row={row}",
                  (".card >> nth=1",), width=820, below=-62)  # fmt: skip
    seen = base64.b64encode(png(take(panel, browser))).decode()
    commands = (
        f'<span class="prompt">$</span> headway predict tatoeba-de-en --text "{GERMAN}"\n'
        "I read an old book yesterday.\n"
        f'<span class="prompt">$</span> headway look tatoeba-de-en --text "{GERMAN}"'
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "hero.html"
        page.write_text(
            f'<meta charset="utf-8"><style>{STYLE} #hero {{ width: 820px }}'
            " .card { max-width: none; width: 100%; border-radius: 10px 10px 0 0 }"
            " img { width: 820px; display: block }</style>"
            f'<div id="hero"><div class="card terminal"><pre>{commands}</pre></div>'
            f'<img src="data:image/png;base64,{seen}"></div>',
            "utf-8",
        )
        return shot(browser, page, View(("#hero",), width=860))


def animation(browser: Any) -> NDArray[np.uint8]:
    """Write the animation beside the still image, and return the still image."""
    frames = [frame(browser, row) for row in range(WORDS)]
    images = [Image.fromarray(one).resize((840, round(840 * len(one) / one.shape[1])))
              for one in frames]  # fmt: skip
    first, *others = [one.quantize(64) for one in images]
    first.save(IMAGES / "hero.gif", save_all=True, append_images=others,
               duration=round(1000 * SECONDS), loop=0, optimize=True)  # fmt: skip
    return frames[1]


FIGURES = {"hero": animation}
