"""Encoder-decoder models. The encoder reads the source; the decoder generates the target."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from headway.errors import UserError
from headway.models.parts.body import stack, text_front
from headway.models.parts.front import Front
from headway.models.parts.output_heads import HiddenStates, LMHead, Model, ModelInput
from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.embedding import Embedding
from headway.nn.layout import Layout
from headway.settings.model import Seq2SeqSettings


class Seq2Seq(Model):
    """Encoder-decoder. `encode` reads the source once; `decode` returns the hidden states of target
    tokens."""

    def __init__(
        self,
        source_front: Front,
        encoder: nn.Module,
        target_front: Front,
        decoder: nn.Module,
        head: LMHead,
        ctc: LMHead | None = None,
    ) -> None:
        """Build the model.

        `ctc`: optional head that scores the CTC symbols at each encoder position; the last symbol
        is the blank.
        """
        super().__init__()
        self.source_front, self.encoder = source_front, encoder
        self.target_front, self.decoder, self.head = target_front, decoder, head
        self.ctc = ctc

    def encode(self, source_M: Any, layout: Layout) -> Memory:
        """Return the encoder output.

        `source_M`: input of the source front: token indices, images or audio.
        """
        x_MD = self.source_front(source_M, layout)
        return Memory(self.encoder(x_MD, layout), layout)

    def decode(
        self, target_N: Tensor, layout: Layout, memory: Memory, cache: Cache | None = None
    ) -> Tensor:
        """Return the hidden states of the target tokens, which are the input of the output head."""
        x_ND = self.target_front(target_N, layout)
        return self.decoder(x_ND, layout, memory, cache)

    def states(self, *streams: ModelInput, first: bool = False) -> HiddenStates:
        source, target = streams
        memory = self.encode(source.values, source.layout)
        return HiddenStates(
            self.decode(target.values, target.layout, memory), target.layout, memory
        )

    def head_named(self, name: str) -> nn.Module:
        head = {"words": self.head, "ctc": self.ctc}.get(name)
        if head is None:
            raise UserError(
                f"this model has no {name!r} head "
                f"(heads: {'words' if self.ctc is None else 'words, ctc'})."
            )
        return head

    def scores(self, x_ND: Tensor) -> Tensor:
        return self.head(x_ND)

    def forward(
        self, source_M: Any, source_layout: Layout, target_N: Tensor, target_layout: Layout
    ) -> Tensor:
        return self.decode(target_N, target_layout, self.encode(source_M, source_layout))


def seq2seq(settings: Seq2SeqSettings) -> Seq2Seq:
    source = Embedding(settings.source_vocab, settings.d_model)
    shared = settings.tie in ("all", "source-target")
    target = source if shared else Embedding(settings.vocab_size, settings.d_model)
    return compose_seq2seq(settings, text_front(settings, source), target, source)


def compose_seq2seq(
    settings: Seq2SeqSettings,
    source_front: Front,
    target: Embedding,
    source: Embedding | None = None,
    ctc: LMHead | None = None,
) -> Seq2Seq:
    """Build an encoder-decoder around the front of any source modality. This adds the two stacks,
    the target front and the output head."""
    softmax = {"all": target, "target-softmax": target, "source-softmax": source}
    return Seq2Seq(
        source_front,
        stack(settings, causal=False),
        text_front(settings, target, cross=True),
        stack(settings, causal=True, cross=True),
        LMHead(
            settings.d_model,
            settings.vocab_size,
            softmax.get(settings.tie),
            settings.head_bias,
            scale=settings.d_model**-0.5 if settings.scale_head else 1.0,
        ),
        ctc,
    )
