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
from headway.tasks.answers import Facts
from headway.tasks.intake import Cuts, Gone, OverCuts
from headway.tasks.items import Batch, Draw

QUICK = 1000
"""Number of validation items that are reconstructed in evaluations during training. The last
evaluation uses all."""

Change = Callable[[nn.Module, ModelInput, Tensor], tuple[ModelInput, Tensor]]
"""Random augmentation of training inputs and targets."""

LEAST_VARIANCE = 1e-3
"""Added to the variance of a patch, whose pixels have a variance of about 1, so that scaling a
uniform patch does not amplify noise."""


@dataclass(frozen=True)
class Hidden:
    """The masked positions of a batch."""

    rows_R: Tensor
    weights_R: Tensor
    """Weight of each masked position; zero for padding of a fixed form."""

    gone: Gone


@dataclass(frozen=True)
class HiddenItems(OverCuts, ABC):
    """Media items with some of their positions masked."""

    change: Change
    cuts: Cuts
    hider: PatchMasker
    draw: Draw | None = None

    @property
    def widest(self) -> int:
        return int(self.cuts.lengths.max())

    @property
    def n_quick(self) -> int:
        return min(QUICK, len(self.cuts.lengths))

    def example(self, row: int) -> Facts:
        return {"item": row}

    @property
    def _draws(self) -> CounterRandom:
        return (
            CounterRandom(0, -1)
            if self.draw is None
            else CounterRandom(self.draw.seed, self.draw.epoch)
        )

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[Gone]:
        """A batch without target values. `without` computes them on the device, after
        augmentation."""
        stream, found = self.cuts.collate(rows, device, fixed), self.hidden(rows, fixed)
        return to_device(Batch((stream,), found.gone, found.weights_R, found.rows_R), device)

    def limits(self, plan: StepPlan, micro_tokens: int) -> tuple[int, int]:
        return plan.part_limits(micro_tokens)

    def without(self, model: nn.Module, batch: Batch[Gone], training: bool) -> Batch[Gone]:
        stream = self.cuts.shown(batch.streams[0])
        if training:
            stream, _ = self.change(model, stream, torch.zeros(0))
        values, aims_RE = self.hide(model.front, stream.values, batch)
        gone = replace(batch.targets, values=aims_RE)
        return replace(batch, streams=(replace(stream, values=values),), targets=gone)

    @abstractmethod
    def n_targets(self, rows: IntArray) -> int:
        """Number of masked positions in these items."""

    @abstractmethod
    def hidden(self, rows: IntArray, fixed: FixedShapes | None) -> Hidden: ...

    @abstractmethod
    def hide(
        self, front: Tensor | nn.Module, given: object, batch: Batch[Gone]
    ) -> tuple[object, Tensor]:
        """Return the masked input and the targets to reconstruct."""


@dataclass(frozen=True)
class HiddenPatches(HiddenItems):
    """Masked patches of images and videos that all have the size of the model settings."""

    shape: ImageSettings = field(kw_only=True)

    def n_targets(self, rows: IntArray) -> int:
        n_times, n_lines, n_columns = self.shape.grid
        return len(rows) * n_times * self.hider.count(n_lines * n_columns)

    def hidden(self, rows: IntArray, fixed: FixedShapes | None) -> Hidden:
        items = rows if fixed is None else np.resize(rows, fixed.n_sequences)
        return hidden_patches(self.hider, items, self.shape, self._draws, len(rows))

    def hide(
        self, front: Tensor | nn.Module, given: object, batch: Batch[Gone]
    ) -> tuple[object, Tensor]:
        assert isinstance(front, ImageFront)
        assert isinstance(given, ImageBatch)
        assert batch.rows_R is not None
        return without_patches(front, given, batch.rows_R, batch.targets)


@dataclass(frozen=True)
class HiddenFrames(HiddenItems):
    """Masked frames of audio."""

    shape: AudioSettings = field(kw_only=True)
    samples: IntArray = field(kw_only=True)
    """Number of samples of each recording."""

    def n_targets(self, rows: IntArray) -> int:
        return sum(self.hider.count(n) for n in self.cuts.lengths[rows].tolist())

    def hidden(self, rows: IntArray, fixed: FixedShapes | None) -> Hidden:
        lengths = self.samples[rows].tolist()
        frames = np.array([self.shape.frames_of(n) for n in lengths], np.int64)
        return hidden_frames(self.hider, rows, frames, self.shape, self._draws)

    def hide(
        self, front: Tensor | nn.Module, given: object, batch: Batch[Gone]
    ) -> tuple[object, Tensor]:
        assert isinstance(front, AudioFront)
        assert isinstance(given, AudioBatch)
        return without_frames(front, given, batch.targets)


def hidden_patches(
    hider: PatchMasker, items: IntArray, shape: ImageSettings, draws: CounterRandom, n_real: int
) -> Hidden:
    """Choose the masked patches of a batch of images. Only the first `n_real` images have weight in
    the loss; the others are padding."""
    n_rows = shape.extra + prod(shape.grid)
    places_BH = hider.mask_images(items, shape.grid, draws)
    rows_BH = np.arange(len(items))[:, None] * n_rows + shape.extra + places_BH
    hidden_N = np.zeros(len(items) * n_rows, np.bool_)
    hidden_N[rows_BH] = True
    weights_BH = np.zeros(rows_BH.shape, np.float32)
    weights_BH[:n_real] = 1.0
    rows_R, weights_R = (torch.from_numpy(x.ravel()) for x in (rows_BH, weights_BH))
    return Hidden(rows_R, weights_R, Gone(hidden_N=torch.from_numpy(hidden_N)))


def hidden_frames(
    hider: PatchMasker,
    items: IntArray,
    frames: IntArray,
    shape: AudioSettings,
    draws: CounterRandom,
) -> Hidden:
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
    gone = Gone(
        hidden_N=torch.from_numpy(hidden_N),
        frames_RP=torch.from_numpy(frames_RP),
        hidden_A=torch.from_numpy(hidden_A),
    )
    return Hidden(torch.from_numpy(rows_R), torch.ones(len(rows_R)), gone)


@torch.no_grad()
def without_patches(
    front: ImageFront, pictures: ImageBatch, rows_R: Tensor, gone: Gone
) -> tuple[ImageBatch, Tensor]:
    """The masked images, and the target of each masked patch: its pixels with mean 0 and variance
    1, so that texture counts as much as brightness."""
    (group,) = pictures.groups
    hidden_N = gone.hidden_N
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
        group = blank(group, hidden_N, front)
    return replace(pictures, groups=(group,), masked_N=hidden_N), targets_RE


def blank(group: Tensor, hidden_N: Tensor, front: ImageFront) -> Tensor:
    """Images with values between 0 and 1, in which masked patches have the mean colour. Pixels
    beyond the last whole patch are never masked."""
    shape = front.shape
    n_pictures, n_frames, _, height, width = group.shape
    cells = hidden_N.view(n_pictures, -1)[:, shape.extra :].unflatten(1, shape.grid)
    for axis, size in ((1, shape.tubelet), (2, shape.patch), (3, shape.patch)):
        cells = cells.repeat_interleave(size, axis)
    rest = (0, width - cells.shape[3], 0, height - cells.shape[2])
    cells = F.pad(cells[:, :n_frames], rest)
    floats = group.float() / 255.0 if group.dtype == torch.uint8 else group
    return torch.where(cells[:, :, None], front.mean_C11, floats)


@torch.no_grad()
def without_frames(front: AudioFront, sound: AudioBatch, gone: Gone) -> tuple[AudioBatch, Tensor]:
    """The audio with masked frames set to zero, and the target of each masked position: its mel
    frames, standardised per recording to mean 0 and variance 1."""
    assert gone.frames_RP is not None
    assert gone.hidden_A is not None
    mel_AF = front.mel(sound)
    mean_A1, spread_A1 = _statistics(mel_AF, sound)
    even_AF = (mel_AF - mean_A1) / spread_A1
    targets_RE = even_AF[gone.frames_RP].flatten(1)
    # Mask frames before the convolutions of the front, which would see them from the next frame.
    seen_AF = mel_AF.masked_fill(gone.hidden_A[:, None], 0.0)
    return replace(sound, mel_AF=seen_AF, masked_N=gone.hidden_N), targets_RE


def _statistics(mel_AF: Tensor, sound: AudioBatch) -> tuple[Tensor, Tensor]:
    """For each frame, the mean and standard deviation of its recording."""
    zeros_B = mel_AF.new_zeros(sound.n_recordings)
    number_A = sound.number_A.long()
    count_B = zeros_B.index_add(0, number_A, mel_AF.new_ones(len(mel_AF))).clamp(min=1)
    mean_B = zeros_B.index_add(0, number_A, mel_AF.mean(1)) / count_B
    square_B = zeros_B.index_add(0, number_A, mel_AF.square().mean(1)) / count_B
    spread_B = (square_B - mean_B.square()).clamp(min=LEAST_VARIANCE).sqrt()
    return mean_B[number_A][:, None], spread_B[number_A][:, None]
