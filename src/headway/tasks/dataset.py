"""Examples as a model reads them, for training, evaluation, prediction, inspection and proofs.

A `TaskDataset` is columnar and lazy: it knows all lengths, and makes tensors only for requested
batches. An example that is too long for a model becomes several items, its windows, with the same
owner.
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
    """Seed of all random choices in an epoch: windows, masked positions, dropped words, playback
    speeds."""

    seed: int
    epoch: int
    view: int = 0
    """Index of the view, if an example is read several times in the epoch."""


@dataclass(frozen=True)
class Batch(Generic[T]):
    """A flat batch of any task."""

    streams: tuple[ModelInput, ...]
    """Inputs of the model: one stream, or a source and a target."""

    targets: T
    """Correct outputs: labels, tokens, patches or partners."""

    weights_R: Tensor | None = None
    """Weight of each output; zero for padding in a batch of fixed size. None: all have the same
    weight."""

    rows_R: Tensor | None = None
    """Positions of the last stream for which the model predicts an output. None: every position, or
    one output per sequence."""


@dataclass(frozen=True)
class PositionInfo:
    """Human-readable description of one position of a stream: a token, an image patch or a stretch
    of audio."""

    text: str = ""
    """Text of a token."""

    box: tuple[int, int, int, int] | None = None
    """Place of an image patch: left, top, right, bottom, in pixels."""

    time: tuple[float, float] | None = None
    """Start and end of an audio position in seconds, or of a video patch in frames."""

    special: bool = False
    """Whether the position is not part of the example: a start, end or class token."""


class TaskDataset(Protocol[T]):
    """Items of a task. Subclasses implement `lengths` and `batch`."""

    @property
    @abstractmethod
    def lengths(self) -> NDArray[np.int64]:
        """Length of each item in each stream, in tokens or positions (n, streams)."""
        ...

    @property
    def example_index(self) -> IntArray:
        """Index of the example that each item belongs to: a long example is several items, its
        windows."""
        return np.arange(len(self.lengths))

    def for_epoch(self, draw: EpochSeed) -> TaskDataset[T]:
        """A copy that makes the random choices of this epoch."""
        return self

    def n_targets(self, rows: IntArray) -> int:
        """Number of loss terms (tokens, words or examples) in these items: the summed loss is
        divided by it."""
        return len(rows)

    @abstractmethod
    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[T]:
        """A batch on the device. This is called from a thread that prefetches for training."""
        ...

    def fixed(self, plan: StepPlan, micro_tokens: int) -> FixedShapes | None:
        """Shapes that fit every batch of the plan, as CUDA graphs require; None if there are
        none."""
        return None

    def describe_positions(self, row: int) -> tuple[Sequence[PositionInfo], ...]:
        """Descriptions of the positions of an item, for each stream."""
        return tuple(() for _ in range(self.lengths.shape[1]))


READ_AT_ONCE = {"cpu": 1024, "cuda": 65_536}
"""Tokens or positions in an inference batch. Larger batches are not faster on a CPU: base-en embeds
two texts of 19,000 characters on one core in 3.1 to 3.5 s with 8,192 rows and in 2.7 to 2.8 s with
1,024. A server can also process other requests between two batches."""


def n_examples(items: TaskDataset[T]) -> int:
    """Number of examples that these items belong to."""
    owner = items.example_index
    return int(owner[-1]) + 1 if len(owner) else 0


def batches_of(
    items: TaskDataset[T],
    rows: IntArray,
    device: torch.device,
    on_progress: OnProgress = no_progress,
) -> Iterator[tuple[IntArray, Batch[T]]]:
    """Inference batches of these items, grouped by length."""
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
    """Whether this is the thorough evaluation at the end, or a quick one during training."""

    max_examples: int | None = None
    """Number of first examples to use; None: all of them."""

    on_progress: OnProgress = no_progress
    calibrate: bool = False
    """Whether to fit a calibration temperature to these examples, and to score label probabilities
    with it."""

    should_stop: Callable[[], bool] = lambda: False
    """Called between two batches; `Stopped` is raised when it returns true."""

    run: LoadedRun | None = None
    """The opened run, which may be an ensemble or use another engine than torch; None in
    training."""

    @classmethod
    def of_run(cls, run: LoadedRun, on_progress: OnProgress = no_progress) -> EvalPass:
        """A pass of an opened run over a test set, or over inputs to predict."""
        only_decodes = run.engine is not None and run.spec.writes
        model = nn.Module() if only_decodes else run.model
        return cls(model, run.device, on_progress=on_progress, run=run)

    @property
    def models(self) -> Sequence[nn.Module]:
        """All models of an ensemble."""
        return (self.model,) if self.run is None else self.run.models

    def report_progress(self, done: int, total: int) -> None:
        self.on_progress(done, total)
        if self.should_stop():
            raise Stopped

    def batches(self, items: TaskDataset[T], rows: IntArray) -> Iterator[tuple[IntArray, Batch[T]]]:
        return batches_of(items, rows, self.device, self.report_progress)

    def examples(self, items: TaskDataset[T]) -> Iterator[tuple[IntArray, Batch[T]]]:
        """Batches of the items of the first `max_examples` examples. The output for an item does
        not depend on the other items of its batch."""
        last = n_examples(items) if self.max_examples is None else self.max_examples
        return self.batches(items, np.flatnonzero(items.example_index < last))


def mean_by_example(
    found: Iterable[tuple[IntArray, FloatArray]], items: TaskDataset[T], n: int
) -> FloatArray:
    """Mean of the outputs over the windows of each of the first `n` examples (N C). `found` yields
    the indices of items with their outputs (R C)."""
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
    """Outputs of the first examples (N C), each the mean over its windows. `outputs_of` computes
    the outputs of a batch (R C) from the indices of its items."""
    n = n_examples(items)
    n = n if asked.max_examples is None else min(n, asked.max_examples)
    found = (
        (rows, outputs_of(rows, batch).double().cpu().numpy())
        for rows, batch in asked.examples(items)
    )
    return mean_by_example(found, items, n)
