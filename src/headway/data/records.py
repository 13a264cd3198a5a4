"""Texts with labels, one or two each, from TSV, CSV or JSONL; and documents made of fields."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from headway.config.data import DataSettings
from headway.config.listed import listed
from headway.data.bad import is_bad, refused
from headway.data.files import MAX_LINE, open_lines, shown
from headway.data.jsonl import is_json, parse_object, text_of, value_text
from headway.errors import DataError, one_line


@dataclass(frozen=True, slots=True)
class Record:
    text: str
    other: str | None
    """The second text, where data.other_field says that there is one."""

    label: str | None
    place: str
    """File and line."""

    problem: str = ""
    """Why it could not be read, where that is left out (`data.bad`); then it has no text."""


Note = Callable[[str], None]


def read_records(
    paths: Sequence[str],
    settings: DataSettings,
    *,
    labels: bool = True,
    note: Note = lambda text: None,
) -> Iterator[Record]:
    """All records in the order of the files. Without `labels` records need none, and an empty line
    is a record of no text: answers then stand in the lines of their questions. `note` is told what
    the columns of each file are taken for."""
    for path in listed(paths):
        yield from _records(path, settings, labels, note)


def field_records(paths: Sequence[str], settings: DataSettings) -> Iterator[dict[str, str]]:
    """Documents made of fields: those of `data.fields` that each record has, in that order, and
    its label under the name of `data.label_field`, if it has one."""
    return (found for path in paths for found, _ in placed_fields(path, settings))


def placed_fields(path: str, settings: DataSettings) -> Iterator[tuple[dict[str, str], str]]:
    """The same of one file, each with its place."""
    for number, line in enumerate(open_lines(path, settings.encoding), 1):
        if line.strip():
            where = f"{shown(path)}, line {number:,}"
            yield fields_of(line, settings, where), f"{_name(path)}:{number}"


def fields_of(line: str, settings: DataSettings, where: str) -> dict[str, str]:
    values = parse_object(line, where)
    if not any(name in values for name in settings.fields):
        there = ", ".join(map(repr, values)) or "none"
        raise DataError(
            f"{where} has none of the fields {', '.join(map(repr, settings.fields))}, only "
            f"{there}. Name them with data.fields=…"
        )
    names = [name for name in (*settings.fields, settings.label_field) if name in values]
    found = {name: value_text(values[name], name, where) for name in names}
    if settings.label_field not in settings.fields:
        one_line(found.get(settings.label_field, ""), where)
    return {name: text for name, text in found.items() if text.strip()}


def _records(path: str, settings: DataSettings, labels: bool, note: Note) -> Iterator[Record]:
    lines = open_lines(path, settings.encoding)
    first = next(lines, None)
    if first is None:
        return
    second = next(lines, None)
    lines = chain([first], () if second is None else [second], lines)
    names = set(Path(path).suffixes)
    if is_json(path, first):
        yield from _json_records(path, lines, settings, labels, note)
    elif first.startswith(FASTTEXT) and not settings.other_field:
        yield from _fasttext_records(path, lines, settings, labels, note)
    elif ".csv" in names or (
        ".tsv" not in names and _is_csv(first, second or "", settings, labels)
    ):
        yield from _csv_records(path, lines, settings, labels, note)
    else:
        yield from _tsv_records(path, lines, settings, labels, note)


def _is_csv(first: str, second: str, settings: DataSettings, labels: bool) -> bool:
    """Of a file that is not called so: its first line names the columns, or the second has as many
    of them. A sentence with a comma makes no table."""
    if "\t" in first or "," not in first:
        return False
    header, cells = (next(csv.reader([line]), []) for line in (first, second))
    named = {cell.strip() for cell in header} >= set(_wanted(settings, labels).values())
    return named or ("\t" not in second and len(cells) == len(header))


FASTTEXT = "__label__"
"""Begins labels in the files of fastText, which stand before the text."""


def _fasttext_records(
    path: str, lines: Iterator[str], settings: DataSettings, labels: bool, note: Note
) -> Iterator[Record]:
    note(f"{shown(path)}: labels stand before the texts, as fastText has them")
    for number, line in enumerate(lines, 1):
        place, where = f"{_name(path)}:{number}", f"{shown(path)}, line {number:,}"
        words = line.split(" ")
        n = next((i for i, word in enumerate(words) if not word.startswith(FASTTEXT)), len(words))
        text = " ".join(words[n:])
        if not labels:
            yield Record(text, None, None, place)
        elif n > 1:
            raise DataError(
                f"{where} has {n} labels ({' '.join(words[:n])}), and here a text has one. Leave "
                "one of them."
            )
        elif line.strip():
            yield Record(text, None, words[0].removeprefix(FASTTEXT) if n else "", place)


def _json_records(
    path: str, lines: Iterator[str], settings: DataSettings, labels: bool, note: Note
) -> Iterator[Record]:
    told = False

    def read(line: str, where: str) -> tuple[dict[str, Any], Record]:
        values = parse_object(line, where)
        return values, _json_record(values, settings, labels, where)

    for number, line in enumerate(lines, 1):
        if not line.strip():
            if not labels:
                yield _empty(settings, f"{_name(path)}:{number}")
            continue
        where = f"{shown(path)}, line {number:,}"
        try:
            values, record = read(line, where)
        except DataError as error:
            if number == 1 and (line.lstrip().startswith("[") or settings.bad == "error"):
                raise  # the lines are no objects, or have other fields
            if settings.bad == "error":
                others = (is_bad(partial(read, one, "")) for one in lines if one.strip())
                raise refused(str(error), others) from error
            yield replace(_empty(settings, f"{_name(path)}:{number}"), problem=str(error))
            continue
        if not told:
            taken = {key: name.split(".")[0] for key, name in _wanted(settings, labels).items()}
            note(_said(path, "field", [repr(name) for name in values],
                       {key: repr(name) for key, name in taken.items()}))  # fmt: skip
            told = True
        yield replace(record, place=f"{_name(path)}:{number}")


def _json_record(
    values: Mapping[str, object], settings: DataSettings, labels: bool, where: str
) -> Record:
    other, label = None, None
    text = text_of(values, settings.text_field, where, "text_field")
    if settings.other_field:
        other = text_of(values, settings.other_field, where, "other_field")
    if labels:
        if settings.label_field not in values:
            text_of(values, settings.label_field, where, "label_field")
        label = value_text(values[settings.label_field], settings.label_field, where)
        one_line(label, where)
    return Record(text, other, label, where)


def _tsv_records(
    path: str, lines: Iterator[str], settings: DataSettings, labels: bool, note: Note
) -> Iterator[Record]:
    """Columns by name where the first line names them, by number, or the only two."""
    first = next(lines)
    header = first.split("\t")
    columns, n_header = _columns(path, header, settings, labels, note, unnamed=True)
    for number, line in enumerate(chain([first], lines), 1):
        if number <= n_header:
            continue
        if not line.strip():
            if not labels:
                yield _empty(settings, f"{_name(path)}:{number}")
            continue
        cells = line.split("\t")
        if len(cells) == len(header):
            yield columns(cells, f"{_name(path)}:{number}")
            continue
        problem = (
            f"{shown(path)}, line {number:,} has {len(cells)} column{'s' * (len(cells) > 1)} "
            f"but the first has {len(header)}, with a tab between them: {line[:60]!r}."
        )
        if settings.bad == "error":
            tabs = len(header) - 1
            raise refused(problem, (one.count("\t") != tabs for one in lines if one.strip()))
        yield replace(_empty(settings, f"{_name(path)}:{number}"), problem=problem)


def _csv_records(
    path: str, lines: Iterator[str], settings: DataSettings, labels: bool, note: Note
) -> Iterator[Record]:
    csv.field_size_limit(MAX_LINE)  # the module's own is for all readers, and low
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    try:
        first = next(reader)
        header = [name.strip() for name in first]
        columns, n_header = _columns(path, header, settings, labels, note, unnamed=False)
        line = 1 if not n_header else reader.line_num + 1
        for cells in reader if n_header else chain([first], reader):
            if cells and len(cells) != len(header):
                problem = (
                    f"{shown(path)}, line {line:,} has {len(cells)} "
                    f"column{'s' * (len(cells) > 1)} but the header has {len(header)}."
                )
                if settings.bad == "error":
                    raise refused(problem, (len(row) not in (0, len(header)) for row in reader))
                yield replace(_empty(settings, f"{_name(path)}:{line}"), problem=problem)
            elif cells:
                yield columns(cells, f"{_name(path)}:{line}")
            elif not labels:
                yield _empty(settings, f"{_name(path)}:{line}")
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{shown(path)}, line {reader.line_num:,}: {error}.") from error


Parse = Callable[[list[str], str], Record]


def _columns(
    path: str,
    header: list[str],
    settings: DataSettings,
    labels: bool,
    note: Note,
    *,
    unnamed: bool,
) -> tuple[Parse, int]:
    """What makes a record of the cells of a line, and how many lines of header there are.
    `unnamed`: the only two columns may do without."""
    wanted = _wanted(settings, labels)
    usual = wanted == ({"text": "text", "label": "label"} if labels else {"text": "text"})
    n_header = 0
    if all(name in header for name in wanted.values()):
        places, n_header = {key: header.index(name) for key, name in wanted.items()}, 1
    elif all(name.isdecimal() and int(name) for name in wanted.values()):
        places = {key: int(name) - 1 for key, name in wanted.items()}
        if max(places.values()) >= len(header):
            raise DataError(
                f"{shown(path)}, line 1 has {len(header)} column{'s' * (len(header) > 1)}, but "
                f"column {max(places.values()) + 1} is asked for. A tab stands between columns."
            )
    elif usual and len(header) == 2 and settings.label_field in header:  # `sentence`, `label`
        label = header.index(settings.label_field)
        places, n_header = {"text": 1 - label} | ({"label": label} if labels else {}), 1
    elif usual and unnamed and len(header) == 2:
        places = {"text": 0} | ({"label": 1} if labels else {})
    elif usual and unnamed and len(header) == 1 and not labels:
        places = {"text": 0}
    else:
        _no_column(path, header, settings, labels)

    names = [repr(name) if n_header else str(i) for i, name in enumerate(header, 1)]
    note(_said(path, "column", names, {key: names[place] for key, place in places.items()}))

    def parse(cells: list[str], place: str) -> Record:
        found = {key: cells[column] for key, column in places.items()}
        label = one_line(found["label"].strip(), place) if "label" in found else None
        return Record(found["text"], found.get("other"), label, place)

    return parse, n_header


def _empty(settings: DataSettings, place: str) -> Record:
    return Record("", "" if settings.other_field else None, None, place)


ROLES = {"text": "the text", "other": "the second text", "label": "the label"}


def _said(path: str, unit: str, names: Sequence[str], taken: Mapping[str, str]) -> str:
    """What is taken for what: `column 1 is the text; column 2 is not read`."""
    parts = [f"{unit} {name} is {ROLES[key]}" for key, name in taken.items()]
    left = [name for name in names if name not in taken.values()]
    if left:
        some = f"{unit}s {', '.join(left[:5])}{' …' * (len(left) > 5)} are"
        parts.append((some if len(left) > 1 else f"{unit} {left[0]} is") + " not read")
    return f"{shown(path)}: {'; '.join(parts)}"


def _wanted(settings: DataSettings, labels: bool) -> dict[str, str]:
    wanted = {"text": settings.text_field}
    if settings.other_field:
        wanted["other"] = settings.other_field
    if labels:
        wanted["label"] = settings.label_field
    return wanted


def _no_column(path: str, header: list[str], settings: DataSettings, labels: bool) -> NoReturn:
    wanted = _wanted(settings, labels)
    if len(header) == 1 < len(wanted):
        raise DataError(
            f"{shown(path)}, line 1 has one column, but {len(wanted)} are needed "
            f"({', '.join(wanted)}), with a tab between them, or lines of JSON: {header[0][:60]!r}."
        )
    missing = [name for name in wanted.values() if name not in header]
    there = ", ".join(repr(name[:30]) for name in header[:20])
    numbers = " ".join(f"data.{key}_field={i}" for i, key in enumerate(wanted, 1))
    raise DataError(
        f"{shown(path)}: its first line names no column {' or '.join(map(repr, missing))}; it has "
        f"{len(header)} column{'s' * (len(header) > 1)}: {there}. Name them with "
        f"data.text_field=… and so on, or give numbers counted from 1, such as {numbers}"
    )


def _name(path: str) -> str:
    return Path(shown(path)).name
