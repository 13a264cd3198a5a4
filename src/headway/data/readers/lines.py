"""Read plain text as documents of any size, and aligned files line by line.

Long documents are read in pieces that fit in memory. A piece ends before a single space between two
words, where every tokenizer splits, so that the tokens of the pieces are the tokens of the whole
document.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import numpy as np

from headway.data.files import MAX_LINE, DataFile, is_stream, lines_of
from headway.data.shifted_lines import describe_misalignment
from headway.data.table import SAMPLE, RawRow, Table
from headway.errors import DataError

PIECE = 10_000
"""Approximate number of characters in a piece of a document. It is small, so that encoding a block
of pieces takes little memory."""

SEPARATOR = "<|endoftext|>"
"""Line that separates the documents of a file, as in the training data of GPT-2."""

_SEPARATORS = re.compile(r"^<\|endoftext\|>[ \t]*(?:\n|\Z)", re.MULTILINE)
_PLACES = re.compile(r"(?<=\S)[ \n](?=\S)")


TextChunks = Iterator[str | None]
"""Chunks of text of bounded size. None marks the end of each document."""


TextUnit = Literal["auto", "file", "paragraph", "line"]

TEXT = "text"
"""Name of the only column of a plain text file."""


class UnequalCounts(DataError):
    """Error that aligned files have different numbers of lines."""


def open_plain(file: DataFile, unit: TextUnit) -> Table:
    """Return a table with one column of documents.

    Long documents are read in pieces that join to exactly the same text. The number of a row is
    that of its line if each line is a document, otherwise the number of the document in its file.
    """

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        return _pieces(file.text(), file.name, unit)

    forms = {"auto": "documents", "file": "a document", "paragraph": "paragraphs", "line": "lines"}
    first = islice(_pieces(file.head_text(), file.name, unit), 3)
    sample = [{TEXT: raw.values[0]} for raw in first if raw.values]
    return Table((TEXT,), sample, read, name=file.name, form=f"plain text, {forms[unit]}",
                 unit="line" if unit == "line" else "document", typed=False)  # fmt: skip


def _pieces(chunks: Iterator[str], name: str, unit: TextUnit) -> Iterator[RawRow]:
    number, held, started = 1, "", False
    for part in _parts(chunks, name, unit):
        if part is not None:
            held += part
            while len(held) > 2 * PIECE:
                cut = _place(held)
                yield RawRow((held[:cut],), number, ends=False)
                held, started = held[cut:], True
        else:
            yield RawRow((held,), number)
            number, held, started = number + 1, "", False
    if held or started:
        yield RawRow((held,), number)


def open_aligned(files: Sequence[DataFile], names: Sequence[str]) -> Table:
    """Return a table of aligned files, in which line n of each file belongs to the same example."""

    def read(asked: Sequence[str]) -> Iterator[RawRow]:
        sides = [files[names.index(name)].lines() for name in asked]
        number = 0
        try:
            for number, lines in enumerate(zip(*sides, strict=True), 1):
                yield RawRow(lines, number)
        except ValueError as error:  # raised by zip; our own errors are not ValueErrors
            raise UnequalCounts(_unequal(files[0], files[1])) from error

    streams = any(is_stream(file.path) for file in files)
    heads = [[] if streams else list(islice(file.head(), SAMPLE)) for file in files]
    for file in files:
        file.close()
    sample = [dict(zip(names, lines, strict=True)) for lines in zip(*heads, strict=False)]
    beside = " and ".join(Path(file.name).name for file in files[1:])
    return Table(tuple(names), sample, read, name=files[0].name, typed=False,
                 form=f"lines, aligned with {beside}")  # fmt: skip


def _unequal(source: DataFile, target: DataFile) -> str:
    names = f"{source.name} and {target.name}"
    rule = "line n of one must be the translation of line n of the other."
    if is_stream(source.path) or is_stream(target.path):
        return f"{names} have different numbers of lines: {rule}"
    lengths = [
        np.fromiter((len(line) for line in file.lines()), np.float64) for file in (source, target)
    ]
    counts = f"{source.name} has {len(lengths[0]):,} lines, but {target.name} has "
    counts += f"{len(lengths[1]):,}: {rule} "
    return counts + describe_misalignment(
        lengths[0], lengths[1], (source.path, target.path), source.encoding
    )


def _place(text: str) -> int:
    """Return the position at which to cut a text: before the last single space in the first `PIECE`
    characters."""
    for start in (PIECE - 1_000, 1):
        found = [match.start() for match in _PLACES.finditer(text, start, PIECE + 1)]
        if found:
            return found[-1]
    cut = PIECE
    while cut > 1 and unicodedata.combining(text[cut]):
        cut -= 1
    return cut


def _parts(chunks: Iterator[str], name: str, unit: TextUnit) -> TextChunks:
    if unit == "line":
        return _lines(lines_of(chunks, name))
    if unit == "paragraph":
        return _paragraphs(lines_of(chunks, name))
    text = _line_feeds(chunks)
    return iter(text) if unit == "file" else _trimmed(_separated(text))


def _lines(lines: Iterable[str]) -> TextChunks:
    for line in lines:
        yield line
        yield None


def _paragraphs(lines: Iterable[str]) -> TextChunks:
    inside = False
    for line in lines:
        if line.strip():
            yield f"\n{line}" if inside else line
            inside = True
        elif inside:
            yield None
            inside = False


def _line_feeds(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the chunks without carriage returns before line feeds."""
    held = ""
    for chunk in chunks:
        text = held + chunk
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n")
        if text:
            yield text
    if held:
        yield held


def _separated(chunks: Iterable[str]) -> TextChunks:
    """Yield the chunks with None in place of each separator line."""
    held = ""
    for chunk in chain(chunks, [None]):
        text = held + (chunk or "")
        # Only whole lines are searched, so that a chunk border cannot split a separator. Lines of
        # many megabytes are cut.
        cut = len(text) if chunk is None or len(text) > MAX_LINE else text.rfind("\n") + 1
        text, held = text[:cut], text[cut:]
        first, *others = _SEPARATORS.split(text) if SEPARATOR in text else [text]
        yield first
        for other in others:
            yield None
            yield other


def _trimmed(parts: TextChunks) -> TextChunks:
    """Yield the parts without empty lines next to separators. Text without a separator is
    unchanged."""
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
