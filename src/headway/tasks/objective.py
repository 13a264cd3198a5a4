"""Base class of training objectives: examples, loss and scores of a task.

The training loop handles steps, gradients and checkpoints and is independent of the modality. An
objective is independent of the loop. A custom objective implements nine members; all others have
defaults:

- `Task.objective` and `Task.evaluator`: the objects below for the settings of a run,
- `TaskDataset.lengths` and `TaskDataset.batch`: the examples,
- `Objective.loss`: the loss of a batch,
- `Evaluator.test_set`, `Evaluator.predict` and `Evaluator.score`: how a model is scored,
- `Predictor.answers`: how inputs are answered. `Task.predictor` returns the predictor, by default
  the evaluator.

`docs/built/objective.md` has a complete example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan
from headway.data.store import PreparedData
from headway.data.token_store import TokenStore
from headway.metrics.language import perplexity, token_counts, unigram_loss
from headway.settings.run import Resolved
from headway.settings.task_rows import spec_of
from headway.specs.metrics import METRICS, Metric
from headway.tasks.dataset import Batch, EpochSeed, EvalPass, TaskDataset, n_examples
from headway.tasks.evaluate import Evaluator, evaluate
from headway.tasks.readout import Read, readout_of
from headway.tasks.scores import Scores
from headway.tokens.tokenizer import Tokenizer

T = TypeVar("T")


class TaskLoss(NamedTuple):
    sum: Tensor
    """Summed loss over the targets of a batch, which training minimizes."""

    nll: Tensor
    """Summed loss for reporting, without label smoothing and regularization."""


@dataclass(frozen=True)
class MicroBatch:
    """Part of a step: the examples that are computed at once, to limit memory."""

    rows: Any
    n_targets: int
    """Number of targets (tokens, words or examples), by which the summed loss of the step is
    divided."""

    tokens: int | None = None
    """Number of input tokens, for measuring speed; None: equal to the number of targets."""

    @property
    def n_tokens(self) -> int:
        return self.n_targets if self.tokens is None else self.tokens


TOKENS = "token frequencies"
CLASSES = "class frequencies"
"""Names of baselines that predict only the frequencies of the targets."""


@dataclass(frozen=True)
class TargetFrequencies:
    """Number of times that each token, class or tag is a target, in training and validation
    data."""

    train_V: NDArray[np.int64]
    valid_V: NDArray[np.int64]

    @property
    def train_loss(self) -> float:
        """Training loss of a model that predicts these frequencies."""
        return unigram_loss(self.train_V, self.train_V)

    @property
    def scores(self) -> dict[str, float]:
        """Validation loss and perplexity of a model that predicts the training frequencies."""
        loss = unigram_loss(self.train_V, self.valid_V)
        return {"loss": loss, "ppl": perplexity(loss)}


COUNTED = 1 << 22
"""Maximum number of tokens counted for token frequencies. More tokens would hardly change the
frequencies."""


def text_frequencies(
    train: TokenStore, valid: TokenStore, tokenizer: Tokenizer
) -> TargetFrequencies:
    """Return the token frequencies of texts, with one end token per text."""
    counts = []
    for texts in (train, valid):
        counts_V = token_counts(texts.tokens, tokenizer.vocab_size, COUNTED)
        counts_V[tokenizer.eos] += len(texts)
        counts.append(counts_V)
    return TargetFrequencies(*counts)


class EpochItems(NamedTuple):
    """Indices of the items of a step or micro-batch, with the number of their epoch."""

    epoch: int
    rows: IntArray


@dataclass
class Objective(ABC, Generic[T]):
    """Interface between a task and the training loop: steps, batches, losses and scores."""

    settings: Resolved
    prepared: PreparedData
    metric: Metric = field(init=False)
    """Validation metric that selects the best checkpoint."""

    quick_size: int = field(default=3000, kw_only=True)
    """Number of validation examples in evaluations during training; the final evaluation uses all.
    A few thousand keep evaluations short, with a standard error of about one percentage point of
    accuracy."""

    evaluator: Evaluator[Any, Any] = field(kw_only=True)
    """Evaluator that predicts and scores the validation examples."""

    train_dataset: TaskDataset[T] = field(kw_only=True)
    """Training items. `for_epoch` returns a copy with the random choices of an epoch."""

    valid_dataset: TaskDataset[T] = field(kw_only=True)
    valid_set: Any = field(init=False)
    """Validation examples in the form that the evaluator takes; by default `valid_dataset`."""

    _epoch_plans: dict[int, tuple[TaskDataset[T], StepPlan]] = field(
        default_factory=dict, init=False, repr=False
    )

    _limits: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.metric = METRICS[self.settings.train.metric or spec_of(self.settings).scores[0]]
        self.valid_set = self.valid_dataset

    def planned(self, epoch: int) -> tuple[TaskDataset[T], StepPlan]:
        """Return the training items of an epoch and the plan of its steps. Two epochs are cached,
        because the prefetching thread may already read the next one."""
        kept = self._epoch_plans
        if epoch not in kept:
            items = self.train_dataset.for_epoch(EpochSeed(self.settings.train.seed, epoch))
            before = next(iter(kept.values()), None)
            same = before is not None and before[0].lengths is items.lengths
            kept[epoch] = items, before[1] if before is not None and same else self.plan(items)
            for old in sorted(kept)[:-2]:
                if old != epoch:
                    del kept[old]
        return kept[epoch]

    def plan(self, items: TaskDataset[T]) -> StepPlan:
        """Return a plan that divides the items into steps of about `train.batch_tokens` tokens. If
        there is a source and a target, target tokens are counted."""
        train, lengths = self.settings.train, items.lengths
        tokens = max(train.batch_tokens, self.widest(items))
        if lengths.shape[1] == 1:
            return StepPlan.of_lengths(lengths[:, 0], tokens, train.seed, train.bucket_steps)
        return StepPlan.of_pairs(
            lengths[:, 0], lengths[:, 1], tokens, train.seed, train.bucket_steps
        )

    def widest(self, items: TaskDataset[T]) -> int:
        """Return the length of the longest item over all epochs. If there is a source and a target,
        it is the length of the longest target."""
        return int(items.lengths[:, -1].max())

    def epoch(self, number: int) -> Sequence[EpochItems]:
        """Return the items of each step of an epoch. They depend only on the number of the
        epoch."""
        return [EpochItems(number, rows) for rows in self.planned(number)[1].epoch(number)]

    def parts(self, step: EpochItems, micro_tokens: int) -> list[MicroBatch]:
        """Return the micro-batches of one step."""
        items, plan = self.planned(step.epoch)
        return [
            MicroBatch(EpochItems(step.epoch, rows), items.n_targets(rows), plan.n_targets(rows))
            for rows in plan.cut(step.rows, *self.limits(micro_tokens))
        ]

    def limits(self, micro_tokens: int) -> tuple[int, int]:
        """Return the maximum numbers of source and target tokens in a micro-batch, which hold for
        all epochs. With a single input, the two numbers refer to it."""
        if micro_tokens not in self._limits:
            self._limits[micro_tokens] = self.part_limits(self.planned(0)[1], micro_tokens)
        return self._limits[micro_tokens]

    def part_limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        """Return the maximum numbers of source and target tokens in a micro-batch, computed from
        the plan of the first epoch."""
        return plan.part_limits(micro_tokens)

    def fixed(self, micro_tokens: int) -> FixedShapes | None:
        """Return shapes that fit every micro-batch of this size, as CUDA graphs require; None if
        batches cannot have fixed shapes."""
        items, plan = self.planned(0)
        return items.fixed(plan, micro_tokens)

    def batch(self, part: MicroBatch, device: torch.device, fixed: FixedShapes | None) -> Batch[T]:
        """Return the batch of a micro-batch on the device. The prefetching thread calls this."""
        chosen: EpochItems = part.rows
        return self.planned(chosen.epoch)[0].batch(chosen.rows, device, fixed)

    @property
    def n_valid(self) -> int:
        """Number of validation examples."""
        return n_examples(self.valid_dataset)

    @property
    def n_quick(self) -> int:
        """Number of validation examples in evaluations during training, counted from the first."""
        return min(self.quick_size, self.n_valid)

    def begin(self, model: nn.Module, note: Callable[[str], None]) -> None:
        """Initialize parts of a new model from the training data, such as priors and n-grams."""
        return

    def notes(self) -> list[str]:
        """Return lines to print before training starts."""
        return []

    def prior_loss(self) -> float | None:
        """Return the validation loss of always predicting the target frequencies, with which the
        final loss is compared; None: no comparison."""
        return None

    def augment(self, model: nn.Module, batch: Batch[T]) -> Batch[T]:
        """Return the batch that the model reads. In training, apply the random augmentation of the
        task.

        This is called once per micro-batch, so that a teacher or a second pass reads the same
        input.
        """
        return batch

    def read(self, model: nn.Module, given: Batch[T]) -> Read:
        """Return the outputs of the model for a batch that `augment` returned."""
        read = readout_of(self.settings).read(model, *given.streams, rows_R=given.rows_R)
        return read if given.weights_R is None else read.with_weights(given.weights_R)

    @abstractmethod
    def loss(self, read: Read, given: Batch[T]) -> TaskLoss:
        """Return the task's own loss. R-Drop and distillation are added in `losses`."""

    def evaluate(self, asked: EvalPass) -> Scores:
        """Return the scores on the validation examples: all of them at the end, the first `n_quick`
        during training."""
        asked = replace(asked, max_examples=self.n_evaluated(asked))
        return evaluate(
            self.evaluator, self.valid_set, asked, lambda: self.prepared, is_validation=True
        )

    def n_evaluated(self, asked: EvalPass) -> int:
        n = self.n_valid if asked.full else self.n_quick
        return n if asked.max_examples is None else min(n, asked.max_examples)

    def frequencies(self) -> TargetFrequencies | None:
        """Return the frequencies of the targets in training and validation data; None if they
        cannot be counted."""
        return None

    def show(self, part: MicroBatch) -> list[dict[str, Any]]:
        """Return a human-readable description of the examples in a micro-batch, for error
        reports."""
        items, _ = self.planned(part.rows.epoch)
        return [
            {
                "example": int(items.example_index[row]),
                "text": "".join(one.text for one in items.describe_positions(row)[-1]),
            }
            for row in part.rows.rows.tolist()
        ]
