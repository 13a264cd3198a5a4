"""Many texts at once as arrays of characters, and 64-bit hashes of them.

The hashes stand in for the texts wherever texts are compared, so that a corpus takes a few bytes a
line. They are the same in every process and on every machine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint32]
Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]

LONGEST = 10_000
"""Characters of a text that are looked at; the length of the whole goes into its hash."""

_END = 1
_UNSEEN = np.uint32(0xFFFFFFFF)
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


@dataclass(frozen=True)
class Texts:
    """The characters of some texts, one after another, each followed by a mark of its end."""

    codes: Codes
    sizes: Numbers
    """Characters of each text here, with the mark."""

    lengths: Numbers
    """Characters of each text as it was given."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        cut = [text[:LONGEST] for text in texts] if lengths.max(initial=0) > LONGEST else texts
        mark = chr(_END)
        together = np.frombuffer((mark.join(cut) + mark).encode("utf-32-le"), "<u4")
        return cls(together, np.minimum(lengths, LONGEST) + 1, lengths)

    @cached_property
    def starts(self) -> Numbers:
        return np.cumsum(self.sizes) - self.sizes

    def hashes(self) -> Hashes:
        """Equal for equal texts; for others only by an accident of one in 2^64.

        A polynomial in the characters: with powers that run on over all texts, each sum divided
        by the power that its text begins with. 2^64 is the modulus, and odd numbers have inverses.
        """
        powers = _powers(_BASE, len(self.codes))
        sums = np.add.reduceat(self.codes * powers[: len(self.codes)], self.starts)
        sums *= _powers(_INVERSE, len(self.codes))[self.starts]
        return mixed(sums ^ mixed(self.lengths.astype(np.uint64)))

    def folded(self) -> Texts:
        """Without case, punctuation, blanks and control characters."""
        codes = _FOLD.apply(self.codes)
        # The marks are found by their place: the text may hold the same control character.
        codes[self.starts + self.sizes - 1] = _END
        kept = codes != 0
        sizes = np.add.reduceat(kept, self.starts, dtype=np.int64)
        return Texts(codes[kept], sizes, sizes - 1)


@lru_cache(maxsize=4)
def _powers_up_to(base: int, bits: int) -> Hashes:
    powers = np.full(1 << bits, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers)


def _powers(base: int, n: int) -> Hashes:
    """1, base, base², …: at least n of them. Their number grows by doubling, and they are kept."""
    return _powers_up_to(base, max(16, (n - 1).bit_length()))


def mixed(numbers: Hashes) -> Hashes:
    """Spread numbers over all 64 bits (the finaliser of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def fold_hashes(texts: Texts, folded: Texts | None = None) -> Hashes:
    """Hashes that do not see case and punctuation, but for texts that are nothing else."""
    folded = texts.folded() if folded is None else folded
    hashes = folded.hashes()
    bare = folded.lengths == 0
    return np.where(bare, texts.hashes(), hashes) if bare.any() else hashes


class _FoldTable:
    """What each character folds to; 0 for one that is dropped. Filled as characters come up."""

    def __init__(self) -> None:
        self._table = np.full(0x110000, _UNSEEN, np.uint32)

    def apply(self, codes: Codes) -> Codes:
        found = self._table[codes]
        if (found == _UNSEEN).any():
            for code in np.unique(codes[found == _UNSEEN]).tolist():
                self._table[code] = _folded(chr(code))
            found = self._table[codes]
        return found


def _folded(character: str) -> int:
    category = unicodedata.category(character)
    if category[0] in "PZC" or category == "Sk":  # Sk: accents that stand for apostrophes
        return 0
    lower = character.casefold()
    return ord(lower if len(lower) == 1 else character)


_FOLD = _FoldTable()
