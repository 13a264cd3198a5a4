"""File name endings of images, videos and audio: the one list that binding and reading share.

No heavy imports, so that columns can be bound without torch.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Literal

from headway.errors import DataError

MediaType = Literal["image", "video", "audio"]

IMAGES = frozenset(
    {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
)
MOVING = frozenset({".gif", ".webp", ".png", ".tif", ".tiff"})
"""Image formats that can hold several frames."""

AUDIO = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au"})
ARRAY = ".npy"
"""Array of pixels or of samples. Only its shape tells which."""

ENDINGS: dict[MediaType, frozenset[str]] = {
    "image": IMAGES | {ARRAY},
    "video": MOVING | {ARRAY},
    "audio": AUDIO,
}
"""File name endings by modality. `open_item.register` adds those of other packages."""


def is_audio(path: str | PathLike[str]) -> bool:
    return Path(path).suffix.lower() in ENDINGS["audio"]


def is_visual(path: str | PathLike[str]) -> bool:
    """Whether the file name is that of an image or a video; False for arrays, which may be
    either."""
    ending = Path(path).suffix.lower()
    return ending != ARRAY and ending in ENDINGS["image"] | ENDINGS["video"]


def check_is_text(path: str | PathLike[str]) -> None:
    """Raise a `DataError` if a file that is to be read as text is media by its name."""
    if is_audio(path) or is_visual(path):
        kind = "an audio file" if is_audio(path) else "an image or video"
        raise DataError(f"{path} has the file extension of {kind}, but a text file is needed.")
