"""What kind of word a word is, and which tokenizers leave that to be said."""

from __future__ import annotations

import pytest

from headway.settings.data import TokenizerSettings
from headway.settings.text import SHAPES, WordShape
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.trainer import train_on_texts
from headway.tokens.word_shapes import word_shape

WORDS = {
    WordShape.LOWER: ["rome", "o'clock", "東京", "ß"],
    WordShape.CAPITALISED: ["Rome", "“Élan”", "Jean-luc", "Ǆungla", "ǅungla"],
    WordShape.CAPITALS: ["USA", "U.S.", "AC/DC"],
    WordShape.MIXED: ["iPhone", "McDonald", "Jean-Luc", "eBay"],
    WordShape.WITH_DIGITS: ["B2B", "3rd", "covid-19"],
    WordShape.NUMBER: ["2019", "3.75", "1,204", "٣"],
    WordShape.SIGNS: [".", "--", "🙂", ""],
    WordShape.CAPITAL: ["I", "J.", "(A)"],
}


def trained(*, lowercase: bool) -> Tokenizer:
    wanted = TokenizerSettings(kind="bpe", vocab_size=80, lowercase=lowercase)
    return train_on_texts(["The dog saw the USA, and I saw it in 2019."] * 3, wanted, 300)


@pytest.mark.parametrize("shape", WordShape)
def test_words_have_shapes(shape: WordShape) -> None:
    assert {word: word_shape(word) for word in WORDS[shape]} == dict.fromkeys(WORDS[shape], shape)


def test_numbers_of_shapes_stay() -> None:
    """Weights of runs rest on them."""
    assert [shape.name for shape in SHAPES] == [shape.name for shape in WordShape]
    assert [*WordShape] == list(range(8))


def test_word_shapes_are_computed_where_case_is_lost() -> None:
    sentences = [["The", "dog"], [], ["USA", "2019", "."]]
    cased, lower = (trained(lowercase=lowercase) for lowercase in (False, True))
    assert cased.is_cased
    assert not lower.is_cased
    assert cased.encode_words(sentences).shapes is None
    found = lower.encode_words(sentences)
    assert found.shapes is not None
    assert found.shapes.lists() == [[1, 0], [], [2, 5, 6]]
    assert found.text.lists()[0] == lower.encode_words([["THE", "DOG"]]).text.lists()[0]


def test_a_vocabulary_without_latin_letters_tells_case() -> None:
    wanted = TokenizerSettings(kind="words")
    assert train_on_texts(["Мама мыла раму"] * 3, wanted, 300).is_cased
