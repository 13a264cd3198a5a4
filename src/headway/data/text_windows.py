"""Token sequences for labelled examples: texts between special tokens, cut into overlapping windows
if they are long.

A reading is one non-empty sequence that the model reads. A single text is read as `<s> a </s>`, or
with the special tokens of its published tokenizer. A pair is read as `<s> a </s> b </s>`, with two
end tokens in the middle for tokenizers such as RoBERTa's.

An example longer than the context is divided into several readings. For a pair, the longer text is
cut, and the shorter text is in every reading. For tagged words, each word is predicted in the
reading in which it is farthest from the cuts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headway.data.batches import IntArray
from headway.data.token_store import TokenStore
from headway.errors import DataError

EndTokens = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of the special tokens before and after a text."""


class FlatSequences(NamedTuple):
    """Concatenated token sequences (readings) with their lengths."""

    tokens: IntArray
    lengths: IntArray
    segments: IntArray
    """Segment id of each token. In a text pair, 1 for the second text with its end token, otherwise
    0. For tagged words, the word shape (letter case)."""


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Builds token sequences (readings) of at most `max_len` tokens from texts or text pairs."""

    text: TokenStore
    other: TokenStore | None
    bos: int
    eos: int
    max_len: int
    pair_ends: int = 1
    """Number of end tokens between the texts of a pair. With more than one, all tokens have segment
    0."""

    ends: EndTokens | None = None
    """Ids of the special tokens around a text; None: `bos` and `eos`. They apply to pairs only if
    `between` is given."""

    between: tuple[int, ...] | None = None
    """Ids of the special tokens between the texts of a pair; None: `pair_ends` times `eos`."""

    @property
    def around(self) -> EndTokens:
        usual = (self.bos,), (self.eos,)
        is_usual = self.ends is None or (self.other is not None and self.between is None)
        return usual if is_usual or self.ends is None else self.ends

    @property
    def middle(self) -> tuple[int, ...]:
        """Ids of the special tokens between the texts of a pair; empty for single texts."""
        if self.other is None:
            return ()
        return (self.eos,) * self.pair_ends if self.between is None else self.between

    @property
    def n_special(self) -> int:
        return sum(map(len, (*self.around, self.middle)))

    @cached_property
    def windows(self) -> tuple[IntArray, IntArray, IntArray]:
        """Windows of all examples. Three arrays give, for each reading, the index of its example,
        its start in the longer text, and the number of its tokens from that text."""
        long, short = self._long, self._short
        room = self.max_len - self.n_special - short
        bad = np.flatnonzero((long > room) & (room < np.maximum(1, self.max_len // 8)))
        if len(bad):
            raise DataError(
                f"both texts of pair {bad[0] + 1:,} are too long: the shorter one has "
                f"{short[bad[0]]:,} tokens, but the model accepts at most {self.max_len:,} "
                "for both. Increase model.max_len, or shorten one of the texts."
            )
        return overlapping(long, np.maximum(room, 1))

    @cached_property
    def full_lengths(self) -> IntArray:
        """Number of tokens that each example would have without a limit."""
        return np.maximum(1, self._long + self._short + self.n_special)

    @property
    def example(self) -> IntArray:
        return self.windows[0]

    @cached_property
    def lengths(self) -> IntArray:
        """Number of tokens of each reading, including special tokens."""
        example, _, size = self.windows
        return np.maximum(1, size + self._short[example] + self.n_special)

    @cached_property
    def _long(self) -> IntArray:
        if self.other is not None:
            return np.maximum(*self._sides)
        return self.text.lengths.astype(np.int64)

    @cached_property
    def _short(self) -> IntArray:
        return np.zeros_like(self._long) if self.other is None else np.minimum(*self._sides)

    @cached_property
    def _sides(self) -> tuple[IntArray, IntArray]:
        assert self.other is not None
        return self.text.lengths.astype(np.int64), self.other.lengths.astype(np.int64)

    def read(self, rows: IntArray) -> FlatSequences:
        """Return the readings with these indices."""
        example, start, size = (part[rows] for part in self.windows)
        lengths = self.lengths[rows]
        at = np.cumsum(lengths) - lengths
        tokens = _between(self.around, self.bos, lengths)
        segments = np.zeros_like(tokens)
        if self.other is None:
            first = at + len(self.around[0])
            _put(tokens, first, self.text, self.text.offsets[example] + start, size)
            return FlatSequences(tokens, lengths, segments)
        first, second = self._sides[0][example], self._sides[1][example]
        cut_first = first >= second
        from_first = self.text.offsets[example] + np.where(cut_first, start, 0)
        from_second = self.other.offsets[example] + np.where(cut_first, 0, start)
        first, second = np.where(cut_first, size, first), np.where(cut_first, second, size)
        before, behind = self.around
        begin = at + len(before)
        _put(tokens, begin, self.text, from_first, first)
        for place, token in enumerate(self.middle):
            tokens[begin + first + place] = token
        begin_second = begin + first + len(self.middle)
        _put(tokens, begin_second, self.other, from_second, second)
        if self.pair_ends == 1:
            segments[ranges(begin_second, second + len(behind))] = 1
        return FlatSequences(tokens, lengths, segments)


@dataclass(frozen=True, kw_only=True)
class WordReader:
    """Builds token sequences (readings) of at most `max_len` tokens from sentences of words.

    A word may take at most a quarter of a reading. Further tokens of it are cut off, because its
    tag is predicted at its first token.
    """

    text: TokenStore
    pieces: TokenStore
    """Number of tokens of each word, for each sentence."""

    bos: int
    eos: int
    max_len: int
    ends: EndTokens | None = None
    """Ids of the special tokens around a sentence; None: `bos` and `eos`."""

    shapes: TokenStore | None = None
    """Shape (letter case) of each word, for each sentence. In readings it is repeated for all
    tokens of a word. Special tokens have shape 0. None: there are no shapes."""

    @property
    def around(self) -> EndTokens:
        return ((self.bos,), (self.eos,)) if self.ends is None else self.ends

    @property
    def n_special(self) -> int:
        return sum(map(len, self.around))

    @cached_property
    def windows(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Windows of all sentences. For each reading, five arrays give the index of its sentence,
        the start and end of its words, and the start and end of the words whose tags it predicts.
        Ends are exclusive."""
        sizes, room = self._sizes, max(1, self.max_len - self.n_special)
        ends = np.cumsum(sizes)
        found: list[tuple[int, int, int, int, int]] = []
        offsets = self.pieces.offsets
        total = np.diff(np.concatenate([[0], ends])[offsets])
        for sentence in range(len(offsets) - 1):
            n = int(offsets[sentence + 1] - offsets[sentence])
            if total[sentence] <= room:
                found.append((sentence, 0, n, 0, n))
            else:
                words = sizes[offsets[sentence] : offsets[sentence + 1]]
                found += [(sentence, *cut) for cut in word_windows(words, room)]
        columns = np.array(found, dtype=np.int64).reshape(-1, 5).T
        return columns[0], columns[1], columns[2], columns[3], columns[4]

    @cached_property
    def lengths(self) -> IntArray:
        sentence, first, last, _, _ = self.windows
        ends = np.concatenate([[0], np.cumsum(self._sizes)])
        at = self.pieces.offsets[sentence]
        return np.maximum(1, ends[at + last] - ends[at + first] + self.n_special)

    @property
    def n_words(self) -> IntArray:
        """Number of words in each reading whose tags are predicted."""
        _, _, _, first, last = self.windows
        return last - first

    @cached_property
    def words(self) -> TokenStore:
        """Indices of the words in each reading whose tags are predicted. Words are counted over all
        sentences."""
        sentence, _, _, first, last = self.windows
        at = self.pieces.offsets[sentence]
        return TokenStore(ranges(at + first, last - first), last - first)

    @cached_property
    def _sizes(self) -> IntArray:
        return np.minimum(self.pieces.tokens, self._most).astype(np.int64)

    @property
    def _most(self) -> int:
        return max(1, (self.max_len - self.n_special) // 4)

    @cached_property
    def cut_words(self) -> int:
        """Number of words that are too long and lose tokens."""
        return int((self.pieces.tokens > self._most).sum())

    def read(self, rows: IntArray) -> tuple[FlatSequences, IntArray, IntArray]:
        """Return the readings with these indices, the position of the first token of each predicted
        word, and the number of predicted words in each reading."""
        sentence, first, last, own_first, own_last = (part[rows] for part in self.windows)
        lengths = self.lengths[rows]
        at = np.cumsum(lengths) - lengths
        offset = self.pieces.offsets[sentence]
        words = ranges(offset + first, last - first)
        sizes, whole = self._sizes[words], self._starts
        counts = last - first
        # A word begins after the special tokens and after the tokens of earlier words in the
        # reading.
        ends = np.cumsum(sizes)
        before = np.concatenate([[0], ends])[np.cumsum(counts) - counts]
        place = ends - sizes - np.repeat(before, counts) + np.repeat(at, counts)
        place += len(self.around[0])
        tokens = _between(self.around, self.bos, lengths)
        _put(tokens, place, self.text, whole[words], sizes)
        segments = np.zeros_like(tokens)
        if self.shapes is not None:
            segments[ranges(place, sizes)] = np.repeat(self.shapes.tokens[words], sizes)
        own = ranges(np.cumsum(counts) - counts + own_first - first, own_last - own_first)
        return FlatSequences(tokens, lengths, segments), place[own], own_last - own_first

    @cached_property
    def _starts(self) -> IntArray:
        """Position of the first token of each word, counted over all sentences."""
        all_sizes = np.asarray(self.pieces.tokens, dtype=np.int64)
        return np.cumsum(all_sizes) - all_sizes


def overlapping(lengths: IntArray, room: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the windows of sequences: index of the sequence, start and length.

    A window has at most `room` tokens and overlaps half of the previous window. A sequence that
    fits is one window.
    """
    stride = np.maximum(1, room // 2)
    counts = 1 + np.maximum(0, -(-(lengths - room) // stride))
    owner = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    size = np.minimum(lengths, room)
    # The last window ends at the end of its sequence.
    start = np.minimum(number * stride[owner], (lengths - size)[owner])
    return owner, start, size[owner]


def word_windows(sizes: IntArray, room: int) -> list[tuple[int, int, int, int]]:
    """Return for each window of a sentence the start and end of its words, and the start and end of
    the words that it predicts.

    A window has as many words as fit in `room` tokens and starts in the middle of the previous
    window. Two windows each predict half of the words that they share. `sizes`: number of tokens of
    each word.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    reads: list[tuple[int, int]] = []
    first, n = 0, len(sizes)
    while True:
        last = int(np.searchsorted(ends, ends[first] + room, side="right")) - 1
        last = min(n, max(last, first + 1))
        reads.append((first, last))
        if last == n:
            break
        half = int(np.searchsorted(ends, (ends[first] + ends[last]) // 2, side="left"))
        first = min(max(half, first + 1), last)
    borders = [0]
    borders += [(after[0] + before[1]) // 2 for before, after in pairwise(reads)]
    borders.append(n)
    return [(*read, own, end) for read, (own, end) in zip(reads, pairwise(borders), strict=True)]


def ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the concatenated ranges with these starts and lengths: `start, start + 1, …` for
    each."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)


def _between(ends: EndTokens, bos: int, lengths: IntArray) -> IntArray:
    """Return readings that contain special tokens at both ends, and `bos` as a placeholder
    elsewhere."""
    tokens = np.full(int(lengths.sum()), bos, dtype=np.int64)
    last = np.cumsum(lengths)
    for place, token in enumerate(ends[0]):
        tokens[last - lengths + place] = token
    for place, token in enumerate(reversed(ends[1]), 1):
        tokens[last - place] = token
    return tokens


def _put(
    into: IntArray, at: IntArray, tokens: TokenStore, starts: IntArray, lengths: IntArray
) -> None:
    into[ranges(at, lengths)] = tokens.tokens[ranges(starts, lengths)]
