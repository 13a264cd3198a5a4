"""Geometric operations on images: flip, shift, rotation, shear."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shift(x_BTCYX: Tensor, down_B: Tensor, right_B: Tensor, mirrored_B: Tensor) -> Tensor:
    """Shift images by whole pixels, fill with black, then flip the selected ones. No interpolation,
    so values of any data type stay exact."""
    *_, height, width = x_BTCYX.shape
    from_BY = torch.arange(height, device=x_BTCYX.device) - down_B[:, None]
    across_X = torch.arange(width, device=x_BTCYX.device)
    mirrored_BX = torch.where(mirrored_B[:, None], width - 1 - across_X, across_X)
    from_BX = mirrored_BX - right_B[:, None]
    inside_BY = (from_BY >= 0) & (from_BY < height)
    inside_BX = (from_BX >= 0) & (from_BX < width)
    lines = from_BY.clamp(0, height - 1)[:, None, None, :, None].expand_as(x_BTCYX)
    columns = from_BX.clamp(0, width - 1)[:, None, None, None, :].expand_as(x_BTCYX)
    found_BTCYX = x_BTCYX.gather(-2, lines).gather(-1, columns)
    inside_BYX = inside_BY[:, :, None] & inside_BX[:, None, :]
    return found_BTCYX * inside_BYX[:, None, None].to(x_BTCYX.dtype)


def warp(x_BTCYX: Tensor, matrix_B23: Tensor) -> Tensor:
    """Resample images under an affine transformation. The matrix maps output coordinates to input
    coordinates, in units of half an image from the centre. Pixels outside the image are black."""
    n_images, n_frames, _, height, width = x_BTCYX.shape
    size = [n_images, 1, height, width]
    grid_BYX2 = F.affine_grid(matrix_B23, size, align_corners=False)
    flat = x_BTCYX.flatten(1, 2)  # frames are treated as channels, so that all move alike
    return F.grid_sample(flat, grid_BYX2, align_corners=False).unflatten(1, (n_frames, -1))


def to_shear(across_B: Tensor, down_B: Tensor) -> Tensor:
    one, zero = torch.ones_like(across_B), torch.zeros_like(across_B)
    return _matrix(one, across_B, zero, down_B, one, zero)


def to_move(across_B: Tensor, down_B: Tensor) -> Tensor:
    """Return the affine matrix of a translation, in units of half an image."""
    one, zero = torch.ones_like(across_B), torch.zeros_like(across_B)
    return _matrix(one, zero, across_B, zero, one, down_B)


def to_turn(angle_B: Tensor, height: int, width: int) -> Tensor:
    """Return the affine matrix of a rotation by an angle in radians. It accounts for images that
    are not square, whose axes have different units."""
    cos_B, sin_B, zero = angle_B.cos(), angle_B.sin(), torch.zeros_like(angle_B)
    return _matrix(cos_B, -sin_B * (height / width), zero, sin_B * (width / height), cos_B, zero)


def _matrix(*entries: Tensor) -> Tensor:
    return torch.stack(entries, -1).unflatten(-1, (2, 3))
