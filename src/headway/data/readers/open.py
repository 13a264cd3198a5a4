"""Choose the reader of a file by the first bytes, the name and the first lines of the file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from headway.data.columns.column import Column
from headway.data.files import DataFile, DataFiles
from headway.data.readers.delimited import open_delimited, open_labelled_lines
from headway.data.readers.folder import open_text_folder
from headway.data.readers.jsonl import open_jsonl
from headway.data.readers.lines import open_plain
from headway.data.sniff import (
    PARQUET_START,
    cells_in,
    detect_separator,
    has_names,
    is_delimited,
    is_header_for,
    is_json_lines,
    label_format,
)
from headway.data.table import Table
from headway.errors import DataError
from headway.settings.data import DataSettings

HEAD = 50
"""Number of lines from which the format of a file is detected."""

FileContents = Literal["table", "documents", "lines", "words"]
"""Contents that are expected in a file if its name and first bytes do not determine its format: a
table, documents, lines of text, or one word per line."""


def open_table(
    path: str, data: DataSettings, columns: Sequence[Column], holds: FileContents = "table",
    files: DataFiles | None = None,
) -> Table:  # fmt: skip
    """Return a text file as a table.

    Args:
        path: Path of the file.
        data: Settings of the data.
        columns: Expected columns, by which a header is recognized.
        holds: Contents that are expected in the file.
        files: Cache of files and tables, with which each table is opened only once.
    """
    files = files or DataFiles()
    key = (path, data.encoding, data.unit, holds, tuple(columns))
    return files.once(key, lambda: _open(path, data, columns, holds, files))


def _open(
    path: str, data: DataSettings, columns: Sequence[Column], holds: FileContents, files: DataFiles
) -> Table:
    if Path(path).is_dir():
        if holds == "table" and _has_label(columns):
            return open_text_folder(path, data.encoding, files)
        raise DataError(f"{path} is a folder. Give its files instead, for example '{path}/*/*.txt'")
    file = files.file(path, data.encoding)
    try:
        if file.first_bytes.startswith(PARQUET_START):
            from headway.data.readers.parquet import open_parquet

            return open_parquet(path)
        return _open_text(file, data, columns, holds)
    finally:
        file.close()


def _open_text(
    file: DataFile, data: DataSettings, columns: Sequence[Column], holds: FileContents
) -> Table:
    path = file.path
    head = [line for line in islice(file.head(), HEAD) if line.strip()]
    first = head[0] if head else ""
    if is_json_lines(path, first, *_names(columns, holds)):
        return open_jsonl(file)
    if holds == "words":
        from headway.data.readers.conll import open_conll

        return open_conll(file)
    ragged = [one.name for one in columns if not one.optional] in PAIRS
    if holds == "table":
        between = detect_separator(
            path, head, [one.given_name or one.name for one in columns], ragged=ragged
        )
        how = label_format(head) if _has_label(columns) and "\t" not in first else None
        if how is not None and not is_delimited(path):
            return open_labelled_lines(file, how)
    else:
        between = detect_separator(path, head, ()) if is_delimited(path) else ""
        if not between or not has_names(cells_in(first, between), columns):
            return open_plain(file, "line" if holds == "lines" else data.unit)
    is_header = is_header_for(columns, commas=between in (",", ";"))
    return open_delimited(file, between or "\t", is_header, ragged=ragged)


def _has_label(columns: Sequence[Column]) -> bool:
    return any(one.is_label for one in columns)


PAIRS = (["source", "target"], ["source"])


def _names(columns: Sequence[Column], holds: FileContents) -> tuple[str, ...]:
    """Return the field names of which the first line must have at least one to count as JSON. Empty
    for tables, which need none."""
    if holds == "table":
        return ()
    return tuple(name for one in columns for name in one.accepted_names)
