"""What someone asked for: the leaves of the settings that were set, each with where it came from.

A recipe, a run's own `config.toml`, `key=value` words, options of the command line and Python all
become an `Asked`. What it does not hold is left to be chosen; what it holds is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.settings.load import parse_override
from headway.settings.made import said_of
from headway.settings.toml import comments_of, lines_of, parse, read_text
from headway.settings.upgrade import new_key

FROM_PYTHON = "train(settings=…)"


@dataclass(frozen=True)
class Lines:
    """A file of settings. Its lines are counted only when someone wants to know one: that parses
    the file once for each of them."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def _lines(self) -> Mapping[str, int]:
        return {new_key(key): line for key, line in lines_of(self.text).items()}

    def place(self, key: str) -> str:
        line = self._lines.get(key)
        return f"{self.name}, line {line}" if line else self.name


@dataclass(frozen=True)
class Noted:
    """A run's own `config.toml`, which says in comments where the command had its settings from."""

    text: str = field(repr=False)

    @cached_property
    def _comments(self) -> Mapping[str, str]:
        return comments_of(self.text).get("asked", {})

    def place(self, key: str) -> str:
        return self._comments.get(key, "")


@dataclass(frozen=True)
class Leaf:
    value: Any
    whence: str | Lines | Noted = ""


class Asked(Mapping[str, Any]):
    """Dotted keys with their values, `asked["train.lr"]`, and `asked.whence("train.lr")`.

    It does not change: `one | other` makes a new one, in which the leaves of the other hold.
    """

    __slots__ = ("_leaves",)

    def __init__(
        self, values: Mapping[str, Any] | None = None, whence: str | Lines | Noted = ""
    ) -> None:
        """`values`: by dotted keys, in nested tables, or both; the same place for all of them."""
        self._leaves = {key: Leaf(value, whence) for key, value in flat(values or {}).items()}

    @classmethod
    def from_file(cls, path: Path) -> Asked:
        text = read_text(path)
        return cls(parse(text, path), Lines(path.name, text))

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Asked:
        """`train.lr=1e-3`: the word itself says where it stood."""
        found = cls()
        for word in words:
            path, value = parse_override(word)
            found |= cls({".".join(path): value}, word)
        return found

    @classmethod
    def from_flags(cls, values: Mapping[str, Any], flags: Mapping[str, str] | None = None) -> Asked:
        """What options gave; each is named after its setting (`data.valid_text` is `--valid-text`)
        unless `flags` says otherwise."""
        found = cls()
        for key, value in values.items():
            usual = "--" + key.rpartition(".")[2].replace("_", "-")
            found |= cls({key: value}, (flags or {}).get(key, usual))
        return found

    @classmethod
    def from_settings(cls, settings: object, section: str, whence: str = FROM_PYTHON) -> Asked:
        """The leaves of a section, made in Python, that are not as they would be anyway."""
        return cls(_set_leaves(settings, f"{section}."), whence)

    def whence(self, key: str) -> str:
        """`recipe.toml, line 4`, `--source`, `train.lr=1e-3`, `train(settings=…)`; empty where
        nobody knows."""
        place = self._leaves[key].whence
        return place if isinstance(place, str) else place.place(key)

    def under(self, section: str) -> dict[str, Any]:
        """What was set in a section, by the names in it."""
        start = f"{section}."
        return {k.removeprefix(start): v for k, v in self.items() if k.startswith(start)}

    def without(self, *keys: str) -> Asked:
        """Less these leaves and sections."""
        kept = Asked()
        kept._leaves = {
            key: leaf
            for key, leaf in self._leaves.items()
            if not any(f"{key}.".startswith(f"{gone}.") for gone in keys)
        }
        return kept

    def only(self, keys: Container[str]) -> Asked:
        """The leaves with these keys."""
        kept = Asked()
        kept._leaves = {key: leaf for key, leaf in self._leaves.items() if key in keys}
        return kept

    def renamed(self, new: Callable[[str], str], **values: str) -> Asked:
        """With other names for its leaves, and these values for some that it has."""
        other = Asked()
        for key, leaf in self._leaves.items():
            other._leaves[new(key)] = Leaf(values.get(key, leaf.value), leaf.whence)
        return other

    def with_names(self, keys: Iterable[str], name: Callable[[str], str]) -> Asked:
        """With names in the place of the paths that these leaves hold, also where it is noted what
        was said."""
        changed = Asked()
        for key in self.keys() & set(keys):
            value, whence = self[key], self.whence(key)
            paths = [value] if isinstance(value, str) else value
            for path in sorted(paths, key=len, reverse=True):
                whence = whence.replace(path, name(path))
            names = name(value) if isinstance(value, str) else [name(path) for path in paths]
            changed |= Asked({key: names}, whence)
        return self | changed

    def __or__(self, other: Asked) -> Asked:
        both = Asked()
        both._leaves = self._leaves | other._leaves
        return both

    def __getitem__(self, key: str) -> Any:
        return self._leaves[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __repr__(self) -> str:
        return f"Asked({dict(self)})"


def said_as(asked: Asked, key: str) -> str:
    """The words that said it: `--n-best 9`, `--no-sample`, or else `decode.n_best=9`."""
    value, place = asked[key], asked.whence(key)
    if not place.startswith("--"):
        return f"{key}={value}"
    if " " in place:  # `--beam 4`, which means more than its own setting
        return place
    if isinstance(value, bool):
        return place if value else f"--no-{place[2:]}"
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{place} {one}" for one in values)


def flat(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{where}{name}.")
        else:
            # TOML has no null. The word serves as well: settings take it for both of its meanings.
            word = "none" if value is None else value
            found[f"{where}{name}"] = list(word) if isinstance(word, tuple) else word
    return found


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as tables: the way back from `flat`."""
    table: dict[str, Any] = {}
    for key, value in leaves.items():
        *sections, name = key.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return table


def _set_leaves(settings: Any, where: str) -> dict[str, Any]:
    """By dotted keys: what was given to the class, or differs from what it has by default."""
    usual, said = type(settings)(), said_of(settings)
    found: dict[str, Any] = {}
    for one in fields(settings):
        key, value = f"{where}{one.name}", getattr(settings, one.name)
        if is_dataclass(value):
            found |= _set_leaves(value, f"{key}.")
        elif one.name in said or value != getattr(usual, one.name):
            found[key] = value
    return found
