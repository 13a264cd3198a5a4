"""Read one image, video or audio item from its file, in the format that a model reads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.columns.column import class_of
from headway.data.media.arrays import stack_frames, stack_item, stack_items
from headway.data.media.audio import read_audio
from headway.data.media.image import (
    DecodedMedia,
    Size,
    decode_image,
    decode_video,
    read_image,
)
from headway.data.media.pixels import ByteArray, resized
from headway.data.sniff import EXTENSIONS, MediaType, extension, is_array, is_idx, is_video
from headway.errors import DataError
from headway.settings.audio import AudioSettings
from headway.settings.vision import ImageSettings

MediaSettings = ImageSettings | AudioSettings

UNITS: dict[MediaType, str] = {"image": "images", "video": "videos", "audio": "recordings"}

SHEET_BYTES = 64_000_000
"""Maximum size in bytes of the cache of sheets. A sheet is a decoded image of which regions are
separate items."""

ROWS_BYTES = 4_000_000
"""Maximum size in bytes of the part of an array that is converted at once, to limit memory."""


@dataclass(frozen=True)
class ItemFormat:
    """Format that media items are converted to."""

    modality: MediaType
    channels: int = 3
    frames: int = 1
    """Number of frames of a video; 1 for images."""

    size: Size | None = None
    """Height and width in pixels; None keeps the original size."""

    rate: int = 16_000
    """Sampling rate of audio in Hz."""

    @property
    def is_audio(self) -> bool:
        return class_of(self.modality).is_audio

    @property
    def is_moving(self) -> bool:
        """Whether items are videos."""
        return class_of(self.modality).is_moving

    @classmethod
    def of(cls, what: MediaType, shape: MediaSettings, *, own_size: bool = False) -> ItemFormat:
        if isinstance(shape, AudioSettings):
            assert class_of(what).is_audio
            return cls(what, rate=shape.rate)
        size = None if own_size else (shape.height, shape.width)
        return cls(what, shape.channels, shape.frames if class_of(what).is_moving else 1, size)


class MediaRegion(NamedTuple):
    """Part of a file that forms an item. By default, the item is the whole file."""

    box: tuple[int, int, int, int] | None = None
    """Left, top, right and bottom of a region in pixels. Right and bottom are exclusive."""

    start: float | None = None
    """Start of a part of an audio file in seconds; None: the beginning."""

    end: float | None = None
    """End of a part of an audio file in seconds; None: the end."""

    index: int | None = None  # type: ignore[assignment] # shadows tuple.index, unused
    """Index of an item in a stack (.npy, IDX), counted from 0."""

    rate: int | None = None
    """Sampling rate in Hz of an .npy array of samples."""

    @property
    def is_row(self) -> bool:
        """Whether the item is an entire entry of a stack, selected by its index alone."""
        return self.box is None and self.start is None and self.end is None

    @property
    def values(self) -> tuple[object, ...]:
        return tuple(self)


WHOLE = MediaRegion()

OPENERS: dict[str, Callable[[str, ItemFormat], DecodedMedia]] = {}
"""Functions registered by other packages that read an item, by file extension."""


def register(ending: str, what: MediaType, read: Callable[[str, ItemFormat], DecodedMedia]) -> None:
    """Register a file format by its extension.

    Args:
        ending: File extension with its dot.
        what: Modality of the items in these files.
        read: Function that returns the item of a path in a given format. It raises a `DataError`
            for an invalid file.
    """
    EXTENSIONS[what] |= {ending}
    OPENERS[ending] = read


class MediaRef(NamedTuple):
    """Reference to an image, video or audio item in a file. The item is not read until `read` is
    called."""

    path: str
    part: MediaRegion = WHOLE

    def read(self, form: ItemFormat) -> DecodedMedia:
        """Read the item in the given format. An invalid file raises a `DataError` that names it."""
        return read_media(self.path, form, self.part)


def read_media(path: str, form: ItemFormat, part: MediaRegion = WHOLE) -> DecodedMedia:
    """Read an item in the given format. An invalid file raises a `DataError` that names it."""
    stacked = is_array(path) or (part.index is not None and is_idx(path))
    if not stacked and is_broken_link(Path(path)):
        raise DataError(f"{path} is a broken link to {Path(path).readlink()}.")
    if (read := OPENERS.get(extension(path))) is not None:
        return read(path, form)
    if form.is_audio:
        return _audio(path, form, part)
    if part.start is not None or part.end is not None:
        raise DataError(f"{path}: `start` and `end` apply only to audio. Remove them.")
    if stacked:
        where = path if part.index is None else f"{path}, item {part.index}"
        values, height, width = _stacked(stack_item(path, part.index)[None], form, where)
        return DecodedMedia(values[0], height, width)
    if part.index is not None:
        raise DataError(f"{path}: `index` applies only to stacks (.npy, IDX). Remove it.")
    if part.box is not None:
        return _cut_out(path, form, part.box)
    if form.is_moving:
        if is_file(Path(path)) and is_video(path):
            from headway.data.media.video import decode_video_file

            return decode_video_file(path, form.frames, form.channels, form.size)
        return decode_video(path, form.frames, form.channels, form.size)
    return decode_image(path, form.channels, form.size)


def rows_of_arrays(media: Sequence[MediaRef | None], form: ItemFormat) -> dict[str, dict[int, int]]:
    """Return the items that are entries of array files, by path. Each maps indices in `media` to
    indices in the array."""
    found: dict[str, dict[int, int]] = {}
    for number, one in enumerate(media):
        if one is not None and (index := one.part.index) is not None and one.part.is_row:
            found.setdefault(one.path, {})[number] = index
    known = not form.is_audio
    return {path: rows for path, rows in found.items() if known and _is_array(path)}


def read_rows(path: str, indices: Sequence[int], form: ItemFormat) -> DecodedMedia:
    """Read items of one array file in the given format, as N T C Y X. If one of them cannot be
    read, raise a `DataError` that does not tell which."""
    parts = [_stacked(some, form, path) for some in stack_items(path, indices, ROWS_BYTES)]
    values = [one.values for one in parts]
    return parts[0]._replace(values=np.concatenate(values) if len(values) > 1 else values[0])


def _is_array(path: str) -> bool:
    return (is_array(path) or is_idx(path)) and extension(path) not in OPENERS


def _stacked(values: NDArray[Any], form: ItemFormat, where: str) -> DecodedMedia:
    moving = form.is_moving
    pixels = stack_frames(values, moving, form.channels, where)
    n, t, *shape = pixels.shape
    if moving and t != form.frames:
        pixels = pixels[:, (2 * np.arange(form.frames) + 1) * t // (2 * form.frames)]
        t = form.frames
    frames, height, width = resize_to_format(pixels.reshape(n * t, *shape), form)
    return DecodedMedia(frames.reshape(n, t, *frames.shape[1:]), height, width)


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a NUL in the name, or a name that is too long
        return False


def path_exists(path: Path) -> bool:
    """Whether a file or folder exists. A folder may be a video. Devices and pipes do not count."""
    return is_file(path) or path.is_dir()


def is_broken_link(path: Path) -> bool:
    try:
        return path.is_symlink() and not path.exists()
    except (OSError, ValueError):
        return False


def resize_to_format(pixels_TCYX: ByteArray, form: ItemFormat) -> DecodedMedia:
    """Resize pixels to the size of the format. Channels and number of frames must already be
    right."""
    height, width = pixels_TCYX.shape[-2:]
    if form.size is not None:
        pixels_TCYX = resized(pixels_TCYX, *form.size)
    return DecodedMedia(pixels_TCYX, height, width)


def _audio(path: str, form: ItemFormat, part: MediaRegion) -> DecodedMedia:
    if part.box is not None:
        raise DataError(f"{path}: `box` applies only to images. Remove it.")
    samples = read_audio(
        path, form.rate, part.start, part.end, npy_rate=part.rate, index=part.index
    )
    return DecodedMedia(samples, len(samples), 0)


def _cut_out(path: str, form: ItemFormat, box: tuple[int, int, int, int]) -> DecodedMedia:
    if form.is_audio or form.is_moving:
        raise DataError(f"{path}: `box` applies only to images. Remove it.")
    sheet_CYX = SHEETS.read(path, form.channels)
    left, top, right, bottom = box
    height, width = sheet_CYX.shape[1:]
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise DataError(
            f"{path} has {width:,} × {height:,} pixels, but the box {list(box)} (left, top, right, "
            "bottom) is empty or extends beyond the image."
        )
    return resize_to_format(sheet_CYX[None, :, top:bottom, left:right], form)


class SheetCache:
    """Cache of recently decoded sheets. Items of the same sheet are usually read one after the
    other."""

    def __init__(self, limit: int = SHEET_BYTES) -> None:
        self.limit = limit
        self._kept: OrderedDict[tuple[str, int, int], ByteArray] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str, channels: int) -> ByteArray:
        """Return a sheet as C Y X. While one thread decodes the sheet, other threads wait for
        it."""
        with self._lock:
            try:
                key = (path, Path(path).stat().st_mtime_ns, channels)
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror}.") from error
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            sheet = read_image(path, channels)
            while self._kept and sheet.nbytes + self._bytes() > self.limit:
                self._kept.popitem(last=False)
            self._kept[key] = sheet
            return sheet

    def _bytes(self) -> int:
        return sum(sheet.nbytes for sheet in self._kept.values())

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


SHEETS = SheetCache()
