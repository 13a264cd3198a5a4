"""The table of model families. The settings of each are in the module of its input type."""

from __future__ import annotations

from headway.settings.audio import SoundEncoderSettings, SoundSeq2SeqSettings, SoundSettings
from headway.settings.body import BodySettings, RelativeSettings, RopeSettings, Side, check_values
from headway.settings.text import DecoderSettings, EncoderSettings, Seq2SeqSettings, TextSettings
from headway.settings.vision import PictureEncoderSettings, PictureSeq2SeqSettings, PictureSettings

__all__ = [
    "FAMILY_SETTINGS",
    "BodySettings",
    "DecoderSettings",
    "EncoderSettings",
    "ModelSettings",
    "PictureEncoderSettings",
    "PictureSeq2SeqSettings",
    "PictureSettings",
    "RelativeSettings",
    "RopeSettings",
    "Seq2SeqSettings",
    "Side",
    "SoundEncoderSettings",
    "SoundSeq2SeqSettings",
    "SoundSettings",
    "TextSettings",
    "check_values",
    "family_of",
]

ModelSettings = (
    Seq2SeqSettings
    | EncoderSettings
    | DecoderSettings
    | PictureEncoderSettings
    | PictureSeq2SeqSettings
    | SoundEncoderSettings
    | SoundSeq2SeqSettings
)

FAMILY_SETTINGS: dict[str, type[ModelSettings]] = {
    "seq2seq": Seq2SeqSettings,
    "encoder": EncoderSettings,
    "decoder": DecoderSettings,
    "picture-encoder": PictureEncoderSettings,
    "picture-seq2seq": PictureSeq2SeqSettings,
    "sound-encoder": SoundEncoderSettings,
    "sound-seq2seq": SoundSeq2SeqSettings,
}


def family_of(settings: ModelSettings) -> str:
    return next(name for name, kind in FAMILY_SETTINGS.items() if type(settings) is kind)
