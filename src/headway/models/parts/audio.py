"""Audio front: converts audio of any length to vectors in a flat batch, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headway.models.parts.front import Front, on_device
from headway.nn.dropout import Dropout
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.mel import LogMel
from headway.nn.positions import Learned, Sinusoidal
from headway.settings.audio import AudioSettings

WIDE = 3
"""Kernel width of the convolutions in frames."""

FULL_SCALE = 32768.0
"""Magnitude of a 16-bit sample that represents 1.0."""


TYPICAL_S = 10.0
"""Assumed length in seconds of a recording, for estimates without data."""


@dataclass(frozen=True)
class AudioBatch:
    """Flat batch of audio, with the indices that map its recordings to frames and positions."""

    samples_S: Tensor
    """Samples of all recordings, between -1 and 1."""

    centre_A: Tensor
    """Index in `samples_S` of the middle sample of each frame."""

    low_A: Tensor
    high_A: Tensor
    """Index in `samples_S` after the last sample of each frame's recording. `low_A` is the index of
    its first sample."""

    number_A: Tensor
    """Index of the recording that each frame belongs to."""

    taps: tuple[Tensor, ...]
    """For each convolution, the indices of its three inputs for each output (N 3). The index after
    the last input means silence, which pads the ends of a recording."""

    n_recordings: int
    speed_A: Tensor | None = None
    """Speed factor of each frame, for speed augmentation; None without augmentation."""

    mel_AF: Tensor | None = None
    """Log-mel frames to use as they are. None: compute them from the samples."""

    masked_N: Tensor | None = None
    """True for positions that are replaced by the mask vector; None if nothing is masked."""


def collate_audio(
    items: Sequence[Any], shape: AudioSettings, speeds: Sequence[float] | None = None
) -> tuple[AudioBatch, list[int]]:
    """Collate recordings into a batch. Return it with the number of positions of each recording.

    `items`: 16-bit or float samples at the configured sampling rate. `speeds`: factors of speed
    augmentation; 1.1 plays 10 % faster, which makes it shorter and higher.
    """
    waves = [_wave(item, shape) for item in items]
    n_samples = np.array([len(wave) for wave in waves], dtype=np.int64)
    speed = np.ones(len(waves), np.float32) if speeds is None else np.array(speeds, np.float32)
    if shape.most_rows is not None:  # slowing down must not exceed the longest input
        most = shape.most_rows * prod(shape.strides) * shape.hop
        speed = np.maximum(speed, np.minimum(n_samples / most, 1.0).astype(np.float32))
    heard = (n_samples / speed).astype(np.int64)
    frames = np.array([shape.frames_of(n) for n in heard.tolist()], dtype=np.int64)
    starts = np.cumsum(n_samples) - n_samples
    number = np.repeat(np.arange(len(waves)), frames)
    place = np.arange(int(frames.sum())) - np.repeat(np.cumsum(frames) - frames, frames)
    low = starts[number]
    taps = []
    lengths = frames
    for stride in shape.strides:
        tap, lengths = _taps(lengths, stride)
        taps.append(torch.from_numpy(tap))
    audio = AudioBatch(
        samples_S=torch.from_numpy(np.concatenate(waves)),
        centre_A=torch.from_numpy(
            low + np.rint(place * shape.hop * speed[number]).astype(np.int64)
        ),
        low_A=torch.from_numpy(low),
        high_A=torch.from_numpy(low + n_samples[number]),
        number_A=torch.from_numpy(number),
        taps=tuple(taps),
        n_recordings=len(waves),
        speed_A=None if speeds is None else torch.from_numpy(speed[number]),
    )
    return audio, lengths.tolist()


def _wave(item: Any, shape: AudioSettings) -> NDArray[np.float32]:
    samples = np.asarray(item)
    wave = samples.astype(np.float32)
    if samples.dtype == np.int16:
        wave /= FULL_SCALE
    least = max(1, round(shape.pad_s * shape.rate))
    return np.pad(wave, (0, least - len(wave))) if len(wave) < least else wave


def _taps(lengths: NDArray[np.int64], stride: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the inputs of each output of a convolution, and the number of outputs
    of each recording."""
    after = -(-lengths // stride)
    number = np.repeat(np.arange(len(lengths)), after)
    place = np.arange(int(after.sum())) - np.repeat(np.cumsum(after) - after, after)
    reads = (place * stride)[:, None] + np.arange(WIDE) - WIDE // 2
    inside = (reads >= 0) & (reads < lengths[number][:, None])
    starts = (np.cumsum(lengths) - lengths)[number]
    return np.where(inside, reads + starts[:, None], int(lengths.sum())), after


class FlatConv(nn.Module):
    """Convolution over time within each recording of a flat batch, followed by GELU. It is one
    matrix, applied to three adjacent inputs."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.linear = Linear(WIDE * n_in, n_out)

    def forward(self, x_AD: Tensor, taps_N3: Tensor) -> Tensor:
        silent_AD = torch.cat([x_AD, x_AD.new_zeros(1, x_AD.shape[1])])
        return F.gelu(self.linear(silent_AD[taps_N3].flatten(1)))


class AudioFront(Front):
    """Input layers for audio: log-mel frames, strided convolutions, then positional encodings."""

    reads = "audio"

    def __init__(
        self, shape: AudioSettings, width: int, *, dropout: float = 0.0, masks: bool = False
    ) -> None:
        """Build the input layers.

        `masks`: add a learned vector that replaces masked positions.
        """
        super().__init__()
        self.shape = shape
        self.log_mel = LogMel(shape.rate, shape.n_fft, shape.hop, shape.bands, shape.scale)
        inputs = [shape.bands, *[width] * (len(shape.strides) - 1)]
        self.convolutions = nn.ModuleList(FlatConv(n_in, width) for n_in in inputs)
        self.positions: nn.Module | None = None
        if shape.positions == "learned":
            self.positions = Learned(width, shape.max_rows)
        elif shape.positions != "none":
            whisper = shape.positions == "whisper"
            self.positions = Sinusoidal(width, shape.max_rows, halves=whisper, whisper=whisper)
        self.mask = nn.Embedding(1, width) if masks else None
        self.drop = Dropout(dropout)

    def rows(self, item: Any) -> int:
        return self.shape.rows_of(len(item))

    def collate(
        self, items: Sequence[Any], device: torch.device | str = "cpu"
    ) -> tuple[AudioBatch, Layout]:
        audio, lengths = collate_audio(items, self.shape)
        return on_device(audio, device), Layout.of(lengths, device)

    def blanks(self, n_rows: int) -> list[Any]:
        silence = np.zeros(int(TYPICAL_S * self.shape.rate), np.float32)
        return [silence] * max(1, -(-n_rows // self.rows(silence)))

    @torch.no_grad()
    def mel(self, audio: AudioBatch) -> Tensor:
        """Return the log-mel frames of all recordings in fp32."""
        if audio.mel_AF is not None:
            return audio.mel_AF
        return self.log_mel(
            audio.samples_S,
            audio.centre_A,
            audio.low_A,
            audio.high_A,
            audio.number_A,
            audio.n_recordings,
            audio.speed_A,
        )

    def forward(self, audio: AudioBatch, layout: Layout) -> Tensor:
        x_ND = self.cast(self.mel(audio))
        for convolution, taps_N3 in zip(self.convolutions, audio.taps, strict=True):
            x_ND = convolution(x_ND, taps_N3)
        if audio.masked_N is not None and self.mask is not None:
            x_ND = torch.where(audio.masked_N[:, None], self.mask.weight.to(x_ND.dtype), x_ND)
        if self.positions is not None:
            x_ND = self.positions(x_ND, layout)
        return self.drop(x_ND)
