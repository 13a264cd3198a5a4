"""Output heads for vocabulary logits, masked tokens, pooled vectors, classes, tags and
reconstruction."""

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
from headway.models.parts.ngrams import Ngrams, NgramScores
from headway.nn.attention.attention import Memory
from headway.nn.dropout import Dropout
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.loss import LabelSmoothing, Loss, vocabulary_loss


class LMHead(nn.Module):
    """Language-model head: logits of the vocabulary. Its matrix may be shared with an embedding
    (tied)."""

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        tied: nn.Embedding | None,
        bias: bool,
        scale: float = 1.0,
    ) -> None:
        """Build the head.

        `scale`: factor that the vectors are multiplied by before the matrix.
        """
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
        smoothing: LabelSmoothing,
        weights_N: Tensor | None = None,
    ) -> Loss:
        """Return the loss without keeping the logits of all tokens in memory."""
        weight, bias = self.linear.weight, self.linear.bias
        return vocabulary_loss(self._scaled(x_ND), weight, bias, targets_N, smoothing, weights_N)


class MaskedLMHead(nn.Module):
    """BERT's masked language model head: a dense layer and a norm before the vocabulary matrix.

    To save time, apply it only to masked tokens.
    """

    def __init__(
        self, d_model: int, activation: Callable[[Tensor], Tensor], norm: nn.Module, words: LMHead
    ) -> None:
        super().__init__()
        self.dense = Linear(d_model, words.linear.in_features)
        self.activation, self.norm, self.words = activation, norm, words

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.words(self.transform(x_ND))

    def transform(self, x_ND: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x_ND)))

    def loss(
        self,
        x_RD: Tensor,
        targets_R: Tensor,
        smoothing: LabelSmoothing,
        weights_R: Tensor | None = None,
    ) -> Loss:
        """Return the loss of masked tokens without keeping the logits of all of them in memory."""
        return self.words.loss(self.transform(x_RD), targets_R, smoothing, weights_R)


class Pooler(nn.Module):
    """Head that returns one vector per text: pooling, then a dense layer with tanh (as in BERT) or
    ReLU."""

    def __init__(self, d_model: int, pooling: str, activation: str = "tanh") -> None:
        super().__init__()
        self.dense = Linear(d_model, d_model)
        self.pooling = pooling
        self.activation = {"tanh": torch.tanh, "relu": torch.relu}[activation]

    def forward(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return self.activation(self.dense(layout.pooled(x_ND, self.pooling)))


class LabelHead(nn.Module):
    """Head that returns label scores for each vector, which represents a text (classes) or a token
    (tags).

    `transitions`: add learned CRF transition scores from each label (row) to each label (column).
    The row after the last label is for the start of a sequence; one more row is unused.
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
def set_class_prior(model: nn.Module, prior_C: NDArray[np.floating]) -> None:
    """Set the biases of new classification heads to the logits of the class frequencies.

    Otherwise a short training would spend most of its time on learning these biases from zero. A
    head that comes from another run keeps its biases.
    """
    for part in model.modules():
        if isinstance(part, LabelHead) and part.transitions is None:
            bias_C = part.linear.bias
            if len(bias_C) == len(prior_C) and not bias_C.any():
                bias_C.copy_(torch.from_numpy(prior_C))


@torch.no_grad()
def apply_temperature(model: nn.Module, temperature: float, share: float | None = None) -> None:
    """Divide all label scores by a temperature, by changing the weights. Every runtime then
    computes the same probabilities.

    `share`: new weight of the n-gram scores; None: unchanged.
    """
    for part in model.modules():
        if isinstance(part, LabelHead):
            for weight in part.parameters():
                weight.div_(temperature)
        elif isinstance(part, Ngrams):
            part.weight_GC.div_(temperature)
            part.bias_C.div_(temperature)
            if share is not None:
                part.share.fill_(share)


class ReconstructionHead(nn.Module):
    """Head that reconstructs masked input: the pixels of a patch, or the mel frames of a
    position."""

    def __init__(self, d_model: int, n_values: int) -> None:
        super().__init__()
        self.linear = Linear(d_model, n_values)

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.linear(x_ND)


class CosineHead:
    """Head whose class scores depend only on directions: `scale` times the cosine similarity to the
    vector of each class."""

    def __init__(self, head: LabelHead, scale: float) -> None:
        self.head, self.scale = head, scale

    def __call__(self, x_RD: Tensor) -> Tensor:
        return self.scale * self.cosines(x_RD)

    def cosines(self, x_RD: Tensor) -> Tensor:
        """Return the cosine similarities between vectors and class vectors, in fp32."""
        weight_CD = F.normalize(at_least_fp32(self.head.linear.weight), dim=-1)
        return F.normalize(at_least_fp32(x_RD), dim=-1) @ weight_CD.T


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert to fp32. Tensors in fp32 or fp64 are unchanged."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class ModelInput:
    """Flat batch for a front: token indices, images or audio."""

    values: Any
    layout: Layout
    segments_N: Tensor | None = None


class HiddenStates(NamedTuple):
    x_ND: Tensor
    """Hidden states of the last layer, which the output heads read."""

    layout: Layout
    memory: Memory | None = None
    """Encoder output of an encoder-decoder; None for other models."""

    ngrams: NgramScores | None = None
    """Label scores of the n-gram model. None during training, and for models without one."""


class Model(nn.Module):
    """Interface shared by all model families: hidden states, and output heads by name."""

    def states(self, *streams: ModelInput, first: bool = False) -> HiddenStates:
        """Compute hidden states.

        `first`: compute only the vectors that whole sequences are classified from. Models that
        cannot do this compute all vectors.
        """
        raise NotImplementedError

    def head_named(self, name: str) -> nn.Module:
        raise NotImplementedError


class EncoderWithHeads(Model):
    """Model with several output heads by name, such as `classes` for texts and `tags` for
    tokens."""

    heads: nn.ModuleDict
    pooling: str

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """Return one vector per text."""
        return layout.pooled(x_ND, self.pooling)

    def class_rows(self, x_ND: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return the input of each classification head, with one row per text. `classes` averages
        the scores of several heads."""
        return {"classes": self.pooled(x_ND, layout)}

    def classes(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """Return the class scores, with one row per text."""
        read = [self.head_named(n)(x_BD) for n, x_BD in self.class_rows(x_ND, layout).items()]
        return read[0] if len(read) == 1 else torch.stack(read).mean(0)

    def cosine_head(self, scale: float) -> Callable[[Tensor], Tensor]:
        """Return a function that scores classes by scaled cosine similarities instead of dot
        products."""
        head = self.head_named("classes")
        assert isinstance(head, LabelHead)
        return CosineHead(head, scale)

    def tags(self, x_ND: Tensor) -> Tensor:
        """Return the tag scores, with one row per token."""
        return self.head_named("tags")(x_ND)

    def head_named(self, name: str) -> nn.Module:
        if name not in self.heads:
            has = ", ".join(self.heads) or "none"
            raise UserError(
                f"this model has no {name!r} head (heads: {has}). Add {name} to model.heads and "
                "train again."
            )
        return self.heads[name]
