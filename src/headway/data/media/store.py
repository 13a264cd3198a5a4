"""Stores of pixels and samples, memory-mapped from disk, so that only items that are read take
memory.

The values of all items are concatenated in one file, with the start and size of each item. A split
is a selection of items, not a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.media.pixels import ByteArray

ON_DEVICE = 8_000_000_000
"""Maximum size in bytes of a dataset that is copied to a GPU. Chosen by hand to leave memory for
training on common GPUs."""

AnyIntArray = NDArray[np.integer[Any]]
ImageShape = tuple[int, int, int, int]
"""Shape of an image or video: frames, channels, height, width."""


class ImageStore:
    """Store of images and videos. `store[i]` is an array of bytes T C Y X; an image has one
    frame."""

    def __init__(
        self, pixels: ByteArray, starts: NDArray[np.int64], shapes: NDArray[np.int64],
        copy: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Create a store from concatenated `pixels`. `starts` and `shapes` have one entry per item.
        `copy`: copy of all items on a GPU, or None."""
        self.pixels = pixels
        self.starts = starts
        self.shapes = shapes
        self.copy = copy
        """Copy of all items, in order, on the GPU. If there is one, batches are gathered there."""

    @classmethod
    def of(cls, items: Sequence[ByteArray]) -> ImageStore:
        """Create a store from arrays in memory."""
        shapes = np.array([item.shape for item in items], np.int64).reshape(len(items), 4)
        flat = [item.reshape(-1) for item in items]
        pixels = np.concatenate(flat) if flat else np.zeros(0, np.uint8)
        return cls(pixels, _starts(shapes.prod(1)), shapes)

    @classmethod
    def open(cls, path: Path, shape: ImageShape) -> ImageStore:
        """Open a file of items of equal shape."""
        pixels = _mapped(path, "u1")
        n = len(pixels) // prod(shape)
        shapes = np.broadcast_to(np.array(shape, np.int64), (n, 4))
        return cls(pixels, np.arange(n, dtype=np.int64) * prod(shape), shapes)

    def rows(self, rows: AnyIntArray) -> ImageStore:
        """Return a store of the items `rows`, in this order."""
        return ImageStore(self.pixels, self.starts[rows], self.shapes[rows])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> ByteArray:
        """Return item `i` as a writable copy."""
        start, shape = int(self.starts[i]), self.shapes[i]
        return np.array(self.pixels[start : start + int(shape.prod())]).reshape(shape)

    @property
    def equal(self) -> ImageShape | None:
        """Shape of all items; None if shapes differ or there are no items."""
        if not len(self) or (self.shapes != self.shapes[0]).any():
            return None
        t, c, y, x = self.shapes[0].tolist()
        return t, c, y, x

    def gather(self, rows: AnyIntArray) -> Tensor:
        """Return items of equal shape as one tensor B T C Y X. It is on the GPU if the store has a
        copy there."""
        if self.copy is not None:
            return self.copy[torch.as_tensor(rows, device=self.copy.device)]
        shape = self.shapes[rows[0]]
        size = int(shape.prod())
        if (self.starts[rows] % size).any() or (self.shapes[rows] != shape).any():
            return torch.from_numpy(np.stack([self[int(i)] for i in rows]))
        whole = len(self.pixels) // size * size
        items = self.pixels[:whole].reshape(-1, *shape)
        return torch.from_numpy(np.ascontiguousarray(items[self.starts[rows] // size]))

    def on(self, device: torch.device | str, most: int = ON_DEVICE) -> ImageStore:
        """Return a store with a copy of all items on the device. If shapes differ, or if the copy
        would take more than `most` bytes, return this store."""
        device = torch.device(device)
        shape = self.equal
        if device.type == "cpu" or shape is None or len(self) * prod(shape) > most:
            return self
        copy = torch.empty((len(self), *shape), dtype=torch.uint8, device=device)
        block = max(1, 64_000_000 // prod(shape))
        for first in range(0, len(self), block):
            rows = np.arange(first, min(first + block, len(self)))
            copy[first : first + len(rows)] = self.gather(rows).to(device)
        return ImageStore(self.pixels, self.starts, self.shapes, copy)


class AudioStore:
    """Store of audio. `store[i]` is an array of int16 samples."""

    def __init__(
        self, samples: NDArray[np.int16], starts: NDArray[np.int64], lengths: NDArray[np.int64],
        rate: int,
    ) -> None:  # fmt: skip
        self.samples = samples
        self.starts = starts
        self.lengths = lengths
        self.rate = rate

    @classmethod
    def of(cls, items: Sequence[NDArray[np.int16]], rate: int) -> AudioStore:
        """Create a store from arrays in memory."""
        lengths = np.array([len(item) for item in items], np.int64)
        samples = np.concatenate(items) if items else np.zeros(0, np.int16)
        return cls(samples, _starts(lengths), lengths, rate)

    @classmethod
    def open(cls, path: Path, lengths: NDArray[np.int64], rate: int) -> AudioStore:
        return cls(_mapped(path, "<i2"), _starts(lengths), lengths, rate)

    def rows(self, rows: AnyIntArray) -> AudioStore:
        """Return a store of the items `rows`, in this order."""
        return AudioStore(self.samples, self.starts[rows], self.lengths[rows], self.rate)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> NDArray[np.int16]:
        """Return item `i` as a writable copy."""
        start = int(self.starts[i])
        return np.array(self.samples[start : start + int(self.lengths[i])])

    @property
    def seconds(self) -> float:
        """Total duration of all items in seconds."""
        return float(self.lengths.sum()) / self.rate


def to_int16(samples_S: NDArray[np.float32]) -> NDArray[np.int16]:
    """Convert float samples from −1 to 1 to 16-bit integers. Values outside this range are
    clipped."""
    return np.rint(np.clip(samples_S * 32768.0, -32768, 32767)).astype(np.int16)


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(sizes) - sizes


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")
