"""Convert names of columns and files, given in a command or call, to settings of `data`.

Columns are bound by their names, never by their order. Training and evaluation use the same rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.data.bind import DEFAULTS, bind, column_of, is_named, sample_of
from headway.data.bound_data import BoundData
from headway.data.columns.column import Column, class_of
from headway.data.files import DataFiles
from headway.data.readers.open import open_table
from headway.data.sniff import ALL_MEDIA, is_table_file, may_hold
from headway.data.table import table_of
from headway.errors import ConfigError, DataError, Option, UserError, suggest
from headway.settings.data import FILES, DataSettings
from headway.settings.listed import ensure_list
from headway.settings.synonyms import remark_on
from headway.settings.task_rows import spec_of
from headway.specs.needs import LABEL, Modality
from headway.specs.tasks import ALIASES, SPECS, FileSetting
from headway.storage import work_folder

if TYPE_CHECKING:
    from headway.data.columns.media import MediaColumn

ColumnLayout = tuple[FileSetting, tuple[Column, ...]]
"""Column layout that a task accepts: the setting that takes the files, and the columns that the
files must have."""


def layouts_of(task: str, what: Modality | None = None) -> tuple[ColumnLayout, ...]:
    """Return the column layouts that a task accepts, the preferred one first. `what`: required
    modality; None: any."""
    if task not in (*SPECS, *ALIASES):
        raise ConfigError(f"unknown task {task!r}.{suggest(task, SPECS)}")
    found: list[ColumnLayout] = []
    for row in SPECS[task].rows if task in SPECS else (spec_of(task),):
        if what is not None and row.modality != what:
            continue
        columns = tuple(column_of(need, row.modality) for need in row.needs)
        if row.reads_views:  # two of each, or one that is read twice
            found += [("text", columns[:1]), ("pairs", columns[1:])]
        else:
            found.append((row.files, columns))
    return tuple(found)


def bind_data(
    task: str,
    data: object,
    needs: Mapping[str, str | Sequence[str]] | None = None,
    usual: DataSettings | None = None,
    like: BoundData | None = None,
    what: Modality | None = None,
    files: DataFiles | None = None,
) -> BoundData:
    """Bind the columns of data to the inputs and targets of a task.

    A column is bound by an explicit name, by its name in training, by its usual names, or because
    no other column fits. If a column cannot be bound, a `ConfigError` lists all columns.

    Args:
        task: Name of the task.
        data: Paths of files, or a table in memory.
        needs: Explicit column names, such as `{"text": "review"}`.
        usual: Settings of a run, with the names of its columns in training.
        like: Other data whose column names are reused.
        what: Modality of the data; None: any.
        files: Cache of opened files.
    """
    table = table_of(data)
    if like is not None and table is not None:
        needs = {one.name: name for name, one in like.columns.items()} | dict(needs or {})
    needs = {name: one for name, one in (needs or {}).items() if one is not None}
    fields = tuple(ensure_list(needs.pop("fields", ()))) or (usual.fields if usual else ())
    layouts = _layouts(layouts_of(task, what), task, fields, usual)
    known = list(
        dict.fromkeys(w for _, columns in layouts for one in columns for w in one.python_names)
    )
    for name in needs:
        if name not in known:
            near = suggest(name, known)
            raise ConfigError(
                f"{Option(name)} is neither a column that the task {task} reads nor another "
                f"argument.{remark_on(name) or near}"
            )
    if table is None:
        encoding = usual.encoding if usual else "utf-8"
        return _of_files(data, layouts, needs, encoding, files or DataFiles())
    if not table.sample:
        raise DataError("the data has no rows.")
    fits = [layout for layout in layouts if set(needs) <= _words(layout)]
    errors = []
    # Try without guesses first: a column with a usual name for images is not text, even if its
    # paths could be read as text.
    for guesses, (form, columns) in product((False, True), fits):
        try:
            bound = bind(table, _with_argument_names(columns, needs), guesses=guesses)
        except ConfigError as error:
            errors.append(error)
            continue
        names = {column.setting: name for name, column in bound.items() if column.setting}
        said: dict[str, str | tuple[str, ...]] = {**names}
        return BoundData(form, said | ({"fields": fields} if fields else {}), (), table, bound)
    if errors:
        raise errors[len(fits)]  # of the first, with guesses
    raise ConfigError(
        f"the task {task} does not accept the columns {', '.join(needs)} together. Leave at least "
        "one of them out."
    )


def named_files(needs: Mapping[str, Any]) -> dict[str, object]:
    """Return settings of `data` from keyword arguments.

    A keyword that can hold files names files, such as `source="a.de"`. Any other keyword names a
    column, such as `label="stars"`. With `media` or `pairs`, which are tables, every other keyword
    that can name a column does so.
    """
    needs = {name: one for name, one in needs.items() if one is not None}
    table = "media" in needs or "pairs" in needs
    found: dict[str, object] = {}
    for name, value in needs.items():
        field = f"{'path' if name in ALL_MEDIA else name}_field"
        if name == "encoding":
            found[name] = str(value)
        elif name in FILES and not (table and field in DEFAULTS):
            found[name] = [os.fspath(path) for path in ensure_list(value)]
        elif field in DEFAULTS:
            (found[field],) = map(str, ensure_list(value))
        else:
            known = (*FILES, *(one.removesuffix("_field") for one in DEFAULTS), "encoding")
            raise ConfigError(
                f"{Option(name)} is not an option for files or columns.{suggest(name, known)}"
            )
    return found


@contextmanager
def as_files(
    task: str,
    data: object,
    needs: Mapping[str, str | Sequence[str]] | None = None,
    usual: DataSettings | None = None,
    what: Modality | None = None,
) -> Iterator[dict[str, object]]:
    """Yield settings of `data` for files or a table in memory. A table is written to a temporary
    file, which is removed afterwards."""
    found = bind_data(task, data, needs, usual, what=what)
    with work_folder() as folder:
        found.write(folder)
        yield found.settings(folder)


def _layouts(
    layouts: tuple[ColumnLayout, ...], task: str, fields: Sequence[str], usual: DataSettings | None
) -> tuple[ColumnLayout, ...]:
    """Return the accepted column layouts, with the column names that a run had in training. With
    `fields`, the only layout is a document with these fields."""
    if fields:
        group = [class_of("field")(name, optional=True) for name in fields]
        optional = not spec_of(task).is_single_label
        label = [replace(column_of(LABEL, "text"), optional=optional)]
        layouts = (("text", (*group, *label)),)
    if usual is None:
        return layouts
    kind = "media" if usual.media else "pairs" if usual.source or usual.pairs else "text"
    kept = [layout for layout in layouts if layout[0] == kind] or list(layouts)
    return tuple(
        (files, tuple(_with_training_name(one, usual) for one in columns))
        for files, columns in kept
    )


def _with_training_name(column: Column, usual: DataSettings) -> Column:
    """Return the column with its name in training. A number is not used as a name, because it is a
    position in a file without a header."""
    name = getattr(usual, column.setting) if column.setting else ""
    if not name or name.isdecimal():
        return column
    # A second text is required if training had one. A label remains optional.
    return replace(column, given_name=name, optional=column.optional and column.is_label)


def _with_argument_names(columns: Sequence[Column], needs: Mapping[str, Any]) -> list[Column]:
    """Return the columns with the names given as keyword arguments."""
    found = []
    for column in columns:
        name = next((needs[word] for word in column.python_names if word in needs), None)
        found.append(
            column
            if name is None
            else replace(column, given_name=str(name), is_strict=True, optional=False)
        )
    return found


def _words(layout: ColumnLayout) -> set[str]:
    return {word for column in layout[1] for word in column.python_names}


def _of_files(
    data: object, layouts: Sequence[ColumnLayout], needs: Mapping[str, Any], encoding: str,
    files: DataFiles,
) -> BoundData:  # fmt: skip
    paths = tuple(os.fspath(path) for path in ensure_list(data))
    if not paths:
        raise DataError("the list of data files is empty. Name at least one file.")
    if any(" " in path and not Path(path).exists() for path in paths) and len(paths) > 1:
        raise DataError(
            f"there is no file {paths[0][:60]!r}. To pass texts instead of files, give them as a "
            'named column: {"text": [...]}.'
        )
    fits = [one for one in layouts if needs and set(needs) <= _words(one)] or list(layouts)
    media = [
        (kind, columns) for kind, columns in fits
        if columns[0].is_media
        and (len(layouts) == 1 or may_hold(paths[0], columns[0].kind, files.walk))
    ]  # fmt: skip
    if not media and "text" not in needs and _is_list(paths[0]):
        media = [
            (kind, columns) for kind, columns in fits
            if columns[0].is_media
            and _lists_media(paths[0], columns, layouts[0][1], encoding, files)
        ]  # fmt: skip
    form, columns = (media or fits)[0]
    settings = {word: one.setting for one in columns for word in one.python_names}
    names: dict[str, str | tuple[str, ...]] = {}
    for name, column in needs.items():
        names[settings[name]] = str(column)
    if fields := tuple(one.name for one in columns if one.is_field):
        names["fields"] = fields
    return BoundData(form, names, paths)


def _is_list(path: str) -> bool:
    return is_table_file(path) and Path(path).is_file()


def _lists_media(
    path: str, columns: Sequence[Column], texts: Sequence[Column], encoding: str, files: DataFiles
) -> bool:
    """Whether a table has a column of media file names and no column that is named like a text
    column."""
    try:
        table = open_table(path, DataSettings(encoding=encoding), columns, files=files)
    except UserError:
        return False  # reading it as text reports the error
    if any(is_named(table, one) for one in texts if one.is_text):
        return False
    column = cast("MediaColumn", columns[0])
    return any(column.names_files(sample_of(table, name).values) for name in table.columns)
