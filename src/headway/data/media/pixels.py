"""Convert arrays of pixels to 8 bits, and to the channels and size that are required."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from headway.errors import DataError

ByteArray = NDArray[np.uint8]

WHITE = 255
"""Background colour of transparent images."""


def resized(x_TCYX: ByteArray, height: int, width: int, crop: bool = True) -> ByteArray:
    """Resize with antialiasing, so that each new pixel averages the old pixels that it covers. By
    default, the largest central part with the new aspect ratio is resized. With `crop=False`, the
    whole image is stretched."""
    old_height, old_width = x_TCYX.shape[-2:]
    if (old_height, old_width) == (height, width):
        return x_TCYX
    if crop:
        # Crop before resizing. Otherwise, an image of one line with a million pixels would first be
        # enlarged to a huge image.
        factor = max(height / old_height, width / old_width)
        x_TCYX = _middle(x_TCYX, round(height / factor), round(width / factor))
    x_TCYX = np.ascontiguousarray(x_TCYX)
    # torch warns about read-only arrays, such as memory-mapped ones.
    pixels = torch.from_numpy(x_TCYX if x_TCYX.flags.writeable else x_TCYX.copy())
    size = (height, width)
    return F.interpolate(pixels, size=size, mode="bilinear", antialias=True).numpy()


def _middle(x_TCYX: ByteArray, height: int, width: int) -> ByteArray:
    old_height, old_width = x_TCYX.shape[-2:]
    height, width = min(max(height, 1), old_height), min(max(width, 1), old_width)
    top, left = (old_height - height) // 2, (old_width - width) // 2
    return x_TCYX[..., top : top + height, left : left + width]


def to_pixels(values_YXC: NDArray[Any], channels: int, where: str) -> ByteArray:
    """Convert an image of 16-bit integers, or of floats between 0 and 1, to 8-bit C Y X.
    Transparent pixels are put over white. Greyscale and colour are converted to each other as
    required."""
    return to_frames(values_YXC[None], channels, where)[0]


def to_frames(values_TYXC: NDArray[Any], channels: int, where: str) -> ByteArray:
    """Convert frames to 8-bit T C Y X. `to_pixels` does this for a single image."""
    n = values_TYXC.shape[-1]
    if n not in (1, 3, 4):
        raise DataError(
            f"{where} has {n} channels in its last axis, but must have 1 (grey), 3 (colour) or 4 "
            "(with transparency)."
        )
    x_TYXC = _eight_bits(values_TYXC, where)
    if n == 4:
        alpha = x_TYXC[..., 3:].astype(np.uint32)
        over = x_TYXC[..., :3] * alpha + WHITE * (255 - alpha)
        x_TYXC = ((over + 127) // 255).astype(np.uint8)
    if x_TYXC.shape[-1] == 1 and channels == 3:
        x_TYXC = np.repeat(x_TYXC, 3, axis=-1)
    elif x_TYXC.shape[-1] == 3 and channels == 1:
        # ITU-R 601 weights in integer arithmetic, as in Pillow.
        weights = np.array([19595, 38470, 7471], np.uint32)
        x_TYXC = ((x_TYXC @ weights + 0x8000) >> 16).astype(np.uint8)[..., None]
    return np.ascontiguousarray(x_TYXC.transpose(0, 3, 1, 2))


def _eight_bits(values: NDArray[Any], where: str) -> ByteArray:
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if values.dtype == np.uint16:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if values.dtype.kind == "f":
        if not (values.min() >= 0 and values.max() <= 1):  # also False for NaN
            raise DataError(
                f"{where} contains {values.dtype} numbers outside 0 to 1. Floating-point pixels "
                "must be between 0 and 1."
            )
        return np.rint(values * 255).astype(np.uint8)
    raise DataError(
        f"{where} contains {values.dtype} numbers. Pixels must be uint8, uint16, bool, or "
        "floating-point between 0 and 1."
    )
