"""Columns of images, videos and audio, and of the parts of their files."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    to_python,
)
from headway.data.media.decoding import (
    FLAT,
    UNREADABLE,
    VALUES,
    MediaRecords,
    readable_records,
)
from headway.data.media.in_memory import frames_of, pixels_of, samples_of
from headway.data.media.open_item import ItemFormat, MediaRef
from headway.data.media.store import AudioStore, ImageStore
from headway.data.sniff import MediaType, is_media_file, media_types
from headway.data.table import is_missing
from headway.errors import DataError

if TYPE_CHECKING:
    from headway.data.check import Findings
    from headway.data.scan import DatasetScan


SMALL = 4
"""Enlargement factor above which an image is reported as small. An image enlarged four times has at
most one real pixel per 16 pixels."""

NARROW = 2.0
"""An image is reported as narrow if cropping it to the aspect ratio of the model keeps less than 1
/ `NARROW` of its area."""

SHORT_S, LONG_S = 0.1, 30.0
"""Usual durations of audio in seconds, shortest and longest; other durations are reported. A spoken
word takes longer than 0.1 s, and Whisper's window ends at 30 s."""


class HeldMedia(NamedTuple):
    """Image, video or audio item in memory."""

    content: bytes | NDArray[Any]
    """Contents of a media file as bytes, or an array of pixels or samples."""

    rate: int | None = None
    """Sampling rate of the samples in Hz; None if it is unknown or the content is not audio
    samples."""


@dataclass(frozen=True)
class MediaColumn(Column):
    """Column with an image, a video or an audio item per example."""

    is_media: ClassVar[bool] = True
    is_named_by_need: ClassVar[bool] = False
    modality: ClassVar[MediaType]

    format: ItemFormat | None = field(default=None, kw_only=True)
    """Size or sampling rate to which the media are converted; None if they are only listed."""

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
                if media_types(value) == ("video",) and self.is_image:
                    return f"{value!r} is a video: set the modality, as in caption.modality=video"
                return f"not all values can be names of {self.kind} files"
            if not (sample.folder / value).exists():
                return f"there is no file {value!r}"
        return None

    def names_files(self, values: Sequence[object]) -> bool:
        """Whether all values are names of files of this modality, by their extensions. False
        without values."""
        return bool(values) and all(
            isinstance(value, str) and is_media_file(value) and self.could_hold(value)
            for value in values
        )

    def parse(self, raw: object, where: str) -> Value:
        """Return a reference to a media file, or the media itself if it is in memory."""
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
        """Return the pixels or samples of a value in memory."""

    def is_plain(self, value: object) -> bool:
        return type(value) is MediaRef

    flat: ClassVar[str]
    """Message about items without content, such as images of one colour or silence."""

    def findings(self, scan: DatasetScan, report: Findings) -> None:
        """Report the sizes of all media, and the items without content. Only the first media column
        reports, for all of them."""
        schema, facts = scan.source.schema, scan.media
        if facts is None or self.name != schema.media_names[0]:
            return
        good = facts["marks"] & UNREADABLE == 0
        if good.any():
            report.sizes |= self.size_findings(facts, good, schema.format, report)
        flat = np.flatnonzero((facts["marks"] & FLAT > 0).any(1))
        report.add_rows("warning", "flat", flat, self.flat)

    @abstractmethod
    def size_findings(
        self, facts: MediaRecords, good: NDArray[np.bool_], form: ItemFormat, report: Findings
    ) -> dict[str, float]:
        """Report unusual sizes of the readable (`good`) items. Return the size statistics for the
        report."""

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<i8"}}

    def encode(
        self, values: Sequence[Value], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Rows]:
        return {self.name: np.array(values, "<i8")}

    @classmethod
    def open(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> Any:
        """Open the items of a split. The contents of both splits are in the same file."""
        return cls.items(folder, facts["form"]).rows(cls.stored(folder, split, facts))

    @classmethod
    def hashes(cls, folder: Path, split: str, facts: Mapping[str, Any]) -> NDArray[Any] | None:
        return readable_records(folder)["hash"][cls.stored(folder, split, facts)]

    @classmethod
    @abstractmethod
    def items(cls, folder: Path, form: ItemFormat) -> ImageStore | AudioStore:
        """Open all items that are stored in the folder."""


@dataclass(frozen=True)
class VisualColumn(MediaColumn):
    """Column with an image or a video per example."""

    flat: ClassVar[str] = "every pixel has the same colour."

    def size_findings(
        self, facts: MediaRecords, good: NDArray[np.bool_], form: ItemFormat, report: Findings
    ) -> dict[str, float]:
        """Report the range of sizes, and the images that are small or narrow."""
        assert form.size is not None
        size = form.size
        height, width = facts["height"].astype(np.int64), facts["width"].astype(np.int64)
        area = np.where(good, height * width, -1)
        least = np.where(good, area, area.max() + 1)
        shown = [f"{width[at]:,} × {height[at]:,}" for at in _ends(least, area)]
        span = shown[0] if shown[0] == shown[1] else f"from {shown[0]} to {shown[1]}"
        text = f"{report.which}{report.unit} have {span} pixels, resized to {size[1]} × {size[0]}."
        report.add("note", "sizes", int(good.sum()), text)
        high, wide = np.maximum(height, 1), np.maximum(width, 1)
        factor = np.maximum(size[0] / high, size[1] / wide)
        rows = np.flatnonzero((good & (factor > SMALL)).any(1))
        text = f"must be enlarged more than {SMALL} times, so they show little detail."
        report.add_rows(report.level_of(rows), "small", rows, text)
        left = (size[0] / factor) * (size[1] / factor) / (high * wide)
        rows = np.flatnonzero((good & (left * NARROW < 1)).any(1))
        text = "so wide or so high that cropping removes more than half."
        report.add_rows(report.level_of(rows), "narrow", rows, text)
        return {"pixels_least": float(least.min()), "pixels_most": float(area.max())}

    @classmethod
    def items(cls, folder: Path, form: ItemFormat) -> ImageStore | AudioStore:
        """Open all images or videos that are stored in the folder."""
        assert form.size is not None
        shape = (form.frames, form.channels, *form.size)
        return ImageStore.open(folder / VALUES, shape)


@dataclass(frozen=True)
class ImageColumn(VisualColumn):
    kind: ClassVar[str] = "image"
    noun: ClassVar[str] = "an image"
    is_image: ClassVar[bool] = True
    modality: ClassVar[MediaType] = "image"
    item_axes: ClassVar[int | None] = 3

    def held(self, raw: object, where: str) -> HeldMedia:
        return HeldMedia(pixels_of(raw, where))


@dataclass(frozen=True)
class VideoColumn(VisualColumn):
    kind: ClassVar[str] = "video"
    noun: ClassVar[str] = "a video"
    is_moving: ClassVar[bool] = True
    modality: ClassVar[MediaType] = "video"
    item_axes: ClassVar[int | None] = 4

    def held(self, raw: object, where: str) -> HeldMedia:
        return HeldMedia(frames_of(raw, where))


@dataclass(frozen=True)
class AudioColumn(MediaColumn):
    kind: ClassVar[str] = "audio"
    noun: ClassVar[str] = "audio"
    is_audio: ClassVar[bool] = True
    modality: ClassVar[MediaType] = "audio"
    flat: ClassVar[str] = "silent from start to end."

    def size_findings(
        self, facts: MediaRecords, good: NDArray[np.bool_], form: ItemFormat, report: Findings
    ) -> dict[str, float]:
        """Report the range of durations, and the recordings that are short or long."""
        seconds = facts["height"].astype(np.int64) / form.rate
        found = seconds[good]
        text = (
            f"{report.which}{report.unit} last {format_seconds(found.sum())} in total, each from "
            f"{format_seconds(found.min())} to {format_seconds(found.max())}, median "
            f"{format_seconds(float(np.median(found)))}."
        )
        report.add("note", "sizes", len(found), text)
        rows = np.flatnonzero((good & (seconds < SHORT_S)).any(1))
        report.add_rows("warning", "short", rows, f"shorter than {SHORT_S:g} s.")
        rows = np.flatnonzero((good & (seconds > LONG_S)).any(1))
        report.add_rows("note", "long", rows, f"longer than {LONG_S:g} s.")
        return {"seconds": float(found.sum()), "longest": float(found.max())}

    def parse(self, raw: object, where: str) -> Value:
        if isinstance(raw, Mapping) and raw.get("array") is not None:
            return self.held((raw["array"], raw.get("sampling_rate")), where)
        return super().parse(raw, where)

    def held(self, raw: object, where: str) -> HeldMedia:
        return HeldMedia(*samples_of(raw, where))

    @classmethod
    def items(cls, folder: Path, form: ItemFormat) -> ImageStore | AudioStore:
        """Open all recordings that are stored in the folder."""
        lengths = readable_records(folder)["height"].astype(np.int64)
        return AudioStore.open(folder / VALUES, lengths, form.rate)


@dataclass(frozen=True)
class RegionColumn(Column):
    """Column that selects a part of a media file (a box, a time span or an item of a stack), or
    that gives its sampling rate."""

    kind: ClassVar[str] = "region"
    is_region: ClassVar[bool] = True

    def matches(self, sample: Sample) -> str | None:
        return "parts of files are found by their names alone"

    def parse(self, raw: object, where: str) -> Value:
        """Return the converted value, or None for an empty cell."""
        raw = raw.tolist() if isinstance(raw, np.ndarray) else to_python(raw)
        if is_missing(raw) or raw == "":
            return None
        return REGIONS[self.name](raw, where)

    def show(self, value: Value) -> str:
        return "part of the file"


def _ends(*values: NDArray[np.int64]) -> Iterable[tuple[int, ...]]:
    """Yield the index of the lowest value of the first array, then the index of the highest value
    of the second."""
    least, most = values
    for flat in (least.argmin(), most.argmax()):
        yield tuple(int(i) for i in np.unravel_index(flat, least.shape))


def format_seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
    if not isinstance(cells, list | tuple) or len(cells) != 4:
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
"""Converters for the columns of a media list that select a part of a file or give its sampling
rate."""
