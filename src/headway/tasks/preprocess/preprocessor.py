"""Interface of preprocessing: examples of any modality are cut to the input length and collated
into batches.

An objective uses only this interface, whatever the modality. A preprocessor has settings but no
weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan
from headway.data.store import Columns
from headway.metrics.baselines import TextPair
from headway.models.parts.output_heads import ModelInput
from headway.nn.devices import CPU
from headway.settings.augment import AugmentSettings
from headway.settings.model import AudioSettings, ImageSettings
from headway.settings.run import Resolved, RunSettings, media_settings
from headway.settings.task_rows import front_reads
from headway.specs.needs import Modality
from headway.specs.task_settings import FillSettings
from headway.tasks.answers import JsonDict
from headway.tasks.dataset import Batch, EpochSeed, FloatArray, PositionInfo, TaskDataset
from headway.tasks.media_answers import FIRST_WINDOW
from headway.tasks.media_inputs import LoadedInput, load_media
from headway.tasks.thumbnails import Thumbnail, thumbnails
from headway.tokens.tokenizer import Tokenizer

TextParts = tuple[str, ...]
"""Text parts of an example: one text, the two texts of a pair, or the fields of a document in
order."""


InputLine = str | TextParts | LoadedInput
"""One input for prediction: a line of text, text that is already split into parts, or media that
are already loaded."""

Front = TypeVar("Front", bound=ImageSettings | AudioSettings)


class InputDataset(Protocol):
    """Examples of one split as inputs of a model; examples that are too long become several
    windows."""

    @property
    def lengths(self) -> IntArray:
        """Length of each item in tokens or positions; the same array object on every access."""
        ...

    @property
    def example_index(self) -> IntArray:
        """Index of the example that each item belongs to, in ascending order; several windows may
        belong to one example."""
        ...

    @property
    def full_lengths(self) -> IntArray:
        """Length of each whole example in tokens or positions."""
        ...

    def collate(
        self,
        rows: IntArray,
        device: torch.device = CPU,
        fixed: FixedShapes | None = None,
        draw: EpochSeed | None = None,
    ) -> ModelInput:
        """Collate items into a batch in host memory. `device` is where the batch will be used. A
        batch of fixed shapes may have more sequences than items; the additional ones have no
        weight."""
        ...

    def to_model_input(self, stream: ModelInput) -> ModelInput:
        """Convert a collated batch to the form that the model reads, on the model's device."""
        ...

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        """Fixed shapes of all batches, for CUDA graphs; None if batches cannot have fixed
        shapes."""
        ...

    def describe_positions(self, row: int) -> Sequence[PositionInfo]:
        """Descriptions of the tokens or positions of an item."""
        ...


class UnsplitDataset(ABC):
    """Base class of examples that are never split into windows."""

    @property
    @abstractmethod
    def lengths(self) -> IntArray: ...

    @property
    def full_lengths(self) -> IntArray:
        return self.lengths

    @cached_property
    def example_index(self) -> IntArray:
        return np.arange(len(self.lengths))

    def to_model_input(self, stream: ModelInput) -> ModelInput:
        return stream


class InputDatasetMixin:
    """Mixin for datasets (frozen dataclasses) with one item for each item of `inputs`; it needs the
    fields `inputs` and `epoch_seed`."""

    inputs: InputDataset

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return self.inputs.lengths[:, None]

    @property
    def example_index(self) -> IntArray:
        return self.inputs.example_index

    def for_epoch(self, draw: EpochSeed) -> Self:
        found: Self = replace(self, epoch_seed=draw)  # type: ignore[type-var]
        found.__dict__["lengths"] = self.lengths  # the same in every epoch
        return found

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        return self.inputs.fixed(plan, micro_tokens)

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        return (self.inputs.describe_positions(row),)


@dataclass(frozen=True)
class MaskTargets:
    """Targets of masked modelling: the original content of the masked positions."""

    values: Tensor | None = None
    """Target token ids (R) or vectors (R E); None for media until augmentation has been applied."""

    real_N: Tensor | None = None
    """Weight of each token in a text batch: zero for padding in a batch of fixed size."""

    masked_N: Tensor | None = None
    """Mask over all positions of a media batch: True if masked."""

    frames_RP: Tensor | None = None
    """Indices of the audio frames of each masked position."""

    masked_A: Tensor | None = None
    """Mask over all audio frames: True if masked."""

    @property
    def targets(self) -> Tensor:
        """The target values; an error if they have not been computed yet."""
        assert self.values is not None
        return self.values


@runtime_checkable
class MaskedDataset(TaskDataset[MaskTargets], Protocol):
    """Dataset for masked modelling. Without an epoch seed, the same positions are masked every
    time."""

    @property
    def widest(self) -> int:
        """Largest length of an item, over all epochs."""
        ...

    @property
    def n_quick(self) -> int:
        """Number of validation items that are evaluated during training."""
        ...

    def limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        """Maximum numbers of source and target positions in a micro-batch, from the plan of the
        first epoch. They hold for all epochs."""
        ...

    def apply_mask(
        self, model: nn.Module, batch: Batch[MaskTargets], training: bool
    ) -> Batch[MaskTargets]:
        """Mask the inputs of a batch and compute their targets. `training`: also apply
        augmentation."""
        ...

    def example(self, row: int) -> JsonDict:
        """Description of an item for people."""
        ...


class Preprocessor(ABC):
    """Preprocessing of one modality. Methods that are not abstract have defaults that suit media;
    text overrides them."""

    at_first: ClassVar[int] = FIRST_WINDOW
    """Number of inputs that are read before the first answer, so that they share a batch."""

    @abstractmethod
    def parse(
        self, lines: Iterable[InputLine], folder: Path, settings: Resolved
    ) -> Iterator[LoadedInput]:
        """Parse the text, or load the media file, that each line names. A file that does not exist
        under its path is looked up in the run's `folder`."""

    @abstractmethod
    def columns(self, examples: Sequence[Any]) -> Columns:
        """Store examples in memory as the columns of a dataset."""

    @abstractmethod
    def input_dataset(self, columns: Columns) -> InputDataset: ...

    @abstractmethod
    def masked_dataset(self, columns: Columns, how: FillSettings) -> MaskedDataset:
        """Dataset of the examples with masked positions to predict."""

    def check_lengths(self, needed: IntArray, before: int | None = None) -> None:  # noqa: B027
        """Raise `DataError` if an example is too long and may not be split. `needed`: length of
        each example. `before`: number of inputs answered earlier, to number the inputs in messages;
        None outside prediction."""

    def texts(
        self, columns: Columns, most: int | None = None, first: int = 0
    ) -> list[TextPair] | None:
        """Examples decoded to text; None for media."""
        return None

    def figures(
        self, columns: Columns, shares_NC: FloatArray, labels_N: IntArray, names: Sequence[str]
    ) -> JsonDict:
        """Figures of the report that show classified examples."""
        return {}

    def thumbnail(self, example: ArrayLike) -> Thumbnail:
        """Thumbnail of an example for a page; empty for texts."""
        return {}

    def apply_augmentation(
        self, model: nn.Module, stream: ModelInput, targets_BC: Tensor
    ) -> tuple[ModelInput, Tensor]:
        """Apply the random augmentation of `[augment]` to a batch and its targets."""
        return stream, targets_BC


@dataclass(frozen=True)
class MediaPreprocessor(Preprocessor, Generic[Front]):
    """Preprocessing shared by images, videos and audio."""

    shape: Front
    augment: AugmentSettings

    @classmethod
    def of(cls, settings: Resolved, tokenizer: Tokenizer | None = None) -> Self:
        return cls(cast(Front, media_settings_of(settings)), settings.augment)

    def parse(
        self, lines: Iterable[InputLine], folder: Path, settings: Resolved
    ) -> Iterator[LoadedInput]:
        names = cast(Iterable[str | LoadedInput], lines)
        return load_media(names, folder, self.shape, settings.data)

    def figures(
        self, columns: Columns, shares_NC: FloatArray, labels_N: IntArray, names: Sequence[str]
    ) -> JsonDict:
        """Thumbnails of confused classes and of the most confident right and wrong predictions."""
        media = columns.media
        found = thumbnails(lambda row: self.thumbnail(media[row]), shares_NC, labels_N, names)
        return {"examples": found}


PREPROCESSORS: dict[Modality, str] = {
    "text": "text.TextPreprocessor",
    "image": "image.ImagePreprocessor",
    "video": "image.ImagePreprocessor",
    "audio": "audio.AudioPreprocessor",
}
"""Preprocessor class of each modality, as `module.Class`. Classes are imported on use."""


def preprocessor_of(settings: Resolved, tokenizer: Tokenizer | None = None) -> Preprocessor:
    """Build the preprocessor for the modality that the model of a run reads."""
    module, name = PREPROCESSORS[front_reads(settings.model)].split(".")
    made: Preprocessor = getattr(import_module(f"headway.tasks.preprocess.{module}"), name).of(
        settings, tokenizer
    )
    return made


def media_settings_of(settings: RunSettings) -> ImageSettings | AudioSettings:
    """Input settings of a model of images, videos or audio."""
    front = media_settings(settings)
    assert front is not None
    return front
