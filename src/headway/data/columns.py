"""What a value of each kind of column is: checked, and as Python has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from headway.data.bind import Kind, plain
from headway.data.readers.jsonl import sound, value_text
from headway.data.table import is_missing, shown_value
from headway.errors import DataError, one_line


def _text(value: object, name: str, where: str) -> str:
    if isinstance(value, str):
        return sound(value, name, where)
    if is_missing(value):
        return ""
    raise DataError(f"{where}: field {name!r} is {_json(value)}, not text.")


def _json(value: object) -> str:
    try:
        return json.dumps(value)[:40]
    except (TypeError, ValueError):
        return shown_value(value)


def _label(value: object, name: str, where: str) -> str:
    if isinstance(value, list) and len(value) > 1:
        said = ", ".join(map(str, value))[:60]
        raise DataError(f"{where} has {len(value)} labels ({said}). Here one is needed.")
    return one_line(value_text(plain(value), name, where), where).strip()


def _field(value: object, name: str, where: str) -> str:
    text = value_text(plain(value), name, where)
    return text if text.strip() else ""


def _words(value: object, name: str, where: str) -> list[str]:
    found = _list(value, name, where)
    if not all(isinstance(word, str) for word in found):
        raise DataError(f"{where}: {name} must be texts: {str(found)[:40]}.")
    return [sound(str(word), name, where) for word in found]


def _tags(value: object, name: str, where: str) -> list[str]:
    return [one_line(value_text(plain(tag), name, where), where)
            for tag in _list(value, name, where)]  # fmt: skip


def _list(value: object, name: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{where} needs a list {name!r}; it is {shown_value(value)}.")
    return value


def check_words(words: Sequence[str], tags: Sequence[str], where: str) -> None:
    if len(words) != len(tags):
        raise DataError(f"{where} has {len(words)} words but {len(tags)} tags.")
    if not all(map(str.strip, words)) or not all(tags):
        raise DataError(f"{where} has an empty word or tag.")


VALUES: dict[Kind, Callable[[object, str, str], str | list[str]]] = {
    "text": _text,
    "label": _label,
    "field": _field,
    "words": _words,
    "tags": _tags,
}
"""Each is given the value, the name of its column, and where it stands."""
