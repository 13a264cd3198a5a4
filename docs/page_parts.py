"""Markdown that the generated pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `python docs/reference.py` from declarations: change those. -->\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells) + "\n"


def prose(text: str) -> str:
    """A docstring as a cell: `None` is what TOML and words call none."""
    return cell(text.replace("None:", "none:"))


def cell(text: str) -> str:
    """A text in a table."""
    return text.replace("|", "\\|")
