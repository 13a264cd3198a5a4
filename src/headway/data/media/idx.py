"""IDX files, as of MNIST and Fashion-MNIST: pictures in one file, labels in another beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headway.data.media.arrays import npy_frames, open_idx
from headway.data.media.image import Reading
from headway.data.media.open_item import Form, in_form
from headway.data.media.source import MediaItem, Target
from headway.errors import DataError


class IdxSource:
    def __init__(self, path: Path, form: Form, target: Target) -> None:
        self.path = path
        self.form = form
        if form.what != "pictures":
            raise DataError(f"{path} is an IDX file of pictures; {form.what} are needed.")
        if target == "text":
            raise DataError(f"{path} is an IDX file: it comes with labels, not with texts.")
        self.pictures = open_idx(path)
        if self.pictures.ndim not in (3, 4):
            raise DataError(
                f"{path} has {self.pictures.ndim} axes; pictures have the axes N Y X [C]. "
                "Give the file of pictures; that of the labels is found beside it."
            )
        self.label_path = _labels_beside(path) if target == "label" else None
        self.labels = None
        if self.label_path is not None:
            self.labels = open_idx(self.label_path)
            if self.labels.shape != (len(self.pictures),):
                raise DataError(
                    f"{path} has {len(self.pictures):,} pictures, but {self.label_path} has "
                    f"{len(self.labels):,} labels."
                )

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int, /) -> MediaItem:
        place = f"{self.path.name}:{i}"

        def read() -> Reading:
            pixels = npy_frames(self.pictures[i], False, self.form.channels, place)
            return in_form(pixels, self.form)

        label = None if self.labels is None else str(int(self.labels[i]))
        return MediaItem(place, read, label)

    def files(self) -> Iterator[tuple[Path, str]]:
        yield self.path, ""
        if self.label_path is not None:
            yield self.label_path, ""


def is_idx(path: Path) -> bool:
    return ("idx" in path.name.lower() and path.suffix.lower() in ("", ".gz", ".idx")) or (
        path.name.lower().endswith("ubyte")
    )


def idx_in_folder(folder: Path) -> Path | None:
    """The file of training pictures, or the only one."""
    found = sorted(p for p in folder.iterdir() if is_idx(p) and "images" in p.name)
    training = [p for p in found if p.name.startswith("train")] or found
    # The same file may lie there packed and unpacked.
    names = {p.name.removesuffix(".gz") for p in training}
    if len(names) > 1:
        raise DataError(f"{folder} has several IDX files: {', '.join(sorted(names))}. Name one.")
    return training[0] if training else None


def _labels_beside(path: Path) -> Path:
    name = path.name.removesuffix(".gz")
    for end in ("idx3", "idx4"):
        name = name.replace(end, "idx1")
    name = name.replace("images", "labels")
    for found in (path.with_name(name), path.with_name(f"{name}.gz")):
        if found.is_file() and name != path.name.removesuffix(".gz"):
            return found
    raise DataError(f"{path} has no labels beside it: {name} or {name}.gz is missing.")
