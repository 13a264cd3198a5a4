"""Classes of pictures: a ViT, with what small sets of small pictures need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal, because
from headway.config.model import PictureSettings
from headway.config.run import Resolved, RunSettings
from headway.data.media.prepared import prepare_media
from headway.data.media.reading import What
from headway.data.store import Prepared, load_prepared
from headway.errors import ConfigError
from headway.models.parts.pictures import Pictures
from headway.models.parts.sounds import Sound
from headway.progress import Progress
from headway.tasks.begun import begun_with
from headway.tasks.fronts import SMALL_PICTURE, picture_shape, pixel_statistics, stored_form
from headway.tasks.intake_pictures import PictureChanges
from headway.tasks.kind import Predictor, Use
from headway.tasks.media_labels import LabelTask, Shown, label_metrics, one_hot
from headway.tasks.proposals import media_proposal, stored_front
from headway.tasks.scores import Scores
from headway.tasks.see_teacher import Teacher, check_teacher
from headway.tasks.specs import spec_of

LEAST_GRID = 24
"""Pixels of a side from which on the cells of a feature grid, 8 pixels apart, are enough."""


@dataclass
class SeeTask(LabelTask):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.changes = PictureChanges(self.settings.augment)
        self.teacher = Teacher(self.settings) if self.settings.classify.teacher else None

    def changed(
        self, model: nn.Module, given: Pictures | Sound, targets_BC: Tensor
    ) -> tuple[Pictures | Sound, Tensor]:
        assert isinstance(given, Pictures)
        return self.changes(given, targets_BC)

    def taught(self, given: Shown) -> Tensor:
        """What the teacher says about the very same picture. There is none where an imported DeiT
        is trained further."""
        if self.teacher is None:
            return super().taught(given)
        return one_hot(self.teacher.answers(given.stream.values), self.n_labels)


class See:
    what: What = "pictures"

    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        if self.what == "pictures":
            _check_token(settings)
        shape = picture_shape(settings, self.what)
        return prepare_media(self.what, settings, folder, progress, target="label", shape=shape)

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        return f"{prepared.train.n:,} {self.what} of {len(prepared.labels)} classes"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        stored = stored_form(prepared)
        return Facts(
            n=prepared.train.n,
            labels=tuple(prepared.labels),
            front=picture_shape(settings, self.what, stored=stored),
            stored=stored,
            colours=pixel_statistics(prepared.train.pictures),
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        shape = with_stem(facts.picture, settings, device)
        rows = facts.rows(shape)
        heads = ("classes", "distilled") if shape.distil_token else ("classes",)
        return media_proposal(
            settings,
            facts,
            device,
            f"{facts.n:,} {self.what}",
            n_rows=rows * facts.n,
            longest=rows,
            epochs=epochs_for(facts.n, device),
            needs={"heads": heads, "n_labels": len(facts.labels)},
            shape=small_vit(shape, facts.n, device),
            front=stored_front(replace(facts, front=shape)),
            training={**FROM_SCRATCH, "lr": 8e-3 if device.is_cpu else 4e-3},
            tuning={"smoothing": 0.1},
            augment=augment_for(shape),
            metrics=label_metrics(spec_of(settings), len(facts.labels)),
        ).also(because("what the files hold", "classify", {"what": self.what}))

    def check(self, settings: Resolved, prepared: Prepared) -> None:
        if settings.classify.teacher:
            check_teacher(settings)

    def task(self, settings: Resolved, prepared: Prepared) -> LabelTask:
        return SeeTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.media_answers import Labeller

        return Labeller.of(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.media_scores import evaluate_labels

        return evaluate_labels(use, files)


FROM_SCRATCH: dict[str, Any] = {
    "optimizer": "muon", "schedule": "linear", "weight_decay": 0.05, "clip": 1.0, "smoothing": 0.1,
}  # fmt: skip


def epochs_for(n_items: int, device: DeviceFacts) -> int:
    """Few pictures are seen more often; a CPU has less patience."""
    few, some, many = (60, 20, 5) if device.is_cpu else (300, 100, 30)
    return few if n_items < 5_000 else some if n_items < 50_000 else many


def small_vit(shape: PictureSettings, n_items: int, device: DeviceFacts) -> dict[str, object]:
    """A model for so many pictures: convolutions first, which know that neighbours belong together
    and spare a ViT from learning it, and no more layers than the data can fill. On a CPU the
    convolutions also leave it few rows to read."""
    tiny = {"n_layers": 3, "d_model": 96, "n_heads": 3, "d_ff": 192}
    small = {"n_layers": 6, "d_model": 192, "n_heads": 3, "d_ff": 576}
    middle = {"n_layers": 9, "d_model": 256, "n_heads": 4, "d_ff": 768}
    large = {"n_layers": 12, "d_model": 384, "n_heads": 6, "d_ff": 1536}
    if device.is_cpu:
        size = tiny
    else:
        size = small if n_items < 10_000 else middle if n_items < 300_000 else large
    return {**size, "pooling": "first" if shape.class_token else "mean"}


def with_stem(
    shape: PictureSettings, settings: RunSettings, device: DeviceFacts
) -> PictureSettings:
    """What makes rows of pixels, where nobody says."""
    asked = settings.asked.under("model.picture")
    named = settings.model is not None or bool(settings.origin)
    if named or "stem" in asked or "patch" in asked or shape.frames > 1:
        return shape
    if max(shape.height, shape.width) > SMALL_PICTURE:
        return shape
    if device.is_cpu and min(shape.height, shape.width) >= LEAST_GRID:
        return replace(shape, stem="grid", stem_width=16)
    return replace(shape, stem="conv", stem_width=16 if device.is_cpu else 64)


def augment_for(shape: PictureSettings) -> dict[str, object]:
    """What hardly ever changes what a picture shows: it may stand a little elsewhere. Mirrored
    digits are others, so mirroring and stronger changes are the user's to ask for."""
    return {"crop": max(1, min(shape.height, shape.width) // 16)}


def _check_token(settings: RunSettings) -> None:
    """A teacher and a token that learns from it go together."""
    teacher = settings.classify.teacher
    token = settings.asked.get("model.picture.distil_token")
    if teacher and not token and settings.model is None and not settings.origin:
        raise ConfigError(
            "classify.teacher teaches the distillation token, and the model has none. Set "
            "model.picture.distil_token=true."
        )
    if token and not teacher and not settings.origin:
        raise ConfigError(
            "model.picture.distil_token learns from another run: name it with classify.teacher=RUN."
        )
