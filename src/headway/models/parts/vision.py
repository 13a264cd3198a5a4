"""Image front: converts image patches and video tubelets to vectors with positional encodings.

Images of several sizes share one flat batch; each takes as many positions as it has patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.models.parts.front import Front, on_device
from headway.nn.dropout import Dropout
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.positions import Grid2d, sinusoids
from headway.settings.vision import ImageSettings


@dataclass(frozen=True)
class ImageBatch:
    """A flat batch of images, grouped by size."""

    groups: tuple[Tensor, ...]
    """Images of each size (B T C Y X), as uint8 from 0 to 255 or as floats from 0 to 1."""

    order_N: Tensor | None = None
    """For each position of the batch, its index in the concatenation of all groups. None: the two
    orders are equal."""

    masked_N: Tensor | None = None
    """True for positions that are replaced by the mask vector; always false for class tokens. None
    if nothing is masked."""


def collate_images(
    items: Sequence[Any], shape: ImageSettings, *, n_sequences: int | None = None
) -> tuple[ImageBatch, list[int]]:
    """Collate images (T C Y X, uint8) into a batch. Return it with the number of positions of each
    image.

    `n_sequences`: if all images have the same size, add black images until there are this many.
    """
    tensors = [item if isinstance(item, Tensor) else _tensor(item) for item in items]
    lengths = [shape.rows_of(t, y, x) for t, _, y, x in (item.shape for item in tensors)]
    sizes = list(dict.fromkeys(item.shape for item in tensors))
    groups = []
    places: list[int] = []
    for size in sizes:
        members = [number for number, item in enumerate(tensors) if item.shape == size]
        groups.append(torch.stack([tensors[number] for number in members]))
        places += members
    if len(sizes) > 1:
        return ImageBatch(tuple(groups), _order(places, lengths)), lengths
    if n_sequences is not None and n_sequences > len(tensors):
        black = groups[0].new_zeros(n_sequences - len(tensors), *groups[0].shape[1:])
        groups[0] = torch.cat([groups[0], black])
    return ImageBatch(tuple(groups)), lengths


def _tensor(item: Any) -> Tensor:
    return torch.from_numpy(np.array(item))


def _order(places: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """Return the permutation that restores the batch order of positions, for images stored in the
    order `places`."""
    starts = dict(zip(places, np.cumsum([0, *(lengths[p] for p in places)]).tolist(), strict=False))
    rows = [np.arange(length) + starts[number] for number, length in enumerate(lengths)]
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))


class Conv(nn.Conv2d):
    """Convolution that computes in the data type of its input, as `nn.linear.Linear` does."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self._conv_forward(x, self.weight.to(x.dtype), bias)


class ChannelNorm(nn.GroupNorm):
    """Normalizes all values of one image to mean 0 and variance 1, independently of other images in
    the batch."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.group_norm(x.float(), 1, self.weight.float(), self.bias.float(), self.eps)
        return wide.to(x.dtype)


def conv_stem(channels: int, width: int, n_layers: int) -> nn.Sequential:
    """Build convolutions that keep the image size. They are applied before images are cut into
    patches."""
    parts: list[nn.Module] = []
    for layer in range(n_layers):
        parts += [Conv(channels if layer == 0 else width, width, 3, padding=1, bias=False)]
        parts += [ChannelNorm(width), nn.GELU()]
    return nn.Sequential(*parts)


def feature_grid(channels: int, width: int, out: int) -> nn.Sequential:
    """Build a small version of the image encoder of "Show, Attend and Tell".

    Three stages halve the image size, and the last two double the channels. Each position of the
    resulting feature map becomes one vector.
    """
    parts: list[nn.Module] = []
    before = channels
    for factor in (1, 2, 4):
        inner = width * factor
        parts += [Conv(before, inner, 3, stride=2, padding=1, bias=False), ChannelNorm(inner)]
        parts += [nn.GELU(), Conv(inner, inner, 3, padding=1, bias=False), ChannelNorm(inner)]
        parts += [nn.GELU()]
        before = inner
    return nn.Sequential(*parts, Conv(before, out, 1))


class ImageFront(Front):
    """Input layers for images and videos: convolutional stem, patch embeddings, class tokens and
    positional encodings."""

    reads = "image"
    mean_C11: Tensor
    std_C11: Tensor

    def __init__(
        self, shape: ImageSettings, width: int, *, dropout: float = 0.0, masks: bool = False
    ) -> None:
        """Build the input layers.

        `masks`: add a learned vector that replaces masked patches.
        """
        super().__init__()
        self.shape = shape
        for name in ("mean", "std"):
            values = torch.tensor(getattr(shape, name), dtype=torch.float32)[:, None, None]
            self.register_buffer(f"{name}_C11", values, persistent=False)
        inner = shape.stem_width if shape.stem == "conv" else shape.channels
        self.stem: nn.Module | None = None
        self.to_stream: nn.Module | None = None
        if shape.stem == "grid":
            self.stem = feature_grid(shape.channels, shape.stem_width, width)
        else:
            if shape.stem == "conv":
                self.stem = conv_stem(shape.channels, inner, shape.stem_layers)
            self.to_stream = Linear(inner * shape.tubelet * shape.patch**2, width)
        self.first = nn.Embedding(shape.extra, width) if shape.extra else None
        self.mask = nn.Embedding(1, width) if masks else None
        n_times, n_lines, n_columns = shape.grid
        learned = shape.positions == "learned"
        self.places = (
            None
            if shape.positions == "none"
            else Grid2d(width, n_lines, n_columns, learned=learned)
        )
        # Class tokens have no position in the image, but ViT adds learned positional encodings to
        # them too.
        self.first_places = nn.Embedding(shape.extra, width) if learned and shape.extra else None
        self.times: nn.Embedding | None = None
        if n_times > 1 and learned:
            self.times = nn.Embedding(n_times, width)
        self.drop = Dropout(dropout)

    def rows(self, item: Any) -> int:
        n_frames, _, height, width = item.shape
        return self.shape.rows_of(n_frames, height, width)

    def collate(
        self, items: Sequence[Any], device: torch.device | str = "cpu"
    ) -> tuple[ImageBatch, Layout]:
        images, lengths = collate_images(items, self.shape)
        return on_device(images, device), Layout.of(lengths, device)

    def blanks(self, n_rows: int) -> list[Any]:
        shape = self.shape
        size = (shape.frames, shape.channels, shape.height, shape.width)
        black = torch.zeros(size, dtype=torch.uint8, device="meta")
        return [black] * max(1, -(-n_rows // self.rows(black)))

    def forward(self, images: ImageBatch, layout: Layout) -> Tensor:
        x_ND = self._in_order([self._rows(group) for group in images.groups], images)
        if images.masked_N is not None and self.mask is not None:
            x_ND = torch.where(images.masked_N[:, None], self.mask.weight.to(x_ND.dtype), x_ND)
        if self.places is not None:
            codes = [self._code(group) for group in images.groups]
            x_ND = x_ND + self._in_order(codes, images).to(x_ND.dtype)
        return self.drop(x_ND)

    def pixels(self, group: Tensor) -> Tensor:
        """Return the pixels in fp32, normalized with the configured mean and standard deviation."""
        x_BTCYX = group.float() / 255.0 if group.dtype == torch.uint8 else group.float()
        return (x_BTCYX - self.mean_C11) / self.std_C11

    def patches(self, x_BTCYX: Tensor) -> Tensor:
        """Cut images into patches, and videos into tubelets (B R E). They are ordered by time, then
        row by row."""
        shape = self.shape
        if len(x_BTCYX[0]) < shape.tubelet:  # an image among videos repeats its only frame
            x_BTCYX = x_BTCYX.expand(-1, shape.tubelet, -1, -1, -1)
        size, step = shape.patch, shape.step
        cut = x_BTCYX.unfold(1, shape.tubelet, shape.tubelet).unfold(3, size, step)
        cut = cut.unfold(4, size, step)  # B t C y x tubelet patch patch
        return cut.permute(0, 1, 3, 4, 2, 5, 6, 7).flatten(4).flatten(1, 3)

    def _rows(self, group: Tensor) -> Tensor:
        """Return the vectors of all positions for images of one size (B R D), without positional
        encodings."""
        n_images, n_frames = group.shape[:2]
        x_BTCYX = self.cast(self.pixels(group))
        if self.stem is not None:
            x_BTCYX = self.stem(x_BTCYX.flatten(0, 1)).unflatten(0, (n_images, n_frames))
        if self.to_stream is None:
            x_BRD = x_BTCYX.permute(0, 1, 3, 4, 2).flatten(1, 3)
        else:
            x_BRD = self.to_stream(self.patches(x_BTCYX))
        if self.first is None:
            return x_BRD
        first_BED = self.first.weight.to(x_BRD.dtype).expand(n_images, -1, -1)
        return torch.cat([first_BED, x_BRD], dim=1)

    def _code(self, group: Tensor) -> Tensor:
        """Return the positional encodings for images of one size (B R D)."""
        assert self.places is not None
        n_times, n_lines, n_columns = self.shape.grid_of(*(group.shape[i] for i in (1, 3, 4)))
        place_PD = self.places.code(n_lines, n_columns)
        code_RD = place_PD if n_times == 1 else self._timed(place_PD, n_times)
        first_ED = (
            code_RD.new_zeros(self.shape.extra, code_RD.shape[1])
            if self.first_places is None
            else self.first_places.weight
        )
        return torch.cat([first_ED, code_RD]).expand(group.shape[0], -1, -1)

    def _timed(self, place_PD: Tensor, n_times: int) -> Tensor:
        if self.times is None:
            time_TD = sinusoids(n_times, place_PD.shape[1]).to(place_PD)
        elif n_times == self.times.num_embeddings:
            time_TD = self.times.weight
        else:
            table_1DT = self.times.weight.T[None]
            time_TD = F.interpolate(table_1DT, size=n_times, mode="linear")[0].T
        return (time_TD[:, None] + place_PD).flatten(0, 1)

    @staticmethod
    def _in_order(parts: Sequence[Tensor], images: ImageBatch) -> Tensor:
        x_ND = torch.cat([part.flatten(0, 1) for part in parts])
        return x_ND if images.order_N is None else x_ND[images.order_N]
