"""Bind the columns of a table to the inputs and targets of a task, for files and data in memory.

A column is bound by an explicit name, by its exact or a usual name, by the file format, or because
no other column fits. Without a header, columns are also bound by position if their number matches.
If a column cannot be bound, an error lists all columns with some of their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from headway.data.columns.column import Column, Sample, class_of, to_python
from headway.data.table import Table, has_column, is_missing, value_in
from headway.errors import ColumnName, ConfigError, MissingColumnError, suggest
from headway.settings.data import DataSettings
from headway.specs.needs import Modality, Need

DEFAULTS: dict[str, str] = {
    name: one for name, one in asdict(DataSettings()).items() if name.endswith("_field")
}
"""Default names of columns, by the setting that names the column, such as `text_field`."""


MOST_REASONS = 5
"""Maximum number of columns for which an error explains why they cannot be bound. Five reasons form
a short paragraph."""


def column_of(need: Need, modality: Modality) -> Column:
    """Return the column that a task needs, with its accepted names and its setting. `modality`:
    what the task reads, such as text or images."""
    kind = modality if modality in need.kinds else min(need.kinds)
    made = class_of(kind)
    own_name = need.name if made.is_named_by_need else kind
    names = need.also if made.is_named_by_need else need.names
    setting = f"{need.name}_field"
    return made(own_name, setting if setting in DEFAULTS else "", names, need.optional)


def with_setting_names(
    columns: Sequence[Column], data: DataSettings, asked: Mapping[str, object] | None = None
) -> tuple[Column, ...]:
    """Return the columns with the names that the settings of `data` give them.

    Columns with default names keep all their usual names. An optional column without a name is left
    out.

    Args:
        columns: Columns that a task reads.
        data: Settings with the names of the columns.
        asked: Settings given by the user. The column names in them must occur in the data. Names
            in other settings come from training data and are only preferred. None: all names must
            occur in the data.
    """
    found = []
    for one in columns:
        name = str(getattr(data, one.setting)) if one.setting else ""
        if one.optional and one.setting == "other_field" and not name:
            continue
        if name and name != DEFAULTS.get(one.setting):
            said = not asked or f"data.{one.setting}" in asked
            one = replace(one, optional=False, given_name=name, is_strict=said)
        found.append(one.with_settings(data))
    return tuple(found)


Binding = dict[str, Column]
"""Bound columns by their names in the table, in the order in which the task lists them."""


def bind(table: Table, columns: Sequence[Column], *, guesses: bool = True) -> Binding:
    if not table.columns:  # an empty file has no rows either
        return {one.given_name or one.name: one for one in columns}
    found: dict[str, Column] = {}
    open_: list[Column] = []
    for column in columns:
        name = _named(table, column, found)
        if name is not None:
            found[name] = column
        elif not column.is_field and not column.optional:
            open_.append(column)
    if open_ and not any(one.is_strict for one in columns):
        by_order = _by_order(table, columns, found)
        if by_order:
            found, open_ = by_order, []
    again = guesses
    while again and open_:
        again = False
        for column in list(open_):
            may = [
                name for name in table.columns
                if name not in found and _mismatch(table, name, column) is None
            ]  # fmt: skip
            if len(may) == 1:
                found[may[0]] = column
                open_.remove(column)
                again = True
    fields = [one for one in columns if one.is_field]
    if open_ or (fields and not any(one.is_field for one in found.values())):
        raise _refusal(table, open_ or fields, columns)
    order = {id(column): i for i, column in enumerate(columns)}
    return dict(sorted(found.items(), key=lambda one: order[id(one[1])]))


def _named(table: Table, column: Column, taken: Mapping[str, Column]) -> str | None:
    if column.is_strict:
        if has_column(table, column.given_name):
            return column.given_name
        if column.given_name.isdecimal() and 0 < int(column.given_name) <= len(table.columns):
            return table.columns[int(column.given_name) - 1]  # counted, though they have names
        near = suggest(column.given_name, table.columns).split(" Known")[0]
        raise _error(
            table,
            _name_of(table, column, column.given_name),
            f": {table.display_name} has no such column.{near} Its columns: "
            f"{table.shown() or 'none'}. Name one of them: ",
            _name_of(table, column),
            "",
        )
    lower = {name.lower(): name for name in reversed(table.columns)}
    for name in column.accepted_names:
        name = name if has_column(table, name) else lower.get(name, name)
        if has_column(table, name) and name not in taken and _may_be(table, name, column):
            return name
    return table.roles.get(column.name)


def is_named(table: Table, column: Column) -> bool:
    """Whether the table has a column with one of the accepted names of `column`."""
    return _named(table, replace(column, is_strict=False), {}) is not None


def _by_order(
    table: Table, columns: Sequence[Column], found: Mapping[str, Column]
) -> dict[str, Column]:
    """Bind the columns of a table without a header by position. Their number must equal the number
    of all columns of the task, or of its required columns. Return an empty mapping if it does
    not."""
    if table.header or found:
        return {}
    needed = [one for one in columns if not one.optional]
    for some in (list(columns), needed):
        if len(some) == len(table.columns):
            return dict(zip(table.columns, some, strict=True))
    pairs = [one.name for one in needed] in (["source", "target"], ["source"])
    if pairs and len(table.columns) > len(needed):  # further columns are remarks and numbers
        return dict(zip(table.columns, needed, strict=False))
    return {}


def _refusal(table: Table, open_: Sequence[Column], columns: Sequence[Column]) -> ConfigError:
    words = " and ".join(f"the {column.name}" for column in open_)
    say = [part for column in open_ for part in (" ", _name_of(table, column))][1:]
    shown = f" Columns of {'the data' if not table.name else 'the file'}: {table.shown()}."
    if len(open_) == 1:
        shown += _reasons(table, open_[0])
    if all(one.is_field for one in open_):
        names = ", ".join(repr(one.name) for one in open_)
        text = f"{table.display_name} has none of the fields {names}. Name its fields: "
        return _error(table, f"{text}data.fields=…{shown}")
    unclear = f"it is unclear which column is {words}."
    if not table.name:
        return _error(table, f"{unclear} Name it: ", *say, f".{shown}")
    text = "."
    needed = [one for one in columns if not one.optional]
    if any(one.is_class for one in open_) and _has_number(table):
        text += " To predict a number: classify.answer=number."
    if len(table.columns) == 1 < len(needed) and not table.typed:
        text += " The file has one column. Separate columns with tabs, or write JSON objects."
        if any(one.is_class for one in open_):
            text += (
                " A label before each text can be written as `__label__x text`, "
                "`LABEL:detail text` or `0 text`."
            )
    return _error(
        table, f"{table.name}: {unclear} Give its name or number: ", *say, text + shown
    )  # fmt: skip


def _has_number(table: Table) -> bool:
    """Whether some column of the table contains only floating-point numbers, as the targets of a
    regression do."""
    return any(
        all(isinstance(one, float) for one in values)
        for name in table.columns
        if (
            values := [
                one for row in table.sample if not is_missing(one := to_python(row.get(name)))
            ]
        )
    )


def _name_of(table: Table, column: Column, value: str = "") -> ColumnName:
    option = column.option if table.name else column.name
    return ColumnName(option, f"data.{column.setting}", value)


def _reasons(table: Table, column: Column) -> str:
    """Return a text that explains for the first columns of the table why each cannot be
    `column`."""
    found = ((name, _mismatch(table, name, column)) for name in table.columns[:MOST_REASONS])
    why = [f"{name!r} ({reason})" for name, reason in found if reason and not column.is_field]
    return f" Not the {column.name}: {', '.join(why)}." if why else ""


def _error(table: Table, *parts: str | ColumnName) -> ConfigError:
    """Return the error for a missing column. It names the Python argument if the data is in memory,
    and the command-line option or the setting if the data is a file."""
    error = MissingColumnError(parts)
    if not table.name:
        error.name_options()
    return error


def _may_be(table: Table, name: str, column: Column) -> bool:
    """Whether a table column with an accepted name can hold values of this kind. For example, a
    column `path` may contain images, videos or audio."""
    values = (to_python(value_in(row, name)) for row in table.sample)
    first = next((value for value in values if not is_missing(value)), None)
    return first is None or column.could_hold(first)


def _mismatch(table: Table, name: str, column: Column) -> str | None:
    """Return why the table column `name` cannot be `column`; None if it can."""
    sample = sample_of(table, name)
    return column.matches(sample) if sample.values else "it has no values"


def sample_of(table: Table, name: str) -> Sample:
    """Return the first values of a column, without missing and empty ones."""
    found = (to_python(row.get(name)) for row in table.sample)
    values = [value for value in found if not (is_missing(value) or is_blank(value))]
    return Sample(values, table.typed, Path(table.name).parent if table.name else None)


def is_blank(value: object) -> bool:
    return isinstance(value, str) and not value
