"""CIDEr-D, a metric that compares captions with several references per image."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headway.metrics.interval import Interval
from headway.metrics.translation import (
    SAMPLES,
    SEED,
    CorpusScore,
    Reference,
    as_list,
    exact_match,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DocumentFrequencies", "cider", "ciders", "exact_match", "match_interval", "words_of"]

ORDERS = 4
"""Maximum length of n-grams in words, as in the CIDEr paper."""

SIGMA = 6.0
"""Standard deviation, in words, of the Gaussian penalty on the difference in length, as in
CIDEr-D."""

SIGNATURE = "CIDEr-D|n:1-4|sigma:6|x10|case:lc|words:\\w+|stem:no"

Grams = Counter[tuple[str, ...]]


def words_of(text: str) -> list[str]:
    """Return the lower-cased words of a text without punctuation. `cider` counts these words."""
    return re.findall(r"\w+(?:['’]\w+)*", text.lower())


@dataclass(frozen=True)
class DocumentFrequencies:
    """Number of images whose references contain each n-gram, for inverse document frequencies."""

    counts: Grams
    n_images: int

    @classmethod
    def of(cls, references: Sequence[Reference]) -> DocumentFrequencies:
        counts: Grams = Counter()
        for of_image in references:
            texts = as_list(of_image)
            counts.update({gram for text in texts for grams in _grams(text) for gram in grams})
        return cls(counts, len(references))

    def weight(self, gram: tuple[str, ...]) -> float:
        """Return the inverse document frequency of an n-gram. An unseen n-gram counts as seen
        once."""
        return math.log(self.n_images / max(1, self.counts[gram]))


def cider(
    outputs: Sequence[str],
    references: Sequence[Reference],
    frequencies: DocumentFrequencies | None = None,
) -> CorpusScore:
    """Return the mean CIDEr-D over all images.

    The maximum is 10. It is reached by an output of four words or more that equals its only
    reference, if not all images share its n-grams. Human captions reach much less. `frequencies`:
    document frequencies; None: counted in these references.

    Words come from `words_of`, whereas the official script uses the Penn Treebank tokenizer. As in
    the script, and unlike in the paper, words are not stemmed.
    """
    values = ciders(outputs, references, frequencies)
    return CorpusScore("CIDEr-D", float(values.mean()) if len(values) else 0.0, SIGNATURE)


def ciders(
    outputs: Sequence[str],
    references: Sequence[Reference],
    frequencies: DocumentFrequencies | None = None,
) -> NDArray[np.float64]:
    """Return the CIDEr-D of each output (Vedantam, Zitnick and Parikh 2015)."""
    rarity = DocumentFrequencies.of(references) if frequencies is None else frequencies
    pairs = zip(outputs, references, strict=True)
    return np.array(
        [
            10.0 * float(np.mean([_similarity(output, one, rarity) for one in as_list(these)]))
            for output, these in pairs
        ],
        dtype=np.float64,
    )


def _similarity(output: str, reference: str, rarity: DocumentFrequencies) -> float:
    """Return the cosine similarity of the tf-idf vectors of two captions, averaged over the orders
    of n-grams. In variant D, counts above those of the reference are clipped, and a difference in
    length is penalized."""
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
    """Count the n-grams of each order in a text."""
    words = words_of(text)
    return [
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for n in range(1, ORDERS + 1)
    ]


def match_interval(share: float, n: int) -> Interval:
    """Return `share`, the percentage of matches among `n` images, with its 95 % bootstrap
    interval."""
    drawn = 100 * np.random.default_rng(SEED).binomial(n, share / 100, SAMPLES) / n
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(share, float(low), float(high))
