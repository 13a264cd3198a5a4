"""Audio model families: encoders (speaker recognition, CTC), and encoder-decoders such as
Whisper."""

from __future__ import annotations

from math import prod

from torch import nn

from headway.models.encoder import Encoder
from headway.models.parts.audio import AudioFront
from headway.models.parts.body import stack
from headway.models.parts.output_heads import LabelHead, LMHead, ReconstructionHead
from headway.models.seq2seq import Seq2Seq, compose_seq2seq
from headway.nn.embedding import Embedding
from headway.settings.model import AudioEncoderSettings, AudioSeq2SeqSettings


class AudioEncoder(Encoder):
    """Audio encoder. `forward` returns one vector per position; each position covers a few
    frames."""

    @property
    def ctc(self) -> LMHead:
        """Return the CTC head, which computes the logits of the symbols at each position. The last
        symbol is the blank."""
        head = self.head_named("ctc")
        assert isinstance(head, LMHead)
        return head


def audio_encoder(settings: AudioEncoderSettings) -> AudioEncoder:
    return AudioEncoder(
        AudioFront(
            settings.audio,
            settings.d_model,
            dropout=settings.dropout,
            masks="rebuild" in settings.heads,
        ),
        stack(settings, causal=False),
        nn.ModuleDict({name: _head(settings, name) for name in settings.heads}),
        settings.pooling,
    )


def _head(settings: AudioEncoderSettings, name: str) -> nn.Module:
    if name == "ctc":
        return _symbols(settings)
    if name == "rebuild":
        audio = settings.audio
        return ReconstructionHead(settings.d_model, audio.bands * prod(audio.strides))
    return LabelHead(settings.d_model, settings.n_labels, settings.dropout)


def audio_seq2seq(settings: AudioSeq2SeqSettings) -> Seq2Seq:
    target = Embedding(settings.vocab_size, settings.d_model)
    front = AudioFront(settings.audio, settings.d_model, dropout=settings.dropout)
    ctc = _symbols(settings) if settings.ctc else None
    return compose_seq2seq(settings, front, target, ctc=ctc)


def _symbols(settings: AudioEncoderSettings | AudioSeq2SeqSettings) -> LMHead:
    return LMHead(settings.d_model, settings.vocab_size + 1, None, bias=True)
