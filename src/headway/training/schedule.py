"""The learning rate of every step: a pure function of the step's number, which counts from 1.

Every schedule climbs to its peak in a straight line, reached at step `warmup`, and differs in what
comes then. Those that end at zero would reach it one step after the last, so that no step is lost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from headway.settings.train import OF_SCHEDULES, ResolvedTrain

PEAK = 1e-3
"""For schedules that have no rule of their own."""

PAPER_WARMUP = 4000
"""Steps, in "Attention Is All You Need". Its formula gives a shorter warm-up a higher peak, and one
that is short because the run is short would get a rate at which nothing is learned."""

WARMUP_SHARE = {"noam": 2}
USUAL_SHARE = 10
"""One in so many steps warms up, where these are few. `noam` is for norms behind each part, which
want a long warm-up: half of a short run learned more than a tenth of it
(docs/tasks/training.md)."""


def learning_rate(settings: ResolvedTrain, steps: int, d_model: int) -> Callable[[float], float]:
    """The rate at each step of a run of that many steps."""
    warmup = warmup_steps(settings, steps)
    peak = aimed_peak(settings, steps, d_model)
    after = AFTER_WARMUP[settings.schedule]
    cooldown = round(settings.cooldown * steps)
    floor = settings.floor if settings.schedule in OF_SCHEDULES["floor"] else 0.0

    def rate(step: float) -> float:
        later = floor + (1.0 - floor) * after(step, warmup, steps, cooldown)
        return peak * min(1.0, step / warmup, later)

    return rate


def warmup_steps(settings: ResolvedTrain, steps: int) -> int:
    """The step of the peak: without a warm-up the first one."""
    if settings.warmup is not None:
        return max(1, settings.warmup)
    share = WARMUP_SHARE.get(settings.schedule, USUAL_SHARE)
    return min(PAPER_WARMUP, max(1, steps // share))


def schedule_steps(settings: ResolvedTrain) -> int:
    """Of the schedule of a run whose number of steps may change. Where the warm-up that was asked
    for is longer than the run seemed to be, there is something behind it all the same."""
    steps, warmup = settings.steps, settings.warmup
    return steps if warmup is None or warmup < steps else USUAL_SHARE * max(1, warmup)


def aimed_peak(settings: ResolvedTrain, steps: int, d_model: int) -> float:
    """The rate that the warm-up leads to, whether or not the run is long enough to get there: what
    is asked for, or else what was published, and no more because a run is short."""
    if settings.lr is not None:
        return settings.lr
    if settings.schedule == "noam":
        return float((d_model * max(PAPER_WARMUP, warmup_steps(settings, steps))) ** -0.5)
    return PEAK


def peak_lr(settings: ResolvedTrain, steps: int, d_model: int) -> float:
    """The highest rate that the run will really have."""
    rate = learning_rate(settings, steps, d_model)
    # Every schedule rises or stays, then falls: the top is the first step that a fall follows.
    top = bisect_left(range(1, steps), True, key=lambda step: rate(step + 1) < rate(step)) + 1
    return rate(top)


def schedule_line(settings: ResolvedTrain, steps: int, d_model: int) -> str:
    """What a run says about its rates when it begins."""
    warmup, peak = warmup_steps(settings, steps), peak_lr(settings, steps, d_model)
    text = f"{settings.schedule} schedule, peak rate {peak:.3g}"
    if warmup < steps or warmup == 1:
        return f"{text} at step {warmup:,}"
    aimed = aimed_peak(settings, steps, d_model)
    which = "as long as" if warmup == steps else "longer than"
    text += f" at the last step: the warm-up of {warmup:,} steps to {aimed:.3g} is {which} the run"
    if steps == 1:
        return text
    return f"{text}. For a rate that also falls again: train.warmup={steps // 2}"


def _inverse_sqrt(step: float, warmup: int, steps: int, cooldown: int) -> float:
    return math.sqrt(warmup / step)


def _left(step: float, start: int, steps: int) -> float:
    """The share of the way from `start` to the end that still lies ahead."""
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
"""The share of the peak after the warm-up, from the step, warm-up, all and cool-down steps.

Noam and inverse-sqrt are one formula: they differ in the peak they aim at when none is given.
"""
