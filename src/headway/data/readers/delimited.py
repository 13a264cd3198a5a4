"""Read delimited text files, with columns separated by tabs, commas or semicolons, and files with a
label before each text, such as those of fastText."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headway.data.files import MAX_LINE, DataFile
from headway.data.sniff import IsHeader, LabelFormat
from headway.data.table import ABSENT, SAMPLE, RawRow, Table
from headway.errors import DataError

SEPARATOR_NAMES = {"\t": "tab-separated", ",": "comma-separated", ";": "semicolon-separated"}
UNITS = {"\t": "a tab", ",": "a comma", ";": "a semicolon"}

DelimitedRow = list[str]


@dataclass(frozen=True)
class Delimited:
    """Delimited text file with its separator."""

    file: DataFile
    separator: str
    ragged: bool = False
    """Whether the number of cells may differ between lines if every line has all required
    columns."""

    def rows(self, lines: Iterator[str]) -> Iterator[tuple[DelimitedRow, int]]:
        """Yield the cells of each row and the number of its first line. An empty line has no
        cells."""
        if self.separator == "\t":
            for number, line in enumerate(lines, 1):
                yield line.split("\t") if line.strip() else [], number
            return
        csv.field_size_limit(MAX_LINE)  # the default limit is low; this setting is global
        reader = csv.reader((f"{line}\n" for line in lines), strict=True, delimiter=self.separator)
        number = 1
        try:
            for cells in reader:
                yield cells, number
                number = reader.line_num + 1
        except csv.Error as error:
            where = f"{self.file.name}, line {reader.line_num:,}"
            raise DataError(f"{where} is not valid CSV: {error}.") from error

    def read(self, columns: Sequence[str], n_header: int, names: Sequence[str]) -> Iterator[RawRow]:
        places = [columns.index(name) if name in columns else len(columns) for name in names]
        width, needed = len(columns), max(places, default=0) + 1
        for cells, number in islice(self.rows(self.file.lines()), n_header, None):
            if not cells:
                yield RawRow(None, number)
            elif len(cells) == width or (self.ragged and len(cells) >= needed):
                yield RawRow([cells[i] for i in places], number)
            else:
                yield RawRow(None, number, self._wrong(cells, number, needed, width))

    def _wrong(self, cells: DelimitedRow, number: int, needed: int, width: int) -> str:
        wanted = f"needs {needed}" if self.ragged else f"the first line has {width}"
        return (
            f"{self.file.name}, line {number:,} has {len(cells)} "
            f"column{'s' * (len(cells) != 1)} "
            f"but {wanted}, separated by {UNITS[self.separator]}: "
            f"{self.separator.join(cells)[:60]!r}."
        )


def open_delimited(
    file: DataFile, between: str, is_header: IsHeader, *, ragged: bool = False
) -> Table:
    """Return a table of a delimited file. Columns are named by the header; without a header, by
    numbers from 1."""
    how = Delimited(file, between, ragged)
    head = [cells for cells, _ in islice(how.rows(file.head()), SAMPLE + 1)]
    at = next((i for i, cells in enumerate(head) if cells), 0)  # empty lines may come before
    first = [cell.strip() for cell in head[at]] if head else []
    header = bool(first) and is_header(first, head[at + 1 :])
    columns = _unique_names(first) if header else [str(i) for i in range(1, len(first) + 1)]
    n_header = at + 1 if header else 0
    rows = [row for row in head[n_header:] if len(row) == len(columns)]
    form = f"{SEPARATOR_NAMES[between]}, {'header' if header else 'no header'}"
    return Table(
        tuple(columns),
        [dict(zip(columns, row, strict=True)) for row in rows if row],
        lambda names: how.read(columns, n_header, names),
        name=file.name, form=form, header=header, typed=False,
    )  # fmt: skip


def _unique_names(names: Sequence[str]) -> list[str]:
    """Return column names without duplicates. An empty or repeated name is replaced by the column
    number."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        found.append(name if name and name not in found else str(number))
    return found


def open_labelled_lines(file: DataFile, how: LabelFormat) -> Table:
    """Return a table of a file with labels before each text. If a line has several labels, the
    label is a list."""

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        for number, line in enumerate(file.lines(), 1):
            if line.strip():
                row = how.row(line)
                yield RawRow([row.get(name, ABSENT) for name in names], number, row=row)
            else:
                yield RawRow(None, number)

    head = (line for line in file.head() if line.strip())
    sample = [how.row(line) for line in islice(head, SAMPLE)]
    return Table(how.columns, sample, read, name=file.name, form=how.form, typed=False)
