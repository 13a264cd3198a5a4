"""Checks of devices, precisions and ensembles, before any weights are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from headway.errors import ConfigError, UserError, suggest
from headway.settings.model import ImageSettings
from headway.settings.run import RunSettings, media_settings
from headway.settings.task_rows import spec_of

PRECISIONS = ("fp32", "bf16", "int8")

DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
"""Pattern of the supported device names."""


def check_device_and_precision(device: str, precision: str) -> None:
    """Raise an error for unknown names of devices and precisions. Support by this machine is not
    checked."""
    if not isinstance(device, str) or not DEVICES.fullmatch(device):
        raise UserError(
            f"unknown device {device!r}. Use auto, cpu, cuda or cuda:N (for example cuda:1)."
        )
    if precision not in ("auto", *PRECISIONS):
        near = suggest(str(precision), PRECISIONS)
        raise UserError(f"unknown precision {precision!r}.{near}")


def check_ensemble(folders: Sequence[Path], runs: Sequence[RunSettings]) -> None:
    """Raise an error if the members of an ensemble differ in task, labels or input format."""
    for folder, other in zip(folders[1:], runs[1:], strict=True):
        _check_pair(folders[0], runs[0], folder, other)


def _check_pair(first: Path, run: RunSettings, folder: Path, other: RunSettings) -> None:
    if other.task != run.task:
        raise UserError(
            f"{folder} is for the task {other.task}, but {first} is for the task {run.task}. "
            "All models of an ensemble need the same task."
        )
    if other.labels != run.labels:
        raise ConfigError(
            f"{folder} and {first} have different labels. All models of an ensemble need the same "
            "labels in the same order."
        )
    if spec_of(run).is_tagging and _reads_shapes(other) != _reads_shapes(run):
        raise ConfigError(
            f"{folder} and {first} need different inputs: only one of them uses word shapes "
            "(model.n_segments). All models of an ensemble need the same input format."
        )
    if _form(other) != _form(run):
        raise ConfigError(
            f"{folder} and {first} need different inputs. All models of an ensemble need the same "
            "image size and number of frames, or the same audio sampling rate."
        )


def _reads_shapes(settings: RunSettings) -> bool:
    return bool(getattr(settings.model, "reads_shapes", False))


def _form(settings: RunSettings) -> tuple[int, ...]:
    """Return the input format that the members of an ensemble must share: the dimensions of images,
    or the sampling rate of audio. Empty for text."""
    shape = media_settings(settings)
    if isinstance(shape, ImageSettings):
        return (shape.frames, shape.channels, shape.height, shape.width)
    return () if shape is None else (shape.rate,)
