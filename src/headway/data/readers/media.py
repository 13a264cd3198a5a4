"""Read images, videos and audio as tables, from folders with one subfolder per class, lists of
media files, stacks, IDX files and single files. Media are decoded only when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.data.columns.column import Column, class_of
from headway.data.files import STDIN, DataFiles
from headway.data.media.open_item import (
    UNITS,
    path_exists,
)
from headway.data.readers.array_stack import idx_in_folder, is_stack, open_mnist, open_stack
from headway.data.readers.folder import open_files, open_folder
from headway.data.readers.open import open_table
from headway.data.sniff import (
    EXTENSIONS,
    Format,
    MediaType,
    extension,
    is_array,
    sniff,
)
from headway.data.table import Table
from headway.errors import DataError
from headway.settings.data import DataSettings


def open_media(
    name: str, data: DataSettings, columns: Sequence[Column], what: MediaType,
    files: DataFiles | None = None,
) -> Table:  # fmt: skip
    """Return a table of media. `columns`: the media column, followed by the other columns that the
    table must have."""
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
    is_folder, holds_images = form is Format.FOLDER, class_of(what).is_image
    idx = idx_in_folder(path, files) if is_folder and holds_images else None
    if idx is None and is_folder:
        if "text" in wanted:
            raise DataError(
                f"{path} is a folder of media without texts. Give a manifest: a TSV, CSV or JSONL "
                "file with the columns path and text."
            )
        return open_folder(path, what, files, labelled=labelled)
    if idx is not None or form is Format.IDX:
        if not holds_images:
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
    if is_array(path) and is_stack(path, moving=class_of(what).is_moving):
        return open_stack(path)
    return open_files([(path, None)], str(path), what)
