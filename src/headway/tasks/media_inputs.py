"""Images, videos and audio as inputs for prediction, given as files, folders or lists of paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.data.columns.column import class_of
from headway.data.media.audio import is_silent
from headway.data.media.open_item import UNITS, ItemFormat, is_file
from headway.data.sniff import MediaType, is_media_file, media_types
from headway.data.source import Example, media_examples
from headway.errors import DataError, UserError
from headway.settings.data import DataSettings
from headway.settings.listed import ensure_list
from headway.settings.model import AudioSettings, ImageSettings
from headway.specs.needs import Need


@dataclass(frozen=True)
class LoadedInput:
    """Loaded input for prediction: text, pixels or audio samples, or the error that occurred in
    reading."""

    name: str
    """Name that the user gave, or the line in a list of files."""

    values: Any
    """Texts, pixels (T C Y X) or audio samples, in the form that the model reads. None: the input
    could not be read; `error` has the reason."""

    error: str = ""
    label: str | None = None
    """Label from a list of files; None if there is none."""

    @property
    def is_silent(self) -> bool:
        """Whether the input is a silent recording."""
        return getattr(self.values, "ndim", 0) == 1 and is_silent(self.values)


def what_of(shape: ImageSettings | AudioSettings) -> MediaType:
    if isinstance(shape, AudioSettings):
        return "audio"
    return "video" if shape.frames > 1 else "image"


def load_media(
    lines: Iterable[str | LoadedInput | Example],
    folder: Path,
    shape: ImageSettings | AudioSettings,
    data: DataSettings | None = None,
    target: Need | None = None,
) -> Iterator[LoadedInput]:
    """Yield the media that each line names: a file, a folder, or a list of paths (TSV, CSV, JSONL).

    A file that cannot be read yields an input with its error, and reading continues. A
    `LoadedInput` is passed through unchanged.

    Args:
        lines: Names, or inputs that are loaded already.
        folder: Folder of the run, in which names are looked up that do not exist otherwise.
        shape: Input settings of the model.
        data: Data settings for lists of paths.
        target: Column that lists must have in addition to the path. None: only the path.
    """
    form = ItemFormat.of(what_of(shape), shape)
    for line in ensure_list(lines):
        if isinstance(line, LoadedInput):
            yield line
            continue
        if isinstance(line, Example):  # from a list or folder that is already open
            name, items = line.place, [line]
        else:
            name = line.strip()
            try:
                path = found_file(name, folder)
                check_kind(path, form.modality)
                items = list(
                    media_examples([str(path)], data or DataSettings(), form.modality, target)
                )
            except UserError as error:
                yield LoadedInput(name, None, str(error))
                continue
        for item in items:
            shown = name if len(items) == 1 else item.place
            label = item.text("label") or None
            try:
                yield LoadedInput(shown, item.medium.read(form).values, label=label)
            except UserError as error:
                yield LoadedInput(shown, None, str(error), label)


def found_file(name: str, folder: Path) -> Path:
    """Return the path of a file, relative to the current folder or, if it does not exist there, to
    `folder`."""
    if not name:
        raise DataError("the input is empty. It must be the path of a file.")
    path = Path(name)
    inside = not is_file(path) and is_file(folder / name) and not path.is_dir()
    return folder / name if inside else path


ONE_FILE = {"image": "an image", "video": "a video", "audio": "an audio"}


def check_kind(path: Path, what: MediaType) -> None:
    """Raise DataError if the file extension belongs to another kind of media."""
    column = class_of(what)(what)
    if is_media_file(path) and not column.could_hold(path):
        one, *others = media_types(path)
        kind = "an image or video file" if others else f"{ONE_FILE[one]} file"
        raise DataError(f"{path} is {kind}, but this run is for {UNITS[what]}.")
