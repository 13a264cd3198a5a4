"""Text for terminals: shades, widths of words, and escaping of control characters."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from headway.tokens.pieces import SPACE_MARK

BLUE = 33
"""A colour of the 256-colour palette that is readable on black and on white."""

SPELLED = str.maketrans({"−": "-", "·": "|", "α": "alpha", "…": "..."})
"""ASCII spelling of special characters."""

USUAL_WIDTH = 80
NARROWEST = 40


@dataclass(frozen=True)
class TerminalStyle:
    """Signs and colours that a terminal can show."""

    shades: str
    """Signs from the lowest to the highest value."""

    is_colour: bool = False
    is_ascii: bool = False
    star: str = "★"
    cross: str = "✗"
    dots: str = "…"
    rule: str = "─"
    dot: str = "·"

    def cell(self, value: float, width: int) -> str:
        """Format a value from 0 to 1 as a cell of a heatmap."""
        share = min(max(value, 0.0), 1.0)
        cell = self.shades[round(share * (len(self.shades) - 1))] * width
        return f"\x1b[38;5;{BLUE}m{cell}\x1b[0m" if self.is_colour and cell.strip() else cell

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.is_colour else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.is_colour else text

    def safe(self, text: str) -> str:
        """Text of a model on one line, with control characters escaped."""
        text = text.replace(SPACE_MARK, " ")
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        if not self.is_ascii:
            return text
        plain = unicodedata.normalize("NFKD", text.translate(SPELLED))
        kept = "".join(c for c in plain if not unicodedata.combining(c))
        return kept.encode("ascii", "replace").decode()

    def word(self, piece: str) -> str:
        """A token as one word; a single space is shown as a mark."""
        return self.safe(piece).strip() or ("_" if self.is_ascii else "␣")

    def fit(self, text: str, width: int) -> str:
        """Pad or cut a text to exactly `width` cells."""
        if cell_len(text) > width:
            text = set_cell_size(text, max(0, width - len(self.dots))) + self.dots
            text = text if cell_len(text) <= width else self.dots[:width]
        return text + " " * (width - cell_len(text))


ASCII = TerminalStyle(
    " .:-=+*#%@", is_ascii=True, star="*", cross="-", dots="..", rule="-", dot="|"
)
BLOCKS = TerminalStyle(" ░▒▓█")
COLOUR = TerminalStyle(" ░▒▓█", is_colour=True)
STYLES = {"ascii": ASCII, "blocks": BLOCKS, "colour": COLOUR}


def style_for(stream: Any) -> TerminalStyle:
    """Select colours for a terminal that has them, blocks for UTF-8, otherwise ASCII."""
    name = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    if name != "utf8":
        return ASCII
    is_terminal = bool(getattr(stream, "isatty", lambda: False)())
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
    return COLOUR if is_terminal and not plain else BLOCKS


def width_of(stream: Any) -> int:
    """Columns of the terminal; 80 for a file or a pipe."""
    if not bool(getattr(stream, "isatty", lambda: False)()):
        return USUAL_WIDTH
    return max(NARROWEST, shutil.get_terminal_size((USUAL_WIDTH, 24)).columns)


def bands(widths: Sequence[int], room: int) -> list[range]:
    """Group columns of these widths into as few bands as fit, each with at least one column."""
    found, first, used = [], 0, 0
    for place, width in enumerate(widths):
        if place > first and used + width > room:
            found.append(range(first, place))
            first, used = place, 0
        used += width
    return [*found, range(first, len(widths))] if widths else []
