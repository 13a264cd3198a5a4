"""What kind of word a word is, and which tokenizers leave that to be said."""

from __future__ import annotations

import pytest

from headway.settings.data import TokenizerSettings
from headway.settings.text import SHAPES, Shape
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.trainer import train_on_texts
from headway.tokens.word_shapes import word_shape

WORDS = {
    Shape.LOWER: ["rome", "o'clock", "東京", "ß"],
    Shape.CAPITALISED: ["Rome", "“Élan”", "Jean-luc", "Ǆungla", "ǅungla"],
    Shape.CAPITALS: ["USA", "U.S.", "AC/DC"],
    Shape.MIXED: ["iPhone", "McDonald", "Jean-Luc", "eBay"],
    Shape.WITH_DIGITS: ["B2B", "3rd", "covid-19"],
    Shape.NUMBER: ["2019", "3.75", "1,204", "٣"],
    Shape.SIGNS: [".", "--", "🙂", ""],
    Shape.CAPITAL: ["I", "J.", "(A)"],
}


def trained(*, lowercase: bool) -> Tokenizer:
    wanted = TokenizerSettings(kind="bpe", vocab_size=80, lowercase=lowercase)
    return train_on_texts(["The dog saw the USA, and I saw it in 2019."] * 3, wanted, 300)


@pytest.mark.parametrize("shape", Shape)
def test_words_have_shapes(shape: Shape) -> None:
    assert {word: word_shape(word) for word in WORDS[shape]} == dict.fromkeys(WORDS[shape], shape)


def test_numbers_of_shapes_stay() -> None:
    """Weights of runs rest on them."""
    assert [shape.name for shape in SHAPES] == [shape.name for shape in Shape]
    assert [*Shape] == list(range(8))


def test_word_shapes_are_computed_where_case_is_lost() -> None:
    sentences = [["The", "dog"], [], ["USA", "2019", "."]]
    cased, lower = (trained(lowercase=lowercase) for lowercase in (False, True))
    assert cased.tells_case
    assert not lower.tells_case
    assert cased.encode_words(sentences).shapes is None
    found = lower.encode_words(sentences)
    assert found.shapes is not None
    assert found.shapes.lists() == [[1, 0], [], [2, 5, 6]]
    assert found.text.lists()[0] == lower.encode_words([["THE", "DOG"]]).text.lists()[0]


def test_a_vocabulary_without_latin_letters_tells_case() -> None:
    wanted = TokenizerSettings(kind="words")
    assert train_on_texts(["Мама мыла раму"] * 3, wanted, 300).tells_case
