"""Table of the model families. The settings classes are in the modules of their input types."""

from __future__ import annotations

from headway.settings.audio import AudioEncoderSettings, AudioSeq2SeqSettings, AudioSettings
from headway.settings.body import (
    BodySettings,
    RelativeSettings,
    RopeSettings,
    StackSettings,
    StackSpec,
)
from headway.settings.text import DecoderSettings, EncoderSettings, Seq2SeqSettings, TextSettings
from headway.settings.vision import ImageEncoderSettings, ImageSeq2SeqSettings, ImageSettings
from headway.specs.values import check_values

__all__ = [
    "FAMILY_SETTINGS",
    "AudioEncoderSettings",
    "AudioSeq2SeqSettings",
    "AudioSettings",
    "BodySettings",
    "DecoderSettings",
    "EncoderSettings",
    "ImageEncoderSettings",
    "ImageSeq2SeqSettings",
    "ImageSettings",
    "ModelSettings",
    "RelativeSettings",
    "RopeSettings",
    "Seq2SeqSettings",
    "StackSettings",
    "StackSpec",
    "TextSettings",
    "check_values",
    "family_of",
]

ModelSettings = (
    Seq2SeqSettings
    | EncoderSettings
    | DecoderSettings
    | ImageEncoderSettings
    | ImageSeq2SeqSettings
    | AudioEncoderSettings
    | AudioSeq2SeqSettings
)

FAMILY_SETTINGS: dict[str, type[ModelSettings]] = {
    "seq2seq": Seq2SeqSettings,
    "encoder": EncoderSettings,
    "decoder": DecoderSettings,
    "image-encoder": ImageEncoderSettings,
    "image-seq2seq": ImageSeq2SeqSettings,
    "audio-encoder": AudioEncoderSettings,
    "audio-seq2seq": AudioSeq2SeqSettings,
}


def family_of(settings: ModelSettings) -> str:
    return next(name for name, kind in FAMILY_SETTINGS.items() if type(settings) is kind)
