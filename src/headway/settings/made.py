"""Settings that were made in Python remember what their maker said, also where it is the usual."""

from __future__ import annotations

from dataclasses import fields
from typing import Self


class Made:
    """The base of the sections of a run."""

    _said: frozenset[str]

    def __new__(cls, *_: object, **said: object) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_said", frozenset(said))
        return made


def said_of(settings: object) -> frozenset[str]:
    """Names that were given to the class, as `TrainSettings(optimizer="adam")`. What `replace` and
    files make is given all names, and says nothing by that."""
    names: frozenset[str] = getattr(settings, "_said", frozenset())
    everything = len(fields(settings))  # type: ignore[arg-type]
    return frozenset() if len(names) == everything else names
