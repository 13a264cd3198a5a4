"""Preprocessing of images and videos: collation and augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan
from headway.data.masking import PatchMasker
from headway.data.media.store import ImageStore
from headway.data.store import Columns
from headway.models.parts.output_heads import ModelInput
from headway.models.parts.vision import ImageBatch, collate_images
from headway.nn.augment import Augment
from headway.nn.devices import CPU
from headway.nn.layout import Layout
from headway.settings.augment import AugmentSettings
from headway.settings.model import ImageSettings
from headway.settings.vision import GRID_STRIDE
from headway.specs.task_settings import FillSettings
from headway.tasks.dataset import EpochSeed, PositionInfo
from headway.tasks.masked_media import MaskedPatchDataset
from headway.tasks.preprocess.preprocessor import MediaPreprocessor, UnsplitDataset
from headway.tasks.thumbnails import Thumbnail, data_uri


@dataclass(frozen=True)
class DeviceImages:
    """Indices of a batch of images that are already on the device."""

    rows_B: Tensor


@dataclass(frozen=True)
class ImageDataset(UnsplitDataset):
    store: ImageStore
    shape: ImageSettings

    @cached_property
    def lengths(self) -> IntArray:
        return n_image_positions(self.store, self.shape)

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max())

    def collate(
        self,
        rows: IntArray,
        device: torch.device = CPU,
        fixed: FixedShapes | None = None,
        draw: EpochSeed | None = None,
    ) -> ModelInput:
        """Collate images into a batch. With fixed shapes, the first images are repeated until the
        batch is full."""
        if fixed is not None:
            rows = np.resize(rows, fixed.n_sequences)
        layout = Layout.of(self.lengths[rows].tolist())
        if fixed is not None and fixed.longest_target is not None:
            # Give the layout fixed shapes explicitly, because the batch also has texts.
            layout = Layout.fixed(
                self.lengths[rows].tolist(), n_rows=fixed.source_rows,
                n_sequences=fixed.n_sequences, longest=fixed.longest,
            )  # fmt: skip
        if self._held(device) is not None:
            return ModelInput(DeviceImages(torch.from_numpy(rows)), layout)
        if self.store.equal is not None:
            return ModelInput(ImageBatch((self.store.gather(rows),)), layout)
        images = [self.store[row] for row in rows.tolist()]
        return ModelInput(collate_images(images, self.shape)[0], layout)

    def to_model_input(self, stream: ModelInput) -> ModelInput:
        if not isinstance(stream.values, DeviceImages):
            return stream
        rows_B = stream.values.rows_B
        held = self._held(rows_B.device)
        assert held is not None
        return replace(stream, values=ImageBatch((held.index_select(0, rows_B),)))

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        """Return fixed shapes if all images have the same size, otherwise None."""
        if self.store.equal is None:
            return None
        n = max(1, plan.part_limit(micro_tokens) // self.longest)
        rows = n * self.longest
        return FixedShapes(source_rows=rows, target_rows=rows, n_sequences=n, longest=self.longest)

    def describe_positions(self, row: int) -> list[PositionInfo]:
        frames, _, height, width = self.store.shapes[row].tolist()
        return describe_patches(self.shape, frames, height, width)

    def _held(self, device: torch.device) -> Tensor | None:
        """Return all images as one tensor on the device; None on a CPU, or if they do not fit into
        the device's memory."""
        if device.type == "cpu":
            return None
        place = torch.empty(0, device=device).device  # "cuda" and "cuda:0" are the same device
        if place not in self._copies:
            self._copies[place] = self.store.on(place).copy
        return self._copies[place]

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor | None]:
        return {}


@dataclass(frozen=True)
class ImagePreprocessor(MediaPreprocessor[ImageSettings]):
    def thumbnail(self, example: ArrayLike) -> Thumbnail:
        return {"image": data_uri(example)}

    def input_dataset(self, columns: Columns) -> ImageDataset:
        return ImageDataset(columns.images, self.shape)

    def columns(self, examples: Sequence[NDArray[np.uint8]]) -> Columns:
        """Return a dataset in memory with these images or videos, given as pixels (T C Y X)."""
        return Columns({"image": ImageStore.of(examples)})

    @cached_property
    def augmentation(self) -> ImageAugmentation:
        return ImageAugmentation(self.augment)

    def apply_augmentation(
        self, model: nn.Module, stream: ModelInput, targets_BC: Tensor
    ) -> tuple[ModelInput, Tensor]:
        given, targets_BC = self.augmentation(stream.values, targets_BC)
        return replace(stream, values=given), targets_BC

    def masked_dataset(self, columns: Columns, how: FillSettings) -> MaskedPatchDataset:
        hider = PatchMasker(how.mask, how.span)
        return MaskedPatchDataset(
            self.apply_augmentation, self.input_dataset(columns), hider, shape=self.shape
        )


class ImageAugmentation:
    """Augmentation of images and videos, computed on the device of the batch."""

    def __init__(self, settings: AugmentSettings) -> None:
        self.augment = Augment(settings)
        changed = ("flip", "crop", "rand", "erase", "mixup", "cutmix")
        self.none = not any(getattr(settings, name) for name in changed)

    def __call__(self, given: ImageBatch, targets_BC: Tensor) -> tuple[ImageBatch, Tensor]:
        """Return augmented images and targets; all images have the same size. Mixup and CutMix also
        mix the targets (B C)."""
        if self.none:
            return given, targets_BC
        (group,) = given.groups
        with torch.no_grad():
            x_BTCYX = self.augment(group)
            if self.augment.mixes:
                x_BTCYX, targets_BC, *_ = self.augment.mix(x_BTCYX, targets_BC)
        return replace(given, groups=(x_BTCYX,)), targets_BC


def n_image_positions(store: ImageStore, shape: ImageSettings) -> IntArray:
    """Return the number of positions of each image or video."""
    shapes, place = np.unique(np.asarray(store.shapes), axis=0, return_inverse=True)
    rows = np.array([shape.rows_of(t, y, x) for t, _, y, x in shapes.tolist()], dtype=np.int64)
    return rows[place.reshape(-1)]


def describe_patches(
    shape: ImageSettings, frames: int, height: int, width: int
) -> list[PositionInfo]:
    """Return a description of each position: first the class and distillation tokens, then the
    patches by time, height and width."""
    time, lines, columns = shape.grid_of(frames, height, width)
    grid = shape.stem == "grid"
    side, step = (GRID_STRIDE, GRID_STRIDE) if grid else (shape.patch, shape.step)
    names = [name for name, there in (("class", shape.class_token), ("distil", shape.distil_token))
             if there]  # fmt: skip
    found = [PositionInfo(text=name, special=True) for name in names]
    for t in range(time):
        span = (float(t * shape.tubelet), float((t + 1) * shape.tubelet)) if time > 1 else None
        for y in range(lines):
            for x in range(columns):
                left, top = x * step, y * step
                box = (left, top, min(left + side, width), min(top + side, height))
                found.append(PositionInfo(box=box, time=span))
    return found
