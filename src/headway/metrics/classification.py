"""How good guessed classes are, how far their probabilities can be trusted, and how sure one is.

All from the confusion matrix or from log-probabilities, with numpy alone. Intervals are bootstrap
intervals over the examples, from a fixed seed: the same answers give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.metrics.translation import Interval

Counts = NDArray[np.int64]
Numbers = NDArray[np.float64]

SAMPLES = 1000
SEED = 12345
BINS = 15
"""Of the expected calibration error: the number that is usual in print (Guo et al. 2017)."""


@dataclass(frozen=True)
class ClassScore:
    """Of one class, each from 0 to 1; `support` is how many examples are of it."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Bin:
    """The answers whose probability lies in (`low`, `high`]."""

    low: float
    high: float
    count: int
    confidence: float
    """The mean probability of these answers ..."""

    accuracy: float
    """... and the share of them that is right; equal to it where the model is calibrated."""


@dataclass(frozen=True)
class Calibration:
    bins: list[Bin]
    ece: float
    """Expected calibration error: the mean distance of confidence and accuracy, from 0 to 1."""


def confusion(labels_N: NDArray[np.integer], guesses_N: NDArray[np.integer], n: int) -> Counts:
    """How often class i (row) was answered with class j (column)."""
    cells = np.asarray(labels_N, dtype=np.int64) * n + np.asarray(guesses_N, dtype=np.int64)
    return np.bincount(cells, minlength=n * n).reshape(n, n).astype(np.int64)


def accuracy(counts_CC: Counts) -> float:
    return float(_accuracy(counts_CC))


def macro_f1(counts_CC: Counts) -> float:
    """The mean F1 of the classes that occur or are answered, as scikit-learn has it."""
    return float(_macro_f1(counts_CC))


def class_scores(counts_CC: Counts) -> list[ClassScore]:
    right_C, answered_C, true_C = _margins(counts_CC)
    precision_C, recall_C = _share(right_C, answered_C), _share(right_C, true_C)
    f1_C = _share(2 * right_C, answered_C + true_C)
    return [
        ClassScore(float(p), float(r), float(f), int(n))
        for p, r, f, n in zip(precision_C, recall_C, f1_C, true_C, strict=True)
    ]


def accuracy_interval(counts_CC: Counts) -> Interval:
    return _interval(counts_CC, _accuracy)


def macro_f1_interval(counts_CC: Counts) -> Interval:
    return _interval(counts_CC, _macro_f1)


def nll(logs_NC: Numbers, labels_N: NDArray[np.integer]) -> float:
    """Mean negative log-likelihood of the true classes, in nats."""
    return float(-logs_NC[np.arange(len(labels_N)), labels_N].mean())


def calibration(logs_NC: Numbers, labels_N: NDArray[np.integer], n_bins: int = BINS) -> Calibration:
    """Probabilities of the answers in bins of equal width, beside how often they were right."""
    confidence_N = np.exp(logs_NC.max(1))
    right_N = logs_NC.argmax(1) == labels_N
    # A value on a border belongs to the bin below it; ceil would send 0 below the first.
    bin_N = np.clip(np.ceil(confidence_N * n_bins - 1e-9).astype(np.int64) - 1, 0, n_bins - 1)
    count_B = np.bincount(bin_N, minlength=n_bins)
    mean_B = _share(np.bincount(bin_N, confidence_N, n_bins), count_B)
    right_B = _share(np.bincount(bin_N, right_N, n_bins), count_B)
    bins = [
        Bin(i / n_bins, (i + 1) / n_bins, int(count_B[i]), float(mean_B[i]), float(right_B[i]))
        for i in range(n_bins)
    ]
    ece = float((np.abs(mean_B - right_B) * count_B).sum() / max(1, len(labels_N)))
    return Calibration(bins, ece)


def fit_temperature(logs_NC: Numbers, labels_N: NDArray[np.integer]) -> float:
    """What to divide the scores by so that the labels become likeliest (Guo et al. 2017).

    Above 1 the model is too sure of itself. The likelihood has one optimum along the line, so
    thirds of the range can be thrown away until none is left.
    """

    def loss(log_temperature: float) -> float:
        return nll(apply_temperature(logs_NC, math.exp(log_temperature)), labels_N)

    low, high = math.log(0.05), math.log(20.0)
    while high - low > 1e-4:
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def apply_temperature(logs_NC: Numbers, temperature: float) -> Numbers:
    """Log-probabilities after dividing the scores by a temperature."""
    x_NC = logs_NC / temperature
    top_N1 = x_NC.max(1, keepdims=True)
    return x_NC - top_N1 - np.log(np.exp(x_NC - top_N1).sum(1, keepdims=True))


def _margins(counts: NDArray[np.integer]) -> tuple[Numbers, Numbers, Numbers]:
    """Right answers, all answers and true examples of each class, on the last axis."""
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    return right.astype(float), counts.sum(-2).astype(float), counts.sum(-1).astype(float)


def _accuracy(counts: NDArray[np.integer]) -> Numbers:
    return _share(_margins(counts)[0].sum(-1), counts.sum((-2, -1)).astype(float))


def _macro_f1(counts: NDArray[np.integer]) -> Numbers:
    right, answered, true = _margins(counts)
    f1 = _share(2 * right, answered + true)
    return _share(f1.sum(-1), (answered + true > 0).sum(-1))


def _share(part: NDArray[np.number], whole: NDArray[np.number]) -> Numbers:
    """Zero of nothing is zero."""
    return np.asarray(part / np.maximum(whole, 1), dtype=np.float64)


def _interval(counts_CC: Counts, score: Callable[[NDArray[np.integer]], Numbers]) -> Interval:
    """Drawing examples anew is drawing cells of the confusion matrix anew."""
    n = int(counts_CC.sum())
    if not n:
        return Interval(0.0, 0.0, 0.0)
    random = np.random.default_rng(SEED)
    drawn = random.multinomial(n, counts_CC.ravel() / n, size=SAMPLES)
    low, high = np.quantile(score(drawn.reshape(SAMPLES, *counts_CC.shape)), [0.025, 0.975])
    return Interval(float(score(counts_CC)), float(low), float(high))
