"""Is anything being learned? A loss that stops falling where knowing the mere frequency of answers
would bring it is said once, early, with what to try. It is a notice: training goes on as it would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headway.settings.model import ModelSettings
from headway.settings.train import ResolvedTrain
from headway.tasks.objective import Objective
from headway.training.schedule import peak_lr, warmup_steps

NEAR = 0.95
"""Share of the loss of the priors above which a final validation loss shows hardly any learning."""

FALL = 0.02
"""Relative fall of the validation loss in the last fifth of the steps that counts as falling."""

LEAST_STEPS = 100
"""Shorter runs say nothing about whether a model could learn."""

SHARE, ENOUGH = 0.3, 2000
"""When to look for the first time: after this share of the steps or after so many of them."""

LOOKS = 5
"""So often, each a quarter of that time later; two in a row must agree."""

HARDLY, LITTLE = 0.99, 0.95
"""A loss that did not fall below this share of what it was, and is not below this share of that of
frequencies. Models that learn are past both by then: the mean of a window of a few batches varies
by less than one percent."""

PAGE = "docs/tasks/training.md#a-loss-that-stops-falling"


def at_the_end(losses: Sequence[tuple[float, float]], prior: float | None, steps: int) -> str:
    """A line about a run that ended too early; empty for others.

    `losses`: steps and validation losses of all evaluations; `prior`: the loss of knowing only how
    frequent each answer is.
    """
    if prior is None or not losses:
        return ""
    best = min(loss for _, loss in losses)
    longer = f"train longer (train.steps={3 * steps}, or a longer --budget)"
    if best > NEAR * prior:
        return (
            f"warning: the validation loss is {best:.3g}, and {prior:.3g} is that of knowing only "
            f"how frequent each answer is: this model has learned hardly anything. What helps: "
            f"{longer}, or use a higher learning rate (train.lr)."
        )
    before = [loss for step, loss in losses if step <= 0.8 * steps]
    last = losses[-1][1]
    if before and last == best and last < (1 - FALL) * before[-1]:
        return (
            f"note: the validation loss was still falling at the last step ({before[-1]:.3g} to "
            f"{last:.3g} in the last fifth of the steps). It may become better if you {longer}."
        )
    return ""


class Plateau:
    """Hears the loss of training, without smoothing, at some of the steps."""

    def __init__(self, steps: int, warmup: int, trivial: float, warning: str = "flat") -> None:
        """`trivial`: the loss of someone who knows how frequent each answer is and nothing else."""
        self.trivial, self.warning = trivial, warning
        first = min(SHARE * steps, max(2 * warmup, ENOUGH))
        first = min(max(first, warmup), steps / 2)
        looks = [first * (1 + n / 4) for n in range(LOOKS)] if steps >= LEAST_STEPS else []
        self._looks = [look for look in looks if look <= steps]
        self._points: list[tuple[int, float]] = []
        self._before = False

    @classmethod
    def of(
        cls, objective: Objective[Any], train: ResolvedTrain, model: ModelSettings
    ) -> Plateau | None:
        """None where nobody can say what the loss should fall below."""
        found, steps = objective.frequencies(), train.steps
        if found is None:
            return None
        trivial = found.train_loss
        return cls(steps, warmup_steps(train, steps), trivial, way_out(train, model, trivial))

    def hear(self, step: int, nll: float) -> str:
        """The warning, once, when it is clear that nothing is learned; otherwise nothing."""
        if not self._looks:
            return ""
        self._points.append((step, nll))
        if step < self._looks[0]:
            return ""
        del self._looks[0]
        flat, before = self._is_flat(step), self._before
        self._before = flat
        if not (flat and before):
            return ""
        self._looks = []
        return self.warning

    def replay(self, points: Iterable[tuple[float, float]]) -> None:
        """What was heard before the run was taken up again, and said then."""
        for step, nll in points:
            self.hear(int(step), nll)

    def _is_flat(self, step: int) -> bool:
        """The last quarter of the steps so far against the one before it."""
        late = [nll for at, nll in self._points if at > 0.75 * step]
        early = [nll for at, nll in self._points if 0.5 * step < at <= 0.75 * step]
        if not late or not early:
            return False
        now, before = sum(late) / len(late), sum(early) / len(early)
        return now > HARDLY * before and now > LITTLE * self.trivial


def way_out(train: ResolvedTrain, model: ModelSettings, trivial: float) -> str:
    """What to say, with settings that differ from those of the run."""
    steps = train.steps
    peak, warmup = peak_lr(train, steps, model.d_model), warmup_steps(train, steps)
    tries = [f"a lower rate (train.lr={peak / 4:.1g})"]
    if warmup < steps // 2:
        tries.append(f"a longer warm-up (train.warmup={steps // 2})")
    if model.wiring == "post":
        tries.append("norms before each part (model.wiring=pre)")
    if not train.clip:
        tries.append("clipped gradients (train.clip=1)")
    return (
        f"warning: the loss has stopped falling near {trivial:.2f}, which is that of knowing only "
        f"how frequent each answer is: this model is not learning. Stop it, and try "
        f"{', '.join(tries)}. See {PAGE}"
    )
