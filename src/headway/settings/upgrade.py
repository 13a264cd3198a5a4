"""The `config.toml` of older versions, read as this one would have written it.

Format 1 had no `format`, no reasons, and left open what had been read as open: a run
without `train.pool` sorts as many steps as it did then, and one without `train.steps` was trained
elsewhere. Whatever a later format moves or renames is put in its place here, so that finished runs
open and unfinished ones go on with the same numbers for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headway.errors import ConfigError
from headway.settings.load import Locate
from headway.settings.train import COUNTS, ResolvedTrain, TrainSettings
from headway.tasks.specs import ALIASES

FORMAT = 2


def upgrade(values: Mapping[str, object]) -> dict[str, Any]:
    """All tables of a file, in the newest format and without its number."""
    values = dict(values)
    number = values.pop("format", 1)
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise ConfigError(
            f"format = {number}: this version of headway reads settings of the formats 1 to "
            f"{FORMAT}. A newer headway wrote these; use that one."
        )
    return values


def complete_train(train: TrainSettings, metric: str) -> ResolvedTrain:
    """How a run was trained that someone else may have trained; `metric` is the task's own."""
    values = {one.name: getattr(train, one.name) for one in fields(TrainSettings)}
    values |= {name: 0 for name in COUNTS if values[name] is None}
    return ResolvedTrain(**{**values, "metric": values["metric"] or metric})


def rename(found: dict[str, object], locate: Locate) -> Locate:
    """Bring settings to the words of today: older ones are read for ever. What says where settings
    are knows both."""
    before: dict[str, str] = {}
    for name, alias in ALIASES.items():
        is_task = found.get("task") == name
        if not alias.old or not (is_task or name in found):
            continue
        section, now = found.pop(name, {}), found.get(alias.task, {})
        if not isinstance(section, dict) or not isinstance(now, dict):
            raise ConfigError(f"{locate(name)}{name!r} is a section, not a value.")
        found[alias.task] = {"what": alias.what, **now, **section}
        before |= {f"{alias.task}.{key}": f"{name}.{key}" for key in section}
        if is_task:
            found["task"] = alias.task
        if isinstance(asked := found.get("asked"), dict) and asked.get("task") == name:
            asked = {new_key(key): value for key, value in asked.items()}
            found["asked"] = {**asked, "task": alias.task, f"{alias.task}.what": alias.what}
    return lambda key: locate(before.get(key, key))


def new_key(key: str) -> str:
    """What a setting is called today."""
    section, dot, name = key.partition(".")
    alias = ALIASES.get(section)
    return f"{alias.task}.{name}" if dot and alias is not None and alias.old else key
