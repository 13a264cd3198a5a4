"""Texts become the words that tagged corpora have."""

from __future__ import annotations

import pytest

from headway.data.text_words import WordRule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("He was born in Honolulu, Hawaii.", "He was born in Honolulu , Hawaii ."),
        ("(The U.S., e.g. Dr. J. Smith's.)", "( The U.S. , e.g. Dr. J. Smith 's . )"),
        ("\u201cDon\u2019t!\u201d he said...", "\u201c Do n\u2019t ! \u201d he said ..."),
        ("Anglo-American 3,000.5 10/10/2010 a.b", "Anglo-American 3,000.5 10/10/2010 a.b"),
        ("#tag @user $5 5% :) C++", "#tag @user $5 5% :) C++"),
        ("Honolulu , Hawaii 's .", "Honolulu , Hawaii 's ."),
        ("¿Quién? «Maria»; l'eau", "¿ Quién ? « Maria » ; l'eau"),
        ("", ""), (" \n\t ", ""), ("...", "..."), ("\"", "\""),
    ],
)  # fmt: skip
def test_punctuation_is_separated(text: str, words: str) -> None:
    found = WordRule().words(text)
    assert [one.text for one in found] == words.split()
    assert all(text[one.start : one.end] == one.text for one in found)


def test_words_are_cut_as_those_of_training() -> None:
    blanks = WordRule.of([["in", "Honolulu,", "Hawaii."], ["a", "dog's", "life."]])
    assert [one.text for one in blanks.words("Rome, it's Ada.")] == ["Rome,", "it's", "Ada."]
    apart = WordRule.of([["in", "Rome", ",", "St.", "Yahoo!", "."], ["Ada", "'s", "!", "!"]])
    found = [one.text for one in apart.words("Yahoo! Rome! Ada's St. x.")]
    assert found == ["Yahoo!", "Rome", "!", "Ada", "'s", "St.", "x", "."]
    for words in (["Rome", ",", "U.S.", "'s"], ["``", "Yes", "''", "--", "no"]):
        assert [one.text for one in WordRule.of([words]).words(" ".join(words))] == words
