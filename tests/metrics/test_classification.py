"""Scores of classes by hand, and against values that scikit-learn 1.9 gave for the same answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headway.metrics import classification
from headway.metrics.classification import (
    accuracy,
    accuracy_interval,
    apply_temperature,
    calibration,
    class_scores,
    confusion,
    fit_temperature,
    macro_f1,
    macro_f1_interval,
    nll,
    reliability,
    safe_temperature,
    soft_cross_entropy,
    wilson_interval,
)

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
GUESSES = np.array([0, 0, 1, 1, 2, 2, 2, 0, 2])


def test_rows_are_truth_and_columns_are_answers() -> None:
    counts = confusion(LABELS, GUESSES, 3)
    assert counts.tolist() == [[2, 1, 0], [0, 1, 1], [1, 0, 3]]
    assert accuracy(counts) == pytest.approx(6 / 9)


def test_scores_of_each_class() -> None:
    first, second, third = class_scores(confusion(LABELS, GUESSES, 3))
    assert (first.precision, first.recall) == pytest.approx((2 / 3, 2 / 3))
    assert (second.precision, second.recall, second.support) == pytest.approx((1 / 2, 1 / 2, 2))
    assert (third.f1, third.support) == pytest.approx((3 / 4, 4))


def test_macro_f1_is_the_mean_over_the_classes_that_occur_or_are_answered() -> None:
    assert macro_f1(confusion(LABELS, GUESSES, 3)) == pytest.approx((2 / 3 + 1 / 2 + 3 / 4) / 3)
    # A fourth class that nobody mentions changes nothing; one that is only answered does.
    assert macro_f1(confusion(LABELS, GUESSES, 4)) == macro_f1(confusion(LABELS, GUESSES, 3))
    wrong = np.where(LABELS == 1, 3, GUESSES)
    assert macro_f1(confusion(LABELS, wrong, 4)) == pytest.approx((2 / 3 + 0 + 6 / 7 + 0) / 4)


def test_a_class_that_is_never_answered_has_precision_zero() -> None:
    score = class_scores(confusion(np.array([0, 1]), np.array([0, 0]), 2))[1]
    assert (score.precision, score.recall, score.f1, score.support) == (0, 0, 0, 1)


def test_intervals_are_those_of_resampling_the_examples() -> None:
    """Against the plain bootstrap over examples, which takes a thousand times as long."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=400)
    guesses = np.where(random.random(400) < 0.7, labels, random.integers(3, size=400))
    drawn = []
    for _ in range(500):
        rows = random.integers(400, size=400)
        drawn.append(macro_f1(confusion(labels[rows], guesses[rows], 3)))
    low, high = np.quantile(drawn, [0.025, 0.975])
    counts = confusion(labels, guesses, 3)
    found = macro_f1_interval(counts)
    assert found.value == macro_f1(counts)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.01)
    assert found == macro_f1_interval(counts)


def test_the_interval_of_accuracy_is_about_two_standard_errors() -> None:
    counts = np.array([[400, 100], [100, 400]])
    found = accuracy_interval(counts)
    half = 1.96 * (0.8 * 0.2 / 1000) ** 0.5
    assert (found.low, found.high) == pytest.approx((0.8 - half, 0.8 + half), abs=0.004)


def logs(*rows: list[float]) -> np.ndarray:
    return np.log(np.array(rows))


def test_likelihood_and_calibration_by_hand() -> None:
    logs_NC = logs([0.95, 0.05], [0.95, 0.05], [0.35, 0.65], [0.45, 0.55])
    labels = np.array([0, 1, 1, 1])
    assert nll(logs_NC, labels) == pytest.approx(-np.log([0.95, 0.05, 0.65, 0.55]).mean())
    found = calibration(logs_NC, labels, 10)
    assert [b.count for b in found.bins] == [1, 1, 2]
    assert found.bins[2].confidence == pytest.approx(0.95)
    assert found.bins[2].accuracy == pytest.approx(0.5)
    assert found.ece == pytest.approx((2 * 0.45 + 0.35 + 0.45) / 4)


def test_bins_hold_as_many_answers_each_and_never_part_equal_ones() -> None:
    sure = np.concatenate([np.linspace(0.90, 0.99, 28), [0.2, 0.3]])
    found = reliability(sure, np.ones(30))
    assert [one.count for one in found.bins] == [2] * 15
    assert (found.bins[0].low, found.bins[0].high) == (0.2, 0.3)
    assert all(one.high < other.low for one, other in itertools.pairwise(found.bins))
    found = reliability(np.array([0.5] * 7 + [0.75]), np.array([1.0, 0.0] * 4), 4)
    parts = [(one.count, one.low, one.high) for one in found.bins]
    assert parts == [(7, 0.5, 0.5), (1, 0.75, 0.75)]
    assert found.ece == pytest.approx((7 * abs(0.5 - 4 / 7) + 0.75) / 8)


def test_the_temperature_of_a_model_that_is_too_sure_of_itself() -> None:
    """Labels drawn from softmax(scores), given scores three times as large."""
    random = np.random.default_rng(1)
    true_NC = apply_temperature(random.normal(size=(20_000, 3)), 1.0)
    labels = (np.exp(true_NC).cumsum(1) < random.random((20_000, 1))).sum(1)
    sure_NC = apply_temperature(true_NC * 3.0, 1.0)
    assert fit_temperature(sure_NC, labels) == pytest.approx(3.0, rel=0.05)
    assert (
        calibration(apply_temperature(sure_NC, 3.0), labels).ece
        < 0.02
        < calibration(sure_NC, labels).ece
    )


def safe(scores_NC: np.ndarray, labels: np.ndarray) -> float:
    def at(temperature: float) -> np.ndarray:
        return np.exp(apply_temperature(scores_NC, temperature))

    return safe_temperature(at, np.eye(scores_NC.shape[1])[labels], soft_cross_entropy)


def test_a_temperature_for_answers_to_come_follows_many_examples_and_not_a_few() -> None:
    """Scores three times as large as those that labels were drawn by."""
    random = np.random.default_rng(2)
    scores_NC = random.normal(size=(5_000, 3))
    shares_NC = np.exp(apply_temperature(scores_NC, 1.0))
    labels = (shares_NC.cumsum(1) < random.random((5_000, 1))).sum(1)
    assert safe(3 * scores_NC, labels) == pytest.approx(3.0, rel=0.1)
    few = [safe(3 * scores_NC[at : at + 4], labels[at : at + 4]) for at in range(0, 400, 4)]
    assert 1.0 < np.mean(few) < 2.0


@pytest.mark.parametrize("n", [3, 30, 3_000])
def test_no_mistakes_make_no_answer_certain_and_nothing_but_mistakes_none_even(n: int) -> None:
    """Without a bound the first temperature would be zero, and the other one infinite."""
    scores_NC, zeros = np.tile([1.0, -1.0], (n, 1)), np.zeros(n, np.int64)
    sharp, dull = safe(scores_NC, zeros), safe(scores_NC, zeros + 1)
    assert 0.199 < sharp < 1.0 < dull < 5.01
    assert (sharp > 0.6) == (n == 3)
    assert safe(scores_NC / 10, zeros) > 0.199  # it would be 0.03 of 3,000


def test_an_interval_of_few_answers_without_a_mistake_has_a_width() -> None:
    found = accuracy_interval(np.diag([10, 9]))
    assert (found.value, found.low, found.high) == (1.0, pytest.approx(0.8318, abs=1e-4), 1.0)
    assert accuracy_interval(np.array([[0, 3], [0, 0]])).high == pytest.approx(0.5615, abs=1e-4)
    assert wilson_interval(8, 10).low == pytest.approx(0.4902, abs=1e-4)
    assert wilson_interval(8, 10).high == pytest.approx(0.9433, abs=1e-4)
    assert macro_f1_interval(np.diag([10, 9])).low == found.low
    assert (wilson_interval(0, 0).low, wilson_interval(0, 0).high) == (0.0, 0.0)


def test_a_single_class_has_the_temperature_one() -> None:
    assert safe(np.ones((5, 1)), np.zeros(5, np.int64)) == 1.0


def test_intervals_of_many_classes_are_those_of_the_whole_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(3)
    counts = random.multinomial(300, random.dirichlet(np.full(49, 0.2))).reshape(7, 7)
    whole = accuracy_interval(counts), macro_f1_interval(counts)
    monkeypatch.setattr(classification, "MOST_CELLS", 100)
    assert (accuracy_interval(counts), macro_f1_interval(counts)) == whole


def test_nothing_to_score_is_zero() -> None:
    counts = np.zeros((2, 2), dtype=np.int64)
    assert (accuracy(counts), macro_f1(counts), macro_f1_interval(counts).high) == (0, 0, 0)


def test_exact_probabilities_are_as_far_off_as_chance_has_it() -> None:
    random = np.random.default_rng(7)
    sure_N = random.uniform(0.3, 0.95, 1500)
    drawn = [reliability(sure_N, random.random(1500) < sure_N) for _ in range(200)]
    expected = np.mean([one.ece for one in drawn])
    assert drawn[0].by_chance == pytest.approx(expected, rel=0.05)
    assert reliability(sure_N[:0], sure_N[:0] > 1).by_chance == 0.0
