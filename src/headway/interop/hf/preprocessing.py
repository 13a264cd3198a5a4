"""`preprocessor_config.json`: how pixels and samples become what a model reads, in and out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headway.interop.families import Architecture
from headway.interop.foreign_config import Given
from headway.settings.audio import SoundSeq2SeqSettings, SoundSettings
from headway.settings.model import ModelSettings
from headway.settings.vision import PictureEncoderSettings, PictureSeq2SeqSettings, PictureSettings

PREPROCESSOR_JSON = "preprocessor_config.json"
LEVELS = 255.0
"""A pixel of 8 bits that is full on."""

BILINEAR = 2

PROCESSORS = {
    "vit": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "vision-encoder-decoder": "ViTImageProcessor",
}


def with_preprocessing(found: Architecture, values: Mapping[str, Any]) -> Architecture:
    """The architecture with what the file says of its input; {} changes nothing."""
    given = Given(values, PREPROCESSOR_JSON)
    if not values:
        return found
    if isinstance(found.model, PictureEncoderSettings | PictureSeq2SeqSettings):
        picture, notes = _pictures(given, found.model.picture)
        model: ModelSettings = replace(found.model, picture=picture)
        return replace(found, model=model, notes=(*found.notes, *notes))
    if isinstance(found.model, SoundSeq2SeqSettings):
        sound = _sounds(given, found.model.sound)
        return replace(found, model=replace(found.model, sound=sound))
    return found


def _pictures(given: Given, picture: PictureSettings) -> tuple[PictureSettings, list[str]]:
    """Theirs is (x · factor − mean) / std of pixels up to 255; ours is of pixels up to 1."""
    factor = given.number("rescale_factor", 1 / LEVELS, least=1e-9)
    full = LEVELS * (factor if given.flag("do_rescale", True) else 1.0)
    if given.flag("do_normalize", True):
        mean = _numbers(given, "image_mean", picture.mean, picture.channels)
        std = _numbers(given, "image_std", picture.std, picture.channels)
        if min(std) <= 0:
            raise given.error("image_std", "must be positive")
    else:
        mean, std = (0.0,), (1.0,)
    if full != 1.0:
        mean, std = tuple(m / full for m in mean), tuple(s / full for s in std)
    notes = []
    size = given.values.get("crop_size" if given.values.get("do_center_crop") else "size")
    wanted = _size(size)
    if wanted is not None and wanted != (picture.height, picture.width):
        notes.append(
            f"{PREPROCESSOR_JSON} says pictures of {wanted[0]} × {wanted[1]}, and the model was "
            f"trained on {picture.height} × {picture.width}; they are brought to those"
        )
    return replace(picture, mean=mean, std=std), notes


def _numbers(
    given: Given, key: str, default: tuple[float, ...], channels: int
) -> tuple[float, ...]:
    value = given.values.get(key)
    if value is None:
        return default
    listed = value if isinstance(value, list) else [value]
    fits = len(listed) in (1, channels)
    if not fits or any(type(n) not in (int, float) or not abs(n) < 1e6 for n in listed):
        raise given.error(key, f"must be a number, or one for each of the {channels} channels")
    return tuple(map(float, listed))


def _size(value: Any) -> tuple[int, int] | None:
    """What is said about the size, where it is a whole picture's."""
    if type(value) is int:
        return value, value
    if isinstance(value, dict) and {"height", "width"} <= set(value):
        return value["height"], value["width"]
    return None


def _sounds(given: Given, sound: SoundSettings) -> SoundSettings:
    given.only("feature_size", sound.bands, f"the model reads {sound.bands} bands")
    seconds = given.number("chunk_length", sound.pad_s, least=0.01, most=3600.0)
    changed = replace(
        sound,
        rate=given.whole("sampling_rate", sound.rate, most=1 << 20),
        n_fft=given.whole("n_fft", sound.n_fft, most=1 << 16),
        hop=given.whole("hop_length", sound.hop, most=1 << 16),
        pad_s=seconds,
    )
    if changed.rows_of(0) > changed.max_rows:
        raise given.error(
            "chunk_length",
            f"is {changed.rows_of(0):,} rows, and the model has positions for {changed.max_rows:,}",
        )
    return changed


def preprocessor_config(model: ModelSettings, model_type: str) -> dict[str, Any]:
    """What `transformers` reads for a model of ours; {} where its input is text."""
    if isinstance(model, PictureEncoderSettings | PictureSeq2SeqSettings):
        picture = model.picture
        size = {"height": picture.height, "width": picture.width}
        spread = picture.channels if len(picture.mean) == 1 else 1
        spread_std = picture.channels if len(picture.std) == 1 else 1
        return {
            "image_processor_type": PROCESSORS[model_type],
            "do_resize": True,
            "size": size,
            "resample": BILINEAR,
            "do_center_crop": False,
            "do_rescale": True,
            "rescale_factor": 1 / LEVELS,
            "do_normalize": True,
            "image_mean": list(picture.mean) * spread,
            "image_std": list(picture.std) * spread_std,
        }
    if not isinstance(model, SoundSeq2SeqSettings):
        return {}
    sound = model.sound
    n_samples = round(sound.pad_s * sound.rate)
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": sound.bands,
        "sampling_rate": sound.rate,
        "hop_length": sound.hop,
        "chunk_length": _whole(sound.pad_s),
        "n_fft": sound.n_fft,
        "n_samples": n_samples,
        "nb_max_frames": n_samples // sound.hop,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _whole(seconds: float) -> int | float:
    return int(seconds) if seconds == int(seconds) else seconds
