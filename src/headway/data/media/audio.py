"""Read audio files as mono samples in bounded memory.

The header is checked before decoding. Its length is not trusted for allocating memory: files are
read in blocks, up to a limit. Every problem with a file raises a `DataError` that names the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headway.data.media.arrays import stack_item
from headway.data.media.audio_file import MOST_CHANNELS, UNKNOWN, lasting, no_samples, open_audio
from headway.data.media.resample import Float32Array, Resampler
from headway.data.media.resample import resample as resample
from headway.data.sniff import is_array
from headway.errors import DataError

if TYPE_CHECKING:
    from soundfile import SoundFile

MOST_S = 3600.0
"""Maximum duration in seconds of audio that is read as a whole. One hour takes 230 MB at 16 kHz."""

BLOCK = 1 << 16
"""Number of samples decoded at a time: four seconds at 16 kHz."""

SILENT = 1e-4
"""Peak amplitude below which audio counts as silent: 80 dB below full scale."""

LOUDEST = 2.0**31
"""Maximum magnitude of a sample, reached by 32-bit integers stored as floats. Sums of larger
squares would overflow fp32 when frames are computed."""

INEXACT = ("MP3", "OGG")
"""Formats in which seeking is inexact. Files in these formats are decoded from the start."""


class AudioInfo(NamedTuple):
    """Properties of an audio file according to its header."""

    rate: int
    channels: int
    seconds: float | None
    """Duration in seconds; None if only decoding would reveal it."""


def audio_info(path: str | Path) -> AudioInfo:
    with open_audio(path) as file:
        known = file.frames < UNKNOWN
        return AudioInfo(
            file.samplerate, file.channels, file.frames / file.samplerate if known else None
        )


def read_audio(
    path: str | Path,
    rate: int,
    start: float | None = None,
    end: float | None = None,
    *,
    npy_rate: int | None = None,
    index: int | None = None,
) -> Float32Array:
    """Return an audio file as mono samples from −1 to 1.

    Args:
        path: Audio file, or an `.npy` file with samples (int16, or floats from −1 to 1).
        rate: Sampling rate of the result in Hz.
        start: Start of the part to read in seconds; None: the beginning.
        end: End of the part to read in seconds; None: the end of the file.
        npy_rate: Sampling rate of an `.npy` file; None: `rate`.
        index: Index of the recording in an `.npy` stack.
    """
    samples_S, own = read_samples(path, start, end, npy_rate=npy_rate or rate, index=index)
    return resample(samples_S, own, rate)


def read_samples(
    path: str | Path,
    start: float | None = None,
    end: float | None = None,
    *,
    npy_rate: int | None = None,
    index: int | None = None,
) -> tuple[Float32Array, int]:
    """Return the mono samples of a file at its own sampling rate, and that rate."""
    if is_array(path):
        return _from_npy(str(path), start, end, npy_rate, index)
    with open_audio(path) as file:
        first, last = _part(path, start, end, file.frames / file.samplerate, file.samplerate)
        if last - first > MOST_S * file.samplerate and file.frames < UNKNOWN:
            raise _too_long(path, (last - first) / file.samplerate)
        blocks, n = [], 0
        for block_S in _blocks(file, path, first, last):
            blocks.append(block_S)
            n += len(block_S)
            if n > MOST_S * file.samplerate:
                raise _too_long(path, n / file.samplerate)
        if not n:
            raise no_samples(path)
        return np.concatenate(blocks), int(file.samplerate)


def stream_windows(
    path: str | Path, rate: int, window_s: float, overlap_s: float = 0.0
) -> Iterator[tuple[float, Float32Array]]:
    """Yield overlapping windows of an audio file, each with its start time in seconds.

    A window starts every `window_s − overlap_s` seconds. The last window may be shorter. Only one
    window is in memory at a time.
    """
    size, step = round(window_s * rate), round((window_s - overlap_s) * rate)
    if not 0 < step <= size:
        raise DataError(
            f"windows of {window_s:g} s cannot overlap by {overlap_s:g} s: the overlap must be at "
            "least 0 s and shorter than the window."
        )
    held_S, place, given = np.zeros(0, np.float32), 0, 0
    for block_S in _resampled(path, rate):
        held_S = np.concatenate([held_S, block_S])
        while len(held_S) >= size:
            yield place / rate, held_S[:size]
            given = place + size
            held_S, place = held_S[step:], place + step
    if place + len(held_S) > given:
        yield place / rate, held_S


def is_silent(samples_S: Float32Array) -> bool:
    """Whether the samples are silent. Silence is reported, but is not an error."""
    return float(np.abs(samples_S).max(initial=0.0)) < SILENT


def _resampled(path: str | Path, rate: int) -> Iterator[Float32Array]:
    with open_audio(path) as file:
        resampler = Resampler(file.samplerate, rate)
        n = 0
        for block_S in _blocks(file, path, 0, file.frames):
            n += len(block_S)
            yield resampler.push(block_S)
        if not n:
            raise no_samples(path)
        yield resampler.finish()


def _blocks(file: SoundFile, path: str | Path, first: int, last: int) -> Iterator[Float32Array]:
    """Yield the mono samples from `first` up to `last` in blocks. Raise a `DataError` if some are
    missing."""
    import soundfile

    place = 0
    if first and file.format not in INEXACT:
        place = file.seek(first)
    while place < last:
        block_SC = np.full((min(BLOCK, last - place), file.channels), np.nan, np.float32)
        try:
            n = len(file.read(out=block_SC))
        except soundfile.SoundFileError:
            n = 0
            if file.frames >= UNKNOWN:  # end of the file; the decoded samples are in place
                n = int((~np.isnan(block_SC[:, 0])).sum())
        if n:
            yield one_channel(block_SC[max(0, first - place) : n], path)
        place += n
        if n < len(block_SC):
            break
    if place < last and file.frames < UNKNOWN:
        raise DataError(
            f"{path} is truncated or damaged: its header declares "
            f"{lasting(file.frames / file.samplerate)}, but only "
            f"{lasting(place / file.samplerate)} can be decoded."
        )


def _part(
    path: str | Path, start: float | None, end: float | None, seconds: float, rate: int
) -> tuple[int, int]:
    """Return the indices of the first sample of the part and of the sample after its end. Because
    times are often rounded, the end may exceed the file by 10 ms."""
    begin, stop = 0.0 if start is None else start, seconds if end is None else end
    if not (0.0 <= begin < stop <= seconds + 0.01):
        raise DataError(
            f"{path} lasts {lasting(seconds)}, so it has no part from {begin:g} s to {stop:g} s."
        )
    return round(begin * rate), min(round(stop * rate), round(seconds * rate))


def _from_npy(
    path: str, start: float | None, end: float | None, rate: int | None, index: int | None
) -> tuple[Float32Array, int]:
    if rate is None:
        raise DataError(f"{path} is an array without a sampling rate. Give the rate as `rate`.")
    values: Any = stack_item(path, index)
    if values.ndim not in (1, 2) or values.dtype.kind not in "if" or values.dtype.itemsize == 1:
        raise DataError(
            f"{path} contains {values.dtype} values of shape {values.shape}. Samples must be int16 "
            "or float32, with the axes (samples) or (samples, channels)."
        )
    if values.ndim == 2 and values.shape[1] > MOST_CHANNELS:
        raise DataError(
            f"{path} has the shape {values.shape}, but the second axis (channels) is limited to "
            f"{MOST_CHANNELS}. If it is a stack of recordings, select one with `index`."
        )
    first, last = _part(path, start, end, len(values) / rate, rate)
    if last - first > MOST_S * rate:
        raise _too_long(path, (last - first) / rate)
    with np.errstate(over="ignore"):  # too large values become infinite and raise an error below
        part = np.asarray(values[first:last]).astype(np.float32)
    if not len(part):
        raise no_samples(path)
    if values.dtype.kind == "i":
        part /= -float(np.iinfo(values.dtype).min)
    return one_channel(part if part.ndim == 2 else part[:, None], path), rate


def one_channel(samples_SC: Float32Array, path: str | Path) -> Float32Array:
    """Return the average of the channels. Raise a `DataError` for invalid samples."""
    if not samples_SC.size:
        return np.zeros(0, np.float32)
    furthest = np.abs(samples_SC).max()
    if np.isfinite(furthest) and furthest > LOUDEST:
        raise DataError(
            f"{path} contains a sample of magnitude {furthest:.3g}, but samples must be between −1 "
            "and 1. The file is damaged or does not contain audio."
        )
    if not np.isfinite(furthest):
        n = int((~np.isfinite(samples_SC)).sum())
        raise DataError(f"{path} contains {n:,} samples that are NaN or infinite.")
    return samples_SC.mean(1)


def _too_long(path: str | Path, seconds: float) -> DataError:
    return DataError(
        f"{path} lasts {lasting(seconds)}, more than the limit of {lasting(MOST_S)}. Split it into "
        "parts, or select a part with `start` and `end`."
    )
