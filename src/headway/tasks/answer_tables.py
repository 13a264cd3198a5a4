"""Tables of predictions, with the columns of the input.

Spreadsheets evaluate cells of CSV and TSV files that look like formulas. These texts get a leading
apostrophe; numbers are not changed. JSONL and Parquet files keep all texts unchanged.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from headway.errors import UserError, needs
from headway.storage import replace_file
from headway.tasks.answers import Answer
from headway.tasks.format import to_cells

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")

HALVES = "backslashreplace"
"""Error handler that writes lone surrogates as `\\ud800`: JSON allows them, but UTF-8 does not."""

RowCells = Mapping[str, object]

_FORMULA = re.compile(r"[=+\-@\t\r].*[\w(]", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d[\d.,]*|\.\d+)([eE][+-]?\d+)?\s*%?")


def is_table(path: str | Path) -> bool:
    """Return whether answers saved to this path are written as a table, judged by its extension."""
    return Path(path).suffix.lower() in ENDINGS


def without_formula(text: str) -> str:
    """Return the text, with a leading apostrophe if a spreadsheet would evaluate it as a
    formula."""
    if not text or text[0] not in "=+-@\t\r":
        return text
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def free_names(names: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Return a column name for each answer field, with the prefix `predicted_` if an input column
    has its name."""
    taken = set(taken)
    found = {}
    for name in names:
        free = name
        while free in taken:
            free = f"predicted_{free}"
        found[name] = free
        taken.add(free)
    return found


class AnswerTable:
    """Writes a table row by row.

    The file is created with the first row, so an earlier failure leaves no file. Rows that were
    written before a later failure are kept.
    """

    def __init__(
        self, path: str | Path, given: Sequence[str], answered: Sequence[str],
        part: Path | None = None,
    ) -> None:  # fmt: skip
        """Prepare the writer; the file is not created yet.

        Args:
            path: Table file, whose extension selects the format.
            given: Columns of the input.
            answered: Keys that the result of `to_cells` may have.
            part: Temporary file to write to. None: write to `path` itself.
        """
        self.path, self.ending = Path(path), Path(path).suffix.lower()
        self.part = part or self.path
        self.names = free_names(answered, given)
        self.columns = [*given, *self.names.values()]
        self.n_formulas = 0
        self.rows: list[dict[str, object]] = []
        """Rows of a Parquet file, which is written in one go when the table is closed."""

        self.file: IO[str] | None = None

    def __enter__(self) -> AnswerTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            if self.ending == ".parquet":
                if self.rows or kind is None:
                    _write_parquet(self.part, self.columns, self.rows)
            elif kind is None:
                self._opened()
        finally:
            if self.file is not None:
                self.file.close()

    def write(self, row: RowCells | None, cells: RowCells) -> None:
        named = {self.names[name]: one for name, one in cells.items() if name in self.names}
        values = {**(row or {}), **named}
        if self.ending == ".parquet":
            self.rows.append(values)
            return
        if self.ending == ".jsonl":
            line = json.dumps(values, ensure_ascii=False, default=str) + "\n"
        else:
            line = self._line([values.get(name) for name in self.columns])
        self._opened().write(line)

    def _opened(self) -> IO[str]:
        if self.file is None:
            try:
                self.file = self.part.open("w", encoding="utf-8", errors=HALVES, newline="")
            except OSError as error:
                raise UserError(f"cannot write {self.path}: {error.strerror}.") from error
            if self.ending != ".jsonl":
                self.file.write(self._line(self.columns))
        return self.file

    def _line(self, values: Sequence[object]) -> str:
        cells = [self._cell(value) for value in values]
        if self.ending == ".tsv":
            return "\t".join(cells) + "\n"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue()

    def _cell(self, value: object) -> str:
        if not isinstance(value, str):
            value = _as_text(value)
            if _NUMBER.fullmatch(value):
                return value
        safe = without_formula(value)
        self.n_formulas += safe != value
        if self.ending == ".tsv" and any(char in safe for char in "\t\n\r"):
            raise UserError(
                f"{self.path}: a cell contains a tab or a line break, which TSV cannot represent: "
                f"{safe[:60]!r}. Use .csv, .jsonl or .parquet instead."
            )
        return safe

    def summary(self) -> str:
        """Return a line about cells that got an apostrophe; empty if none did."""
        if not self.n_formulas:
            return ""
        some = "s begin" if self.n_formulas > 1 else " begins"
        return (
            f"{self.path}: {self.n_formulas:,} cell{some} like a formula and got a leading "
            "apostrophe, so that spreadsheets do not evaluate it. .jsonl and .parquet keep texts "
            "unchanged"
        )


def _as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _write_parquet(path: Path, columns: Sequence[str], rows: Sequence[RowCells]) -> None:
    arrow: Any = needs("pyarrow", "parquet")
    parquet: Any = needs("pyarrow.parquet", "parquet")
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))

    def column(name: str) -> Any:
        values = [row.get(name) for row in rows]
        with suppress(arrow.ArrowException, OverflowError, UnicodeError):
            found = arrow.array(values)
            if "struct<>" not in str(found.type):
                return found
        # Store these values as text, because Parquet cannot hold mixed types, numbers over 64 bits
        # or empty objects.
        texts = (None if one is None else _as_text(one) for one in values)
        return arrow.array([one and one.encode("utf-8", HALVES).decode() for one in texts])

    table = arrow.table({name: column(name) for name in names})
    try:
        replace_file(path, lambda part: parquet.write_table(table, part))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}.") from error


def save_table(answers: Sequence[Answer], path: Path) -> None:
    """Write a table with one row per answer.

    If the inputs were rows of a table, their columns come first; otherwise `id` and `place`, if
    known. The columns of the answer follow.
    """
    rows = [dict(_given(one)) for one in answers]
    cells = [to_cells(one) for one in answers]
    given = dict.fromkeys(name for row in rows for name in row)
    answered = dict.fromkeys(name for row in cells for name in row) or {"answer": None}
    replace_file(path, lambda part: _save(path, part, (list(given), list(answered)), rows, cells))


def _save(
    path: Path, part: Path, columns: tuple[Sequence[str], Sequence[str]], rows: Sequence[RowCells],
    cells: Sequence[RowCells],
) -> None:  # fmt: skip
    with AnswerTable(path, *columns, part) as table:
        for row, one in zip(rows, cells, strict=True):
            table.write(row, one)


def _given(answer: Answer) -> Iterator[tuple[str, object]]:
    if answer.row is not None:
        yield from answer.row.items()
        return
    if answer.id is not None:
        yield "id", answer.id
    if answer.place:
        yield "place", answer.place
