"""One picture, video or recording from its file, brought to the form that a model reads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.media.arrays import is_idx, stack_frames, stack_item, stack_items
from headway.data.media.audio import read_sound
from headway.data.media.endings import ENDINGS as ENDINGS
from headway.data.media.endings import What as What
from headway.data.media.image import (
    Reading,
    Size,
    picture_reading,
    read_picture,
    video_reading,
)
from headway.data.media.pixels import Pixels, resized
from headway.errors import DataError
from headway.settings.audio import SoundSettings
from headway.settings.vision import PictureSettings

Shape = PictureSettings | SoundSettings

UNITS: dict[What, str] = {"pictures": "pictures", "videos": "videos", "sounds": "recordings"}

SHEET_BYTES = 64_000_000
"""What decoded sheets may take, whose parts are items."""

ROWS_BYTES = 4_000_000
"""Of an array that are brought to the form at once."""


@dataclass(frozen=True)
class Form:
    """What items are brought to."""

    what: What
    channels: int = 3
    frames: int = 1
    size: Size | None = None
    """None: as large as they come."""

    rate: int = 16_000

    @classmethod
    def of(cls, what: What, shape: Shape, *, own_size: bool = False) -> Form:
        if isinstance(shape, SoundSettings):
            assert what == "sounds"
            return cls(what, rate=shape.rate)
        size = None if own_size else (shape.height, shape.width)
        return cls(what, shape.channels, shape.frames if what == "videos" else 1, size)


class Part(NamedTuple):
    """What of a file is the item; all of it, if nothing is said."""

    box: tuple[int, int, int, int] | None = None
    """Left, top, right, bottom of a part of a sheet, in pixels; the latter two are outside."""

    start: float | None = None
    """Seconds of a recording."""

    end: float | None = None
    index: int | None = None  # type: ignore[assignment] # no one looks for a value in it
    """Of an item of a stack (.npy, IDX), from 0 on."""

    rate: int | None = None
    """Of an .npy array of samples."""

    @property
    def is_row(self) -> bool:
        """Whether its number is all that says what it is."""
        return self.box is None and self.start is None and self.end is None

    @property
    def values(self) -> tuple[object, ...]:
        return tuple(self)


WHOLE = Part()

OPENERS: dict[str, Callable[[str, Form], Reading]] = {}
"""How files of other packages' formats are read, by their ending."""


def register(ending: str, what: What, read: Callable[[str, Form], Reading]) -> None:
    """Another kind of file, and how one is opened: as what the fronts of `what` read, in the form
    that a run has (its rate, its size). A `DataError` names what cannot be read."""
    ENDINGS[what] |= {ending}
    OPENERS[ending] = read


class Medium(NamedTuple):
    """A picture, a video or a recording that has not been read yet: a value of a table."""

    path: str
    part: Part = WHOLE

    def read(self, form: Form) -> Reading:
        """Now, with how large it was; a `DataError` names the file if that fails."""
        return read_media(self.path, form, self.part)


def read_media(path: str, form: Form, part: Part = WHOLE) -> Reading:
    """The item in the wanted form; a `DataError` that names the file if that cannot be."""
    ending = Path(path).suffix.lower()
    stacked = ending == ".npy" or (part.index is not None and is_idx(path))
    if not stacked and leads_nowhere(Path(path)):
        raise DataError(f"{path} leads nowhere: it links to {Path(path).readlink()}.")
    if (read := OPENERS.get(ending)) is not None:
        return read(path, form)
    if form.what == "sounds":
        return _sound(path, form, part)
    if part.start is not None or part.end is not None:
        raise DataError(f"{path}: `start` and `end` are for recordings.")
    if stacked:
        where = path if part.index is None else f"{path}, item {part.index}"
        values, height, width = _stacked(stack_item(path, part.index)[None], form, where)
        return Reading(values[0], height, width)
    if part.index is not None:
        raise DataError(f"{path}: `index` is for stacks in .npy files.")
    if part.box is not None:
        return _cut_out(path, form, part.box)
    if form.what == "videos":
        return video_reading(path, form.frames, form.channels, form.size)
    return picture_reading(path, form.channels, form.size)


def rows_of_arrays(media: Sequence[Medium | None], form: Form) -> dict[str, dict[int, int]]:
    """Of each file that is an array which of these are rows of it, with their indices."""
    found: dict[str, dict[int, int]] = {}
    for number, one in enumerate(media):
        if one is not None and (index := one.part.index) is not None and one.part.is_row:
            found.setdefault(one.path, {})[number] = index
    known = form.what != "sounds"
    return {path: rows for path, rows in found.items() if known and _is_array(path)}


def read_rows(path: str, indices: Sequence[int], form: Form) -> Reading:
    """Items of one array in the wanted form, N T C Y X, all as large as one another. A `DataError`
    says that one of them cannot be read, not which."""
    parts = [_stacked(some, form, path) for some in stack_items(path, indices, ROWS_BYTES)]
    values = [one.values for one in parts]
    return parts[0]._replace(values=np.concatenate(values) if len(values) > 1 else values[0])


def _is_array(path: str) -> bool:
    ending = Path(path).suffix.lower()
    return (ending == ".npy" or is_idx(path)) and ending not in OPENERS


def _stacked(values: NDArray[Any], form: Form, where: str) -> Reading:
    moving = form.what == "videos"
    pixels = stack_frames(values, moving, form.channels, where)
    n, t, *shape = pixels.shape
    if moving and t != form.frames:
        pixels = pixels[:, (2 * np.arange(form.frames) + 1) * t // (2 * form.frames)]
        t = form.frames
    frames, height, width = in_form(pixels.reshape(n * t, *shape), form)
    return Reading(frames.reshape(n, t, *frames.shape[1:]), height, width)


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a NUL in the name, or a name that is too long
        return False


def is_there(path: Path) -> bool:
    """A folder may be a video. Devices and pipes are nothing to read media from."""
    return is_file(path) or path.is_dir()


def has_ending(path: Path, what: What) -> bool:
    return path.suffix.lower() in ENDINGS[what] and not path.name.startswith(".")


def leads_nowhere(path: Path) -> bool:
    try:
        return path.is_symlink() and not path.exists()
    except (OSError, ValueError):
        return False


def in_form(pixels_TCYX: Pixels, form: Form) -> Reading:
    """Pixels that have the right channels and frames, brought to the size."""
    height, width = pixels_TCYX.shape[-2:]
    if form.size is not None:
        pixels_TCYX = resized(pixels_TCYX, *form.size)
    return Reading(pixels_TCYX, height, width)


def _sound(path: str, form: Form, part: Part) -> Reading:
    if part.box is not None:
        raise DataError(f"{path}: `box` is for pictures.")
    samples = read_sound(
        path, form.rate, part.start, part.end, npy_rate=part.rate, index=part.index
    )
    return Reading(samples, len(samples), 0)


def _cut_out(path: str, form: Form, box: tuple[int, int, int, int]) -> Reading:
    if form.what != "pictures":
        raise DataError(f"{path}: `box` is for pictures.")
    sheet_CYX = SHEETS.read(path, form.channels)
    left, top, right, bottom = box
    height, width = sheet_CYX.shape[1:]
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise DataError(
            f"{path} has {width:,} × {height:,} pixels; the box {list(box)} (left, top, right, "
            "bottom) does not lie in it, or is empty."
        )
    return in_form(sheet_CYX[None, :, top:bottom, left:right], form)


class Sheets:
    """Decoded sheets, the latest few: their items mostly come one after another."""

    def __init__(self, limit: int = SHEET_BYTES) -> None:
        self.limit = limit
        self._kept: OrderedDict[tuple[str, int, int], Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str, channels: int) -> Pixels:
        """C Y X. Threads that want the same sheet wait for the one that decodes it."""
        with self._lock:
            try:
                key = (path, Path(path).stat().st_mtime_ns, channels)
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror}.") from error
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            sheet = read_picture(path, channels)
            while self._kept and sheet.nbytes + self._bytes() > self.limit:
                self._kept.popitem(last=False)
            self._kept[key] = sheet
            return sheet

    def _bytes(self) -> int:
        return sum(sheet.nbytes for sheet in self._kept.values())

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


SHEETS = Sheets()
