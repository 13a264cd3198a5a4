"""Types and checks of the values in settings classes, and records of explicitly set values."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from headway.errors import ConfigError, suggest

NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def setting_types(cls: Any) -> Mapping[str, Any]:
    """Return the types of the settings in a class, by name."""
    return _setting_types(cls)  # uncached wrapper: mypy does not consider every class hashable


@cache  # slow: it evaluates the text of every annotation
def _setting_types(cls: Any) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def fit(value: Any, hint: Any, quoted: bool = False) -> Any:
    """Convert a value to the type of its setting, or raise ValueError.

    Lists become tuples. 1 becomes 1.0, or "1" for text, because text on the command line has no
    quotes. `quoted`: text has quotes in this source, so a number is not converted to text. The word
    `none` clears an optional setting, also in files, because TOML has no null. For some settings,
    `none` is also the name of a choice.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        word = "none" if value is None else value
        if isinstance(word, str) and word in inner:
            return word
    elif origin in (Union, UnionType):
        if NoneType in inner and value in (None, "none"):
            return None
        return fit(value, without_none(hint), quoted)
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(fit(item, inner[0], quoted) for item in value)
    elif hint is float and type(value) in (int, float):
        if abs(value) <= sys.float_info.max:  # neither inf nor nan
            return float(value)
    elif hint is str and type(value) is int and not quoted:
        return str(value)
    elif type(value) is hint:  # not isinstance, because True is an int
        return value
    raise ValueError(f"{value!r} does not fit {hint}")


def describe(hint: Any) -> str:
    """Return a description of a type that completes "it must be" in errors."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(inner)}"
    if origin in (Union, UnionType):
        return f"{describe(without_none(hint))}, or none"
    if origin is tuple:
        return f"a list, each {describe(inner[0])}"
    return NAMES[hint]


def nearest(value: Any, hint: Any) -> str:
    """Return the choice that is closest to the first invalid value, as the end of an error; empty
    if there is none."""
    choices = _choices(hint)
    for word in value if isinstance(value, list) else [value]:
        if isinstance(word, str) and word not in choices:
            close = difflib.get_close_matches(word, choices, n=1)
            return f" Did you mean {close[0]!r}?" if close else ""
    return ""


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [choice for inner in get_args(hint) for choice in _choices(inner)]


def check_values(settings: Any) -> None:
    """Raise an error if a value does not have the type of its setting. Settings that were built in
    Python are checked, too."""
    for name, hint in setting_types(type(settings)).items():
        value = getattr(settings, name)
        if NoneType in get_args(hint):
            if value is None:
                continue
            hint = without_none(hint)
        several = get_origin(hint) is tuple
        choices = get_args(get_args(hint)[0] if several else hint)
        if (several and choices) or get_origin(hint) is Literal:
            for word in value if several else [value]:
                if word not in choices:
                    close = difflib.get_close_matches(str(word), choices)
                    near = suggest(str(word), choices) if close else ""
                    listed = ", ".join(choices)
                    raise ConfigError(f"{name} must be one of {listed}, not {word!r}.{near}")
        elif hint is int and type(value) is not int:
            raise ConfigError(f"{name}={value!r} must be a whole number.")
        elif hint is float and not isinstance(value, int | float):
            raise ConfigError(f"{name}={value!r} must be a number.")
        elif hint is float and not math.isfinite(value):
            raise ConfigError(f"{name}={value!r} must be a finite number.")


def check_least(settings: object, least: int, *names: str, of: str = "") -> None:
    """Raise an error if one of these settings is below `least`. None is allowed. `of`: prefix of
    the section."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            rest = f"at least {least}" if least else "0 or more"
            raise ConfigError(f"{of}{name}={_shown(value)} must be {rest}.")


def check_positive(settings: object, *names: str, of: str = "") -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise ConfigError(f"{of}{name}={_shown(value)} must be positive.")


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def without_none(hint: Any) -> Any:
    (only,) = (option for option in get_args(hint) if option is not NoneType)
    return only


class TracksExplicit:
    """Base class of the settings sections of a run. It records which arguments were passed
    explicitly."""

    _said: frozenset[str]

    def __new__(cls, *_: object, **said: object) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_said", frozenset(said))
        return made


def explicit_fields(settings: object) -> frozenset[str]:
    """Return the names of the settings that were passed explicitly, such as `optimizer` in
    `TrainSettings(optimizer="adam")`. The result is empty if all were passed, as `replace` and
    files do."""
    names: frozenset[str] = getattr(settings, "_said", frozenset())
    everything = len(fields(settings))  # type: ignore[arg-type]
    return frozenset() if len(names) == everything else names
