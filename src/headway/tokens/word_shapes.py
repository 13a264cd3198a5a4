"""Word shapes: the capitalization and digits of words, which tokenizers that ignore case lose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.settings.text import WordShape
from headway.tokens.word_cache import Int32Array


def word_shape(word: str) -> WordShape:
    """Return the shape of a word, according to its letters and digits. Other characters count only
    if it has neither."""
    letters = [c for c in word if c.isalpha()]
    if any(c.isdigit() for c in word):
        return WordShape.WITH_DIGITS if letters else WordShape.NUMBER
    if not letters:
        return WordShape.SIGNS
    capitals = sum(c.isupper() or c.istitle() for c in letters)
    if not capitals:
        return WordShape.LOWER
    if capitals == len(letters):
        return WordShape.CAPITALS if capitals > 1 else WordShape.CAPITAL
    return WordShape.CAPITALISED if capitals == 1 and not letters[0].islower() else WordShape.MIXED


def word_shapes(words: Sequence[str]) -> Int32Array:
    known = {word: int(word_shape(word)) for word in set(words)}
    return np.fromiter(map(known.__getitem__, words), np.int32, len(words))
