"""`fill` on pictures, videos and recordings, as a run sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.config.facts import DeviceFacts, Facts, Proposal, Survey, because
from headway.config.model import PictureSettings, SoundSettings
from headway.config.run import RunSettings
from headway.data.media.prepared import prepare_media
from headway.data.media.reading import UNITS, What
from headway.data.store import Prepared
from headway.errors import ConfigError
from headway.progress import Progress
from headway.tasks.begun import begun_with
from headway.tasks.fronts import (
    item_rows,
    picture_shape,
    pixel_statistics,
    sound_shape,
    stored_form,
)
from headway.tasks.label_choices import STANDARD, augment_for, epochs_for, size_for, small_vit
from headway.tasks.media_given import what_of
from headway.tasks.modality import row_of
from headway.tasks.proposals import media_proposal, stored_front

OF_LABELS = ("mixup", "cutmix")

PICTURES: dict[str, Any] = {"mask": 0.6, "span": 1}
SOUNDS_USUALLY: dict[str, Any] = {"mask": 0.5, "span": 10}
"""Shares that leave a task: what is beside a patch, or a moment before, says much about it."""

TRAINING: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "cosine", "lr": 1.5e-3, "weight_decay": 0.05, "beta2": 0.95,
    "eps": 1e-8, "clip": 1.0, "smoothing": 0.0,
}  # fmt: skip


def prepare(settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
    what = row_of(settings).modality
    assert what != "text"
    what, shape = form_of(settings, what)
    check_augment(settings, what)
    return prepare_media(what, settings, folder, progress, target="none", shape=shape)


def describe(prepared: Prepared) -> str:
    return f"{prepared.train.n:,} {UNITS[prepared.what]}"


def facts(settings: RunSettings, prepared: Prepared) -> Facts:
    stored = stored_form(prepared)
    what, front = form_of(settings, prepared.what, stored)
    found = Facts(n=prepared.train.n, front=front, stored=stored, begun=begun_with(settings))
    if what != "sounds":
        return replace(found, colours=pixel_statistics(prepared.train.pictures))
    rows_N = item_rows(prepared.train.media, front)
    return replace(found, n_tokens=int(rows_N.sum()), longest=int(rows_N.max()))


def propose(settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
    """A model as from scratch of the tasks that will start from it."""
    front = facts.front
    assert front is not None
    what: What = what_of(front)
    n_rows, longest = facts.n_tokens, facts.longest
    family, shape, augment, usual = "sound-encoder", size_for(device), {}, SOUNDS_USUALLY
    if isinstance(front, PictureSettings):
        longest = facts.rows(front)
        n_rows = longest * facts.n
        family, augment, usual = "picture-encoder", augment_for(front), PICTURES
        # Nothing teaches the class token here, so that a run which starts from this one had better
        # read its classes from the patches.
        shape = {**small_vit(front, facts.n, device), "pooling": "mean"}
    found = media_proposal(
        settings,
        facts,
        device,
        f"{facts.n:,} {UNITS[what]}",
        n_rows=n_rows,
        longest=longest,
        epochs=2 * epochs_for(facts.n, device),
        family=family,
        needs={"heads": ("rebuild",)},
        shape=shape,
        front=stored_front(facts),
        training=TRAINING,
        augment=augment,
    )
    why = "what is beside a hidden part says much about it"
    return found.also(
        because(why, "fill", usual), because("what the files hold", "fill", {"what": what})
    )


def form_of(
    settings: RunSettings, what: What, stored: Survey | None = None
) -> tuple[What, PictureSettings | SoundSettings]:
    """What the files hold, and the front that reads it."""
    if what == "sounds":
        return what, sound_shape(settings, STANDARD, stored)
    return what, picture_shape(settings, what, stored=stored)


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
