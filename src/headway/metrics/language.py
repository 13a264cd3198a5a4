"""Scores of language models: likelihood in units that can be compared, and copying.

Loss per token depends on the tokenizer; bits per byte do not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

N_GRAM = 8
WORD = re.compile(r"\w+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)


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


@dataclass
class Copies:
    """Which runs of `n` words a training text holds; tells how much of another text is copied.

    Words are compared without case and punctuation. An n-gram is kept as 64 bits, so a text of
    millions of words takes 8 bytes a word; two different ones look alike once in 2⁶⁴/size.
    """

    n: int = N_GRAM
    _hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))

    @classmethod
    def of(cls, training: Iterable[str], n: int = N_GRAM) -> Copies:
        parts, waiting = [np.empty(0, dtype=np.uint64)], 0
        for text in training:
            parts.append(_n_grams(text, n))
            waiting += len(parts[-1])
            if waiting > 4_000_000:
                parts, waiting = [np.unique(np.concatenate(parts))], 0
        return cls(n, np.unique(np.concatenate(parts)))

    def share(self, texts: Iterable[str]) -> float:
        """Of all n-grams of these texts, the share that the training text holds too."""
        found, total = 0, 0
        for text in texts:
            grams = _n_grams(text, self.n)
            found += int(np.isin(grams, self._hashes).sum())
            total += len(grams)
        return found / max(1, total)


def _n_grams(text: str, n: int) -> NDArray[np.uint64]:
    words = WORD.findall(text.casefold())
    if len(words) < n:
        return np.empty(0, dtype=np.uint64)
    known = {word: _bits(word) for word in set(words)}
    words_N = np.array([known[word] for word in words], dtype=np.uint64)
    last = len(words) - n + 1
    sums = np.zeros(last, dtype=np.uint64)
    for place in range(n):
        sums = sums * FACTOR + words_N[place : place + last]  # modulo 2⁶⁴, as meant
    return sums


def _bits(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
