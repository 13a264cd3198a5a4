"""Every experiment from end to end, on either device, with trainings of two steps: what is measured
can be judged and drawn. What the verdicts are worth is in the files of the experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from headway.lab.catalogue import EXPERIMENTS
from headway.lab.verdict import VerdictLabel, plain
from headway.lab.workspace import Workspace
from headway.run import Run


class Hurried(Workspace):
    """Trains for two steps, whatever is asked for, or for as many as checkpoints are wanted."""

    def train(self, *given: Any, settings: Mapping[str, Any] | None = None, **more: Any) -> Run:
        found = dict(settings or {})
        found.pop("train.epochs", None)
        steps = max(2, found.get("train.keep", 2))
        found |= {"train.steps": steps, "train.warmup": 1, "train.eval_every": steps}
        if "train.save_every" in found:
            found["train.save_every"] = 1
        return super().train(*given, settings=found, **more)


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
        monkeypatch.setattr("headway.lab.beam.sample_pairs", lambda pairs, some, seed: pairs[:6])
    if name == "maps":
        monkeypatch.setattr("headway.lab.maps.alignment_cases", _few_aligned())
    threads = torch.get_num_threads()
    try:
        bench = Hurried(folder=tmp_path, seed=0, quick=True, device=place)
        found = [plain(experiment.measure(bench))]
    finally:
        torch.set_num_threads(threads)
    assert experiment.judge(found).verdict in get_args(VerdictLabel)
    assert experiment.figures(found)


def _few_aligned() -> Any:
    from headway.lab.maps import alignment_cases

    return lambda run, known: alignment_cases(run, known[:30])
