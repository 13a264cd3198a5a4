"""The parts of an experiment: its hypothesis, its measurements for one seed, and its verdict."""

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
"""Measurements of one seed: numbers, texts, lists and mappings of them, as in JSON."""


TURNED = {"agrees": "disagrees", "disagrees": "agrees"}


@dataclass(frozen=True)
class Source:
    """A claim from the literature, and how it relates to the hypothesis."""

    who: str
    says: str
    stance: Literal["agrees", "disagrees", "differs", "context"] = "agrees"
    """Whether the source supports the hypothesis, contradicts it, makes another claim, or is
    background."""

    part: str = ""
    """Part of the hypothesis that the source is about, by its name in `Verdict.parts`; empty:
    all."""

    def beside(self, verdict: str, parts: Mapping[str, str]) -> str:
        """Return the source's stance towards the finding. A source that agrees with a refuted claim
        disagrees with the finding; one about an undecided claim is `open`."""
        found = parts.get(self.part, verdict)
        if self.stance not in TURNED or found == "supported":
            return self.stance
        return TURNED[self.stance] if found == "refuted" else "open"


class Experiment(ABC):
    """Base class of an experiment; its module has one instance called `EXPERIMENT`."""

    hypothesis: ClassVar[str]
    """The claim; the verdict `supported` means that it is true."""

    method: ClassVar[Sequence[str]]
    """What is done, one paragraph each, written for students."""

    control: ClassVar[str]
    """The control: a result that must come out as expected, and why."""

    literature: ClassVar[Sequence[Source]]
    pieces: ClassVar[tuple[int, int]] = (1, 1)
    """Number of trainings and measurements per seed, quick and full, for the progress bar."""

    @abstractmethod
    def measure(self, bench: Bench) -> Measured:
        """Measure all numbers of one seed (`bench.seed`).

        Trainings use `bench.train`, and slow measurements `bench.once`, so that neither is repeated
        when the experiment is resumed.
        """

    @abstractmethod
    def judge(self, found: Sequence[Measured]) -> Verdict:
        """Derive the verdict from the numbers, one mapping per seed. A pure function."""

    @abstractmethod
    def figures(self, found: Sequence[Measured]) -> Sequence[Figure]:
        """The plots and tables of the page; the first is its main plot."""


def over(found: Sequence[Measured], *path: str | int) -> list[float]:
    """One number per seed: `over(found, "loss", "skip", "4")`."""
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
