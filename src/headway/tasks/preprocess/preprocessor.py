"""Interface of preprocessing: examples of any modality are cut to the input length and collated
into batches.

Objectives use only this interface, whatever the modality. Preprocessors have settings but no
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
"""Texts of one example: a single text, the two texts of a pair, or the fields of a document in
order."""


InputLine = str | TextParts | LoadedInput
"""One input for prediction: a line of text, a text already split into its parts, or media already
loaded."""

Front = TypeVar("Front", bound=ImageSettings | AudioSettings)


class InputDataset(Protocol):
    """Examples of one split as inputs of a model. Examples that are too long are split into several
    items (windows)."""

    @property
    def lengths(self) -> IntArray:
        """Length of each item in tokens or positions. Every access returns the same array object,
        so that callers can compare it by identity."""
        ...

    @property
    def example_index(self) -> IntArray:
        """Index of the example that each item belongs to, in ascending order. Several items
        (windows) may belong to one example."""
        ...

    @property
    def full_lengths(self) -> IntArray:
        """Length of each whole example, before it is split into windows, in tokens or positions."""
        ...

    def collate(
        self,
        rows: IntArray,
        device: torch.device = CPU,
        fixed: FixedShapes | None = None,
        draw: EpochSeed | None = None,
    ) -> ModelInput:
        """Return a batch of items in host memory.

        Args:
            rows: Indices of the items.
            device: Device on which the batch will be used.
            fixed: Fixed shapes. The batch may then have more sequences than items; the additional
                ones have no weight.
            draw: Seed of random augmentation; None: no augmentation.
        """
        ...

    def to_model_input(self, stream: ModelInput) -> ModelInput:
        """Convert a collated batch, on the model's device, to the form that the model reads."""
        ...

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        """Return fixed shapes of all batches, for CUDA graphs; None if batches cannot have fixed
        shapes."""
        ...

    def describe_positions(self, row: int) -> Sequence[PositionInfo]:
        """Return descriptions of the tokens or positions of an item."""
        ...


class UnsplitDataset(ABC):
    """Base class of datasets whose examples are never split into windows."""

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
    """Mixin for datasets (frozen dataclasses) that have the same items as their field `inputs`.
    They need a field `epoch_seed`."""

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
    """Target token ids (R), or target vectors (R E). None for media until `apply_mask` has computed
    them."""

    real_N: Tensor | None = None
    """Weight of each token in a text batch: zero for padding in a batch of fixed size. None for
    media."""

    masked_N: Tensor | None = None
    """Mask over all positions of a media batch: true if masked. None for texts."""

    frames_RP: Tensor | None = None
    """Indices of the audio frames of each masked position; None except for audio."""

    masked_A: Tensor | None = None
    """Mask over all audio frames: true if masked. None except for audio."""

    @property
    def targets(self) -> Tensor:
        """Target values of the masked positions. If they have not been computed yet, an error is
        raised."""
        assert self.values is not None
        return self.values


@runtime_checkable
class MaskedDataset(TaskDataset[MaskTargets], Protocol):
    """Interface of datasets for masked modelling. Without an epoch seed, the same positions are
    masked every time."""

    @property
    def widest(self) -> int:
        """Length of the longest item, over all epochs."""
        ...

    @property
    def n_quick(self) -> int:
        """Number of validation items in evaluations during training."""
        ...

    def limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        """Return the maximum numbers of source and target positions in a micro-batch, given the
        plan of the first epoch. They hold for all epochs."""
        ...

    def apply_mask(
        self, model: nn.Module, batch: Batch[MaskTargets], training: bool
    ) -> Batch[MaskTargets]:
        """Return the batch with masked inputs and the targets of masked positions. `training`:
        apply random augmentation before masking."""
        ...

    def example(self, row: int) -> JsonDict:
        """Return a human-readable description of an item."""
        ...


class Preprocessor(ABC):
    """Base class for preprocessors, each of which handles one modality. Methods that are not
    abstract have defaults for media, which the text preprocessor overrides."""

    at_first: ClassVar[int] = FIRST_WINDOW
    """Number of inputs that are read before the first answer, so that they share a batch."""

    @abstractmethod
    def parse(
        self, lines: Iterable[InputLine], folder: Path, settings: Resolved
    ) -> Iterator[LoadedInput]:
        """Yield the text in each line, or the media that it names. A file that does not exist under
        its path is looked up in the run's `folder`."""

    @abstractmethod
    def columns(self, examples: Sequence[Any]) -> Columns:
        """Return a dataset in memory with these examples."""

    @abstractmethod
    def input_dataset(self, columns: Columns) -> InputDataset: ...

    @abstractmethod
    def masked_dataset(self, columns: Columns, how: FillSettings) -> MaskedDataset:
        """Return a dataset of the examples in which some positions are masked and must be
        predicted."""

    def check_lengths(self, needed: IntArray, before: int | None = None) -> None:  # noqa: B027
        """Raise `DataError` if an example is too long and may not be split.

        Args:
            needed: Length of each example, in tokens or positions.
            before: Number of inputs answered earlier, to number the inputs in messages; None
                outside prediction.
        """

    def texts(
        self, columns: Columns, most: int | None = None, first: int = 0
    ) -> list[TextPair] | None:
        """Return the examples decoded to text; None for media."""
        return None

    def figures(
        self, columns: Columns, shares_NC: FloatArray, labels_N: IntArray, names: Sequence[str]
    ) -> JsonDict:
        """Return figures of the report that show classified examples."""
        return {}

    def thumbnail(self, example: ArrayLike) -> Thumbnail:
        """Return the thumbnail of an example for a page; empty for texts."""
        return {}

    def apply_augmentation(
        self, model: nn.Module, stream: ModelInput, targets_BC: Tensor
    ) -> tuple[ModelInput, Tensor]:
        """Return the batch and its targets with the random augmentation of the `[augment]`
        settings."""
        return stream, targets_BC


@dataclass(frozen=True)
class MediaPreprocessor(Preprocessor, Generic[Front]):
    """Base class for preprocessors of images, videos and audio."""

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
        """Return thumbnails of confused classes, and of the most confident right and wrong
        predictions."""
        media = columns.media
        found = thumbnails(lambda row: self.thumbnail(media[row]), shares_NC, labels_N, names)
        return {"examples": found}


PREPROCESSORS: dict[Modality, str] = {
    "text": "text.TextPreprocessor",
    "image": "image.ImagePreprocessor",
    "video": "image.ImagePreprocessor",
    "audio": "audio.AudioPreprocessor",
}
"""Preprocessor class of each modality, as `module.Class`. The modules are imported on use."""


def preprocessor_of(settings: Resolved, tokenizer: Tokenizer | None = None) -> Preprocessor:
    """Return the preprocessor for the modality that the model of a run reads."""
    module, name = PREPROCESSORS[front_reads(settings.model)].split(".")
    made: Preprocessor = getattr(import_module(f"headway.tasks.preprocess.{module}"), name).of(
        settings, tokenizer
    )
    return made


def media_settings_of(settings: RunSettings) -> ImageSettings | AudioSettings:
    """Return the input settings of a model of images, videos or audio."""
    front = media_settings(settings)
    assert front is not None
    return front
