"""Next-token probabilities from counts of n-grams: interpolated modified Kneser–Ney.

Chen and Goodman (1998), in the form of Heafield et al. (2013); `lmplz` gives the same values. With
a(hw) the count of a token w after a context h, h' the context without its first token, and D(1),
D(2), D(3+) the discounts of its order,

    p(w | h) = (a(hw) − D(a(hw))) / Σ a(h·)  +  backoff(h) · p(w | h')
    backoff(h) = Σ D(a(h·)) / Σ a(h·)

Unigrams back off to the uniform distribution over the vocabulary. For the longest n-grams, a(·) is
the number of occurrences. For shorter ones, it is the number of different preceding tokens. N-grams
at the start of a text have no preceding token, so their occurrences are counted.

All n-grams are nodes of one tree, numbered level by level. The key of the node of `h w` is
number(h) · V + w. Numbers grow with the length, so the keys of all lengths are one sorted list.
Finding an n-gram takes one search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of an order for which none can be estimated, as in tiny texts; `lmplz` uses the same
values. That happens if no n-gram occurs exactly once, or none twice, or none three times, or if an
estimate is out of range."""

NONE = -1
"""Placeholder for a node that does not exist, because the context does not occur in the counted
text."""


class NgramTables(NamedTuple):
    """Result of counting n-grams of all orders. `KneserNey` describes the fields."""

    chance_V: FloatArray
    keys_J: IntArray
    share_J: FloatArray
    backoff_I: FloatArray
    discounts: tuple[tuple[float, ...], ...]


class KneserNey(nn.Module):
    """N-gram language model with modified Kneser–Ney smoothing.

    `fit` counts n-grams, so there are no gradients. Before `fit`, the distribution is uniform.
    """

    keys_J: Tensor

    def __init__(self, vocab_size: int, order: int) -> None:
        super().__init__()
        if order < 1:
            raise ValueError(f"order={order} must be at least 1")
        self.vocab_size, self.order = vocab_size, order
        self.chance_V = _kept(torch.full((vocab_size,), 1.0 / vocab_size))
        """Probability of each token as a unigram."""
        self.register_buffer("keys_J", torch.zeros(0, dtype=torch.long))
        """Sorted keys of all n-grams of two or more tokens. The first key belongs to node V."""
        self.share_J = _kept(torch.zeros(0))
        """Discounted count of each n-gram of two or more tokens, divided by the total count of its
        context."""
        self.backoff_I = _kept(torch.ones(vocab_size))
        """Backoff weight of each node that may be a context, which is every n-gram except the
        longest."""

    @classmethod
    def fitted(
        cls, inputs_N: NDArray[Any], labels_N: NDArray[Any], lengths: Sequence[int] | IntArray,
        *, vocab_size: int, order: int,
    ) -> KneserNey:  # fmt: skip
        model = cls(vocab_size, order)
        model.fit(inputs_N, labels_N, lengths)
        return model

    @torch.no_grad()
    def fit(
        self, inputs_N: NDArray[Any], labels_N: NDArray[Any], lengths: Sequence[int] | IntArray
    ) -> NgramTables:
        """Count the n-grams of concatenated texts.

        `inputs_N`: all tokens, including the start token of each text. `labels_N`: the token that
        follows each input, including the end token of each text. `lengths`: number of tokens of
        each text.
        """
        found = count(inputs_N, labels_N, lengths, self.vocab_size, self.order)
        for name in ("chance_V", "share_J", "backoff_I"):
            values = torch.from_numpy(getattr(found, name)).to(self.chance_V)
            setattr(self, name, _kept(values))
        self.keys_J = torch.from_numpy(found.keys_J).to(self.chance_V.device)
        return found

    def resize(self, sizes: Mapping[str, int]) -> None:
        """Allocate tensors of these sizes by name, to load an n-gram table from a file. The sizes
        depend on the counted text."""
        for name, size in sizes.items():
            old: Tensor = getattr(self, name)
            new = old.new_zeros(size)
            setattr(self, name, _kept(new) if isinstance(old, nn.Parameter) else new)

    @property
    def n_grams(self) -> int:
        """Number of n-grams in the table, including unigrams."""
        return self.vocab_size + len(self.keys_J)

    def contexts(self, recent_NK: Tensor) -> Tensor:
        """Return the nodes of the last 1, 2, … tokens (N, order − 1), given the output of
        `preceding_tokens`. The node is `NONE` if the context does not occur in the counted text."""
        x_NK = recent_NK.clone()
        for k in range(1, recent_NK.shape[1]):
            for near in reversed(range(k)):
                x_NK[:, k] = self.find(x_NK[:, k], recent_NK[:, near])
        return x_NK

    def find(self, context_N: Tensor, tokens_N: Tensor) -> Tensor:
        """Return the node of each context extended by a token, or `NONE` if that n-gram was not
        counted."""
        if not len(self.keys_J):
            return torch.full_like(tokens_N, NONE)
        key_N = context_N * self.vocab_size + tokens_N
        at_N = torch.searchsorted(self.keys_J, key_N).clamp(max=len(self.keys_J) - 1)
        is_it_N = (self.keys_J[at_N] == key_N) & (context_N != NONE)
        return torch.where(is_it_N, at_N + self.vocab_size, NONE)

    def all_probs(self, x_NK: Tensor) -> Tensor:
        """Return the probability of every token of the vocabulary after each context (N, V)."""
        p_NV = self.chance_V.repeat(len(x_NK), 1)
        for context_N in x_NK.unbind(1):
            rows_R = torch.nonzero(context_N != NONE).squeeze(1)
            nodes_R = context_N[rows_R]
            p_NV[rows_R] *= self.backoff_I[nodes_R, None]
            edges_2R = torch.stack([nodes_R, nodes_R + 1]) * self.vocab_size
            start_R, end_R = torch.searchsorted(self.keys_J, edges_2R)
            size_R = end_R - start_R
            row = rows_R.repeat_interleave(size_R)
            behind_R = size_R.cumsum(0) - size_R
            child = torch.arange(len(row), device=row.device)
            child += (start_R - behind_R).repeat_interleave(size_R)
            p_NV[row, self.keys_J[child] % self.vocab_size] += self.share_J[child]
        return p_NV

    def token_probs(self, x_NK: Tensor, tokens_N: Tensor) -> Tensor:
        """Return the probability of one given token after each context; `all_probs` returns those
        of all tokens."""
        p_N = self.chance_V[tokens_N]
        for context_N in x_NK.unbind(1):
            known_N, child_N = context_N != NONE, self.find(context_N, tokens_N)
            backoff_N = self.backoff_I[context_N.clamp(min=0)]
            p_N = torch.where(known_N, backoff_N * p_N, p_N)
            if len(self.share_J):
                share_N = self.share_J[(child_N - self.vocab_size).clamp(min=0)]
                p_N = torch.where(child_N != NONE, p_N + share_N, p_N)
        return p_N


def preceding_tokens(tokens_N: Tensor, place_N: Tensor, n: int) -> Tensor:
    """Return each token and the tokens before it in its sequence, `n` in total, nearest first (N,
    n). `NONE` fills places before the start of the sequence.

    `place_N`: number of tokens before each token in its sequence.
    """
    there_NK = torch.arange(len(tokens_N), device=tokens_N.device)[:, None]
    back_K = torch.arange(n, device=tokens_N.device)
    inside_NK = back_K <= place_N[:, None]
    return torch.where(inside_NK, tokens_N[(there_NK - back_K).clamp(min=0)], NONE)


def _kept(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def count(
    inputs_N: NDArray[Any],
    labels_N: NDArray[Any],
    lengths: Sequence[int] | IntArray,
    vocab_size: int,
    order: int,
) -> NgramTables:
    """Count all n-grams of up to `order` tokens, and compute their smoothed probabilities."""
    labels_N = np.asarray(labels_N, np.int64)
    first_N = _first(np.asarray(lengths, np.int64), len(labels_N))
    starts_V = np.zeros(vocab_size, bool)
    starts_V[np.asarray(inputs_N, np.int64)[first_N]] = True

    # Variables for n-grams of the current length, beginning with unigrams: contexts, counts,
    # whether they begin with the start token (which nothing precedes), and which of them ends at
    # each label.
    context_G, counts_G = (
        np.zeros(vocab_size, np.int64),
        np.bincount(labels_N, minlength=vocab_size),
    )
    begins_G, ends_N = np.zeros(vocab_size, bool), labels_N
    context_N, base = np.asarray(inputs_N, np.int64), 0
    levels, keys = [], []
    for n in range(2, order + 1):
        known = np.flatnonzero(context_N != NONE)
        keys_G, first_G, which, times_G = np.unique(
            context_N[known] * vocab_size + labels_N[known],
            return_index=True, return_inverse=True, return_counts=True,
        )  # fmt: skip
        # Each distinct n-gram adds one preceding token to the count of its suffix, which is one
        # token shorter.
        before_G = np.bincount(ends_N[known[first_G]], minlength=len(counts_G))
        levels.append((context_G, np.where(begins_G, counts_G, before_G)))
        context_G, counts_G = keys_G // vocab_size, times_G
        begins_G = starts_V[context_G] if n == 2 else begins_G[context_G - base]
        base += len(levels[-1][0])
        keys.append(keys_G)
        ends_N = np.full(len(labels_N), NONE)
        ends_N[known] = which.reshape(-1)
        # The n-gram that ends at a position is the context of the next position.
        context_N = np.roll(np.where(ends_N == NONE, NONE, base + ends_N), 1)
        context_N[first_N] = NONE
    levels.append((context_G, counts_G))
    return _smoothed(levels, np.concatenate([np.zeros(0, np.int64), *keys]))


def _smoothed(levels: Sequence[tuple[IntArray, IntArray]], keys_J: IntArray) -> NgramTables:
    """Compute smoothed probabilities from the contexts and counts of the n-grams, which are sorted
    by length, shortest first."""
    counts_V = levels[0][1]
    total, size = max(1, int(counts_V.sum())), len(counts_V)
    discounts = [discounts_of(counts_G) for _, counts_G in levels]
    off_V = _off(counts_V, discounts[0])
    left = off_V.sum() / total if counts_V.any() else 1.0
    chance_V = (counts_V - off_V) / total + left / size
    backoff_I, shares = np.ones(size + sum(len(one) for one, _ in levels[1:-1])), [np.zeros(0)]
    for (context_G, counts_G), taken in zip(levels[1:], discounts[1:], strict=True):
        off_G = _off(counts_G, taken)
        nodes, which = np.unique(context_G, return_inverse=True)
        which = which.reshape(-1)
        total_H = np.bincount(which, counts_G, len(nodes))
        backoff_I[nodes] = np.bincount(which, off_G, len(nodes)) / total_H
        shares.append((counts_G - off_G) / total_H[which])
    return NgramTables(chance_V, keys_J, np.concatenate(shares), backoff_I, tuple(discounts))


def _off(counts_G: IntArray, discounts: tuple[float, ...]) -> FloatArray:
    off_G: FloatArray = np.array([0.0, *discounts])[np.minimum(counts_G, 3)]
    return off_G


def discounts_of(counts_G: IntArray) -> tuple[float, ...]:
    """Estimate the discounts D(1), D(2) and D(3+) from the numbers of n-grams that occur once,
    twice, three and four times."""
    n1, n2, n3, n4 = (int((counts_G == k).sum()) for k in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    inside = all(0.0 <= one <= k for k, one in enumerate(found, 1))
    return found if inside else FALLBACK


def _first(lengths: IntArray, n: int) -> IntArray:
    assert int(lengths.sum()) == n, "the lengths do not add up to the number of tokens"
    starts = np.cumsum(lengths) - lengths
    return starts[lengths > 0]
