"""Find the row of the task table that fits the settings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.errors import ConfigError, suggest
from headway.specs.needs import Modality
from headway.specs.tasks import ALIASES, SPECS, Spec, spec_for_answer

if TYPE_CHECKING:
    from headway.settings.model import ModelSettings
    from headway.settings.run import RunSettings


def possible(settings: RunSettings) -> tuple[Spec, ...]:
    """Return the rows of the task table that fit the settings of a run.

    There is one row, unless the files have to be opened to detect whether they are images, video or
    audio.
    """
    rows = SPECS[settings.task].rows
    if len(rows) == 1:
        return rows
    if settings.row is not None:
        found: tuple[Spec, ...] = (settings.row,)
    else:
        said = _known_modalities(settings)
        found = tuple(row for row in rows if row.modality in said) or rows
    return tuple(spec_for_answer(row, settings.classify.answer) for row in found)


def _known_modalities(settings: RunSettings) -> set[str]:
    named = getattr(getattr(settings, settings.task), "modality", "auto")
    if named != "auto":
        return {named}
    if settings.model is not None:
        return {front_reads(settings.model)}
    asked = settings.asked
    if any(key.startswith("model.audio.") for key in asked):
        return {"audio"}
    if any(key.startswith("model.image.") for key in asked):
        frames = asked.get("model.image.frames")
        return {"image", "video"} if frames is None else {_moving(frames)}
    return {"image", "video", "audio"} if settings.data.media else {"text"}


def front_reads(model: ModelSettings) -> Modality:
    """Return the modality that the model reads."""
    if hasattr(model, "image"):
        return _moving(model.image.frames)
    return "audio" if hasattr(model, "audio") else "text"


def _moving(frames: int) -> Modality:
    return "video" if frames > 1 else "image"


def spec_of(task: str | RunSettings) -> Spec:
    """Return the row of the task table for a run, or the first row of the task with the given
    name."""
    if not isinstance(task, str):
        return possible(task)[0]
    alias = ALIASES.get(task)
    if alias is None or not alias.task:
        return SPECS[task]
    return SPECS[alias.task].rows[0]


def check_task_name(task: str) -> str:
    """Return the given word if it is the name or an alias of a task; otherwise raise an error."""
    if task not in (*SPECS, *ALIASES):
        raise ConfigError(f"unknown task {task!r}.{suggest(task, [*SPECS, *ALIASES])}")
    return task
