"""Manifests: TSV, CSV or JSONL files that name media files, with what is to be learned of each."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from headway.config.data import DataSettings
from headway.data.files import MAX_LINE, open_lines
from headway.data.media.reading import WHOLE, Form, Part, read_media
from headway.data.media.source import MediaItem, Target
from headway.data.readers.jsonl import is_json, parse_object, value_text
from headway.errors import DataError, one_line
from headway.tasks.specs import LABEL, MEDIA, WRITTEN

ENDINGS = frozenset({".tsv", ".csv", ".jsonl", ".ndjson", ".json"})
PARTS = ("box", "start", "end", "index", "rate")
"""Columns that say what of a file the item is."""


USUAL = {
    "path": tuple(name for need in MEDIA.values() for name in need.also),
    **{need.name: need.also for need in (WRITTEN, LABEL)},
}
"""What others call our columns, where they are not called as here."""


class Row(NamedTuple):
    path: str
    line: int
    target: str | None
    part: Part


class ManifestSource:
    """Paths are relative to the manifest."""

    def __init__(self, path: str, data: DataSettings, form: Form, target: Target) -> None:
        self.name = Path(path).name
        self.folder = Path(path).parent
        self.form = form
        self.target = target
        self.rows = list(read_manifest(path, data, target))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int, /) -> MediaItem:
        row = self.rows[i]
        path = str(self.folder / row.path)
        read = partial(read_media, path, self.form, row.part)
        label, text = (row.target if self.target == name else None for name in ("label", "text"))
        whole = path if row.part == WHOLE else None
        return MediaItem(f"{self.name}:{row.line}", read, label, text, whole)

    def files(self) -> Iterator[tuple[Path, str]]:
        seen: set[str] = set()
        for row in self.rows:
            if row.path not in seen:
                seen.add(row.path)
                yield self.folder / row.path, f"{self.name}:{row.line}"


def is_manifest(path: Path) -> bool:
    return bool(ENDINGS & {end.lower() for end in path.suffixes[-2:]})


def read_manifest(path: str, data: DataSettings, target: Target) -> Iterator[Row]:
    lines = open_lines(path, data.encoding)
    first = next(lines, None)
    if first is None:
        return
    lines = chain([first], lines)
    known: dict[str, str] = {}
    for record, number, where in _records(path, first, lines, data, target):
        for values in _each_text(record, data, target):
            row = _row(values, number, where, data, target)
            # Many items of one sheet or stack share one text as their path.
            yield row._replace(path=known.setdefault(row.path, row.path))


def columns_taken(path: str, data: DataSettings) -> str:
    """What is read of a list whose items are to be answered, as people say it."""
    first = next(open_lines(path, data.encoding), "")
    wanted = _wanted(data, "none")
    if is_json(path, first):
        given = list(parse_object(first, f"{path}, line 1"))
        names = _as_usual(given, wanted)
        own = given[names.index(data.path_field)] if data.path_field in names else data.path_field
        return f"field {own!r} names the files"
    cells = _csv_cells if ".csv" in Path(path).suffixes else _tsv_cells
    header, _ = next(cells(path, iter([first])))
    names, is_header = _names(path, header, data, "none")
    place = names.index(data.path_field)
    column = repr(header[place].strip()) if is_header else str(place + 1)
    parts = set(PARTS) & set(names)
    left = len(names) - 1 - len(parts)
    some = f"; {'another is' if left == 1 else f'{left} others are'} not read" if left else ""
    return f"column {column} names the files{some}"


def _each_text(
    values: dict[str, Any], data: DataSettings, target: Target
) -> Iterator[dict[str, Any]]:
    """A picture with a list of texts is one that comes as often, with a text each time."""
    texts = values.get(data.text_field) if target == "text" else None
    if not isinstance(texts, list):
        yield values
        return
    for text in texts or [""]:
        yield {**values, data.text_field: text}


def _records(
    path: str, first: str, lines: Iterator[str], data: DataSettings, target: Target
) -> Iterator[tuple[dict[str, Any], int, str]]:
    """Each record as names and values, its line, and what to call that."""
    if is_json(path, first):
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path}, line {number:,}"
                values = parse_object(line, where)
                names = _as_usual(list(values), _wanted(data, target))
                yield dict(zip(names, values.values(), strict=True)), number, where
        return
    cells = _csv_cells if ".csv" in Path(path).suffixes else _tsv_cells
    rows = cells(path, lines)
    header, _ = next(rows)
    names, is_header = _names(path, header, data, target)
    for found, number in chain([] if is_header else [(header, 1)], rows):
        where = f"{path}, line {number:,}"
        if len(found) != len(header):
            raise DataError(
                f"{where} has {len(found)} column{'s' * (len(found) != 1)}, but the first line "
                f"has {len(header)}: {' | '.join(found)[:60]!r}."
            )
        yield dict(zip(names, found, strict=True)), number, where


def _tsv_cells(path: str, lines: Iterator[str]) -> Iterator[tuple[list[str], int]]:
    for number, line in enumerate(lines, 1):
        if line.strip() or number == 1:
            yield line.split("\t"), number


def _csv_cells(path: str, lines: Iterator[str]) -> Iterator[tuple[list[str], int]]:
    csv.field_size_limit(MAX_LINE)  # the module's own is for all readers, and low
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells or line == 1:
                yield cells, line
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num:,}: {error}.") from error


def _names(
    path: str, header: list[str], data: DataSettings, target: Target
) -> tuple[list[str], bool]:
    """What the columns are called, and whether the first line says so."""
    wanted = _wanted(data, target)
    names = _as_usual([name.strip() for name in header], wanted)
    if all(name in names for name in wanted):
        return names, True
    if all(name.isdecimal() and int(name) for name in wanted):
        if max(map(int, wanted)) > len(header):
            raise DataError(
                f"{path}, line 1 has {len(header)} column{'s' * (len(header) != 1)}, but column "
                f"{max(map(int, wanted))} is asked for."
            )
        return [str(i) for i in range(1, len(header) + 1)], False
    usual = data.path_field == "path" and wanted[1:] in ([], ["label"], ["text"])
    if usual and len(header) == len(wanted):
        return wanted, False
    if usual and target == "none" and len(header) == 2:  # the other column is not asked for
        return ["path", "other"], False
    _no_column(path, names, wanted)


def _as_usual(names: list[str], wanted: list[str]) -> list[str]:
    """The names with ours instead of what others call the same; all that is wanted, or as it was.
    The first that fits is taken."""
    found = list(names)
    for name in wanted:
        if name not in found:
            other = next((n for n in found if n.lower() in USUAL.get(name, ())), None)
            if other is None:
                return names
            found[found.index(other)] = name
    return found


def _wanted(data: DataSettings, target: Target) -> list[str]:
    fields = {"label": [data.label_field], "text": [data.text_field], "none": []}
    return [data.path_field, *fields[target]]


def _no_column(path: str, names: list[str], wanted: list[str]) -> NoReturn:
    missing = " or ".join(repr(name) for name in wanted if name not in names)
    there = ", ".join(repr(name[:30]) for name in names[:20])
    raise DataError(
        f"{path}: its first line names no column {missing}; it has {len(names)} "
        f"column{'s' * (len(names) != 1)}: {there}. Name them with data.path_field=…, "
        "data.label_field=… and data.text_field=…, or give their numbers, counted from 1."
    )


def _row(
    values: dict[str, Any], number: int, where: str, data: DataSettings, target: Target
) -> Row:
    for name in _wanted(data, target):
        if name not in values:
            there = ", ".join(map(repr, values)) or "none"
            raise DataError(
                f"{where} has no field {name!r}, only {there}. Name it with data.path_field=…, "
                "data.label_field=… or data.text_field=…"
            )
    path = value_text(values[data.path_field], data.path_field, where).strip()
    if not path:
        raise DataError(f"{where} names no file.")
    found = None
    if target != "none":
        name = data.label_field if target == "label" else data.text_field
        found = value_text(values[name], name, where).strip() or None
    if found is not None and target == "label":
        one_line(found, where)
    given = {name: values[name] for name in PARTS if values.get(name) not in (None, "")}
    part = Part(**{name: _READERS[name](v, name, where) for name, v in given.items()})
    return Row(path, number, found, part if given else WHOLE)


def _number(value: Any, name: str, where: str) -> float:
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or number < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(f"{where}: {name}={value!r} must be a number, 0 or more.") from None
    return number


def _whole(value: Any, name: str, where: str) -> int:
    number = _number(value, name, where)
    if number != int(number):
        raise DataError(f"{where}: {name}={value!r} must be a whole number.")
    return int(number)


def _box(value: Any, name: str, where: str) -> tuple[int, int, int, int]:
    cells = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(cells, list) or len(cells) != 4:
        raise DataError(f"{where}: box={value!r} must be four numbers: left, top, right, bottom.")
    left, top, right, bottom = (_whole(cell, name, where) for cell in cells)
    return left, top, right, bottom


_READERS: dict[str, Callable[[Any, str, str], Any]] = {
    "box": _box,
    "start": _number,
    "end": _number,
    "index": _whole,
    "rate": _whole,
}
