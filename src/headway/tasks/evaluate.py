"""Evaluation: predictions of a model for a set of examples, their scores, and scores of baselines.

Validation during training, the comparison of a student with its teacher, test sets of `headway
evaluate`, and `run.evaluate()` all call `evaluate`, so their scores are comparable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from headway.data.store import PreparedData
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.tasks.dataset import EvalPass
from headway.tasks.scores import Methods, Scores

if TYPE_CHECKING:
    from headway.tasks.loaded_run import LoadedRun

E = TypeVar("E")
"""Type of a set of examples with their targets."""

P = TypeVar("P")
"""Type of the predictions for a set of examples."""

TrainingData = PreparedData | None
"""Data of a run, to which baselines are fitted; None if the run's folder was copied without its
data."""


class Evaluator(ABC, Generic[E, P]):
    """Evaluation of one task, which defines how examples are predicted, scored and compared with
    baselines."""

    @abstractmethod
    def predict(self, asked: EvalPass, examples: E) -> P:
        """Return the predictions for the first `asked.max_examples` examples (None: all)."""

    @abstractmethod
    def score(self, predictions: P, examples: E, full: bool) -> Scores:
        """Return the scores of the predictions. `full`: also compute results for reports and
        tables, not only the metrics that select the best checkpoint."""

    def baselines(self, data: TrainingData, examples: E, predictions: P) -> Methods:
        """Return the scores of baselines fitted to the training data.

        They are computed on all examples or, if that would be slow, only on the examples that have
        predictions.
        """
        return {}

    def fitted(self, predictions: P, examples: E, calibrate: bool) -> P:
        """Return the predictions with decision thresholds fitted to these validation examples.
        `calibrate`: fit a temperature too."""
        return predictions

    @abstractmethod
    def test_set(self, files: DataSettings, progress: Progress) -> E:
        """Read the examples of a test set from files."""


@torch.no_grad()
def evaluate(
    how: Evaluator[E, P],
    examples: E,
    asked: EvalPass,
    load_data: Callable[[], TrainingData],
    *,
    is_validation: bool = False,
) -> Scores:
    """Return the scores of a model on a set of examples. Baselines are computed on first use.
    `is_validation`: fit thresholds to these examples before scoring."""
    predictions = how.predict(asked, examples)
    if is_validation:
        predictions = how.fitted(predictions, examples, asked.calibrate)
    return how.score(predictions, examples, asked.full).updated(
        find_baselines=lambda: how.baselines(load_data(), examples, predictions)
    )


def evaluate_files(
    how: Evaluator[Any, Any],
    opened: LoadedRun,
    files: DataSettings,
    load_data: Callable[[], TrainingData],
    progress: Progress,
) -> Scores:
    """Return the scores of a loaded run on a test set in files."""
    examples = how.test_set(files, progress)
    with progress.stage("reading") as stage:
        return evaluate(how, examples, EvalPass.of_run(opened, stage.update), load_data)
