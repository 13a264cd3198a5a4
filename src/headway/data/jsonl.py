"""Lines of JSON: whether a file has them, and what stands in their fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.errors import DataError


def is_json(path: str, first: str, *fields: str) -> bool:
    """By its name, or because its first line looks like it; and has one of the fields, if any are
    given."""
    names = set(Path(path).suffixes)
    if names & {".jsonl", ".ndjson", ".json"}:
        return True
    if names & {".tsv", ".csv"} or not first.lstrip().startswith("{") or "\t" in first:
        return False
    if not fields:
        return True
    try:
        values = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and any(name.split(".")[0] in values for name in fields)


def parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.lstrip().startswith("[") and where.endswith((", line 1", ":1")):
            raise _array(where) from error
        raise DataError(f"{where} is not a line of JSON: {error}.") from error


def parse_object(line: str, where: str) -> dict[str, Any]:
    values = parse_line(line, where)
    if isinstance(values, list) and any(isinstance(value, dict) for value in values):
        raise _array(where)
    if not isinstance(values, dict):
        raise DataError(
            f"{where} is {_kind(values)}, not an object with fields "
            f'({{"text": …}}): {line.strip()[:40]!r}.'
        )
    return values


def _array(where: str) -> DataError:
    return DataError(
        f"{where} begins a JSON array; what is read has an object on each line "
        '({"text": …}). Make lines of it: '
        "python -c 'import json, sys; [print(json.dumps(x)) for x in json.load(sys.stdin)]' "
        "< FILE.json > FILE.jsonl"
    )


def text_of(values: Any, name: str, where: str, setting: str) -> str:
    """Text in a field; `translation.de` is the field `de` inside `translation`."""
    found = values
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            there = ", ".join(map(repr, found)) if isinstance(found, dict) else "no fields"
            raise DataError(
                f"{where} has no field {name!r}, only {there}. Name it with data.{setting}=…"
            )
        found = found[part]
    if not isinstance(found, str):
        raise DataError(f"{where}: field {name!r} is {json.dumps(found)[:40]}, not text.")
    return sound(found, name, where)


def value_text(value: Any, name: str, where: str) -> str:
    """A label or a short field as text: numbers and truth values as JSON writes them, lists of
    texts with commas between; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, str):
        return sound(value, name, where)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sound(", ".join(value), name, where)
    raise DataError(f"{where}: field {name!r} is {json.dumps(value)[:40]}, not text.")


def sound(text: str, name: str, where: str) -> str:
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise DataError(f"{where}: field {name!r} holds half of a surrogate pair.")
    return text


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
