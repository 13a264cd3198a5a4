"""Likelihood in bits, a unigram model, and copies, against plain sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.metrics.language import (
    Copies,
    bits_per_byte,
    perplexity,
    unigram_bits_per_byte,
)


def test_units() -> None:
    assert perplexity(math.log(7.0)) == pytest.approx(7.0)
    assert perplexity(1e9) < math.inf
    assert bits_per_byte(8 * math.log(2), 4) == pytest.approx(2.0)


def test_a_unigram_model_knows_frequencies_alone() -> None:
    counts = np.array([3, 0, 1])
    tokens = np.array([0, 0, 2, 1])
    chances = {0: 4 / 7, 1: 1 / 7, 2: 2 / 7}
    bits = sum(-math.log2(chances[token]) for token in tokens.tolist())
    assert unigram_bits_per_byte(counts, tokens, 10) == pytest.approx(bits / 10)


def by_hand(texts: list[str], training: list[str], n: int) -> float:
    def grams(text: str) -> list[tuple[str, ...]]:
        words = text.split()
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    known = {gram for text in training for gram in grams(text)}
    found = [gram in known for text in texts for gram in grams(text)]
    return sum(found) / len(found)


def test_copies_are_counted_as_by_hand() -> None:
    random = np.random.default_rng(0)
    training = [" ".join(random.choice(list("abcd"), 200)) for _ in range(3)]
    texts = [" ".join(random.choice(list("abcd"), 60)) for _ in range(4)]
    share = Copies.of(training, 4).share(texts)
    assert 0.2 < share < 1.0
    assert share == pytest.approx(by_hand(texts, training, 4))


def test_case_and_punctuation_do_not_hide_a_copy() -> None:
    copies = Copies.of(["Once upon a time there was a small, red dog."])
    assert copies.share(["once upon a time; there was a SMALL red dog!"]) == 1.0
    assert copies.share(["dog red small a was there time a upon once"]) == 0.0


def test_short_texts_have_nothing_to_copy() -> None:
    assert Copies.of(["too short"], 8).share(["too short"]) == 0.0
    assert Copies.of([], 8).share([]) == 0.0
