"""Which rows of pictures and recordings are hidden, and what stood there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.config.model import PictureSettings, SoundSettings
from headway.data.masking import Draws, Numbers
from headway.models.parts.pictures import PictureFront, Pictures
from headway.models.parts.sounds import Sound, SoundFront

CHOICE, SHIFT = range(2)
"""What a draw is for: each has numbers of its own."""

ITEM = 1 << 24
"""More rows than an item has: its draws are numbered from its own number times this."""

LEAST_VARIANCE = 1e-3
"""Of a patch, beside pixels whose variance is about 1: an even one is not blown up to noise."""


@dataclass(frozen=True)
class Hider:
    """`mask` of the rows of each item, `span` together; first rows, which are no part of a picture,
    never. A pure function of the seed, the epoch and the item: what else is in the batch does not
    matter."""

    mask: float
    span: int
    seed: int

    def count(self, n_rows: int) -> int:
        """Hidden rows of so many; one stays, where there are two."""
        return int(np.clip(round(self.mask * n_rows), 1, max(1, n_rows - 1)))

    def of_pictures(
        self, items: Numbers, grid: tuple[int, int, int], epoch: int
    ) -> NDArray[np.int64]:
        """Hidden places on the grid of each picture, in order (B H). Of videos the same place is
        hidden at all times: what stands still would be seen a moment later."""
        _, n_lines, n_columns = grid
        line, column = np.divmod(np.arange(n_lines * n_columns), n_columns)
        unit_P = line // self.span * n_columns + column // self.span
        places_BP = items[:, None] * ITEM + unit_P
        keys_BP = Draws(self.seed, epoch).uniform(CHOICE, places_BP)
        hidden_BH = _first(keys_BP, self.count(len(unit_P)))
        times = np.arange(grid[0]) * len(unit_P)
        return (times[None, :, None] + hidden_BH[:, None, :]).reshape(len(items), -1)

    def of_recording(self, item: int, n_rows: int, epoch: int) -> NDArray[np.int64]:
        """Hidden rows, in order."""
        draws = Draws(self.seed, epoch)
        shift = int(draws.uniform(SHIFT, np.array([item]))[0] * self.span)
        unit_P = (np.arange(n_rows) + shift) // self.span
        keys_1P = draws.uniform(CHOICE, (item * ITEM + unit_P)[None])
        return _first(keys_1P, self.count(n_rows))[0]


def _first(keys_BP: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """The places of the `n` smallest keys, in order; equal ones stand together."""
    return np.sort(np.argsort(keys_BP, axis=1, kind="stable")[:, :n], axis=1)


@dataclass(frozen=True)
class Hidden:
    """The hidden rows of a batch."""

    hidden_N: Tensor
    rows_R: Tensor
    """Where they stand."""

    weights_R: Tensor
    """Zero for what only fills the fixed-size form."""

    frames_RP: Tensor | None = None
    """Of recordings: the frames of each hidden row ..."""

    hidden_A: Tensor | None = None
    """... and all that are hidden."""


def hidden_patches(
    hider: Hider, items: Numbers, shape: PictureSettings, epoch: int, n_real: int
) -> Hidden:
    """Of pictures of the usual size, the first `n_real` of which count."""
    n_rows = shape.extra + prod(shape.grid)
    places_BH = hider.of_pictures(items, shape.grid, epoch)
    rows_BH = np.arange(len(items))[:, None] * n_rows + shape.extra + places_BH
    hidden_N = np.zeros(len(items) * n_rows, np.bool_)
    hidden_N[rows_BH] = True
    weights_BH = np.zeros(rows_BH.shape, np.float32)
    weights_BH[:n_real] = 1.0
    tensors = (torch.from_numpy(x) for x in (hidden_N, rows_BH.ravel(), weights_BH.ravel()))
    return Hidden(*tensors)


def hidden_frames(
    hider: Hider, items: Numbers, frames: Numbers, shape: SoundSettings, epoch: int
) -> Hidden:
    """Of recordings with so many frames each."""
    stride = prod(shape.strides)
    lengths = frames
    for step in shape.strides:
        lengths = -(-lengths // step)
    row_starts, frame_starts = np.cumsum(lengths) - lengths, np.cumsum(frames) - frames
    hidden_N = np.zeros(int(lengths.sum()), np.bool_)
    hidden_A = np.zeros(int(frames.sum()), np.bool_)
    rows, read = [], []
    for i, item in enumerate(items.tolist()):
        here_R = hider.of_recording(item, int(lengths[i]), epoch)
        within_RP = here_R[:, None] * stride + np.arange(stride)
        rows.append(row_starts[i] + here_R)
        read.append(frame_starts[i] + np.minimum(within_RP, frames[i] - 1))
    rows_R, frames_RP = np.concatenate(rows), np.concatenate(read)
    hidden_N[rows_R] = True
    hidden_A[frames_RP] = True
    return Hidden(
        torch.from_numpy(hidden_N),
        torch.from_numpy(rows_R),
        torch.ones(len(rows_R)),
        torch.from_numpy(frames_RP),
        torch.from_numpy(hidden_A),
    )


@torch.no_grad()
def without_patches(
    front: PictureFront, pictures: Pictures, hidden: Hidden
) -> tuple[Pictures, Tensor]:
    """The pictures as the model may see them, and what it is to rebuild of each hidden patch: its
    pixels with mean 0 and variance 1, so that detail counts as much as light and shade."""
    (group,) = pictures.groups
    x_BTCYX = front.pixels(group)
    patches_BPE = front.patches(x_BTCYX)
    first_BEE = patches_BPE.new_zeros(len(group), front.shape.extra, patches_BPE.shape[-1])
    rows_NE = torch.cat([first_BEE, patches_BPE], dim=1).flatten(0, 1)
    targets_RE = rows_NE.index_select(0, hidden.rows_R)
    mean_R1 = targets_RE.mean(-1, keepdim=True)
    spread_R1 = targets_RE.var(-1, keepdim=True, correction=0) + LEAST_VARIANCE
    targets_RE = (targets_RE - mean_R1) / spread_R1.sqrt()
    if front.stem is not None:  # convolutions would see a hidden patch from the one beside it
        group = _blank(group, hidden.hidden_N, front)
    return replace(pictures, groups=(group,), hidden_N=hidden.hidden_N), targets_RE


def _blank(group: Tensor, hidden_N: Tensor, front: PictureFront) -> Tensor:
    """Pictures between 0 and 1 with the mean colour in the place of hidden patches."""
    shape = front.shape
    n_frames = group.shape[1]
    n_times, n_lines, n_columns = shape.grid
    cells = hidden_N.view(len(group), -1)[:, shape.extra :].view(-1, n_times, n_lines, n_columns)
    for axis, size in ((1, shape.tubelet), (2, shape.patch), (3, shape.patch)):
        cells = cells.repeat_interleave(size, axis)
    inside = (
        slice(None),
        slice(n_frames),
        slice(None),
        slice(cells.shape[2]),
        slice(cells.shape[3]),
    )
    floats = group.float() / 255.0 if group.dtype == torch.uint8 else group.clone()
    part = floats[inside]
    floats[inside] = torch.where(cells[:, :n_frames, None], front.mean_C11, part)
    return floats


@torch.no_grad()
def without_frames(front: SoundFront, sound: Sound, hidden: Hidden) -> tuple[Sound, Tensor]:
    """The recordings without their hidden frames, and what the model is to rebuild: the frames of
    each hidden row, those of a whole recording with mean 0 and variance 1."""
    assert hidden.frames_RP is not None
    assert hidden.hidden_A is not None
    mel_AF = front.mel(sound)
    mean_A1, spread_A1 = _statistics(mel_AF, sound)
    even_AF = (mel_AF - mean_A1) / spread_A1
    targets_RE = even_AF[hidden.frames_RP].flatten(1)
    # The front's convolutions would see a hidden frame from the one beside it.
    seen_AF = mel_AF.masked_fill(hidden.hidden_A[:, None], 0.0)
    return replace(sound, mel_AF=seen_AF, hidden_N=hidden.hidden_N), targets_RE


def _statistics(mel_AF: Tensor, sound: Sound) -> tuple[Tensor, Tensor]:
    """Mean and deviation of its recording, for each frame."""
    zeros_B = mel_AF.new_zeros(sound.n_recordings)
    number_A = sound.number_A.long()
    count_B = zeros_B.index_add(0, number_A, mel_AF.new_ones(len(mel_AF))).clamp(min=1)
    mean_B = zeros_B.index_add(0, number_A, mel_AF.mean(1)) / count_B
    square_B = zeros_B.index_add(0, number_A, mel_AF.square().mean(1)) / count_B
    spread_B = (square_B - mean_B.square()).clamp(min=LEAST_VARIANCE).sqrt()
    return mean_B[number_A][:, None], spread_B[number_A][:, None]
