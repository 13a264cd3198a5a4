"""Which side of a corpus a text looks like, from a profile that the corpus itself gives.

No list of languages is needed: what matters is whether a source looks like the other sources.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.hashing import Numbers, Texts

BINS = 1 << 16
MIN_TRIGRAMS = 8
"""Shorter texts say too little about their language."""

MARGIN = 0.5
"""How much likelier each trigram must be on the other side, on average: e^0.5, 1.6 times."""

MIN_PROFILE = 1000
"""Trigrams on either side from which on a profile says something."""

SMOOTHING = 0.5

_FACTORS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D], np.uint32)

Scores = NDArray[np.float64]


class Trigrams(NamedTuple):
    """Those of some texts."""

    bins: NDArray[np.uint16]
    sizes: Numbers
    """How many each text has."""

    @classmethod
    def of(cls, texts: Texts) -> Trigrams:
        codes = texts.codes
        ends = texts.starts + texts.sizes - 1
        hashed = np.zeros(max(len(codes) - 2, 0), np.uint32)
        for place, factor in enumerate(_FACTORS):
            hashed ^= codes[place : place + len(hashed)] * factor
            hashed = (hashed << np.uint32(7)) | (hashed >> np.uint32(25))
        whole = np.ones(len(codes), np.bool_)  # not across the end of a text
        for back in range(3):
            whole[np.maximum(ends - back, 0)] = False
        bins = hashed[whole[: len(hashed)]] % np.uint32(BINS)
        return cls(bins.astype(np.uint16), np.maximum(texts.sizes - 3, 0))


class Profiles:
    """How often each trigram of characters occurs on either side, so far."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, BINS))

    def swapped(self, source: Trigrams, target: Trigrams, *, learn: bool) -> NDArray[np.bool_]:
        """For each pair of folded texts, whether both look like the other side.

        With `learn` the texts are added first, and do not speak for themselves.
        """
        sides = (source, target)
        if learn:
            for side, found in enumerate(sides):
                self.counts[side] += np.bincount(found.bins, minlength=BINS)
        if self.counts.sum(axis=1).min() < MIN_PROFILE:
            return np.zeros(len(source.sizes), np.bool_)
        as_source, as_target = (
            self._scores(sides[side], side if learn else None) for side in (0, 1)
        )
        return (as_source < -MARGIN) & (as_target > MARGIN)

    def _scores(self, texts: Trigrams, own: int | None) -> Scores:
        """How much more each text looks like a source than like a target, a trigram on average."""
        seen = self.counts.copy()
        if own is not None:
            seen[own] = np.maximum(seen[own] - 1, 0)
        totals = self.counts.sum(axis=1, keepdims=True)
        likely = np.log((seen + SMOOTHING) / (totals + SMOOTHING * BINS))
        sums, some = np.zeros(len(texts.sizes)), texts.sizes > 0
        if some.any():
            starts = (np.cumsum(texts.sizes) - texts.sizes)[some]
            sums[some] = np.add.reduceat((likely[0] - likely[1])[texts.bins], starts)
        told = texts.sizes >= MIN_TRIGRAMS
        return np.where(told, sums / np.maximum(texts.sizes, 1), 0.0)
