"""Images, videos and audio with masked positions, and the targets to reconstruct."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data.batches import FixedShapes, IntArray, StepPlan, to_device
from headway.data.masking import CounterRandom, PatchMasker
from headway.models.parts.audio import AudioBatch, AudioFront
from headway.models.parts.output_heads import ModelInput
from headway.models.parts.vision import ImageBatch, ImageFront
from headway.settings.model import AudioSettings, ImageSettings
from headway.tasks.answers import JsonDict
from headway.tasks.dataset import Batch, EpochSeed
from headway.tasks.preprocess.preprocessor import InputDataset, InputDatasetMixin, MaskTargets

QUICK = 1000
"""Number of validation items that are reconstructed in evaluations during training. The final
evaluation uses all items."""

Augmenter = Callable[[nn.Module, ModelInput, Tensor], tuple[ModelInput, Tensor]]
"""Function that augments model inputs and their targets at random."""

LEAST_VARIANCE = 1e-3
"""Lower bound for the variances that targets are divided by: added for patches, a minimum for
audio. Patches of normalized pixels have a variance of about 1. Without the bound, the noise of
uniform patches would be amplified."""


@dataclass(frozen=True)
class MaskedPositions:
    """Masked positions of a batch, with their weights and targets."""

    rows_R: Tensor
    weights_R: Tensor
    """Weight of each masked position; zero for padding in a batch of fixed size."""

    targets: MaskTargets


@dataclass(frozen=True)
class MaskedMediaDataset(InputDatasetMixin, ABC):
    """Base class of datasets of images, videos or audio in which some positions are masked."""

    augment: Augmenter
    inputs: InputDataset
    masker: PatchMasker
    epoch_seed: EpochSeed | None = None

    @property
    def widest(self) -> int:
        return int(self.inputs.lengths.max())

    @property
    def n_quick(self) -> int:
        return min(QUICK, len(self.inputs.lengths))

    def example(self, row: int) -> JsonDict:
        return {"item": row}

    @property
    def _masking_draws(self) -> CounterRandom:
        return (
            CounterRandom(0, -1)
            if self.epoch_seed is None
            else CounterRandom(self.epoch_seed.seed, self.epoch_seed.epoch)
        )

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[MaskTargets]:
        """Return a batch of inputs with masked positions, without targets. `apply_mask` computes
        the targets on the device, after augmentation."""
        stream, found = self.inputs.collate(rows, device, fixed), self.masked_positions(rows, fixed)
        return to_device(Batch((stream,), found.targets, found.weights_R, found.rows_R), device)

    def limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        return plan.part_limits(micro_tokens)

    def apply_mask(
        self, model: nn.Module, batch: Batch[MaskTargets], training: bool
    ) -> Batch[MaskTargets]:
        stream = self.inputs.to_model_input(batch.streams[0])
        if training:
            stream, _ = self.augment(model, stream, torch.zeros(0))
        values, aims_RE = self.mask_input(model.front, stream.values, batch)
        gone = replace(batch.targets, values=aims_RE)
        return replace(batch, streams=(replace(stream, values=values),), targets=gone)

    @abstractmethod
    def n_targets(self, rows: IntArray) -> int:
        """Return the number of masked positions in these items."""

    @abstractmethod
    def masked_positions(self, rows: IntArray, fixed: FixedShapes | None) -> MaskedPositions: ...

    @abstractmethod
    def mask_input(
        self, front: Tensor | nn.Module, given: object, batch: Batch[MaskTargets]
    ) -> tuple[object, Tensor]:
        """Return the masked input and the targets to reconstruct."""


@dataclass(frozen=True)
class MaskedPatchDataset(MaskedMediaDataset):
    """Images or videos with masked patches. All items have the size in the model settings."""

    shape: ImageSettings = field(kw_only=True)

    def n_targets(self, rows: IntArray) -> int:
        n_times, n_lines, n_columns = self.shape.grid
        return len(rows) * n_times * self.masker.count(n_lines * n_columns)

    def masked_positions(self, rows: IntArray, fixed: FixedShapes | None) -> MaskedPositions:
        items = rows if fixed is None else np.resize(rows, fixed.n_sequences)
        return choose_patches(self.masker, items, self.shape, self._masking_draws, len(rows))

    def mask_input(
        self, front: Tensor | nn.Module, given: object, batch: Batch[MaskTargets]
    ) -> tuple[object, Tensor]:
        assert isinstance(front, ImageFront)
        assert isinstance(given, ImageBatch)
        assert batch.rows_R is not None
        return mask_patches(front, given, batch.rows_R, batch.targets)


@dataclass(frozen=True)
class MaskedFrameDataset(MaskedMediaDataset):
    """Recordings with masked positions, each of which covers several mel frames."""

    shape: AudioSettings = field(kw_only=True)
    samples: IntArray = field(kw_only=True)
    """Length of each recording in audio samples."""

    def n_targets(self, rows: IntArray) -> int:
        return sum(self.masker.count(n) for n in self.inputs.lengths[rows].tolist())

    def masked_positions(self, rows: IntArray, fixed: FixedShapes | None) -> MaskedPositions:
        lengths = self.samples[rows].tolist()
        frames = np.array([self.shape.frames_of(n) for n in lengths], np.int64)
        return choose_frames(self.masker, rows, frames, self.shape, self._masking_draws)

    def mask_input(
        self, front: Tensor | nn.Module, given: object, batch: Batch[MaskTargets]
    ) -> tuple[object, Tensor]:
        assert isinstance(front, AudioFront)
        assert isinstance(given, AudioBatch)
        return mask_frames(front, given, batch.targets)


def choose_patches(
    hider: PatchMasker, items: IntArray, shape: ImageSettings, draws: CounterRandom, n_real: int
) -> MaskedPositions:
    """Choose the masked patches of a batch of images. Only the first `n_real` images have weight in
    the loss, because the others are padding."""
    n_rows = shape.extra + prod(shape.grid)
    places_BH = hider.mask_images(items, shape.grid, draws)
    rows_BH = np.arange(len(items))[:, None] * n_rows + shape.extra + places_BH
    hidden_N = np.zeros(len(items) * n_rows, np.bool_)
    hidden_N[rows_BH] = True
    weights_BH = np.zeros(rows_BH.shape, np.float32)
    weights_BH[:n_real] = 1.0
    rows_R, weights_R = (torch.from_numpy(x.ravel()) for x in (rows_BH, weights_BH))
    return MaskedPositions(rows_R, weights_R, MaskTargets(masked_N=torch.from_numpy(hidden_N)))


def choose_frames(
    hider: PatchMasker,
    items: IntArray,
    frames: IntArray,
    shape: AudioSettings,
    draws: CounterRandom,
) -> MaskedPositions:
    """Choose the masked positions of a batch of recordings. `frames`: number of mel frames of
    each."""
    stride = prod(shape.strides)
    lengths = frames
    for step in shape.strides:
        lengths = -(-lengths // step)
    row_starts, frame_starts = np.cumsum(lengths) - lengths, np.cumsum(frames) - frames
    hidden_N = np.zeros(int(lengths.sum()), np.bool_)
    hidden_A = np.zeros(int(frames.sum()), np.bool_)
    rows, read = [], []
    for i, item in enumerate(items.tolist()):
        here_R = hider.mask_audio(item, int(lengths[i]), draws)
        within_RP = here_R[:, None] * stride + np.arange(stride)
        rows.append(row_starts[i] + here_R)
        read.append(frame_starts[i] + np.minimum(within_RP, frames[i] - 1))
    rows_R, frames_RP = np.concatenate(rows), np.concatenate(read)
    hidden_N[rows_R] = True
    hidden_A[frames_RP] = True
    gone = MaskTargets(
        masked_N=torch.from_numpy(hidden_N),
        frames_RP=torch.from_numpy(frames_RP),
        masked_A=torch.from_numpy(hidden_A),
    )
    return MaskedPositions(torch.from_numpy(rows_R), torch.ones(len(rows_R)), gone)


@torch.no_grad()
def mask_patches(
    front: ImageFront, images: ImageBatch, rows_R: Tensor, gone: MaskTargets
) -> tuple[ImageBatch, Tensor]:
    """Return the images with masked patches, and the target of each masked patch.

    Targets are the pixels, normalized to mean 0 and variance 1 within each patch, so that texture
    counts as much as brightness.
    """
    (group,) = images.groups
    hidden_N = gone.masked_N
    assert hidden_N is not None
    x_BTCYX = front.pixels(group)
    patches_BPE = front.patches(x_BTCYX)
    first_BEE = patches_BPE.new_zeros(len(group), front.shape.extra, patches_BPE.shape[-1])
    rows_NE = torch.cat([first_BEE, patches_BPE], dim=1).flatten(0, 1)
    targets_RE = rows_NE.index_select(0, rows_R)
    mean_R1 = targets_RE.mean(-1, keepdim=True)
    spread_R1 = targets_RE.var(-1, keepdim=True, correction=0) + LEAST_VARIANCE
    targets_RE = (targets_RE - mean_R1) / spread_R1.sqrt()
    if front.stem is not None:  # convolutions would see masked pixels from the next patch
        group = masked_image(group, hidden_N, front)
    return replace(images, groups=(group,), masked_N=hidden_N), targets_RE


def masked_image(group: Tensor, hidden_N: Tensor, front: ImageFront) -> Tensor:
    """Return the images with values between 0 and 1, in which masked patches have the mean colour.
    Pixels beyond the last whole patch are never masked."""
    shape = front.shape
    n_images, n_frames, _, height, width = group.shape
    cells = hidden_N.view(n_images, -1)[:, shape.extra :].unflatten(1, shape.grid)
    for axis, size in ((1, shape.tubelet), (2, shape.patch), (3, shape.patch)):
        cells = cells.repeat_interleave(size, axis)
    rest = (0, width - cells.shape[3], 0, height - cells.shape[2])
    cells = F.pad(cells[:, :n_frames], rest)
    floats = group.float() / 255.0 if group.dtype == torch.uint8 else group
    return torch.where(cells[:, :, None], front.mean_C11, floats)


@torch.no_grad()
def mask_frames(
    front: AudioFront, audio: AudioBatch, gone: MaskTargets
) -> tuple[AudioBatch, Tensor]:
    """Return the audio with masked frames set to zero, and the target of each masked position.

    Targets are the mel frames, standardized per recording to mean 0 and variance 1.
    """
    assert gone.frames_RP is not None
    assert gone.masked_A is not None
    mel_AF = front.mel(audio)
    mean_A1, spread_A1 = _statistics(mel_AF, audio)
    even_AF = (mel_AF - mean_A1) / spread_A1
    targets_RE = even_AF[gone.frames_RP].flatten(1)
    # Mask frames before the convolutions of the input layers, which would otherwise see them from
    # the next frame.
    seen_AF = mel_AF.masked_fill(gone.masked_A[:, None], 0.0)
    return replace(audio, mel_AF=seen_AF, masked_N=gone.masked_N), targets_RE


def _statistics(mel_AF: Tensor, audio: AudioBatch) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of the recording that each frame belongs to."""
    zeros_B = mel_AF.new_zeros(audio.n_recordings)
    number_A = audio.number_A.long()
    count_B = zeros_B.index_add(0, number_A, mel_AF.new_ones(len(mel_AF))).clamp(min=1)
    mean_B = zeros_B.index_add(0, number_A, mel_AF.mean(1)) / count_B
    square_B = zeros_B.index_add(0, number_A, mel_AF.square().mean(1)) / count_B
    spread_B = (square_B - mean_B.square()).clamp(min=LEAST_VARIANCE).sqrt()
    return mean_B[number_A][:, None], spread_B[number_A][:, None]
