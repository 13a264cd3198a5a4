"""Metrics of language models: likelihood in comparable units.

The loss per token depends on the tokenizer; bits per byte do not.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def perplexity(nll_per_token: float) -> float:
    """Return the exponential of the loss per token. The loss is limited to 50 nats to avoid an
    overflow."""
    return math.exp(min(nll_per_token, 50.0))


def bits_per_byte(nll: float, n_bytes: float) -> float:
    """Return the bits per byte of a text, from its negative log-likelihood in nats and its size in
    UTF-8."""
    return nll / math.log(2) / max(1e-9, n_bytes)


def unigram_loss(train_counts_V: NDArray[np.integer], seen_counts_V: NDArray[np.integer]) -> float:
    """Return the loss of a unigram model in nats per token, from token counts. It is used for
    classes and tags as well.

    One is added to the training count of each token of the vocabulary (Laplace smoothing).
    """
    counts_V = np.asarray(train_counts_V, dtype=np.float64) + 1.0
    logs_V = np.log(counts_V / counts_V.sum())
    return float(-(seen_counts_V * logs_V).sum() / max(1, seen_counts_V.sum()))


def token_counts(
    tokens_N: NDArray[np.integer], vocab_size: int, most: int | None = None
) -> NDArray[np.int64]:
    """Return the number of occurrences of each token in a text that may not fit into memory.
    `most`: count only this many tokens from the start."""
    counts_V = np.zeros(vocab_size, np.int64)
    for first in range(0, len(tokens_N[:most]), 1 << 22):
        last = min(first + (1 << 22), len(tokens_N) if most is None else most)
        part = np.asarray(tokens_N[first:last], np.int64)
        counts_V += np.bincount(part, minlength=vocab_size)
    return counts_V
