"""Are two recordings of one speaker? Judged by the angle between their vectors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.metrics.speech import equal_error

MOST_PAIRS = 2_000_000
"""Beyond that, pairs are drawn."""


@dataclass(frozen=True)
class Verification:
    """On pairs of recordings."""

    eer: float
    """The share of wrong answers, 0 to 1, at the threshold where pairs of one speaker are taken
    for two as often as pairs of two for one."""

    threshold: float
    """Cosines from here on count as the same speaker."""

    same: int
    """Pairs of one speaker ..."""

    other: int
    """... and of two."""

    speakers: int

    @property
    def facts(self) -> dict[str, Any]:
        return asdict(self)


def verification(
    vectors_ND: NDArray[np.floating[Any]], labels_N: NDArray[np.int64], seed: int = 1
) -> Verification | None:
    """Of all pairs, or of as many as can be held; None where all are of one kind."""
    first, second = np.triu_indices(len(labels_N), 1)
    if len(first) > MOST_PAIRS:
        chosen = np.random.default_rng(seed).choice(len(first), MOST_PAIRS, replace=False)
        first, second = first[chosen], second[chosen]
    same_P = labels_N[first] == labels_N[second]
    if same_P.all() or not same_P.any():
        return None
    cosines_P = (vectors_ND @ vectors_ND.T)[first, second]
    eer, threshold = equal_error(cosines_P, same_P)
    n_same = int(same_P.sum())
    speakers = len(np.unique(labels_N))
    return Verification(float(eer), float(threshold), n_same, len(same_P) - n_same, speakers)
