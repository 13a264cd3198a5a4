"""Detect pairs with swapped sides from the character trigrams of the two sides of a corpus.

The languages need not be known. A pair looks swapped if its source resembles the other targets and
its target the other sources.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.hashing import CharacterCodes, IntArray

BINS = 1 << 16
"""Number of hash bins for trigrams. It is several times the number of trigrams in two languages, so
that few trigrams share a bin."""

MIN_TRIGRAMS = 8
"""Minimum number of trigrams of a text; the language of shorter texts is not judged."""

MARGIN = 0.5
"""Threshold on the log-likelihood ratio per trigram. A text looks swapped if its trigrams are on
average e^0.5 = 1.6 times as likely on the other side. Chosen by hand: a lower value reports more
swapped pairs, and more correct ones."""

MIN_PROFILE = 1000
"""Minimum number of trigrams that each side needs before pairs are judged."""

SMOOTHING = 0.5
"""Count added to every trigram (Jeffreys prior), so that unseen trigrams have a probability above
zero."""

_FACTORS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D], np.uint32)
"""Odd multipliers that mix the three characters of a trigram: primes of xxHash32."""

FloatArray = NDArray[np.float64]


class Trigrams(NamedTuple):
    """Character trigrams of several texts, hashed to bins."""

    bins: NDArray[np.uint16]
    sizes: IntArray
    """Number of trigrams of each text."""

    @classmethod
    def of(cls, texts: CharacterCodes) -> Trigrams:
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
    """Counts of the character trigrams on each side of the corpus, over all pairs added by
    `swapped`."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, BINS))

    def swapped(self, source: Trigrams, target: Trigrams, *, learn: bool) -> NDArray[np.bool_]:
        """Return for each pair whether its two texts look swapped. Texts must be case-folded.

        With `learn`, the texts are first added to the counts. Each trigram is then scored without
        counting its own occurrence.
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

    def _scores(self, texts: Trigrams, own: int | None) -> FloatArray:
        """Return the mean log-likelihood ratio per trigram of each text. It is positive if the text
        looks like a source, and negative if it looks like a target. `own`: side that contains these
        texts; None: they are not in the counts."""
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
