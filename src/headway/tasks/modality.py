"""Detection of the modality of a run from its data files, if neither the settings nor a parent run
define it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from headway.data.files import DataFiles
from headway.data.media.arrays import stack_item
from headway.data.media.audio_file import MOST_CHANNELS
from headway.data.media.image import n_frames
from headway.data.media.open_item import MediaRef
from headway.data.readers.array_stack import CHANNELS, is_stack
from headway.data.schema import media_columns
from headway.data.sniff import (
    ALL_MEDIA,
    EXTENSIONS,
    MOVING,
    VIDEO,
    Format,
    MediaType,
    extension,
    is_array,
    is_audio,
    sniff,
)
from headway.data.source import files_of, media_tables
from headway.errors import DataError, UserError
from headway.settings.data import DataSettings
from headway.settings.model import AudioSettings, ImageSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import front_reads, possible
from headway.specs.needs import Modality
from headway.specs.tasks import Spec
from headway.tasks.media_inputs import what_of
from headway.tasks.parent_run import parent_of

TRIED = 1 << 20
"""Number of samples per channel that are searched for negative values: about a minute at 16 kHz."""


def decided(settings: RunSettings) -> RunSettings:
    """Return the settings with the row of the task table that they mean. If several rows are
    possible, the modality of the parent run or of the data files decides."""
    return replace(settings, row=_row(settings, _modality_of))


def decided_for(settings: RunSettings, front: ImageSettings | AudioSettings) -> RunSettings:
    """Return the settings with the row of the task table for the modality of these input settings
    of a model."""
    return replace(settings, row=_row(settings, lambda settings: what_of(front)))


def _row(settings: RunSettings, modality: Callable[[RunSettings], Modality]) -> Spec:
    rows = possible(settings)
    if len(rows) == 1:
        return rows[0]
    found = modality(settings)
    return next((row for row in rows if row.modality == found), rows[0])


def _modality_of(settings: RunSettings) -> Modality:
    """Return the modality of the parent run, or of the first data file if there is no parent."""
    parent = parent_of(settings)
    if parent is not None:
        return front_reads(parent.model)
    return modality_of_file(Path(settings.data.media[0]), settings.data, files_of(settings))


def modality_of_file(path: Path, data: DataSettings, known: DataFiles | None = None) -> MediaType:
    """Return the modality of a file, judged by its extension and array shape. For a folder or a
    list, it is that of the first file."""
    known, form = known or DataFiles(), sniff(path)
    if form is Format.FOLDER:
        files = sorted(known.walk(path))
        if any(is_audio(file) for file in files):
            return "audio"
        pixels = EXTENSIONS["image"] | EXTENSIONS["video"]
        first = next((file for file in files if extension(file) in pixels), None)
        return "image" if first is None else _of_item(first)
    if form.is_table_file and path.is_file():
        item = _first(path, data, known)
        if item is None:
            return "image"
        if _is_audio_item(item):
            return "audio"
        return _of_item(Path(item.path), item.part.index)
    if form is Format.ARRAY and path.is_file():  # all items of a stack
        return "video" if is_stack(path, moving=True) else "image"
    return "audio" if form is Format.AUDIO else _of_item(path)


def _first(path: Path, data: DataSettings, known: DataFiles) -> MediaRef | None:
    """Return the first item of a list of media files. The list is read as one of images and, if
    that fails, as one of videos or of audio files. Return None if it is none of these."""
    for what in ALL_MEDIA:
        with suppress(DataError):
            [bound] = media_tables([str(path)], data, media_columns(what, None, data), known)
            found = bound.first
            return found and found.medium
    return None


def _is_audio_item(item: MediaRef) -> bool:
    """Whether an item of a list is audio. An array is audio if it has a sampling rate, or values
    that pixels cannot have. An array of zeros raises an error if it may be an image or audio."""
    if item.part.rate or is_audio(item.path):
        return True
    if not is_array(item.path):
        return False
    try:
        values = stack_item(item.path, item.part.index)
    except DataError:  # reported later, when all files are read
        return False
    if values.ndim == 1:
        return True
    if values.ndim != 2 or values.shape[1] > MOST_CHANNELS or values.dtype.kind not in "if":
        return False
    if values.dtype.kind == "i":
        return True
    first = values[:TRIED]
    if not first.any():
        raise DataError(
            f"{item.path} contains only zeros, so it may be an image or a recording. Choose one: "
            "set the modality of the task, such as classify.modality=image or "
            "classify.modality=audio."
        )
    return bool((first < 0).any())


def _of_item(path: Path, index: int | None = None) -> MediaType:
    """Return whether a file is an image or a video, judged by its array shape. An image has the
    axes Y X [C]; a video has a time axis before them."""
    if is_array(path):
        with suppress(DataError):
            *_, last = shape = stack_item(str(path), index).shape
            moves = len(shape) > 3 or (len(shape) == 3 and last not in CHANNELS)
            return "video" if moves else "image"
    moves = extension(path) in VIDEO
    if extension(path) in MOVING:
        with suppress(UserError):  # reported later, when all files are read
            moves = n_frames(path) > 1
    return "video" if moves else "image"
