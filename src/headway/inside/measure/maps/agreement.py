"""Agreement of two attribution maps, as the rank correlation of their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.inside.capture.streams import Reading
from headway.inside.measure.maps.map import Map


def agreement(one: Map, other: Map, reading: Reading) -> float | None:
    """Return the agreement of two attribution maps: Spearman's correlation of absolute weights,
    averaged over outputs.

    Only tokens on which the output may depend are compared. None if no output has three such tokens
    with different weights.
    """
    streams = [name for name in one.streams if name in other.streams]
    if not streams:
        return None
    found = []
    for number, output in enumerate(reading.outputs):
        rows = []
        for chosen in (one, other):
            parts = chosen.parts()
            seen = [_seen(parts[name][number], name, output.row, reading) for name in streams]
            rows.append(np.concatenate(seen))
        value = spearman(*rows)
        if value is not None:
            found.append(value)
    return float(np.mean(found)) if found else None


def _seen(weights_S: Tensor, stream: str, row: int | None, reading: Reading) -> NDArray[np.float64]:
    """Return the weights of one output, without later tokens if the text is generated from left to
    right."""
    causal = reading.writes and stream == reading.last.name
    end = None if row is None or not causal else row + 1
    return weights_S[:end].abs().double().numpy()


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three values, or if the values on one
    side are constant."""
    if len(x) < 3:
        return None
    ranks = [_ranks(values) for values in (x, y)]
    if any(r.std() == 0 for r in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks of values; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]
