"""Tables of images, videos and audio, from folders with one subfolder per class, manifests, stacks,
IDX files and single files. The media themselves are opened only when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.data.bind import Column
from headway.data.files import STDIN, DataFiles
from headway.data.media.open_item import (
    UNITS,
    MediaRef,
    MediaRegion,
    path_exists,
)
from headway.data.readers.array_stack import idx_in_folder, is_stack, open_mnist, open_stack
from headway.data.readers.folder import open_files, open_folder
from headway.data.readers.jsonl import value_text
from headway.data.readers.open import open_table
from headway.data.sniff import (
    EXTENSIONS,
    Format,
    MediaType,
    extension,
    is_array,
    sniff,
)
from headway.data.table import Table, shown_value
from headway.errors import DataError
from headway.settings.data import DataSettings

PARTS = ("box", "start", "end", "index", "rate")
"""Columns of a manifest that select the part of a file."""


def open_media(
    name: str, data: DataSettings, columns: Sequence[Column], what: MediaType,
    files: DataFiles | None = None,
) -> Table:  # fmt: skip
    """Open media as a table. `columns`: the column of media, then those required with it."""
    files = files or DataFiles()
    path = Path(name)
    if name == STDIN:
        raise DataError(
            "media cannot be read from standard input. Give the path of a folder or a manifest."
        )
    if not path_exists(path):
        raise DataError(f"file or folder not found: {name}.")
    form = sniff(path)
    if form.is_table_file:
        return open_table(name, data, columns, files=files)
    wanted = [one.name for one in columns[1:] if not one.optional]
    if "other" in wanted:
        raise DataError(
            f"{name} is not a manifest, but pairs can only be read from one. Give a TSV, CSV or "
            f"JSONL file with the columns {data.path_field} and {data.other_field}."
        )
    labelled = bool(wanted) and "text" not in wanted
    is_folder = form is Format.FOLDER
    idx = idx_in_folder(path, files) if is_folder and what == "image" else None
    if idx is None and is_folder:
        if "text" in wanted:
            raise DataError(
                f"{path} is a folder of media without texts. Give a manifest: a TSV, CSV or JSONL "
                "file with the columns path and text."
            )
        return open_folder(path, what, files, labelled=labelled)
    if idx is not None or form is Format.IDX:
        if what != "image":
            raise DataError(f"{path} is an IDX file of images, but {UNITS[what]} are needed.")
        if "text" in wanted:
            raise DataError(
                f"{path} is an IDX file, which has labels but no texts. Give a manifest: a TSV, "
                "CSV or JSONL file with the columns path and text."
            )
        return open_mnist(idx or path, labelled=labelled)
    return _single(path, what, "label" if labelled else "".join(wanted))


def _single(path: Path, what: MediaType, wanted: str) -> Table:
    if extension(path) not in EXTENSIONS[what]:
        known = " ".join(sorted(EXTENSIONS[what]))
        raise DataError(
            f"{path}: {UNITS[what]} cannot be read from a file with this ending. Give a folder, a "
            f"manifest (.tsv .csv .jsonl), or a file with one of the endings {known}."
        )
    if wanted:
        raise DataError(
            f"{path} has no {wanted}. Give a folder with one subfolder per class, or a manifest: "
            f"a TSV, CSV or JSONL file with the columns path and {wanted}"
            f"{', and index (from 0) for the items of a stack' * is_array(path)}."
        )
    if is_array(path) and is_stack(path, moving=what == "video"):
        return open_stack(path)
    return open_files([(path, None)], str(path), what)


def media_ref_of(value: object, name: str, where: str, table: Table) -> MediaRef:
    """Return the medium at a path, which is relative to the manifest that contains it."""
    if isinstance(value, MediaRef):
        return value
    if isinstance(value, bytes | Mapping):  # as in Parquet files of Hugging Face datasets
        raise DataError(
            f"{where}: {name!r} is {shown_value(value)}, but must be the path of a file. To use "
            "media inside the table, load it in Python: headway.train(…, pandas.read_parquet(…))."
        )
    path = value_text(value, name, where).strip()
    if not path:
        raise DataError(f"{where}: the path in the column {name!r} is empty.")
    return MediaRef(str(Path(table.name).parent / path))


def part_of(medium: MediaRef, cells: Mapping[str, object], where: str) -> MediaRef:
    """Restrict a medium to the part of the file that the columns of the manifest select."""
    found = {name: _VALUES[name](value, name, where) for name, value in cells.items()}
    return MediaRef(medium.path, MediaRegion(**found)) if found else medium


def _number(value: Any, name: str, where: str) -> float:
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or number < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(f"{where}: {name}={value!r} must be a number of at least 0.") from None
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


_VALUES: dict[str, Callable[[Any, str, str], Any]] = {
    "box": _box,
    "start": _number,
    "end": _number,
    "index": _whole,
    "rate": _whole,
}
