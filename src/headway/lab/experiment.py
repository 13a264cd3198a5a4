"""The parts of an experiment: its hypothesis, its measurements for one seed, and its verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from headway.lab.figures import Figure
    from headway.lab.verdict import Verdict
    from headway.lab.workspace import Workspace

SeedMeasurements = Mapping[str, Any]
"""Measurements of one seed: numbers, texts, lists and mappings of them, as in JSON."""


OPPOSITE_STANCE = {"agrees": "disagrees", "disagrees": "agrees"}


@dataclass(frozen=True)
class Citation:
    """A claim from the literature, and how it relates to the hypothesis."""

    who: str
    says: str
    stance: Literal["agrees", "disagrees", "differs", "context"] = "agrees"
    """Whether the source supports the hypothesis, contradicts it, makes another claim, or is
    background."""

    part: str = ""
    """Part of the hypothesis that the source is about, by its name in `Verdict.parts`; empty:
    all."""

    def stance_on_finding(self, verdict: str, parts: Mapping[str, str]) -> str:
        """Return the source's stance towards the finding. A source that agrees with a refuted claim
        disagrees with the finding; one about an undecided claim is `open`."""
        found = parts.get(self.part, verdict)
        if self.stance not in OPPOSITE_STANCE or found == "supported":
            return self.stance
        return OPPOSITE_STANCE[self.stance] if found == "refuted" else "open"


class Experiment(ABC):
    """Base class of an experiment; its module has one instance called `EXPERIMENT`."""

    hypothesis: ClassVar[str]
    """The claim; the verdict `supported` means that it is true."""

    method: ClassVar[Sequence[str]]
    """What is done, one paragraph each, written for students."""

    control: ClassVar[str]
    """The control: a result that must come out as expected, and why."""

    literature: ClassVar[Sequence[Citation]]
    pieces: ClassVar[tuple[int, int]] = (1, 1)
    """Number of trainings and measurements per seed, quick and full, for the progress bar."""

    @abstractmethod
    def measure(self, bench: Workspace) -> SeedMeasurements:
        """Measure all numbers of one seed (`bench.seed`).

        Trainings use `bench.train`, and slow measurements `bench.cached`, so that neither is
        repeated when the experiment is resumed.
        """

    @abstractmethod
    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        """Derive the verdict from the numbers, one mapping per seed. A pure function."""

    @abstractmethod
    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        """The plots and tables of the page; the first is its main plot."""


def per_seed(found: Sequence[SeedMeasurements], *path: str | int) -> list[float]:
    """One number per seed: `per_seed(found, "loss", "skip", "4")`."""
    values = []
    for one in found:
        value: Any = one
        for key in path:
            value = value[key]
        values.append(float("nan") if value is None else float(value))
    return values


def mean(found: Sequence[SeedMeasurements], *path: str | int) -> float:
    values = per_seed(found, *path)
    return sum(values) / len(values)
