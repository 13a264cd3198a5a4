"""Datasets of examples as model inputs, for training, evaluation, prediction, inspection and
proofs.

A `TaskDataset` is columnar and lazy: it knows all lengths, and makes tensors only for requested
batches. An example that is too long for a model is split into several items (windows) with the same
example index.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan
from headway.errors import Stopped
from headway.models.parts.output_heads import ModelInput
from headway.progress import OnProgress, no_progress

if TYPE_CHECKING:
    from headway.tasks.loaded_run import LoadedRun

T = TypeVar("T")

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class EpochSeed:
    """Seed of all random choices in an epoch: windows, masked positions, dropped words and playback
    speeds."""

    seed: int
    epoch: int
    view: int = 0
    """Index of the view, for examples that are read several times in an epoch."""


@dataclass(frozen=True)
class Batch(Generic[T]):
    """Batch of any task, whose sequences are concatenated instead of padded."""

    streams: tuple[ModelInput, ...]
    """Inputs of the model: one input, or a source and a target."""

    targets: T
    """Correct outputs, such as labels, tokens, patches or partners."""

    weights_R: Tensor | None = None
    """Weight of each output; zero for padding in a batch of fixed size. None: all outputs have the
    same weight."""

    rows_R: Tensor | None = None
    """Positions of the last input for which the model predicts an output. None: every position, or
    one output per sequence."""


@dataclass(frozen=True)
class PositionInfo:
    """Human-readable description of one position of a model input: a token, an image patch or a
    section of audio."""

    text: str = ""
    """Text of the token; empty for media."""

    box: tuple[int, int, int, int] | None = None
    """Pixel box of an image patch: left, top, right, bottom. None for other positions."""

    time: tuple[float, float] | None = None
    """Start and end in seconds (audio) or in frames (video patches); None for other positions."""

    special: bool = False
    """Whether the position does not belong to the example, as start, end and class tokens."""


class TaskDataset(Protocol[T]):
    """Interface of the datasets of a task. Classes implement at least `lengths` and `batch`."""

    @property
    @abstractmethod
    def lengths(self) -> NDArray[np.int64]:
        """Length of each item in each model input, in tokens or positions; shape (n, inputs)."""
        ...

    @property
    def example_index(self) -> IntArray:
        """Index of the example that each item belongs to. Long examples are split into several
        items (windows)."""
        return np.arange(len(self.lengths))

    def for_epoch(self, draw: EpochSeed) -> TaskDataset[T]:
        """Return a copy whose random choices are those of this epoch."""
        return self

    def n_targets(self, rows: IntArray) -> int:
        """Return the number of targets (tokens, words or examples) in these items, by which the
        summed loss is divided."""
        return len(rows)

    @abstractmethod
    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[T]:
        """Return a batch of these items on the device. In training, a prefetching thread calls
        this."""
        ...

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        """Return shapes that fit every batch of the plan, as CUDA graphs require; None if batches
        cannot have fixed shapes."""
        return None

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        """Return descriptions of the positions of an item, for each model input."""
        return tuple(() for _ in range(self.lengths.shape[1]))


READ_AT_ONCE = {"cpu": 1024, "cuda": 65_536}
"""Number of tokens or positions in an inference batch.

Larger batches are not faster on a CPU. On one core, base-en embeds two texts of 19,000 characters
in 2.7 to 2.8 s with 1,024, and in 3.1 to 3.5 s with 8,192. With small batches, a server can also
process other requests between two of them.
"""


def n_examples(items: TaskDataset[T]) -> int:
    """Return the number of examples that these items belong to."""
    owner = items.example_index
    return int(owner[-1]) + 1 if len(owner) else 0


def batches_of(
    items: TaskDataset[T],
    rows: IntArray,
    device: torch.device,
    on_progress: OnProgress = no_progress,
) -> Iterator[tuple[IntArray, Batch[T]]]:
    """Yield inference batches of these items, grouped by length, each with the indices of its
    items."""
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
class EvalPass:
    """Parameters of one evaluation or inference pass: the model, its device and the examples to
    use."""

    model: nn.Module
    device: torch.device
    full: bool = True
    """Whether this is the final evaluation on all examples, or a quick one during training."""

    max_examples: int | None = None
    """Number of examples to use, counted from the first; None: all."""

    on_progress: OnProgress = no_progress
    calibrate: bool = False
    """Whether to fit a calibration temperature to these examples and apply it to the scored
    probabilities."""

    should_stop: Callable[[], bool] = lambda: False
    """Function that is called between two batches. When it returns true, `Stopped` is raised."""

    run: LoadedRun | None = None
    """Loaded run, which may be an ensemble or use an engine other than torch; None in training."""

    @classmethod
    def of_run(cls, run: LoadedRun, on_progress: OnProgress = no_progress) -> EvalPass:
        """Return the parameters for a pass of a loaded run over a test set or over inputs to
        predict."""
        only_decodes = run.engine is not None and run.spec.writes
        model = nn.Module() if only_decodes else run.model
        return cls(model, run.device, on_progress=on_progress, run=run)

    @property
    def models(self) -> Sequence[nn.Module]:
        """Models of an ensemble, or the only model."""
        return (self.model,) if self.run is None else self.run.models

    def report_progress(self, done: int, total: int) -> None:
        self.on_progress(done, total)
        if self.should_stop():
            raise Stopped

    def batches(self, items: TaskDataset[T], rows: IntArray) -> Iterator[tuple[IntArray, Batch[T]]]:
        return batches_of(items, rows, self.device, self.report_progress)

    def examples(self, items: TaskDataset[T]) -> Iterator[tuple[IntArray, Batch[T]]]:
        """Yield the batches of the first `max_examples` examples. The output for an item does not
        depend on the other items of its batch."""
        last = n_examples(items) if self.max_examples is None else self.max_examples
        return self.batches(items, np.flatnonzero(items.example_index < last))


def mean_by_example(
    found: Iterable[tuple[IntArray, FloatArray]], items: TaskDataset[T], n: int
) -> FloatArray:
    """Return the outputs of the first `n` examples (N C), averaged over their windows. `found`
    yields the indices of items with their outputs (R C)."""
    sums_NC: FloatArray | None = None
    for rows, values_RC in found:
        if sums_NC is None:
            sums_NC = np.zeros((n, values_RC.shape[1]))
        np.add.at(sums_NC, items.example_index[rows], values_RC)
    if sums_NC is None:
        return np.zeros((0, 0))
    return sums_NC / np.bincount(items.example_index, minlength=n)[:n, None]


@torch.no_grad()
def example_outputs(
    asked: EvalPass, items: TaskDataset[T], outputs_of: Callable[[IntArray, Batch[T]], Tensor]
) -> FloatArray:
    """Return the outputs of the examples of a pass (N C), averaged over their windows. `outputs_of`
    computes the outputs (R C) of a batch; it gets the indices of the items and the batch."""
    n = n_examples(items)
    n = n if asked.max_examples is None else min(n, asked.max_examples)
    found = (
        (rows, outputs_of(rows, batch).double().cpu().numpy())
        for rows, batch in asked.examples(items)
    )
    return mean_by_example(found, items, n)
