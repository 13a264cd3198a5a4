"""What the places that media come from have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from headway.data.media.audio import SUFFIXES as SOUNDS
from headway.data.media.image import MOVING, SUFFIXES, Reading
from headway.data.media.open_item import OPENERS, Form, What

Target = Literal["label", "text", "other", "none"]
"""What an item must come with. With `other` it is one of two that belong together, of which the
second stands behind the first."""

TARGETS: dict[str, Target] = {
    "label": "label", "labels": "label", "number": "label", "text": "text",
}  # fmt: skip
"""Of each kind of answers; others need none."""

SEVERAL = "\0"
"""Begins a label that is a list of them, and stands between these."""


def several(names: Iterable[str]) -> str:
    """Labels as one: each once, in their order."""
    return SEVERAL + SEVERAL.join(dict.fromkeys(name for name in names if name))


def names_in(label: str) -> list[str]:
    return [name for name in label.split(SEVERAL) if name]


ENDINGS: dict[What, frozenset[str]] = {
    "pictures": SUFFIXES | {".npy"},
    "videos": MOVING | {".npy"},
    "sounds": SOUNDS,
}


def register(ending: str, what: What, read: Callable[[str, Form], Reading]) -> None:
    """Another kind of file, and how one is opened: as what the fronts of `what` read, in the form
    that a run has (its rate, its size). A `DataError` names what cannot be read."""
    ENDINGS[what] |= {ending}
    OPENERS[ending] = read


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture, a video or a recording that has not been read yet."""

    place: str
    """For people: the file, or the manifest and line."""

    read: Callable[[], Reading]
    """Reads it now, and says how large it was; a `DataError` names the file if that fails."""

    label: str | None = None
    text: str | None = None
    file: str | None = None
    """The file of a list's line that is all of it, and no part."""

    def open(self) -> NDArray[Any]:
        """Pixels uint8 T C Y X, or samples float32."""
        return self.read().values


class Source(Protocol):
    """Items of one place, made when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> MediaItem: ...

    def files(self) -> Iterable[tuple[Path, str]]:
        """All files it needs, each with the place that names it, which may be empty."""
        ...


def has_ending(path: Path, what: What) -> bool:
    return path.suffix.lower() in ENDINGS[what] and not path.name.startswith(".")
