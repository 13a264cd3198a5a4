"""Rectangular masks, for random erasing and CutMix."""

from __future__ import annotations

import torch
from torch import Tensor


def box_masks(
    middle_y_B: Tensor, middle_x_B: Tensor, height_B: Tensor, width_B: Tensor, size: tuple[int, int]
) -> Tensor:
    """Return masks (B Y X) that are true inside rectangles, given their centres and sizes in
    pixels. Rectangles may extend beyond the image."""
    y_Y, x_X = (torch.arange(n, device=height_B.device) + 0.5 for n in size)
    inside_BY = (y_Y - middle_y_B[:, None]).abs() <= height_B[:, None] / 2
    inside_BX = (x_X - middle_x_B[:, None]).abs() <= width_B[:, None] / 2
    return inside_BY[:, :, None] & inside_BX[:, None, :]


def whole_boxes(area_B: Tensor, aspect_B: Tensor, size: tuple[int, int]) -> Tensor:
    """Return masks of random rectangles that are completely inside the image.

    `area_B`: area as a fraction of the image. `aspect_B`: ratio of height to width.
    """
    height, width = size
    pixels_B = area_B * height * width
    height_B = (pixels_B * aspect_B).sqrt().clamp(max=height)
    width_B = (pixels_B / aspect_B).sqrt().clamp(max=width)
    at_2B = torch.rand(2, len(area_B), device=area_B.device)
    middle_y_B = height_B / 2 + at_2B[0] * (height - height_B)
    middle_x_B = width_B / 2 + at_2B[1] * (width - width_B)
    return box_masks(middle_y_B, middle_x_B, height_B, width_B, size)
