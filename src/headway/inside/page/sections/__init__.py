"""The sections of a page. Each is one file here that makes the data and one panel in `web/panels/`.

A section's module has `section(looked)`, which gives a dict of JSON values and `Array`s, or None
where this model or text has no such panel.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway.inside.capture.streams import shown
from headway.settings.listed import listed

if TYPE_CHECKING:
    from headway.inside.capture.streams import Reading
    from headway.inside.page.look import Looked

SECTIONS = (
    "overview", "picture", "sound", "walk", "attention", "beam", "saliency", "lens", "ngrams",
    "neurons", "dictionary", "heads", "positions", "search", "training", "compare",
)  # fmt: skip
"""In the order of the tabs."""

OF_MEDIA = ("picture", "sound")
"""Sections of pictures, videos and recordings."""

OF_SEVERAL = ("training", "compare")
"""Sections that no look has alone: `look.py` adds them where there are several."""


Section = dict[str, object]
"""JSON values and `Array`s."""


def sections(looked: Looked, names: Iterable[str] = SECTIONS) -> dict[str, Section]:
    """The sections that this look has, by name."""
    alone = [name for name in listed(names) if name not in OF_SEVERAL]
    made = {name: import_module(f"{__name__}.{name}").section(looked) for name in alone}
    return {name: section for name, section in made.items() if section is not None}


def _short(reading: Reading, stream: str) -> Section:
    """Patches and stretches of sound have long names, and short ones for the sides of maps."""
    if reading.media is None or stream == "target":
        return {}
    return {"short": reading.media.short()}


def look_of(label: str, looked: Looked, names: Iterable[str] = SECTIONS) -> dict[str, Any]:
    """One look of a page: what was read, and its sections."""
    reading = looked.trace.reading
    return {
        "label": label,
        "task": reading.task,
        "text": reading.text,
        "streams": {
            name: {
                "pieces": [shown(piece) for piece in stream.pieces],
                "words": list(stream.words),
                "special": list(stream.special),
                **_short(reading, name),
            }
            for name, stream in reading.streams.items()
        },
        "outputs": [
            {"row": output.row, "id": output.id, "name": shown(output.name)}
            for output in reading.outputs
        ],
        "truth": looked.truth,
        "sections": sections(looked, names),
    }
