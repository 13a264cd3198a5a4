"""Families that listen: encoders of recordings (speakers, CTC) and transcribers like Whisper."""

from __future__ import annotations

from math import prod

from torch import nn

from headway.config.model import SoundEncoderSettings, SoundSeq2SeqSettings
from headway.models.encoder import Encoder
from headway.models.parts.body import stack, text_front
from headway.models.parts.heads import LabelHead, RebuildHead, WordHead
from headway.models.parts.sounds import SoundFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.embedding import Embedding


class Listener(Encoder):
    """`forward` gives a vector a row, which is a few frames of a recording."""

    @property
    def ctc(self) -> WordHead:
        """Scores of symbols, the last of them the blank, for each row."""
        head = self.head_named("ctc")
        assert isinstance(head, WordHead)
        return head


def sound_encoder(settings: SoundEncoderSettings) -> Listener:
    return Listener(
        SoundFront(
            settings.sound,
            settings.d_model,
            dropout=settings.dropout,
            masks="rebuild" in settings.heads,
        ),
        stack(settings, causal=False),
        nn.ModuleDict({name: _head(settings, name) for name in settings.heads}),
        settings.pooling,
    )


def _head(settings: SoundEncoderSettings, name: str) -> nn.Module:
    if name == "ctc":
        return WordHead(settings.d_model, settings.vocab_size + 1, None, bias=True)
    if name == "rebuild":
        sound = settings.sound
        return RebuildHead(settings.d_model, sound.bands * prod(sound.strides))
    return LabelHead(settings.d_model, settings.n_labels, settings.dropout)


def sound_seq2seq(settings: SoundSeq2SeqSettings) -> Seq2Seq:
    target = Embedding(settings.vocab_size, settings.d_model)
    return Seq2Seq(
        SoundFront(settings.sound, settings.d_model, dropout=settings.dropout),
        stack(settings, causal=False),
        text_front(settings, target),
        stack(settings, causal=True, cross=True),
        WordHead(
            settings.d_model,
            settings.vocab_size,
            target if settings.tie == "target-softmax" else None,
            settings.head_bias,
            scale=settings.d_model**-0.5 if settings.scale_head else 1.0,
        ),
        WordHead(settings.d_model, settings.vocab_size + 1, None, bias=True)
        if settings.ctc
        else None,
    )
