"""Who speaks: classes of recordings, and vectors that tell whether two are of one speaker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal
from headway.config.run import Resolved, RunSettings
from headway.data.media.prepared import PreparedMedia, load_prepared_media, prepare_media
from headway.models.parts.heads import Angles
from headway.models.parts.pictures import Pictures
from headway.models.parts.sounds import Sound, SoundFront
from headway.progress import OnProgress, Progress, unheard
from headway.tasks.begun import begun_with
from headway.tasks.fronts import item_rows, sound_shape, stored_form
from headway.tasks.kind import Predictor, Use
from headway.tasks.media_changes import SoundChanges
from headway.tasks.media_labels import (
    Chosen,
    LabelTask,
    label_metrics,
    labels_of,
)
from headway.tasks.media_reader import MediaReader, Speeds, readings
from headway.tasks.proposals import media_proposal, stored_front
from headway.tasks.read import OneVector, Read
from headway.tasks.scores import Scores
from headway.tasks.specs import spec_of
from headway.tasks.task import Frequencies, TaskLoss
from headway.tasks.verify import verification

MOST_VERIFIED = 2000
"""Validation recordings that are compared with each other."""

STANDARD = {"scale": "standard"}
"""Of the mel front of a model from scratch: neither loudness nor the microphone's colour says who
speaks."""


@dataclass
class IdentifyTask(LabelTask):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.changes = SoundChanges(self.settings.augment)

    def before(self, part: Chosen) -> Speeds | None:
        seed = self.settings.train.seed
        return lambda rows: self.changes.speeds(rows.tolist(), seed, part.epoch)

    def changed(
        self, model: nn.Module, given: Pictures | Sound, targets_BC: Tensor
    ) -> tuple[Pictures | Sound, Tensor]:
        assert isinstance(given, Sound)
        front = model.front
        assert isinstance(front, SoundFront)
        return self.changes(front, given), targets_BC

    def priced(self, read: Read, targets_BC: Tensor) -> TaskLoss:
        """With a margin: a recording must be nearer to its own speaker by so much of an angle
        (ArcFace, Deng et al. 2019)."""
        if isinstance(read.scores, Angles):
            scores_BC = turned(read.x_RD, read.scores, targets_BC, self.settings.identify.margin)
            read = replace(read, held_RC=scores_BC.log_softmax(-1))
        return super().priced(read, targets_BC)

    def frequencies(self) -> Frequencies | None:
        """A margin makes the loss larger than that of classes."""
        return None if self.settings.identify.margin else super().frequencies()

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool],
        full: bool,
        on_progress: OnProgress = unheard,
        *,
        most: int | None = None,
    ) -> Scores:
        scores = super().evaluate(model, device, stopped, full, on_progress, most=most)
        if full:
            found = self.verified(model, device, stopped, most)
            if found is not None:
                scores.figures["verification"] = found.facts
        return scores

    def verified(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool] = lambda: False,
        most: int | None = None,
    ) -> Any:
        """How well the vectors of validation recordings tell whether the speaker is the same; None
        where no two are of one speaker."""
        most = min(MOST_VERIFIED, most or MOST_VERIFIED)
        vectors_ND = item_vectors(model, self.valid, device, stopped, most)
        return verification(vectors_ND, labels_of(self.prepared.valid)[:most])


def turned(x_BD: Tensor, angles: Angles, targets_BC: Tensor, margin: float) -> Tensor:
    """Scores as if the angle to the right class were larger by the margin."""
    cos_BC = angles.cosines(x_BD).clamp(-1 + 1e-6, 1 - 1e-6)
    turned_BC = (cos_BC.acos() + margin).clamp(max=np.pi).cos()
    return angles.scale * torch.where(targets_BC > 0.5, turned_BC, cos_BC)


@torch.no_grad()
def item_vectors(
    model: nn.Module,
    reader: MediaReader,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
    most: int | None = None,
    on_progress: OnProgress = unheard,
) -> NDArray[np.float32]:
    """A vector of length one for each of the first `most` items."""
    found: dict[int, NDArray[np.float32]] = {}
    unit = OneVector(unit=True)
    for rows, read in readings(unit, model, reader, device, stopped, most, on_progress):
        found |= dict(zip(rows.tolist(), read.answers().cpu().numpy(), strict=True))
    return np.stack([found[row] for row in sorted(found)])


def size_for(device: DeviceFacts) -> dict[str, object]:
    """Layers and widths of a model that listens and has little to say."""
    if device.is_cpu:
        return {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 256}
    return {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 768}


class Identify:
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> PreparedMedia:
        shape = sound_shape(settings, STANDARD)
        return prepare_media("sounds", settings, folder, progress, target="label", shape=shape)

    def load_prepared(self, folder: Path) -> PreparedMedia:
        return load_prepared_media(folder)

    def describe(self, prepared: PreparedMedia) -> str:
        return f"{len(prepared.train):,} recordings of {len(prepared.labels)} speakers"

    def facts(self, settings: RunSettings, prepared: PreparedMedia) -> Facts:
        stored = stored_form(prepared)
        front = sound_shape(settings, STANDARD, stored)
        rows_N = item_rows(prepared.train.items, front)
        return Facts(
            n=len(rows_N),
            n_tokens=int(rows_N.sum()),
            longest=int(rows_N.max()),
            labels=tuple(prepared.labels),
            front=front,
            stored=stored,
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        return media_proposal(
            settings,
            facts,
            device,
            f"{facts.n:,} recordings",
            n_rows=facts.n_tokens,
            longest=facts.longest,
            epochs=15 if device.is_cpu else 40,
            needs={"heads": ("classes",), "n_labels": len(facts.labels)},
            shape={**size_for(device), "dropout": 0.1},
            front=stored_front(facts),
            training={
                "optimizer": "muon", "schedule": "linear", "lr": 4e-3, "weight_decay": 0.05,
                "clip": 1.0, "smoothing": 0.1,
            },
            tuning={"smoothing": 0.1},
            augment={"bands": 2, "band_width": 12, "spans": 2, "span_width": 15},
            metrics=label_metrics(spec_of(settings), len(facts.labels)),
        )  # fmt: skip

    def check(self, settings: Resolved, prepared: PreparedMedia) -> None: ...

    def task(self, settings: Resolved, prepared: PreparedMedia) -> IdentifyTask:
        return IdentifyTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.identify_answers import identifier

        return identifier(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.identify_answers import evaluate_speakers

        return evaluate_speakers(use, files)
