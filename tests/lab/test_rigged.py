"""Experiments from measuring to the verdict where the truth is rigged: all arms are one and the
same model, or one arm is known to be worse; and time is that of a clock that is told what to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headway.lab import overfitting, parallelism
from headway.lab.catalogue import EXPERIMENTS
from headway.lab.experiment import SeedMeasurements
from headway.lab.verdict import Verdict, plain
from headway.lab.workspace import Workspace
from headway.nn.recurrence import Recurrence
from headway.run import Run

from .test_every_experiment import Hurried


@dataclass(kw_only=True)
class Same(Hurried):
    """One model is all arms: whatever is set and passed, the first that was trained is given."""

    group: Callable[[str], str]
    """From the name of a training to what is learned there."""

    runs: dict[str, Run] = field(default_factory=dict)

    def train(self, name: str, *given: Any, **more: Any) -> Run:
        group = self.group(name)
        if group not in self.runs:
            self.runs[group] = super().train(name, *given, **more)
        return self.runs[group]


def judged(name: str, folder: Path, make: Callable[..., Workspace], **more: Any) -> Verdict:
    """Of two seeds."""
    experiment = EXPERIMENTS[name].load()
    found: list[SeedMeasurements] = [
        plain(experiment.measure(make(folder=folder / str(seed), seed=seed, quick=True,
                                      device="cpu", **more)))
        for seed in range(2)
    ]  # fmt: skip
    assert experiment.figures(found)
    return experiment.judge(found)


def one_task(name: str) -> str:
    return ""


def first_word(name: str) -> str:
    return name.split("-")[0]


SAME: dict[str, Callable[[str], str]] = {
    "scale": one_task, "roles": one_task, "averaging": one_task, "embeddings": one_task,
    "overfitting": one_task, "order": first_word, "optimal": first_word,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("scale", "roles", "overfitting")
                          else pytest.mark.slow) for name in SAME]
)  # fmt: skip
def test_identical_arms_have_no_effect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overfitting, "LOOKS", 2)
    verdict = judged(name, tmp_path, Same, group=SAME[name])
    assert verdict.effect.value == 0
    assert verdict.verdict != "supported"


@dataclass(kw_only=True)
class Known(Same):
    """Arms that are told to be worse hardly learn; the others are one model that does, if they are
    among those that matter."""

    worse: frozenset[str]
    matter: frozenset[str]

    def train(self, name: str, *given: Any, settings: Any = None, **more: Any) -> Run:
        if name in self.worse:
            return Hurried.train(self, name, *given, settings=settings, **more)
        group = self.group(name)
        if group not in self.runs:
            learn = Workspace.train if group in self.matter else Hurried.train
            self.runs[group] = learn(self, name, *given, settings=settings, **more)
        return self.runs[group]


KNOWN: list[tuple[str, str, frozenset[str], str]] = [
    ("scale", "", frozenset({"none-128"}), "supported"),
    ("scale", "", frozenset(), "refuted"),
    ("order", "first there letters", frozenset({"first-none"}), "supported"),
    ("order", "first there letters", frozenset(), "refuted"),
    ("order", "first there letters", frozenset({"first-none", "letters-none"}), "refuted"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "matter", "worse", "verdict"), KNOWN)
def test_an_arm_that_is_known_to_be_worse_decides(
    name: str, matter: str, worse: frozenset[str], verdict: str, tmp_path: Path
) -> None:
    rig: Mapping[str, Any] = {"matter": frozenset(matter.split(" ")), "worse": worse}
    found = judged(name, tmp_path, Known, group=SAME[name], **rig)
    assert all(control.passed for control in found.controls), found.controls
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("waits", "verdict"),
    [(lambda length: 1.0 + length, "supported"), (lambda length: 0.5, "refuted"),
     (lambda length: 2.0 + 16 / length, "refuted")],
    ids=["a recurrence waits for each token", "it is faster", "it is slower, yet catches up"],
)  # fmt: skip
def test_the_lead_is_that_of_a_planted_clock(
    waits: Callable[[int], float], verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    jitter: Iterator[int] = count()

    def step_of(model: Any, length: int, *_: Any) -> Callable[[], None]:
        recurrent = any(isinstance(part, Recurrence) for part in model.modules())
        takes = waits(length) if recurrent else 1.0

        def step() -> None:
            clock[0] += takes * (1 + 1e-3 * (next(jitter) % 3))

        return step

    monkeypatch.setattr(parallelism, "step_of", step_of)
    monkeypatch.setattr(parallelism, "now", lambda device: clock[0])
    found = judged("parallelism", tmp_path, Workspace)
    assert all(control.passed for control in found.controls)
    assert found.verdict == verdict
