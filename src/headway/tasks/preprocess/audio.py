"""Preprocessing of audio: collation, speed changes, noise and SpecAugment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan
from headway.data.masking import PatchMasker
from headway.data.media.store import AudioStore
from headway.data.store import Columns
from headway.models.parts.audio import AudioBatch, AudioFront, collate_audio
from headway.models.parts.output_heads import ModelInput
from headway.nn.augment import SpecAugment
from headway.nn.devices import CPU
from headway.nn.layout import Layout
from headway.settings.augment import AugmentSettings
from headway.settings.model import AudioSettings
from headway.specs.task_settings import FillSettings
from headway.tasks.dataset import EpochSeed, PositionInfo
from headway.tasks.masked_media import MaskedFrameDataset
from headway.tasks.preprocess.preprocessor import MediaPreprocessor, UnsplitDataset
from headway.tasks.thumbnails import Thumbnail, waveform_peaks


@dataclass(frozen=True)
class AudioDataset(UnsplitDataset):
    store: AudioStore
    shape: AudioSettings
    changes: AudioAugmentation | None = None

    @cached_property
    def lengths(self) -> IntArray:
        return n_audio_positions(self.store, self.shape)

    def collate(
        self,
        rows: IntArray,
        device: torch.device = CPU,
        fixed: FixedShapes | None = None,
        draw: EpochSeed | None = None,
    ) -> ModelInput:
        waves = [self.store[row] for row in rows.tolist()]
        speeds = None
        if draw is not None and self.changes is not None:
            key = draw.seed, draw.epoch, *[draw.view] * bool(draw.view)
            speeds = self.changes.speeds(rows.tolist(), *key)
        audio, lengths = collate_audio(waves, self.shape, speeds)
        return ModelInput(audio, Layout.of(lengths))

    def fixed(self, plan: StepPlan, micro_tokens: int) -> None:
        """Return None: batches of audio have no fixed shapes, because frames are at different
        positions in every batch."""
        return None

    def describe_positions(self, row: int) -> list[PositionInfo]:
        second = self.shape.row_seconds
        n = int(self.lengths[row])
        return [PositionInfo(time=(at * second, (at + 1) * second)) for at in range(n)]


@dataclass(frozen=True)
class AudioPreprocessor(MediaPreprocessor[AudioSettings]):
    def thumbnail(self, example: ArrayLike) -> Thumbnail:
        return {"wave": waveform_peaks(example)}

    def input_dataset(self, columns: Columns) -> AudioDataset:
        return AudioDataset(columns.audio, self.shape, self.augmentation)

    def columns(self, examples: Sequence[NDArray[np.int16]]) -> Columns:
        """Return a dataset in memory with these recordings."""
        return Columns({"audio": AudioStore.of(examples, self.shape.rate)})

    @property
    def augmentation(self) -> AudioAugmentation:
        return AudioAugmentation(self.augment)

    def apply_augmentation(
        self, model: nn.Module, stream: ModelInput, targets_BC: Tensor
    ) -> tuple[ModelInput, Tensor]:
        reads = model.source_front if hasattr(model, "source_front") else model.front
        front = cast(AudioFront, reads)
        return replace(stream, values=self.augmentation(front, stream.values)), targets_BC

    def masked_dataset(self, columns: Columns, how: FillSettings) -> MaskedFrameDataset:
        hider, samples = PatchMasker(how.mask, how.span), columns.audio.lengths
        return MaskedFrameDataset(
            self.apply_augmentation,
            self.input_dataset(columns),
            hider,
            shape=self.shape,
            samples=samples,
        )


def n_audio_positions(store: AudioStore, shape: AudioSettings) -> IntArray:
    """Return the number of positions of each recording."""
    found = {n: shape.rows_of(n) for n in np.unique(store.lengths).tolist()}
    return np.array([found[n] for n in store.lengths.tolist()], dtype=np.int64)


@dataclass(frozen=True)
class AudioAugmentation:
    """Audio augmentation. Speed changes are applied before collation, everything else on the
    device."""

    settings: AugmentSettings

    @torch.no_grad()
    def __call__(self, front: AudioFront, audio: AudioBatch) -> AudioBatch:
        """Return the audio with random gain, noise and SpecAugment (masked bands and time
        spans)."""
        settings = self.settings
        if settings.noise or settings.gain_db:
            audio = replace(audio, samples_S=self._augmented(audio))
        if settings.bands or settings.spans:
            hide = SpecAugment(
                settings.bands, settings.band_width, settings.spans, settings.span_width
            )
            mel_AF = hide(front.mel(audio), audio.number_A, audio.n_recordings)
            audio = replace(audio, mel_AF=mel_AF)
        return audio

    def _augmented(self, audio: AudioBatch) -> Tensor:
        """Return the samples with a random gain for each recording, and with noise relative to its
        own RMS level."""
        samples_S, n = audio.samples_S, audio.n_recordings
        number_S = _numbers(audio)
        draw_2B = torch.rand(2, n, device=samples_S.device)
        if self.settings.noise:
            sizes_B = torch.bincount(number_S, minlength=n).clamp(min=1)
            power_B = samples_S.new_zeros(n).index_add(0, number_S, samples_S.square()) / sizes_B
            share_B = self.settings.noise * draw_2B[0] * power_B.sqrt()
            samples_S = samples_S + torch.randn_like(samples_S) * share_B[number_S]
        decibels_B = self.settings.gain_db * (2 * draw_2B[1] - 1)
        return samples_S * (10 ** (decibels_B / 20))[number_S]

    def speeds(self, rows: Sequence[int], *key: int) -> list[float] | None:
        """Return a random speed factor for each recording, or None without speed changes.

        A factor of 1.1 makes a recording shorter and higher. `key`: seed of the random factors,
        together with the index of the recording.
        """
        share = self.settings.speed
        if not share:
            return None
        draws = [np.random.Generator(np.random.PCG64([*key, row])) for row in rows]
        return [float(draw.uniform(1 - share, 1 + share)) for draw in draws]


def _numbers(audio: AudioBatch) -> Tensor:
    """Return the index of the recording that each sample of a batch belongs to."""
    begins_S = torch.zeros_like(audio.samples_S, dtype=torch.long)
    begins_S[audio.low_A] = 1
    return begins_S.cumsum(0) - 1
