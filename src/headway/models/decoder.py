"""GPT and its kin: a stack that sees only what came before, and predicts the next token."""

from __future__ import annotations

from torch import Tensor, nn

from headway.config.model import DecoderSettings
from headway.models.parts.body import stack, text_front
from headway.models.parts.heads import WordHead
from headway.nn.cache import Cache
from headway.nn.layout import Layout


class Decoder(nn.Module):
    """`forward` gives a vector a token; `scores` turns it into scores of the next one."""

    def __init__(self, front: nn.Module, stack: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.front, self.stack, self.head = front, stack, head

    def forward(self, tokens_N: Tensor, layout: Layout, cache: Cache | None = None) -> Tensor:
        return self.stack(self.front(tokens_N, layout), layout, cache=cache)

    def scores(self, x_ND: Tensor) -> Tensor:
        return self.head(x_ND)


def decoder(settings: DecoderSettings) -> Decoder:
    tokens = nn.Embedding(settings.vocab_size, settings.d_model)
    return Decoder(
        text_front(settings, tokens),
        stack(settings, settings.n_layers, causal=True),
        WordHead(
            settings.d_model,
            settings.vocab_size,
            tokens if settings.tie else None,
            settings.head_bias,
        ),
    )
