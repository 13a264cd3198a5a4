"""Cache of token ids by word, which makes the tokenization of a corpus several times faster.

On one core, `python -m benchmarks.shortcuts` measures a factor of ten for short lines whose words
recur. Texts that cannot be split at spaces are encoded whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
IntArray = NDArray[np.int64]

MAX_WORD = 64
"""Maximum number of characters of a cached word. Longer words rarely recur."""


class FlatIds(NamedTuple):
    """Concatenated token ids of several texts, and the number of ids of each text."""

    ids: Int32Array
    lengths: IntArray

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> FlatIds:
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        ids = np.fromiter(chain.from_iterable(sequences), np.int32, int(lengths.sum()))
        return cls(ids, lengths)

    def rows(self, wanted: NDArray[np.bool_]) -> FlatIds:
        return FlatIds(self.ids[np.repeat(wanted, self.lengths)], self.lengths[wanted])

    def with_rows(self, places: NDArray[np.bool_], others: FlatIds) -> FlatIds:
        """Return the ids with those of `others` inserted at the marked texts, which must be
        empty."""
        lengths = self.lengths.copy()
        lengths[places] = others.lengths
        theirs = np.repeat(places, lengths)
        ids = np.empty(len(theirs), np.int32)
        ids[theirs], ids[~theirs] = others.ids, self.ids
        return FlatIds(ids, lengths)

    def lists(self) -> list[list[int]]:
        ids, ends = self.ids.tolist(), np.cumsum(self.lengths).tolist()
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]


class _Places(dict[str, int]):
    """Index of each word in the `WordTable`; -1 for an unknown word."""

    def __missing__(self, word: str) -> int:
        return -1


class WordTable:
    """Token ids of all words that `learn` has stored. Safe to use from several threads."""

    def __init__(self) -> None:
        self.places = _Places()
        self.ids: Int32Array = np.zeros(0, np.int32)
        self.starts: IntArray = np.zeros(0, np.int64)
        self.lengths: IntArray = np.zeros(0, np.int64)
        self._lock = Lock()

    def learn(
        self,
        words: Iterable[str],
        encode: Callable[[Sequence[str]], FlatIds],
        fit: Callable[[str], bool],
    ) -> None:
        """Encode and store the words that are short enough and for which `fit` returns True."""
        new = [word for word in words if 0 < len(word) <= MAX_WORD and fit(word)]
        if not new:
            return
        ids, lengths = encode(new)
        with self._lock:
            first = len(self.starts)
            starts = np.cumsum(lengths) - lengths + len(self.ids)
            self.ids = np.concatenate([self.ids, ids])
            self.starts = np.concatenate([self.starts, starts])
            self.lengths = np.concatenate([self.lengths, lengths])
            # The index is updated last, so that ids are available for every word in it.
            self.places.update({word: first + i for i, word in enumerate(new)})

    def find(self, words: Sequence[str]) -> IntArray:
        """Return the index of each word; -1 for unknown words."""
        return np.fromiter(map(self.places.__getitem__, words), np.int64, len(words))

    def look_up(self, place: IntArray, sizes: IntArray) -> tuple[FlatIds, NDArray[np.bool_]]:
        """Return the ids of texts, and for each text whether it contains an unknown word.

        `place`: indices of all words, as returned by `find`. `sizes`: number of words of each text.
        Texts with an unknown word get no ids.
        """
        starts = np.cumsum(sizes) - sizes
        unknown = np.minimum.reduceat(place, starts) < 0
        place = np.maximum(place, 0) if unknown.any() else place
        lengths = self.lengths[place]
        if unknown.any():
            lengths[np.repeat(unknown, sizes)] = 0
        shift = self.starts[place] - (np.cumsum(lengths) - lengths)
        index = np.repeat(shift, lengths)
        index += np.arange(len(index))
        return FlatIds(self.ids[index], np.add.reduceat(lengths, starts)), unknown
