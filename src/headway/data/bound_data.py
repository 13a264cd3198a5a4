"""Data passed from Python, which is written to files for the readers.

Tables in memory are written as JSON Lines with the columns that a task needs. Media in memory are
stored next to them. All data is therefore read, checked, split and stored in the same way. A run
can be resumed because its data has a fingerprint, and every finding names a line that can be
inspected.
"""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.bind import DEFAULTS
from headway.data.columns.column import Column, to_python
from headway.data.media.in_memory import MediaWriter
from headway.data.media.open_item import MediaRef
from headway.data.table import RawRow, Table
from headway.errors import ConfigError, DataError
from headway.specs.tasks import FileSetting
from headway.storage import sync

ROWS, VALID = "rows", "valid"
"""Names of the files for training and validation data that was passed in memory."""


@dataclass(frozen=True)
class BoundData:
    """Training or validation data, as files or as a table with bound columns."""

    files: FileSetting
    """Setting of `data` that takes the files. For validation data it is prefixed with `valid_`."""

    names: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Column names as settings of `data`, such as `text_field` and `label_field`."""

    paths: tuple[str, ...] = ()
    """Paths of the data files; empty for a table in memory."""

    table: Table | None = None
    """Table in memory; None for files."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    """Columns of the table that are read, by their names in the table."""

    file_columns: Mapping[str, str] = field(default_factory=dict)
    """Column names in the written file by the name in the table, for columns that are renamed."""

    def settings(self, folder: Path, name: str = ROWS) -> dict[str, object]:
        """Return the settings of `data` that select this data. `folder` and `name` give the file to
        which a table in memory is written."""
        paths = self.paths if self.table is None else (str(folder / f"{name}.jsonl"),)
        key = self.files if name == ROWS else f"valid_{self.files}"
        return {key: list(paths), **self.names}

    def match_columns(self, other: BoundData) -> BoundData:
        """Return `other` with its columns renamed to those of this data. Settings have only one
        name for each column, in training and validation data."""
        names = {**DEFAULTS, **self.names}
        if other.files != self.files:
            raise ConfigError(
                f"the training data is read as {self.files}, but the validation data as "
                f"{other.files}. Give both in the same format."
            )
        called = {
            name: str(names[column.setting])
            for name, column in other.columns.items()
            if column.setting and column.setting in names
        }
        return replace(other, names=self.names, file_columns=called)

    def write(self, folder: Path, name: str = ROWS) -> None:
        """Write a table in memory to a file in the folder. If the data is already in files, do
        nothing."""
        if self.table is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        loose = MediaWriter(folder / name)
        path, n = folder / f"{name}.jsonl", 0
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for raw in self.table.read(list(self.columns)):
                n = raw.line
                values = self._values(raw, f"row {n:,}", loose)
                try:
                    file.write(json.dumps(values, ensure_ascii=False) + "\n")
                except UnicodeEncodeError as error:
                    raise DataError(
                        f"row {n:,} contains an unpaired surrogate, which is not valid Unicode."
                    ) from error
        loose.close()
        if not n:
            raise DataError("the data has no rows.")
        sync(path)

    def _values(self, raw: RawRow, where: str, loose: MediaWriter) -> dict[str, Any]:
        assert self.table is not None
        assert raw.values is not None
        found: dict[str, Any] = {}
        for (name, column), value in zip(self.columns.items(), raw.values, strict=True):
            value = to_python(value)
            called = self.file_columns.get(name, name)
            if name in self.table.classes:
                value = _named(value, self.table.classes[name])
            place = f"{where}: column {name!r}"
            for key, one in self._cells(column, value, place, called, loose).items():
                _put_in(found, key, one, place)
        return found

    def _cells(
        self, column: Column, value: object, place: str, called: str, loose: MediaWriter
    ) -> dict[str, Any]:
        """Return the fields of the JSON object for a value, by name. Media may need several fields,
        such as a path and the index of an item in that file."""
        if not column.is_media:
            return {called: column.to_json(value, place)}
        medium = column.parse(value, place)
        if isinstance(medium, MediaRef):
            return {called: str(Path(medium.path).absolute())}
        return loose.put(medium.content, medium.rate, called)


def write_tables(folder: Path, parts: Mapping[str, BoundData], *, replace: bool = True) -> bool:
    """Write tables into a folder, completely or not at all.

    A folder that already has the same contents is kept, with the modification times of its files.
    Return False if the contents differ and `replace` is false.
    """
    parts = {name: one for name, one in parts.items() if one.table is not None}
    beside = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    if not parts:
        return True
    try:
        for name, one in parts.items():
            one.write(beside, name)
        if _same(folder, beside):
            return True
        if folder.exists() and not replace:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
        sync(folder.parent)
        return True
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _same(one: Path, other: Path) -> bool:
    if not one.is_dir() or not other.is_dir():
        return False
    names = {path.relative_to(other) for path in other.rglob("*")}
    if names != {path.relative_to(one) for path in one.rglob("*")}:
        return False
    files = [str(name) for name in names if (other / name).is_file()]
    return len(filecmp.cmpfiles(one, other, files, shallow=False)[0]) == len(files)


def _named(value: object, names: Sequence[str]) -> object:
    """Replace class numbers by class names. Numbers without a name become None: Hugging Face
    datasets use -1 for a missing label."""
    if isinstance(value, list | np.ndarray):
        return [_named(to_python(one), names) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value


def _put_in(found: dict[str, Any], name: str, value: object, where: str) -> None:
    """Store a value in the JSON object `found`. A name with dots, such as `translation.de`, is
    stored in nested objects."""
    *outer, last = name.split(".")
    for part in outer:
        found = found.setdefault(part, {})
        if not isinstance(found, dict):
            raise DataError(
                f"{where} would be a field of {part!r}, which is a column itself. Rename one of "
                "the columns."
            )
    found[last] = value
