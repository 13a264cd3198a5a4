"""Pairs of sentences out of aligned files, columns (TSV, CSV), or lines of JSON."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from headway.config.data import DataSettings
from headway.data.bad import is_bad, refused
from headway.data.files import is_stream, open_lines, shown
from headway.data.jsonl import is_json, parse_line, text_of
from headway.data.slip import where_lines_slip
from headway.errors import DataError

Pair = tuple[str, str]
"""A source and its target."""


BLOCK = 4096
BLOCK_CHARACTERS = 2_000_000


class UnequalCounts(DataError):
    """Aligned files with different numbers of lines."""


@dataclass
class PairFile:
    """One file of pairs, or two aligned ones. Reading it again starts at the top."""

    paths: tuple[str, ...]
    settings: DataSettings
    header: int = 0
    """Lines before the first pair; known once reading has begun."""

    taken: tuple[str, ...] = ()
    """What the sides are read from, as people say it: `column 1`; known as soon."""

    def __iter__(self) -> Iterator[Pair]:
        if len(self.paths) == 2:
            return _aligned(*self.paths, self.settings.encoding)
        return self._both_in_one(self.paths[0])

    def _both_in_one(self, path: str) -> Iterator[Pair]:
        """A pair for each line after the header, so that pairs can be told by their line."""
        for cells in self._cells(path, BOTH):
            yield cells[0], cells[1]

    def sources(self) -> Iterator[str]:
        """The first sides alone, of a file that need not have the others."""
        if len(self.paths) == 2:
            return open_lines(self.paths[0], self.settings.encoding)
        return (cells[0] for cells in self._cells(self.paths[0], BOTH[:1]))

    def _cells(self, path: str, sides: Sequence[str]) -> Iterator[Sequence[str]]:
        lines = open_lines(path, self.settings.encoding)
        first = next(lines, None)
        if first is None:
            return
        reader = _json_reader if is_json(path, first) else _table_reader
        self.header, self.taken, parse = reader(path, first, self.settings, sides)
        for number, line in enumerate(chain([first], lines), 1):
            if number <= self.header:
                continue
            if not line.strip():
                yield [""] * len(sides)
                continue
            try:
                cells = parse(line, number)
            except DataError as error:
                if number == 1 and (line.lstrip().startswith("[") or self.settings.bad == "error"):
                    raise  # the lines are no pairs, or have other fields
                if self.settings.bad == "error":
                    others = (is_bad(partial(parse, one, 0)) for one in lines if one.strip())
                    raise refused(str(error), others) from error
                cells = [""] * len(sides)  # a pair without text is left out, and counted
            yield cells


def training_files(settings: DataSettings) -> list[PairFile]:
    return pair_files(settings.source, settings.target, settings.pairs, settings)


def validation_files(settings: DataSettings) -> list[PairFile]:
    files = settings.valid_source, settings.valid_target, settings.valid_pairs
    return pair_files(*files, settings)


def pair_files(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], settings: DataSettings
) -> list[PairFile]:
    aligned = [PairFile(both, settings) for both in zip(source, target, strict=True)]
    return [*aligned, *(PairFile((path,), settings) for path in pairs)]


def read_pairs(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], settings: DataSettings
) -> Iterator[Pair]:
    """All pairs in the order of the files. Only a block of each file is in memory."""
    return chain.from_iterable(pair_files(source, target, pairs, settings))


def in_blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Pairs by the thousand, fewer where they are long. What comes before an error still comes."""
    block: list[Pair] = []
    size = 0
    try:
        for pair in pairs:
            block.append(pair)
            size += len(pair[0]) + len(pair[1])
            if len(block) >= BLOCK or size >= BLOCK_CHARACTERS:
                yield block
                block, size = [], 0
    except UnequalCounts:
        if block:
            yield block
        raise
    if block:
        yield block


def _aligned(source: str, target: str, encoding: str) -> Iterator[Pair]:
    """Lines of two files side by side. When one ends first, say where they came apart."""
    try:
        yield from zip(open_lines(source, encoding), open_lines(target, encoding), strict=True)
    except ValueError as error:  # of zip: ours are no ValueErrors
        raise UnequalCounts(_unequal(source, target, encoding)) from error


def _unequal(source: str, target: str, encoding: str) -> str:
    names = f"{shown(source)} and {shown(target)}"
    rule = "line n of one must translate line n of the other."
    if is_stream(source) or is_stream(target):
        return f"{names} have different numbers of lines: {rule}"
    lengths = [
        np.fromiter((len(line) for line in open_lines(path, encoding)), np.float64)
        for path in (source, target)
    ]
    counts = f"{shown(source)} has {len(lengths[0]):,} lines but {shown(target)} has "
    counts += f"{len(lengths[1]):,}: {rule} "
    return counts + where_lines_slip(lengths[0], lengths[1], (source, target), encoding)


BOTH = ("source", "target")

Reader = tuple[int, tuple[str, ...], Callable[[str, int], Sequence[str]]]
"""How many lines of header to leave out, what the sides are read from, and what finds them in a
line of some number."""


def _fields(settings: DataSettings, sides: Sequence[str]) -> list[str]:
    return [str(getattr(settings, f"{side}_field")) for side in sides]


def _table_reader(path: str, first: str, settings: DataSettings, sides: Sequence[str]) -> Reader:
    """Columns by number, or by name where the first line names them; else the first two, but for
    CSV, whose first line is a header more often than not."""
    as_csv = ".csv" in Path(path).suffixes and "\t" not in first

    def split(line: str, number: int) -> list[str]:
        if not as_csv:
            return line.split("\t")
        try:
            return next(csv.reader([line], strict=True), [])
        except csv.Error as error:
            raise DataError(
                f"{shown(path)}, line {number:,}: {error}. A pair is a line, quoted or not: "
                f"{line[:60]!r}."
            ) from error

    header = split(first, 1)
    fields = _fields(settings, sides)
    n_header = 0
    if all(field.isdecimal() and int(field) for field in fields):
        columns = [int(field) - 1 for field in fields]
    elif all(field in header for field in fields):
        columns, n_header = [header.index(field) for field in fields], 1
    elif fields == list(sides) and not as_csv:
        columns = list(range(len(sides)))
    else:
        raise DataError(
            f"{shown(path)}: its first line names no column{'s' * (len(fields) > 1)} "
            f"{' and '.join(map(repr, fields))}: {first[:60]!r}. Give their names or their "
            "numbers, counted from 1: data.source_field=1 data.target_field=2"
        )
    needed = max(columns) + 1
    taken = [repr(header[column]) if n_header else str(column + 1) for column in columns]

    def parse(line: str, number: int) -> Sequence[str]:
        cells = split(line, number)
        if len(cells) < needed:
            between = "a comma" if as_csv else "a tab"
            raise DataError(
                f"{shown(path)}, line {number:,} has {len(cells)} column{'s' * (len(cells) > 1)} "
                f"but {needed} are needed, with {between} between them: {line[:60]!r}."
            )
        return [cells[column] for column in columns]

    return n_header, tuple(f"column {name}" for name in taken), parse


def _json_reader(path: str, first: str, settings: DataSettings, sides: Sequence[str]) -> Reader:
    """Fields by name; `translation.de` is the field `de` inside `translation`."""

    def parse(line: str, number: int) -> Sequence[str]:
        where = f"{shown(path)}, line {number:,}"
        values = parse_line(line, where)
        return [
            text_of(values, field, where, f"{side}_field")
            for side, field in zip(sides, _fields(settings, sides), strict=True)
        ]

    taken = tuple(f"field {name!r}" for name in _fields(settings, sides))
    return 0, taken, parse
