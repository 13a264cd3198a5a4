"""How near guessed numbers are to the right ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.metrics.classification import SAMPLES, SEED
from headway.metrics.translation import Interval

Numbers = NDArray[np.float64]


def mae(said_N: Numbers, truth_N: Numbers) -> float:
    """The mean distance."""
    return float(np.abs(said_N - truth_N).mean())


def rmse(said_N: Numbers, truth_N: Numbers) -> float:
    """The root of the mean square of the distance."""
    return float(np.sqrt(((said_N - truth_N) ** 2).mean()))


def r2(said_N: Numbers, truth_N: Numbers) -> float:
    """The share of the variance that is explained; below zero for what is worse than the mean, and
    zero where there is no variance."""
    spread = float(((truth_N - truth_N.mean()) ** 2).sum())
    return 1.0 - float(((said_N - truth_N) ** 2).sum()) / spread if spread else 0.0


def pearson(said_N: Numbers, truth_N: Numbers) -> float:
    """Correlation; zero where one side is always the same."""
    x, y = said_N - said_N.mean(), truth_N - truth_N.mean()
    length = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / length if length > 1e-12 else 0.0


def spearman(said_N: Numbers, truth_N: Numbers) -> float:
    """Correlation of the ranks; equal numbers share the mean of theirs."""
    return pearson(ranks(said_N), ranks(truth_N))


def ranks(values_N: Numbers) -> Numbers:
    _, place_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Numbers = (last - counts + last - 1) / 2
    return means[place_N.reshape(-1)]


def mae_interval(said_N: Numbers, truth_N: Numbers) -> Interval:
    """By drawing examples anew, from a fixed seed."""
    away_N = np.abs(said_N - truth_N)
    random, n = np.random.default_rng(SEED), len(away_N)
    drawn = [away_N[random.integers(0, n, n)].mean() for _ in range(SAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(away_N.mean()), float(low), float(high))
