"""Read settings from TOML, with line numbers for errors, and write settings as TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.settings.model import ModelSettings, family_of
from headway.settings.renamed import current, rename


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # some editors write a byte order mark
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}.") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not valid UTF-8. "
            "Save the file as UTF-8."
        ) from error


def parse(text: str, path: Path) -> dict[str, Any]:
    """Parse a TOML file and return its tables, with earlier names of settings replaced by current
    ones."""
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{path} nests lists or tables too deeply to be read.") from error
    except (
        ValueError
    ) as error:  # numbers with too many digits raise ValueError, not TOMLDecodeError
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    return rename(values, str(path))


def line_of(text: str, key: str) -> int | None:
    """Return the line number on which a dotted key is set, in valid TOML."""
    return lines_of(text).get(key)


def lines_of(text: str) -> dict[str, int]:
    """Return the line number of each dotted key and section, by its current name, in valid TOML.

    The line is that of the first statement after which the TOML parser knows the key. Quoting,
    dotted names and inline tables therefore need no second parser. The time is quadratic in the
    length of the file, but the function runs only to report an error or to write a run.
    """
    lines = text.split("\n")
    start = 1
    found: dict[str, int] = {}
    for end in range(1, len(lines) + 1):
        try:
            values = tomllib.loads("\n".join(lines[:end]) + "\n")
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a statement of several lines
        for key in _keys(values, ""):
            found.setdefault(current(key), start)
        start = end + 1
    return found


def _keys(values: dict[str, Any], where: str) -> Iterator[str]:
    for name, value in values.items():
        yield f"{where}{name}"
        if isinstance(value, dict):
            yield from _keys(value, f"{where}{name}.")


def comments_of(text: str) -> dict[str, dict[str, str]]:
    """Return the comments after values, by section and key. The text must have been written by
    headway, with one value per line."""
    found: dict[str, dict[str, str]] = {}
    section = ""
    for line in text.split("\n"):
        if line.startswith("["):
            section = current(line.strip("[]"))
        first, *rest = line.split(COMMENT)
        for n, word in enumerate(rest):
            with suppress(tomllib.TOMLDecodeError):  # then the separator is part of the value
                for name in tomllib.loads(COMMENT.join([first, *rest[:n]])):
                    place, name = _current_name(section, name)
                    found.setdefault(place, {})[name] = COMMENT.join([word, *rest[n + 1 :]])
                break
    return found


def _current_name(section: str, name: str) -> tuple[str, str]:
    """Return the current names of a section and a setting. Keys in the section `[asked]` already
    contain their own section."""
    if section == "asked":
        return section, current(name)
    section, _, name = current(f"{section}.{name}").rpartition(".")
    return section, name


COMMENT = "  # "


def add_comment(statement: str, comment: str) -> str:
    """Return a TOML statement followed by a comment, on one line."""
    shown = "".join(sign if sign.isprintable() else " " for sign in comment)
    return f"{statement}{COMMENT}{shown}" if comment else statement


Comment = Callable[[str], str]
"""Type of a function from a dotted key to its comment, which may be empty."""


def no_comment(key: str) -> str:
    return ""


def to_toml(settings: ModelSettings, comment: Comment = no_comment) -> str:
    """Return model settings as a complete `[model]` section in TOML. Loading it gives equal
    settings."""
    return section_toml("model", settings, comment, family=family_of(settings))


def section_toml(name: str, settings: Any, comment: Comment = no_comment, **first: str) -> str:
    """Return a section of settings as TOML: its values, then one table for each nested group.

    TOML has no null, so a key whose value is None is left out. None may therefore only be a
    default. Counts that are unknown, because other software trained the weights, are left out too.
    """
    lines, tables = [f"[{name}]"], []

    def say(key: str, value: object) -> None:
        lines.append(add_comment(f"{key} = {toml_value(value)}", comment(f"{name}.{key}")))

    for key, text in first.items():
        say(key, text)
    unset = getattr(settings, "unset", ())
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            table = section_toml(f"{name}.{field.name}", value, comment)
            if "=" in table:  # skip empty tables
                tables.append("\n" + table)
        elif value is not None and field.name not in unset:
            say(field.name, value)
    return "\n".join(lines) + "\n" + "".join(tables)


def toml_value(value: Any) -> str:
    """Return a value in TOML syntax; None becomes the word `none`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON strings are valid TOML except for one control character that JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    return str(value)
