"""What an objective sees of a front: examples cut to what a model reads at once, and made a batch.

An objective asks its intake and never which front it has. An intake holds settings and no weights.
"""

from __future__ import annotations

import hashlib
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

from headway.data.batches import Fixed, Rows, StepPlan
from headway.data.store import Columns
from headway.metrics.baselines import Text
from headway.models.parts.output_heads import Input
from headway.nn.devices import CPU
from headway.settings.augment import AugmentSettings
from headway.settings.model import PictureSettings, SoundSettings
from headway.settings.run import Resolved, RunSettings, media_front
from headway.tasks.answers import Facts
from headway.tasks.items import Batch, Draw, Items, Numbers, Unit
from headway.tasks.media_answers import FIRST_WINDOW
from headway.tasks.media_inputs import Given, given_media
from headway.tasks.specs import FillSettings, Modality, front_reads
from headway.tasks.thumbnails import Small, thumbnails
from headway.tokens.tokenizer import Tokenizer

Texts = tuple[str, ...]
"""A text; a text and its other half; or the fields of a document, in their order."""


Line = str | Texts | Given
"""What is asked: a line of input, texts that were parted already, or what was read already."""

Front = TypeVar("Front", bound=PictureSettings | SoundSettings)


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


class WholeCuts(ABC):
    """Each example at once, as it is stored."""

    @property
    @abstractmethod
    def lengths(self) -> Rows: ...

    @property
    def needed(self) -> Rows:
        return self.lengths

    @cached_property
    def owner(self) -> Rows:
        return np.arange(len(self.lengths))

    def shown(self, stream: Input) -> Input:
        return stream


class OverCuts:
    """Items, one for each cut: what a frozen dataclass with `cuts` and a `draw` has of these."""

    cuts: Cuts

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return self.cuts.lengths[:, None]

    @property
    def owner(self) -> Rows:
        return self.cuts.owner

    def drawn(self, draw: Draw) -> Self:
        found: Self = replace(self, draw=draw)  # type: ignore[type-var]
        found.__dict__["lengths"] = self.lengths  # which no chance changes
        return found

    def fixed(self, plan: StepPlan, micro_tokens: int) -> Fixed | None:
        return self.cuts.fixed(plan, micro_tokens)

    def units(self, row: int) -> tuple[Sequence[Unit], ...]:
        return (self.cuts.units(row),)


@dataclass(frozen=True)
class Gone:
    """What stood in rows that are hidden."""

    values: Tensor | None = None
    """Words (R), or numbers (R E); None as long as it is not known what will be seen."""

    real_N: Tensor | None = None
    """Of texts: zero for rows that only fill the fixed-size form."""

    hidden_N: Tensor | None = None
    """Of media: which of all rows are hidden."""

    frames_RP: Tensor | None = None
    """Of recordings: the frames of each hidden row ..."""

    hidden_A: Tensor | None = None
    """... and all that are hidden."""

    @property
    def aims(self) -> Tensor:
        """What is to be said."""
        assert self.values is not None
        return self.values


@runtime_checkable
class Hiding(Items[Gone], Protocol):
    """Items to be filled. Without a draw the same rows are hidden every time."""

    @property
    def widest(self) -> int:
        """Rows that an item has at most, in any epoch."""
        ...

    @property
    def n_quick(self) -> int:
        """Items that are filled while a run is trained."""
        ...

    def limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        """Rows of a part, in any epoch, by the plan of the first one."""
        ...

    def without(self, model: nn.Module, batch: Batch[Gone], training: bool) -> Batch[Gone]:
        """As the model may see it, with what it is to fill; `training`: changed by chance."""
        ...

    def example(self, row: int) -> Facts:
        """For people."""
        ...


class Intake(ABC):
    """What is not abstract here is as it is for what has no text."""

    at_first: ClassVar[int] = FIRST_WINDOW
    """Examples that are read before the first of them is answered."""

    @abstractmethod
    def asked(self, lines: Iterable[Line], folder: Path, settings: Resolved) -> Iterator[Given]:
        """What each line asks. A name that is no file but lies in `folder`, the run's, is taken
        from there."""

    @abstractmethod
    def columns(self, examples: Sequence[Any]) -> Columns:
        """Of what was asked, in memory."""

    @abstractmethod
    def cut(self, columns: Columns) -> Cuts: ...

    @abstractmethod
    def hide(self, columns: Columns, how: FillSettings) -> Hiding:
        """The examples with some of their rows hidden, which are to be filled."""

    @abstractmethod
    def same(self, columns: Columns, examples: Rows) -> Rows:
        """A number for each of these examples, the same for what is the same."""

    def refuse(self, needed: Rows, before: int | None = None) -> None:  # noqa: B027
        """Raise `DataError` where something is too long and may not be cut, by the rows that each
        takes. `before`: examples that were answered already, where these are asked."""

    def texts(self, columns: Columns, most: int | None = None, first: int = 0) -> list[Text] | None:
        """Examples as text again; None where they are none."""
        return None

    def figures(
        self, columns: Columns, shares_NC: Numbers, labels_N: Rows, names: Sequence[str]
    ) -> Facts:
        """What a report can show of classes of such examples."""
        return {}

    def small(self, example: ArrayLike) -> Small:
        """An example as a page can hold it; nothing of a text, which is one."""
        return {}

    def vary(self, model: nn.Module, stream: Input, targets_BC: Tensor) -> tuple[Input, Tensor]:
        """Changed by chance, as `[augment]` says, and what it is then a batch of."""
        return stream, targets_BC

    def weave(self, streams: tuple[Input, ...], fixed: Fixed | None) -> tuple[Input, ...]:
        """Batches of as many items as one in which they take turns, or as they are."""
        return streams

    def pair_form(self, plan: StepPlan, longest: int, n: int) -> Fixed | None:
        """The form of steps of such pairs, or of `n` that belong together; None where there is
        none."""
        return None

    def halves(self, columns: Columns) -> tuple[Columns, Columns] | None:
        """Two that belong together of each example, without anything by chance, where it can be
        parted like that."""
        return None


@dataclass(frozen=True)
class MediaIntake(Intake, Generic[Front]):
    """What pictures, videos and recordings have in common."""

    shape: Front
    augment: AugmentSettings

    @classmethod
    def of(cls, settings: Resolved, tokenizer: Tokenizer | None = None) -> Self:
        return cls(cast(Front, front_of(settings)), settings.augment)

    def asked(self, lines: Iterable[Line], folder: Path, settings: Resolved) -> Iterator[Given]:
        names = cast(Iterable[str | Given], lines)
        return given_media(names, folder, self.shape, settings.data)

    def figures(
        self, columns: Columns, shares_NC: Numbers, labels_N: Rows, names: Sequence[str]
    ) -> Facts:
        """What is taken for what, and what is recognised best and worst."""
        media = columns.media
        found = thumbnails(lambda row: self.small(media[row]), shares_NC, labels_N, names)
        return {"examples": found}

    def same(self, columns: Columns, examples: Rows) -> Rows:
        values = (np.asarray(columns.media[row]) for row in examples.tolist())
        found = [hashlib.blake2b(one.tobytes(), digest_size=7).digest() for one in values]
        return np.array([int.from_bytes(one, "little") for one in found], np.int64)


INTAKES: dict[Modality, str] = {
    "text": "intake_text.TextIntake",
    "pictures": "intake_vision.PictureIntake",
    "videos": "intake_vision.PictureIntake",
    "sounds": "intake_audio.SoundIntake",
}
"""A class for each kind of data, imported when it is needed, made by its `of`."""


def intake_of(settings: Resolved, tokenizer: Tokenizer | None = None) -> Intake:
    """Of the front that the model of a run has."""
    module, name = INTAKES[front_reads(settings.model)].split(".")
    made: Intake = getattr(import_module(f"headway.tasks.{module}"), name).of(settings, tokenizer)
    return made


def front_of(settings: RunSettings) -> PictureSettings | SoundSettings:
    """Of a model that looks or listens."""
    front = media_front(settings)
    assert front is not None
    return front
