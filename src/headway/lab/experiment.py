"""What an experiment is: a question, what is measured for one seed, and what follows from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from headway.lab.bench import Bench
    from headway.lab.figures import Figure
    from headway.lab.verdict import Verdict

Measured = Mapping[str, Any]
"""What was measured with one seed: numbers, texts, lists and mappings of them, as JSON holds."""


TURNED = {"agrees": "disagrees", "disagrees": "agrees"}


@dataclass(frozen=True)
class Source:
    """A claim of the literature, and how it stands to the hypothesis."""

    who: str
    says: str
    stance: Literal["agrees", "disagrees", "differs", "context"] = "agrees"
    """It says the same, the opposite, something of its own, or is there to know."""

    part: str = ""
    """Part of the hypothesis that it is about, by its name in `Verdict.parts`; empty: all of it."""

    def beside(self, verdict: str, parts: Mapping[str, str]) -> str:
        """Its stance towards the finding: a source that agrees with a refuted claim disagrees with
        the finding, and one about an undecided claim is `open`."""
        found = parts.get(self.part, verdict)
        if self.stance not in TURNED or found == "supported":
            return self.stance
        return TURNED[self.stance] if found == "refuted" else "open"


class Experiment(ABC):
    """One file of `headway.lab` has one of these, called `EXPERIMENT`."""

    hypothesis: ClassVar[str]
    """What is held to be true: `supported` means that it is."""

    method: ClassVar[Sequence[str]]
    """What was done, a paragraph each, for a student."""

    control: ClassVar[str]
    """What must come out as expected, and why."""

    literature: ClassVar[Sequence[Source]]
    pieces: ClassVar[tuple[int, int]] = (1, 1)
    """Trainings and measurements of one seed, quick and full: for the progress bar."""

    @abstractmethod
    def measure(self, bench: Bench) -> Measured:
        """All numbers of one seed (`bench.seed`). Trainings go through `bench.train`, what takes
        long beside them through `bench.once`: both are not done again when it is taken up."""

    @abstractmethod
    def judge(self, found: Sequence[Measured]) -> Verdict:
        """A pure function of the numbers, a mapping for each seed."""

    @abstractmethod
    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        """What is to be seen; the first is the picture of the question."""


def over(found: Sequence[Measured], *path: str | int) -> list[float]:
    """A number of each seed: `over(found, "loss", "skip", "4")`."""
    values = []
    for one in found:
        value: Any = one
        for key in path:
            value = value[key]
        values.append(float("nan") if value is None else float(value))
    return values


def mean(found: Sequence[Measured], *path: str | int) -> float:
    values = over(found, *path)
    return sum(values) / len(values)
