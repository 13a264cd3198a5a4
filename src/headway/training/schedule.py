"""Learning-rate schedules: pure functions of the number of the step, which counts from 1.

Every schedule rises linearly to its peak at step `warmup`; schedules differ after that. Those that
decay to zero would reach it one step after the last, so that no step is wasted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from headway.settings.train import FLOOR_SCHEDULES, ResolvedTrain

PEAK = 1e-3
"""Default peak learning rate: the default of Adam (Kingma and Ba 2015), for schedules without a
formula for the peak."""

PAPER_WARMUP = 4000
"""Warm-up steps in "Attention Is All You Need". Its formula gives a shorter warm-up a higher peak,
which would be too high to learn anything in a short run."""

WARMUP_SHARE = {"noam": 2}
DEFAULT_SHARE = 10
"""Share of warm-up in short runs: one in this many steps. `noam` is for post-norm models, which
need a longer one: in a short run, half of the steps was better than a tenth
(docs/tasks/training.md)."""


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
    """Number of warm-up steps, at the end of which the learning rate peaks; 1 without warm-up."""
    if settings.warmup is not None:
        return max(1, settings.warmup)
    share = WARMUP_SHARE.get(settings.schedule, DEFAULT_SHARE)
    return min(PAPER_WARMUP, max(1, steps // share))


def schedule_steps(settings: ResolvedTrain) -> int:
    """Length of the schedule in a run whose number of steps may change. If the requested warm-up is
    longer than the planned run, the schedule still continues after it."""
    steps, warmup = settings.steps, settings.warmup
    return steps if warmup is None or warmup < steps else DEFAULT_SHARE * max(1, warmup)


def target_peak(settings: ResolvedTrain, steps: int, d_model: int) -> float:
    """Learning rate at the end of the warm-up, even if the run is too short to reach it: the user's
    setting, or else the published value, which is not raised for short runs."""
    if settings.lr is not None:
        return settings.lr
    if settings.schedule == "noam":
        return float((d_model * max(PAPER_WARMUP, warmup_steps(settings, steps))) ** -0.5)
    return PEAK


def peak_lr(settings: ResolvedTrain, steps: int, d_model: int) -> float:
    """Highest learning rate that the run reaches."""
    rate = learning_rate(settings, steps, d_model)
    # Every schedule rises or stays, then falls: the top is the first step that a fall follows.
    top = bisect_left(range(1, steps), True, key=lambda step: rate(step + 1) < rate(step)) + 1
    return rate(top)


def schedule_line(settings: ResolvedTrain, steps: int, d_model: int) -> str:
    """Describe the schedule in one line for the start of a run."""
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
"""Learning rate after the warm-up, as a share of the peak. The functions take the step, and the
numbers of warm-up steps, of all steps and of cool-down steps. `noam` and `inverse-sqrt` differ only
in their default peak."""
