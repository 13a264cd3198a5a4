"""A window of lines on its way through a translator: cut into parts, and begun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from headway.decode.engine import Batch
from headway.decode.long_input import Part
from headway.decode.translation import TextWish
from headway.errors import UserError

NOTHING = TextWish()


@dataclass
class Work:
    """A window of lines on its way."""

    lines: list[str]
    parts: list[list[Part]]
    """Of each line."""

    begun: Iterator[Batch] | None = None
    """Results to wait for, where the search works ahead."""

    @property
    def flat(self) -> list[Part]:
        return [part for of_line in self.parts for part in of_line]


def next_wishes(wishes: Iterator[TextWish] | None, n_lines: int, first: int) -> list[TextWish]:
    if wishes is None:
        return [NOTHING] * n_lines
    found = list(islice(wishes, n_lines))
    if len(found) < n_lines:
        raise UserError(
            f"prefixes or constraints are given for {first + len(found):,} lines, but there are "
            "more lines than that. Give one for each, empty where nothing is asked."
        )
    return found
