"""Strict loading of settings from defaults, then a TOML file, then `key=value` arguments.

Unknown names, wrong types and impossible combinations raise errors before anything slow is done.
The errors give the file and line, or the key, and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from headway.errors import ConfigError, suggest
from headway.settings.body import BodyKind, with_body
from headway.settings.model import (
    FAMILY_SETTINGS,
    ImageEncoderSettings,
    ModelSettings,
    family_of,
)
from headway.settings.synonyms import setting_here
from headway.settings.toml import line_of, toml_value
from headway.specs.values import describe, fit, nearest, setting_types

SettingsT = TypeVar("SettingsT")


@dataclass(frozen=True)
class Place:
    """Prefix of an error that gives the origin of a value, such as `recipe.toml, line 4: `."""

    text: str = ""
    is_typed: bool = False
    """Whether the text is the argument that the user typed, so that the error need not repeat the
    key."""

    def __str__(self) -> str:
        return self.text


Locate = Callable[[str], Place]
"""Type of a function from a dotted key to the place where its value was set."""


def no_location(key: str) -> Place:
    """Return an empty place for values that come from no file, because errors name the key
    anyway."""
    return Place()


def model_settings(
    values: object, where: str = "model.", locate: Locate = no_location
) -> ModelSettings:
    """Return model settings from a `preset`, a `family`, or both if they agree, with the given
    changes."""
    rest = dict(_table(values, where, locate, "preset, family, and those of the family"))
    named = {
        name: _checked(rest.pop(name, None), str | None, where + name, locate)
        for name in ("preset", "family")
    }
    start = _start(named["preset"], named["family"], where, locate)
    body = rest.get("body", start.body)
    single_head = rest.get("single_head", "every")
    if body in get_args(BodyKind) and (body != start.body or single_head in ("none", None)):
        # In models other than the Transformer, the class token would not see all other tokens, so
        # classes are predicted from the mean of the tokens.
        start = with_body(_without_class_token(start), body, single_head)
    family = family_of(start)
    for name in rest:
        owners = [owner for owner, kind in FAMILY_SETTINGS.items() if name in setting_types(kind)]
        if owners and family not in owners:
            raise ConfigError(
                f"{locate(where + name)}{where + name!r} applies only to the "
                f"{' and '.join(owners)} {'family' if len(owners) == 1 else 'families'}, but this "
                f"model belongs to the {family} family. Remove {where + name}."
            )
    return from_dict(type(start), rest, where, locate, base=start)


def _without_class_token(settings: ModelSettings) -> ModelSettings:
    if not isinstance(settings, ImageEncoderSettings) or not settings.image.class_token:
        return settings
    image = replace(settings.image, class_token=False, distil_token=False)
    return replace(settings, image=image, pooling="mean")


def from_dict(
    cls: type[SettingsT],
    values: object,
    where: str = "",
    locate: Locate = no_location,
    base: SettingsT | None = None,
) -> SettingsT:
    """Return an object of a settings class from a table. Unknown names are errors.

    Settings that `values` lacks come from `base`, or else from the defaults of the class. `where`
    is the dotted section including its last dot, for error messages.
    """
    base = cls() if base is None else base
    hints = setting_types(cls)
    changes: dict[str, Any] = {}
    for name, value in _table(values, where, locate, ", ".join(hints)).items():
        key = where + name
        if name not in hints:
            here = setting_here(name)
            near = f" In headway it is {here}." if here else suggest(name, hints)
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
        inside = "" if place.is_typed else f"in [{section}]: "
        raise ConfigError(f"{place}{inside}{error}") from error


def in_file(
    path: Path, text: str, words: Mapping[str, str], options: Container[str] = (), *,
    whole: bool = False,
) -> Locate:  # fmt: skip
    """Return a function from a key to the place where its value was set, for error messages.

    `words`: arguments by the keys that they set; their values are not in the file. `options`: keys
    of `words` that were set by a command-line option. Errors name the option, because it is not
    spelled like the key. `whole`: the file is valid by itself, so an error inside one of its
    sections is attributed to the arguments alone.
    """

    def locate(key: str) -> Place:
        said = next((name for name in words if f"{key}.".startswith(f"{name}.")), None)
        if said is not None:
            return Place(f"{words[said]}: ", is_typed=True) if said in options else Place()
        line = line_of(text, key) if key else None
        place = f"{path}, line {line}" if line else f"{path}"
        inside = " ".join({w: None for name, w in words.items() if name.startswith(f"{key}.")})
        if inside and whole:
            return Place(f"{inside}: ", is_typed=True)
        return Place(f"{place}{', with ' if inside else ''}{inside}: ")

    return locate


def _start(
    preset_name: str | None, family: str | None, where: str, locate: Locate
) -> ModelSettings:
    """Return the settings to start from: those of the preset, or the defaults of the family."""
    if family is not None and family not in FAMILY_SETTINGS:
        raise ConfigError(
            f"{locate(where + 'family')}unknown family {family!r}."
            f"{suggest(family, FAMILY_SETTINGS)}"
        )
    if preset_name is None and family is None:
        raise ConfigError(
            f"{locate(where.rstrip('.'))}no model is given. Set {where}preset (for example "
            f"{where}preset=gpt2) or {where}family ({', '.join(FAMILY_SETTINGS)}). "
            "`headway presets` lists all presets."
        )
    if preset_name is None:
        return FAMILY_SETTINGS[str(family)]()
    try:
        from headway.settings.presets import preset  # imported late: it builds some thirty models

        start = preset(preset_name)
    except ConfigError as error:
        raise ConfigError(f"{locate(where + 'preset')}{error}") from error
    if family not in (None, family_of(start)):
        raise ConfigError(
            f"{locate(where + 'family')}{where}preset={preset_name} belongs to the "
            f"{family_of(start)} family, not to {where}family={family}. Remove one of them."
        )
    return start


def _table(values: object, where: str, locate: Locate, holds: str) -> dict[str, Any]:
    if isinstance(values, dict):
        return values
    section = where.rstrip(".")
    raise ConfigError(
        f"{locate(section)}{section} = {toml_value(values)}, but {section} must be a section with "
        f"these settings: {holds}."
    )


def _checked(value: Any, hint: Any, key: str, locate: Locate) -> Any:
    try:
        return fit(value, hint)
    except ValueError as error:
        raise ConfigError(
            f"{locate(key)}{key} = {toml_value(value)}, but it must be {describe(hint)}."
            f"{nearest(value, hint)}"
        ) from error
