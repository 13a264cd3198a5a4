"""Write images, videos and audio that are in memory to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.sniff import ARRAY, extension_of
from headway.data.table import shown_value
from headway.errors import DataError

HELD = 1 << 26
"""Size in bytes of the arrays that are collected in memory before they are written as one stack."""

CHANNELS = 32
"""Maximum number of audio channels. If the first axis of an array is at most this long, it is taken
for the channels."""


class MediaWriter:
    """Writes media files to a folder. Arrays of the same shape are stacked into one file to keep
    the number of files small."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.n = 0
        self.pending: dict[tuple[Any, ...], tuple[Path, list[NDArray[Any]]]] = {}

    def put(self, content: bytes | NDArray[Any], rate: int | None, name: str) -> dict[str, Any]:
        """Write an item, and return the fields that refer to it in a media list. `name` is the
        field of the path; other fields select the part of the file, such as `index`."""
        if isinstance(content, bytes):
            return {name: self._bytes(content)}
        if rate is None:
            return self._array(content, (), name)
        return {**self._array(content, (rate,), name), "rate": rate}

    def close(self) -> None:
        for path, arrays in self.pending.values():
            np.save(path, np.stack(arrays))
        self.pending = {}

    def _next(self, ending: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.n += 1
        return self.folder / f"{self.n:06}{ending}"

    def _manifest_path(self, path: Path) -> str:
        """Return the path relative to the media list, which is next to the folder."""
        return f"{self.folder.name}/{path.name}"

    def _bytes(self, value: bytes) -> str:
        path = self._next(extension_of(value) or ".bin")
        path.write_bytes(value)
        return self._manifest_path(path)

    def _array(self, values: NDArray[Any], more: tuple[int, ...], name: str) -> dict[str, Any]:
        key = (values.dtype.str, values.shape, *more)
        if key not in self.pending:
            self.pending[key] = self._next(ARRAY), []
        path, arrays = self.pending[key]
        arrays.append(values)
        said = {name: self._manifest_path(path), "index": len(arrays) - 1}
        if sum(one.nbytes for one in arrays) >= HELD:
            np.save(path, np.stack(arrays))
            del self.pending[key]
        return said


def pixels_of(value: Any, where: str) -> NDArray[Any]:
    """Return the pixels of an image given as a Pillow image or an array."""
    return _image(value) if hasattr(value, "getbands") else _numbers(value, where)


def frames_of(value: Any, where: str) -> NDArray[Any]:
    """Return the pixels of a video given as a list of images, a Pillow animation or an array."""
    if isinstance(value, list | tuple):
        frames = [pixels_of(one, where) for one in value]
        if not frames or len({frame.shape for frame in frames}) > 1:
            raise DataError(f"{where}: a video needs at least one frame, all of the same size.")
        return np.stack(frames)
    return _animation(value) if hasattr(value, "getbands") else _numbers(value, where)


def _image(image: Any) -> NDArray[Any]:
    """Return the pixels of a Pillow image, upright by its EXIF orientation. Palettes are converted
    to colours."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        values_YX = np.asarray(upright)
        fits = values_YX.min() >= 0 and values_YX.max() <= 0xFFFF
        return values_YX.astype(np.uint16) if fits else values_YX
    if upright.mode in ("L", "RGB", "RGBA", "F"):
        return np.asarray(upright)
    if upright.mode == "1":
        return np.asarray(upright.convert("L"))
    return np.asarray(upright.convert("RGBA" if upright.has_transparency_data else "RGB"))


def _animation(image: Any) -> NDArray[Any]:
    frames = []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        frames.append(np.asarray(image.convert("RGB")))
    return np.stack(frames)


def samples_of(value: Any, where: str) -> tuple[NDArray[Any], int]:
    if hasattr(value, "get_all_samples"):  # the audio decoder of Hugging Face datasets
        samples = value.get_all_samples()
        value = (samples.data, samples.sample_rate)
    pair = isinstance(value, list | tuple) and len(value) == 2
    rate = value[1] if pair else None
    if not isinstance(rate, int | float | np.integer | np.floating) or rate < 1 or rate % 1:
        raise DataError(
            f"{where} is {shown_value(value)}, but audio needs a sampling rate. Give a pair such "
            "as (samples, 16000)."
        )
    samples = _numbers(value[0], where)
    if samples.ndim == 2 and samples.shape[0] <= CHANNELS < samples.shape[1]:
        samples = samples.T  # torchaudio puts channels first
    if samples.dtype == np.float64:
        samples = samples.astype(np.float32)
    return np.ascontiguousarray(samples), int(rate)


def _numbers(value: Any, where: str) -> NDArray[Any]:
    try:
        found = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where} is {shown_value(value)}, which cannot be read as an array: {error}."
        ) from error
    if isinstance(value, list) and found.dtype == np.int64 and found.size:
        whole = found.min() >= 0 and found.max() <= 255
        found = found.astype(np.uint8) if whole else found
    if found.dtype.kind not in "buif" or not found.size:
        raise DataError(
            f"{where} is {shown_value(value)}, which is not a supported input. Give a path, bytes, "
            "a Pillow image, an array of numbers, or (samples, rate) for audio."
        )
    return found
