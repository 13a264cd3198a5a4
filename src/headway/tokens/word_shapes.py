"""Word shapes: the capitalisation and digits of words, which uncased tokenizers lose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.settings.text import Shape
from headway.tokens.word_cache import Ids


def word_shape(word: str) -> Shape:
    """Classify a word by its letters and digits; other characters count only if it has neither."""
    letters = [c for c in word if c.isalpha()]
    if any(c.isdigit() for c in word):
        return Shape.WITH_DIGITS if letters else Shape.NUMBER
    if not letters:
        return Shape.SIGNS
    capitals = sum(c.isupper() or c.istitle() for c in letters)
    if not capitals:
        return Shape.LOWER
    if capitals == len(letters):
        return Shape.CAPITALS if capitals > 1 else Shape.CAPITAL
    return Shape.CAPITALISED if capitals == 1 and not letters[0].islower() else Shape.MIXED


def word_shapes(words: Sequence[str]) -> Ids:
    known = {word: int(word_shape(word)) for word in set(words)}
    return np.fromiter(map(known.__getitem__, words), np.int32, len(words))
