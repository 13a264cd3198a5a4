"""Convert the `config.toml` of older versions to the current format.

Format 1 had no `format` key and no reasons, and omitted settings that were chosen automatically. A
run without `train.bucket_steps` sorts as many steps as it did then; one without `train.steps` was
trained by other software. Settings that later formats move or rename are converted here, so that
finished runs can be opened and unfinished ones resume with the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headway.errors import ConfigError
from headway.settings.load import Locate
from headway.settings.train import COUNTS, ResolvedTrain, TrainSettings
from headway.specs.tasks import ALIASES

FORMAT = 2


def upgrade(values: Mapping[str, object]) -> dict[str, Any]:
    """All tables of a settings file, converted to the newest format, without the format number."""
    values = dict(values)
    number = values.pop("format", 1)
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise ConfigError(
            f"format = {number} is not supported: this version of headway reads only formats 1 to "
            f"{FORMAT}. If a newer version wrote the file, update headway."
        )
    return values


def complete_train(train: TrainSettings, metric: str) -> ResolvedTrain:
    """Training settings of a stored run, completed where other software trained it.

    `metric`: the main metric of the task."""
    values = {one.name: getattr(train, one.name) for one in fields(TrainSettings)}
    values |= {name: 0 for name in COUNTS if values[name] is None}
    return ResolvedTrain(**{**values, "metric": values["metric"] or metric})


def rename(found: dict[str, object], locate: Locate) -> Locate:
    """Rename old sections and keys in place. Return a `Locate` that knows old and new names."""
    before: dict[str, str] = {}
    for name, alias in ALIASES.items():
        is_task = found.get("task") == name
        if not alias.old or not (is_task or name in found):
            continue
        section, now = found.pop(name, {}), found.get(alias.task, {})
        if not isinstance(section, dict) or not isinstance(now, dict):
            raise ConfigError(f"{locate(name)}{name!r} must be a section, not a single value.")
        found[alias.task] = {"modality": alias.modality, **now, **section}
        before |= {f"{alias.task}.{key}": f"{name}.{key}" for key in section}
        if is_task:
            found["task"] = alias.task
        if isinstance(asked := found.get("asked"), dict) and asked.get("task") == name:
            asked = {new_key(key): value for key, value in asked.items()}
            found["asked"] = {**asked, "task": alias.task, f"{alias.task}.modality": alias.modality}
    return lambda key: locate(before.get(key, key))


def new_key(key: str) -> str:
    """Current name of a setting."""
    section, dot, name = key.partition(".")
    alias = ALIASES.get(section)
    return f"{alias.task}.{name}" if dot and alias is not None and alias.old else key
