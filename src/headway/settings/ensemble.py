"""What can be said about runs before their weights are read: how they are held, and whether several
answer together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from headway.errors import ConfigError, UserError, suggest
from headway.settings.model import PictureSettings
from headway.settings.run import RunSettings, media_front
from headway.tasks.specs import spec_of

PRECISIONS = ("fp32", "bf16", "int8")

DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
"""What headway computes on, by name."""


def check_held(device: str, precision: str) -> None:
    """Refuse words that name no device or precision, whatever this machine has."""
    if not isinstance(device, str) or not DEVICES.fullmatch(device):
        raise UserError(f"unknown device {device!r}. Try cpu, cuda or cuda:1.")
    if precision not in ("auto", *PRECISIONS):
        near = suggest(str(precision), PRECISIONS)
        raise UserError(f"precision has no choice {precision!r}.{near}")


def check_together(folders: Sequence[Path], runs: Sequence[RunSettings]) -> None:
    """Refuse models whose answers are not to the same question."""
    for folder, other in zip(folders[1:], runs[1:], strict=True):
        _check_pair(folders[0], runs[0], folder, other)


def _check_pair(first: Path, run: RunSettings, folder: Path, other: RunSettings) -> None:
    if other.task != run.task:
        raise UserError(
            f"{folder} is a run of the task {other.task} and {first} of the task {run.task}: "
            "models answer together only if their task is the same."
        )
    if other.labels != run.labels:
        raise ConfigError(
            f"{folder} has other labels than {first}: models that answer together must have the "
            "same labels in the same order."
        )
    if spec_of(run).answers == "tags" and _reads_shapes(other) != _reads_shapes(run):
        raise ConfigError(
            f"{folder} and {first} read words otherwise: one of them with their shapes "
            "(model.n_segments), the other without. Models that answer together must read the same."
        )
    if _form(other) != _form(run):
        raise ConfigError(
            f"{folder} reads its input in another form than {first}: models that answer together "
            "must read pictures of one size and number of frames, or recordings of one rate."
        )


def _reads_shapes(settings: RunSettings) -> bool:
    return bool(getattr(settings.model, "reads_shapes", False))


def _form(settings: RunSettings) -> tuple[int, ...]:
    """What two runs must share to read the same pictures or recordings."""
    shape = media_front(settings)
    if isinstance(shape, PictureSettings):
        return (shape.frames, shape.channels, shape.height, shape.width)
    return () if shape is None else (shape.rate,)
