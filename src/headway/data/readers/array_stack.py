"""Read images and videos that are stacked in one file: `.npy` arrays, and IDX files such as MNIST.
The labels of an IDX file are in a second file next to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from headway.data.files import DataFiles
from headway.data.media.arrays import open_idx, open_npy
from headway.data.media.open_item import MediaRef, MediaRegion
from headway.data.sniff import is_idx
from headway.data.table import SAMPLE, RawRow, Table
from headway.errors import DataError

FILE, LABEL = "(item)", "(label)"
CHANNELS = (1, 3, 4)
"""Numbers of channels of greyscale, RGB and RGBA images. In an array, a last axis of this length is
taken for the channels."""


def open_stack(path: Path) -> Table:
    """Return a table with one row per item of an .npy stack, without labels."""
    return _table(path, len(open_npy(str(path))))


def is_stack(path: Path, *, moving: bool) -> bool:
    """Whether an .npy file contains several images; with `moving`, several videos."""
    shape = open_npy(str(path)).shape
    one = 3 if moving else 2
    return len(shape) > one + 1 or (len(shape) == one + 1 and shape[-1] not in CHANNELS)


def open_mnist(path: Path, *, labelled: bool) -> Table:
    """Return a table with one row per image of an IDX file. If labels are needed, they are read
    from the file next to it."""
    images = open_idx(path)
    if images.ndim not in (3, 4):
        raise DataError(
            f"{path} has {images.ndim} axes, but a file of images has the axes N Y X or N Y X C "
            "(images, rows, columns, channels). Give the file of images. The file of labels next "
            "to it is found automatically."
        )
    if not labelled:
        return _table(path, len(images))
    beside = labels_beside(path)
    labels = open_idx(beside)
    if labels.shape != (len(images),):
        raise DataError(
            f"{path} has {len(images):,} images, but {beside} has {len(labels):,} labels."
        )
    return _table(path, len(images), list(map(str, labels.tolist())))


def _table(path: Path, n: int, labels: Sequence[str] | None = None) -> Table:
    columns = (FILE,) if labels is None else (FILE, LABEL)
    name = str(path)

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        for i in range(n):
            item = MediaRef(name, MediaRegion(index=i))
            yield RawRow([item if one == FILE or labels is None else labels[i] for one in names], i)

    sample = [
        dict(zip(columns, raw.values or (), strict=True)) for raw in islice(read(columns), SAMPLE)
    ]
    form = "a stack" if labels is None else "a stack, with labels"
    return Table(columns, sample, read, name=name, form=form, header=False, n=n)


def idx_in_folder(folder: Path, files: DataFiles) -> Path | None:
    """Return the IDX file of images in a folder, preferably that of training images; None if there
    is none. Raise a `DataError` if several files fit."""
    found = sorted(p for p in files.entries(folder) if is_idx(p) and "images" in p.name)
    training = [p for p in found if p.name.startswith("train")] or found
    # The folder may contain the same file in compressed and uncompressed form.
    names = {p.name.removesuffix(".gz") for p in training}
    if len(names) > 1:
        raise DataError(
            f"{folder} contains several IDX files: {', '.join(sorted(names))}. Give "
            "the path of one."
        )
    return training[0] if training else None


def labels_beside(path: Path) -> Path:
    name = path.name.removesuffix(".gz")
    for end in ("idx3", "idx4"):
        name = name.replace(end, "idx1")
    name = name.replace("images", "labels")
    for found in (path.with_name(name), path.with_name(f"{name}.gz")):
        if found.is_file() and name != path.name.removesuffix(".gz"):
            return found
    raise DataError(f"{path} has no file of labels next to it: {name} or {name}.gz is missing.")
