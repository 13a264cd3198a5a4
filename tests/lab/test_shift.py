"""E3: the arithmetic itself, and tables in which the shift is linear or is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.lab.shift import (
    EXPERIMENT,
    best_map,
    code,
    errors,
    fitted_turns,
    model_positions,
    rates,
    unshiftable,
)
from headway.nn import positions


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return [{"128": errors(128, seed)} for seed in range(2)]


def test_the_shift_is_a_turn_of_pairs(found: list[dict[str, Any]]) -> None:
    assert found[0]["128"]["double"] < 1e-10
    assert found[0]["128"]["single"] < 1e-6
    assert EXPERIMENT.judge(found).verdict == "supported"
    assert EXPERIMENT.judge(found[:1]).verdict == "supported"  # arithmetic: one seed is enough


def test_a_linear_map_exists_and_is_not_what_least_squares_finds(
    found: list[dict[str, Any]],
) -> None:
    assert found[0]["128"]["fit_seen"] < 1e-6
    assert found[0]["128"]["fit_unseen"] > 1
    assert found[0]["128"]["turns_unseen"] < 1e-6


def test_a_code_that_is_not_shifted_by_turns_is_refuted(found: list[dict[str, Any]]) -> None:
    other = [{"128": {**one["128"], "single": 0.1}} for one in found]
    assert EXPERIMENT.judge(other).verdict == "refuted"


def test_the_code_that_models_add_is_what_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """With random numbers in its place the verdict was `supported`: only the formula was looked
    at."""
    monkeypatch.setattr(positions, "sinusoids", lambda n, width, **_: torch.randn(n, width))
    assert EXPERIMENT.judge([{"128": errors(128, 0)}]).verdict == "refuted"


def test_the_code_of_a_model_is_the_formula_in_single_precision() -> None:
    expected = code(torch.arange(300), 16).flatten(1).float()
    assert torch.allclose(model_positions(300, 16), expected, atol=1e-6)


def test_if_random_codes_can_be_shifted_the_verdict_is_undecided(
    found: list[dict[str, Any]],
) -> None:
    other = [{"128": {**one["128"], "random": 0.0}} for one in found]
    assert EXPERIMENT.judge(other).verdict == "undecided"


def test_a_table_of_turns_can_be_shifted_and_a_random_one_cannot() -> None:
    turning = code(torch.arange(200), 16).flatten(1)
    assert unshiftable(turning) < 1e-6
    assert unshiftable(torch.randn(200, 16, dtype=torch.float64)) > 0.5


def test_turns_are_found_from_few_places() -> None:
    places = torch.arange(20)
    angle_I = fitted_turns(code(places, 16), code(places + 3, 16))
    assert torch.allclose(angle_I, 3 * rates(16), atol=1e-9)


def test_the_best_map_is_the_same_each_time() -> None:
    """Its columns are nearly alike: a way that depends on what was in memory would differ."""
    here, there = code(torch.arange(300), 32).flatten(1), code(torch.arange(300) + 1, 32).flatten(1)
    assert torch.equal(best_map(here, there), best_map(here, there))


def test_a_wide_random_table_has_no_shift_either() -> None:
    """As wide as there are places seen, any table would have one."""
    assert errors(512, 0)["random"] > 0.3
