"""Images of the pages in `docs/look`: parts of look pages, and charts of measured accuracy."""

from __future__ import annotations

import gzip
import json
import tempfile
from decimal import ROUND_HALF_UP, Decimal
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headway
from headway.inside.capture.corpus import Corpus
from headway.settings.folder import SHIPPED

from .browser import ROOT, View, pixels_of, shot
from .curves import drawn
from .panels import DOG, GERMAN, KITE, Panel, card, steps, take

EXAMPLES = ROOT / "docs" / "look" / "examples"
PAIRS = ROOT / "examples" / "data" / "tatoeba-de-en.tsv.gz"
ASLEEP = "Der Hund schläft unter dem Tisch."
BICYCLE = "Tom fährt mit dem Rad nach Hause."
SMALL_DOG = "Ich habe gestern einen kleinen Hund im Park gesehen."
PARK = "One day, Tim went to the park."
FACTORS = ROOT / "runs" / "stories-factors"
"""Where the command of `docs/look/factors.md` writes them; without them their image is not made."""

PRUNED = ROOT / "runs" / "de-en-curve"
"""A copy of the shipped model with the curve that `docs/look/heads.md` measures; without it the
image is not made."""

SMALL = {
    "model.d_model": 64, "model.d_ff": 128, "model.n_layers": 2, "tokenizer.vocab_size": 2000,
    "train.steps": 600, "train.eval_every": 60, "train.keep": 10, "train.batch_tokens": 1024,
    "train.seed": 1,
}  # fmt: skip
"""Settings of the training whose checkpoints are shown: about half a minute."""

HEADER = (".top", ".tabs")
PAGES = {
    "look-translation": ("translation", View((*HEADER, card(1)), 900, "tab=beam&beamShow=kept")),
    "look-story": ("story", View((*HEADER, "table.lens"), 860, "tab=lens")),
    "look-image": ("image", View((*HEADER, card(1)), 860, "tab=image")),
}
"""Images of the pages that open with one click."""


def example(name: str, view: View, browser: Any) -> NDArray[np.uint8]:
    return shot(browser, EXAMPLES / f"{name}.html", view)


PANELS = (
    Panel("look-audio", "digits", "", "tab=audio", (".scroll >> nth=0",), width=410,
          extras={"file": SHIPPED / "digits" / "example.wav"}),
    Panel("look-compare", "tatoeba-de-en", DOG, "tab=compare", (card(2),), width=760,
          extras={"against_text": "Eine Katze hat ihr ins Bein gebissen."}),
    Panel("look-saliency", "tatoeba-de-en", GERMAN, "tab=saliency&saliencyMap=occlusion&row=5",
          (card(1),), width=820),
    Panel("look-agreement", "tatoeba-de-en", GERMAN, "tab=saliency", (card(3),), width=720),
    Panel("look-beam", "tatoeba-de-en", BICYCLE, "tab=beam", (card(1),), width=860),
    Panel("look-lens", "tatoeba-de-en", ASLEEP, "tab=lens&row=4", (card(1),), width=960),
    Panel("look-positions", "tatoeba-de-en", DOG, "tab=positions", (card(3),), width=760),
    Panel("look-walk", "tatoeba-de-en", ASLEEP, "tab=walk",
          steps(16, 18), width=820, below=0, extras={"walk": ("cross", 1, 2, 1)}),
    Panel("look-heads", "tatoeba-de-en", GERMAN, "tab=heads", (card(1),), width=760),
    Panel("look-neurons", "stories", KITE, "tab=neurons", (card(1),), width=760, new=1),
)  # fmt: skip


def cut(browser: Any) -> NDArray[np.uint8]:
    """The card of a hypothesis that the search has cut."""
    from headway.inside import load, trace

    tree = trace(load("tatoeba-de-en"), BICYCLE, beam=True).beam
    node = next(at for at, node in enumerate(tree.nodes) if tree.text(node) == "Tom rid")
    view = f"tab=beam&beamNode={node}"
    return take(Panel("", "tatoeba-de-en", BICYCLE, view, (card(2),), width=760), browser)


MODELS = ("tatoeba-de-en", "tatoeba-en-de", "stories")
MAPS = {
    "best head": "best", "norm, best layer": "norm", "mean of heads, best layer": "mean",
    "occlusion": "occlusion", "gradient × attention": "gradxattention",
    "integrated gradients": "integrated", "gradient × input": "gradxinput", "flow": "flow",
    "rollout": "rollout", "diagonal": "diagonal",
}  # fmt: skip
"""Rows of the chart of accuracies. `best` is the head chosen on one half and measured on the other;
of `norm` and `mean` the best layer is shown."""


def accuracy(found: dict[str, Any], name: str) -> tuple[float, float] | None:
    """How often a map is right, and chance on the same texts; None if it was not measured."""
    maps = found["maps"]
    if name == "best":
        return found["best"]["p1"], maps["random"]["random"]
    if name in ("norm", "mean"):
        name = max(
            (one for one in maps if one.endswith(f".{name}")), key=lambda one: maps[one]["p1"]
        )
    return (maps[name]["p1"], maps[name]["random"]) if name in maps else None


def rounded(number: float) -> Decimal:
    """Two digits, halves rounded up as on pages."""
    return Decimal(number).quantize(Decimal("0.01"), ROUND_HALF_UP)


def accuracies(browser: Any) -> NDArray[np.uint8]:
    """The accuracy of each map of three shipped models, with chance, from their truth.json."""
    label, width, row, gap = 190, 150, 24, 50
    parts = []
    for y, name in enumerate(MAPS):
        parts.append(f'<text x="{label - 10}" y="{y * row + 50}" text-anchor="end">{name}</text>')
    for x, model in enumerate(MODELS):
        left = label + x * (width + gap)
        found = json.loads((SHIPPED / model / "truth.json").read_text("utf-8"))
        unit = f"{found['n']} {found['unit']}"
        parts.append(f'<text x="{left}" y="14" font-weight="bold">{model}</text>')
        parts.append(f'<text x="{left}" y="30" fill="#555">{unit}</text>')
        for y, name in enumerate(MAPS.values()):
            at = y * row + 38
            if (measured := accuracy(found, name)) is None:
                parts.append(f'<text x="{left}" y="{at + 12}" fill="#767676">not measured</text>')
                continue
            right, chance = measured
            parts.append(f'<rect x="{left}" y="{at}" width="{width}" height="16" fill="#eef1f6"/>')
            bar = f'width="{right * width:.1f}" height="16" fill="#2a62c9"'
            parts.append(f'<rect x="{left}" y="{at}" {bar}/>')
            tick = f'd="M{left + chance * width:.1f} {at - 2}v20" stroke="#c2571a" stroke-width="2"'
            parts.append(f"<path {tick}/>")
            parts.append(f'<text x="{left + width + 6}" y="{at + 12}">{rounded(right)}</text>')
    below = len(MAPS) * row + 52
    parts.append(f'<path d="M{label} {below - 12}v16" stroke="#c2571a" stroke-width="2"/>')
    parts.append(f'<text x="{label + 8}" y="{below}">chance on the same texts</text>')
    size = f'width="{label + 3 * (width + gap)}" height="{below + 10}"'
    style = "font: 13px sans-serif; background: white"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{"".join(parts)}</svg>'
    return drawn(svg, browser)


def live(browser: Any) -> NDArray[np.uint8]:
    """The page of `headway look --serve`, with one token hidden."""
    from headway.inside.capture.interventions import NO_INTERVENTION
    from headway.inside.capture.reading import DEFAULT_OPTIONS
    from headway.inside.page.look import LookOptions
    from headway.serve.application import create_app
    from headway.serve.limits import Limits
    from headway.serve.look import LookService, live_page
    from headway.serve.server import running

    run = headway.load("tatoeba-de-en", device="cpu", precision="fp32")
    html, first = live_page(run, DOG, DEFAULT_OPTIONS, NO_INTERVENTION, LookOptions())
    looks = LookService(Limits().looks, {run.name: first})
    with running(create_app([run], home=html, looks=looks)) as url:
        page = browser.new_page(viewport={"width": 900, "height": 800}, device_scale_factor=2)
        page.goto(f"{url}/#tab=attention&kind=cross&layer=1&head=1")
        page.click("[data-live=strip] .token >> nth=1")
        page.wait_for_selector("[data-live=said][data-answers='1']")
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)
        first, last = (page.locator(part).bounding_box() for part in HEADER)
        height = last["y"] + last["height"] - first["y"] + 20
        taken = page.screenshot(clip={"x": 0, "y": 0, "width": 900, "height": height})
        page.close()
    blank = browser.new_page()
    pixels_YXC = pixels_of(blank, taken)
    blank.close()
    return pixels_YXC


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())


@cache
def trained() -> Path:
    """A translator with the checkpoints of a short training."""
    out = folder() / "demo"
    headway.train("translate", pairs=PAIRS, out=out, settings=SMALL, quiet=True)
    return out


def training(browser: Any) -> NDArray[np.uint8]:
    parts = (".top", ".tabs", card(1), card(2))
    text = "Tom ist mein Freund."
    return take(Panel("", str(trained()), text, "tab=training&look=4", parts, 900), browser)


@cache
def pairs() -> Corpus:
    """Every fourth of the sentence pairs in `examples/data`."""
    with gzip.open(PAIRS, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t")[:2] for line in islice(file, 0, None, 4)]
    return Corpus.of_lines(*zip(*rows, strict=True))


def neighbours(browser: Any) -> NDArray[np.uint8]:
    view, extras = "tab=neighbours&row=5", {"corpus": pairs()}
    return take(
        Panel("", "tatoeba-de-en", SMALL_DOG, view, (card(1),), 820, extras=extras), browser
    )


def pruning(browser: Any) -> NDArray[np.uint8]:
    view = Panel("", str(PRUNED), GERMAN, "tab=heads", (card(2),), width=760)
    return take(view, browser)


def features(browser: Any) -> NDArray[np.uint8]:
    """One factor of the dictionary that `docs/look/factors.md` learns."""
    view, extras = "tab=features&featuresFactor=72", {"factors": FACTORS}
    return take(Panel("", "stories", PARK, view, (card(3),), 760, extras=extras), browser)


FIGURES = {
    **{name: partial(example, *given) for name, given in PAGES.items()},
    **{panel.name: partial(take, panel) for panel in PANELS},
    "look-accuracy": accuracies,
    "look-beam-cut": cut,
    "look-live": live,
    "look-training": training,
    "look-neighbours": neighbours,
    **({"look-features": features} if FACTORS.is_dir() else {}),
    **({"look-pruning": pruning} if PRUNED.is_dir() else {}),
}
