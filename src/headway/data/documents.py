"""Documents of plain text or JSONL, of any size: they come in pieces that fit in memory.

A piece ends before a single blank between two words, where every tokenizer cuts anyway, so that
the tokens of the pieces are the tokens of the document.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from headway.config.data import DataSettings
from headway.config.listed import listed
from headway.data.files import MAX_LINE, open_lines, open_text, shown
from headway.data.jsonl import is_json, parse_object, text_of

PIECE = 10_000
"""Characters of a piece, about."""

SEPARATOR = "<|endoftext|>"
"""The line between two documents of one file."""

_SEPARATORS = re.compile(r"^<\|endoftext\|>[ \t]*(?:\n|\Z)", re.MULTILINE)
_PLACES = re.compile(r"(?<=\S)[ \n](?=\S)")


Stream = Iterator[str | None]
"""Text in parts of bounded size; None where a document ends."""


class Piece(NamedTuple):
    text: str
    number: int
    """Of the document in its file, from 1; the line where a document is a line."""

    ends: bool
    """Whether the document ends here."""


def read_documents(paths: Sequence[str], settings: DataSettings) -> Iterator[str]:
    """Whole documents, one at a time, blank ones too."""
    parts: list[str] = []
    for path in listed(paths):
        for piece in read_pieces(path, settings):
            parts.append(piece.text)
            if piece.ends:
                yield "".join(parts)
                parts = []


def read_pieces(path: str, settings: DataSettings) -> Iterator[Piece]:
    """The documents of a file, each in pieces; joined they are the document, exactly."""
    number, held, started = 1, "", False
    for part in _parts(path, settings):
        if part is not None:
            held += part
            while len(held) > 2 * PIECE:
                cut = _place(held)
                yield Piece(held[:cut], number, False)
                held, started = held[cut:], True
        else:
            yield Piece(held, number, True)
            number, held, started = number + 1, "", False
    if held or started:
        yield Piece(held, number, True)


def _place(text: str) -> int:
    """Where to cut: before the last single blank of the first so many characters."""
    for start in (PIECE - 1_000, 1):
        found = [match.start() for match in _PLACES.finditer(text, start, PIECE + 1)]
        if found:
            return found[-1]
    cut = PIECE
    while cut > 1 and unicodedata.combining(text[cut]):
        cut -= 1
    return cut


def _parts(path: str, settings: DataSettings) -> Stream:
    chunks = open_text(path, settings.encoding)
    head = next(chunks, "").split("\n", 1)[0]
    encoding = settings.encoding
    if is_json(path, head, settings.text_field):
        return _records(path, settings)
    if settings.unit == "line":
        return _lines(open_lines(path, encoding))
    if settings.unit == "paragraph":
        return _paragraphs(open_lines(path, encoding))
    text = _line_feeds(open_text(path, encoding))
    return iter(text) if settings.unit == "file" else _trimmed(_separated(text))


def _records(path: str, settings: DataSettings) -> Stream:
    for number, line in enumerate(open_lines(path, settings.encoding), 1):
        if line.strip():
            where = f"{shown(path)}, line {number:,}"
            yield text_of(parse_object(line, where), settings.text_field, where, "text_field")
        yield None


def _lines(lines: Iterable[str]) -> Stream:
    for line in lines:
        yield line
        yield None


def _paragraphs(lines: Iterable[str]) -> Stream:
    inside = False
    for line in lines:
        if line.strip():
            yield f"\n{line}" if inside else line
            inside = True
        elif inside:
            yield None
            inside = False


def _line_feeds(chunks: Iterable[str]) -> Iterator[str]:
    """A carriage return before a line feed goes."""
    held = ""
    for chunk in chunks:
        text = held + chunk
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n")
        if text:
            yield text
    if held:
        yield held


def _separated(chunks: Iterable[str]) -> Stream:
    """None in the place of each line that is the separator."""
    held = ""
    for chunk in chain(chunks, [None]):
        text = held + (chunk or "")
        # Whole lines, for a separator is one; but a line of many megabytes is none.
        cut = len(text) if chunk is None or len(text) > MAX_LINE else text.rfind("\n") + 1
        text, held = text[:cut], text[cut:]
        first, *others = _SEPARATORS.split(text) if SEPARATOR in text else [text]
        yield first
        for other in others:
            yield None
            yield other


def _trimmed(parts: Stream) -> Stream:
    """Without the empty lines around separators. Without a separator all stays as it is."""
    feeds, inside, separated = "", False, False
    for part in parts:
        if part is None:
            yield None
            feeds, inside, separated = "", False, True
            continue
        text = part.lstrip("\n") if separated and not inside else part
        if bare := text.rstrip("\n"):
            yield feeds + bare
            feeds, inside = "", True
        feeds += text[len(bare) :]
    if feeds and not separated:
        yield feeds
