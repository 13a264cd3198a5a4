"""Settings that the user set explicitly, as dotted keys, each with its origin.

Recipes, the `config.toml` of a run, `key=value` arguments, command-line options and Python calls
are all converted to `Overrides`. Other settings are chosen automatically; explicit values are never
changed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, time
from enum import Enum, auto
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.errors import ConfigError, Edge, Option, edge
from headway.settings.renamed import check_together, current, current_value, report
from headway.settings.toml import comments_of, lines_of, parse, read_text
from headway.specs.values import explicit_fields


class OriginKind(Enum):
    """Ways in which a setting can be given."""

    UNKNOWN = auto()
    FILE = auto()
    """A recipe or another settings file."""

    POSITIONAL = auto()
    """The task or the data, given as positional arguments of a command or a Python call."""

    OPTION = auto()
    """A command-line option with the same meaning as the setting, such as `--max-len`."""

    IMPLIED = auto()
    """Implied by another command-line option, which is the text of the origin."""

    CHOSEN = auto()
    """Chosen automatically to fit the data."""

    SETTING = auto()
    """A `key=value` argument of the command line."""

    PYTHON = auto()
    """An argument of a Python call."""

    RECORDED = auto()
    """The `config.toml` of a run. The text of the origin is the comment recorded there."""


@dataclass(frozen=True)
class Origin:
    """Origin of a setting: the way in which it was given, and a text that names it in errors."""

    kind: OriginKind = OriginKind.UNKNOWN
    text: str = ""
    """Description of the origin for error messages, such as `recipe.toml, line 4`, `--source`,
    `train.lr=1e-3` or `train(settings=…)`."""

    @classmethod
    def argument(cls, name: str) -> Origin:
        """Return the origin of a setting that is given by a command-line option or a Python keyword
        argument."""
        if edge() is Edge.COMMAND_LINE:
            return cls(OriginKind.OPTION, f"{Option(name)}")
        return cls(OriginKind.PYTHON, f"train({name}=…)")

    @classmethod
    def implied(cls, option: Option) -> Origin:
        """Return the origin of a setting that is implied by a command-line option or a Python
        keyword argument."""
        text = f"{option}" if edge() is Edge.COMMAND_LINE else f"train({option.name}=…)"
        return cls(OriginKind.IMPLIED, text)

    @classmethod
    def positional(cls, words: str, call: str) -> Origin:
        """Return the origin of the task or the data: the first words of the command line, or the
        Python call."""
        return cls(OriginKind.POSITIONAL, words if edge() is Edge.COMMAND_LINE else call)

    def at(self, key: str) -> Origin:
        """Return the origin of one setting among those that share this origin."""
        return self


UNKNOWN = Origin()
FROM_PYTHON = Origin(OriginKind.PYTHON, "train(settings=…)")


@dataclass(frozen=True)
class SettingsFile:
    """A settings file. Line numbers are computed only when needed, because the file is parsed once
    per line for them."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def _lines(self) -> Mapping[str, int]:
        return lines_of(self.text)

    def at(self, key: str) -> Origin:
        line = self._lines.get(key)
        return Origin(OriginKind.FILE, f"{self.name}, line {line}" if line else self.name)


@dataclass(frozen=True)
class RunConfigText:
    """The `config.toml` of a run. Comments in it record the origin of each setting."""

    text: str = field(repr=False)

    @cached_property
    def _comments(self) -> Mapping[str, str]:
        return comments_of(self.text).get("asked", {})

    def at(self, key: str) -> Origin:
        return Origin(OriginKind.RECORDED, self._comments.get(key, ""))


OriginOfAll = Origin | SettingsFile | RunConfigText
"""Type of an origin that several settings can share."""


@dataclass(frozen=True)
class Override:
    value: Any
    origin: OriginOfAll = UNKNOWN


class Overrides(Mapping[str, Any]):
    """Settings by dotted key, such as `asked["train.lr"]`, each with its origin.

    Immutable: `one | other` returns a new object in which the values of `other` have priority.
    """

    __slots__ = ("_leaves",)

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        origin: OriginOfAll = UNKNOWN,
    ) -> None:
        """Create settings that share one origin. `values` may use dotted keys, nested tables, or
        both."""
        found = flatten(values or {})
        check_together(found)
        place = origin.text if isinstance(origin, Origin) else ""
        renamed = {current(key): value for key, value in found.items()}
        report(found, renamed, place or "settings")
        self._leaves = {
            key: Override(current_value(key, value), origin) for key, value in renamed.items()
        }

    @classmethod
    def from_file(cls, path: Path) -> Overrides:
        text = read_text(path)
        return cls(parse(text, path), SettingsFile(path.name, text))

    @classmethod
    def from_arguments(cls, words: Iterable[str]) -> Overrides:
        """Return the settings in `key=value` arguments. The argument is the origin of its
        setting."""
        found, words = cls(), list(words)
        check_together(word.partition("=")[0].strip() for word in words)
        for word in words:
            path, value = parse_override(word)
            found |= cls({".".join(path): value}, Origin(OriginKind.SETTING, word))
        return found

    @classmethod
    def from_flags(
        cls, values: Mapping[str, Any], flags: Mapping[str, str] | None = None
    ) -> Overrides:
        """Return the settings given by command-line options. An option is named after its setting
        (`data.valid_text` is `--valid-text`), unless `flags` gives another name."""
        found = cls()
        for key, value in values.items():
            usual = "--" + key.rpartition(".")[2].replace("_", "-")
            found |= cls({key: value}, Origin(OriginKind.OPTION, (flags or {}).get(key, usual)))
        return found

    @classmethod
    def from_settings(cls, settings: object, section: str) -> Overrides:
        """Return the settings that were passed explicitly to a settings class in Python, or differ
        from their default."""
        return cls(_set_leaves(settings, f"{section}."), FROM_PYTHON)

    def origin(self, key: str) -> Origin:
        """Return the origin of a setting; `UNKNOWN` if it was not given."""
        return self._leaves[key].origin.at(key) if key in self._leaves else UNKNOWN

    def section(self, section: str) -> dict[str, Any]:
        """Return the settings of one section by their names without the section."""
        start = f"{section}."
        return {k.removeprefix(start): v for k, v in self.items() if k.startswith(start)}

    def without(self, *keys: str) -> Overrides:
        """Return a copy without these keys and sections."""
        kept = Overrides()
        kept._leaves = {
            key: leaf
            for key, leaf in self._leaves.items()
            if not any(f"{key}.".startswith(f"{gone}.") for gone in keys)
        }
        return kept

    def only(self, keys: Container[str]) -> Overrides:
        """Return a copy with only these keys."""
        kept = Overrides()
        kept._leaves = {key: leaf for key, leaf in self._leaves.items() if key in keys}
        return kept

    def with_names(self, keys: Iterable[str], name: Callable[[str], str]) -> Overrides:
        """Return a copy in which the function `name` shortens the paths under these keys, both in
        values and in recorded origins."""
        changed = Overrides()
        for key in self.keys() & set(keys):
            value, origin = self[key], self.origin(key)
            text = origin.text
            paths = [value] if isinstance(value, str) else value
            for path in sorted(paths, key=len, reverse=True):
                text = text.replace(path, name(path))
            names = name(value) if isinstance(value, str) else [name(path) for path in paths]
            changed |= Overrides({key: names}, Origin(origin.kind, text))
        return self | changed

    def __or__(self, other: Overrides) -> Overrides:
        both = Overrides()
        both._leaves = self._leaves | other._leaves
        return both

    def __getitem__(self, key: str) -> Any:
        return self._leaves[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __repr__(self) -> str:
        return f"Overrides({dict(self)})"


def as_typed(asked: Overrides, key: str) -> str:
    """Return a setting as the user typed it, such as `--n-best 9` or `--no-sample`. Settings from
    other origins are returned as `decode.n_best=9`."""
    value, origin = asked[key], asked.origin(key)
    if origin.kind in (OriginKind.SETTING, OriginKind.IMPLIED):
        return origin.text
    if origin.kind is not OriginKind.OPTION:
        return f"{key}={value}"
    if isinstance(value, bool):
        return origin.text if value else f"--no-{origin.text.removeprefix('--')}"
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{origin.text} {one}" for one in values)


def flatten(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Convert nested tables to a mapping by dotted key."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flatten(value, f"{where}{name}.")
        else:
            # TOML has no null, so the word "none" clears optional settings. It is also a valid
            # choice of some settings.
            word = "none" if value is None else value
            found[f"{where}{name}"] = list(word) if isinstance(word, tuple) else word
    return found


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a mapping by dotted key to nested tables. This is the inverse of `flatten`."""
    table: dict[str, Any] = {}
    for key, value in leaves.items():
        *sections, name = key.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return table


def _set_leaves(settings: Any, where: str) -> dict[str, Any]:
    """Return the settings that were passed to their class or differ from their defaults, by dotted
    key."""
    usual, said = type(settings)(), explicit_fields(settings)
    found: dict[str, Any] = {}
    for one in fields(settings):
        key, value = f"{where}{one.name}", getattr(settings, one.name)
        if is_dataclass(value):
            found |= _set_leaves(value, f"{key}.")
        elif one.name in said or value != getattr(usual, one.name):
            found[key] = value
    return found


def parse_override(word: str) -> tuple[list[str], Any]:
    """Parse an argument such as `model.n_layers=4` into a path and a value. Values are in TOML
    syntax, but text needs no quotes."""
    key, separator, text = word.partition("=")
    path = [name.strip() for name in key.split(".")]
    if not separator or not all(path):
        raise ConfigError(
            f"{word!r} is not a setting of the form key=value. Example: model.n_layers=4"
        )
    return _current(path, _parse_value(text.strip(), word), word)


def _current(path: list[str], value: Any, word: str) -> tuple[list[str], Any]:
    """Return the current name and value of the setting in an argument. The use of an earlier name
    is reported."""
    old = ".".join(path)
    key = current(old)
    report([old], {key: value}, word)
    return key.split("."), current_value(key, value)


def _parse_value(text: str, word: str) -> Any:
    if text == "none":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    value = parsed.get("value", text)
    if parsed.keys() == {"value"} and not isinstance(value, date | time):
        return value
    inside = text[1:-1]
    if text.startswith("[") and text.endswith("]") and not set(inside) & set("[]{}\"'"):
        # Shells remove quotes, so the words of a list may arrive unquoted.
        return [_parse_value(item.strip(), word) for item in inside.split(",")]
    if text.startswith(("[", "{", '"', "'")):
        raise ConfigError(
            f"{word!r}: {text} is not a valid TOML value. Check the closing quote or bracket."
        )
    return text


def apply_override(values: dict[str, Any], word: str) -> str:
    """Set the value of a `key=value` argument in the nested tables, and return its dotted key."""
    (*sections, name), value = parse_override(word)
    table = values
    for depth, section in enumerate(sections, 1):
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"{word!r}: {'.'.join(sections[:depth])!r} is a single setting, not a section."
            )
    table[name] = value
    return ".".join((*sections, name))
