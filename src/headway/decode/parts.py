"""What to translate of each line: nothing of an empty one, several parts of a long one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.decode.long import split_text
from headway.decode.translation import Summary, TextWish
from headway.errors import UserError
from headway.text.tokenizer import Tokenizer

OnLong = Literal["split", "cut", "error"]


@dataclass(frozen=True)
class Part:
    """A line, or a piece of one that was too long."""

    line: int
    """Its number in the input, from 0."""

    number: int
    text: str
    ids: list[int]
    wish: TextWish
    cut: bool = False
    """The end of the line is missing."""


@dataclass(frozen=True)
class Cutter:
    source: Tokenizer
    max_len: int
    """Tokens of a line that is not too long."""

    on_long: OnLong
    summary: Summary

    def parts(
        self, lines: Sequence[str], wishes: Sequence[TextWish], first: int
    ) -> list[list[Part]]:
        """Those of each line; the first of these lines has the number `first`."""
        self.summary.lines += len(lines)
        pairs = zip(lines, self.source.encode_batch(lines), wishes, strict=True)
        return [
            self._of_line(line, ids, wish, number)
            for number, (line, ids, wish) in enumerate(pairs, first)
        ]

    def _of_line(self, line: str, ids: list[int], wish: TextWish, number: int) -> list[Part]:
        if not line.strip():
            self.summary.empty += 1
            return []
        if len(ids) <= self.max_len:
            return [Part(number, 0, line, ids, wish)]
        too_long = f"line {number + 1:,} has {len(ids):,} tokens, more than the {self.max_len:,}"
        if self.on_long == "error":
            raise UserError(
                f"{too_long} that this model translates at once. Split the line, or use "
                "--on-long split or --on-long cut."
            )
        if self.on_long == "cut":
            self.summary.cut.append(number + 1)
            return [Part(number, 0, line, ids[: self.max_len], wish, cut=True)]
        if wish != TextWish():
            raise UserError(
                f"{too_long} that this model translates at once, and what it asks for cannot be "
                "shared out over its parts. Split the line, or use --on-long cut."
            )
        self.summary.split += 1
        texts = split_text(line, self.max_len, self._count)
        return [
            Part(number, n, text, part[: self.max_len], wish)
            for n, (text, part) in enumerate(
                zip(texts, self.source.encode_batch(texts), strict=True)
            )
        ]

    def _count(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.source.encode_batch(texts)]
