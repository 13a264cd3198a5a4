"""Lines that are longer than a model was made for: cut at sentences into parts that it can read,
and what is written about these joined again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.decode.align import Pair
from headway.decode.translation import Output, Summary, TextWish, Translation
from headway.errors import UserError
from headway.tokens.tokenizer import Tokenizer

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


def joined(parts: Sequence[Output], source_words: Sequence[int], separator: str = " ") -> Output:
    """The outputs of a line's parts as one; `source_words` is the number of words of each part."""
    if len(parts) == 1:
        return parts[0]
    alignment: list[Pair] | None = None
    if all(part.alignment is not None for part in parts):
        alignment, before, after = [], 0, 0
        for part, n_words in zip(parts, source_words, strict=True):
            pairs = part.alignment or []
            alignment += [(before + source, after + target) for source, target in pairs]
            before, after = before + n_words, after + len(part.text.split())
    return Output(
        text=separator.join(part.text for part in parts if part.text),
        score=sum(part.score for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        tokens=[token for part in parts for token in part.tokens],
        token_log_probs=[value for part in parts for value in part.token_log_probs],
        finished=all(part.finished for part in parts),
        alignment=alignment,
    )


Count = Callable[[Sequence[str]], list[int]]
"""How many tokens each text has."""

# After a full stop, with what closes around it, unless it ends one letter (an abbreviation) or what
# follows goes on in small letters. East Asian full stops need no space behind them.
_CLOSE = r"""["'»”’)\]]"""
_STOP = "|".join(
    rf"(?<={stop}{close})" for stop in (r"[^\s.]{2}\.", "[!?…]") for close in ("", _CLOSE)
)
SENTENCE_END = re.compile(rf"(?:{_STOP})\s+(?=[^\sa-zà-öø-ÿ])|(?<=[。！？])")
PAUSE = re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])")
SPACE = re.compile(r"\s+")


def split_text(text: str, limit: int, count: Count) -> list[str]:
    """Parts of at most `limit` tokens each.

    A text that is too long is cut at every sentence end. A sentence that is still too long is cut
    at pauses, else at spaces, else anywhere, into parts as long as they may be.
    """
    if count([text])[0] <= limit:
        return [text]
    sentences = _cut(SENTENCE_END, text)
    return [
        part for sentence in sentences for part in _split(sentence, limit, count, [PAUSE, SPACE])
    ]


def _split(text: str, limit: int, count: Count, ways: list[re.Pattern[str]]) -> list[str]:
    if count([text])[0] <= limit:
        return [text]
    if not ways:
        middle = len(text) // 2
        if not middle:  # one character that takes more tokens than there is room for
            return [text]
        halves = (text[:middle], text[middle:])
        return [part for half in halves for part in _split(half, limit, count, ways)]
    pieces = _cut(ways[0], text)
    parts: list[str] = []
    room = 0
    for piece, size in zip(pieces, count(pieces), strict=True):
        if parts and size <= room:
            parts[-1] = f"{parts[-1]} {piece}"
            room -= size
        else:
            parts.append(piece)
            room = limit - size
    # Tokens of a whole may be more than those of its pieces: look again, the finer way.
    return [finer for part in parts for finer in _split(part, limit, count, ways[1:])]


def _cut(way: re.Pattern[str], text: str) -> list[str]:
    return [piece for piece in way.split(text) if piece.strip()]
