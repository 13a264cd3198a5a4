"""Verdicts of experiments: effects with intervals over seeds, statistical power, limits of a scale,
and controls.

Everything in this module is a pure function of numbers, so that tests can use invented results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any, Literal

from headway.lab.catalogue import SEEDS

VerdictLabel = Literal["supported", "refuted", "undecided", "cannot tell"]
"""Possible verdicts.

`undecided` means that more seeds may decide the question. `cannot tell` means that no number of
seeds can, because an arm is at the floor or the ceiling of its scale.
"""

ScaleEnd = Literal["", "floor", "ceiling"]

POWER = 0.8
"""Probability with which a study should detect a true effect, by Cohen's convention."""

T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
2.160,
     2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
"""Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.

For more degrees of freedom the normal quantile is used.
"""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Range of a bounded score, such as accuracy (0 to 100 %) or the loss of a solvable task."""

    low: float = -math.inf
    high: float = math.inf
    margin: float
    """Distance from a bound within which the mean of an arm counts as at the floor or ceiling."""

    def end(self, scores: Sequence[float]) -> ScaleEnd:
        mean = fmean(scores)
        if mean < self.low + self.margin:
            return "floor"
        return "ceiling" if mean > self.high - self.margin else ""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the models that an experiment compares, with its score for each seed."""

    name: str
    scores: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Number on which a verdict is based, with its 95 % interval over seeds."""

    name: str
    value: float
    low: float
    high: float
    unit: str = ""
    seeds: int = 1
    spread: float = 0.0
    """Standard deviation over seeds."""

    detectable: float = math.inf
    """Minimum distance from a threshold that is detected with probability `POWER`, given the number
    of seeds and their spread."""

    exact: bool = False
    """Whether the number is exact, because it does not depend on the seed."""

    hides_more: bool = False
    """Whether the true difference may be larger than `value`, because an arm is at a limit of its
    scale."""

    hides_less: bool = False
    """Whether the true difference may be smaller than `value`, because an arm is at a limit of its
    scale."""

    limits: Sequence[str] = ()
    """Descriptions of the arms that are at a limit of their scale, such as accuracy 100 %."""

    @classmethod
    def over(
        cls, values: Sequence[float], name: str, unit: str = "", *, exact: bool = False
    ) -> Effect:
        """Return the effect estimated from `values`, one per seed.

        With a single seed the interval is unbounded, unless `exact` is set. If a value is NaN or
        infinite, the effect is NaN.
        """
        known = [float(value) for value in values]
        if not known or not all(map(math.isfinite, known)):
            return cls(name=name, unit=unit, seeds=len(known), value=math.nan, low=-math.inf,
                       high=math.inf)  # fmt: skip
        mean, n = fmean(known), len(known)
        if exact:
            return cls(name=name, unit=unit, seeds=n, value=mean, low=min(known), high=max(known),
                       exact=True)  # fmt: skip
        if n == 1:
            return cls(name=name, unit=unit, seeds=1, value=mean, low=-math.inf, high=math.inf)
        spread = stdev(known)
        half = student(n) * spread / math.sqrt(n)
        return cls(
            name=name, unit=unit, seeds=n, value=mean, low=mean - half, high=mean + half,
            spread=spread, detectable=smallest_detectable(n) * spread,
        )  # fmt: skip

    @classmethod
    def between(cls, one: Arm, other: Arm, bounds: Bounds, name: str, unit: str = "") -> Effect:
        """Return the effect `one` minus `other` for two arms on a bounded scale.

        If an arm is at a limit of the scale, the true difference may be larger than the measured
        one. A large difference can then still be concluded, but a small one cannot.
        """
        pairs = zip(one.scores, other.scores, strict=True)
        effect = cls.over([a - b for a, b in pairs], name, unit)
        if not math.isfinite(effect.value):
            return effect
        ends = bounds.end(one.scores), bounds.end(other.scores)
        limits = tuple(f"{arm.name} is at its {end} ({rounded(fmean(arm.scores))})"
                       for arm, end in zip((one, other), ends, strict=True) if end)  # fmt: skip
        return replace(
            effect, limits=limits,
            hides_more=ends[0] == "ceiling" or ends[1] == "floor",
            hides_less=ends[0] == "floor" or ends[1] == "ceiling",
        )  # fmt: skip

    def above(self, least: float) -> VerdictLabel:
        """Return the verdict on the claim that the effect is above `least`. The claim is supported
        if the whole interval is above `least`."""
        if self._both_at_same_limit:
            return "cannot tell"
        if self.low > least:
            return "supported"
        if self.high < least:
            return "cannot tell" if self.hides_more else "refuted"
        return "undecided"

    def below(self, most: float) -> VerdictLabel:
        """Return the verdict on the claim that the effect is below `most`. The claim is supported
        if the whole interval is below `most`."""
        if self._both_at_same_limit:
            return "cannot tell"
        if self.high < most:
            return "cannot tell" if self.hides_more else "supported"
        return "refuted" if self.low > most else "undecided"

    def within(self, most: float) -> VerdictLabel:
        """Return the verdict on the claim that the effect is negligible. The claim is supported if
        the whole interval is within ±`most`."""
        if self._both_at_same_limit:
            return "cannot tell"
        if -most < self.low and self.high < most:
            return "cannot tell" if self.hides_more or self.hides_less else "supported"
        return "refuted" if self.low > most or self.high < -most else "undecided"

    @property
    def _both_at_same_limit(self) -> bool:
        """Whether both arms are at the same end of the scale, so that they cannot be compared."""
        return self.hides_more and self.hides_less

    def __str__(self) -> str:
        """Return the mean with its interval, such as `0.42 nats (95 % interval 0.31 to 0.53)`."""
        unit = spaced(self.unit)
        if self.exact or not math.isfinite(self.low + self.high):
            return f"{rounded(self.value)}{unit}"
        interval = f"95 % interval {rounded(self.low)} to {rounded(self.high)}"
        return f"{rounded(self.value)}{unit} ({interval})"


def student(seeds: int) -> float:
    """Return the 97.5 % quantile of Student's t, for the 95 % interval of a mean over `seeds`
    values."""
    return T_QUANTILES[seeds - 2] if seeds - 2 < len(T_QUANTILES) else 1.96


def power(distance: float, seeds: int) -> float:
    """Return the statistical power: the probability that a 95 % interval over `seeds` values
    excludes a threshold.

    The true mean is `distance` standard deviations from the threshold. The noncentral t
    distribution is integrated over the sample standard deviation.
    """
    df = seeds - 1
    shift, critical = distance * math.sqrt(seeds), student(seeds)
    scale = math.log(2) * (df / 2 - 1) + math.lgamma(df / 2)
    end, n = math.sqrt(df) + 8, 400
    total = 0.0
    for i in range(n):
        chi = end * (i + 0.5) / n
        density = math.exp((df - 1) * math.log(chi) - chi * chi / 2 - scale)
        above = 0.5 * math.erfc((critical * chi / math.sqrt(df) - shift) / math.sqrt(2))
        total += density * above
    return total * end / n


@cache
def smallest_detectable(seeds: int) -> float:
    """Return the distance from a threshold, in standard deviations, that this number of seeds
    detects with probability `POWER`."""
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, seeds) < POWER else (low, middle)
    return high


def all_of(*words: VerdictLabel) -> VerdictLabel:
    """Return the verdict on a claim with several parts. One refuted part refutes it, and it is
    supported only if all parts are."""
    order: tuple[VerdictLabel, ...] = ("refuted", "cannot tell", "undecided")
    return next((word for word in order if word in words), "supported")


@dataclass(frozen=True, kw_only=True)
class Control:
    """Control measurement, whose result must come out as expected. Otherwise the effect means
    nothing."""

    name: str
    passed: bool
    said: str
    """Result of the measurement in one sentence."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    verdict: VerdictLabel
    answer: str
    """Answer to the question of the experiment, as one plain sentence without numbers."""

    measured: str
    """Numbers on which the answer is based, with their intervals."""

    effect: Effect
    controls: Sequence[Control] = ()
    more: Sequence[Effect] = ()
    """Additional numbers, on which the verdict does not depend."""

    parts: Mapping[str, VerdictLabel] = field(default_factory=dict)
    """Verdicts on parts of the hypothesis, for literature that is about a single part."""

    changes: str = ""
    """Description of the results that would change the verdict."""

    def as_json(self) -> dict[str, Any]:
        return plain(asdict(self))


@dataclass(frozen=True, kw_only=True)
class OutcomeSentences:
    """Possible answers to the question of an experiment, one plain sentence for each verdict."""

    supported: str
    refuted: str
    undecided: str = "These runs do not answer the question: their results vary too much."
    numbers: str = ""
    """Further measured numbers, which follow the effect in the answer."""

    changes: str = ""
    """Description of the results that would change the verdict."""


def decide(
    word: VerdictLabel, effect: Effect, answers: OutcomeSentences, controls: Sequence[Control] = (),
    more: Sequence[Effect] = (), parts: Mapping[str, VerdictLabel] | None = None,
) -> Verdict:  # fmt: skip
    """Return the verdict with its answer.

    `word`: verdict on the claim. `effect`: number on which the verdict is based. A failed control
    or a single seed makes the verdict `undecided`, and an arm at a limit of its scale makes it
    `cannot tell`.
    """
    failed = [one for one in controls if not one.passed]
    parts = dict(parts or {})
    if failed or (effect.seeds == 1 and not effect.exact):
        parts = dict.fromkeys(parts, "undecided")
    measured = f"{capitalised(effect.name)}: {effect}."
    if math.isnan(effect.value):
        word, answer = "undecided", "There is no answer: a measurement is missing."
        measured = f"No valid measurement of: {effect.name}."
    elif word == "cannot tell":
        answer = "This task cannot show a difference: it is too easy or too hard."
        measured += "".join(f" {capitalised(limit)}." for limit in effect.limits)
    elif failed:
        word = "undecided"
        answer = "There is no answer: a control failed, so the effect cannot be interpreted."
        measured = " ".join(capitalised(one.said) for one in failed)
    elif effect.seeds == 1 and not effect.exact:
        word = "undecided"
        answer = "There is no answer yet: one seed cannot separate an effect from chance."
        measured += f" Run it with --seeds {SEEDS}."
    else:
        answer = getattr(answers, word)
        measured = f"{measured} {answers.numbers}".rstrip()
        if word == "undecided":
            measured += " " + power_of(effect)
    return Verdict(
        verdict=word, answer=answer, measured=measured, effect=effect, controls=tuple(controls),
        more=tuple(more), parts=parts, changes=answers.changes,
    )  # fmt: skip


def capitalised(text: str) -> str:
    """Capitalize the first word of a text, unless the word contains capital letters."""
    first = text.partition(" ")[0]
    return text if first != first.lower() else text[:1].upper() + text[1:]


def power_of(effect: Effect) -> str:
    """Return a sentence about the smallest effect that these seeds could have detected."""
    return (
        f"With {effect.seeds} seeds, an effect must differ from the threshold by "
        f"{rounded(effect.detectable)}{spaced(effect.unit)} to be detected in {100 * POWER:.0f} % "
        "of cases."
    )


def spaced(unit: str) -> str:
    """Return a unit as it is written after a number: after a space, except for % and ×."""
    return f" {unit}" if unit and unit not in "%×" else unit


def rounded(value: float) -> str:
    """Format a number with about three significant figures."""
    if not math.isfinite(value):
        return "?"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
        return f"{value:,.{digits}f}".replace("-", "−")
    return f"{value:.1e}".replace("-", "−")


def plain(value: Any) -> Any:
    """Convert a value to JSON types. NaN and infinities become None."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
