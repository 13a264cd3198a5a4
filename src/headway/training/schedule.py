"""Learning-rate schedules, which are pure functions of the step number, counted from 1.

Every schedule rises linearly to its peak at step `warmup`; schedules differ after that. Schedules
that decay to zero reach it one step after the last step, so that no step is wasted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from headway.settings.train import FLOOR_SCHEDULES, ResolvedTrain

PEAK = 1e-3
"""Default peak learning rate, for schedules without a formula for the peak. It is the default of
Adam (Kingma and Ba 2015)."""

PAPER_WARMUP = 4000
"""Maximum default number of warm-up steps, from "Attention Is All You Need". The formula of that
paper gives a shorter warm-up a higher peak, which would be too high to learn anything in a short
run."""

WARMUP_SHARE = {"noam": 2}
DEFAULT_SHARE = 10
"""Number of steps per step of default warm-up: one tenth of the steps, or half of them for `noam`
(`WARMUP_SHARE`). `noam` is for post-norm models, which need a longer warm-up. In a short run, half
of the steps was better than a tenth (docs/tasks/training.md)."""


def learning_rate(settings: ResolvedTrain, steps: int, d_model: int) -> Callable[[float], float]:
    """Return the learning rate as a function of the step, for a run of this many steps."""
    warmup = warmup_steps(settings, steps)
    peak = target_peak(settings, steps, d_model)
    after = AFTER_WARMUP[settings.schedule]
    cooldown = round(settings.cooldown * steps)
    floor = settings.floor if settings.schedule in FLOOR_SCHEDULES else 0.0

    def rate(step: float) -> float:
        later = floor + (1.0 - floor) * after(step, warmup, steps, cooldown)
        return peak * min(1.0, step / warmup, later)

    return rate


def warmup_steps(settings: ResolvedTrain, steps: int) -> int:
    """Return the number of warm-up steps, at the end of which the learning rate peaks; 1 without
    warm-up."""
    if settings.warmup is not None:
        return max(1, settings.warmup)
    share = WARMUP_SHARE.get(settings.schedule, DEFAULT_SHARE)
    return min(PAPER_WARMUP, max(1, steps // share))


def schedule_steps(settings: ResolvedTrain) -> int:
    """Return the length of the schedule in a run whose number of steps may change. It exceeds the
    warm-up even if the user set a warm-up that is longer than the planned run."""
    steps, warmup = settings.steps, settings.warmup
    return steps if warmup is None or warmup < steps else DEFAULT_SHARE * max(1, warmup)


def target_peak(settings: ResolvedTrain, steps: int, d_model: int) -> float:
    """Return the learning rate at the end of the warm-up, even if the run is too short to reach it.

    It is the user's setting, or else the published value, which is not raised for short runs.
    """
    if settings.lr is not None:
        return settings.lr
    if settings.schedule == "noam":
        return float((d_model * max(PAPER_WARMUP, warmup_steps(settings, steps))) ** -0.5)
    return PEAK


def peak_lr(settings: ResolvedTrain, steps: int, d_model: int) -> float:
    """Return the highest learning rate that the run reaches."""
    rate = learning_rate(settings, steps, d_model)
    # Every schedule rises or stays constant, then falls. The peak is the first step that is
    # followed by a fall.
    top = bisect_left(range(1, steps), True, key=lambda step: rate(step + 1) < rate(step)) + 1
    return rate(top)


def schedule_line(settings: ResolvedTrain, steps: int, d_model: int) -> str:
    """Return a one-line description of the schedule, for the start of a run."""
    warmup, peak = warmup_steps(settings, steps), peak_lr(settings, steps, d_model)
    text = f"{settings.schedule} schedule, peak learning rate {peak:.3g}"
    if warmup < steps or warmup == 1:
        return f"{text} at step {warmup:,}"
    aimed = target_peak(settings, steps, d_model)
    which = "as long as" if warmup == steps else "longer than"
    text += f" at the last step: the warm-up of {warmup:,} steps to {aimed:.3g} is {which} the run"
    if steps == 1:
        return text
    return f"{text}. For a learning rate that also decays: train.warmup={steps // 2}"


def _inverse_sqrt(step: float, warmup: int, steps: int, cooldown: int) -> float:
    return math.sqrt(warmup / step)


def _left(step: float, start: int, steps: int) -> float:
    return min(1.0, max(0, steps + 1 - step) / max(1, steps + 1 - start))


def _cosine(step: float, warmup: int, steps: int, cooldown: int) -> float:
    return 0.5 - 0.5 * math.cos(math.pi * _left(step, warmup, steps))


def _linear(step: float, warmup: int, steps: int, cooldown: int) -> float:
    return _left(step, warmup, steps)


def _constant(step: float, warmup: int, steps: int, cooldown: int) -> float:
    return 1.0


def _trapezoid(step: float, warmup: int, steps: int, cooldown: int) -> float:
    return _left(step, steps - cooldown, steps)


AFTER_WARMUP: dict[str, Callable[[float, int, int, int], float]] = {
    "noam": _inverse_sqrt,
    "inverse-sqrt": _inverse_sqrt,
    "cosine": _cosine,
    "linear": _linear,
    "constant": _constant,
    "trapezoid": _trapezoid,
}
"""Learning rate after the warm-up as a fraction of the peak, for each schedule. The arguments are
the step and the numbers of warm-up steps, of all steps and of cool-down steps. `noam` and
`inverse-sqrt` differ only in their default peak."""
