"""Text preparation of SentencePiece: its character table (charsmap) and its rules for spaces.

`tokenizers` looks up whole graphemes of up to five bytes, and else single characters. SentencePiece
takes the longest match from left to right. The results differ for letters with several marks,
Hangul in single letters and similar texts. This module does it as SentencePiece does.

The table is a double-array trie (of darts-clone) with UTF-8 keys. Its values are offsets into a
block of zero-terminated texts. NFKC has 225,000 keys in 60,000 units, so it is used unconverted.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headway.errors import DataError
from headway.tokens.pieces import SPACE_MARK

IntArray = NDArray[np.int64]

MAX_EDGES = 1_000_000
"""Limit on transitions by one character over the whole trie; NFKC has a tenth of that."""

REMEMBERED = 1 << 16
BLANKS = re.compile(" {2,}")
NOTHING = "(?!)"


@dataclass(frozen=True, kw_only=True)
class SpmNormalization:
    """Settings of SentencePiece's text preparation, besides the character table."""

    dummy_prefix: bool = True
    """A space is put before the text."""

    one_blank: bool = True
    """Runs of spaces become one, and spaces at both ends are removed."""

    # Done first by the program of ALBERT.
    quotes: bool = False
    """Doubled quotation marks become one character."""

    strip_accents: bool = False
    lowercase: bool = False

    def __call__(self, text: str, charsmap: Charsmap, *, with_prefix: bool = True) -> str:
        """Return the text in which pieces are looked up: with `▁` for each space."""
        if not text:
            return ""
        seen = charsmap(self._folded(text))
        if self.one_blank:
            seen = BLANKS.sub(" ", seen).strip(" ")
        seen = seen.replace(" ", SPACE_MARK)
        if self.dummy_prefix and with_prefix:
            seen = SPACE_MARK + seen
        # SentencePiece too removes a mark that the text itself ends with.
        return seen.rstrip(SPACE_MARK) if self.one_blank else seen

    def _folded(self, text: str) -> str:
        if self.quotes:
            text = text.replace("``", '"').replace("''", '"')
        if self.strip_accents:
            text = unicodedata.normalize("NFKD", text)
            text = "".join(c for c in text if not unicodedata.category(c).startswith("M"))
        return "".join(c.lower() for c in text) if self.lowercase else text


class Charsmap:
    """Replacement of characters by a table. Texts in `kept` are not changed."""

    def __init__(self, data: bytes, kept: Sequence[str] = ()) -> None:
        """Read the table of a model file; empty `data` means an empty table."""
        self._table = _read(data) if data else None
        longest_first = sorted(kept, key=len, reverse=True)
        self._kept = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if kept else None

    def __call__(self, text: str) -> str:
        if self._kept is None:
            return self._replaced(text)
        parts = self._kept.split(text)  # texts to keep have odd indices
        return "".join(p if n % 2 else self._replaced(p) for n, p in enumerate(parts))

    def _replaced(self, text: str) -> str:
        if self._table is None:
            return text
        (touched, places), replace = self._table
        if touched.search(text) is None:
            return text
        return places.sub(lambda found: replace(found[0]), text)


@lru_cache(4)
def _read(data: bytes) -> tuple[tuple[re.Pattern[str], re.Pattern[str]], Callable[[str], str]]:
    """Patterns of the places where a table applies, and its replacement function. The cache shares
    tables between models: most have that of NFKC."""
    trie = _Trie(data)
    return _places(trie), lru_cache(REMEMBERED)(trie.replaced)


class _Trie:
    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or size == 0 or 4 + size > len(data):
            raise DataError("the character table is damaged: its size is invalid.")
        units = np.frombuffer(data, "<u4", count=size // 4, offset=4).astype(np.int64)
        self.labels: IntArray = (
            units & 0x800000FF
        )  # the highest bit marks a leaf: it matches no byte
        self.offsets: IntArray = (units >> 10) << ((units & 512) >> 6)
        self.has_leaf: IntArray = (units >> 8) & 1
        self.values: IntArray = units & 0x7FFFFFFF
        self.texts = data[4 + size :]
        self._lists = self.labels.tolist(), self.offsets.tolist(), self.has_leaf.tolist()

    def replaced(self, text: str) -> str:
        """Replace the longest match at each place; characters without a match stay."""
        data, at, parts = text.encode(), 0, []
        while at < len(data):
            end, value = self._match(data, at)
            if value is None:
                end = at + 1
                while end < len(data) and data[end] & 0xC0 == 0x80:
                    end += 1
                parts.append(data[at:end])
            else:
                parts.append(self.text(value))
            at = end
        return b"".join(parts).decode()

    def text(self, value: int) -> bytes:
        return self.texts[value : self.texts.index(b"\0", value)]

    def _match(self, data: bytes, at: int) -> tuple[int, int | None]:
        labels, offsets, has_leaf = self._lists
        place, end, value = offsets[0], at, None
        for i in range(at, len(data)):
            place ^= data[i]
            if place >= len(labels) or labels[place] != data[i]:
                break
            leaf = has_leaf[place]
            place ^= offsets[place]
            if leaf:
                end, value = i + 1, int(self.values[place])
        return end, value

    def step(self, places: IntArray, first: int, last: int) -> tuple[IntArray, IntArray, IntArray]:
        """Transitions by a byte from `first` to `last`: the indices of their start places, their
        bytes, and the units that they lead to."""
        wanted = np.arange(first, last + 1)
        units = places[:, None] ^ wanted
        inside = units < len(self.labels)
        start, byte = np.nonzero(inside & (self.labels[np.where(inside, units, 0)] == wanted))
        return start, byte + first, units[start, byte]


def _places(trie: _Trie) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns for texts that a key may match in, and for the places where one can match: single
    characters, or characters followed by those that can continue a key."""
    codes, units = _one_character(trie, trie.offsets[:1])
    single = codes[trie.has_leaf[units] == 1]
    later: list[IntArray] = []
    seen = np.zeros(len(trie.labels), np.bool_)
    while len(units):
        new = np.unique(units)
        new = new[~seen[new]]
        seen[new] = True
        _check_values(trie, new)
        codes, units = _one_character(trie, new ^ trie.offsets[new])
        later.append(codes)
        if sum(map(len, later)) > MAX_EDGES:
            raise DataError("the character table is damaged: it contains cycles.")
    more = np.concatenate([single[:0], *later])
    behind, alone = _one_of(more), _one_of(single)
    kinds = [f".{behind}+" if behind else "", alone]
    places = "|".join(kind for kind in kinds if kind)
    touched = _one_of(np.concatenate([single, more]))
    return re.compile(touched or NOTHING), re.compile(places or NOTHING, re.DOTALL)


def _one_character(trie: _Trie, start: IntArray) -> tuple[IntArray, IntArray]:
    """All transitions by one character from these places, and the units that they lead to."""
    found: list[tuple[IntArray, IntArray]] = []
    for some in np.array_split(start, len(start) // 4096 + 1):
        for first, last, more in ((1, 0x7F, 0), (0xC2, 0xDF, 1), (0xE0, 0xEF, 2), (0xF0, 0xF4, 3)):
            _, byte, units = trie.step(some, first, last)
            codes = byte - first + (0xC2 - 0xC0 if first == 0xC2 else first & 1)
            for _ in range(more):
                if trie.has_leaf[units].any() or len(units) > MAX_EDGES:
                    raise DataError(
                        "the character table is damaged: a key ends in the middle of a character."
                    )
                old, byte, units = trie.step(units ^ trie.offsets[units], 0x80, 0xBF)
                codes = codes[old] << 6 | (byte & 0x3F)
            found.append((codes, units))
    codes, units = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    if (codes > sys.maxunicode).any():
        raise DataError("the character table is damaged: a key is not a Unicode character.")
    return codes, units


def _check_values(trie: _Trie, units: IntArray) -> None:
    leaves = np.unique(units[trie.has_leaf[units] == 1])
    places = leaves ^ trie.offsets[leaves]
    if (places >= len(trie.values)).any():
        raise DataError("the character table is damaged: an offset is outside the table.")
    try:
        for value in trie.values[places].tolist():
            trie.text(value).decode()
    except ValueError as error:
        raise DataError(f"the character table is damaged: {error}.") from error


def _one_of(codes: IntArray) -> str:
    """Regular expression class with ranges: thousands of characters form few ranges.

    Characters beyond 16 bits are in a class of their own, because `re` would otherwise search the
    whole class range by range.
    """
    near, far = (_class(part) for part in (codes[codes < 0x10000], codes[codes >= 0x10000]))
    far = far and rf"(?=[\U00010000-\U0010ffff]){far}"
    kinds = [kind for kind in (near, far) if kind]
    return f"(?:{'|'.join(kinds)})" if kinds else ""


def _class(codes: IntArray) -> str:
    if not len(codes):
        return ""
    ordered = np.unique(codes)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return "[" + "".join(f"\\U{run[0]:08x}-\\U{run[-1]:08x}" for run in runs) + "]"
