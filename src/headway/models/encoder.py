"""Encoders such as BERT: a bidirectional stack with output heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from headway.models.parts.body import norm_maker, stack, text_front
from headway.models.parts.ngrams import Ngrams
from headway.models.parts.output_heads import (
    EncoderWithHeads,
    HiddenStates,
    LabelHead,
    LMHead,
    MaskedLMHead,
    ModelInput,
    Pooler,
)
from headway.nn.embedding import Embedding
from headway.nn.feedforward import ACTIVATIONS
from headway.nn.layout import Layout
from headway.nn.stack import Stack
from headway.settings.model import EncoderSettings


class Encoder(EncoderWithHeads):
    """Encoder. `forward` returns one vector per token, which the configured output heads read.

    `ngrams`: an n-gram model whose label scores are averaged with those of the label head. The
    layers are trained without it, because the n-gram model memorizes the training texts and would
    leave them nothing to learn.
    """

    def __init__(
        self,
        front: nn.Module,
        stack: nn.Module,
        heads: nn.ModuleDict,
        pooling: str,
        ngrams: Ngrams | None = None,
    ) -> None:
        super().__init__()
        self.front, self.stack, self.heads, self.pooling = front, stack, heads, pooling
        self.ngrams = ngrams

    def forward(self, tokens_N: Any, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        """Return one vector per token.

        `tokens_N`: input of the front: token indices, images or audio.
        """
        more = () if segments_N is None else (segments_N,)
        return self.stack(self.front(tokens_N, layout, *more), layout)

    @property
    def neural(self) -> Encoder:
        """This encoder without its n-gram model. It shares the layers and heads."""
        if self.ngrams is None:
            return self
        alone = Encoder(self.front, self.stack, self.heads, self.pooling)
        return alone.train(self.training)

    def for_classes(
        self, tokens_N: Any, layout: Layout, segments_N: Tensor | None = None
    ) -> tuple[Tensor, Layout]:
        """Return the vectors that `classes` needs, and their layout. If classes are predicted from
        the first token of each text, the last layer computes only those."""
        n_first = self.n_first
        whole = n_first is None or not layout.has_all(n_first)
        if whole or not isinstance(self.stack, Stack) or not self.stack.can_end_early:
            return self(tokens_N, layout, segments_N), layout
        more = () if segments_N is None else (segments_N,)
        x_ND = self.front(tokens_N, layout, *more)
        first = layout.beginnings(int(n_first or 0))[1]
        return self.stack(x_ND, layout, n_first=n_first), first

    def states(self, *streams: ModelInput, first: bool = False) -> HiddenStates:
        (stream,) = streams
        given = stream.values, stream.layout, stream.segments_N
        x_ND, layout = self.for_classes(*given) if first else (self(*given), stream.layout)
        if self.ngrams is None or self.training:
            return HiddenStates(x_ND, layout)
        return HiddenStates(x_ND, layout, ngrams=self.ngrams.score_labels(*given))

    @property
    def n_first(self) -> int | None:
        """Number of tokens at the start of each text from which classes are predicted. None: all
        tokens."""
        return 1 if self.pooling == "first" else None

    def scores(self, x_ND: Tensor) -> Tensor:
        """Return the logits of the vocabulary for the given hidden states. In masked training,
        these are the states of masked tokens only."""
        return self.lm_head(x_ND)

    @property
    def lm_head(self) -> MaskedLMHead:
        """The output head that predicts masked tokens."""
        head = self.head_named("words")
        assert isinstance(head, MaskedLMHead)
        return head

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        """Return one vector per text. If pooling is `first` and there is a pooler as in BERT, apply
        it.

        With other kinds of pooling it is ignored, because sentence encoders such as MiniLM have a
        pooler among their weights but use the mean.
        """
        if "pooled" in self.heads and self.pooling == "first":
            return self.heads["pooled"](x_ND, layout)
        return super().pooled(x_ND, layout)


def encoder(settings: EncoderSettings) -> Encoder:
    tokens = Embedding(settings.vocab_size, settings.embedding_width)
    heads = nn.ModuleDict({name: _head(settings, name, tokens) for name in settings.heads})
    return Encoder(
        text_front(
            settings,
            tokens,
            settings.n_segments,
            mapped=settings.d_embedding is not None,
            mask=settings.token_dropout_mask,
        ),
        stack(settings, causal=False, shared=settings.share_layers),
        heads,
        settings.pooling,
        _ngrams(settings),
    )


def _ngrams(settings: EncoderSettings) -> Ngrams | None:
    labelled = [name for name in settings.heads if name in ("classes", "tags")]
    if not settings.ngrams or not labelled:
        return None
    sizes = settings.ngrams, settings.n_labels, settings.vocab_size
    return Ngrams(*sizes, of_texts=labelled == ["classes"])


def _head(settings: EncoderSettings, name: str, tokens: nn.Embedding) -> nn.Module:
    if name == "words":
        tied = tokens if settings.tie else None
        width = settings.embedding_width
        words = LMHead(width, settings.vocab_size, tied, settings.head_bias)
        activation = ACTIVATIONS.get(settings.activation, ACTIVATIONS["gelu"])
        norm = norm_maker(settings, settings.stack(), width)()
        return MaskedLMHead(settings.d_model, activation, norm, words)
    if name == "pooled":
        return Pooler(settings.d_model, settings.pooling, settings.pooler)
    transitions = settings.tag_transitions and name == "tags"
    return LabelHead(settings.d_model, settings.n_labels, settings.dropout, transitions)
