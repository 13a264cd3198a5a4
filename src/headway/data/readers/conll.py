"""Sentences with a word a line and columns beside it, as CoNLL has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import cast

from headway.data.files import open_lines, shown
from headway.data.table import SAMPLE, Raw, Row, Table

DOCUMENT = "-DOCSTART-"

ENDINGS = frozenset({".conll", ".bio", ".bioes", ".iob", ".iob2", ".iobes"})
"""Names of files with a word a line end so, where blanks stand between columns."""

UNIVERSAL = ".conllu"
"""CoNLL-U: words in column 2, parts of speech in column 4, comments before sentences, and lines of
several words together (`1-2`) or of words that are not there (`1.1`)."""


def open_conll(path: str, encoding: str) -> Table:
    """A row is a sentence, and a column of it has a text for each word; columns are numbered."""
    how = _Conll(path, encoding)
    width = how.width()
    columns = tuple(str(i) for i in range(1, width + 1))
    sample = []
    for raw in islice(how.read(columns, columns), SAMPLE):
        if raw.values:
            sample.append(dict(zip(columns, raw.values, strict=True)))
    means = {"words": "1"} | ({"tags": str(width)} if width > 1 else {})
    if width > 1 and _marks(sample, "1") and not _marks(sample, str(width)):
        means = {"words": str(width), "tags": "1"}
    if how.universal:
        means = {"words": "2", "tags": "4"}
    return Table(
        columns, sample, lambda names: how.read(columns, names), name=shown(path),
        form=f"a word a line, {width} column{'s' * (width != 1)}", header=False, means=means,
    )  # fmt: skip


SPAN = re.compile(r"O|[BIESLU]-\S+")
"""Marks of spans; words are hardly so, and never all of them."""


def _marks(sample: Sequence[Row], column: str) -> bool:
    """Whether a column has marks of spans and nothing else."""
    found = {str(one) for row in sample for one in cast(Sequence[object], row[column])}
    return found > {"O"} and all(map(SPAN.fullmatch, found))


class _Conll:
    def __init__(self, path: str, encoding: str) -> None:
        self.path, self.encoding = path, encoding
        self.universal = UNIVERSAL in {end.lower() for end in Path(path).suffixes}

    def width(self) -> int:
        """Of the first line of a sentence."""
        lines = open_lines(self.path, self.encoding)
        return next((len(cells_of(line)) for line in lines if not self._is_beside(line)), 0)

    def read(self, columns: Sequence[str], names: Sequence[str]) -> Iterator[Raw]:
        """With one bad line a sentence cannot be read."""
        places = [columns.index(name) if name in columns else len(columns) for name in names]
        width = len(columns)
        found: list[list[str]] = [[] for _ in places]
        start, problem = 0, ""
        for number, line in enumerate(chain(open_lines(self.path, self.encoding), [""]), 1):
            if is_between(line):
                if problem:
                    yield Raw(None, start, problem)
                elif start:
                    yield Raw(found, start)
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
        """What is wrong with a line, if anything is."""
        where = f"{shown(self.path)}, line {number:,}"
        if len(cells) <= max(places) and len(cells) < 2:
            return (
                f"{where}: a word and its tag are needed, with a tab or blanks between them, and "
                f"an empty line between sentences: {line[:60]!r}."
            )
        if len(cells) != width:
            return f"{where} has {len(cells)} columns but the first has {width}: {line[:60]!r}."
        if max(places) >= width:
            return f"{where} has {width} columns; column {max(places) + 1} is asked for."
        empty = next((i for i in places if not cells[i]), None)
        return "" if empty is None else f"{where}: column {empty + 1} is empty: {line[:60]!r}."


def is_between(line: str) -> bool:
    return not line.strip() or line.startswith(DOCUMENT)


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
