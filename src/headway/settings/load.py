"""Strict loading: defaults, then a TOML file, then `key=value` words. There is no other way in.

An unknown name, a wrong type or an impossible combination stops here, before anything slow,
with a message that names the file and line, or the key, and the way out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from datetime import date, time
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import ConfigError, suggest
from headway.settings.body import UNREAD, with_body
from headway.settings.model import (
    FAMILY_SETTINGS,
    ModelSettings,
    PictureEncoderSettings,
    family_of,
)
from headway.settings.synonyms import setting_here
from headway.settings.toml import line_of, toml_value
from headway.settings.value_types import describe, fit, nearest, setting_types

Settings = TypeVar("Settings")

Locate = Callable[[str], str]
"""A dotted key to what goes before a message about it: "recipe.toml, line 4: ", or nothing."""


def nowhere(key: str) -> str:
    """For values that came from no file: the key alone says where."""
    return ""


def model_settings(
    values: object, where: str = "model.", locate: Locate = nowhere
) -> ModelSettings:
    """A model is named by `preset`, `family`, or both where they agree; the rest changes it."""
    rest = dict(_table(values, where, locate, "preset or family, and what differs from it"))
    named = {
        name: _checked(rest.pop(name, None), str | None, where + name, locate)
        for name in ("preset", "family")
    }
    start = _start(named["preset"], named["family"], where, locate)
    body = rest.get("body", start.body)
    single_head = rest.get("single_head", "every")
    if body in UNREAD and (body != start.body or single_head in ("none", None)):
        # Classes are read from the mean of rows then, and no row stands for all of a picture.
        start = with_body(_without_class_token(start), body, single_head)
    family = family_of(start)
    for name in rest:
        owners = [owner for owner, kind in FAMILY_SETTINGS.items() if name in setting_types(kind)]
        if owners and family not in owners:
            raise ConfigError(
                f"{locate(where + name)}{where + name!r} is a setting of the "
                f"{' and '.join(owners)} family; this model's family is {family}."
            )
    return from_dict(type(start), rest, where, locate, base=start)


def _without_class_token(settings: ModelSettings) -> ModelSettings:
    if not isinstance(settings, PictureEncoderSettings) or not settings.picture.class_token:
        return settings
    picture = replace(settings.picture, class_token=False, distil_token=False)
    return replace(settings, picture=picture, pooling="mean")


def from_dict(
    cls: type[Settings],
    values: object,
    where: str = "",
    locate: Locate = nowhere,
    base: Settings | None = None,
) -> Settings:
    """Build a settings class, refusing what it does not know.

    What `values` leaves out stays as in `base`, or else as the class has it by default.
    `where` is the dotted section with its last dot, for messages.
    """
    base = cls() if base is None else base
    hints = setting_types(cls)
    changes: dict[str, Any] = {}
    for name, value in _table(values, where, locate, ", ".join(hints)).items():
        key = where + name
        if name not in hints:
            here = setting_here(name)
            near = f" Here it is {here}." if here else suggest(name, hints)
            raise ConfigError(f"{locate(key)}unknown setting {key!r}.{near}")
        if is_dataclass(hints[name]):
            nested = getattr(base, name)
            changes[name] = from_dict(hints[name], value, f"{key}.", locate, base=nested)
        else:
            changes[name] = _checked(value, hints[name], key, locate)
    try:
        return replace(base, **changes)  # type: ignore[type-var]
    except ConfigError as error:
        section, place = where.rstrip("."), locate(where.rstrip("."))
        inside = "" if place.startswith(("--", where)) else f"in [{section}]: "
        raise ConfigError(f"{place}{inside}{error}") from error


def parse_override(word: str) -> tuple[list[str], Any]:
    """`model.n_layers=4` as a path and a value in TOML's syntax, in which text needs no quotes."""
    key, separator, text = word.partition("=")
    path = [name.strip() for name in key.split(".")]
    if not separator or not all(path):
        raise ConfigError(f"override {word!r} is not key=value. Example: model.n_layers=4")
    return path, _parse_value(text.strip(), word)


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
        # The shell eats quotes, so a list of words arrives bare.
        return [_parse_value(item.strip(), word) for item in inside.split(",")]
    if text.startswith(("[", "{", '"', "'")):
        raise ConfigError(f"override {word!r}: {text} is not a TOML value. Check the closing side.")
    return text


def apply_override(values: dict[str, Any], word: str) -> str:
    """Put the word's value into the nested tables. Returns its dotted key."""
    (*sections, name), value = parse_override(word)
    table = values
    for depth, section in enumerate(sections, 1):
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(
                f"override {word!r}: {'.'.join(sections[:depth])!r} is a value, not a section."
            )
    table[name] = value
    return ".".join((*sections, name))


def in_file(path: Path, text: str, words: dict[str, str], *, whole: bool = False) -> Locate:
    """Name the file and line of a key, unless a word on the command line set it. `whole`: the file
    is right by itself, so that words alone are to blame for what does not go with it."""

    def locate(key: str) -> str:
        said = next((w for name, w in words.items() if f"{key}.".startswith(f"{name}.")), None)
        if said is not None:
            return f"{said}: " if said.startswith("--") else ""
        line = line_of(text, key) if key else None
        place = f"{path}, line {line}" if line else f"{path}"
        inside = " ".join({w: None for name, w in words.items() if name.startswith(f"{key}.")})
        if inside and whole:
            return f"{inside}: "
        return f"{place}{', with ' if inside else ''}{inside}: "

    return locate


def _start(
    preset_name: str | None, family: str | None, where: str, locate: Locate
) -> ModelSettings:
    """The settings to change: a preset's, or a family's defaults."""
    if family is not None and family not in FAMILY_SETTINGS:
        raise ConfigError(
            f"{locate(where + 'family')}unknown family {family!r}."
            f"{suggest(family, FAMILY_SETTINGS)}"
        )
    if preset_name is None and family is None:
        raise ConfigError(
            f"{locate(where.rstrip('.'))}no model is named. Set {where}preset (for example "
            f"{where}preset=gpt2; `headway presets` lists them) or {where}family "
            f"({', '.join(FAMILY_SETTINGS)})."
        )
    if preset_name is None:
        return FAMILY_SETTINGS[str(family)]()
    try:
        from headway.settings.presets import preset  # some thirty models: many need none

        start = preset(preset_name)
    except ConfigError as error:
        raise ConfigError(f"{locate(where + 'preset')}{error}") from error
    if family not in (None, family_of(start)):
        raise ConfigError(
            f"{locate(where + 'family')}{where}preset={preset_name} is of the {family_of(start)} "
            f"family, but {where}family={family}. Leave one of them out."
        )
    return start


def _table(values: object, where: str, locate: Locate, holds: str) -> dict[str, Any]:
    if isinstance(values, dict):
        return values
    section = where.rstrip(".")
    raise ConfigError(
        f"{locate(section)}{section} = {toml_value(values)}, but it must be a section: {holds}."
    )


def _checked(value: Any, hint: Any, key: str, locate: Locate) -> Any:
    try:
        return fit(value, hint)
    except ValueError as error:
        raise ConfigError(
            f"{locate(key)}{key} = {toml_value(value)}, but it must be {describe(hint)}."
            f"{nearest(value, hint)}"
        ) from error
