"""A window of lines on its way through a translator: cut into parts, begun, put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headway.decode.engine import Batch
from headway.decode.parts import Part
from headway.decode.translation import Output, TextWish, Translation, joined
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


def translation_of(
    line: str, parts: Sequence[Part], found: Sequence[Sequence[Output]]
) -> Translation:
    if not parts:
        return Translation(line, [Output("")])
    # A part may have found fewer outputs than another: its last one then stands in.
    n_best = max(len(outputs) for outputs in found)
    words = [len(part.text.split()) for part in parts]
    ranked = [
        joined([outputs[min(n, len(outputs) - 1)] for outputs in found], words)
        for n in range(n_best)
    ]
    return Translation(line, ranked, len(parts), parts[0].cut)
