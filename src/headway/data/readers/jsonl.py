"""Detect JSON Lines files and read them as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.data.files import DataFile
from headway.data.table import ABSENT, SAMPLE, RawRow, Table
from headway.errors import DataError


def open_jsonl(file: DataFile) -> Table:
    """Return a table whose columns are the fields of the JSON objects. The column `translation.de`
    is the field `de` of the object `translation`."""
    sample, problem = [], ""
    for line, where in _lines(file):
        try:
            sample.append(parse_object(line, where))
        except DataError as error:
            if line.lstrip().startswith("["):
                raise  # a JSON array, not JSON Lines
            problem = problem or str(error)
        if len(sample) == SAMPLE:
            break
    if problem and not sample:
        raise DataError(problem)
    columns = dict.fromkeys(name for row in sample for name in row)

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        deep = any("." in name for name in names)
        for number, line in enumerate(file.lines(), 1):
            if not line.strip():
                yield RawRow(None, number)
                continue
            try:
                row = parse_object(line, f"{file.name}, line {number:,}")
            except DataError as error:
                yield RawRow(None, number, str(error))
            else:
                pick = _deep if deep else dict.get
                yield RawRow([pick(row, name, ABSENT) for name in names], number, row=row)

    return Table(tuple(columns), sample, read, name=file.name, form="lines of JSON")


def _lines(file: DataFile) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(file.head(), 1):
        if line.strip():
            yield line, f"{file.name}, line {number:,}"


def _deep(row: Mapping[str, Any], name: str, default: object) -> object:
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    inner = row.get(first)
    return _deep(inner, rest, default) if dot and isinstance(inner, dict) else default


def parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.lstrip().startswith("[") and where.endswith((", line 1", ":1")):
            raise _array(where) from error
        raise DataError(f"{where} is not valid JSON: {error}.") from error


def parse_object(line: str, where: str) -> dict[str, Any]:
    values = parse_line(line, where)
    if isinstance(values, list) and any(isinstance(value, dict) for value in values):
        raise _array(where)
    if not isinstance(values, dict):
        raise DataError(
            f'{where} contains {_kind(values)}, not a JSON object ({{"text": …}}): '
            f"{line.strip()[:40]!r}."
        )
    return values


def _array(where: str) -> DataError:
    return DataError(
        f"{where} starts a JSON array, but one object per line is needed "
        '({"text": …}). Convert it: '
        "python -c 'import json, sys; [print(json.dumps(x)) for x in json.load(sys.stdin)]' "
        "< FILE.json > FILE.jsonl"
    )


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", type(None): "null"}.get(type(value), "a number")
