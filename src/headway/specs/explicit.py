"""Settings objects that remember which values were passed explicitly, even default values."""

from __future__ import annotations

from dataclasses import fields
from typing import Self


class TracksExplicit:
    """Base class of the setting sections of a run. Records the names of explicit arguments."""

    _said: frozenset[str]

    def __new__(cls, *_: object, **said: object) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_said", frozenset(said))
        return made


def explicit_fields(settings: object) -> frozenset[str]:
    """Names passed explicitly, as in `TrainSettings(optimizer="adam")`.

    Empty if all names were passed, which is what `replace` and files do."""
    names: frozenset[str] = getattr(settings, "_said", frozenset())
    everything = len(fields(settings))  # type: ignore[arg-type]
    return frozenset() if len(names) == everything else names
