"""Colour operations on images (B T C Y X) between 0 and 1. All frames of a video change in the
same way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 256
"""Number of levels of an 8-bit colour channel. RandAugment defines its operations on these."""

LUMA = (0.299, 0.587, 0.114)
"""Luma weights of red, green and blue (ITU-R BT.601)."""


def blend(x_BTCYX: Tensor, base_BTCYX: Tensor, factor_B: Tensor) -> Tensor:
    """Interpolate between a base (factor 0) and the image (factor 1). Factors above 1
    extrapolate."""
    factor = factor_B[:, None, None, None, None]
    return torch.lerp(base_BTCYX, x_BTCYX, factor).clamp(0.0, 1.0)


def grey(x_BTCYX: Tensor) -> Tensor:
    """Return the greyscale image, with unchanged number of channels."""
    if x_BTCYX.shape[2] != len(LUMA):
        return x_BTCYX
    # The weights are not a tensor, because a CUDA graph cannot capture its copy to the device.
    parts = zip(LUMA, x_BTCYX.unbind(2), strict=True)
    bright_BTYX = torch.stack([weight * part for weight, part in parts]).sum(0)
    return bright_BTYX[:, :, None].expand_as(x_BTCYX)


def mean_grey(grey_BTCYX: Tensor) -> Tensor:
    """Return uniform grey images with the mean brightness of each image."""
    return grey_BTCYX.mean((1, 2, 3, 4), keepdim=True).expand_as(grey_BTCYX)


def smooth(x_BTCYX: Tensor) -> Tensor:
    """Blur with a 3 × 3 kernel whose centre has weight 5 and all others 1. Pixels at the border do
    not change."""
    height, width = x_BTCYX.shape[-2:]
    if min(height, width) < 3:
        return x_BTCYX
    flat = x_BTCYX.flatten(0, 1)
    around = 9 * F.avg_pool2d(flat, 3, stride=1)
    soft = F.pad((around + 4 * flat[..., 1:-1, 1:-1]) / 13, (1, 1, 1, 1)).view_as(x_BTCYX)
    inner = torch.ones(height - 2, width - 2, dtype=torch.bool, device=x_BTCYX.device)
    return torch.where(F.pad(inner, (1, 1, 1, 1)), soft, x_BTCYX)


def posterize(x_BTCYX: Tensor, bits_B: Tensor) -> Tensor:
    """Reduce each channel to `bits_B` bits per pixel."""
    step = (2.0 ** (8 - bits_B.round()))[:, None, None, None, None]
    coarse = ((x_BTCYX * (LEVELS - 1) / step).floor() * step / (LEVELS - 1)).clamp(0.0, 1.0)
    return torch.where(step > 1.0, coarse, x_BTCYX)


def solarize(x_BTCYX: Tensor, threshold_B: Tensor) -> Tensor:
    """Invert all values above the threshold."""
    return torch.where(x_BTCYX > threshold_B[:, None, None, None, None], 1.0 - x_BTCYX, x_BTCYX)


def autocontrast(x_BTCYX: Tensor) -> Tensor:
    """Stretch each channel to the range from 0 to 1."""
    low, high = x_BTCYX.amin((1, 3, 4), keepdim=True), x_BTCYX.amax((1, 3, 4), keepdim=True)
    flat = high - low < 1 / LEVELS
    return torch.where(flat, x_BTCYX, (x_BTCYX - low) / (high - low).clamp(min=1 / LEVELS))


def equalize(x_BTCYX: Tensor) -> Tensor:
    """Equalize the histogram of each channel. A pixel becomes its cumulative frequency, in which
    the darkest level present is not counted."""
    n_images, n_frames, n_channels, height, width = x_BTCYX.shape
    level = (x_BTCYX * (LEVELS - 1)).round().long()
    level_BCP = level.transpose(1, 2).flatten(2)
    count_BCL = x_BTCYX.new_zeros(n_images, n_channels, LEVELS)
    count_BCL = count_BCL.scatter_add(
        2, level_BCP, torch.ones_like(level_BCP, dtype=count_BCL.dtype)
    )
    below_BCL = count_BCL.cumsum(-1) - count_BCL
    darkest_BC1 = count_BCL.gather(2, level_BCP.amin(-1, keepdim=True))
    rest_BC1 = level_BCP.shape[-1] - darkest_BC1
    share_BCL = (below_BCL + count_BCL - darkest_BC1).clamp(min=0) / rest_BC1.clamp(min=1)
    found_BCP = share_BCL.gather(2, level_BCP)
    found = found_BCP.view(n_images, n_channels, n_frames, height, width).transpose(1, 2)
    return torch.where(rest_BC1[:, None, :, :, None] > 0, found, x_BTCYX)
