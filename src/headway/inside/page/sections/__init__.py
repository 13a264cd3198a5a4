"""Sections of a page. A section has a module here, which computes its data, and a panel in
`web/panels/`, which displays it.

The module has a function `section(looked)`. It returns a dict of JSON values and `PackedArray`s, or
None if the section does not apply to the model or text.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headway.inside.capture.streams import display_piece
from headway.settings.listed import ensure_list

if TYPE_CHECKING:
    from headway.inside.capture.streams import Reading
    from headway.inside.page.look import LookInputs

SECTIONS = (
    "overview", "image", "audio", "walk", "attention", "beam", "saliency", "lens", "ngrams",
    "neurons", "features", "heads", "positions", "neighbours", "training", "compare",
)  # fmt: skip
"""Names of all sections, in the order of the tabs."""

MEDIA_SECTIONS = ("image", "audio")
"""Names of the sections for images, videos and recordings."""

COMPARISON_SECTIONS = ("training", "compare")
"""Names of the sections that compare several looks. They are computed by `look.py`."""


PageSection = dict[str, object]
"""Data of a section: JSON values and `PackedArray`s."""


def sections(looked: LookInputs, names: Iterable[str] = SECTIONS) -> dict[str, PageSection]:
    """Return the data of each section of this look, by name. Sections that do not apply are left
    out."""
    alone = [name for name in ensure_list(names) if name not in COMPARISON_SECTIONS]
    made = {name: import_module(f"{__name__}.{name}").section(looked) for name in alone}
    return {name: section for name, section in made.items() if section is not None}


def _short(reading: Reading, stream: str) -> PageSection:
    """Return short names of patches and audio frames, for the axes of maps."""
    if reading.media is None or stream == "target":
        return {}
    return {"short": reading.media.short_names()}


def look_data(label: str, looked: LookInputs, names: Iterable[str] = SECTIONS) -> dict[str, Any]:
    """Return the data of one look: the input, the outputs and the sections."""
    reading = looked.trace.reading
    return {
        "label": label,
        "task": reading.task,
        "text": reading.text,
        "streams": {
            name: {
                "pieces": [display_piece(piece) for piece in stream.pieces],
                "words": list(stream.words),
                "special": list(stream.special),
                **_short(reading, name),
            }
            for name, stream in reading.streams.items()
        },
        "outputs": [
            {"row": output.row, "id": output.id, "name": display_piece(output.name)}
            for output in reading.outputs
        ],
        "truth": looked.truth,
        "sections": sections(looked, names),
    }
