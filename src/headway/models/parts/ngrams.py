"""N-gram model of a classifier or tagger: label scores from tokens and their neighbours.

With little data, neural layers learn order and context but not rare words. A logistic regression on
n-grams has the opposite strengths. A model may therefore be an ensemble of two members: the layers
with their head, and a table with a score per n-gram and label. The table is fitted before training
and then fixed. The prediction is the weighted mean of the two scores (`NgramScores`).

N-grams are identified by a hash, so the table has a fixed size and needs no list of n-grams. Tokens
have several features (`TokenView`), which follow from the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.nn.layout import Layout


class TokenView(IntEnum):
    """Features of a token from which n-grams are formed. Each is a row of the table
    `Ngrams.views_KV`, and 0 means that there is no token."""

    PIECE = 0
    FOLDED = 1
    """Index of the token in lower case."""

    SHAPE = 2
    """Index of the token's shape: capitals, digits, symbols, whether it begins a word, and its
    segment."""

    ENDING = 3
    """Index of the last three letters of the token, in lower case."""

    BEGINS = 4
    """1 if the token begins a word, 0 if it continues one."""


class NgramFeature(NamedTuple):
    view: TokenView
    offsets: tuple[int, ...]
    """Positions of the n-gram's tokens, relative to the current token."""


TEXT_NGRAMS = (NgramFeature(TokenView.FOLDED, (0,)), NgramFeature(TokenView.FOLDED, (0, 1)))
"""N-grams at each token of a text to classify, in addition to whole words."""

AROUND: dict[TokenView, tuple[tuple[int, ...], ...]] = {
    TokenView.PIECE: ((0,),),
    TokenView.FOLDED: ((0,), (-1,), (1,), (-2,), (2,), (-1, 0), (0, 1)),
    TokenView.SHAPE: ((-1, 0, 1), (-2, -1, 0), (0, 1, 2), (-2, -1, 0, 1, 2), (0, 1, 2, 3)),
    TokenView.ENDING: ((0,), (1,), (2,)),
}
TOKEN_NGRAMS = tuple(
    NgramFeature(view, offsets) for view, several in AROUND.items() for offsets in several
)
"""N-grams around each token to tag, in addition to its whole word."""

LONGEST_WORD = 4
"""Maximum number of tokens by which a word is identified. Further tokens of longer words are
ignored."""

SHAPES = 1 << 8
"""Upper limit of the number of shapes in a vocabulary. To distinguish segments, a multiple of this
number is added to the shape."""

PRIME = (1 << 31) - 1
"""Modulus of the n-gram hash: the largest prime below 2³¹ (a Mersenne prime), so that products fit
into 64 bits."""

SHARE = 0.6
"""Weight of the n-grams until it is fitted on validation data. For classifiers trained from
scratch, values from 1/2 to 2/3 were equally good on every dataset."""


@dataclass(frozen=True)
class NgramScores:
    """Label scores of the n-gram model, and their weight in the prediction."""

    scores_RC: Tensor
    """Label scores, with one row per text (classes) or per token (tags)."""

    ngram_weight: Tensor
    """Weight of the n-gram scores, a scalar tensor between 0 and 1. The scores of the neural head
    have the remaining weight."""

    def rows(self, rows_R: Tensor) -> NgramScores:
        return NgramScores(self.scores_RC[rows_R], self.ngram_weight)

    def blend(self, neural_RC: Tensor) -> Tensor:
        """Return the weighted mean of these scores and those of the neural head."""
        scores_RC = self.scores_RC.to(neural_RC.dtype)
        return torch.lerp(neural_RC, scores_RC, self.ngram_weight.to(neural_RC.dtype))


class Ngrams(nn.Module):
    """Label scores from n-grams. A text is scored by its distinct n-grams, a token by the n-grams
    around it."""

    views_KV: Tensor
    weight_GC: Tensor
    bias_C: Tensor
    share: Tensor

    def __init__(self, n_buckets: int, n_labels: int, vocab_size: int, *, of_texts: bool) -> None:
        super().__init__()
        self.of_texts, self.grams = of_texts, TEXT_NGRAMS if of_texts else TOKEN_NGRAMS
        # Buffers are saved with the weights but not trained.
        self.register_buffer("views_KV", torch.zeros(len(TokenView), vocab_size, dtype=torch.int32))
        self.register_buffer("weight_GC", torch.zeros(n_buckets, n_labels))
        self.register_buffer("bias_C", torch.zeros(n_labels))
        self.register_buffer("share", torch.tensor(SHARE))

    def score_labels(
        self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None
    ) -> NgramScores:
        return NgramScores(self(tokens_N, layout, segments_N), self.share)

    def forward(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        if not self.of_texts:
            return self.weight_GC[self.buckets(tokens_N, layout, segments_N)].sum(1) + self.bias_C
        numbers, owner = self.unique_per_text(tokens_N, layout)
        n, n_labels = layout.starts_B.shape[0], len(self.bias_C)
        sums_BC = self.weight_GC.new_zeros(n + 1, n_labels)  # the last row is for padding
        owner_KC = owner[:, None].expand(-1, n_labels)
        sums_BC = sums_BC.scatter_add(0, owner_KC, self.weight_GC[numbers])
        return sums_BC[:-1] + self.bias_C

    def unique_per_text(self, tokens_N: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return two tensors: the index in the table and the index of the text, for each n-gram.
        N-grams of padding, and repetitions within a text, get the text index after the last one, so
        that they can be ignored."""
        n_buckets, nobody = len(self.weight_GC), layout.starts_B.shape[0]
        owner_N = torch.where(layout.real_N(), layout.numbers_N(), nobody)
        keys = (owner_N[:, None] * n_buckets + self.buckets(tokens_N, layout)).flatten()
        keys = keys.sort().values
        again = torch.cat([torch.zeros_like(keys[:1], dtype=torch.bool), keys[1:] == keys[:-1]])
        owner = torch.where(again, nobody, keys // n_buckets)
        return keys % n_buckets, owner

    def buckets(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        """Return the table indices (hash buckets) of the n-grams at each token (N, grams)."""
        views_KN = self.views_KV[:, tokens_N].long()
        if segments_N is not None:
            of_shapes = torch.arange(len(TokenView), device=tokens_N.device) == TokenView.SHAPE
            views_KN = views_KN + of_shapes[:, None] * (SHAPES * segments_N)
        seen = {offset: self._seen(views_KN, layout, offset) for offset in self._offsets}
        found = [self._word({o: seen[o] for o in range(LONGEST_WORD)})]
        found += [_hash([seen[o][gram.view] for o in gram.offsets]) for gram in self.grams]
        salt = torch.arange(1, len(found) + 1, device=tokens_N.device) * 7919
        mixed = (torch.stack(found, 1) + salt) % PRIME * 1_103_515_245 % PRIME
        return mixed % len(self.weight_GC)

    def spans(self, tokens_T: Tensor) -> list[list[tuple[int, ...]]]:
        """Return the token positions that each n-gram in `buckets` covers, for a single text."""
        n, begins_T = len(tokens_T), (self.views_KV[TokenView.BEGINS, tokens_T] > 0).tolist()
        found = []
        for t in range(n):
            end = t + 1
            while begins_T[t] and end < min(n, t + LONGEST_WORD) and not begins_T[end]:
                end += 1
            near = (tuple(t + o for o in gram.offsets if 0 <= t + o < n) for gram in self.grams)
            found.append([tuple(range(t, end)), *(places or (t,) for places in near)])
        return found

    @property
    def _offsets(self) -> Sequence[int]:
        return sorted({o for gram in self.grams for o in gram.offsets} | {*range(LONGEST_WORD)})

    def _seen(self, views_KN: Tensor, layout: Layout, offset: int) -> Tensor:
        """Return the features of the token at an offset from each token; 0 if that is outside the
        text."""
        n, numbers_N = views_KN.shape[1], layout.numbers_N()
        there_N = torch.arange(n, device=views_KN.device) + offset
        inside_N = (there_N >= 0) & (there_N < n)
        there_N = there_N.clamp(0, n - 1)
        same_N = inside_N & (numbers_N[there_N] == numbers_N) & layout.real_N()[there_N]
        return views_KN[:, there_N] * same_N

    def _word(self, seen: dict[int, Tensor]) -> Tensor:
        """Return the hash of the word that begins at each token; 0 if none does."""
        first_KN = seen[0]
        word_N, goes_on_N = first_KN[TokenView.FOLDED], first_KN[TokenView.BEGINS] > 0
        for offset in range(1, LONGEST_WORD):
            folded_N, begins_N = seen[offset][TokenView.FOLDED], seen[offset][TokenView.BEGINS]
            goes_on_N = goes_on_N & (folded_N > 0) & (begins_N == 0)
            word_N = torch.where(goes_on_N, _hash([word_N, folded_N]), word_N)
        return torch.where(first_KN[TokenView.BEGINS] > 0, word_N, 0)


def _hash(codes: Sequence[Tensor]) -> Tensor:
    found = codes[0]
    for code in codes[1:]:
        found = (found * 48_271 + code * 69_621 + 1) % PRIME
    return found
