"""Scores of transcripts (word and character error rates) and of verification (equal error rate).

The counts are those of jiwer, also where several sets of mistakes explain a text equally well.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.settings.listed import listed

Numbers = NDArray[np.float64]

Symbols = NDArray[np.int64]

LARGE = 1 << 22
"""Longer texts, the product of whose lengths is above this, are cut in two to save memory."""

SPACES = re.compile(r"\s\s+")


@dataclass(frozen=True)
class Errors:
    """What must be done to the right texts to get the answered ones."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    """In the right text alone."""

    insertions: int = 0
    """In the answer alone."""

    @property
    def length(self) -> int:
        """Of the right texts."""
        return self.hits + self.substitutions + self.deletions

    @property
    def total(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Mistakes for each word or character that is right; above 1 where more is inserted. Where
        nothing was to be said, the number of insertions."""
        return self.total / self.length if self.length else float(self.insertions)

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


def word_errors(references: Iterable[str], answers: Iterable[str]) -> Errors:
    """Of all texts together; `.rate` is the word error rate."""
    pairs = zip(listed(references), listed(answers), strict=True)
    return sum((errors(words(right), words(answer)) for right, answer in pairs), Errors())


def character_errors(references: Iterable[str], answers: Iterable[str]) -> Errors:
    """The same with characters, spaces among them; `.rate` is the character error rate."""
    pairs = zip(listed(references), listed(answers), strict=True)
    return sum((errors(right.strip(), answer.strip()) for right, answer in pairs), Errors())


def words(text: str) -> list[str]:
    """Between spaces."""
    return [word for word in SPACES.sub(" ", text).strip().split(" ") if word]


def without_case_and_punctuation(text: str) -> str:
    """Lower case, and all that is no letter, digit or mark is a space, but within a word ' and -
    are left out: `Don't` is `dont`. To be applied to both texts, and to be said with the rate."""
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"(?<=\w)['’\-](?=\w)", "", text)
    kept = (c if unicodedata.category(c)[0] in "LNM" else " " for c in text)
    return " ".join("".join(kept).split())


def errors(reference: Sequence[str], answer: Sequence[str]) -> Errors:
    """Of one text, with as few mistakes as possible."""
    numbers = {part: i for i, part in enumerate(dict.fromkeys([*reference, *answer]))}
    right = np.array([numbers[part] for part in reference], dtype=np.int64)
    said = np.array([numbers[part] for part in answer], dtype=np.int64)
    return _errors(right, said, max(len(right), len(said)))


def _errors(right: Symbols, said: Symbols, most: int) -> Errors:
    """Between texts that are known to have no more than `most` mistakes."""
    before = _same(right, said)
    right, said = right[before:], said[before:]
    after = _same(right[::-1], said[::-1])
    right, said = right[: len(right) - after], said[: len(said) - after]
    same = Errors(hits=before + after)
    band = min(len(right), 2 * min(most, max(len(right), len(said))) + 1)
    small = band * len(said) < LARGE or len(right) < 65 or len(said) < 10
    if small and len(right) * len(said) < 4 * LARGE:
        return same + _way_back(_distances(right, said), right, said)
    # Hirschberg's way: where a shortest way crosses the middle of the answer, it is cut in two.
    half = len(said) // 2
    left_I = _last_row(said[:half], right)
    right_I = _last_row(said[half:][::-1], right[::-1])[::-1]
    cut = int((left_I + right_I).argmin())
    return (
        same
        + _errors(right[:cut], said[:half], int(left_I[cut]))
        + _errors(right[cut:], said[half:], int(right_I[cut]))
    )


def _same(a: Symbols, b: Symbols) -> int:
    """How many are equal from the beginning on."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def _distances(right: Symbols, said: Symbols) -> NDArray[np.int32]:
    """Fewest mistakes between the first i of one and the first j of the other (i by j)."""
    return np.array(list(_rows(right, said)), dtype=np.int32)


def _last_row(right: Symbols, said: Symbols) -> NDArray[np.int32]:
    """Between all of one and the first j of the other, without keeping the rest."""
    return deque(_rows(right, said), maxlen=1)[0]


def _rows(right: Symbols, said: Symbols) -> Iterator[NDArray[np.int32]]:
    along = np.arange(len(said) + 1, dtype=np.int32)
    row = along
    yield row
    for i, symbol in enumerate(right):
        new = np.empty_like(row)
        new[0] = i + 1
        new[1:] = np.minimum(row[1:] + 1, row[:-1] + (said != symbol))
        # Insertions: from the left, one more each. With the steps taken off it is a running least.
        row = np.minimum.accumulate(new - along) + along
        yield row


def _way_back(table: NDArray[np.int32], right: Symbols, said: Symbols) -> Errors:
    """One of the shortest ways, from the end: a deletion where it can be, then an insertion where
    the answer cannot do without it, as rapidfuzz, which jiwer uses, chooses."""
    i, j = len(right), len(said)
    hits = substitutions = deletions = insertions = 0
    while i and j:
        if table[i, j] == table[i - 1, j] + 1:
            i, deletions = i - 1, deletions + 1
            continue
        j -= 1
        if j and table[i, j] == table[i - 1, j] - 1:
            insertions += 1
            continue
        i -= 1
        if right[i] == said[j]:
            hits += 1
        else:
            substitutions += 1
    return Errors(hits, substitutions, deletions + i, insertions + j)


class EqualError(NamedTuple):
    rate: float
    """The share of wrong refusals and of wrong acceptances where these are equal, 0 to 1."""

    threshold: float
    """Accepted is what scores at least this."""


class DetPoints(NamedTuple):
    """The trade of one mistake for the other, by rising threshold."""

    threshold: Numbers
    false_accept: Numbers
    false_reject: Numbers


def det_points(scores_N: NDArray[np.floating], same_N: NDArray[np.bool_]) -> DetPoints:
    """For each threshold that makes a difference: the shares of impostors let in and of others
    turned away. The first accepts all, the last none."""
    scores, same = np.asarray(scores_N, dtype=np.float64), np.asarray(same_N, dtype=bool)
    if not same.any() or same.all():
        raise ValueError("both trials of the same and of different speakers are needed")
    order = np.argsort(scores, kind="stable")
    scores, same = scores[order], same[order]
    first = np.flatnonzero(np.concatenate([[True], scores[1:] > scores[:-1]]))
    rejected = np.concatenate([[0], np.cumsum(same)])
    refused = np.concatenate([[0], np.cumsum(~same)])
    below = np.append(first, len(scores))
    thresholds = np.append(scores[first], np.inf)
    return DetPoints(thresholds, 1.0 - refused[below] / refused[-1], rejected[below] / rejected[-1])


def equal_error(scores_N: NDArray[np.floating], same_N: NDArray[np.bool_]) -> EqualError:
    """Where both mistakes are equally frequent, on the straight line between two thresholds."""
    threshold, accept, reject = det_points(scores_N, same_N)
    gap = reject - accept  # rises from −1 to 1
    last = int(np.flatnonzero(gap <= 0)[-1])
    if gap[last] == 0:
        return EqualError(float(reject[last]), float(threshold[last]))
    share = -gap[last] / (gap[last + 1] - gap[last])
    rate = reject[last] + share * (reject[last + 1] - reject[last])
    return EqualError(float(rate), float(threshold[last + (share > 0.5 and last + 2 < len(gap))]))
