"""Sets of labels and numbers: scores by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headway.metrics import multilabel as several
from headway.metrics import regression

TRUTH_NC = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]], bool)
SHARES_NC = np.array([[0.9, 0.2, 0.1], [0.8, 0.4, 0.6], [0.3, 0.1, 0.2], [0.2, 0.7, 0.1]])


def test_sets_of_labels_by_hand() -> None:
    said_NC = several.predicted_labels(SHARES_NC)
    # Right: 3 of 4 said, 3 of 4 true.
    assert several.micro_f1(said_NC, TRUTH_NC) == pytest.approx(2 * 3 / (4 + 4))
    # The third label is said once and never right: its F1 is 0, and it counts.
    assert several.macro_f1(said_NC, TRUTH_NC) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert several.exact_match(said_NC, TRUTH_NC) == 0.75
    first, second, third = several.label_scores(said_NC, TRUTH_NC)
    assert (first.precision, first.recall, first.support) == (1.0, 1.0, 2)
    assert (second.precision, second.recall) == (1.0, 0.5)
    assert (third.precision, third.support) == (0.0, 0)
    interval = several.micro_f1_interval(said_NC, TRUTH_NC)
    assert 0.0 <= interval.low < interval.value < interval.high <= 1.0


def test_average_precision_is_over_the_labels_that_occur() -> None:
    # First label: both true ones come first. Second: ranks 1 and 2. The third never occurs.
    assert several.mean_average_precision(SHARES_NC, TRUTH_NC) == 1.0
    turned_NC = 1 - SHARES_NC
    # First: true ones at 3 and 4 of 4. Second: likewise.
    assert several.mean_average_precision(turned_NC, TRUTH_NC) == pytest.approx((1 / 3 + 2 / 4) / 2)
    equal_NC = np.full_like(SHARES_NC, 0.5)
    assert several.mean_average_precision(equal_NC, TRUTH_NC) == pytest.approx(0.5)
    assert several.nll(equal_NC, TRUTH_NC.astype(float)) == pytest.approx(np.log(2))


def test_numbers_by_hand() -> None:
    said_N, truth_N = np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 5.0])
    assert regression.mae(said_N, truth_N) == pytest.approx(2 / 3)
    assert regression.rmse(said_N, truth_N) == pytest.approx((2 / 3) ** 0.5)
    assert regression.r2(said_N, truth_N) == pytest.approx(1 - 2 / 6)
    assert regression.pearson(said_N, truth_N) == pytest.approx(np.corrcoef(said_N, truth_N)[0, 1])
    assert regression.ranks(truth_N).tolist() == [0.5, 0.5, 2.0]
    assert regression.spearman(said_N, truth_N) == pytest.approx(3**0.5 / 2)
    interval = regression.mae_interval(said_N, truth_N)
    assert interval.low <= 2 / 3 <= interval.high


def test_what_never_varies_is_correlated_with_nothing() -> None:
    same_N, truth_N = np.full(4, 2.5), np.arange(4.0)
    assert regression.pearson(same_N, truth_N) == regression.spearman(same_N, truth_N) == 0.0
    assert regression.r2(truth_N, same_N) == 0.0


def test_the_best_threshold_has_the_highest_micro_f1() -> None:
    random = np.random.default_rng(1)
    shares_NC = random.random((400, 6)) * 0.6
    truth_NC = random.random((400, 6)) < shares_NC
    found = several.best_threshold(shares_NC, truth_NC)
    best = max(
        several.micro_f1(several.predicted_labels(shares_NC, t), truth_NC)
        for t in np.linspace(0, 1, 51)
    )
    assert several.micro_f1(several.predicted_labels(shares_NC, found), truth_NC) > best - 0.005
    assert 0.1 < found < 0.4


def test_a_threshold_of_nothing_is_one_half_and_few_examples_move_it_little() -> None:
    assert several.best_threshold(np.zeros((0, 3)), np.zeros((0, 3), bool)) == 0.5
    found = several.best_threshold(np.full((5, 2), 0.99), np.ones((5, 2), bool))
    assert found == pytest.approx(0.5, abs=0.01)
    shares_NC = np.array([[0.9, 0.06], [0.9, 0.06]])
    assert several.best_threshold(shares_NC, np.ones((2, 2), bool)) > 0.3
