"""Convert preprocessing settings from and to `transformers`. These settings determine how pixels or
audio samples become model inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.interop.families import Architecture
from headway.interop.folder_files import inside, read_table
from headway.interop.foreign_config import ForeignConfig
from headway.settings.audio import AudioSeq2SeqSettings, AudioSettings
from headway.settings.model import ModelSettings
from headway.settings.vision import ImageEncoderSettings, ImageSeq2SeqSettings, ImageSettings

PREPROCESSOR_JSON = "preprocessor_config.json"
PROCESSOR_JSON = "processor_config.json"
"""File of newer versions of `transformers` that contains the preprocessing settings of all
modalities."""

PARTS = ("image_processor", "feature_extractor")
LEVELS = 255.0
"""Largest value of an 8-bit pixel."""

BILINEAR = 2
"""Pillow's number for bilinear resampling, the method that headway uses."""

RESAMPLING = {0: "nearest", 1: "Lanczos", 3: "bicubic", 4: "box", 5: "Hamming"}
"""Names of Pillow's resampling methods other than bilinear, by number."""

PROCESSORS = {
    "vit": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "vision-encoder-decoder": "ViTImageProcessor",
}


def read_preprocessor(folder: Path) -> dict[str, Any]:
    """Return the preprocessing settings of a folder, or {} if it has none."""
    if (folder / PREPROCESSOR_JSON).is_file():
        return read_table(inside(folder, PREPROCESSOR_JSON))
    if not (folder / PROCESSOR_JSON).is_file():
        return {}
    given = ForeignConfig(read_table(inside(folder, PROCESSOR_JSON)), PROCESSOR_JSON)
    return next(filter(None, map(given.nested, PARTS)), {})


def with_preprocessing(found: Architecture, values: Mapping[str, Any]) -> Architecture:
    """Return the architecture with the preprocessing that `values` describes."""
    given = ForeignConfig(values, PREPROCESSOR_JSON)
    if not values:
        return _with_defaults(found)
    if isinstance(found.model, ImageEncoderSettings | ImageSeq2SeqSettings):
        image, notes = _image_settings(given, found.model.image)
        model: ModelSettings = replace(found.model, image=image)
        return replace(found, model=model, notes=(*found.notes, *notes))
    if isinstance(found.model, AudioSeq2SeqSettings):
        audio = _audio_settings(given, found.model.audio)
        return replace(found, model=replace(found.model, audio=audio))
    return found


def _with_defaults(found: Architecture) -> Architecture:
    """Return the architecture with a note that default preprocessing is assumed."""
    if not isinstance(found.model, ImageEncoderSettings | ImageSeq2SeqSettings):
        return found
    image = found.model.image
    note = (
        f"there is no {PREPROCESSOR_JSON}: pixels are normalised as usual for this kind of model, "
        f"mean {_listed(image.mean)}, standard deviation {_listed(image.std)}"
    )
    return replace(found, notes=(*found.notes, note))


def _listed(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _image_settings(given: ForeignConfig, image: ImageSettings) -> tuple[ImageSettings, list[str]]:
    """Return the normalization of pixels as image settings.

    `transformers` computes (x · factor − mean) / std for pixels from 0 to 255. headway's settings
    apply to pixels from 0 to 1.
    """
    factor = given.number("rescale_factor", 1 / LEVELS, least=1e-9)
    full = LEVELS * (factor if given.flag("do_rescale", True) else 1.0)
    if given.flag("do_normalize", True):
        mean = _numbers(given, "image_mean", image.mean, image.channels)
        std = _numbers(given, "image_std", image.std, image.channels)
        if min(std) <= 0:
            raise given.error("image_std", "must contain only positive numbers")
    else:
        mean, std = (0.0,), (1.0,)
    if full != 1.0:
        mean, std = tuple(m / full for m in mean), tuple(s / full for s in std)
    notes = _resizing(given)
    size = given.values.get("crop_size" if given.values.get("do_center_crop") else "size")
    wanted = _size(size)
    if wanted is not None and wanted != (image.height, image.width):
        notes.append(
            f"{PREPROCESSOR_JSON} has images of {wanted[0]} × {wanted[1]}, but the model was "
            f"trained on {image.height} × {image.width}; images are resized to the latter"
        )
    return replace(image, mean=mean, std=std), notes


def _resizing(given: ForeignConfig) -> list[str]:
    """Return a note for each resizing option that differs from headway's resizing."""
    notes = []
    resample = given.values.get("resample")
    if type(resample) is int and resample in RESAMPLING and given.flag("do_resize", True):
        notes.append(
            f"{PREPROCESSOR_JSON}: resample = {resample} ({RESAMPLING[resample]}) is not "
            "supported; images are resized bilinearly"
        )
    if given.flag("do_center_crop", False):
        notes.append(
            f"{PREPROCESSOR_JSON}: do_center_crop cuts off a margin of every image; headway "
            "instead reads the largest centred part with the model's aspect ratio"
        )
    return notes


def _numbers(
    given: ForeignConfig, key: str, default: tuple[float, ...], channels: int
) -> tuple[float, ...]:
    value = given.values.get(key)
    if value is None:
        return default
    listed = value if isinstance(value, list) else [value]
    fits = len(listed) in (1, channels)
    if not fits or any(type(n) not in (int, float) or not abs(n) < 1e6 for n in listed):
        raise given.error(
            key, f"must be a number, or a list of {channels} numbers (one per channel)"
        )
    return tuple(map(float, listed))


def _size(value: Any) -> tuple[int, int] | None:
    """Return height and width, or None if the configuration does not set both.

    A single number sets both. `shortest_edge` alone does not determine them.
    """
    if type(value) is int:
        return value, value
    if isinstance(value, dict) and {"height", "width"} <= set(value):
        return value["height"], value["width"]
    return None


def _audio_settings(given: ForeignConfig, audio: AudioSettings) -> AudioSettings:
    given.require("feature_size", audio.bands, f"the model needs {audio.bands} mel bands")
    seconds = given.number("chunk_length", audio.pad_s, least=0.01, most=3600.0)
    changed = replace(
        audio,
        rate=given.integer("sampling_rate", audio.rate, most=1 << 20),
        n_fft=given.integer("n_fft", audio.n_fft, most=1 << 16),
        hop=given.integer("hop_length", audio.hop, most=1 << 16),
        pad_s=seconds,
    )
    if changed.rows_of(0) > changed.max_rows:
        raise given.error(
            "chunk_length",
            f"gives {changed.rows_of(0):,} positions, but the model has only {changed.max_rows:,}",
        )
    return changed


def preprocessor_config(model: ModelSettings, model_type: str) -> dict[str, Any]:
    """Return the preprocessor configuration of a model, or {} if its input is text."""
    if isinstance(model, ImageEncoderSettings | ImageSeq2SeqSettings):
        image = model.image
        size = {"height": image.height, "width": image.width}
        spread = image.channels if len(image.mean) == 1 else 1
        spread_std = image.channels if len(image.std) == 1 else 1
        return {
            "image_processor_type": PROCESSORS[model_type],
            "do_resize": True,
            "size": size,
            "resample": BILINEAR,
            "do_center_crop": False,
            "do_rescale": True,
            "rescale_factor": 1 / LEVELS,
            "do_normalize": True,
            "image_mean": list(image.mean) * spread,
            "image_std": list(image.std) * spread_std,
        }
    if not isinstance(model, AudioSeq2SeqSettings):
        return {}
    audio = model.audio
    n_samples = round(audio.pad_s * audio.rate)
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": audio.bands,
        "sampling_rate": audio.rate,
        "hop_length": audio.hop,
        "chunk_length": _whole(audio.pad_s),
        "n_fft": audio.n_fft,
        "n_samples": n_samples,
        "nb_max_frames": n_samples // audio.hop,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _whole(seconds: float) -> int | float:
    return int(seconds) if seconds == int(seconds) else seconds
