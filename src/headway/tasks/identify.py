"""Who speaks: classes of recordings, and vectors that tell whether two are of one speaker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal
from headway.config.run import Resolved, RunSettings
from headway.data.store import Prepared
from headway.models.parts.heads import Angles
from headway.progress import OnProgress, unheard
from headway.tasks.hear import Hear, HearTask, recording_proposal
from headway.tasks.kind import Predictor, Use
from headway.tasks.media_labels import (
    labels_of,
)
from headway.tasks.media_reader import MediaReader, readings
from headway.tasks.read import OneVector, Read
from headway.tasks.scores import Scores
from headway.tasks.task import Frequencies, TaskLoss
from headway.tasks.verify import verification

MOST_VERIFIED = 2000
"""Validation recordings that are compared with each other."""


class IdentifyTask(HearTask):
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


class Identify(Hear):
    """As classes of recordings, with vectors that are compared."""

    def describe(self, prepared: Prepared) -> str:
        return f"{prepared.train.n:,} recordings of {len(prepared.labels)} speakers"

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        return recording_proposal(settings, facts, device)

    def task(self, settings: Resolved, prepared: Prepared) -> IdentifyTask:
        return IdentifyTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.identify_answers import identifier

        return identifier(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.identify_answers import evaluate_speakers

        return evaluate_speakers(use, files)
