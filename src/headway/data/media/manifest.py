"""Manifests: tables that name media files, with what is to be learned of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headway.data.bind import Binding, Column, as_said, bind, plain
from headway.data.columns import VALUES
from headway.data.example import refused
from headway.data.media.image import Reading
from headway.data.media.open_item import WHOLE, Form, Part, read_media
from headway.data.media.source import MediaItem, Target, several
from headway.data.readers.jsonl import value_text
from headway.data.readers.open import open_table
from headway.data.table import ABSENT, Raw, Table, is_missing
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.tasks.specs import LABEL, MEDIA, WRITTEN

ENDINGS = frozenset({".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet"})
PARTS = ("box", "start", "end", "index", "rate")
"""Columns that say what of a file the item is."""

_NAMES = tuple(dict.fromkeys(name for need in MEDIA.values() for name in need.also))
_PATH = Column("path", "media", "path_field", _NAMES)
_TARGETS = {
    "label": Column("label", "label", "label_field", LABEL.also),
    "text": Column("text", "text", "text_field", WRITTEN.also),
    "other": Column("other", "media", "other_field"),
}


class Row(NamedTuple):
    path: str
    line: int
    target: str | None
    part: Part
    problem: str = ""
    """Why it cannot be read, where that is left out (`data.bad`)."""


def manifest_table(path: str, data: DataSettings, target: Target) -> tuple[Table, Binding]:
    """With its columns bound; where no targets are asked for, they may be there."""
    columns = [_PATH, *([] if target == "none" else [_TARGETS[target]])]
    wanted = as_said(columns, data)
    known = [*wanted, *(Column(name, "text", "", (), True) for name in ("label", "text"))]
    table = open_table(path, data, wanted if target != "none" else known[:2])
    found = bind(table, wanted if target != "none" else known[:2])
    return table, {name: one for name, one in found.items() if one in wanted}


class ManifestSource:
    """Paths are relative to the manifest."""

    def __init__(self, path: str, data: DataSettings, form: Form, target: Target) -> None:
        self.name = Path(path).name
        self.folder = Path(path).parent
        self.form = form
        self.target = target
        self.table, self.binding = manifest_table(path, data, target)
        self.rows = list(_read(self.table, self.binding, data))
        if target == "other":
            self.rows = [one for row in self.rows for one in (row, _other(row))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int, /) -> MediaItem:
        row = self.rows[i]
        path = str(self.folder / row.path)
        read = partial(read_media, path, self.form, row.part)
        if row.problem:
            read = partial(_unreadable, row.problem)
        label, text = (row.target if self.target == name else None for name in ("label", "text"))
        whole = path if row.part == WHOLE else None
        return MediaItem(f"{self.name}:{row.line}", read, label, text, whole)

    def files(self) -> Iterator[tuple[Path, str]]:
        seen: set[str] = set()
        for row in self.rows:
            if row.path not in seen and not row.problem:
                seen.add(row.path)
                yield self.folder / row.path, f"{self.name}:{row.line}"


def _other(row: Row) -> Row:
    """The second file of a line, which is all of it."""
    return row._replace(path=row.target or "", part=WHOLE)


def _unreadable(problem: str) -> Reading:
    raise DataError(problem)


def is_manifest(path: Path) -> bool:
    return bool(ENDINGS & {end.lower() for end in path.suffixes[-2:]})


def read_manifest(path: str, data: DataSettings, target: Target) -> Iterator[Row]:
    return _read(*manifest_table(path, data, target), data)


def _read(table: Table, binding: Binding, data: DataSettings) -> Iterator[Row]:
    parts = [name for name in PARTS if name in table.columns]
    known: dict[str, str] = {}
    rows = _rows(table, binding, parts)
    for row in rows:
        if row.problem and data.bad == "error":
            raise refused(row.problem, sum(bool(one.problem) for one in rows))
        # Many items of one sheet or stack share one text as their path.
        yield row._replace(path=known.setdefault(row.path, row.path))


def _rows(table: Table, binding: Binding, parts: list[str]) -> Iterator[Row]:
    for raw in table.read([*binding, *parts]):
        if raw.values is None:
            if raw.problem:
                yield Row("", raw.line, None, WHOLE, raw.problem)
            continue
        try:
            yield from _row(raw, table.where(raw.line), binding, parts)
        except DataError as error:
            yield Row("", raw.line, None, WHOLE, str(error))


def _row(raw: Raw, where: str, binding: Binding, parts: list[str]) -> Iterator[Row]:
    """A picture with a list of texts is one that comes as often, with a text each time."""
    assert raw.values is not None
    found = dict(zip([*(one.name for one in binding.values()), *parts], raw.values, strict=True))
    for name, column in binding.items():
        if found[column.name] is ABSENT:
            there = ", ".join(map(repr, raw.row or ())) or "nothing"
            raise DataError(
                f"{where} has no {name!r}, only {there}. Name it with data.{column.setting}=…"
            )
    names = {one.name: name for name, one in binding.items()}
    path = value_text(found["path"], names["path"], where).strip()
    if not path:
        raise DataError(f"{where} names no file.")
    given = {name: found[name] for name in parts if _is_said(found[name])}
    part = Part(**{name: _READERS[name](value, name, where) for name, value in given.items()})
    target = next((name for name in ("label", "text", "other") if name in names), "")
    held = plain(found[target]) if target else None
    values = (held or [""]) if target == "text" and isinstance(held, list) else [held]
    for value in values:
        said = None
        if target:
            read = _label if target == "label" else value_text
            said = str(read(value, names[target], where)).strip() or None
        if target == "other" and said is None:
            raise DataError(f"{where} names no second file.")
        yield Row(path, raw.line, said, part if given else WHOLE)


def _label(value: object, name: str, where: str) -> str:
    """A list of labels as one."""
    value = plain(value)
    if isinstance(value, list):
        return several(str(VALUES["label"](one, name, where)) for one in value)
    return str(VALUES["label"](value, name, where))


def _is_said(value: object) -> bool:
    return not (value is ABSENT or is_missing(value) or (isinstance(value, str) and not value))


def columns_taken(path: str, data: DataSettings) -> str:
    """What is read of a list whose items are to be answered, as people say it."""
    table, binding = manifest_table(path, data, "none")
    (name,) = binding
    if table.form == "lines of JSON":
        return f"field {name!r} names the files"
    column = repr(name) if table.header else name
    left = len(table.columns) - 1 - len(set(PARTS) & set(table.columns))
    some = f"; {'another is' if left == 1 else f'{left} others are'} not read" if left else ""
    return f"column {column} names the files{some}"


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
