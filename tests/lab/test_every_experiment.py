"""Every experiment from end to end, on either device, with trainings of two steps: what is measured
can be judged and drawn. What the verdicts are worth is in the files of the experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.lab.bench import Bench
from headway.lab.experiments import EXPERIMENTS
from headway.lab.verdict import plain
from headway.run import Run

HURRY: dict[str, Any] = {"train.steps": 2, "train.warmup": 1, "train.eval_every": 2}
EVERY = ("train.save_every",)


class Hurried(Bench):
    """Trains for two steps, whatever is asked for."""

    def train(self, *given: Any, settings: Mapping[str, Any] | None = None, **more: Any) -> Run:
        said = {**(settings or {}), **HURRY}
        said.pop("train.epochs", None)
        said |= {key: 1 for key in EVERY if key in said}
        return super().train(*given, settings=said, **more)


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.slow),
                        pytest.param("cuda", marks=pytest.mark.gpu)])  # fmt: skip
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_is_measured_judged_and_drawn(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = EXPERIMENTS[name].load()
    if name == "beam":
        monkeypatch.setattr("headway.lab.beam.drawn", lambda pairs, some, seed: pairs[:6])
    if name == "maps":
        monkeypatch.setattr("headway.lab.maps.aligned", _few_aligned())
    threads = torch.get_num_threads()
    try:
        found = [
            plain(experiment.measure(Hurried(folder=tmp_path / str(seed), seed=seed, quick=True,
                                             device=place)))
            for seed in range(1 if name in ("beam", "maps", "heads") else 2)
        ]  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    assert experiment.judge(found).verdict in ("supported", "refuted", "undecided")
    assert experiment.figures(found)


def _few_aligned() -> Any:
    from headway.lab.maps import aligned

    return lambda run, known: aligned(run, known[:30])
