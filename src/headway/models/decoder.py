"""Decoder-only models such as GPT: a causal stack that predicts the next token."""

from __future__ import annotations

from torch import Tensor, nn

from headway.errors import UserError
from headway.models.parts.body import stack, text_front
from headway.models.parts.counted import LastTokens, NgramLMHead, TokenFront
from headway.models.parts.front import Front
from headway.models.parts.output_heads import (
    EncoderWithHeads,
    HiddenStates,
    LabelHead,
    LMHead,
    ModelInput,
)
from headway.nn.cache import Cache
from headway.nn.embedding import Embedding
from headway.nn.layout import Layout
from headway.nn.stack import Stack
from headway.settings.model import DecoderSettings


class Decoder(EncoderWithHeads):
    """Decoder-only model. `forward` returns one vector per token, and `scores` the logits of the
    next token.

    Classes are predicted from the last token of a text, the only one that attends to all others.
    """

    def __init__(
        self,
        front: Front,
        stack: nn.Module,
        head: LMHead | NgramLMHead | None,
        heads: nn.ModuleDict | None = None,
        pooling: str = "last",
    ) -> None:
        super().__init__()
        self.front, self.stack, self.head = front, stack, head
        self.heads = nn.ModuleDict() if heads is None else heads
        self.pooling = pooling

    def forward(self, tokens_N: Tensor, layout: Layout, cache: Cache | None = None) -> Tensor:
        return self.stack(self.front(tokens_N, layout), layout, cache=cache)

    def states(self, *streams: ModelInput, first: bool = False) -> HiddenStates:
        (stream,) = streams
        tokens_N, layout = stream.values, stream.layout
        return HiddenStates(self(tokens_N, layout), layout)

    def head_named(self, name: str) -> nn.Module:
        return self.lm_head if name == "words" else super().head_named(name)

    def scores(self, x_ND: Tensor) -> Tensor:
        return self.lm_head(x_ND)

    @property
    def is_counted(self) -> bool:
        """Whether the model is a table of counted n-grams instead of a neural network."""
        return isinstance(self.head, NgramLMHead)

    @property
    def lm_head(self) -> LMHead | NgramLMHead:
        """The output head that computes the logits of the next token."""
        if self.head is None:
            has = ", ".join(self.heads)
            raise UserError(
                f"this model has no 'words' head (heads: {has or 'none'}). Add words to "
                "model.heads and train again."
            )
        return self.head


def decoder(settings: DecoderSettings) -> Decoder:
    if settings.is_counted:
        # LastTokens has the interface that Stack expects of a layer, but is not a subclass.
        body = Stack([LastTokens(settings.order - 1)])  # type: ignore[list-item]
        return Decoder(
            TokenFront(settings.vocab_size), body, NgramLMHead(settings.vocab_size, settings.order)
        )
    tokens = Embedding(settings.vocab_size, settings.d_model)
    labels = [name for name in settings.heads if name != "words"]
    return Decoder(
        text_front(settings, tokens),
        stack(settings, causal=True),
        _words(settings, tokens) if "words" in settings.heads else None,
        nn.ModuleDict({name: _labels(settings, name) for name in labels}),
        settings.pooling,
    )


def _words(settings: DecoderSettings, tokens: nn.Embedding) -> LMHead:
    tied = tokens if settings.tie else None
    return LMHead(settings.d_model, settings.vocab_size, tied, settings.head_bias)


def _labels(settings: DecoderSettings, name: str) -> LabelHead:
    transitions = settings.tag_transitions and name == "tags"
    return LabelHead(settings.d_model, settings.n_labels, settings.dropout, transitions)
