"""Convert many texts to arrays of character codes at once, and hash them to 64 bits.

Texts are compared by their hashes, so that the data check needs only a few bytes per line. The
hashes are the same in every process and on every machine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

UInt32Array = NDArray[np.uint32]
UInt64Array = NDArray[np.uint64]
IntArray = NDArray[np.int64]

LONGEST = 10_000
"""Maximum number of characters of a text that its hash covers. The length of the whole text is
hashed, too, so longer texts with the same beginning usually have different hashes."""

_END = 1
"""Code of the end mark after each text: the control character U+0001, which hardly occurs in
texts."""

_UNSEEN = np.uint32(0xFFFFFFFF)
"""Table entry of a character whose case-folded form has not been computed yet."""

_BASE = 0x9E3779B97F4A7C15
"""Multiplier of Fibonacci hashing (Knuth): 2⁶⁴ divided by the golden ratio, rounded to an odd
number."""

_INVERSE = pow(_BASE, -1, 1 << 64)


@dataclass(frozen=True)
class CharacterCodes:
    """Character codes of several texts, concatenated, with an end mark after each text."""

    codes: UInt32Array
    sizes: IntArray
    """Number of character codes of each text, including its end mark. Long texts are cut."""

    lengths: IntArray
    """Number of characters of each text before it was cut."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> CharacterCodes:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        cut = [text[:LONGEST] for text in texts] if lengths.max(initial=0) > LONGEST else texts
        mark = chr(_END)
        together = np.frombuffer((mark.join(cut) + mark).encode("utf-32-le"), "<u4")
        return cls(together, np.minimum(lengths, LONGEST) + 1, lengths)

    @cached_property
    def starts(self) -> IntArray:
        return np.cumsum(self.sizes) - self.sizes

    def hashes(self) -> UInt64Array:
        """Return a hash of each text. Different texts have the same hash with a probability of
        about 1 in 2^64.

        The hash is a polynomial in the character codes. The powers of its base increase over all
        texts, so each sum is divided by the power at which its text begins. The division is
        possible because odd numbers have inverses modulo 2^64.
        """
        powers = _powers(_BASE, len(self.codes))
        sums = np.add.reduceat(self.codes * powers[: len(self.codes)], self.starts)
        sums *= _powers(_INVERSE, len(self.codes))[self.starts]
        return mix_bits(sums ^ mix_bits(self.lengths.astype(np.uint64)))

    def folded(self) -> CharacterCodes:
        """Return the texts case-folded and without punctuation, white space and control
        characters."""
        codes = _FOLD.apply(self.codes)
        # End marks are found by position, because a text may contain the same control character.
        codes[self.starts + self.sizes - 1] = _END
        kept = codes != 0
        sizes = np.add.reduceat(kept, self.starts, dtype=np.int64)
        return CharacterCodes(codes[kept], sizes, sizes - 1)


@lru_cache(maxsize=4)
def _powers_up_to(base: int, bits: int) -> UInt64Array:
    powers = np.full(1 << bits, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers)


def _powers(base: int, n: int) -> UInt64Array:
    """Return the first n powers of `base`, or more. The number is rounded up to a power of two, so
    that the cache holds few arrays."""
    return _powers_up_to(base, max(16, (n - 1).bit_length()))


def mix_bits(numbers: UInt64Array) -> UInt64Array:
    """Return the numbers with their bits mixed, so that they fill all 64 bits evenly (finalizer of
    SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def fold_hashes(texts: CharacterCodes, folded: CharacterCodes | None = None) -> UInt64Array:
    """Return a hash of each text that ignores its case and punctuation. Texts that consist only of
    punctuation are hashed unchanged."""
    folded = texts.folded() if folded is None else folded
    hashes = folded.hashes()
    bare = folded.lengths == 0
    return np.where(bare, texts.hashes(), hashes) if bare.any() else hashes


class _FoldTable:
    """Table of the case-folded form of each character, filled on demand. 0 means that the character
    is dropped."""

    def __init__(self) -> None:
        self._table = np.full(0x110000, _UNSEEN, np.uint32)

    def apply(self, codes: UInt32Array) -> UInt32Array:
        found = self._table[codes]
        if (found == _UNSEEN).any():
            for code in np.unique(codes[found == _UNSEEN]).tolist():
                self._table[code] = _folded(chr(code))
            found = self._table[codes]
        return found


def _folded(character: str) -> int:
    category = unicodedata.category(character)
    if category[0] in "PZC" or category == "Sk":  # Sk: accents used as apostrophes
        return 0
    lower = character.casefold()
    return ord(lower if len(lower) == 1 else character)


_FOLD = _FoldTable()
