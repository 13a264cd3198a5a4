"""Likelihood in bits and a unigram model, against plain sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.metrics.language import (
    bits_per_byte,
    perplexity,
    token_counts,
    unigram_loss,
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
    loss = unigram_loss(counts, token_counts(tokens, 3))
    assert loss == pytest.approx(bits * math.log(2) / 4)
