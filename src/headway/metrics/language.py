"""Scores of language models: likelihood in units that can be compared.

Loss per token depends on the tokenizer; bits per byte do not.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def perplexity(nll_per_token: float) -> float:
    """e to the loss. Beyond what prints, it is cut: such a model says nothing anyway."""
    return math.exp(min(nll_per_token, 50.0))


def bits_per_byte(nll: float, n_bytes: int) -> float:
    """From the summed negative log-likelihood of a text (nats) and its size in UTF-8."""
    return nll / math.log(2) / max(1, n_bytes)


def unigram_bits_per_byte(
    train_counts_V: NDArray[np.integer], tokens_N: NDArray[np.integer], n_bytes: int
) -> float:
    """What a model reaches that knows how frequent each token is, and nothing of its context."""
    seen_V = token_counts(tokens_N, len(train_counts_V))
    total = unigram_loss(train_counts_V, seen_V) * int(seen_V.sum())
    return bits_per_byte(total, n_bytes)


def unigram_loss(train_counts_V: NDArray[np.integer], seen_counts_V: NDArray[np.integer]) -> float:
    """The same in nats a token, from how often each is seen. Of classes and tags too.

    Frequencies are those of the training text plus one for each token of the vocabulary.
    """
    counts_V = np.asarray(train_counts_V, dtype=np.float64) + 1.0
    logs_V = np.log(counts_V / counts_V.sum())
    return float(-(seen_counts_V * logs_V).sum() / max(1, seen_counts_V.sum()))


def token_counts(
    tokens_N: NDArray[np.integer], vocab_size: int, most: int | None = None
) -> NDArray[np.int64]:
    """How often each token occurs, in a text that need not fit into memory; `most`: in its first
    so many tokens."""
    counts_V = np.zeros(vocab_size, np.int64)
    for first in range(0, len(tokens_N[:most]), 1 << 22):
        last = min(first + (1 << 22), len(tokens_N) if most is None else most)
        part = np.asarray(tokens_N[first:last], np.int64)
        counts_V += np.bincount(part, minlength=vocab_size)
    return counts_V
