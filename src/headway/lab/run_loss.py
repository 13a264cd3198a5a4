"""Loss of a run with different weights: averaged, ablated or from an earlier step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.nn.eval_mode import evaluating
from headway.run import Run
from headway.tasks.dataset import TaskDataset, batches_of
from headway.tasks.task import find_task


class RunLoss:
    """Computes the loss of a run's model, or of another model of the same shape, on the data of the
    run, in nats per token.

    Label smoothing and dropout are disabled.
    """

    def __init__(self, run: Run, most: int | None = None) -> None:
        """Prepare the computation. `most`: number of examples to use, from the start of the data;
        None: all."""
        self.run, self.most = run, most

    @cached_property
    def _objective(self) -> Any:
        task = find_task(self.run.settings)
        return task.objective(self.run.settings, task.load_prepared(self.run.folder))

    def validation(self, model: nn.Module | None = None) -> float:
        """Return the loss on the validation set of the run. `model`: None for the model of the
        run."""
        return self.ensemble([model or self.run.model])

    def training(self, model: nn.Module | None = None) -> float:
        """Return the loss on the training set of the run. `model`: None for the model of the
        run."""
        return self.ensemble([model or self.run.model], learned=True)

    @torch.no_grad()
    def ensemble(self, models: Sequence[nn.Module], *, learned: bool = False) -> float:
        """Return the loss of an ensemble, which averages the probabilities of its models.
        `learned`: whether to use the training set instead of the validation set."""
        objective = self._objective
        items: TaskDataset[Any] = objective.train_dataset if learned else objective.valid_dataset
        last = len(items.example_index) if self.most is None else self.most
        rows = np.flatnonzero(items.example_index < last)
        total, count = 0.0, 0.0
        with evaluating(list(models)):
            for _, batch in batches_of(items, rows, self.run.device):
                likely_RK = torch.stack(
                    [self._target_log_probs(one, batch) for one in models], dim=1
                )
                likely_R = likely_RK.logsumexp(1) - math.log(len(models))
                counts_R = batch.weights_R
                counts_R = torch.ones_like(likely_R) if counts_R is None else counts_R
                total -= float((likely_R.double() * counts_R).sum())
                count += float(counts_R.sum())
        return total / max(1.0, count)

    def _target_log_probs(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the log-probability that the model assigns to each correct token."""
        read = self._objective.read(model, self._objective.augment(model, batch))
        right_R = getattr(batch.targets, "targets_N", batch.targets)
        scores_RV = read.scores(read.x_RD).float()
        return scores_RV.log_softmax(-1).gather(1, right_R[:, None]).squeeze(1)
