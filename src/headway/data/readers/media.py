"""What pictures, videos and recordings come in: folders with a folder a class, lists of paths,
stacks, IDX files, single files. All are tables, whose media are opened when they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.data.bind import Column
from headway.data.files import STDIN
from headway.data.media.arrays import is_idx
from headway.data.media.open_item import ENDINGS, UNITS, Medium, Part, What, is_there
from headway.data.readers.array_stack import idx_in_folder, is_stack, open_mnist, open_stack
from headway.data.readers.folder import open_files, open_folder
from headway.data.readers.jsonl import value_text
from headway.data.readers.open import open_table
from headway.data.table import Table, shown_value
from headway.errors import DataError
from headway.settings.data import DataSettings

LISTS = frozenset({".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet"})
PARTS = ("box", "start", "end", "index", "rate")
"""Columns of a list that say what of a file the item is."""


def is_list(path: Path) -> bool:
    return bool(LISTS & {end.lower() for end in path.suffixes[-2:]})


def open_media(name: str, data: DataSettings, columns: Sequence[Column], what: What) -> Table:
    """`columns`: of the media, and of what must come with them."""
    path = Path(name)
    if name == STDIN:
        raise DataError(
            "media are not read from standard input. Give a folder or a manifest by its name."
        )
    if not is_there(path):
        raise DataError(f"there is no file or folder {name}.")
    if is_list(path):
        return open_table(name, data, columns)
    wanted = [one.name for one in columns[1:] if not one.optional]
    if "other" in wanted:
        raise DataError(
            f"{name} is no list, so that nothing says what belongs together. Give a TSV, CSV or "
            f"JSONL file with the columns {data.path_field} and {data.other_field}."
        )
    labelled = bool(wanted) and "text" not in wanted
    idx = idx_in_folder(path) if path.is_dir() and what == "pictures" else None
    if idx is None and path.is_dir():
        if "text" in wanted:
            raise DataError(
                f"{path} is a folder, and folders say nothing about texts. Give a manifest: a TSV, "
                "CSV or JSONL file with the columns path and text."
            )
        return open_folder(path, what, labelled=labelled)
    if idx is not None or is_idx(path):
        if what != "pictures":
            raise DataError(f"{path} is an IDX file of pictures; {what} are needed.")
        if "text" in wanted:
            raise DataError(f"{path} is an IDX file: it comes with labels, not with texts.")
        return open_mnist(idx or path, labelled=labelled)
    return _single(path, what, "label" if labelled else "".join(wanted))


def _single(path: Path, what: What, wanted: str) -> Table:
    ending = path.suffix.lower()
    if ending not in ENDINGS[what]:
        known = " ".join(sorted(ENDINGS[what]))
        raise DataError(
            f"{path} is nothing that {UNITS[what]} can be read from by its name: a folder, a "
            f"manifest (.tsv .csv .jsonl), or one of {known}."
        )
    if wanted:
        raise DataError(
            f"{path} comes without a {wanted}. Give a folder with a folder a class, or a manifest: "
            f"a TSV, CSV or JSONL file with the columns path and {wanted}"
            f"{', and index of those of a stack, from 0 on' * (ending == '.npy')}."
        )
    if ending == ".npy" and is_stack(path, moving=what == "videos"):
        return open_stack(path)
    return open_files([(path, None)], str(path), what)


def medium_of(value: object, name: str, where: str, table: Table) -> Medium:
    """Of a path, which is relative to the list that it stands in."""
    if isinstance(value, Medium):
        return value
    if isinstance(value, bytes | Mapping):  # as Parquet files of datasets have them
        raise DataError(
            f"{where}: {name!r} holds {shown_value(value)}, and the path of a file is needed. What "
            "is in the table itself is taken in Python: headway.train(…, pandas.read_parquet(…))."
        )
    path = value_text(value, name, where).strip()
    if not path:
        raise DataError(f"{where} names no file ({name!r}).")
    return Medium(str(Path(table.name).parent / path))


def part_of(medium: Medium, cells: Mapping[str, object], where: str) -> Medium:
    """What columns of the list say that is meant of the file."""
    found = {name: _VALUES[name](value, name, where) for name, value in cells.items()}
    return Medium(medium.path, Part(**found)) if found else medium


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


_VALUES: dict[str, Callable[[Any, str, str], Any]] = {
    "box": _box,
    "start": _number,
    "end": _number,
    "index": _whole,
    "rate": _whole,
}
