"""Markdown that the generated pages share."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `python docs/reference.py` from declarations: change those. -->\n"
CODE = re.compile(r"`([^`]+)`")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells) + "\n"


def prose(text: str) -> str:
    """A docstring as a cell: `None` is what TOML and words call none."""
    return cell(text.replace("None:", "none:"))


def cell(text: str) -> str:
    """A text in a table.

    Markdown shows the backslash of `\\|` inside backticks, so code with a bar becomes HTML.
    """
    return CODE.sub(_code, text).replace("|", "\\|")


def _code(match: re.Match[str]) -> str:
    if "|" not in match[1]:
        return match[0]
    return f"<code>{html.escape(match[1], quote=False).replace('|', '&#124;')}</code>"
