"""Word and character error rates of transcripts, and the equal error rate of speaker verification.

Error counts equal those of jiwer, even if several alignments have the same number of errors.
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

from headway.settings.listed import ensure_list

FloatArray = NDArray[np.float64]

IntArray = NDArray[np.int64]

LARGE = 1 << 22
"""Maximum number of cells of an alignment table, of four bytes each. A larger alignment is split in
two to save memory."""

SPACES = re.compile(r"\s\s+")


@dataclass(frozen=True)
class EditCounts:
    """Numbers of edit operations that convert references to outputs."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    """Number of words or characters that occur only in the reference."""

    insertions: int = 0
    """Number of words or characters that occur only in the output."""

    @property
    def length(self) -> int:
        """Total length of the references in words or characters."""
        return self.hits + self.substitutions + self.deletions

    @property
    def total(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Number of errors per word or character of the references, which may exceed 1. If the
        references are empty, the number of insertions."""
        return self.total / self.length if self.length else float(self.insertions)

    def __add__(self, other: EditCounts) -> EditCounts:
        return EditCounts(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


def word_errors(references: Iterable[str], answers: Iterable[str]) -> EditCounts:
    """Count the word errors of all texts together. The `rate` of the result is the word error rate
    (WER)."""
    pairs = zip(ensure_list(references), ensure_list(answers), strict=True)
    return sum((errors(words(right), words(answer)) for right, answer in pairs), EditCounts())


def character_errors(references: Iterable[str], answers: Iterable[str]) -> EditCounts:
    """Count the character errors of all texts together, including spaces. The `rate` of the result
    is the character error rate (CER)."""
    pairs = zip(ensure_list(references), ensure_list(answers), strict=True)
    return sum((errors(right.strip(), answer.strip()) for right, answer in pairs), EditCounts())


def words(text: str) -> list[str]:
    """Split a text into words at spaces."""
    return [word for word in SPACES.sub(" ", text).strip().split(" ") if word]


def without_case_and_punctuation(text: str) -> str:
    """Return a text in lower case and without punctuation, for error rates that ignore both.

    Apostrophes and hyphens within a word are deleted (`Don't` becomes `dont`). Any other character
    that is not a letter, digit or combining mark becomes a space. Apply the function to references
    and outputs, and mention it with the error rate.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    text = re.sub(r"(?<=\w)['’\-](?=\w)", "", text)
    kept = (c if unicodedata.category(c)[0] in "LNM" else " " for c in text)
    return " ".join("".join(kept).split())


def errors(reference: Sequence[str], answer: Sequence[str]) -> EditCounts:
    """Count the errors of one text, in an alignment with the fewest errors."""
    numbers = {part: i for i, part in enumerate(dict.fromkeys([*reference, *answer]))}
    right = np.array([numbers[part] for part in reference], dtype=np.int64)
    said = np.array([numbers[part] for part in answer], dtype=np.int64)
    return _errors(right, said, max(len(right), len(said)))


def _errors(right: IntArray, said: IntArray, most: int) -> EditCounts:
    """Count the errors between two texts. `most`: upper bound on the number of errors, which limits
    the size of the alignment table."""
    before = _common_prefix(right, said)
    right, said = right[before:], said[before:]
    after = _common_prefix(right[::-1], said[::-1])
    right, said = right[: len(right) - after], said[: len(said) - after]
    same = EditCounts(hits=before + after)
    band = min(len(right), 2 * min(most, max(len(right), len(said))) + 1)
    small = band * len(said) < LARGE or len(right) < 65 or len(said) < 10
    if small and len(right) * len(said) < 4 * LARGE:
        return same + _backtrace(_distances(right, said), right, said)
    # Hirschberg's algorithm: split where a shortest path crosses the middle of the output.
    half = len(said) // 2
    left_I = _last_row(said[:half], right)
    right_I = _last_row(said[half:][::-1], right[::-1])[::-1]
    cut = int((left_I + right_I).argmin())
    return (
        same
        + _errors(right[:cut], said[:half], int(left_I[cut]))
        + _errors(right[cut:], said[half:], int(right_I[cut]))
    )


def _common_prefix(a: IntArray, b: IntArray) -> int:
    """Return the length of the common prefix of two sequences."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def _distances(right: IntArray, said: IntArray) -> NDArray[np.int32]:
    return np.array(list(_rows(right, said)), dtype=np.int32)


def _last_row(right: IntArray, said: IntArray) -> NDArray[np.int32]:
    return deque(_rows(right, said), maxlen=1)[0]


def _rows(right: IntArray, said: IntArray) -> Iterator[NDArray[np.int32]]:
    along = np.arange(len(said) + 1, dtype=np.int32)
    row = along
    yield row
    for i, symbol in enumerate(right):
        new = np.empty_like(row)
        new[0] = i + 1
        new[1:] = np.minimum(row[1:] + 1, row[:-1] + (said != symbol))
        # Each insertion adds 1 from left to right, so subtract the index and take a running
        # minimum.
        row = np.minimum.accumulate(new - along) + along
        yield row


def _backtrace(table: NDArray[np.int32], right: IntArray, said: IntArray) -> EditCounts:
    """Count the errors along one of the shortest paths, from its end.

    Deletions are preferred, and insertions are taken only where necessary. The library rapidfuzz,
    which jiwer uses, does the same.
    """
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
    return EditCounts(hits, substitutions, deletions + i, insertions + j)


class EqualError(NamedTuple):
    rate: float
    """Equal error rate, from 0 to 1: the false rejection rate at the threshold where it equals the
    false acceptance rate."""

    threshold: float
    """Threshold at the equal error rate. Trials with at least this score are accepted."""


class DetPoints(NamedTuple):
    """Detection error tradeoff (DET) curve: false acceptance and false rejection rates at rising
    thresholds."""

    threshold: FloatArray
    false_accept: FloatArray
    false_reject: FloatArray


def det_points(scores_N: NDArray[np.floating], same_N: NDArray[np.bool_]) -> DetPoints:
    """Return the false acceptance and false rejection rates at every distinct threshold. The first
    threshold accepts all trials, the last none."""
    scores, same = np.asarray(scores_N, dtype=np.float64), np.asarray(same_N, dtype=bool)
    if not same.any() or same.all():
        raise ValueError(
            "the equal error rate needs trials of the same speaker and trials of different speakers"
        )
    order = np.argsort(scores, kind="stable")
    scores, same = scores[order], same[order]
    first = np.flatnonzero(np.concatenate([[True], scores[1:] > scores[:-1]]))
    rejected = np.concatenate([[0], np.cumsum(same)])
    refused = np.concatenate([[0], np.cumsum(~same)])
    below = np.append(first, len(scores))
    thresholds = np.append(scores[first], np.inf)
    return DetPoints(thresholds, 1.0 - refused[below] / refused[-1], rejected[below] / rejected[-1])


def equal_error(scores_N: NDArray[np.floating], same_N: NDArray[np.bool_]) -> EqualError:
    """Return the equal error rate, with linear interpolation between two thresholds."""
    threshold, accept, reject = det_points(scores_N, same_N)
    gap = reject - accept  # rises from −1 to 1
    last = int(np.flatnonzero(gap <= 0)[-1])
    if gap[last] == 0:
        return EqualError(float(reject[last]), float(threshold[last]))
    share = -gap[last] / (gap[last + 1] - gap[last])
    rate = reject[last] + share * (reject[last + 1] - reject[last])
    return EqualError(float(rate), float(threshold[last + (share > 0.5 and last + 2 < len(gap))]))
