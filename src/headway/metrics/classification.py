"""Classification metrics, calibration, and confidence intervals.

Everything is computed from the confusion matrix or from log-probabilities, with numpy. The interval
of accuracy is Wilson's. Others are bootstrap intervals over the examples with a fixed seed, so the
same predictions give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.metrics.interval import Interval

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

SAMPLES = 1000
"""Number of bootstrap samples, as in sacreBLEU."""

MOST_CELLS = 10_000_000
"""Maximum number of cells of resampled confusion matrices in memory at a time."""

SEED = 12345
"""Random seed of the bootstrap, the default of sacreBLEU."""

BINS = 15
"""Number of bins for the expected calibration error, as in Guo et al. (2017)."""

MAX_TEMPERATURE = 20.0
"""Upper end of the range in which a temperature is fitted for reports; the lower end is 1/20."""

MAX_APPLIED_TEMPERATURE = 5.0
"""Upper end of the range of temperatures that are applied to predictions; the lower end is 1/5. It
keeps probabilities from becoming almost certain or almost equal."""

PSEUDO_EXAMPLES = 10
"""Number of pseudo-examples that are added when a temperature is fitted. They are labelled with the
model's own probabilities. If there are few examples or no errors, they keep the temperature near
1."""

ENOUGH = 1_000_000
"""Maximum number of probabilities used to fit a temperature. More would take time without changing
the result noticeably."""


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class, each from 0 to 1. `support` is the number of its examples."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class Bin:
    """Predictions whose probabilities are between `low` and `high`."""

    low: float
    high: float
    count: int
    confidence: float
    """Mean probability of the predictions in the bin."""

    accuracy: float
    """Fraction of the predictions in the bin that are correct. It equals the confidence if the
    model is calibrated."""


@dataclass(frozen=True)
class Calibration:
    bins: list[Bin]
    ece: float
    """Expected calibration error (ECE): mean absolute difference of confidence and accuracy, from 0
    to 1."""

    @property
    def by_chance(self) -> float:
        """Approximate ECE of perfectly calibrated probabilities.

        It is not 0, because the number of correct predictions in each bin is random. The
        approximation is the mean absolute value of a normal deviation.
        """
        luck = [one.count * one.confidence * (1 - one.confidence) for one in self.bins]
        n = sum(one.count for one in self.bins)
        return math.sqrt(2 / math.pi) * sum(map(math.sqrt, luck)) / max(1, n)

    @property
    def facts(self) -> dict[str, Any]:
        return {"bins": [vars(one) for one in self.bins], "ece": self.ece}


def confusion(labels_N: NDArray[np.integer], guesses_N: NDArray[np.integer], n: int) -> IntArray:
    """Return the confusion matrix: counts by true class (row) and predicted class (column)."""
    cells = np.asarray(labels_N, dtype=np.int64) * n + np.asarray(guesses_N, dtype=np.int64)
    return np.bincount(cells, minlength=n * n).reshape(n, n).astype(np.int64)


def accuracy(counts_CC: IntArray) -> float:
    return float(_accuracy(counts_CC))


def macro_f1(counts_CC: IntArray) -> float:
    """Return the mean F1 of the classes that occur or are predicted, as in scikit-learn."""
    return float(_macro_f1(counts_CC))


def class_scores(counts_CC: IntArray) -> list[ClassScore]:
    right_C, answered_C, true_C = _margins(counts_CC)
    precision_C, recall_C = _fraction(right_C, answered_C), _fraction(right_C, true_C)
    f1_C = _fraction(2 * right_C, answered_C + true_C)
    return [
        ClassScore(float(p), float(r), float(f), int(n))
        for p, r, f, n in zip(precision_C, recall_C, f1_C, true_C, strict=True)
    ]


Z = 1.959964
"""Number of standard errors on each side of a 95 % confidence interval."""


def wilson_interval(right: int, n: int) -> Interval:
    """Return the accuracy with its 95 % interval (Wilson 1927).

    Unlike a bootstrap interval, Wilson's interval has a width even if all predictions are correct.
    """
    if not n:
        return Interval(0.0, 0.0, 0.0)
    share, spread = right / n, Z * Z / n
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    low = 0.0 if right == 0 else middle - half
    high = 1.0 if right == n else middle + half
    return Interval(share, low, high)


def widened(found: Interval, n: int) -> Interval:
    """Return the interval, or Wilson's interval if a bootstrap interval has no width. A bootstrap
    interval has no width if all or none of the `n` predictions are correct."""
    if found.low < found.high or found.value not in (0.0, 1.0):
        return found
    certain = wilson_interval(n if found.value == 1.0 else 0, n)
    return Interval(found.value, certain.low, certain.high)


def accuracy_interval(counts_CC: IntArray) -> Interval:
    return wilson_interval(int(np.trace(counts_CC)), int(counts_CC.sum()))


def macro_f1_interval(counts_CC: IntArray) -> Interval:
    return widened(_interval(counts_CC, _macro_f1), int(counts_CC.sum()))


def nll(logs_NC: FloatArray, labels_N: NDArray[np.integer]) -> float:
    """Return the mean negative log-likelihood of the true classes, in nats."""
    return float(-logs_NC[np.arange(len(labels_N)), labels_N].mean())


def calibration(
    logs_NC: FloatArray, labels_N: NDArray[np.integer], n_bins: int = BINS
) -> Calibration:
    """Return the calibration of the probabilities of the predicted classes."""
    return reliability(np.exp(logs_NC.max(1)), logs_NC.argmax(1) == labels_N, n_bins)


def reliability(
    sure_N: FloatArray, right_N: NDArray[np.bool_] | FloatArray, n_bins: int = BINS
) -> Calibration:
    """Return the calibration over bins with equal numbers of predictions. Equal probabilities are
    always in the same bin."""
    n = len(sure_N)
    if not n:
        return Calibration([], 0.0)
    last = np.ceil(np.arange(1, n_bins) * n / n_bins).astype(np.int64) - 1
    near_N = np.round(sure_N, 6)  # differences below this are rounding errors
    bin_N = np.searchsorted(np.sort(near_N)[last], near_N, side="left")
    bins = [
        Bin(
            float(sure.min()), float(sure.max()), len(sure), float(sure.mean()), float(right.mean())
        )
        for sure, right in ((sure_N[bin_N == i], right_N[bin_N == i]) for i in np.unique(bin_N))
    ]
    ece = sum(abs(one.confidence - one.accuracy) * one.count for one in bins) / n
    return Calibration(bins, ece)


def best_temperature(loss: Callable[[float], float], most: float = MAX_TEMPERATURE) -> float:
    """Return the temperature from 1 / `most` to `most` with the lowest loss, or 1 if no temperature
    is better.

    The likelihood of labels has a single optimum, so golden-section search finds it.
    """
    golden = (math.sqrt(5.0) - 1.0) / 2.0

    def at(x: float) -> tuple[float, float]:
        return loss(math.exp(x)), x

    low, high = -math.log(most), math.log(most)
    left, right = at(high - golden * (high - low)), at(low + golden * (high - low))
    while high - low > 1e-3:
        if left[0] < right[0]:
            high, right = right[1], left
            left = at(high - golden * (high - low))
        else:
            low, left = left[1], right
            right = at(low + golden * (high - low))
    found = math.exp((low + high) / 2)
    return found if loss(found) < loss(1.0) else 1.0


def fit_temperature(logs_NC: FloatArray, labels_N: NDArray[np.integer]) -> float:
    """Return the temperature, the divisor of the logits, under which the labels are most likely
    (Guo et al. 2017). A temperature above 1 means that the model is overconfident."""
    return best_temperature(lambda t: nll(apply_temperature(logs_NC, t), labels_N))


def safe_temperature(
    shares_at: Callable[[float], FloatArray],
    true_NC: FloatArray,
    surprise: Callable[[FloatArray, FloatArray], float],
) -> float:
    """Return the temperature to apply to future predictions, regularized with `PSEUDO_EXAMPLES`
    pseudo-examples.

    `shares_at`: function from a temperature to the probabilities (N C). `true_NC`: one where a
    label is correct, otherwise zero. `surprise`: function from probabilities and soft targets to
    their mean cross-entropy.
    """
    n = len(true_NC)
    aims_NC = (n * true_NC + PSEUDO_EXAMPLES * shares_at(1.0)) / (n + PSEUDO_EXAMPLES)
    return best_temperature(lambda t: surprise(shares_at(t), aims_NC), MAX_APPLIED_TEMPERATURE)


def soft_cross_entropy(shares_NC: FloatArray, aims_NC: FloatArray) -> float:
    """Return the mean cross-entropy of class probabilities and soft targets, in nats."""
    return float(-(aims_NC * np.log(np.maximum(shares_NC, 1e-300))).sum(1).mean())


def apply_temperature(logs_NC: FloatArray, temperature: float) -> FloatArray:
    """Return the log-probabilities after division of the logits by a temperature."""
    x_NC = logs_NC / temperature
    top_N1 = x_NC.max(1, keepdims=True)
    return x_NC - top_N1 - np.log(np.exp(x_NC - top_N1).sum(1, keepdims=True))


def _margins(counts: NDArray[np.integer]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the numbers of correct predictions, of predictions and of examples for each class
    (last axis)."""
    right = np.diagonal(counts, axis1=-2, axis2=-1)
    return right.astype(float), counts.sum(-2).astype(float), counts.sum(-1).astype(float)


def _accuracy(counts: NDArray[np.integer]) -> FloatArray:
    return _fraction(_margins(counts)[0].sum(-1), counts.sum((-2, -1)).astype(float))


def _macro_f1(counts: NDArray[np.integer]) -> FloatArray:
    right, answered, true = _margins(counts)
    f1 = _fraction(2 * right, answered + true)
    return _fraction(f1.sum(-1), (answered + true > 0).sum(-1))


def _fraction(part: NDArray[np.number], whole: NDArray[np.number]) -> FloatArray:
    """Return the quotient of two counts, with 0/0 = 0."""
    return np.asarray(part / np.maximum(whole, 1), dtype=np.float64)


def _interval(counts_CC: IntArray, score: Callable[[NDArray[np.integer]], FloatArray]) -> Interval:
    """Return a score with its bootstrap interval. The counts of the confusion matrix are resampled,
    which is equivalent to resampling examples."""
    n = int(counts_CC.sum())
    if not n:
        return Interval(0.0, 0.0, 0.0)
    random, cells = np.random.default_rng(SEED), counts_CC.size
    there = np.union1d(np.flatnonzero(counts_CC), [cells - 1])  # most cells are zero
    drawn_SK = random.multinomial(n, counts_CC.ravel()[there] / n, size=SAMPLES)
    found: list[FloatArray] = []
    for some in np.array_split(drawn_SK, min(SAMPLES, 1 + SAMPLES * cells // MOST_CELLS)):
        whole = np.zeros((len(some), cells), np.int64)
        whole[:, there] = some
        found.append(score(whole.reshape(-1, *counts_CC.shape)))
    low, high = np.quantile(np.concatenate(found), [0.025, 0.975])
    return Interval(float(score(counts_CC)), float(low), float(high))
