"""How SentencePiece prepares text: its table of characters, and blanks.

`tokenizers` looks up whole graphemes of up to five bytes and else single characters; SentencePiece
takes the longest match from left to right, which differs for letters with several marks, Hangul
written in single letters and the like. This is the second way.

The table is a double-array trie (that of darts-clone) of UTF-8 keys, whose values are places in a
block of zero-terminated texts. NFKC has 225,000 keys in 60,000 units, so it is used as it is.
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

Codes = NDArray[np.int64]

MAX_EDGES = 1_000_000
"""Characters that lead on, over all places in the trie; NFKC has a tenth of that."""

REMEMBERED = 1 << 16
BLANKS = re.compile(" {2,}")
NOTHING = "(?!)"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How SentencePiece prepares a text, besides the table of characters."""

    dummy_prefix: bool = True
    """A blank stands before the text."""

    one_blank: bool = True
    """Runs of blanks are one, and none stand at the ends."""

    # What ALBERT's program does before.
    quotes: bool = False
    """Doubled quotation marks are one sign."""

    strip_accents: bool = False
    lowercase: bool = False

    def __call__(self, text: str, charsmap: Charsmap, *, with_prefix: bool = True) -> str:
        """The text as pieces are looked up in it: `▁` for each blank."""
        if not text:
            return ""
        seen = charsmap(self._folded(text))
        if self.one_blank:
            seen = BLANKS.sub(" ", seen).strip(" ")
        seen = seen.replace(" ", SPACE_MARK)
        if self.dummy_prefix and with_prefix:
            seen = SPACE_MARK + seen
        # There, too, a mark that the text itself ends in is lost.
        return seen.rstrip(SPACE_MARK) if self.one_blank else seen

    def _folded(self, text: str) -> str:
        if self.quotes:
            text = text.replace("``", '"').replace("''", '"')
        if self.strip_accents:
            text = unicodedata.normalize("NFKD", text)
            text = "".join(c for c in text if not unicodedata.category(c).startswith("M"))
        return "".join(c.lower() for c in text) if self.lowercase else text


class Charsmap:
    """Replaces text by a table. Texts in `kept` are left as they are."""

    def __init__(self, data: bytes, kept: Sequence[str] = ()) -> None:
        """From what a model file holds; nothing there means an empty table."""
        self._table = _read(data) if data else None
        longest_first = sorted(kept, key=len, reverse=True)
        self._kept = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if kept else None

    def __call__(self, text: str) -> str:
        if self._kept is None:
            return self._replaced(text)
        parts = self._kept.split(text)  # what is kept stands at the odd places
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
    """Where a table applies, and what it does there; once for all that have the same, as most
    models have that of NFKC."""
    trie = _Trie(data)
    return _places(trie), lru_cache(REMEMBERED)(trie.replaced)


class _Trie:
    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        if len(data) < 4 or size % 4 or size == 0 or 4 + size > len(data):
            raise DataError("the table of characters is damaged: its size does not fit.")
        units = np.frombuffer(data, "<u4", count=size // 4, offset=4).astype(np.int64)
        self.labels: Codes = units & 0x800000FF  # the highest bit of a leaf makes it no byte
        self.offsets: Codes = (units >> 10) << ((units & 512) >> 6)
        self.has_leaf: Codes = (units >> 8) & 1
        self.values: Codes = units & 0x7FFFFFFF
        self.texts = data[4 + size :]
        self._lists = self.labels.tolist(), self.offsets.tolist(), self.has_leaf.tolist()

    def replaced(self, text: str) -> str:
        """The longest match at each place; where there is none the character stays."""
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

    def step(self, places: Codes, first: int, last: int) -> tuple[Codes, Codes, Codes]:
        """Ways on by a byte from `first` to `last`: the numbers of the places they start from,
        their bytes, and the units they come to."""
        wanted = np.arange(first, last + 1)
        units = places[:, None] ^ wanted
        inside = units < len(self.labels)
        start, byte = np.nonzero(inside & (self.labels[np.where(inside, units, 0)] == wanted))
        return start, byte + first, units[start, byte]


def _places(trie: _Trie) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What must be in a text for any key to match; and where one can: at a single character, or one
    with such behind it as keys go on with."""
    codes, units = _one_character(trie, trie.offsets[:1])
    single = codes[trie.has_leaf[units] == 1]
    later: list[Codes] = []
    seen = np.zeros(len(trie.labels), np.bool_)
    while len(units):
        new = np.unique(units)
        new = new[~seen[new]]
        seen[new] = True
        _check_values(trie, new)
        codes, units = _one_character(trie, new ^ trie.offsets[new])
        later.append(codes)
        if sum(map(len, later)) > MAX_EDGES:
            raise DataError("the table of characters is damaged: it leads in circles.")
    more = np.concatenate([single[:0], *later])
    behind, alone = _one_of(more), _one_of(single)
    kinds = [f".{behind}+" if behind else "", alone]
    places = "|".join(kind for kind in kinds if kind)
    touched = _one_of(np.concatenate([single, more]))
    return re.compile(touched or NOTHING), re.compile(places or NOTHING, re.DOTALL)


def _one_character(trie: _Trie, start: Codes) -> tuple[Codes, Codes]:
    """All characters that lead on from these places, and the units they end in."""
    found: list[tuple[Codes, Codes]] = []
    for some in np.array_split(start, len(start) // 4096 + 1):
        for first, last, more in ((1, 0x7F, 0), (0xC2, 0xDF, 1), (0xE0, 0xEF, 2), (0xF0, 0xF4, 3)):
            _, byte, units = trie.step(some, first, last)
            codes = byte - first + (0xC2 - 0xC0 if first == 0xC2 else first & 1)
            for _ in range(more):
                if trie.has_leaf[units].any() or len(units) > MAX_EDGES:
                    raise DataError("the table of characters is damaged: a key ends too early.")
                old, byte, units = trie.step(units ^ trie.offsets[units], 0x80, 0xBF)
                codes = codes[old] << 6 | (byte & 0x3F)
            found.append((codes, units))
    codes, units = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    if (codes > sys.maxunicode).any():
        raise DataError("the table of characters is damaged: a key is no character.")
    return codes, units


def _check_values(trie: _Trie, units: Codes) -> None:
    leaves = np.unique(units[trie.has_leaf[units] == 1])
    places = leaves ^ trie.offsets[leaves]
    if (places >= len(trie.values)).any():
        raise DataError("the table of characters is damaged: a place is outside of it.")
    try:
        for value in trie.values[places].tolist():
            trie.text(value).decode()
    except ValueError as error:
        raise DataError(f"the table of characters is damaged: {error}.") from error


def _one_of(codes: Codes) -> str:
    """A class of a regular expression, with ranges: thousands of characters are few runs.

    Characters beyond 16 bits stand apart: with them the whole class would be looked through range
    by range.
    """
    near, far = (_class(part) for part in (codes[codes < 0x10000], codes[codes >= 0x10000]))
    far = far and rf"(?=[\U00010000-\U0010ffff]){far}"
    kinds = [kind for kind in (near, far) if kind]
    return f"(?:{'|'.join(kinds)})" if kinds else ""


def _class(codes: Codes) -> str:
    if not len(codes):
        return ""
    ordered = np.unique(codes)
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1)
    return "[" + "".join(f"\\U{run[0]:08x}-\\U{run[-1]:08x}" for run in runs) + "]"
