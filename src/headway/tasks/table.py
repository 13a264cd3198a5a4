"""From a row of the table of tasks to the class that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from importlib import import_module

from headway.settings.model import PictureSettings, SoundSettings
from headway.settings.run import RunSettings
from headway.tasks.kind import Kind
from headway.tasks.modality import row_of
from headway.tasks.specs import Spec


def kind_of(settings: RunSettings, front: PictureSettings | SoundSettings | None = None) -> Kind:
    """Imported when it is needed: each brings parts that the others do without. `front`: that data
    was prepared for, so that no file has to be looked at again."""
    return kind_of_row(row_of(settings, front))


def kind_of_row(row: Spec) -> Kind:
    module, _, name = row.objective.rpartition(".")
    path = module if "." in module else f"headway.tasks.{module}"
    made: Callable[..., Kind] = getattr(import_module(path), name)
    return made(row) if is_dataclass(made) else made()  # some have several rows
