"""Lines that are longer than the model was made for: cut into parts that it can translate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

Count = Callable[[Sequence[str]], list[int]]
"""How many tokens each text has."""

# After a full stop, with what closes around it, unless it ends one letter (an abbreviation) or what
# follows goes on in small letters. East Asian full stops need no space behind them.
_CLOSE = r"""["'»”’)\]]"""
_STOP = "|".join(
    rf"(?<={stop}{close})" for stop in (r"[^\s.]{2}\.", "[!?…]") for close in ("", _CLOSE)
)
SENTENCE_END = re.compile(rf"(?:{_STOP})\s+(?=[^\sa-zà-öø-ÿ])|(?<=[。！？])")
PAUSE = re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])")
SPACE = re.compile(r"\s+")


def split_text(text: str, limit: int, count: Count) -> list[str]:
    """Parts of at most `limit` tokens each.

    A text that is too long is cut at every sentence end. A sentence that is still too long is cut
    at pauses, else at spaces, else anywhere, into parts as long as they may be.
    """
    if count([text])[0] <= limit:
        return [text]
    sentences = _cut(SENTENCE_END, text)
    return [
        part for sentence in sentences for part in _split(sentence, limit, count, [PAUSE, SPACE])
    ]


def _split(text: str, limit: int, count: Count, ways: list[re.Pattern[str]]) -> list[str]:
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
    # Tokens of a whole may be more than those of its pieces: look again, the finer way.
    return [finer for part in parts for finer in _split(part, limit, count, ways[1:])]


def _cut(way: re.Pattern[str], text: str) -> list[str]:
    return [piece for piece in way.split(text) if piece.strip()]
