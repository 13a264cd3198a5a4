"""Detection of runs that learn nothing, in which the loss stays near that of predicting answer
frequencies.

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
"""Upper limit of the final validation loss, as a fraction of the frequency baseline. A run above it
has hardly learned anything."""

FALL = 0.02
"""Minimum relative decrease of the validation loss in the last fifth of the steps. A loss that
falls by more was still improving when the run ended."""

LEAST_STEPS = 100
"""Minimum number of steps of a run that is checked. Shorter runs do not show whether a model can
learn."""

SHARE, ENOUGH = 0.3, 2000
"""Step of the first check, as a fraction of all steps, and its upper limit in steps. The limit is
twice the warm-up if that is longer."""

LOOKS = 5
"""Maximum number of checks. Each is later than the one before by a quarter of the steps before the
first check. Two consecutive checks must agree."""

HARDLY, LITTLE = 0.99, 0.95
"""Limits of a flat loss. The loss is flat if it exceeds the first fraction of its earlier value and
the second fraction of the frequency baseline. When the checks run, models that learn are below
these limits. Noise is smaller than the limits, because the mean over a few batches varies by less
than one percent."""

PAGE = "docs/tasks/training.md#a-loss-that-stops-falling"


def final_warning(losses: Sequence[tuple[float, float]], prior: float | None, steps: int) -> str:
    """Return a line about a run that hardly learned or ended too early; empty text for other runs.

    `losses`: step and validation loss of each evaluation. `prior`: validation loss of predicting
    only the frequencies of the answers; None if the task has none. `steps`: number of steps of the
    run.
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
    """Detects a training loss that stays near the frequency baseline."""

    def __init__(
        self, steps: int, warmup: int, baseline_loss: float, warning: str = "flat"
    ) -> None:
        """Create the detector for a run of `steps` steps.

        `baseline_loss`: training loss of predicting only the frequencies of the answers. `warning`:
        text to return when nothing is learned.
        """
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
        """Create a detector for an objective, or return None if the task has no frequency
        baseline."""
        found, steps = objective.frequencies(), train.steps
        if found is None:
            return None
        trivial = found.train_loss
        return cls(
            steps, warmup_steps(train, steps), trivial, plateau_warning(train, model, trivial)
        )

    def record(self, step: int, nll: float) -> str:
        """Record a training loss (without label smoothing). Return the warning when it is first
        clear that nothing is learned; empty text in all other calls."""
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
        """Record the losses from before the run was resumed. Their warnings are dropped, because
        they have been printed already."""
        for step, nll in points:
            self.record(int(step), nll)

    def _is_flat(self, step: int) -> bool:
        """Return whether the loss is flat. This compares the last quarter of the steps so far with
        the quarter before it."""
        late = [nll for at, nll in self._points if at > 0.75 * step]
        early = [nll for at, nll in self._points if 0.5 * step < at <= 0.75 * step]
        if not late or not early:
            return False
        now, before = sum(late) / len(late), sum(early) / len(early)
        return now > HARDLY * before and now > LITTLE * self.baseline_loss


def plateau_warning(train: ResolvedTrain, model: ModelSettings, trivial: float) -> str:
    """Return the warning that nothing is learned. It suggests settings that differ from those of
    the run."""
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
