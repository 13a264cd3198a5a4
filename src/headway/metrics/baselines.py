"""What one gets for nothing: scores that a model has to beat before it has learned anything.

The majority class, logistic regression on words and pairs of words, the nearest of the vectors that
an encoder gives texts, the most frequent tag of each word. Small enough to be trained beside every
evaluation, and deterministic.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headway.nn.logistic import Link, Sparse, fit_linear

TOKEN = re.compile(r"\w+|[^\w\s]")

L2: dict[Link, float] = {"one": 1.0, "several": 1.0, "number": 10.0}
"""Numbers are standardised. On the sizes of Debian packages 10 had a test MAE of 0.571, 1 had 0.581
and 30 had 0.575; ridge regression on tf-idf had 0.571 to 0.581."""

Text = tuple[str, str]
"""A text and its other half, which is empty where there are no pairs."""


def majority(labels_N: NDArray[np.integer], n_classes: int) -> int:
    """The most frequent class; of equally frequent ones the first."""
    return int(np.bincount(labels_N, minlength=n_classes).argmax())


MOST_CHARACTERS = 4_000_000
"""Total length of the texts that a bag of words is fitted to."""


@dataclass(frozen=True)
class BagOfWords:
    """A linear model of which words and which pairs of neighbouring words a text has.

    Of classes it is logistic regression, of several labels one logistic regression per label, of
    numbers ridge regression.
    """

    numbers: dict[str, int]
    weight_FC: Tensor
    bias_C: Tensor

    @classmethod
    def fit(
        cls,
        texts: Sequence[Text],
        labels: Sequence[int],
        n_classes: int,
        *,
        l2: float = 1.0,
        most_characters: int = MOST_CHARACTERS,
        most_weights: int = 2_000_000,
    ) -> BagOfWords:
        """`fit_to` of one class per text."""
        every = thinning(texts, most_characters)
        right_N = torch.tensor(list(labels[::every]), dtype=torch.long)
        right_NC = F.one_hot(right_N, n_classes).float()
        return cls.fit_to(texts[::every], right_NC, "one", l2=l2, most_weights=most_weights)

    @classmethod
    def fit_to(
        cls,
        texts: Sequence[Text],
        right_NC: Tensor,
        link: Link,
        *,
        l2: float | None = None,
        most_weights: int = 2_000_000,
    ) -> BagOfWords:
        """Minimises the loss + ½ l2 ‖weights‖², which is scikit-learn's default with l2 = 1.

        A baseline should not take longer than what it is compared with: callers thin a large
        corpus evenly (`thinning`), and of too many features the most frequent are kept, so that it
        takes some seconds at most.
        """
        found = [features(*text) for text in texts]
        counts = Counter(feature for row in found for feature in row)
        n_classes = right_NC.shape[1]
        kept = counts.most_common(max(1, most_weights // n_classes))
        numbers = {name: i for i, (name, _) in enumerate(kept)}
        bag = cls(numbers, torch.zeros(max(1, len(numbers)), n_classes), torch.zeros(n_classes))
        l2 = L2[link] if l2 is None else l2
        return cls(numbers, *fit_linear(bag._rows(found), right_NC, link, l2=l2))

    @torch.no_grad()
    def scores(self, texts: Sequence[Text]) -> Tensor:
        """Logits, or numbers (N C)."""
        rows = self._rows([features(*text) for text in texts])
        return rows.scores(self.weight_FC, self.bias_C)

    def log_probs(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Log-probabilities of classes (N C)."""
        found: NDArray[np.float64] = self.scores(texts).double().log_softmax(-1).numpy()
        return found

    def guesses(self, texts: Sequence[Text]) -> NDArray[np.int64]:
        return self.log_probs(texts).argmax(1)

    def _rows(self, found: Sequence[Sequence[str]]) -> Sparse:
        """The known features of all texts."""
        known = [[self.numbers[f] for f in row if f in self.numbers] for row in found]
        starts = np.cumsum([0, *(len(row) for row in known[:-1])]) if known else np.zeros(0)
        flat = torch.tensor([number for row in known for number in row], dtype=torch.long)
        return Sparse(flat, torch.from_numpy(starts.astype(np.int64)), len(self.weight_FC))


def thinning(texts: Sequence[Text], most_characters: int = MOST_CHARACTERS) -> int:
    """Every which text is used where all of them would be too many."""
    return -(-sum(len(a) + len(b) for a, b in texts) // most_characters) or 1


def features(text: str, other: str = "") -> list[str]:
    """Each word and each pair of neighbours once, without case; those of the other text apart."""
    found: dict[str, None] = {}
    for mark, part in (("", text), ("\t", other)):
        words = TOKEN.findall(part.casefold())
        found |= dict.fromkeys(mark + word for word in words)
        found |= dict.fromkeys(f"{mark}{a} {b}" for a, b in pairwise(words))
    return list(found)


NEIGHBOURS = (1, 3, 5, 9, 15)
"""How many are asked: as many as answer best when each of the known texts is asked for in turn."""


@dataclass(frozen=True)
class NearestNeighbours:
    """The class of most of the nearest vectors, the nearer the more."""

    known_KD: NDArray[np.float32]
    labels_K: NDArray[np.int64]
    n_classes: int
    n: int = 1

    @classmethod
    def fit(
        cls, vectors_KD: NDArray[np.floating], labels_K: NDArray[np.integer], n_classes: int
    ) -> NearestNeighbours:
        found = cls(_at_length_one(vectors_KD), np.asarray(labels_K, np.int64), n_classes)
        near_KK = found.known_KD @ found.known_KD.T
        np.fill_diagonal(near_KK, -np.inf)
        right = {
            n: (found._votes(near_KK, n, len(labels_K) - 1) == labels_K).mean() for n in NEIGHBOURS
        }
        return replace(found, n=max(right, key=lambda n: right[n]))

    def guesses(self, vectors_AD: NDArray[np.floating]) -> NDArray[np.int64]:
        near_AK = _at_length_one(vectors_AD) @ self.known_KD.T
        return self._votes(near_AK, self.n, len(self.labels_K))

    def _votes(self, near_AK: NDArray[np.float32], n: int, most: int) -> NDArray[np.int64]:
        """A vote counts from 0, of opposite directions, to 2; of equal classes the first wins."""
        n = min(n, most)
        if n < 1:
            return np.zeros(len(near_AK), np.int64)
        nearest_AN = near_AK.argsort(axis=1, kind="stable")[:, ::-1][:, :n]
        votes_AC = np.zeros((len(near_AK), self.n_classes))
        rows_A1 = np.arange(len(near_AK))[:, None]
        near_AN = np.take_along_axis(near_AK, nearest_AN, axis=1)
        np.add.at(votes_AC, (rows_A1, self.labels_K[nearest_AN]), 1 + near_AN)
        return votes_AC.argmax(1)


def _at_length_one(vectors_ND: NDArray[np.floating]) -> NDArray[np.float32]:
    lengths_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(vectors_ND / np.maximum(lengths_N1, 1e-9), np.float32)


def few_of_each(labels_N: NDArray[np.integer], each: int, seed: int) -> NDArray[np.int64]:
    """So many examples of each class, or all that there are, drawn in one order for all numbers, so
    that fewer are among more."""
    order_N = np.random.default_rng(seed).permutation(len(labels_N))
    drawn = [order_N[labels_N[order_N] == label][:each] for label in np.unique(labels_N)]
    return np.concatenate(drawn)


@dataclass(frozen=True)
class FrequentTags:
    """The tag that each word has most often in training; the most frequent of all for new words."""

    tags: dict[Hashable, int]
    default: int

    @classmethod
    def of(cls, sentences: Iterable[tuple[Sequence[Hashable], Sequence[int]]]) -> FrequentTags:
        counts: defaultdict[Hashable, Counter[int]] = defaultdict(Counter)
        total: Counter[int] = Counter()
        for words, tags in sentences:
            total.update(tags)
            for word, tag in zip(words, tags, strict=True):
                counts[word][tag] += 1
        return cls({word: _top(seen) for word, seen in counts.items()}, _top(total))

    def guess(self, words: Sequence[Hashable]) -> list[int]:
        return [self.tags.get(word, self.default) for word in words]


def _top(counts: Counter[int]) -> int:
    """Of equally frequent ones the smallest number, whatever order they came in."""
    return min(counts, key=lambda tag: (-counts[tag], tag), default=0)
