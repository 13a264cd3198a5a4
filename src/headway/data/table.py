"""Tables with named columns, whose rows can be read repeatedly.

Tables come from the file readers (`data/readers/`) or from memory: lists, mappings and dataframes.
No dataframe package is imported, because any object with named columns of values is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from headway.errors import DataError

SAMPLE = 100
"""Number of first rows from which the kinds of columns are detected."""

MOST_SHOWN = 20
"""Maximum number of columns that an error lists, so that it fits a screen."""

RowMapping = Mapping[str, object]


class Absent:
    """Type of `ABSENT`, which marks that a row lacks a column."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT = Absent()


class RawRow(NamedTuple):
    """Row of a table before its columns are bound."""

    values: Sequence[object] | None
    """Values of the requested columns, in the requested order. None for an empty line, and for a
    row that could not be read."""

    line: int
    """Number of the line or row, counted from 1."""

    problem: str = ""
    """Why the row could not be read; empty if it could."""

    ends: bool = True
    """Whether the text ends in this row. False for a piece of a text that continues in the next
    row."""

    row: RowMapping | None = None
    """Whole row, for tables whose rows may lack columns; None for other tables."""

    def first(self, n: int) -> RawRow:
        """Return a copy of the row with only its first `n` values."""
        return self if self.values is None else self._replace(values=self.values[:n])


RowReader = Callable[[Sequence[str]], Iterator[RawRow]]


@dataclass(frozen=True)
class Table:
    """Data with named columns, from a file or from memory."""

    columns: tuple[str, ...]
    sample: Sequence[RowMapping]
    """First rows of the table, from which kinds of columns are detected."""

    read: RowReader
    """Function that yields all rows with the values of the given columns. A table that wraps an
    iterator can be read only once."""

    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Class names by column, for columns that contain class numbers."""

    name: str = ""
    """Path of the file; empty for a table in memory."""

    form: str = "in memory"
    """Description of the file format, such as `tab-separated, header`."""

    unit: str = "line"
    """Noun for what `RawRow.line` counts, such as `line` or `row`."""

    header: bool = True
    """Whether the columns have names. Columns without names are called 1, 2, …"""

    roles: Mapping[str, str] = field(default_factory=dict)
    """Columns by their names in the task, if the file format determines them, as for words and tags
    in CoNLL."""

    typed: bool = True
    """Whether values keep their types. If not, all values are texts."""

    named: Callable[[int], str] | None = None
    """Function that returns the name of a row by its number, for messages. None: rows are named by
    file and number."""

    n: int | None = None
    """Number of rows; None if it is not known before reading."""

    def __post_init__(self) -> None:
        twice = {name for name in self.columns if self.columns.count(name) > 1}
        if twice:
            raise DataError(
                f"{self.name or 'the data'} has several columns named {min(twice)!r}. Rename them."
            )

    @property
    def display_name(self) -> str:
        """Name of the table in messages."""
        return self.name or "the data"

    def where(self, line: int) -> str:
        """Return the place of a row for the start of a message: file and line, or row number."""
        if self.named is not None:
            return self.named(line)
        return f"{self.name}, {self.unit} {line:,}" if self.name else f"row {line:,}"

    def place(self, line: int) -> str:
        if self.named is not None:
            return self.named(line)
        return f"{self.file}:{line}"

    @cached_property
    def file(self) -> str:
        """Name of the file without its folder."""
        return Path(self.name).name

    def unit_of(self, n: int) -> str:
        """Return the noun for `n` rows, in the singular or plural."""
        unit = "row" if self.unit == "line" else self.unit
        return unit if n == 1 else f"{unit}s"

    def shown(self) -> str:
        """Return a text that lists the columns with two example values each, for errors that ask
        the user to choose one."""
        names = self.columns[:MOST_SHOWN]
        more = f"; and {len(self.columns) - len(names):,} more" * (len(self.columns) > len(names))
        return "; ".join(f"{name!r}: {_values(self.sample, name)}" for name in names) + more


def value_in(row: RowMapping, name: str) -> object:
    """Return the value of a column in a row. The column `translation.de` is the entry `de` of the
    value `translation`."""
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    inner = row.get(first)
    return value_in(inner, rest) if dot and isinstance(inner, Mapping) else None


def has_column(table: Table, name: str) -> bool:
    if name in table.columns:
        return True
    return "." in name and any(value_in(row, name) is not None for row in table.sample)


def is_missing(value: object) -> bool:
    """Whether a value is None, NaN or the missing value of a dataframe package."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def has_columns(data: object) -> bool:
    """Whether an object is a table of another package, such as a dataframe, an Arrow table or a
    dataset."""
    if isinstance(data, str | PathLike | np.ndarray):
        return False
    if isinstance(data, Mapping):  # the parts of a dataset
        return bool(data) and all(hasattr(one, "column_names") for one in data.values())
    return hasattr(data, "collect_schema") or _names_of(data) is not None


def _names_of(data: Any) -> Any:
    names = getattr(data, "column_names", None)
    if names is None or callable(names):
        names = getattr(data, "columns", None)
    return names if names is not None and hasattr(data, "__getitem__") else None


def table_of(data: object) -> Table | None:
    """Return data in memory as a table; None if the data names files. Other types raise a
    `DataError`."""
    if isinstance(data, str | PathLike):
        return None
    if isinstance(data, Mapping):
        return _of_columns(data)
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):
        raise DataError("the data is a lazy frame. Pass the result of its `collect()` method.")
    names = _names_of(data)
    if hasattr(data, "features") and names:
        return _of_records(data, names)
    if names is not None:
        columns = {str(name): cast(Any, data)[name] for name in names}
        if len(columns) < len(names):
            raise DataError(
                f"some columns of the data have the same name: {', '.join(map(str, names))}. "
                "Rename them."
            )
        return _of_columns(columns)
    if isinstance(data, Iterable) and not isinstance(data, bytes | np.ndarray):
        return _of_rows(data)
    raise DataError(
        f"{type(data).__name__} cannot be used as data. Pass the path of a file, a list of "
        'mappings ([{"text": …, "label": …}, …]), a mapping of lists, or a table with named '
        "columns."
    )


def _of_columns(columns: Mapping[Any, Any]) -> Table:
    if columns and all(hasattr(one, "column_names") for one in columns.values()):
        one, other, *_ = [*columns, "test"]
        raise DataError(
            f"the data has several splits: {', '.join(map(str, columns))}. Choose the splits "
            f"to use: data[{one!r}], valid=data[{other!r}]"
        )
    held = {str(name): _sized(column, str(name)) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in held.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name!r} {n:,}" for name, n in lengths.items())
        raise DataError(f"the columns have different numbers of values: {said}.")

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        whole = {tops[name]: _listed(held[tops[name]]) for name in names}
        values = [_inside(whole[tops[name]], name, tops[name]) for name in names]
        return (RawRow(row, n) for n, row in enumerate(zip(*values, strict=True), 1))

    tops = _Tops(held)
    first = [_listed(_first(column)) for column in held.values()]
    sample = [dict(zip(held, row, strict=True)) for row in zip(*first, strict=True)]
    return Table(tuple(held), sample, read)


class _Tops(dict[str, str]):
    """Maps names of nested columns to the outermost columns that contain them, such as
    `translation.de` to `translation`."""

    def __init__(self, columns: Iterable[str]) -> None:
        super().__init__()
        self.columns = list(columns)

    def __missing__(self, name: str) -> str:
        return name if name in self.columns else name.partition(".")[0]


def _inside(values: Sequence[object], name: str, top: str) -> Sequence[object]:
    return values if name == top else [value_in({top: value}, name) for value in values]


def select_columns(rows: Iterable[RowMapping], names: Sequence[str]) -> Iterator[RawRow]:
    """Yield the values of the named columns of each mapping as a row."""
    for number, row in enumerate(rows, 1):
        yield RawRow([value_in(row, name) for name in names], number, row=row)


class ColumnValues(Protocol):
    """Interface of a column of a dataframe package."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[object]: ...

    def __getitem__(self, key: slice, /) -> Iterable[object]: ...


def _sized(column: object, name: str) -> ColumnValues:
    """Return a column that has a length: the column itself, or a list of its values."""
    if isinstance(column, str | bytes | Mapping) or not isinstance(column, Iterable):
        raise DataError(
            f"column {name!r} is {str(column)[:40]!r}, but must be a list of values. Give one list "
            "per column."
        )
    return cast(ColumnValues, column) if hasattr(column, "__len__") else list(column)


def _first(column: ColumnValues) -> Iterable[object]:
    """Return the first `SAMPLE` values of a column."""
    for way, words in (("head", (SAMPLE,)), ("slice", (0, SAMPLE))):
        if hasattr(column, way):
            found: Iterable[object] = getattr(column, way)(*words)
            return found
    return column[:SAMPLE]


def _listed(column: Iterable[object]) -> Sequence[object]:
    """Return the values of a column as a sequence. An array with several axes becomes one array per
    item."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return list(column)
    for way in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, way):
            return _whole(getattr(column, way)())
    return _whole(column if isinstance(column, Sequence) else list(column))


def _whole(values: Sequence[object]) -> Sequence[object]:
    """Convert floats such as 1.0 back to integers in a column with missing values. pandas stores
    integers with missing values as floats."""
    there = [value for value in values if not is_missing(value)]
    if len(there) == len(values):
        return values
    if not all(isinstance(value, float) and value.is_integer() for value in there):
        return values
    return [None if is_missing(value) else int(cast(float, value)) for value in values]


def _of_records(data: Any, names: Iterable[str]) -> Table:
    """Return a Hugging Face dataset as a table. Rows are decoded one at a time, and class numbers
    get names."""
    features: Mapping[str, Any] = data.features or {}
    classes = {}
    for name, feature in features.items():
        inner = getattr(feature, "feature", feature)  # lists of classes: tags
        if getattr(inner, "names", None):
            classes[name] = list(inner.names)
    few = getattr(data, "select_columns", lambda names: data)
    tops = _Tops(names)

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        return select_columns(few(list(dict.fromkeys(map(tops.__getitem__, names)))), names)

    return Table(tuple(tops.columns), list(islice(iter(data), SAMPLE)), read, classes)


def _of_rows(data: Iterable[Any]) -> Table | None:
    """Return a list or iterator of mappings as a table; None for a list of paths."""
    again = isinstance(data, Sequence)
    walked = iter(data)
    sample = list(islice(walked, SAMPLE))
    if sample and all(isinstance(row, str | PathLike) for row in sample):
        return None
    columns: dict[str, None] = {}
    for row in _mappings(sample):
        columns |= dict.fromkeys(map(str, row))

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        return select_columns(_mappings(data if again else chain(sample, walked)), names)

    return Table(tuple(columns), sample, read)


def _mappings(rows: Iterable[object]) -> Iterator[RowMapping]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {number:,} of the data is {str(row)[:40]!r}, but must be a mapping of "
                'columns to values: {"text": …, "label": …}.'
            )
        yield row


def _values(sample: Sequence[RowMapping], name: str) -> str:
    found = [row.get(name) for row in sample]
    kept = [value for value in found if not is_missing(value)][:2]
    return ", ".join(shown_value(value) for value in kept) or "nothing"


def shown_value(value: object) -> str:
    if isinstance(value, np.ndarray) or hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…{text[-1] if isinstance(value, str) else ''}"
