"""Detection of runs that learn nothing: the loss stays near that of predicting answer frequencies.

A warning with settings to try is printed once, early in the run. It does not affect training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headway.errors import Option
from headway.settings.model import ModelSettings
from headway.settings.train import ResolvedTrain
from headway.tasks.objective import Objective
from headway.training.schedule import peak_lr, warmup_steps

NEAR = 0.95
"""Limit for the final validation loss, relative to the frequency baseline. A run above it has
hardly learned anything."""

FALL = 0.02
"""Relative decrease of the validation loss, in the last fifth of the steps, from which the loss
counts as still falling."""

LEAST_STEPS = 100
"""Fewest steps for a check: shorter runs do not show whether a model can learn."""

SHARE, ENOUGH = 0.3, 2000
"""Time of the first check: after this share of the steps, or after this number of steps (or twice
the warm-up, if longer), whichever is earlier."""

LOOKS = 5
"""Number of checks. Each is later by a quarter of the first interval, and two in a row must
agree."""

HARDLY, LITTLE = 0.99, 0.95
"""Limits for a flat loss: above the first share of its earlier value, and above the second share of
the frequency baseline. Models that learn are below both by then: the mean of a window of a few
batches varies by less than one percent."""

PAGE = "docs/tasks/training.md#a-loss-that-stops-falling"


def final_warning(losses: Sequence[tuple[float, float]], prior: float | None, steps: int) -> str:
    """Return a line about a run that hardly learned or ended too early; empty for other runs.

    `losses`: steps and validation losses of all evaluations. `prior`: the validation loss of
    predicting only the frequencies of the answers.
    """
    if prior is None or not losses:
        return ""
    best = min(loss for _, loss in losses)
    longer = f"train longer (train.steps={3 * steps}, or a longer {Option('budget')})"
    if best > NEAR * prior:
        return (
            f"warning: the validation loss is {best:.3g}, not clearly below {prior:.3g}, "
            f"the loss of predicting only the frequencies of the answers. This model has learned "
            f"hardly anything: {longer}, or use a higher learning rate (train.lr)."
        )
    before = [loss for step, loss in losses if step <= 0.8 * steps]
    last = losses[-1][1]
    if before and last == best and last < (1 - FALL) * before[-1]:
        return (
            f"note: the validation loss was still falling at the last step ({before[-1]:.3g} to "
            f"{last:.3g} in the last fifth of the steps). The model may improve if you {longer}."
        )
    return ""


class Plateau:
    """Detector of a training loss that stays near the frequency baseline."""

    def __init__(
        self, steps: int, warmup: int, baseline_loss: float, warning: str = "flat"
    ) -> None:
        """`baseline_loss`: the training loss of predicting only the frequencies of the answers."""
        self.baseline_loss, self.warning = baseline_loss, warning
        first = min(SHARE * steps, max(2 * warmup, ENOUGH))
        first = min(max(first, warmup), steps / 2)
        looks = [first * (1 + n / 4) for n in range(LOOKS)] if steps >= LEAST_STEPS else []
        self._checks = [look for look in looks if look <= steps]
        self._points: list[tuple[int, float]] = []
        self._before = False

    @classmethod
    def of(
        cls, objective: Objective[Any], train: ResolvedTrain, model: ModelSettings
    ) -> Plateau | None:
        """Return a detector, or None if the task has no frequency baseline."""
        found, steps = objective.frequencies(), train.steps
        if found is None:
            return None
        trivial = found.train_loss
        return cls(
            steps, warmup_steps(train, steps), trivial, plateau_warning(train, model, trivial)
        )

    def record(self, step: int, nll: float) -> str:
        """Record a training loss (without label smoothing). Returns the warning once, when it is
        clear that nothing is learned, and otherwise an empty text."""
        if not self._checks:
            return ""
        self._points.append((step, nll))
        if step < self._checks[0]:
            return ""
        del self._checks[0]
        flat, before = self._is_flat(step), self._before
        self._before = flat
        if not (flat and before):
            return ""
        self._checks = []
        return self.warning

    def replay(self, points: Iterable[tuple[float, float]]) -> None:
        """Record the losses from before the run was resumed; their warnings were printed then."""
        for step, nll in points:
            self.record(int(step), nll)

    def _is_flat(self, step: int) -> bool:
        """Whether the loss is flat: compare the last quarter of the steps so far with the quarter
        before it."""
        late = [nll for at, nll in self._points if at > 0.75 * step]
        early = [nll for at, nll in self._points if 0.5 * step < at <= 0.75 * step]
        if not late or not early:
            return False
        now, before = sum(late) / len(late), sum(early) / len(early)
        return now > HARDLY * before and now > LITTLE * self.baseline_loss


def plateau_warning(train: ResolvedTrain, model: ModelSettings, trivial: float) -> str:
    """Return the warning, with suggested settings that differ from those of the run."""
    steps = train.steps
    peak, warmup = peak_lr(train, steps, model.d_model), warmup_steps(train, steps)
    tries = [f"a lower learning rate (train.lr={peak / 4:.1g})"]
    if warmup < steps // 2:
        tries.append(f"a longer warm-up (train.warmup={steps // 2})")
    if model.block_layout == "post":
        tries.append("norms before each sub-layer (model.block_layout=pre)")
    if not train.clip:
        tries.append("gradient clipping (train.clip=1)")
    return (
        f"warning: the loss has stopped falling near {trivial:.2f}, the loss of predicting only "
        f"the frequencies of the answers: this model is not learning. Stop the run, and try "
        f"{', '.join(tries)}. See {PAGE}"
    )
