"""Read CoNLL files, which have one word with its tags per line and an empty line between
sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import cast

from headway.data.files import DataFile
from headway.data.sniff import CONLL_U, DOCUMENT, extensions
from headway.data.table import SAMPLE, RawRow, RowMapping, Table


def open_conll(file: DataFile) -> Table:
    """Return a table with one row per sentence. Columns are named by their numbers. A cell is a
    list with one text per word."""
    how = _Conll(file)
    width = how.width()
    columns = tuple(str(i) for i in range(1, width + 1))
    sample = []
    for raw in islice(how.read(columns, columns, file.head()), SAMPLE):
        if raw.values:
            sample.append(dict(zip(columns, raw.values, strict=True)))
    means = {"words": "1"} | ({"tags": str(width)} if width > 1 else {})
    if width > 1 and _marks(sample, "1") and not _marks(sample, str(width)):
        means = {"words": str(width), "tags": "1"}
    if how.universal:
        means = {"words": "2", "tags": "4"}
    return Table(
        columns, sample, lambda names: how.read(columns, names, file.lines()), name=file.name,
        form=f"one word per line, {width} column{'s' * (width != 1)}", header=False, roles=means,
    )  # fmt: skip


SPAN = re.compile(r"O|[BIESLU]-\S+")
"""Pattern of span tags in BIO, BIOES and BILOU. Few words match it, so it does not match all words
of a sample."""


def _marks(sample: Sequence[RowMapping], column: str) -> bool:
    """Whether all texts in a column of the sample are span tags, and at least one is not `O`."""
    found = {str(one) for row in sample for one in cast(Sequence[object], row[column])}
    return found > {"O"} and all(map(SPAN.fullmatch, found))


class _Conll:
    def __init__(self, file: DataFile) -> None:
        self.file = file
        self.universal = CONLL_U in extensions(file.path)

    def width(self) -> int:
        """Return the number of columns in the first line of a sentence; 0 if there is no
        sentence."""
        lines = self.file.head()
        return next((len(cells_of(line)) for line in lines if not self._is_beside(line)), 0)

    def read(
        self, columns: Sequence[str], names: Sequence[str], lines: Iterator[str]
    ) -> Iterator[RawRow]:
        """Yield one row per sentence. A sentence with an invalid line becomes a row with a
        problem."""
        places = [columns.index(name) if name in columns else len(columns) for name in names]
        width = len(columns)
        found: list[list[str]] = [[] for _ in places]
        start, problem = 0, ""
        for number, line in enumerate(chain(lines, [""]), 1):
            if is_between(line):
                if problem:
                    yield RawRow(None, start, problem)
                elif start:
                    yield RawRow(found, start)
                found, start, problem = [[] for _ in places], 0, ""
                continue
            if self._is_beside(line):
                continue
            cells = cells_of(line)
            start = start or number
            wrong = self._wrong(cells, width, places, line, number)
            problem = problem or wrong
            if not wrong:
                for values, i in zip(found, places, strict=True):
                    values.append(cells[i])

    def _is_beside(self, line: str) -> bool:
        if is_between(line):
            return True
        if not self.universal:
            return False
        first = line.partition("\t")[0]
        return line.startswith("#") or "-" in first or "." in first

    def _wrong(
        self, cells: list[str], width: int, places: Sequence[int], line: str, number: int
    ) -> str:
        """Return a description of what is wrong with a line; empty if the line is valid."""
        where = f"{self.file.name}, line {number:,}"
        if len(cells) <= max(places) and len(cells) < 2:
            return (
                f"{where} must have a word and its tag, separated by a tab or spaces, with an "
                f"empty line between sentences: {line[:60]!r}."
            )
        if len(cells) != width:
            return f"{where} has {len(cells)} columns, the first line has {width}: {line[:60]!r}."
        if max(places) >= width:
            return f"{where} has only {width} columns; column {max(places) + 1} is required."
        empty = next((i for i in places if not cells[i]), None)
        return "" if empty is None else f"{where}: column {empty + 1} is empty: {line[:60]!r}."


def is_between(line: str) -> bool:
    return not line.strip() or line.startswith(DOCUMENT)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
