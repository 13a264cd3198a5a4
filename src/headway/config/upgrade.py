"""The `config.toml` of older versions, read as this one would have written it.

Format 1 (until 0.12) had no `format`, no reasons, and left open what had been read as open: a run
without `train.pool` sorts as many steps as it did then, and one without `train.steps` was trained
elsewhere. Whatever a later format moves or renames is put in its place here, so that finished runs
open and unfinished ones go on with the same numbers for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headway.config.train import COUNTS, ResolvedTrain, TrainSettings
from headway.errors import ConfigError

FORMAT = 2


def upgraded(values: Mapping[str, object]) -> dict[str, Any]:
    """All tables of a file, in the newest format and without its number."""
    values = dict(values)
    number = values.pop("format", 1)
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise ConfigError(
            f"format = {number}: this version of headway reads settings of the formats 1 to "
            f"{FORMAT}. A newer headway wrote these; use that one."
        )
    return values


def completed(train: TrainSettings, metric: str) -> ResolvedTrain:
    """How a run was trained that someone else may have trained; `metric` is the task's own."""
    values = {one.name: getattr(train, one.name) for one in fields(TrainSettings)}
    values |= {name: 0 for name in COUNTS if values[name] is None}
    return ResolvedTrain(**{**values, "metric": values["metric"] or metric})
