"""Captions against what several people wrote of the same picture: the consensus score CIDEr-D."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headway.metrics.translation import (
    SAMPLES,
    SEED,
    Interval,
    Reference,
    Score,
    exact_match,
    several,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Frequencies", "cider", "ciders", "exact_match", "match_interval", "words_of"]

ORDERS = 4
"""N-grams of one to so many words."""

SIGMA = 6.0
"""How many words an output may be longer or shorter before its score is less than exp(-1/2)."""

SIGNATURE = "CIDEr-D|n:1-4|sigma:6|x10|case:lc|words:\\w+|stem:no"

Grams = Counter[tuple[str, ...]]


def words_of(text: str) -> list[str]:
    """Lower-cased words without punctuation, as the score counts them."""
    return re.findall(r"\w+(?:['’]\w+)*", text.lower())


@dataclass(frozen=True)
class Frequencies:
    """In how many pictures' references an n-gram stands: what everyone writes says little."""

    counts: Grams
    n_pictures: int

    @classmethod
    def of(cls, references: Sequence[Reference]) -> Frequencies:
        counts: Grams = Counter()
        for of_picture in references:
            texts = several(of_picture)
            counts.update({gram for text in texts for grams in _grams(text) for gram in grams})
        return cls(counts, len(references))

    def weight(self, gram: tuple[str, ...]) -> float:
        """Inverse document frequency; an n-gram that stands nowhere is as rare as one that stands
        once."""
        return math.log(self.n_pictures / max(1, self.counts[gram]))


def cider(
    outputs: Sequence[str],
    references: Sequence[Reference],
    frequencies: Frequencies | None = None,
) -> Score:
    """The mean over all pictures, as published: 10 for a text that is its only reference, has four
    words or more and no order of n-grams that all pictures share; people among themselves reach
    much less. How rare n-grams are is counted in these references, or given.

    Other than the official script, words are what `words_of` finds, not those of the Penn Treebank
    tokenizer. As there, and unlike in the paper, they are not stemmed.
    """
    values = ciders(outputs, references, frequencies)
    return Score("CIDEr-D", float(values.mean()) if len(values) else 0.0, SIGNATURE)


def ciders(
    outputs: Sequence[str],
    references: Sequence[Reference],
    frequencies: Frequencies | None = None,
) -> NDArray[np.float64]:
    """The score of every output (Vedantam, Zitnick and Parikh 2015, the variant D)."""
    rarity = Frequencies.of(references) if frequencies is None else frequencies
    pairs = zip(outputs, references, strict=True)
    return np.array(
        [
            10.0 * float(np.mean([_alike(output, one, rarity) for one in several(these)]))
            for output, these in pairs
        ],
        dtype=np.float64,
    )


def _alike(output: str, reference: str, rarity: Frequencies) -> float:
    """The cosine of tf-idf vectors, by order of n-grams. D: what an output says more often than the
    reference does not count, and lengths that differ cost."""
    total = 0.0
    for ours, theirs in zip(_grams(output), _grams(reference), strict=True):
        mine = {gram: n * rarity.weight(gram) for gram, n in ours.items()}
        other = {gram: n * rarity.weight(gram) for gram, n in theirs.items()}
        size = _norm(mine) * _norm(other)
        if size:
            both = mine.keys() & other.keys()
            shared = sum(min(mine[gram], other[gram]) * other[gram] for gram in both)
            total += shared / size
    apart = len(words_of(output)) - len(words_of(reference))
    return math.exp(-(apart**2) / (2 * SIGMA**2)) * total / ORDERS


def _norm(vector: dict[tuple[str, ...], float]) -> float:
    return math.sqrt(sum(value * value for value in vector.values()))


def _grams(text: str) -> list[Grams]:
    """Of each order."""
    words = words_of(text)
    return [
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for n in range(1, ORDERS + 1)
    ]


def match_interval(share: float, n: int) -> Interval:
    """A share of n pictures, in percent, and its 95 % range over bootstrap samples of them."""
    drawn = 100 * np.random.default_rng(SEED).binomial(n, share / 100, SAMPLES) / n
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(share, float(low), float(high))
