"""What one gets for nothing: scores that a model has to beat before it has learned anything.

The majority class, logistic regression on words and pairs of words, the most frequent tag of each
word. Small enough to be trained beside every evaluation, and deterministic.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

TOKEN = re.compile(r"\w+|[^\w\s]")

Text = tuple[str, str]
"""A text and its other half, which is empty where there are no pairs."""


def majority(labels_N: NDArray[np.integer], n_classes: int) -> int:
    """The most frequent class; of equally frequent ones the first."""
    return int(np.bincount(labels_N, minlength=n_classes).argmax())


@dataclass(frozen=True)
class BagOfWords:
    """Logistic regression on which words and which pairs of neighbouring words a text has."""

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
        most_characters: int = 4_000_000,
        most_weights: int = 2_000_000,
    ) -> BagOfWords:
        """Minimises Σ −log p + ½ l2 ‖weights‖², which is scikit-learn's default with l2 = 1.

        This is a yardstick, and a yardstick should not take longer than what it measures: a larger
        corpus is thinned evenly, and of too many features the most frequent are kept, so that it
        takes some seconds at most.
        """
        every = -(-sum(len(a) + len(b) for a, b in texts) // most_characters) or 1
        found = [features(*text) for text in texts[::every]]
        targets = torch.tensor(list(labels[::every]), dtype=torch.long)
        counts = Counter(feature for row in found for feature in row)
        kept = counts.most_common(max(1, most_weights // n_classes))
        numbers = {name: i for i, (name, _) in enumerate(kept)}
        bag = cls(numbers, torch.zeros(max(1, len(numbers)), n_classes), torch.zeros(n_classes))
        flat, starts = bag._rows(found)
        # Which texts have each feature: the gradient is a sum over these.
        order = flat.argsort(stable=True)
        ends = torch.tensor([*starts[1:].tolist(), len(flat)])
        text_of = torch.repeat_interleave(torch.arange(len(found)), ends - starts)[order]
        firsts = torch.searchsorted(flat[order], torch.arange(len(bag.weight_FC)))
        right_NC = F.one_hot(targets, n_classes).float()
        optimizer = torch.optim.LBFGS(
            [bag.weight_FC.requires_grad_(), bag.bias_C.requires_grad_()],
            max_iter=60, history_size=6, line_search_fn="strong_wolfe",
        )  # fmt: skip

        @torch.no_grad()
        def loss() -> float:
            """And its gradient, by hand: in a small part of the time that autograd takes."""
            logs_NC = bag._scores(flat, starts).log_softmax(-1)
            wrong_NC = logs_NC.exp() - right_NC
            sums_FC = F.embedding_bag(text_of, wrong_NC, firsts, mode="sum")
            bag.weight_FC.grad = (sums_FC + l2 * bag.weight_FC) / len(targets)
            bag.bias_C.grad = wrong_NC.sum(0) / len(targets)
            nll = -(logs_NC * right_NC).sum()
            return float((nll + 0.5 * l2 * bag.weight_FC.square().sum()) / len(targets))

        optimizer.step(loss)
        return cls(numbers, bag.weight_FC.detach(), bag.bias_C.detach())

    @torch.no_grad()
    def log_probs(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        scores_NC = self._scores(*self._rows([features(*text) for text in texts]))
        return scores_NC.double().log_softmax(-1).numpy()

    def guesses(self, texts: Sequence[Text]) -> NDArray[np.int64]:
        return self.log_probs(texts).argmax(1)

    def _rows(self, found: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """The numbers of the known features of all texts, and where each text begins."""
        known = [[self.numbers[f] for f in row if f in self.numbers] for row in found]
        starts = np.cumsum([0, *(len(row) for row in known[:-1])]) if known else np.zeros(0)
        flat = [number for row in known for number in row]
        return torch.tensor(flat, dtype=torch.long), torch.from_numpy(starts.astype(np.int64))

    def _scores(self, flat: Tensor, starts: Tensor) -> Tensor:
        return F.embedding_bag(flat, self.weight_FC, starts, mode="sum") + self.bias_C


def features(text: str, other: str = "") -> list[str]:
    """Each word and each pair of neighbours once, without case; those of the other text apart."""
    found: dict[str, None] = {}
    for mark, part in (("", text), ("\t", other)):
        words = TOKEN.findall(part.casefold())
        found |= dict.fromkeys(mark + word for word in words)
        found |= dict.fromkeys(f"{mark}{a} {b}" for a, b in pairwise(words))
    return list(found)


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
