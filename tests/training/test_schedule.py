"""The learning rate against the published formulas, and its shape at the ends."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from headway.settings.defaults import default_rows
from headway.settings.model import family_of
from headway.settings.presets import PRESETS
from headway.settings.recipes import recipe_names, recipe_path
from headway.settings.run import load_run_settings
from headway.settings.train import TrainSettings
from headway.training.schedule import (
    AFTER_WARMUP,
    learning_rate,
    peak_lr,
    schedule_line,
    warmup_steps,
)


def test_noam_is_the_papers_formula() -> None:
    rate = learning_rate(TrainSettings(schedule="noam", warmup=4000), 100_000, 512)
    for step in (1, 10, 3999, 4000, 4001, 50_000, 100_000):
        wanted = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert rate(step) == pytest.approx(wanted, rel=1e-12)
    assert max(range(1, 20_000), key=rate) == 4000
    assert rate(4000) == pytest.approx(6.99e-4, rel=1e-3)


def test_noam_is_inverse_sqrt_with_noams_peak() -> None:
    """fairseq: a straight line to lr at the warm-up, then lr·√(warm-up / step)."""
    peak, warmup = (512 * 4000) ** -0.5, 4000
    noam = learning_rate(TrainSettings(warmup=warmup), 9000, 512)
    given = TrainSettings(schedule="inverse-sqrt", lr=peak, warmup=warmup)
    inverse = learning_rate(given, 9000, 512)
    for step in (1, 7, 2000, 4000, 4001, 9000):
        fairseq = peak * step / warmup if step < warmup else peak * warmup**0.5 * step**-0.5
        assert noam(step) == pytest.approx(fairseq, rel=1e-12)
        assert inverse(step) == pytest.approx(fairseq, rel=1e-12)


def test_a_given_rate_is_the_peak_of_every_schedule() -> None:
    for schedule in AFTER_WARMUP:
        settings = TrainSettings(schedule=schedule, lr=3e-3, warmup=20)  # type: ignore[arg-type]
        rate = learning_rate(settings, 200, 512)
        rates = [rate(step) for step in range(1, 201)]
        assert max(rates) == rates[19] == 3e-3, schedule
        assert rates[:20] == pytest.approx([3e-3 * step / 20 for step in range(1, 21)]), schedule
        assert min(rates) > 0, schedule
        assert peak_lr(settings, 200, 512) == max(rates)


def test_cosine_and_linear_fall_to_zero_one_step_after_the_last() -> None:
    cosine = learning_rate(TrainSettings(schedule="cosine", lr=1.0, warmup=10), 100, 64)
    linear = learning_rate(TrainSettings(schedule="linear", lr=1.0, warmup=10), 100, 64)
    for step in range(10, 102):
        gone = (step - 10) / 91
        assert cosine(step) == pytest.approx(0.5 * (1 + math.cos(math.pi * gone)), abs=1e-12)
        assert linear(step) == pytest.approx(1 - gone, abs=1e-12)
    assert cosine(101) == linear(101) == linear(150) == 0


def test_constant_and_trapezoid_stay_at_the_peak() -> None:
    constant = learning_rate(TrainSettings(schedule="constant", lr=1.0, warmup=10), 100, 64)
    settings = TrainSettings(schedule="trapezoid", lr=1.0, warmup=10, cooldown=0.3)
    trapezoid = learning_rate(settings, 100, 64)
    assert {constant(step) for step in range(10, 200)} == {1.0}
    assert {trapezoid(step) for step in range(10, 71)} == {1.0}
    falls = [trapezoid(step) - trapezoid(step + 1) for step in range(70, 101)]
    assert falls == pytest.approx([1 / 31] * 31)
    assert trapezoid(101) == 0


def test_without_a_warmup_it_starts_at_the_peak() -> None:
    for schedule in AFTER_WARMUP:
        settings = TrainSettings(schedule=schedule, lr=1.0, warmup=0)  # type: ignore[arg-type]
        assert learning_rate(settings, 50, 64)(1) == 1.0, schedule


@pytest.mark.parametrize(("steps", "warmup"), [(1, 1), (9, 1), (1000, 100), (10**6, 4000)])
def test_the_warmup_is_a_tenth_of_few_steps(steps: int, warmup: int) -> None:
    assert warmup_steps(TrainSettings(schedule="linear"), steps) == warmup


@pytest.mark.parametrize(("steps", "warmup"), [(1, 1), (9, 4), (2400, 1200), (8000, 4000)])
def test_that_of_noam_is_the_papers_or_half_of_the_steps(steps: int, warmup: int) -> None:
    assert warmup_steps(TrainSettings(), steps) == warmup


def test_no_run_is_so_short_that_noam_goes_above_the_papers_peak() -> None:
    for warmup in (None, 0, 1, 100, 4000, 8000):
        settings = TrainSettings(schedule="noam", warmup=warmup)
        for steps in (1, 10, 240, 2400, 24_000, 100_000):
            assert peak_lr(settings, steps, 512) <= (512 * 4000) ** -0.5 * (1 + 1e-12)


def published_peak(train: TrainSettings, d_model: int) -> float:
    if train.lr is not None:
        return train.lr
    return float((4000 * d_model) ** -0.5) if train.schedule == "noam" else 1e-3


def check_rates(train: TrainSettings, steps: int, d_model: int) -> None:
    """Of a run of so many steps: the peak, that it is reached, and that a run which does not get
    there says so."""
    peak, warmup = peak_lr(train, steps, d_model), warmup_steps(train, steps)
    assert peak <= published_peak(train, d_model) * (1 + 1e-12)
    found = schedule_line(train, steps, d_model)
    if train.warmup is None:
        assert warmup < steps
    assert re.search(rf"\b{warmup:,}\b", found)
    assert ("train.warmup=" in found) == (warmup >= steps > 1)


def test_a_recipe_with_fewer_steps_has_no_higher_rate() -> None:
    for name in recipe_names():
        settings = load_run_settings(recipe_path(name), [], is_recipe=True)
        train, d_model = settings.train, settings.model.d_model if settings.model else 128
        for share in (1.0, 0.1, 0.01):
            check_rates(train, max(2, round(share * (train.steps or 1000))), d_model)


def test_a_preset_with_fewer_steps_has_no_higher_rate() -> None:
    """As `translate` trains those that translate, and as the other tasks train theirs."""
    rows = {row.name: row.values for row in default_rows()}
    published = {
        key.removeprefix("train."): value for key, value in rows["training.named-model"].items()
    }
    for name, preset in PRESETS.items():
        model = preset.settings
        train, usual = replace(TrainSettings(), **published), 10_000
        if family_of(model) == "seq2seq":
            train, usual = (
                TrainSettings(),
                rows.get(f"translate.{name}", {}).get("train.steps", 10_000),
            )
        for share in (1.0, 0.1, 0.01):
            check_rates(train, max(2, round(share * usual)), model.d_model)


@pytest.mark.parametrize("schedule", list(AFTER_WARMUP))
@pytest.mark.parametrize(
    ("steps", "warmup"), [(1, None), (2, 0), (30, 100), (30, 30), (30, 25), (400, 7)]
)
def test_the_peak_that_is_printed_is_the_highest_rate_of_the_run(
    schedule: str, steps: int, warmup: int | None
) -> None:
    """Also where the warm-up is longer than the run, or runs into the cool-down."""
    settings = TrainSettings(
        schedule=schedule,  # type: ignore[arg-type]
        warmup=warmup,
        cooldown=0.9,
        lr=2e-3,
    )
    rate = learning_rate(settings, steps, 64)
    assert peak_lr(settings, steps, 64) == max(rate(step) for step in range(1, steps + 1))


@pytest.mark.parametrize(
    ("steps", "warmup", "said"),
    [
        (1, None, r"\b1$"),
        (1, 400, r"\b400\b.*\b0\.002\b"),
        (30, 30, r"\b30\b.*\b0\.002\b.*\btrain\.warmup=15$"),
        (30, 40, r"\b40\b.*\b0\.002\b.*\btrain\.warmup=15$"),
        (30, 3, r"\b3$"),
    ],
)
def test_the_schedule_line_is_correct_for_short_runs(
    steps: int, warmup: int | None, said: str
) -> None:
    settings = TrainSettings(schedule="linear", warmup=warmup, lr=2e-3)
    assert re.search(said, schedule_line(settings, steps, 64))
