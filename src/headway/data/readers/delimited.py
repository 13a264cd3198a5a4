"""Read delimited text files: columns separated by tabs, commas or semicolons, with or without a
header; and files with labels before texts, such as those of fastText."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headway.data.files import MAX_LINE, display_name, open_lines
from headway.data.table import ABSENT, SAMPLE, RawRow, Table
from headway.errors import DataError

FASTTEXT = "__label__"
"""Prefix of the labels before each text in files of fastText."""

SEPARATOR_NAMES = {"\t": "tab-separated", ",": "comma-separated", ";": "semicolon-separated"}
UNITS = {"\t": "a tab", ",": "a comma", ";": "a semicolon"}

DelimitedRow = list[str]
IsHeader = Callable[[Sequence[str], Sequence[Sequence[str]]], bool]
"""Function from a first line and the lines after it to whether it is a header."""


@dataclass(frozen=True)
class Delimited:
    """Delimited file with its encoding and separator."""

    path: str
    encoding: str
    separator: str
    ragged: bool = False
    """Whether lines may have more or fewer cells than the first if all required columns are
    there."""

    def rows(self) -> Iterator[tuple[DelimitedRow, int]]:
        """Yield the cells and the first line number of each row. An empty line has no cells."""
        lines = open_lines(self.path, self.encoding)
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
            where = f"{display_name(self.path)}, line {reader.line_num:,}"
            raise DataError(f"{where} is not valid CSV: {error}.") from error

    def read(self, columns: Sequence[str], n_header: int, names: Sequence[str]) -> Iterator[RawRow]:
        places = [columns.index(name) if name in columns else len(columns) for name in names]
        width, needed = len(columns), max(places, default=0) + 1
        for cells, number in islice(self.rows(), n_header, None):
            if not cells:
                yield RawRow(None, number)
            elif len(cells) == width or (self.ragged and len(cells) >= needed):
                yield RawRow([cells[i] for i in places], number)
            else:
                yield RawRow(None, number, self._wrong(cells, number, needed, width))

    def _wrong(self, cells: DelimitedRow, number: int, needed: int, width: int) -> str:
        wanted = f"needs {needed}" if self.ragged else f"the first line has {width}"
        return (
            f"{display_name(self.path)}, line {number:,} has {len(cells)} "
            f"column{'s' * (len(cells) != 1)} "
            f"but {wanted}, separated by {UNITS[self.separator]}: "
            f"{self.separator.join(cells)[:60]!r}."
        )


def open_delimited(
    path: str, encoding: str, between: str, is_header: IsHeader, *, ragged: bool = False
) -> Table:
    """Return a table. Its columns are named by the header, or 1, 2, … without one."""
    how = Delimited(path, encoding, between, ragged)
    head = [cells for cells, _ in islice(how.rows(), SAMPLE + 1)]
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
        name=display_name(path), form=form, header=header, typed=False,
    )  # fmt: skip


def _unique_names(names: Sequence[str]) -> list[str]:
    """Make column names unique: duplicates and empty names become the column number."""
    found: list[str] = []
    for number, name in enumerate(names, 1):
        found.append(name if name and name not in found else str(number))
    return found


def detect_separator(
    path: str, head: Sequence[str], names: Sequence[str], *, ragged: bool = False
) -> str:
    """Return the column separator, or an empty string if the file does not look like a table. In
    `ragged` files, such as sentence pairs, tabs count more than commas."""
    suffixes = {end.lower() for end in Path(path).suffixes}
    first = head[0] if head else ""
    if ".csv" in suffixes:
        tabs = {line.count("\t") for line in head if line.strip()}
        if len(tabs) == 1 and tabs != {0} and (ragged or "," not in first):
            return "\t"
        return ";" if "," not in first and ";" in first else ","
    if ".tsv" in suffixes or "\t" in first:
        return "\t"
    return "," if _is_csv(first, head[1] if len(head) > 1 else "", names) else ""


def _is_csv(first: str, second: str, names: Sequence[str]) -> bool:
    """Whether a file without the ending .csv is CSV: its first line names the columns, or the
    second has the same number of cells. A sentence with a comma is not a table."""
    if "," not in first:
        return False
    header, cells = (next(csv.reader([line]), []) for line in (first, second))
    named = {cell.strip() for cell in header} >= set(names)
    return named or ("\t" not in second and len(cells) == len(header))


@dataclass(frozen=True)
class LabelFormat:
    """Format in which a file without columns writes a label before each text."""

    form: str
    columns: tuple[str, ...]
    row: Callable[[str], dict[str, object]]


def label_format(head: Sequence[str]) -> LabelFormat | None:
    """Detect labels before the texts of the first lines: `__label__x` (fastText), `LABEL:detail`
    (TREC), or one of a few numbers. None if lines do not start with labels."""
    if head and head[0].startswith(FASTTEXT):
        return LabelFormat(f"{FASTTEXT} before each text", ("label", "text"), _fasttext_row)
    if head and all(map(_TREC.match, head)):
        return LabelFormat("LABEL:detail before each text", ("label", "fine", "text"), _trec_row)
    numbers = [found[0] for line in head if (found := _NUMBERED.match(line))]
    few = len(set(numbers)) <= len(numbers) // 2
    if numbers and few and len(numbers) == len(head):
        return LabelFormat("a number before each text", ("label", "text"), _numbered_row)
    return None


_TREC = re.compile(r"[A-Z][A-Z_-]*:\w+ +\S")
_NUMBERED = re.compile(r"-?\d{1,4}(?= +\S)")


def open_labelled_lines(path: str, encoding: str, how: LabelFormat) -> Table:
    """Return a table of labels and texts. The label is a list if a line has several."""

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        for number, line in enumerate(open_lines(path, encoding), 1):
            if line.strip():
                row = how.row(line)
                yield RawRow([row.get(name, ABSENT) for name in names], number, row=row)
            else:
                yield RawRow(None, number)

    head = (line for line in open_lines(path, encoding) if line.strip())
    sample = [how.row(line) for line in islice(head, SAMPLE)]
    return Table(how.columns, sample, read, name=display_name(path), form=how.form, typed=False)


def _fasttext_row(line: str) -> dict[str, object]:
    words = line.split(" ")
    n = next((i for i, word in enumerate(words) if not word.startswith(FASTTEXT)), len(words))
    labels = [word.removeprefix(FASTTEXT) for word in words[:n]]
    return {"label": labels if n > 1 else "".join(labels), "text": " ".join(words[n:])}


def _trec_row(line: str) -> dict[str, object]:
    fine, _, text = line.partition(" ")
    return {"label": fine.partition(":")[0], "fine": fine, "text": text.strip()}


def _numbered_row(line: str) -> dict[str, object]:
    label, _, text = line.partition(" ")
    return {"label": label, "text": text.strip()}
