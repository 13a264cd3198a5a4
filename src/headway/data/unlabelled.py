"""Files that someone wants answers to: read by the columns that a run was trained on.

What was text in training is read from the same columns, first lines that name columns are no text,
and what the run is to find out (labels, tags, translations) is left out where it is there. A file
that is no table holds a text a line, as standard input does. Every line that was trained on as one
example is one question, empty ones too, so that answers stay in the lines of their questions.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from headway.config.data import DataSettings
from headway.config.run import RunSettings
from headway.data.files import open_lines, shown
from headway.data.jsonl import is_json, parse_object
from headway.data.pairs import PairFile
from headway.data.records import FASTTEXT, fields_of, read_records
from headway.data.tagged import DOCUMENT, words_of
from headway.errors import DataError
from headway.tasks.specs import WORDS, Reads

Question = str | tuple[str, ...]
"""A text; two that are compared; or the fields of a document, in their order, empty where absent.
"""

Note = Callable[[str], None]

HEAD = 50
"""Lines by which a table is told from text."""

COLUMNS = frozenset({".conll", ".bio", ".bioes", ".iob", ".iob2", ".iobes"})
"""Names of files with a word a line end so, where blanks stand between columns."""


def questions(
    path: str, reads: Reads, settings: RunSettings, note: Note = lambda text: None
) -> Iterator[Question]:
    """The questions of a file, in order; `note` is told what its columns are taken for."""
    data = settings.data
    if data.fields:
        return _fields(path, data, reads, note)
    if reads == "tagged":
        return _words(path, settings, note)
    if reads == "pairs" or (reads == "texts" and data.pairs):
        return _sources(path, data, note)
    return _texts(path, data, reads, note)


def _head(path: str, encoding: str) -> list[str]:
    return [line for line in islice(open_lines(path, encoding), HEAD) if line.strip()]


def _named(path: str, *endings: str) -> bool:
    return bool(set(endings) & {end.lower() for end in Path(path).suffixes[-2:]})


def _has_tabs(path: str, head: list[str]) -> bool:
    """In every line; of what is called a table the first tells, and others are held to it."""
    lines = head[:1] if _named(path, ".tsv") else head
    return bool(lines) and all("\t" in line for line in lines)


def _texts(path: str, data: DataSettings, reads: Reads, note: Note) -> Iterator[Question]:
    """Labelled texts, one or two each; and texts alone, of which a table has a column."""
    head = _head(path, data.encoding)
    first = head[0] if head else ""
    wanted = [name for name in (data.text_field, data.other_field) if name]
    labels_first = reads == "labelled" and first.startswith(FASTTEXT)
    if labels_first or is_json(path, first, *wanted) or _is_table(path, data, reads, head, wanted):
        return _asked(path, data, note)
    if _named(path, ".csv") and len(_csv_cells(first)) > 1:
        raise _no_column(path, first, data.text_field, "text_field")
    if _named(path, ".tsv") and _has_tabs(path, head) and not data.other_field:
        note(f"{shown(path)}: every line is a text with its tabs, as in training")
    return iter(open_lines(path, data.encoding))


def _is_table(
    path: str, data: DataSettings, reads: Reads, head: list[str], wanted: list[str]
) -> bool:
    """Whether the columns of training are there: by name, by number, or the usual ones."""
    first = head[0] if head else ""
    as_csv = _named(path, ".csv") or ("\t" not in first and "," in first)
    cells = _csv_cells(first) if as_csv else first.split("\t")
    if all(name in cells for name in wanted):
        return _named(path, ".tsv", ".csv") or (reads == "labelled" and len(cells) > 1)
    if reads != "labelled":  # such runs were trained on whole lines
        return False
    if _named(path, ".csv"):
        return True  # which fails, and says what is missing
    if not _has_tabs(path, head):
        return False
    if all(name.isdecimal() for name in wanted):
        return len(cells) != len(wanted)
    # Two texts with a tab between are what a model that compares texts is given without a table.
    return not (data.other_field and len(cells) == 2)


def _asked(path: str, data: DataSettings, note: Note) -> Iterator[Question]:
    for record in read_records([path], data, labels=False, note=note):
        if record.problem:
            note(f"{record.problem} It is answered as an empty text")
        yield record.text if record.other is None else (record.text, record.other)


def _csv_cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]), [])]


def _no_column(path: str, first: str, name: str, setting: str) -> DataError:
    return DataError(
        f"{shown(path)}: its first line names no column {name!r}: {first[:60]!r}. Name it with "
        f"data.{setting}=…; if it is no table but text, a text a line, give it on standard input."
    )


def _sources(path: str, data: DataSettings, note: Note) -> Iterator[Question]:
    """First sides of pairs; a file without a tab, or one of a run that was trained on aligned
    files and is not called a table, has nothing else."""
    head = _head(path, data.encoding)
    first = head[0] if head else ""
    if _named(path, ".csv"):
        if not data.source_field.isdecimal() and data.source_field not in _csv_cells(first):
            raise _no_column(path, first, data.source_field, "source_field")
        named = replace(data, text_field=data.source_field, other_field="")
        return _asked(path, named, note)
    table = _named(path, ".tsv") or bool(data.pairs)
    header = _named(path, ".tsv") and first == data.source_field
    if not (is_json(path, first, data.source_field) or header or (table and _has_tabs(path, head))):
        return iter(open_lines(path, data.encoding))
    return _told(PairFile((path,), data), note)


def _told(file: PairFile, note: Note) -> Iterator[Question]:
    sources = file.sources()
    first = next(sources, None)
    if first is None:
        return
    rest = "the rest is not read" if not file.header else "the first line names the columns"
    note(f"{shown(file.paths[0])}: {file.taken[0]} is the text; {rest}")
    yield from chain([first], sources)


def _fields(path: str, data: DataSettings, reads: Reads, note: Note) -> Iterator[Question]:
    told = False
    for number, line in enumerate(open_lines(path, data.encoding), 1):
        where = f"{shown(path)}, line {number:,}"
        try:
            values = parse_object(line, where) if line.strip() else {}
            found = fields_of(line, data, where) if values else {}
        except DataError as error:
            if data.bad == "error":
                raise
            note(f"{error} It is answered as an empty text")
            values = found = {}
        if values and not told:
            left = [repr(name) for name in values if name not in data.fields]
            used = ", ".join(repr(name) for name in data.fields if name in values)
            some = f"; not read: {', '.join(left)}" if left else ""
            if reads == "documents":
                some += "; the one to be written is not read"
            note(f"{shown(path)}: the fields are {used or 'absent'}{some}")
            told = True
        yield tuple(found.get(name, "") for name in data.fields)


def _words(path: str, settings: RunSettings, note: Note) -> Iterator[Question]:
    """Sentences, or CoNLL's columns with tabs between them, whatever stands between them here."""
    encoding = settings.data.encoding
    head = [line for line in _head(path, encoding) if not line.startswith(DOCUMENT)]
    lines = open_lines(path, encoding)
    if head and is_json(path, head[0], *WORDS.names):
        return _json_words(path, lines, settings.data.bad == "skip", note)
    if not head:
        return iter(lines)
    if "\t" not in head[0] and not _are_columns(path, settings.labels, head):
        return iter(lines)
    width = len(head[0].split("\t") if "\t" in head[0] else head[0].split())
    rest = f", the other{'s' * (width > 2)} of {width} not" if width > 1 else ""
    note(f"{shown(path)}: a word a line; column 1 is read{rest}")
    return map(_with_tabs, lines)


def _json_words(path: str, lines: Iterator[str], skip: bool, note: Note) -> Iterator[Question]:
    """As they are: a line of JSON is one sentence; one that is none is named by its number."""
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                words_of(parse_object(line, where := f"{shown(path)}, line {number:,}"), where)
        except DataError as error:
            if not skip:
                raise
            note(f"{error} It is answered as an empty text")
            line = ""
        yield line


def _with_tabs(line: str) -> str:
    if not line.strip() or line.startswith(DOCUMENT) or "\t" in line:
        return line
    return "\t".join(line.split()) + "\t"


def _are_columns(path: str, labels: tuple[str, ...], head: list[str]) -> bool:
    """By its name, or because every line ends in a tag that the run knows, whatever the scheme."""
    if _named(path, *COLUMNS):
        return True
    known = {label.partition("-")[2] or label for label in labels} | set(labels) | {"O"}
    rows = [line.split() for line in head]
    if len({len(row) for row in rows}) > 1 or len(rows[0]) < 2:
        return False
    last = [row[-1] for row in rows]
    # Some tags are punctuation, and so is what sentences end in.
    words = any(any(map(str.isalpha, tag)) for tag in last)
    return words and all(tag in known or tag.partition("-")[2] in known for tag in last)
