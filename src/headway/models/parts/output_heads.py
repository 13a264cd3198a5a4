"""Heads read vectors out: words, masked words, a pooled vector, classes of texts, tags of words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.errors import UserError
from headway.models.parts.ngrams import Ngrams, Vote
from headway.nn.attention.attention import Memory
from headway.nn.dropout import Dropout
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.loss import Loss, Smoothing, vocabulary_loss


class WordHead(nn.Module):
    """A score for every word of the vocabulary; its matrix may be an embedding's (tied)."""

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        tied: nn.Embedding | None,
        bias: bool,
        scale: float = 1.0,
    ) -> None:
        """`scale`: what vectors are multiplied by before they are scored."""
        super().__init__()
        self.linear = Linear(d_model, vocab_size, bias=bias)
        if tied is not None:
            self.linear.weight = tied.weight
        self.scale = scale

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.linear(self._scaled(x_ND))

    def _scaled(self, x_ND: Tensor) -> Tensor:
        return x_ND if self.scale == 1.0 else x_ND * self.scale

    def loss(
        self,
        x_ND: Tensor,
        targets_N: Tensor,
        smoothing: Smoothing,
        weights_N: Tensor | None = None,
    ) -> Loss:
        """The loss of all rows without holding all their scores."""
        weight, bias = self.linear.weight, self.linear.bias
        return vocabulary_loss(self._scaled(x_ND), weight, bias, targets_N, smoothing, weights_N)


class MaskedWordHead(nn.Module):
    """BERT's: one more layer and norm before the words. Apply it to the masked rows alone."""

    def __init__(
        self, d_model: int, activation: Callable[[Tensor], Tensor], norm: nn.Module, words: WordHead
    ) -> None:
        super().__init__()
        self.dense = Linear(d_model, words.linear.in_features)
        self.activation, self.norm, self.words = activation, norm, words

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.words(self.before_words(x_ND))

    def before_words(self, x_ND: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x_ND)))

    def loss(
        self,
        x_RD: Tensor,
        targets_R: Tensor,
        smoothing: Smoothing,
        weights_R: Tensor | None = None,
    ) -> Loss:
        """As `WordHead.loss`; the rows are the masked ones."""
        return self.words.loss(self.before_words(x_RD), targets_R, smoothing, weights_R)


class Pooler(nn.Module):
    """One vector a text, as `Layout.pooled` makes it, then a layer and tanh as in BERT, or relu."""

    def __init__(self, d_model: int, pooling: str, activation: str = "tanh") -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model)
        self.pooling = pooling
        self.activation = {"tanh": torch.tanh, "relu": torch.relu}[activation]

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return self.activation(self.dense(layout.pooled(x_ND, self.pooling)))


class LabelHead(nn.Module):
    """Scores of labels for each row it is given: texts (classes) or tokens (tags).

    `transitions`: it also learns what follows what, a score for each label (column) behind each
    label (row); the row after the last label is for the first of a sequence, and one more is spare.
    """

    def __init__(
        self, d_model: int, n_labels: int, dropout: float, transitions: bool = False
    ) -> None:
        super().__init__()
        self.drop = Dropout(dropout)
        self.linear = Linear(d_model, n_labels)
        self.transitions = (
            nn.Parameter(torch.zeros(n_labels + 2, n_labels)) if transitions else None
        )

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.linear(self.drop(x_ND))


@torch.no_grad()
def start_at(model: nn.Module, prior_C: NDArray[np.floating]) -> None:
    """Set the biases of fresh heads of classes to the scores that the frequencies alone give.

    Otherwise most of a short training is spent on learning these from zero. A head that comes from
    another run has biases, and keeps them.
    """
    for part in model.modules():
        if isinstance(part, LabelHead) and part.transitions is None:
            bias_C = part.linear.bias
            if len(bias_C) == len(prior_C) and not bias_C.any():
                bias_C.copy_(torch.from_numpy(prior_C))


@torch.no_grad()
def soften(model: nn.Module, temperature: float, share: float | None = None) -> None:
    """Divide all label scores by a temperature, in the weights that make them, so that every
    runtime computes the same probabilities. `share`: the weight of the n-grams from now on."""
    for part in model.modules():
        if isinstance(part, LabelHead):
            for weight in part.parameters():
                weight.div_(temperature)
        elif isinstance(part, Ngrams):
            part.weight_GC.div_(temperature)
            part.bias_C.div_(temperature)
            if share is not None:
                part.share.fill_(share)


class RebuildHead(nn.Module):
    """What a hidden row stood for: the pixels of a patch, or the mel frames of a moment."""

    def __init__(self, d_model: int, n_values: int) -> None:
        super().__init__()
        self.linear = Linear(d_model, n_values)

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.linear(x_ND)


class Angles:
    """Classes by direction alone: `scale` times the cosine of a row with the vector of each."""

    def __init__(self, head: LabelHead, scale: float) -> None:
        self.head, self.scale = head, scale

    def __call__(self, x_RD: Tensor) -> Tensor:
        return self.scale * self.cosines(x_RD)

    def cosines(self, x_RD: Tensor) -> Tensor:
        """In fp32."""
        weight_CD = F.normalize(wide(self.head.linear.weight), dim=-1)
        return F.normalize(wide(x_RD), dim=-1) @ weight_CD.T


def wide(x: Tensor) -> Tensor:
    """In fp32 or, if it is that already, wider."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class Input:
    """A flat batch of what a front reads: token numbers, pictures, recordings."""

    values: Any
    layout: Layout
    segments_N: Tensor | None = None


class States(NamedTuple):
    x_ND: Tensor
    """Of the last stream, as its heads read them."""

    layout: Layout
    memory: Memory | None = None
    """Of what is read first, where one stream is written from another."""

    ngrams: Vote | None = None
    """Label scores of the n-gram member; None without one, and during training."""


class Model(nn.Module):
    """What every family is to who asks it: vectors of streams, and heads by name that read them."""

    def states(self, *streams: Input, first: bool = False) -> States:
        """`first`: the vectors that whole sequences are read from will do; the last layer then
        computes no others, where it can."""
        raise NotImplementedError

    def head_named(self, name: str) -> nn.Module:
        raise NotImplementedError


class Readable(Model):
    """A model whose `heads`, by name, read out classes of texts and tags of tokens."""

    heads: nn.ModuleDict
    pooling: str

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """One vector a text."""
        return layout.pooled(x_ND, self.pooling)

    def class_rows(self, x_ND: Tensor, layout: Layout) -> dict[str, Tensor]:
        """What each head that says classes reads, a row a text; the answer is their mean."""
        return {"classes": self.pooled(x_ND, layout)}

    def classes(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """A row of scores for each text."""
        read = [self.head_named(n)(x_BD) for n, x_BD in self.class_rows(x_ND, layout).items()]
        return read[0] if len(read) == 1 else torch.stack(read).mean(0)

    def angles(self, scale: float) -> Callable[[Tensor], Tensor]:
        """What scores classes by direction alone."""
        head = self.head_named("classes")
        assert isinstance(head, LabelHead)
        return Angles(head, scale)

    def tags(self, x_ND: Tensor) -> Tensor:
        """A row of scores for each of the rows."""
        return self.head_named("tags")(x_ND)

    def head_named(self, name: str) -> nn.Module:
        if name not in self.heads:
            has = ", ".join(self.heads) or "none"
            raise UserError(f"this model has no {name!r} head (heads: {has}). Add it to `heads`.")
        return self.heads[name]
