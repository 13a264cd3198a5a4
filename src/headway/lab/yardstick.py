"""The loss of a run with weights that it does not have: averaged, lesioned, of an earlier step."""

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
from headway.tasks.items import Items, batches_of
from headway.tasks.task import find_task


class Yardstick:
    """Nats per token, without smoothing and dropout, on what a run was validated with or learned
    from: one measure for both, and for any model of its shape."""

    def __init__(self, run: Run, most: int | None = None) -> None:
        """`most`: of so many of the first examples."""
        self.run, self.most = run, most

    @cached_property
    def _objective(self) -> Any:
        task = find_task(self.run.settings)
        return task.objective(self.run.settings, task.load_prepared(self.run.folder))

    def valid(self, model: nn.Module | None = None) -> float:
        """On the validation set."""
        return self.together([model or self.run.model])

    def learned(self, model: nn.Module | None = None) -> float:
        """On the training set."""
        return self.together([model or self.run.model], learned=True)

    @torch.no_grad()
    def together(self, models: Sequence[nn.Module], *, learned: bool = False) -> float:
        """Of models that answer together: the mean of their probabilities."""
        objective = self._objective
        items: Items[Any] = objective.train_items if learned else objective.valid_items
        last = len(items.owner) if self.most is None else self.most
        rows = np.flatnonzero(items.owner < last)
        total, count = 0.0, 0.0
        with evaluating(list(models)):
            for _, batch in batches_of(items, rows, self.run.device):
                likely_RK = torch.stack([self._right(one, batch) for one in models], dim=1)
                likely_R = likely_RK.logsumexp(1) - math.log(len(models))
                counts_R = batch.weights_R
                counts_R = torch.ones_like(likely_R) if counts_R is None else counts_R
                total -= float((likely_R.double() * counts_R).sum())
                count += float(counts_R.sum())
        return total / max(1.0, count)

    def _right(self, model: nn.Module, batch: Any) -> Tensor:
        """What the model gives to each token that stands there, as a logarithm."""
        read = self._objective.read(model, self._objective.vary(model, batch))
        right_R = getattr(batch.targets, "said_N", batch.targets)
        scores_RV = read.scores(read.x_RD).float()
        return scores_RV.log_softmax(-1).gather(1, right_R[:, None]).squeeze(1)
