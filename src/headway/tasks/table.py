"""From a row of the table of tasks to the class that does it."""

from __future__ import annotations

from importlib import import_module

from headway.config.run import RunSettings
from headway.tasks.kind import Kind
from headway.tasks.specs import spec_of


def kind_of(task: str | RunSettings) -> Kind:
    """Imported when it is needed: each brings parts that the others do without."""
    module, name = spec_of(task).objective.split(".")
    kind: Kind = getattr(import_module(f"headway.tasks.{module}"), name)()
    return kind
