"""Columns of images, videos and audio, and of the parts of their files."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.columns.column import (
    Column,
    Rows,
    Sample,
    StoreFacts,
    StoreTools,
    Value,
    check_unicode,
)
from headway.data.media.decoding import VALUES, readable_records
from headway.data.media.in_memory import frames_of, pixels_of, samples_of
from headway.data.media.open_item import ItemFormat, MediaRef
from headway.data.media.store import AudioStore, ImageStore
from headway.data.sniff import MediaType, is_media_file, media_types
from headway.data.table import is_missing
from headway.errors import DataError

if TYPE_CHECKING:
    pass


class HeldMedia(NamedTuple):
    """An image, a video or audio in memory."""

    content: bytes | NDArray[Any]
    """The bytes of a file, pixels, or samples."""

    rate: int | None = None
    """Sampling rate of samples."""


@dataclass(frozen=True)
class MediaColumn(Column):
    """An image, a video or a recording per example."""

    is_media: ClassVar[bool] = True
    is_named_by_need: ClassVar[bool] = False
    modality: ClassVar[MediaType]

    format: ItemFormat | None = field(default=None, kw_only=True)
    """Size and sampling to which the media are converted; None if they are only listed."""

    @property
    def option(self) -> str:
        return self.name

    @property
    def python_names(self) -> tuple[str, ...]:
        return (self.name, "path")

    def could_hold(self, value: object) -> bool:
        return self.kind in media_types(value)

    def matches(self, sample: Sample) -> str | None:
        if sample.folder is None:
            fits = all(
                self.could_hold(value) if isinstance(value, str)
                else not isinstance(value, int | float)
                for value in sample.values
            )  # fmt: skip
            return None if fits else f"not all values can be {self.kind}"
        if self.names_files(sample.values):
            return None
        for value in islice(sample.values, 3):
            if not (isinstance(value, str) and self.could_hold(value)):
                return f"not all values can be names of {self.kind} files"
            if not (sample.folder / value).exists():
                return f"there is no file {value!r}"
        return None

    def names_files(self, values: Sequence[object]) -> bool:
        """Whether there are values, and all name files of this kind by their endings."""
        return bool(values) and all(
            isinstance(value, str) and is_media_file(value) and self.could_hold(value)
            for value in values
        )

    def parse(self, raw: object, where: str) -> Value:
        """Return a reference to a file, or what is in memory instead."""
        if isinstance(raw, MediaRef):
            return raw
        if isinstance(raw, PathLike):
            return MediaRef(str(raw))
        if isinstance(raw, str) and raw.strip():
            return MediaRef(check_unicode(raw.strip(), where))
        if is_missing(raw) or isinstance(raw, str):
            raise DataError(f"{where} is empty. Give a path, bytes, or an array.")
        if isinstance(raw, bytes | bytearray | memoryview):
            return HeldMedia(bytes(raw))
        if isinstance(raw, Mapping):  # of a Hugging Face dataset
            inner = raw.get("bytes") or raw.get("path")
            if inner is None and raw.get("array") is not None:
                return self.held(raw["array"], where)
            if inner is None:
                raise DataError(
                    f"{where} has none of the fields `bytes`, `path` and `array`. Add one."
                )
            return self.parse(inner, where)
        return self.held(raw, where)

    @abstractmethod
    def held(self, raw: object, where: str) -> HeldMedia:
        """Return pixels or samples in memory."""

    def is_plain(self, value: object) -> bool:
        return type(value) is MediaRef

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<i8"}}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        return {self.name: np.array(values, "<i8")}

    @classmethod
    def open(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> Any:
        """Open the items of a split; their contents are stored once for both."""
        return cls.items(folder, facts["form"]).rows(cls.stored(folder, split, facts))

    @classmethod
    def hashes(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> NDArray[Any] | None:
        return readable_records(folder)["hash"][cls.stored(folder, split, facts)]

    @classmethod
    def items(cls, folder: Path, form: ItemFormat) -> ImageStore | AudioStore:
        """Open all images or videos in the folder."""
        assert form.size is not None
        shape = (form.frames, form.channels, *form.size)
        return ImageStore.open(folder / VALUES, shape)


@dataclass(frozen=True)
class ImageColumn(MediaColumn):
    kind: ClassVar[str] = "image"
    is_image: ClassVar[bool] = True
    modality: ClassVar[MediaType] = "image"
    item_axes: ClassVar[int | None] = 3

    def held(self, raw: object, where: str) -> HeldMedia:
        return HeldMedia(pixels_of(raw, where))


@dataclass(frozen=True)
class VideoColumn(MediaColumn):
    kind: ClassVar[str] = "video"
    is_moving: ClassVar[bool] = True
    modality: ClassVar[MediaType] = "video"
    item_axes: ClassVar[int | None] = 4

    def held(self, raw: object, where: str) -> HeldMedia:
        return HeldMedia(frames_of(raw, where))


@dataclass(frozen=True)
class AudioColumn(MediaColumn):
    kind: ClassVar[str] = "audio"
    is_audio: ClassVar[bool] = True
    modality: ClassVar[MediaType] = "audio"

    def parse(self, raw: object, where: str) -> Value:
        if isinstance(raw, Mapping) and raw.get("array") is not None:
            return self.held((raw["array"], raw.get("sampling_rate")), where)
        return super().parse(raw, where)

    def held(self, raw: object, where: str) -> HeldMedia:
        return HeldMedia(*samples_of(raw, where))

    @classmethod
    def items(cls, folder: Path, form: ItemFormat) -> ImageStore | AudioStore:
        """Open all recordings in the folder."""
        lengths = readable_records(folder)["height"].astype(np.int64)
        return AudioStore.open(folder / VALUES, lengths, form.rate)


@dataclass(frozen=True)
class RegionColumn(Column):
    """A column that selects a part of the file: a box, a span, a row of a stack, or its rate."""

    kind: ClassVar[str] = "region"
    is_region: ClassVar[bool] = True

    def matches(self, sample: Sample) -> str | None:
        return "parts of files are found by their names alone"

    def parse(self, raw: object, where: str) -> Value:
        """Return the value, or None for an empty cell."""
        if is_missing(raw) or raw == "":
            return None
        return REGIONS[self.name](raw, where)

    def show(self, value: Value) -> str:
        return "part of the file"


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or number < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(f"{where} is {value!r}, but must be a number of at least 0.") from None
    return number


def _whole(value: Any, where: str) -> int:
    number = _number(value, where)
    if number != int(number):
        raise DataError(f"{where} is {value!r}, but must be a whole number.")
    return int(number)


def _box(value: Any, where: str) -> tuple[int, int, int, int]:
    cells = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(cells, list) or len(cells) != 4:
        raise DataError(
            f"{where} is {value!r}, but must be four numbers: left, top, right, bottom."
        )
    left, top, right, bottom = (_whole(cell, where) for cell in cells)
    return left, top, right, bottom


REGIONS: dict[str, Callable[[Any, str], Any]] = {
    "box": _box,
    "start": _number,
    "end": _number,
    "index": _whole,
    "rate": _whole,
}
"""Columns of a manifest that select a part of a file, each with its converter."""
