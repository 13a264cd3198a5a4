"""Agreement of two attribution maps: the rank correlation of their rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.inside.capture.streams import Reading
from headway.inside.measure.maps.map import Map


def agreement(one: Map, other: Map, reading: Reading) -> float | None:
    """Agreement of two attribution maps: Spearman's correlation of absolute weights, averaged over
    outputs.

    Only tokens that the output may depend on count. None if no row has three tokens with different
    weights.
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
    """Weights of one output, without the later tokens if the text is generated from left to
    right."""
    causal = reading.writes and stream == reading.last.name
    end = None if row is None or not causal else row + 1
    return weights_S[:end].abs().double().numpy()


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Spearman's rank correlation; None for fewer than three values, or if either side is
    constant."""
    if len(x) < 3:
        return None
    ranks = [_ranks(values) for values in (x, y)]
    if any(r.std() == 0 for r in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks of values, in which equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]
