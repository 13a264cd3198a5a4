"""Which tokens are hidden: how many, where, what stands there instead; it never changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.data.masking import CounterRandom, FlatTexts, TokenMasker
from headway.settings.data import TokenizerSettings
from headway.specs.task_settings import FillSettings
from headway.tokens.tokenizer import MASK, Tokenizer
from headway.tokens.trainer import train_on_texts

TEXT = "one two three four five six seven eight nine ten eleven twelve"
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_on_texts([" ".join(WORDS)], TokenizerSettings(kind="words"), 100, [MASK])


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """Long words are many pieces."""
    settings = TokenizerSettings(kind="bpe", vocab_size=270)
    return train_on_texts(["aaaa bbbb cc", *WORDS], settings, 100, [MASK])


def texts_of(tokenizer: Tokenizer, lines: list[str]) -> FlatTexts:
    ids = tokenizer.encode_batch(lines)
    flat = np.array([token for text in ids for token in text], np.int64)
    return FlatTexts(
        flat, np.array([len(text) for text in ids], np.int64), np.arange(len(flat)) + 1000
    )


def random_lines(n: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 30))) for _ in range(n)]


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_the_share_holds_and_no_text_is_left_out(words: Tokenizer, share: float) -> None:
    texts = texts_of(words, random_lines(2000))
    hidden = TokenMasker(words, FillSettings(mask=share)).choose(texts, CounterRandom(1, 0))
    firsts = np.cumsum(texts.lengths) - texts.lengths
    counts = np.add.reduceat(hidden, firsts)
    assert counts.min() == 1
    assert (counts <= np.maximum(1, np.ceil(share * texts.lengths))).all()
    expected = np.maximum(1.0, share * texts.lengths).sum()
    assert abs(hidden.sum() / expected - 1) < 0.08
    assert (counts == TokenMasker(words, FillSettings(mask=share)).counts(
        texts.lengths, texts.places[firsts], CounterRandom(1, 0))).all()  # fmt: skip


def test_every_place_has_the_same_chance(words: Tokenizer) -> None:
    texts = texts_of(words, [" ".join(WORDS[:10])] * 4000)
    hidden = (
        TokenMasker(words, FillSettings(mask=0.3))
        .choose(texts, CounterRandom(3, 2))
        .reshape(-1, 10)
    )
    assert np.abs(hidden.mean(0) - 0.3).max() < 0.03


def test_most_become_the_mask_some_a_random_token_and_some_stay(words: Tokenizer) -> None:
    texts = texts_of(words, random_lines(3000))
    masker = TokenMasker(words, FillSettings(mask=0.3))
    hidden = masker.choose(texts, CounterRandom(1, 0))
    read = masker.apply(texts, hidden, CounterRandom(1, 0))
    assert (read[~hidden] == texts.tokens[~hidden]).all()
    masked = (read[hidden] == words.mask).mean()
    same = (read[hidden] == texts.tokens[hidden]).mean()
    assert abs(masked - 0.8) < 0.02
    assert abs(same - 0.1 - 0.1 / len(masker.replacements)) < 0.02
    other = read[hidden & (read != words.mask) & (read != texts.tokens)]
    assert not np.isin(other, list(words.specials)).any()
    assert len(set(other.tolist())) == len(masker.replacements)


def test_it_is_the_same_every_time_and_in_any_company(words: Tokenizer) -> None:
    masker = TokenMasker(words, FillSettings())
    texts = texts_of(words, random_lines(50))
    ends = np.cumsum(texts.lengths)
    part = FlatTexts(texts.tokens[ends[9] : ends[19]], texts.lengths[10:20],
                 texts.places[ends[9] : ends[19]])  # fmt: skip
    draws = CounterRandom(4, 7)
    whole, alone = masker.choose(texts, draws), masker.choose(part, draws)
    assert (whole[ends[9] : ends[19]] == alone).all()
    assert (masker.apply(texts, whole, draws)[ends[9] : ends[19]]
            == masker.apply(part, alone, draws)).all()  # fmt: skip
    for other in (CounterRandom(4, 8), CounterRandom(5, 7)):
        assert (masker.choose(texts, other) != whole).any()


def test_whole_words_are_hidden_whole(pieces: Tokenizer) -> None:
    texts = texts_of(pieces, random_lines(300))
    settings: dict[str, Any] = {"mask": 0.2, "whole_words": True}
    hidden = TokenMasker(pieces, FillSettings(**settings)).choose(texts, CounterRandom(0, 0))
    starts = pieces.word_starts(texts.tokens)
    starts[np.cumsum(texts.lengths)[:-1]] = True
    word = np.cumsum(starts) - 1
    of_word = np.bincount(word, hidden) / np.bincount(word)
    assert set(of_word.tolist()) == {0.0, 1.0}
    assert np.bincount(word).max() > 2
    plain = TokenMasker(pieces, FillSettings(mask=0.2)).choose(texts, CounterRandom(0, 0))
    broken = np.bincount(word, plain) / np.bincount(word)
    assert len(set(broken.tolist())) > 2
    firsts = np.cumsum(texts.lengths) - texts.lengths
    assert np.add.reduceat(hidden, firsts).min() >= 1


def test_the_draws_are_uniform_and_independent_of_each_other() -> None:
    places = np.arange(20_000)
    first, second = (CounterRandom(1, 0).uniform(purpose, places) for purpose in (0, 1))
    for values in (first, second, CounterRandom(2, 0).uniform(0, places)):
        assert values.min() >= 0.0
        assert values.max() < 1.0
        assert np.abs(np.histogram(values, 10, (0, 1))[0] / 2000 - 1).max() < 0.1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03
