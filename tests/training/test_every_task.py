"""What holds for every task of the table, on tiny data of its own."""

from __future__ import annotations

import math

import pytest
import torch

from headway.tasks.losses import plain as plain_loss
from headway.tasks.scores import Scores
from headway.tasks.specs import SPECS, spec_of
from headway.training.baseline import beside, of_metric
from headway.training.loop import ranking

from .every import CPU, DATA, Made, make


@pytest.fixture(scope="module", params=list(DATA))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(request.param, tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def scores(made: Made) -> Scores:
    with torch.no_grad():
        return made.task.evaluate(made.model, CPU, lambda: False, full=True)


def test_no_task_is_left_out() -> None:
    assert {name.split()[0] for name in DATA} == set(SPECS)
    for row in SPECS["classify"].others:
        assert f"classify {row.modality}" in DATA


def test_a_task_reports_the_scores_that_the_table_has(made: Made, scores: Scores) -> None:
    wanted = set(spec_of(made.settings).scores)
    if 0 < len(made.settings.labels) <= 5:
        wanted -= {"top5"}
    assert set(scores) == wanted
    assert made.settings.train.metric == made.task.metric.name
    assert made.task.metric.name in wanted


def test_a_better_evaluation_ranks_higher(made: Made, scores: Scores) -> None:
    metric, worse = made.task.metric, dict(scores)
    worse[metric.name] += 1.0 if metric.lower else -1.0
    assert ranking(scores, made.task) > ranking(worse, made.task)


def test_every_task_has_a_baseline_of_its_own_metric(made: Made, scores: Scores) -> None:
    metric = made.task.metric
    found = of_metric(scores.baselines, metric)
    assert found, "nothing to compare with"
    assert beside(scores.baselines, metric).startswith("; baseline")
    for name, value in found.items():
        assert math.isfinite(value), name
    with torch.no_grad():
        quick = made.task.evaluate(made.model, CPU, lambda: False, full=False)
    assert "baselines" not in vars(quick)  # they cost nothing until someone asks
    assert of_metric(quick.baselines, metric), "a short budget ends with a quick evaluation"


def test_frequencies_say_what_the_loss_of_training_must_fall_below(made: Made) -> None:
    """A fresh model is no better than someone who knows how frequent each answer is."""
    task = made.task
    frequencies = task.frequencies()
    if frequencies is None:
        assert made.settings.task in ("embed", "fill")
        return
    step = task.epoch(0)[0]
    parts = task.parts(step, 10_000)
    with torch.no_grad():
        nll = sum(float(plain_loss(task)(made.model, task.batch(p, CPU, None)).nll) for p in parts)
    assert nll / sum(part.n_targets for part in parts) > 0.8 * frequencies.train_loss
    assert 0.0 < frequencies.train_loss < 10.0
