"""What the loop asks of a task. The loop knows steps, gradients and checkpoints and no modality;
a task knows its examples, its loss and its scores and nothing of the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.metrics.language import perplexity, unigram_loss
from headway.progress import OnProgress, unheard
from headway.tasks.read import Read
from headway.tasks.scores import Scores
from headway.tasks.specs import Metric


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


class Task(Protocol):
    metric: Metric
    """Which of the scores a better model is better at."""

    @property
    def n_valid(self) -> int:
        """Validation examples there are."""
        ...

    @property
    def n_quick(self) -> int:
        """Of these, the first so many are looked at during training."""
        ...

    def epoch(self, number: int) -> Sequence[Any]:
        """The examples of each step: a pure function of the number."""
        ...

    def parts(self, step: Any, micro_tokens: int) -> list[Part]:
        """The examples of one step, cut into what is computed at a time."""
        ...

    def batch(self, part: Part, device: torch.device, fixed: Any) -> Any:
        """Tensors on the device. Called from a thread that runs ahead of training."""
        ...

    def fixed(self, micro_tokens: int) -> Any:
        """The shapes that every batch of this size can have, or None if there are none."""
        ...

    def vary(self, model: nn.Module, batch: Any) -> Any:
        """The batch as the model is to read it: while it learns, changed by chance where the task
        does that. Once for all who read it in a step."""
        ...

    def read(self, model: nn.Module, given: Any) -> Read:
        """What a model makes of a batch that was varied."""
        ...

    def loss(self, read: Read, given: Any) -> TaskLoss:
        """Of what was read. `losses` makes of it what a step minimises."""
        ...

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool],
        full: bool,
        on_progress: OnProgress = unheard,
        *,
        most: int | None = None,
    ) -> Scores:
        """Scores on the validation set; `full`: the careful ones, at the end. `most`: of so many of
        the first examples and no more, the loss too, where time is short.

        What is written during training ends where the texts of the validation set do, about: a
        model that knows nothing yet does not know when to stop, and would take all the time.
        Raises `Stopped` when `stopped()` turns true on the way."""
        ...

    def frequencies(self) -> Frequencies | None:
        """Of the answers that the loss is about; None where they cannot be counted."""
        ...

    def show(self, part: Part) -> list[dict[str, Any]]:
        """The examples of a part as text, for people."""
        ...


def n_examples(task: Task, full: bool, most: int | None) -> int:
    """Of an evaluation."""
    n = task.n_valid if full else task.n_quick
    return n if most is None else min(n, most)
