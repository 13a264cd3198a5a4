"""`fill` on pictures, videos and recordings, as a run sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headway.config.model import PictureSettings, SoundSettings
from headway.config.run import RunSettings
from headway.data.media.arrays import open_npy
from headway.data.media.manifest import is_manifest, read_manifest
from headway.data.media.prepared import PreparedMedia, prepare_media
from headway.data.media.reading import UNITS, What
from headway.data.media.sounds import SUFFIXES as SOUNDS
from headway.errors import ConfigError
from headway.progress import Progress
from headway.tasks.identify import STANDARD
from headway.tasks.media_given import what_of
from headway.tasks.see import epochs_for, small_vit
from headway.tasks.specs import spec_of
from headway.training.mediaplan import (
    MediaPlan,
    flat_front,
    item_rows,
    picture_shape,
    pixel_statistics,
    resolve_media,
    sound_shape,
)
from headway.training.textplan import left_open, model_of

OF_TEXT = ("context", "whole_words", "random", "keep")
OF_MEDIA = ("what", "span")
OF_LABELS = ("mixup", "cutmix")

PICTURES: dict[str, Any] = {"mask": 0.6, "span": 1}
SOUNDS_USUALLY: dict[str, Any] = {"mask": 0.5, "span": 10}
"""Shares that leave a task: what is beside a patch, or a moment before, says much about it."""

TRAINING: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "cosine", "lr": 1.5e-3, "weight_decay": 0.05, "beta2": 0.95,
    "eps": 1e-8, "clip": 1.0, "smoothing": 0.0,
}  # fmt: skip


def prepare(settings: RunSettings, folder: Path, progress: Progress) -> PreparedMedia:
    check_fill(settings, OF_TEXT, "pictures and recordings")
    what, shape = form_of(settings)
    check_augment(settings, what)
    return prepare_media(what, settings, folder, progress, target="none", shape=shape)


def describe(prepared: PreparedMedia) -> str:
    return f"{len(prepared.train):,} {UNITS[prepared.what]}"


def resolve(settings: RunSettings, prepared: PreparedMedia, device: torch.device) -> RunSettings:
    what, shape = form_of(settings)
    usual = SOUNDS_USUALLY if what == "sounds" else PICTURES
    settings = replace(
        settings,
        fill=replace(settings.fill, **left_open(settings, "fill", {**usual, "what": what})),
    )
    rows_N = item_rows(prepared.train.items, shape)
    plan = MediaPlan(
        n_tokens=int(rows_N.sum()),
        n_items=len(rows_N),
        longest=int(rows_N.max()),
        epochs=2 * epochs_for(len(rows_N), device),
        family="sound-encoder" if what == "sounds" else "picture-encoder",
        model={"heads": ("rebuild",)},
        chosen=_chosen(shape, prepared, device),
        training=TRAINING,
        augment=_augment(shape),
        metrics=spec_of(settings).scores,
    )
    settings = resolve_media(settings, prepared, device, plan)
    check_shape(getattr(settings.model, "picture", None))
    return settings


def _chosen(
    shape: PictureSettings | SoundSettings, prepared: PreparedMedia, device: torch.device
) -> dict[str, Any]:
    """As for a model from scratch of the tasks that will start from it."""
    if isinstance(shape, PictureSettings):
        found = pixel_statistics(prepared.train.pictures)
        mean_and_std = {f"picture.{name}": values for name, values in found.items()}
        # Nothing teaches the class token here, so that a run which starts from this one had better
        # read its classes from the patches.
        vit = small_vit(shape, len(prepared.train), device)
        return {**vit, **mean_and_std, "pooling": "mean"}
    size = {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 256}
    if device.type != "cpu":
        size = {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 768}
    return {**flat_front(shape), **size}


def _augment(shape: PictureSettings | SoundSettings) -> dict[str, Any]:
    if isinstance(shape, SoundSettings):
        return {}
    return {"crop": max(1, min(shape.height, shape.width) // 16)}


def form_of(settings: RunSettings) -> tuple[What, PictureSettings | SoundSettings]:
    """What the files hold, and the front that reads it."""
    what = what_in(settings)
    if what == "sounds":
        return what, sound_shape(settings, STANDARD)
    return what, picture_shape(settings, what)


def what_in(settings: RunSettings) -> What:
    if settings.fill.what != "auto":
        return settings.fill.what
    model = model_of(settings.origin) if settings.origin else settings.model
    front = getattr(model, "sound", None) or getattr(model, "picture", None)
    if isinstance(front, PictureSettings | SoundSettings):
        return what_of(front)
    if any(key.startswith("model.sound.") for key in settings.asked):
        return "sounds"
    if settings.asked.get("model.picture.frames", 1) > 1:
        return "videos"
    return named(Path(settings.data.media[0]), settings)


def named(path: Path, settings: RunSettings) -> What:
    """What a file is by its name, and a folder or a list by that of its first file."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SOUNDS)
        return "sounds" if files and files[0].suffix != ".npy" else "pictures"
    if path.is_file() and is_manifest(path):
        first = next(read_manifest(str(path), settings.data, "none"), None)
        if first is None:
            return "pictures"
        return "sounds" if first.part.rate else named(path.parent / first.path, settings)
    if path.suffix == ".npy" and path.is_file():
        return "videos" if open_npy(str(path)).ndim == 5 else "pictures"
    return "sounds" if path.suffix.lower() in SOUNDS else "pictures"


def check_fill(settings: RunSettings, foreign: tuple[str, ...], what: str) -> None:
    for name in foreign:
        if f"fill.{name}" in settings.asked:
            raise ConfigError(f"fill.{name} has no effect on {what}. Leave it out.")


def check_augment(settings: RunSettings, what: What) -> None:
    for name in OF_LABELS:
        if getattr(settings.augment, name):
            raise ConfigError(
                f"augment.{name} mixes two pictures and their labels; fill has none. Leave it out."
            )
    asked = [key for key in settings.asked if key.startswith("augment.")]
    if what == "sounds" and asked:
        raise ConfigError(
            f"{asked[0]} has no effect on fill with recordings: parts of them are hidden already. "
            "Leave it out."
        )
    for name in settings.augment.without_effect("pictures"):
        raise ConfigError(
            f"augment.{name} changes recordings and has no effect on fill with pictures. Leave it "
            "out."
        )


def check_shape(picture: PictureSettings | None) -> None:
    """A hidden patch must be hidden."""
    if picture is None:
        return
    if picture.stem == "grid":
        raise ConfigError(
            "picture.stem=grid has no patches that could be hidden. Use patches or conv."
        )
    if picture.step < picture.patch:
        raise ConfigError(
            f"picture.stride={picture.stride} lets patches overlap, so that a hidden one is seen "
            "in those beside it. Leave picture.stride out."
        )
