"""Multi-label metrics, for examples with any number of labels.

In all functions, `shares_NC` are the probabilities of the labels. `truth_NC` is one for the correct
labels and zero for the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.metrics.classification import (
    PSEUDO_EXAMPLES,
    SAMPLES,
    SEED,
    Calibration,
    ClassScore,
    reliability,
    widened,
)
from headway.metrics.interval import Interval

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

THRESHOLD = 0.5
"""Default threshold: labels with at least this probability are predicted, until a threshold is
fitted."""

LOWEST, HIGHEST = 0.05, 0.95
"""Range of fitted thresholds."""


def predicted_labels(shares_NC: FloatArray, threshold: float = THRESHOLD) -> BoolArray:
    return shares_NC >= threshold


def best_threshold(shares_NC: FloatArray, truth_NC: BoolArray) -> float:
    """Return the threshold with the highest micro F1, shared by all labels.

    With calibrated probabilities the best threshold is the same for every label. A threshold per
    label would be fitted to very few examples of rare labels. As for a temperature,
    `PSEUDO_EXAMPLES` pseudo-examples are added.
    """
    n = len(truth_NC)
    if not n:
        return THRESHOLD
    right_K = ((n * truth_NC + PSEUDO_EXAMPLES * shares_NC) / (n + PSEUDO_EXAMPLES)).ravel()
    shares_K = shares_NC.ravel()
    order = np.argsort(-shares_K, kind="stable")
    shares_K, found_K = shares_K[order], np.cumsum(right_K[order])
    f1_K = 2 * found_K / (np.arange(1, len(found_K) + 1) + found_K[-1])
    lower_K = np.append(shares_K[1:], 0.0)
    middle_K = (shares_K + lower_K) / 2
    may_K = (lower_K < shares_K) & (middle_K >= LOWEST) & (middle_K <= HIGHEST)
    if not may_K.any():
        return THRESHOLD
    return round(float(middle_K[np.where(may_K, f1_K, -1.0).argmax()]), 3)


def nll(shares_NC: FloatArray, truth_NC: NDArray[np.floating]) -> float:
    """Return the mean binary cross-entropy over examples and labels, in nats."""
    p_NC = np.clip(shares_NC, 1e-12, 1 - 1e-12)
    right_NC = truth_NC * np.log(p_NC) + (1 - truth_NC) * np.log(1 - p_NC)
    return float(-right_NC.mean())


def micro_f1(said_NC: BoolArray, truth_NC: BoolArray) -> float:
    """Return F1 over all labels of all examples together."""
    return float(_f1(*(counts.sum() for counts in _counts(said_NC, truth_NC))))


def macro_f1(said_NC: BoolArray, truth_NC: BoolArray) -> float:
    """Return the mean F1 of the labels that occur or are predicted."""
    right_C, said_C, true_C = (counts.sum(0) for counts in _counts(said_NC, truth_NC))
    there_C = said_C + true_C > 0
    return float(_f1(right_C, said_C, true_C)[there_C].mean()) if there_C.any() else 0.0


def exact_match(said_NC: BoolArray, truth_NC: BoolArray) -> float:
    return float((said_NC == truth_NC).all(1).mean())


def label_scores(said_NC: BoolArray, truth_NC: BoolArray) -> list[ClassScore]:
    right_C, said_C, true_C = (counts.sum(0) for counts in _counts(said_NC, truth_NC))
    f1_C = _f1(right_C, said_C, true_C)
    return [
        ClassScore(float(r / max(s, 1)), float(r / max(t, 1)), float(f), int(t))
        for r, s, t, f in zip(right_C, said_C, true_C, f1_C, strict=True)
    ]


def mean_average_precision(shares_NC: FloatArray, truth_NC: BoolArray) -> float:
    """Return the mean average precision (mAP) over the labels that occur. Examples with equal
    probabilities share a rank."""
    found = [
        _average_precision(shares_N, true_N)
        for shares_N, true_N in zip(shares_NC.T, truth_NC.T, strict=True)
        if true_N.any()
    ]
    return float(np.mean(found)) if found else 0.0


def _average_precision(shares_N: FloatArray, true_N: BoolArray) -> float:
    order = np.argsort(-shares_N, kind="stable")
    last = np.flatnonzero(np.append(np.diff(shares_N[order]) != 0, True))  # the last of each tie
    right = np.cumsum(true_N[order])[last]
    recalled = np.diff(right, prepend=0) / right[-1]
    return float((recalled * right / (last + 1)).sum())


def calibration(shares_NC: FloatArray, truth_NC: BoolArray) -> Calibration:
    """Return the calibration of the probabilities of all labels of all examples, predicted or
    not."""
    return reliability(shares_NC.ravel(), truth_NC.ravel())


def micro_f1_interval(said_NC: BoolArray, truth_NC: BoolArray) -> Interval:
    """Return micro F1 with its 95 % bootstrap interval over examples, with a fixed seed."""
    counts_3N = np.stack([counts.sum(1) for counts in _counts(said_NC, truth_NC)]).astype(float)
    n = counts_3N.shape[1]
    random = np.random.default_rng(SEED)
    drawn_S3 = np.stack([counts_3N[:, random.integers(0, n, n)].sum(1) for _ in range(SAMPLES)])
    low, high = np.quantile(_f1(*drawn_S3.T), [0.025, 0.975])
    return widened(Interval(micro_f1(said_NC, truth_NC), float(low), float(high)), n)


def _counts(said_NC: BoolArray, truth_NC: BoolArray) -> tuple[BoolArray, BoolArray, BoolArray]:
    return said_NC & truth_NC, said_NC, truth_NC


def _f1(right: FloatArray, answered: FloatArray, true: FloatArray) -> FloatArray:
    """Return F1 from counts, with 0/0 = 0."""
    return np.asarray(2 * right / np.maximum(answered + true, 1), np.float64)
