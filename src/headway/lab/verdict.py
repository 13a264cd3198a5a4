"""What an experiment says in the end: an effect with its interval over seeds, controls, a verdict.

All of it is a pure function of numbers, so that a test can plant the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal

Word = Literal["supported", "refuted", "undecided"]

T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
     2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)  # fmt: skip
"""Student's t of 95 % on both sides, for 1, 2, … degrees of freedom; beyond them the normal's."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A number that the verdict rests on: the mean over seeds, and where it lies with 95 %."""

    name: str
    value: float
    low: float
    high: float
    unit: str = ""
    seeds: int = 1
    spread: float = 0.0
    """Standard deviation over seeds."""

    exact: bool = False
    """Arithmetic: no seed has a say in it."""

    @classmethod
    def over(
        cls, values: Sequence[float], name: str, unit: str = "", *, exact: bool = False
    ) -> Effect:
        """Of one number per seed. One seed says nothing about its spread, unless it is `exact`;
        nor does a number that is none."""
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
        half = (T[n - 2] if n - 2 < len(T) else 1.96) * spread / math.sqrt(n)
        return cls(
            name=name, unit=unit, seeds=n, value=mean, low=mean - half, high=mean + half,
            spread=spread,
        )  # fmt: skip

    def above(self, least: float) -> Word:
        """Whether it is more than this: with its whole interval, or not at all."""
        if self.low > least:
            return "supported"
        return "refuted" if self.high < least else "undecided"

    def below(self, most: float) -> Word:
        if self.high < most:
            return "supported"
        return "refuted" if self.low > most else "undecided"

    def within(self, most: float) -> Word:
        """Whether it is as good as none: the whole interval lies nearer to 0 than this."""
        if -most < self.low and self.high < most:
            return "supported"
        return "refuted" if self.low > most or self.high < -most else "undecided"

    def __str__(self) -> str:
        """`0.42 nats (0.31 to 0.53)`."""
        unit = f" {self.unit}" if self.unit and self.unit not in "%×" else self.unit
        if self.exact or not math.isfinite(self.low + self.high):
            return f"{said(self.value)}{unit}"
        return f"{said(self.value)}{unit} ({said(self.low)} to {said(self.high)})"


def all_of(*words: Word) -> Word:
    """Of a claim with several parts: it falls with one of them, and stands with all."""
    if "refuted" in words:
        return "refuted"
    return "undecided" if "undecided" in words else "supported"


@dataclass(frozen=True, kw_only=True)
class Control:
    """What must come out as expected, or the effect means nothing."""

    name: str
    passed: bool
    said: str
    """What was seen, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    verdict: Word
    sentence: str
    """The answer in one sentence, with its uncertainty."""

    effect: Effect
    controls: Sequence[Control] = ()
    more: Sequence[Effect] = ()
    """Other numbers worth knowing, which the verdict does not rest on."""

    changes: str = ""
    """What would change it."""

    def as_json(self) -> dict[str, Any]:
        return plain(asdict(self))


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The sentences of a verdict, one for each way it may come out."""

    supported: str
    refuted: str
    undecided: str = "The seeds do not agree well enough to say: {effect}."
    changes: str = field(default="")


def decide(
    word: Word, effect: Effect, answers: Answers, controls: Sequence[Control] = (),
    more: Sequence[Effect] = (),
) -> Verdict:  # fmt: skip
    """The verdict that the effect says, unless a control failed or seeds are too few: then it is
    undecided, and says why. `{effect}` in a sentence is the effect with its interval."""
    failed = [one for one in controls if not one.passed]
    if failed:
        word = "undecided"
        sentence = (
            "A control failed, so the effect means nothing yet: "
            + "; ".join(one.said.rstrip(".") for one in failed)
            + "."
        )
    elif math.isnan(effect.value):
        word, sentence = "undecided", f"Nothing could be measured of {effect.name}."
    elif effect.seeds == 1 and not effect.exact:
        word = "undecided"
        sentence = (
            f"One seed cannot tell an effect from luck: {effect.name} was {effect}. "
            "Run it with --seeds 3."
        )
    else:
        sentence = getattr(answers, word).replace("{effect}", str(effect))
    return Verdict(
        verdict=word, sentence=sentence, effect=effect, controls=tuple(controls), more=tuple(more),
        changes=answers.changes,
    )  # fmt: skip


def said(value: float) -> str:
    """A number as people write it: three figures, no more than needed."""
    if not math.isfinite(value):
        return "?"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
        return f"{value:,.{digits}f}".replace("-", "−")
    return f"{value:.1e}".replace("-", "−")


def plain(value: Any) -> Any:
    """As JSON has it, which knows no number that is none."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
