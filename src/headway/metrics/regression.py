"""Metrics of predicted numbers (regression)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.metrics.classification import SAMPLES, SEED
from headway.metrics.interval import Interval

FloatArray = NDArray[np.float64]


def mae(said_N: FloatArray, truth_N: FloatArray) -> float:
    """Return the mean absolute error."""
    return float(np.abs(said_N - truth_N).mean())


def rmse(said_N: FloatArray, truth_N: FloatArray) -> float:
    """Return the root mean squared error."""
    return float(np.sqrt(((said_N - truth_N) ** 2).mean()))


def r2(said_N: FloatArray, truth_N: FloatArray) -> float:
    """Return the fraction of the variance that is explained (R²). It is negative if the predictions
    are worse than the mean, and 0 if the targets have no variance."""
    spread = float(((truth_N - truth_N.mean()) ** 2).sum())
    return 1.0 - float(((said_N - truth_N) ** 2).sum()) / spread if spread else 0.0


def pearson(said_N: FloatArray, truth_N: FloatArray) -> float:
    """Return the Pearson correlation; 0 if predictions or targets are constant."""
    x, y = said_N - said_N.mean(), truth_N - truth_N.mean()
    length = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / length if length > 1e-12 else 0.0


def spearman(said_N: FloatArray, truth_N: FloatArray) -> float:
    """Return the Spearman rank correlation. Equal numbers share their mean rank."""
    return pearson(ranks(said_N), ranks(truth_N))


def ranks(values_N: FloatArray) -> FloatArray:
    _, place_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: FloatArray = (last - counts + last - 1) / 2
    return means[place_N.reshape(-1)]


def mae_interval(said_N: FloatArray, truth_N: FloatArray) -> Interval:
    """Return the mean absolute error with its 95 % bootstrap interval, with a fixed seed."""
    away_N = np.abs(said_N - truth_N)
    random, n = np.random.default_rng(SEED), len(away_N)
    drawn = [away_N[random.integers(0, n, n)].mean() for _ in range(SAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(away_N.mean()), float(low), float(high))
