"""One form for what examples come in: documents, labelled texts, tagged words, fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

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


Value = str | Sequence[str]
"""A text or a label; words or tags."""

ColumnKind = Literal["text", "label", "words", "tags"]


class Example(NamedTuple):
    """An example, or a piece of a long document."""

    values: Mapping[str, Value]
    """By what the task calls them (`text`, `other`, `label`, `words`, `tags`), and fields by their
    names; a text is empty where it is absent, a label not there."""

    place: str
    """For people: the file and the line."""

    problem: str = ""
    """Why it could not be read, where that is left out (`data.bad`); then its texts are empty."""

    ends: bool = True
    """False for a piece of a document that goes on with the next example."""

    misfits: int = 0
    """Tags that do not fit the scheme and are read as they best can."""

    def text(self, name: str) -> str:
        return cast(str, self.values.get(name, ""))

    def several(self, name: str) -> Sequence[str]:
        """Words or tags."""
        return self.values.get(name, ())


@dataclass(frozen=True)
class Source:
    """The files of one split, read as examples as often as needed, in bounded memory."""

    kind: TextKind
    settings: RunSettings
    paths: tuple[str, ...]
    scheme: Scheme = "bio"
    """Of the tags, where there are any."""

    def __iter__(self) -> Iterator[Example]:
        reader = {"documents": _documents, "labelled": _labelled, "tagged": self._tagged,
                  "fields": _fields, "texts": _texts}[self.kind]  # fmt: skip
        return chain.from_iterable(reader(path, self.settings) for path in self.paths)

    def _tagged(self, path: str, settings: RunSettings) -> Iterator[Example]:
        strip = settings.tag.prefix_strip
        for one in read_tagged([path], settings.data, self.scheme, strip):
            values = {"text": " ".join(one.words), "words": one.words, "tags": one.tags}
            yield Example(values, one.place, one.problem, misfits=one.misfits)

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that hold texts."""
        data = self.settings.data
        if self.kind == "fields":
            return data.fields
        two = data.other_field if self.kind == "labelled" else self.kind == "texts" and data.pairs
        return ("text", "other") if two else ("text",)

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """Of every column that an example may have."""
        if self.kind == "tagged":
            return {"text": "text", "words": "words", "tags": "tags"}
        labelled = self.kind in ("labelled", "fields")
        more: dict[str, ColumnKind] = {"label": "label"} if labelled else {}
        return {**dict.fromkeys(self.columns, "text"), **more}

    def shown(self, example: Example) -> dict[str, Any]:
        """What is kept of a validation example for people to see."""
        if self.kind == "tagged":
            return {name: list(example.values[name]) for name in ("words", "tags")}
        if self.kind == "fields":
            return {name: text for name, text in example.values.items() if text}
        return dict(example.values)


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


def in_example_blocks(
    examples: Iterable[Example], columns: Sequence[str]
) -> Iterator[list[Example]]:
    """By the thousand, fewer where texts are long."""
    block: list[Example] = []
    size = 0
    for example in examples:
        block.append(example)
        size += sum(len(example.values[name]) for name in columns)
        if len(block) >= BLOCK or size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _documents(path: str, settings: RunSettings) -> Iterator[Example]:
    name = Path(shown(path)).name
    for text, number, ends in read_pieces(path, settings.data):
        yield Example({"text": text}, f"{name}:{number}", ends=ends)


def _labelled(path: str, settings: RunSettings) -> Iterator[Example]:
    for record in read_records([path], settings.data):
        found = {"text": record.text, "other": record.other, "label": record.label}
        values = {name: value for name, value in found.items() if value is not None}
        yield Example(values, record.place, record.problem)


def _fields(path: str, settings: RunSettings) -> Iterator[Example]:
    names, label = settings.data.fields, settings.data.label_field
    wanted = "" if label in names else label
    for found, place in placed_fields(path, settings.data):
        values = {name: found.get(name, "") for name in names}
        if wanted in found:
            values["label"] = found[wanted]
        yield Example(values, place)


def _texts(path: str, settings: RunSettings) -> Iterator[Example]:
    data, name = settings.data, Path(shown(path)).name
    if data.pairs:
        file = PairFile((path,), data)
        for number, pair in enumerate(file, 1):
            yield Example(
                dict(zip(("text", "other"), pair, strict=True)), f"{name}:{number + file.header}"
            )
        return
    as_json = False
    for number, line in enumerate(open_lines(path, data.encoding), 1):
        as_json = is_json(path, line, data.text_field) if number == 1 else as_json
        text = line
        if as_json and line.strip():
            where = f"{shown(path)}, line {number:,}"
            text = text_of(parse_object(line, where), data.text_field, where, "text_field")
        yield Example({"text": text}, f"{name}:{number}")
