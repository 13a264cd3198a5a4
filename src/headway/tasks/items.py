"""Examples as a model reads them, whoever asks: training, evaluation, answers, pages, proofs.

`Items` are columnar and lazy: they know how long everything is, and make tensors of what is wanted.
An example that is too long for a model is several items, windows of it, which share an owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import Fixed, Rows, StepPlan
from headway.errors import Stopped
from headway.models.parts.output_heads import Input
from headway.progress import OnProgress, unheard

T = TypeVar("T")

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Draw:
    """All chance of an epoch follows from this: windows, hidden places, left-out words, speeds."""

    seed: int
    epoch: int
    reading: int = 0
    """Which of several readings of an example in that epoch."""


@dataclass(frozen=True)
class Batch(Generic[T]):
    """A flat batch of any task."""

    streams: tuple[Input, ...]
    """What the model reads: one, or a source and a target."""

    targets: T
    """What it should answer: labels, tokens, patches, partners."""

    weights_R: Tensor | None = None
    """How much each answer counts; zero for what only fills a fixed form. None: all the same."""

    rows_R: Tensor | None = None
    """The rows of the last stream that are asked; None: all of them, or one answer a sequence."""


@dataclass(frozen=True)
class Unit:
    """What one row of a stream is, for people."""

    text: str = ""
    """Of a token."""

    box: tuple[int, int, int, int] | None = None
    """Of a patch: left, top, right, bottom, in pixels."""

    time: tuple[float, float] | None = None
    """Of a row of sound, or of the frames of a video: from and to, in seconds or frames."""

    special: bool = False
    """No part of the example: a start, an end, a class token."""


class Items(Protocol[T]):
    @property
    def lengths(self) -> NDArray[np.int64]:
        """Rows of the flat batch that each item takes in each stream (n, streams)."""
        ...

    @property
    def owner(self) -> Rows:
        """The example that each item is, or is a window of."""
        ...

    def drawn(self, draw: Draw) -> Items[T]:
        """The same examples with the chances of an epoch; what does not depend on it is kept."""
        ...

    def n_targets(self, rows: Rows) -> int:
        """What the loss of these is divided by."""
        ...

    def batch(self, rows: Rows, device: torch.device, fixed: Fixed | None = None) -> Batch[T]:
        """On the device. Called from a thread that runs ahead of training."""
        ...

    def fixed(self, plan: StepPlan, micro_tokens: int) -> Fixed | None:
        """The form of every batch of a recorded step; None where there is none."""
        ...

    def units(self, row: int) -> tuple[Sequence[Unit], ...]:
        """What the rows of an item are, for each stream."""
        ...


READ_AT_ONCE = {"cpu": 1024, "cuda": 65_536}
"""Rows of a batch that is only read. On a CPU more are not quicker: base-en embeds two texts of
19,000 characters in 3.1 to 3.5 s of one core with 8,192 rows and in 2.7 to 2.8 s with 1,024. A
server answers others between two batches."""


def n_owners(items: Items[T]) -> int:
    """Examples that there are; the first so many own the first items."""
    owner = items.owner
    return int(owner[-1]) + 1 if len(owner) else 0


def batches_of(
    items: Items[T], rows: Rows, device: torch.device, on_progress: OnProgress = unheard
) -> Iterator[tuple[Rows, Batch[T]]]:
    """These items, those of like length together, as batches that are only read."""
    if not len(rows):
        return
    lengths = items.lengths[:, -1]
    tokens = max(READ_AT_ONCE.get(device.type, READ_AT_ONCE["cpu"]), int(lengths.max()))
    plan = StepPlan.of_lengths(lengths, tokens, 0)
    order = rows[np.argsort(lengths[rows], kind="stable")]
    done = 0
    for some in plan.cut(order, tokens, tokens):
        yield some, items.batch(some, device)
        done += len(some)
        on_progress(done, len(order))


@dataclass(frozen=True)
class Pass:
    """A model that reads a set of examples once, without learning."""

    model: nn.Module
    device: torch.device
    full: bool = True
    """Of a validation set: carefully, as at the end; else quickly, as between steps."""

    most: int | None = None
    """Of so many of the first examples and no more, where time is short."""

    on_progress: OnProgress = unheard
    calibrate: bool = False
    """Of labels: score them at the temperature that fits these examples, and name it."""

    stopped: Callable[[], bool] = lambda: False
    """Asked between two batches; `Stopped` is raised when it turns true."""

    def tell(self, done: int, total: int) -> None:
        self.on_progress(done, total)
        if self.stopped():
            raise Stopped

    def batches(self, items: Items[T], rows: Rows) -> Iterator[tuple[Rows, Batch[T]]]:
        return batches_of(items, rows, self.device, self.tell)

    def examples(self, items: Items[T]) -> Iterator[tuple[Rows, Batch[T]]]:
        """The items of the first `most` examples. What stands beside one does not change it."""
        last = n_owners(items) if self.most is None else self.most
        return self.batches(items, np.flatnonzero(items.owner < last))


def mean_by_owner(found: Iterable[tuple[Rows, Numbers]], items: Items[T], n: int) -> Numbers:
    """What was found of items (R C) as one row for each of the first `n` examples: answers to the
    windows of a long one are joined by their mean."""
    sums_NC: Numbers | None = None
    for rows, values_RC in found:
        if sums_NC is None:
            sums_NC = np.zeros((n, values_RC.shape[1]))
        np.add.at(sums_NC, items.owner[rows], values_RC)
    if sums_NC is None:
        return np.zeros((0, 0))
    return sums_NC / np.bincount(items.owner, minlength=n)[:n, None]
