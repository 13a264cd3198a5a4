"""Check and convert the values of each kind of column."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headway.data.bind import ColumnType, to_python
from headway.data.readers.jsonl import check_unicode, value_text
from headway.data.table import is_missing, shown_value
from headway.errors import DataError, one_line


def _text(value: object, name: str, where: str) -> str:
    if isinstance(value, str):
        return check_unicode(value, name, where)
    if is_missing(value):
        return ""
    raise DataError(f"{where}: field {name!r} must be text, not {_json(value)}.")


def _json(value: object) -> str:
    try:
        return json.dumps(value)[:40]
    except (TypeError, ValueError):
        return shown_value(value)


def _label(value: object, name: str, where: str) -> str:
    if is_missing(value):
        return ""
    if isinstance(value, list) and len(value) > 1:
        said = ", ".join(map(str, value))[:60]
        raise DataError(f"{where} has {len(value)} labels ({said}), but exactly one is needed.")
    return one_line(value_text(to_python(value), name, where).strip(" \t"), where).strip()


def labels_of(value: object, name: str, where: str, separator: str) -> list[str]:
    """Return the distinct labels, in order, of a list or of a cell with a separator."""
    value = to_python(value)
    if is_missing(value):
        return []
    parts = value if isinstance(value, list) else value_text(value, name, where).split(separator)
    found = (one_line(value_text(to_python(part), name, where), where).strip() for part in parts)
    return list(dict.fromkeys(filter(None, found)))


def number_of(value: object, name: str, where: str) -> str:
    """Return the value as the text of a finite number."""
    text = value_text(to_python(value), name, where).strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise DataError(
            f"{where}: {name}={text[:40]!r} is not a number, but classify.answer=number needs one."
        )
    return repr(number)


def _field(value: object, name: str, where: str) -> str:
    text = value_text(to_python(value), name, where)
    return text if text.strip() else ""


def _words(value: object, name: str, where: str) -> list[str]:
    found = _list(value, name, where)
    if not all(isinstance(word, str) for word in found):
        raise DataError(f"{where}: {name} must be a list of strings, not {str(found)[:40]}.")
    return [check_unicode(str(word), name, where) for word in found]


def _tags(value: object, name: str, where: str) -> list[str]:
    return [one_line(value_text(to_python(tag), name, where), where)
            for tag in _list(value, name, where)]  # fmt: skip


def _list(value: object, name: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{where}: {name!r} must be a list, not {shown_value(value)}.")
    return value


def check_words(words: Sequence[str], tags: Sequence[str], where: str) -> None:
    if len(words) != len(tags):
        raise DataError(
            f"{where} has {len(words)} words but {len(tags)} tags. Give one tag per word."
        )
    if not all(map(str.strip, words)) or not all(tags):
        raise DataError(f"{where} has an empty word or tag.")


VALUES: dict[ColumnType, Callable[[object, str, str], str | list[str]]] = {
    "text": _text,
    "label": _label,
    "labels": partial(labels_of, separator=","),
    "number": number_of,
    "field": _field,
    "words": _words,
    "tags": _tags,
}
"""The converter of each kind, called with the value, the name of its column and its place."""
