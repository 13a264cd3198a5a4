"""Storage format of images, videos and audio: size, channels, frames, sampling rate.

It comes from the settings, from the parent run, or from a sample of the data. After preparation it
is read from the stored data, so no source file is opened again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.columns.column import class_of
from headway.data.media.audio import audio_info
from headway.data.media.open_item import UNITS, ItemFormat
from headway.data.media.store import AudioStore, ImageStore
from headway.data.schema import MediaSpec
from headway.data.sniff import AUDIO, MediaType, extension
from headway.data.source import DataSource, check_files_exist, sources
from headway.data.store import PreparedData
from headway.errors import ConfigError, DataError
from headway.settings.facts import MediaFormat
from headway.settings.load import from_dict
from headway.settings.model import AudioSettings, ImageSettings, family_of
from headway.settings.run import RunSettings
from headway.specs.tasks import SPECS
from headway.tasks.parent_run import model_named

LOOKED_AT = 32
"""Number of items that are sampled to choose a storage format, if the settings do not define it."""

SMALL_IMAGE = 64
"""Maximum side in pixels of images that keep about their own size."""

LARGE_IMAGE = 224
"""Maximum side in pixels of stored images, to which larger ones are reduced: the resolution of ViT
and of most ImageNet models."""

PATCHES = (2, 4, 7, 8, 14, 16, 32)
"""Patch sizes in pixels, tried in this order: divisors of usual image sizes (28, 32, 64, 224),
including those of ViT (14, 16, 32)."""

MOST_CELLS = {"small": 64, "large": 196}
"""Maximum number of patches per image: 8 × 8 for small images, and 14 × 14 for large ones (as in
ViT with patches of 16 pixels)."""


def image_settings(
    settings: RunSettings, what: MediaType = "image", stored: MediaFormat | None = None
) -> ImageSettings:
    """Return the input settings of a model of images or videos: size, channels, frames and patch.
    `stored`: format of prepared data; None: choose it from the settings or a sample of the data."""
    known = _known_front(settings, "image")
    if known is not None:
        assert isinstance(known, ImageSettings)
        return known
    usual, asked = _defaults(settings, what), settings.asked.section("model.image")
    seen = stored or _image_format(settings, what, usual.get("frames", 1))
    found = {"height": seen.height, "width": seen.width, "channels": seen.channels}
    if class_of(what).is_moving:
        found["frames"] = seen.frames
    values = {**usual, **found, **asked}
    if "patch" not in values and values.get("stem") != "grid":
        values["patch"] = patch_of(values["height"], values["width"])
    return from_dict(ImageSettings, values, "model.image.")


def audio_settings(settings: RunSettings, stored: MediaFormat | None = None) -> AudioSettings:
    """Return the input settings of a model of audio: 16 kHz, or 8 kHz if no file has a higher
    rate."""
    known = _known_front(settings, "audio")
    if known is not None:
        assert isinstance(known, AudioSettings)
        return known
    values = {**_defaults(settings, "audio"), **settings.asked.section("model.audio")}
    if "rate" not in values:
        values["rate"] = (stored or _audio_format(_first_rates(settings))).rate
    scale = values["rate"] / AudioSettings().rate
    for name in ("n_fft", "hop"):  # 25 and 10 ms at any rate
        values.setdefault(name, max(1, round(scale * getattr(AudioSettings(), name))))
    return from_dict(AudioSettings, values, "model.audio.")


def front_settings(settings: RunSettings, what: MediaType) -> ImageSettings | AudioSettings:
    """Return the input settings of a model for this type of media."""
    if class_of(what).is_audio:
        return audio_settings(settings)
    return image_settings(settings, what)


def _defaults(settings: RunSettings, what: MediaType) -> dict[str, Any]:
    """Return the default input settings that are needed before the data is prepared."""
    from headway.settings.defaults import input_defaults  # only training needs it

    row = next(row for row in SPECS[settings.task].rows if row.modality == what)
    return input_defaults(row, settings)


def stored_format(prepared: PreparedData) -> MediaFormat:
    """Return the storage format of prepared data."""
    items = prepared.train.media
    if isinstance(items, AudioStore):
        return MediaFormat(rate=items.rate)
    frames, channels, height, width = items.shapes[0].tolist()
    return MediaFormat(height=height, width=width, channels=channels, frames=frames)


def _known_front(settings: RunSettings, name: str) -> ImageSettings | AudioSettings | None:
    """Return the input settings of the parent run or of the preset; None without either."""
    model = model_named(settings)
    if model is None:
        return None
    front: ImageSettings | AudioSettings | None = getattr(model, name, None)
    if front is None:
        what = "images" if name == "image" else "audio"
        raise ConfigError(
            f"the task {settings.task} needs a model that reads {what}, but models of the "
            f"{family_of(model)} family do not."
        )
    return front


def _first_images(
    settings: RunSettings, what: MediaType, frames: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield a sample of the images in their original size, spread over the dataset.

    Images that cannot be read are skipped, because the data check lists them. If none can be read,
    DataError is raised.
    """
    form = ItemFormat(what, frames=frames)
    wrong, read = None, 0
    for one in _source(settings, what).spread(LOOKED_AT):
        try:
            found = one.medium.read(form).values
        except DataError as error:
            wrong = wrong or error
            continue
        yield found
        read += 1
    if wrong is not None and not read:
        raise DataError(
            f"none of the sampled {UNITS[what]} could be read. The first error: {wrong}"
        )


def _first_rates(settings: RunSettings) -> list[int]:
    """Return the sampling rates of some recordings, from file headers or from a list of arrays."""
    items = [one.medium for one in _source(settings, "audio") if not one.problem]
    found = dict.fromkeys(Path(item.path) for item in items)
    paths = [path for path in found if extension(path) in AUDIO]
    rates = [item.part.rate for item in items if item.part.rate]
    for path in paths[:: max(1, len(paths) // LOOKED_AT)]:
        with suppress(DataError):
            rates.append(audio_info(path).rate)
    return rates


def _source(settings: RunSettings, what: MediaType) -> DataSource:
    """Return the data source with all items of the data files, which are not read yet."""
    source, _ = sources(settings, MediaSpec(ItemFormat(what)))
    if source.in_arrays:
        return source
    if settings.data.on_bad_row == "error":
        check_files_exist(source)
    if not list(source):
        files = settings.data.media
        raise DataError(f"no {UNITS[what]} found in {', '.join(files)}.")
    return source


def _image_format(settings: RunSettings, what: MediaType, frames: int) -> MediaFormat:
    """Return the storage format for the images: size and channels, chosen from a sample of the
    data, and this number of frames."""
    found = _first_images(settings, what, frames)
    seen = [(*x_TCYX.shape[2:], _is_grey(x_TCYX)) for x_TCYX in found]
    if not seen:
        raise DataError(f"none of the sampled {UNITS[what]} could be read.")
    sizes = {(height, width) for height, width, _ in seen}
    shorter = sorted(min(size) for size in sizes)
    height, width = sizes.pop() if len(sizes) == 1 else (shorter[len(shorter) // 2],) * 2
    return MediaFormat(
        height=_rounded(height),
        width=_rounded(width),
        channels=1 if all(grey for *_, grey in seen) else 3,
        frames=frames,
    )


def _audio_format(rates: list[int]) -> MediaFormat:
    return MediaFormat(rate=8000 if rates and max(rates) <= 8000 else AudioSettings().rate)


def _is_grey(x_TCYX: NDArray[np.uint8]) -> bool:
    return x_TCYX.shape[1] == 1 or bool((x_TCYX == x_TCYX[:, :1]).all())


def _rounded(size: int) -> int:
    """Return a side length in pixels, rounded to a multiple of 4 (small images) or 16, so that
    patches divide it, and at most `LARGE_IMAGE`."""
    if size <= SMALL_IMAGE:
        return max(8, -(-size // 4) * 4)
    return min(LARGE_IMAGE, round(size / 16) * 16)


def patch_of(height: int, width: int) -> int:
    """Return the smallest patch size that divides the image without exceeding the maximum number of
    patches."""
    most = MOST_CELLS["small" if max(height, width) <= SMALL_IMAGE else "large"]
    for patch in PATCHES:
        if height % patch == 0 == width % patch and height * width // patch**2 <= most:
            return patch
    return min(height, width, PATCHES[-1])


def pixel_statistics(store: ImageStore, most: int = 512) -> dict[str, list[float]]:
    """Return the mean and the standard deviation of each channel, for pixels between 0 and 1. They
    are computed from `most` images."""
    rows = np.unique(np.linspace(0, len(store) - 1, min(most, len(store))).astype(np.int64))
    sums = np.zeros((2, store[0].shape[1]))
    count = 0
    for row in rows.tolist():
        x_TCYX = np.asarray(store[row], dtype=np.float64) / 255.0
        sums += np.stack([x_TCYX.sum((0, 2, 3)), (x_TCYX**2).sum((0, 2, 3))])
        count += x_TCYX.size // x_TCYX.shape[1]
    mean_C = sums[0] / count
    std_C = np.sqrt(np.maximum(sums[1] / count - mean_C**2, 0.0))
    return {
        "mean": [round(float(value), 4) for value in mean_C],
        "std": [round(float(max(value, 0.02)), 4) for value in std_C],
    }


def item_rows(
    items: ImageStore | AudioStore, front: ImageSettings | AudioSettings
) -> NDArray[np.int64]:
    """Return the number of positions of each stored item, as a model reads it."""
    if isinstance(items, AudioStore):
        assert isinstance(front, AudioSettings)
        found = {n: front.rows_of(n) for n in np.unique(items.lengths).tolist()}
        return np.array([found[n] for n in items.lengths.tolist()], dtype=np.int64)
    assert isinstance(front, ImageSettings)
    shapes, place = np.unique(np.asarray(items.shapes), axis=0, return_inverse=True)
    rows = np.array([front.rows_of(t, y, x) for t, _, y, x in shapes.tolist()], dtype=np.int64)
    return rows[place.reshape(-1)]
