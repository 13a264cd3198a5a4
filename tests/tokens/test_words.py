"""Words and tokens: where words begin, words that are cut already, parts of a text, specials."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.settings.data import TokenizerSettings
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.trainer import choose_size, train_on_texts

LINES = [
    "The dog doesn't sleep, the dog sleeps in 1984!",
    "Der Hund läuft über die Straße (und die Katze schläft).",
] * 6
KINDS = ["bpe", "unigram", "wordpiece", "characters", "words", "bytes"]


@pytest.fixture(scope="module")
def by_kind() -> dict[str, Tokenizer]:
    return {
        kind: train_on_texts(
            LINES, TokenizerSettings(kind=kind, vocab_size=330), 999, ["<mask>", "<title>"]
        )
        for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_extra_specials_follow_the_three_and_no_text_becomes_one(
    by_kind: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = by_kind[kind]
    assert tokenizer.tokens(range(5)) == ["<unk>", "<s>", "</s>", "<mask>", "<title>"]
    assert tokenizer.mask == tokenizer.special("<mask>") == 3
    assert tokenizer.special("<title>") == 4
    assert tokenizer.special("dog") is tokenizer.special("<body>") is None
    assert tokenizer.specials == {0, 1, 2, 3, 4}
    assert not {1, 2, 3, 4} & set(tokenizer.encode("<mask> <title></s><s> <mask>"))
    ids = tokenizer.encode("the dog")
    assert tokenizer.decode([1, 4, *ids, 3, 2]) == tokenizer.decode(ids) == "the dog"
    again = Tokenizer.from_json(tokenizer.to_json(), "t")
    assert (again.mask, again.specials) == (3, tokenizer.specials)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("bpe", "The dogx, (Hundläuftx) 19", "The dogx , ( Hundläuftx ) 1 9"),
        ("unigram", "The dogx, (Hundläuftx) 19", "The dogx , ( Hundläuftx ) 1 9"),
        ("wordpiece", "The Katzedog, ' 1984", "The Katzedog , ' 1984"),
        ("words", "The dog, (und 1984", "The dog , ( und 1984"),
        ("characters", "The dog,über 19", "The _ dog , über _ 1 9"),
        ("bytes", "The über,19", "The _ über , 1 9"),
    ],
)
def test_tokens_that_begin_a_word(
    by_kind: dict[str, Tokenizer], kind: str, text: str, words: str
) -> None:
    tokenizer = by_kind[kind]
    ids = tokenizer.encode(text)
    starts = tokenizer.word_starts(ids)
    places = [*np.flatnonzero(starts).tolist(), len(ids)]
    found = [tokenizer.decode(ids[one:other]).strip() or "_" for one, other in pairwise(places)]
    assert found == words.split()
    assert tokenizer.word_starts([1, *ids, 2]).tolist() == [True, *starts.tolist(), True]
    assert tokenizer.word_starts([]).tolist() == []


@pytest.mark.parametrize("kind", KINDS)
def test_words_that_are_cut_already_keep_their_pieces(
    by_kind: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = by_kind[kind]
    sentences = [["The", "dog"], ["sleeps"], [], ["Hund", "läuft", "die", "\u200b"]]
    ids, pieces, _ = tokenizer.encode_words(sentences)
    assert [len(s) for s in sentences] == pieces.lengths.tolist()
    assert ids.lengths.tolist() == [sum(p) for p in pieces.lists()]
    assert pieces.ids.min() >= 1
    flat = ids.lists()
    assert tokenizer.decode(flat[0]) == "The dog"
    assert flat[0] == tokenizer.encode("The dog")
    sizes = pieces.lists()[3]
    assert flat[3][: sizes[0]] == tokenizer.encode("Hund")
    assert not len(tokenizer.encode_words([])[0].ids)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_text_give_the_text(by_kind: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = by_kind[kind]
    words = st.sampled_from(["The", "dog", " dog", "  ", "\n", "sleeps", "ä", ",", "12", " "])

    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.lists(words, min_size=1).map("".join), min_size=1, max_size=4))
    def check(parts: list[str]) -> None:
        goes_on = np.arange(len(parts)) > 0
        flat = tokenizer.encode_parts(parts, goes_on)
        text = "".join(parts)
        if tokenizer.covers_everything:
            assert tokenizer.decode(flat.ids.tolist()) == text
        # Where parts meet before a single blank, nothing shows that they are parts.
        meets = ((a[-1:], b[:1], b[1:2]) for a, b in pairwise(parts))
        if all(not a.isspace() and b == " " and c.strip() for a, b, c in meets):
            assert flat.ids.tolist() == tokenizer.encode(text)
        alone = tokenizer.encode_parts(parts, np.zeros(len(parts), np.bool_))
        assert alone.lists() == tokenizer.encode_batch(parts)

    check()


def test_long_texts_are_encoded_whole_to_the_same_ids(by_kind: dict[str, Tokenizer]) -> None:
    text = " ".join(LINES * 10)
    for kind in ("bpe", "words"):
        tokenizer = by_kind[kind]
        assert len(text) > 2_000
        assert tokenizer.encode(text) == [
            i for word in tokenizer.encode_batch(text.split(" ")) for i in word
        ]


def test_wordpiece_lowers_case_with_accents() -> None:
    made = TokenizerSettings(kind="wordpiece", vocab_size=200, lowercase=True)
    tokenizer = train_on_texts(LINES, made, 999)
    assert tokenizer.encode("ÜBER") == tokenizer.encode("uber")
    assert tokenizer.tokens(tokenizer.encode("Sleeps sleep日")) == ["sleeps", "sleep", "<unk>"]
    assert tokenizer.vocab_size <= 200
    assert tokenizer.unknown_characters("日") == {"日"}


def test_the_size_follows_from_the_amount_of_text() -> None:
    sizes = [
        train_on_texts(LINES * 200, TokenizerSettings(kind="bytes"), n).vocab_size for n in (1, 10)
    ]
    assert sizes == [259, 259]
    assert choose_size("bpe", 1_115_394 // 120) == 3904
