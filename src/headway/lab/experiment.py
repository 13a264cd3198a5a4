"""Base class of the experiments: hypothesis, measurements for one seed, verdict and literature."""

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
"""Measurements of one seed, in JSON types: numbers, texts, lists and mappings."""


OPPOSITE_STANCE = {"agrees": "disagrees", "disagrees": "agrees"}


@dataclass(frozen=True)
class Citation:
    """Claim from the literature, with its relation to the hypothesis."""

    who: str
    says: str
    stance: Literal["agrees", "disagrees", "differs", "context"] = "agrees"
    """Whether the source supports the hypothesis, contradicts it, makes another claim, or is
    background."""

    part: str = ""
    """Part of the hypothesis that the source is about, as a name in `Verdict.parts`; empty: the
    whole hypothesis."""

    def stance_on_finding(self, verdict: str, parts: Mapping[str, str]) -> str:
        """Return the source's stance towards the finding of the experiment.

        A source that agrees with a refuted claim disagrees with the finding. The stance on an
        undecided claim is `open`.
        """
        found = parts.get(self.part, verdict)
        if self.stance not in OPPOSITE_STANCE or found == "supported":
            return self.stance
        return OPPOSITE_STANCE[self.stance] if found == "refuted" else "open"


class Experiment(ABC):
    """Base class of experiments. The module of an experiment has one instance, called
    `EXPERIMENT`."""

    hypothesis: ClassVar[str]
    """Claim that is tested. The verdict `supported` means that it is true."""

    method: ClassVar[Sequence[str]]
    """Description of the method for students, one string per paragraph."""

    control: ClassVar[str]
    """Description of the control: which result must come out as expected, and why."""

    literature: ClassVar[Sequence[Citation]]
    pieces: ClassVar[tuple[int, int]] = (1, 1)
    """Number of training runs and measurements per seed, in a quick and in a full run, for the
    progress bar."""

    @abstractmethod
    def measure(self, bench: Workspace) -> SeedMeasurements:
        """Return all measurements of one seed (`bench.seed`).

        Models are trained with `bench.train`, and slow measurements use `bench.cached`, so that
        neither is repeated when the experiment is resumed.
        """

    @abstractmethod
    def judge(self, found: Sequence[SeedMeasurements]) -> Verdict:
        """Return the verdict, given the measurements of all seeds. This is a pure function."""

    @abstractmethod
    def figures(self, found: Sequence[SeedMeasurements]) -> Sequence[Figure]:
        """Return the plots and tables of the page, main plot first."""


def per_seed(found: Sequence[SeedMeasurements], *path: str | int) -> list[float]:
    """Return the value at a path in the measurements of each seed, as in `per_seed(found, "loss",
    "skip", "4")`. None becomes NaN."""
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
