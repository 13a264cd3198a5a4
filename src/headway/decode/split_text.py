"""Split texts that are too long for a model at sentence ends, punctuation or spaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

TokenCounter = Callable[[Sequence[str]], list[int]]
"""Function that returns the number of tokens of each text."""

# Split after a full stop and closing quotes or brackets. Do not split after a single letter (an
# abbreviation) or before a lower-case letter. East Asian full stops need no space after them.
_CLOSE = r"""["'»”’)\]]"""
_STOP = "|".join(
    rf"(?<={stop}{close})" for stop in (r"[^\s.]{2}\.", "[!?…]") for close in ("", _CLOSE)
)
SENTENCE_END = re.compile(rf"(?:{_STOP})\s+(?=[^\sa-zà-öø-ÿ])|(?<=[。！？])")
PAUSE = re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])")
SPACE = re.compile(r"\s+")


def split_text(text: str, limit: int, count: TokenCounter) -> list[str]:
    """Split a text into parts of at most `limit` tokens.

    A text that is too long is split at every sentence end. A sentence that is still too long is
    split at punctuation, or else at spaces, or else anywhere. Its parts are as long as possible.
    """
    if count([text])[0] <= limit:
        return [text]
    sentences = _cut(SENTENCE_END, text)
    return [
        part for sentence in sentences for part in _split(sentence, limit, count, [PAUSE, SPACE])
    ]


def _split(text: str, limit: int, count: TokenCounter, ways: list[re.Pattern[str]]) -> list[str]:
    if count([text])[0] <= limit:
        return [text]
    if not ways:
        middle = len(text) // 2
        if not middle:  # one character that takes more tokens than there is room for
            return [text]
        halves = (text[:middle], text[middle:])
        return [part for half in halves for part in _split(half, limit, count, ways)]
    pieces = _cut(ways[0], text)
    parts: list[str] = []
    room = 0
    for piece, size in zip(pieces, count(pieces), strict=True):
        if parts and size <= room:
            parts[-1] = f"{parts[-1]} {piece}"
            room -= size
        else:
            parts.append(piece)
            room = limit - size
    # A joined text may have more tokens than its parts together, so check it again and split more
    # finely.
    return [finer for part in parts for finer in _split(part, limit, count, ways[1:])]


def _cut(way: re.Pattern[str], text: str) -> list[str]:
    return [piece for piece in way.split(text) if piece.strip()]
