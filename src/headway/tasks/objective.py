"""What a task learns by. The loop knows steps, gradients and checkpoints and no modality; an
objective knows its examples, its loss and its scores and nothing of the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.data.batches import Fixed, Rows, StepPlan
from headway.data.token_store import TokenStore
from headway.metrics.language import perplexity, token_counts, unigram_loss
from headway.settings.run import Resolved
from headway.tasks.items import Batch, Draw, Items, Pass, n_owners
from headway.tasks.readout import Read
from headway.tasks.scores import Scores
from headway.tasks.specs import Metric
from headway.tokens.tokenizer import Tokenizer

T = TypeVar("T")


class TaskLoss(NamedTuple):
    sum: Tensor
    """To be minimised, summed over the targets of a batch."""

    nll: Tensor
    """Without smoothing and the like, summed too, for reporting."""


@dataclass(frozen=True)
class Part:
    """Examples computed at a time."""

    rows: Any
    n_targets: int
    """What the summed loss is divided by: tokens, words, texts."""

    tokens: int | None = None
    """Tokens that are read; None: as many as there are targets."""

    @property
    def n_tokens(self) -> int:
        return self.n_targets if self.tokens is None else self.tokens


TOKENS = "token frequencies"
CLASSES = "class frequencies"
"""Names of baselines that several tasks have: all that is known is how frequent each answer is."""


@dataclass(frozen=True)
class Frequencies:
    """How often each token, class or tag is the right answer."""

    train_V: NDArray[np.int64]
    valid_V: NDArray[np.int64]

    @property
    def train_loss(self) -> float:
        """In training, of someone who knows these frequencies and nothing else."""
        return unigram_loss(self.train_V, self.train_V)

    @property
    def scores(self) -> dict[str, float]:
        """The same on the validation set."""
        loss = unigram_loss(self.train_V, self.valid_V)
        return {"loss": loss, "ppl": perplexity(loss)}


COUNTED = 1 << 22
"""Tokens from which their frequencies are known well enough for a yardstick."""


def text_frequencies(train: TokenStore, valid: TokenStore, tokenizer: Tokenizer) -> Frequencies:
    """Of the tokens of texts, each with its end."""
    counts = []
    for texts in (train, valid):
        counts_V = token_counts(texts.tokens, tokenizer.vocab_size, COUNTED)
        counts_V[tokenizer.eos] += len(texts)
        counts.append(counts_V)
    return Frequencies(*counts)


class Chosen(NamedTuple):
    """Items of a step, or a part of one, and the epoch it is of."""

    epoch: int
    rows: Rows


@dataclass
class Objective(ABC, Generic[T]):
    """Which items make which step, their batches, and what the loop asks about them."""

    settings: Resolved
    metric: Metric = field(init=False)
    """Which of the scores a better model is better at."""

    quick_size: int = field(default=3000, kw_only=True)
    """Validation examples that are read during training; all of them at the end."""

    train_items: Items[T] = field(init=False)
    """Of the training set; `drawn` has those of an epoch."""

    valid_items: Items[T] = field(init=False)

    _drawn: dict[int, tuple[Items[T], StepPlan]] = field(
        default_factory=dict, init=False, repr=False
    )

    _limits: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)

    def planned(self, epoch: int) -> tuple[Items[T], StepPlan]:
        """The items of an epoch and how they are cut into steps. The last two are kept: batches are
        made from them while the next epoch begins."""
        kept = self._drawn
        if epoch not in kept:
            items = self.train_items.drawn(Draw(self.settings.train.seed, epoch))
            before = next(iter(kept.values()), None)
            same = before is not None and before[0].lengths is items.lengths
            kept[epoch] = items, before[1] if before is not None and same else self.plan(items)
            for old in sorted(kept)[:-2]:
                if old != epoch:
                    del kept[old]
        return kept[epoch]

    def plan(self, items: Items[T]) -> StepPlan:
        """Steps of about `train.batch_tokens` rows of the last stream."""
        train, lengths = self.settings.train, items.lengths
        tokens = max(train.batch_tokens, self.widest(items))
        if lengths.shape[1] == 1:
            return StepPlan.of_lengths(lengths[:, 0], tokens, train.seed, train.pool)
        return StepPlan.of_pairs(lengths[:, 0], lengths[:, 1], tokens, train.seed, train.pool)

    def widest(self, items: Items[T]) -> int:
        """Rows of the last stream that an item has at most, in any epoch."""
        return int(items.lengths[:, -1].max())

    def epoch(self, number: int) -> Sequence[Chosen]:
        """The items of each step: a pure function of the number."""
        return [Chosen(number, rows) for rows in self.planned(number)[1].epoch(number)]

    def parts(self, step: Chosen, micro_tokens: int) -> list[Part]:
        """The items of one step, cut into what is computed at a time."""
        items, plan = self.planned(step.epoch)
        return [
            Part(Chosen(step.epoch, rows), items.n_targets(rows), plan.n_targets(rows))
            for rows in plan.cut(step.rows, *self.limits(micro_tokens))
        ]

    def limits(self, micro_tokens: int) -> tuple[int, int]:
        """Rows of the first and of the last stream that a part has at most, in every epoch."""
        if micro_tokens not in self._limits:
            self._limits[micro_tokens] = self.part_limits(self.planned(0)[1], micro_tokens)
        return self._limits[micro_tokens]

    def part_limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        """The same, from the plan of the first epoch."""
        return plan.part_limits(micro_tokens)

    def fixed(self, micro_tokens: int) -> Fixed | None:
        """The shapes that every batch of this size can have, or None if there are none."""
        items, plan = self.planned(0)
        return items.fixed(plan, micro_tokens)

    def batch(self, part: Part, device: torch.device, fixed: Fixed | None) -> Batch[T]:
        """Tensors on the device. Called from a thread that runs ahead of training."""
        chosen: Chosen = part.rows
        return self.planned(chosen.epoch)[0].batch(chosen.rows, device, fixed)

    @property
    def n_valid(self) -> int:
        """Validation examples there are."""
        return n_owners(self.valid_items)

    @property
    def n_quick(self) -> int:
        """Of these, the first so many are looked at during training."""
        return min(self.quick_size, self.n_valid)

    def begin(self, model: nn.Module, note: Callable[[str], None]) -> None:
        """Put into a fresh model what it begins with and is not learned in steps."""
        return

    def cautions(self) -> list[str]:
        """Lines about validation data that says little."""
        return []

    def prior_loss(self) -> float | None:
        """Validation loss of a model that knows only how frequent each answer is; None where the
        loss is not compared with it at the end."""
        return None

    def few_labels(self, device: torch.device) -> list[dict[str, Any]]:
        """Where labels are few: a row for each number of them that is tried with what is cheap."""
        return []

    def vary(self, model: nn.Module, batch: Batch[T]) -> Batch[T]:
        """The batch as the model is to read it: while it learns, changed by chance where the task
        does that. Once for all who read it in a step."""
        return batch

    @abstractmethod
    def read(self, model: nn.Module, given: Batch[T]) -> Read:
        """What a model makes of a batch that was varied."""

    @abstractmethod
    def loss(self, read: Read, given: Batch[T]) -> TaskLoss:
        """Of what was read. `losses` makes of it what a step minimises."""

    @abstractmethod
    def evaluate(self, asked: Pass) -> Scores:
        """Scores on the validation set, of the first `n_asked` examples.

        What is written during training ends where the texts of the validation set do, about: a
        model that knows nothing yet does not know when to stop, and would take all the time."""

    def n_asked(self, asked: Pass) -> int:
        n = self.n_valid if asked.full else self.n_quick
        return n if asked.most is None else min(n, asked.most)

    @abstractmethod
    def frequencies(self) -> Frequencies | None:
        """Of the answers that the loss is about; None where they cannot be counted."""

    @abstractmethod
    def show(self, part: Part) -> list[dict[str, Any]]:
        """The examples of a part as text, for people."""
