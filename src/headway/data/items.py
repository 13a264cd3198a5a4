"""One form for everything that texts come in: documents, labelled texts, tagged words, fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headway.config.run import RunSettings
from headway.data.documents import read_pieces
from headway.data.files import open_lines, shown
from headway.data.jsonl import is_json, parse_object, text_of
from headway.data.pairs import PairFile
from headway.data.records import placed_fields, read_records
from headway.data.schemes import Scheme
from headway.data.tagged import detect_scheme, read_tagged

TextKind = Literal["documents", "labelled", "tagged", "fields", "texts"]

BLOCK = 4096
BLOCK_CHARACTERS = 2_000_000


class Item(NamedTuple):
    """An example, or a piece of a long document."""

    texts: tuple[str, ...]
    """One for each column; empty where it is absent."""

    place: str
    label: str | None = None
    words: Sequence[str] = ()
    tags: Sequence[str] = ()
    misfits: int = 0
    problem: str = ""
    """Why it could not be read, where that is left out (`data.bad`); then it has no text."""

    ends: bool = True
    """False for a piece of a document that goes on with the next item."""


@dataclass(frozen=True)
class Source:
    """The files of one split, read as items as often as needed."""

    kind: TextKind
    settings: RunSettings
    paths: tuple[str, ...]
    scheme: Scheme = "bio"
    """Of the tags, where there are any."""

    def __iter__(self) -> Iterator[Item]:
        reader = {"documents": _documents, "labelled": _labelled, "tagged": self._tagged,
                  "fields": _fields, "texts": _texts}[self.kind]  # fmt: skip
        return chain.from_iterable(reader(path, self.settings) for path in self.paths)

    def _tagged(self, path: str, settings: RunSettings) -> Iterator[Item]:
        strip = settings.tag.prefix_strip
        for one in read_tagged([path], settings.data, self.scheme, strip):
            text = " ".join(one.words)
            yield Item((text,), one.place, None, one.words, one.tags, one.misfits, one.problem)

    @property
    def columns(self) -> tuple[str, ...]:
        data = self.settings.data
        if self.kind == "fields":
            return data.fields
        two = data.other_field if self.kind == "labelled" else self.kind == "texts" and data.pairs
        return ("text", "other") if two else ("text",)

    def example(self, item: Item) -> dict[str, Any]:
        """What is kept of a validation example for people to see."""
        if self.kind == "tagged":
            return {"words": list(item.words), "tags": list(item.tags)}
        texts = dict(zip(self.columns, item.texts, strict=True))
        if self.kind == "fields":
            texts = {name: text for name, text in texts.items() if text}
        return texts if item.label is None else {**texts, "label": item.label}


def sources(kind: TextKind, settings: RunSettings) -> tuple[Source, Source]:
    """Of training and of validation; the second may have no files."""
    data = settings.data
    training = data.pairs if kind == "texts" and data.pairs else data.text
    validation = data.valid_pairs if kind == "texts" and data.pairs else data.valid_text
    scheme: Scheme = "bio"
    if kind == "tagged":
        asked = settings.tag.scheme
        scheme = detect_scheme([*training, *validation], data) if asked == "auto" else asked
    return Source(kind, settings, training, scheme), Source(kind, settings, validation, scheme)


def in_item_blocks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """By the thousand, fewer where texts are long."""
    block: list[Item] = []
    size = 0
    for item in items:
        block.append(item)
        size += sum(map(len, item.texts))
        if len(block) >= BLOCK or size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _documents(path: str, settings: RunSettings) -> Iterator[Item]:
    name = Path(shown(path)).name
    for text, number, ends in read_pieces(path, settings.data):
        yield Item((text,), f"{name}:{number}", ends=ends)


def _labelled(path: str, settings: RunSettings) -> Iterator[Item]:
    for record in read_records([path], settings.data):
        texts = (record.text,) if record.other is None else (record.text, record.other)
        yield Item(texts, record.place, record.label, problem=record.problem)


def _fields(path: str, settings: RunSettings) -> Iterator[Item]:
    names, label = settings.data.fields, settings.data.label_field
    wanted = None if label in names else label
    for found, place in placed_fields(path, settings.data):
        texts = tuple(found.get(name, "") for name in names)
        yield Item(texts, place, found.get(wanted) if wanted else None)


def _texts(path: str, settings: RunSettings) -> Iterator[Item]:
    data, name = settings.data, Path(shown(path)).name
    if data.pairs:
        file = PairFile((path,), data)
        for number, pair in enumerate(file, 1):
            yield Item(pair, f"{name}:{number + file.header}")
        return
    as_json = False
    for number, line in enumerate(open_lines(path, data.encoding), 1):
        as_json = is_json(path, line, data.text_field) if number == 1 else as_json
        text = line
        if as_json and line.strip():
            where = f"{shown(path)}, line {number:,}"
            text = text_of(parse_object(line, where), data.text_field, where, "text_field")
        yield Item((text,), f"{name}:{number}")
