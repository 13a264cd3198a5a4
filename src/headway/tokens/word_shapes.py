"""What kind of word a word is, by its letters and digits: what a tokenizer without case loses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.settings.text import Shape
from headway.tokens.word_cache import Ids


def word_shape(word: str) -> Shape:
    """By its letters alone where it has no digits: signs between them are as if not there."""
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
