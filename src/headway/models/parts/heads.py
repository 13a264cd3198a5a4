"""Heads read vectors out: words, masked words, a pooled vector, classes of texts, tags of words."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headway.nn.dropout import Dropout
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.loss import Loss, Smoothing, vocabulary_loss


class WordHead(nn.Module):
    """A score for every word of the vocabulary; its matrix may be an embedding's (tied)."""

    def __init__(
        self, d_model: int, vocab_size: int, tied: nn.Embedding | None, bias: bool
    ) -> None:
        super().__init__()
        self.linear = Linear(d_model, vocab_size, bias=bias)
        if tied is not None:
            self.linear.weight = tied.weight

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.linear(x_ND)

    def loss(
        self,
        x_ND: Tensor,
        targets_N: Tensor,
        smoothing: Smoothing,
        weights_N: Tensor | None = None,
    ) -> Loss:
        """The loss of all rows without holding all their scores."""
        weight, bias = self.linear.weight, self.linear.bias
        return vocabulary_loss(x_ND, weight, bias, targets_N, smoothing, weights_N)


class MaskedWordHead(nn.Module):
    """BERT's: one more layer and norm before the words. Apply it to the masked rows alone."""

    def __init__(
        self, d_model: int, activation: Callable[[Tensor], Tensor], norm: nn.Module, words: WordHead
    ) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model)
        self.activation, self.norm, self.words = activation, norm, words

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.words(self.before_words(x_ND))

    def before_words(self, x_ND: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x_ND)))


class Pooler(nn.Module):
    """One vector a text: its first token's or the mean of all, then a layer and tanh as in BERT."""

    def __init__(self, d_model: int, pooling: str) -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model)
        self.pooling = pooling

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return self.dense(pooled(x_ND, layout, self.pooling)).tanh()


class LabelHead(nn.Module):
    """Scores of labels for each row it is given: texts (classes) or tokens (tags)."""

    def __init__(self, d_model: int, n_labels: int, dropout: float) -> None:
        super().__init__()
        self.drop = Dropout(dropout)
        self.linear = Linear(d_model, n_labels)

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.linear(self.drop(x_ND))


def pooled(x_ND: Tensor, layout: Layout, pooling: str) -> Tensor:
    """One row a sequence: its `first` token, or the `mean` of its tokens."""
    if pooling == "first":
        return x_ND[layout.starts_B.long()]
    number_N = torch.repeat_interleave(layout.lengths_B, output_size=layout.n_rows)
    wide = torch.promote_types(x_ND.dtype, torch.float32)
    zeros_BD = x_ND.new_zeros(layout.n_sequences, x_ND.shape[1], dtype=wide)
    sum_BD = zeros_BD.index_add(0, number_N, x_ND.to(wide))
    return (sum_BD / layout.lengths_B[:, None].clamp(min=1)).to(x_ND.dtype)
