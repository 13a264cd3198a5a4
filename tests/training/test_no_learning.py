"""A training that learns nothing says so, once, early; others never hear of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headway.settings.presets import preset
from headway.settings.train import TrainSettings
from headway.training.no_learning import Plateau, final_warning, plateau_warning

from .every import make
from .toy import Events, toy_loop, weights

TRIVIAL = 6.0
Curve = Callable[[float], float]


def warned_at(curve: Curve, steps: int, warmup: int | None = None, noise: float = 0.1) -> list[int]:
    """The steps at which something is said, of a curve over the share of the run that is done."""
    draw = random.Random(steps)
    every = max(1, min(50, steps // 100))
    plateau = Plateau(steps, steps // 10 if warmup is None else warmup, TRIVIAL)
    return [
        step
        for step in range(every, steps + 1, every)
        if plateau.record(step, curve(step / steps) + draw.gauss(0, noise))
    ]


def stuck(share: float) -> float:
    """From uniform guesses to the frequencies, and there it stays."""
    return TRIVIAL + 2.0 * math.exp(-60 * share)


FALLING: dict[str, Curve] = {
    "usual": lambda share: 2.0 + 6.0 * math.exp(-5 * share),
    "slow": lambda share: 6.5 - 2.5 * share,
    "late, but before the first look": lambda share: (
        stuck(share) if share < 0.15 else 6.0 - 4.0 * (share - 0.15)
    ),
    "knows all from the start": lambda share: 0.3,
    "soon as good as it gets": lambda share: 3.0 + 5.0 * math.exp(-80 * share),
    "not a number": lambda share: math.nan,
}


@pytest.mark.parametrize("steps", [100, 400, 2400, 20_000])
def test_a_loss_stuck_at_the_frequency_baseline_is_reported_once_and_early(steps: int) -> None:
    [step] = warned_at(stuck, steps)
    assert step <= 0.6 * steps


def test_a_long_run_does_not_wait_for_a_third_of_its_steps() -> None:
    [step] = warned_at(stuck, 100_000, warmup=4000)
    assert step <= 16_000


@pytest.mark.parametrize("steps", [100, 400, 2400, 20_000])
@pytest.mark.parametrize("name", list(FALLING))
def test_a_falling_or_low_loss_gives_no_warning(name: str, steps: int) -> None:
    assert warned_at(FALLING[name], steps) == []


def test_short_runs_and_the_warm_up_give_no_warning() -> None:
    assert warned_at(stuck, 99) == []
    assert warned_at(stuck, 1000, warmup=5000)[0] >= 500


@pytest.mark.parametrize("killed_at", [10, 150, 180, 399])
def test_a_resumed_run_gives_the_same_warning(killed_at: int) -> None:
    draw = random.Random(0)
    points = [(step, stuck(step / 400) + draw.gauss(0, 0.1)) for step in range(4, 401, 4)]

    def heard(plateau: Plateau, some: Sequence[tuple[int, float]]) -> list[int]:
        return [step for step, nll in some if plateau.record(step, nll)]

    whole = heard(Plateau(400, 40, TRIVIAL), points)
    first, second = Plateau(400, 40, TRIVIAL), Plateau(400, 40, TRIVIAL)
    before = [point for point in points if point[0] <= killed_at]
    second.replay(before)
    parts = heard(first, before) + heard(second, points[len(before) :])
    assert len(whole) == 1
    assert parts == whole


def test_the_warning_names_settings_that_differ_from_those_of_the_run() -> None:
    train = TrainSettings(steps=2400, schedule="linear", lr=8e-4)
    assert "train.warmup=1200" in plateau_warning(train, preset("transformer-base"), 6.0)
    train = TrainSettings(steps=2400)
    printed = plateau_warning(train, preset("transformer-base"), 6.0)
    for word in ("train.lr=0.0002", "model.block_layout=pre", "train.clip=1"):
        assert word in printed, word
    model = replace(preset("transformer-base"), block_layout="pre")
    printed = plateau_warning(replace(train, clip=1.0, warmup=2000), model, 6.0)
    for word in ("warmup", "block_layout", "clip"):
        assert word not in printed, word


def test_the_loop_logs_the_warning_and_trains_as_before(tmp_path: Path) -> None:
    plain, warned = (toy_loop(tmp_path / name, steps=120, lr=1e-9) for name in ("a", "b"))
    warned.plateau = Plateau(120, 12, 1e-3, "flat loss")
    for loop in (plain, warned):
        loop.run()
    found = [loop.log.said for loop in (plain, warned) if isinstance(loop.log, Events)]
    assert [lines.count("flat loss") for lines in found] == [0, 1]
    assert (weights(plain) == weights(warned)).all()


@pytest.mark.parametrize("name", ["classify", "tag", "complete"])
def test_every_task_whose_answers_can_be_counted_is_watched(name: str, tmp_path: Path) -> None:
    made = make(name, tmp_path)
    assert made.settings.model is not None
    found = Plateau.of(made.task, made.settings.train, made.settings.model)
    assert found is not None
    assert found.baseline_loss == made.task.frequencies().train_loss  # type: ignore[union-attr]


def test_a_run_that_ends_too_early_gets_a_note() -> None:
    at_priors = [(10.0, 0.32), (20.0, 0.31)]
    assert "train.steps=60" in final_warning(at_priors, 0.31, 20)
    falling = [(float(step), 0.3 - 0.01 * step) for step in range(1, 11)]
    assert "train.steps=30" in final_warning(falling, 0.4, 10)
    settled = [*falling, (11.0, 0.2), (12.0, 0.2)]
    assert final_warning(settled, 0.4, 12) == ""
    assert final_warning(falling, None, 10) == final_warning([], 0.3, 10) == ""
