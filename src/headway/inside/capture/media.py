"""An image, video or recording as a model reads it, with a name for each position.

A position of an image is a patch, named by its row and column: "row 3, column 5". A position of a
recording is a time interval, named by its start: "0.24 s".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headway.data.media.open_item import UNITS, ItemFormat, MediaRegion, read_media
from headway.data.sniff import MediaType, is_table_file
from headway.data.source import media_examples
from headway.errors import Option, UserError
from headway.inside.capture.streams import TokenStream
from headway.settings.audio import AudioSettings
from headway.settings.folder import example_of
from headway.settings.run import media_settings
from headway.settings.vision import ImageSettings
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.media_inputs import check_kind, what_of

MediaKind = Literal["image", "audio"]

NAMES = {"image": "an image", "video": "a video", "audio": "a recording"}

MAX_ROWS = 4096
"""Maximum number of positions in an example, because each attention head stores a square matrix of
weights."""

FIRST_ROWS = ("class", "distil")
"""Names of the special tokens before the patches of an image: the class token, and the distillation
token of DeiT."""


@dataclass(frozen=True)
class MediaInput:
    kind: MediaKind
    name: str
    """Name of the file, without its folder."""

    item: NDArray[Any] = field(compare=False, repr=False)
    """Pixels or samples that the embedding layer reads: video or image frames (time, channel,
    height, width; uint8), or audio (float32)."""

    grid: tuple[int, int, int] = (1, 0, 0)
    """Number of patches in time, height and width; unused for a recording."""

    extra: int = 0
    """Number of special tokens before the patches of an image."""

    tubelet: int = 1
    """Number of video frames in a patch; 1 for an image."""

    rate: int = 0
    """Sampling rate of a recording in hertz; 0 for an image."""

    row_s: float = 0.0
    """Duration in seconds of one position of a recording; 0 for an image."""

    n_rows: int = 0

    @classmethod
    def of(
        cls, name: str, item: NDArray[Any], settings: ImageSettings | AudioSettings
    ) -> MediaInput:
        """Make the input from pixels or audio samples.

        `settings`: media settings of the model, which determine how the input is divided into
        positions.
        """
        if isinstance(settings, AudioSettings):
            n_rows = settings.rows_of(len(item))
            return cls("audio", name, item, rate=settings.rate, row_s=settings.row_seconds,
                       n_rows=n_rows)  # fmt: skip
        n_frames, _, height, width = item.shape
        grid = settings.grid_of(n_frames, height, width)
        n_rows = settings.rows_of(n_frames, height, width)
        return cls("image", name, item, grid, settings.extra, settings.tubelet, n_rows=n_rows)

    @property
    def unit(self) -> str:
        """Plural name of this kind of media for messages, such as "images"."""
        what: MediaType = "audio" if self.kind == "audio" else "image"
        return UNITS["video" if self.kind == "image" and len(self.item) > 1 else what]

    @property
    def seconds(self) -> float:
        """Duration of a recording in seconds, without padding."""
        return len(self.item) / self.rate

    @property
    def n_unpadded_rows(self) -> int:
        """Number of positions of a recording that contain audio, not only padding."""
        return min(self.n_rows, max(1, round(np.ceil(self.seconds / self.row_s - 1e-6))))

    @property
    def content_mask(self) -> list[bool]:
        """Whether each position is part of the image or recording, and not a special token or
        padding."""
        n = self.n_unpadded_rows if self.kind == "audio" else self.n_rows
        return [self.extra <= row < n for row in range(self.n_rows)]

    def stream(self, name: str) -> TokenStream:
        """Return the positions as a token stream in which each position is a word of its own."""
        pieces = [*FIRST_ROWS[: self.extra], *self._places()]
        special = tuple(place < self.extra for place in range(len(pieces)))
        words = tuple(-1 if apart else at - self.extra for at, apart in enumerate(special))
        return TokenStream(name, (-1,) * len(pieces), tuple(pieces), words, special)

    def _places(self) -> list[str]:
        if self.kind == "audio":
            digits = 2 if self.row_s >= 0.01 else 3
            return [f"{row * self.row_s:.{digits}f} s" for row in range(self.n_rows)]
        time, lines, columns = self.grid
        frames = [f"frame {t * self.tubelet + 1}, " if time > 1 else "" for t in range(time)]
        return [
            f"{frame}row {y + 1}, column {x + 1}"
            for frame in frames
            for y in range(lines)
            for x in range(columns)
        ]

    def patch_surroundings(self, row: int) -> NDArray[np.uint8] | None:
        """Return the pixels of a patch and its neighbours (time, channel, height, width); None if
        the position is not a patch."""
        place = row - self.extra
        if self.kind == "audio" or place < 0:
            return None
        time, lines, columns = self.grid
        t, y, x = np.unravel_index(place, self.grid)
        height, width = self.item.shape[-2:]
        high, wide = height / lines, width / columns
        top, bottom = (int(np.clip((y + step) * high, 0, height)) for step in (-1, 2))
        left, right = (int(np.clip((x + step) * wide, 0, width)) for step in (-1, 2))
        first = int(t) * self.tubelet if time > 1 else 0
        return np.asarray(self.item[first : first + 1, :, top:bottom, left:right], np.uint8)

    def short_names(self) -> list[str]:
        """Return short names of the positions for charts, such as "3·5" for row 3, column 5."""
        names = self.stream("").pieces
        for word in ("frame ", "row ", "column ", " s"):
            names = tuple(name.replace(word, "") for name in names)
        return [name.replace(", ", "·") for name in names]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values of the input, without the pixels or samples."""
        kept = ("kind", "name", "grid", "extra", "tubelet", "rate", "row_s", "n_rows")
        return {name: getattr(self, name) for name in kept}

    @classmethod
    def from_dict(cls, facts: dict[str, Any], item: NDArray[Any]) -> MediaInput:
        return cls(item=item, **{**facts, "grid": tuple(facts["grid"])})


def input_description(run: LoadedRun) -> str:
    """Return the kind of input with its article: "text", "an image", "a video" or "a recording"."""
    settings = media_settings(run.settings)
    return "text" if settings is None else NAMES[what_of(settings)]


def is_too_long(run: LoadedRun, media: MediaInput) -> bool:
    """Whether an item has more positions than the model supports, or more than can be inspected."""
    most = getattr(media_settings(run.settings), "most_rows", None)
    return media.n_rows > (MAX_ROWS if most is None else most)


def open_media(run: LoadedRun, path: Path | str) -> MediaInput:
    """Open a media file in the format that the run was trained on.

    `NAME:12` selects an item of a list: line 12 of a manifest, or item 12 (from 0) of an `.npy`
    array.
    """
    settings = media_settings(run.settings)
    if settings is None:
        raise UserError(f"{run.folder.name} reads text, not media files.")
    place = Path(path)
    if not place.exists() and (run.folder / place).is_file():
        place = run.folder / place  # an example that comes with a model
    form = ItemFormat.of(what_of(settings), settings)
    name, _, number = str(place).rpartition(":")
    if place.exists() or not number.isdecimal() or not Path(name).is_file():
        check_kind(place, form.modality)
        return MediaInput.of(place.name, read_media(str(place), form).values, settings)
    if not is_table_file(Path(name)):
        part = MediaRegion(index=int(number))
        return MediaInput.of(place.name, read_media(name, form, part).values, settings)
    for item in media_examples([name], run.settings.data, form.modality):
        if item.place == place.name:
            return MediaInput.of(place.name, item.medium.read(form).values, settings)
    raise UserError(f"{name} has no item in line {number}.")


def example_input(run: LoadedRun) -> str | MediaInput | None:
    """Return an example input that is shipped with the model: the text of `example.txt`, or an
    opened media file."""
    path = example_of(run.folder)
    if path is None:
        return None
    if media_settings(run.settings) is not None:
        return open_media(run, path)
    return path.read_text(encoding="utf-8").removesuffix("\n")


def check_input_kind(run: LoadedRun, text: str | None, file: Path | str | None) -> None:
    """Raise an error if the run does not read this kind of input (text, image, video or audio)."""
    reads, is_text = input_description(run), run.spec.is_text
    if is_text and file is not None:
        raise UserError(
            f"{run.folder.name} reads text, not media files. Give a text: "
            f"{Option('text', 'A sentence.')}"
        )
    if not is_text and text is not None:
        raise UserError(
            f"{run.folder.name} reads {reads}, not text. Give a file: "
            f"{Option('file', takes='PATH')}."
        )
    if text is None and file is None:
        way = f"a text: {Option('text', 'A sentence.')}"
        if not is_text:
            way = f"{reads}: {Option('file', takes='PATH')}."
        raise UserError(f"no input was given. Give {way}")
