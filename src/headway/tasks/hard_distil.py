"""Hard distillation of an image classifier (DeiT, Touvron et al. 2021): the distillation token is
trained on the classes that a teacher predicts."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from headway.errors import ConfigError
from headway.models.parts.front import set_compute_dtype
from headway.models.parts.output_heads import ModelInput
from headway.nn.layout import Layout
from headway.settings.folder import load_run, run_folder
from headway.settings.model import ImageEncoderSettings, ImageSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.tasks.readout import OneClass


class HardTeacher:
    """Teacher of hard distillation. Its model is loaded on first use, on the device of the
    batch."""

    def __init__(self, settings: RunSettings) -> None:
        self.folder = run_folder(settings.classify.teacher)
        self.image = check_teacher(settings)
        self.dtype = torch.bfloat16 if settings.train.precision == "bf16" else None
        self.model: nn.Module | None = None
        self._layouts: dict[tuple[int, ...], Layout] = {}

    @torch.no_grad()
    def predict(self, given: ModelInput) -> Tensor:
        """Return the class that the teacher predicts for each image. All images of the batch must
        have the same size."""
        (group,) = given.values.groups
        if self.model is None:
            self.model = self._load(group.device)
        layout = self._layout(group)
        return (
            OneClass().read(self.model, replace(given, layout=layout)).averaged_logits().argmax(-1)
        )

    def _load(self, device: torch.device) -> nn.Module:
        from headway.tasks.loaded_run import open_run  # only a teacher opens another run

        opened = open_run(self.folder, device=str(device), precision="fp32", words=False)
        model = opened.model.requires_grad_(False)
        set_compute_dtype(model, self.dtype)
        return model

    def _layout(self, group: Tensor) -> Layout:
        """Return the layout of the teacher's patches, which may differ from the student's. It is
        cached, because CUDA graphs need the same tensors in every step."""
        key = tuple(group.shape)
        if key not in self._layouts:
            rows = self.image.rows_of(*(group.shape[i] for i in (1, 3, 4)))
            self._layouts[key] = Layout.of([rows] * len(group), group.device)
        return self._layouts[key]


def check_teacher(settings: RunSettings) -> ImageSettings:
    """Return the teacher's image settings. Raise an error unless the teacher has the student's
    classes and image size."""
    name, model = settings.classify.teacher, settings.model
    other = load_run(run_folder(name))
    if spec_of(other) != spec_of(settings):
        raise ConfigError(
            f"classify.teacher={name} is a run of the task {other.task} on "
            f"{spec_of(other).modality}. Choose a run of the task classify on images."
        )
    assert isinstance(model, ImageEncoderSettings)
    assert isinstance(other.model, ImageEncoderSettings)
    if other.labels != settings.labels:
        raise ConfigError(
            f"classify.teacher={name} has other classes than the data. "
            f"The teacher has {_listed(other.labels)}; the data has {_listed(settings.labels)}. "
            "Use data with the teacher's classes."
        )
    theirs, ours = other.model.image, model.image
    for field in ("height", "width", "channels"):
        if getattr(theirs, field) != getattr(ours, field):
            raise ConfigError(
                f"classify.teacher={name} reads images with "
                f"image.{field}={getattr(theirs, field)}, but this run has "
                f"{getattr(ours, field)}. Set model.image.{field}={getattr(theirs, field)}."
            )
    return theirs


def _listed(labels: tuple[str, ...], most: int = 8) -> str:
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" * (len(labels) > most))
