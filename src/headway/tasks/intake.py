"""What an objective sees of a front: examples cut to what a model reads at once, and made a batch.

An objective asks its intake and never which front it has. An intake holds settings and no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from headway.config.run import Resolved
from headway.data.batches import Fixed, Rows, StepPlan
from headway.models.parts.heads import Input
from headway.nn.devices import CPU
from headway.tasks.items import Draw, Unit
from headway.tasks.specs import Modality, front_reads
from headway.text.tokenizer import Tokenizer

C_contra = TypeVar("C_contra", contravariant=True)


class Cuts(Protocol):
    """The examples of one split as a front reads them, in windows where they are too long."""

    @property
    def lengths(self) -> Rows:
        """Rows of the flat batch that each item takes; the same array every time."""
        ...

    @property
    def owner(self) -> Rows:
        """The example that each item is, or is a window of; ascending."""
        ...

    @property
    def needed(self) -> Rows:
        """Rows of each example, read whole."""
        ...

    def collate(
        self,
        rows: Rows,
        device: torch.device = CPU,
        fixed: Fixed | None = None,
        draw: Draw | None = None,
    ) -> Input:
        """These items, still on the host; `device` is where they go. In a fixed
        form there may be more sequences than items: the rest counts nothing."""
        ...

    def shown(self, stream: Input) -> Input:
        """What was collated as the front reads it, on its device."""
        ...

    def fixed(self, plan: StepPlan, micro_tokens: int) -> Fixed | None:
        """The form of every batch of a recorded step; None where there is none."""
        ...

    def units(self, row: int) -> Sequence[Unit]:
        """What the rows of an item are."""
        ...


class Intake(Protocol[C_contra]):
    def cut(self, columns: C_contra) -> Cuts: ...

    def refuse(self, cuts: Cuts, before: int | None = None) -> None:
        """Raise `DataError` where something is too long and may not be cut. `before`: examples that
        were answered already, where these are asked and not learned."""
        ...

    def vary(self, model: nn.Module, stream: Input, targets_BC: Tensor) -> tuple[Input, Tensor]:
        """Changed by chance, as `[augment]` says, and what it is then a batch of."""
        ...


INTAKES: dict[Modality, str] = {
    "text": "intake_text.TextIntake",
    "pictures": "intake_pictures.PictureIntake",
    "videos": "intake_pictures.PictureIntake",
    "sounds": "intake_sounds.SoundIntake",
}
"""A class for each kind of data, imported when it is needed, made by its `of`."""


def intake_of(settings: Resolved, tokenizer: Tokenizer | None = None) -> Intake[Any]:
    """Of the front that the model of a run has."""
    module, name = INTAKES[front_reads(settings.model)].split(".")
    made: Intake[Any] = getattr(import_module(f"headway.tasks.{module}"), name).of(
        settings, tokenizer
    )
    return made
