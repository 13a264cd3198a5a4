"""RandAugment (Cubuk et al. 2019) on tensors: a few random operations per image.

Each image draws its own operation. All operations are computed for all images, and each image uses
the result of its own. Geometric operations are combined in one warp with a matrix per image.
Brightness, contrast, colour and sharpness are combined in one blend with a base per image.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from headway.nn.augment import colour as colours
from headway.nn.augment.geometry import to_move, to_shear, to_turn, warp

MOVES = ("shear-x", "shear-y", "move-x", "move-y", "turn")
BLENDS = ("brightness", "contrast", "colour", "sharpness")
OPERATIONS = ("same", *MOVES, *BLENDS, "posterize", "solarize", "stretch", "equalize")

FULL = 10.0
"""Maximum magnitude of RandAugment. The strengths below are those at this magnitude."""

SHEAR = 0.3  # slope; shear, turn and blend as in AutoAugment (Cubuk et al. 2019)
MOVE = 0.6  # of half an image
TURN = pi / 6
BLEND = 0.9  # deviation of the factor from 1
BITS = 4  # removed out of 8


def draw_operation(x_BTCYX: Tensor, magnitude: float) -> Tensor:
    """Apply one random operation to each image; values are between 0 and 1."""
    n_images, device = len(x_BTCYX), x_BTCYX.device
    chosen_B = torch.randint(len(OPERATIONS), (n_images,), device=device)
    sign_B = torch.randint(2, (n_images,), device=device).float() * 2 - 1
    return apply_operations(x_BTCYX, chosen_B, sign_B * (magnitude / FULL))


def apply_operations(x_BTCYX: Tensor, chosen_B: Tensor, strength_B: Tensor) -> Tensor:
    """Apply to each image the operation with index `chosen_B`.

    `strength_B`: strength from −1 to 1. The sign is the direction, and 0 leaves the image
    unchanged.
    """
    x_BTCYX = _moved(x_BTCYX, chosen_B, strength_B)
    x_BTCYX = _blended(x_BTCYX, chosen_B, strength_B)
    amount_B = strength_B.abs()
    share = amount_B[:, None, None, None, None]
    single = {
        "posterize": colours.posterize(x_BTCYX, 8 - BITS * amount_B),
        "solarize": colours.solarize(x_BTCYX, 1 - amount_B),
        "stretch": torch.lerp(x_BTCYX, colours.autocontrast(x_BTCYX), share),
        "equalize": torch.lerp(x_BTCYX, colours.equalize(x_BTCYX), share),
    }
    for name, changed in single.items():
        x_BTCYX = torch.where(_is(chosen_B, name), changed, x_BTCYX)
    return x_BTCYX


def _moved(x_BTCYX: Tensor, chosen_B: Tensor, strength_B: Tensor) -> Tensor:
    zero_B = torch.zeros_like(strength_B)
    height, width = x_BTCYX.shape[-2:]
    matrices = {
        "shear-x": to_shear(SHEAR * strength_B, zero_B),
        "shear-y": to_shear(zero_B, SHEAR * strength_B),
        "move-x": to_move(MOVE * strength_B, zero_B),
        "move-y": to_move(zero_B, MOVE * strength_B),
        "turn": to_turn(TURN * strength_B, height, width),
    }
    matrix_B23 = to_move(zero_B, zero_B)
    for name, matrix in matrices.items():
        matrix_B23 = torch.where(_is(chosen_B, name)[:, :, 0, 0], matrix, matrix_B23)
    # Images without a geometric operation stay bit-identical, because they are not interpolated.
    still_B = (chosen_B < 1) | (chosen_B > len(MOVES)) | (strength_B == 0)
    still = still_B[:, None, None, None, None]
    return torch.where(still, x_BTCYX, warp(x_BTCYX, matrix_B23))


def _blended(x_BTCYX: Tensor, chosen_B: Tensor, strength_B: Tensor) -> Tensor:
    grey = colours.grey(x_BTCYX)
    bases = {
        "brightness": torch.zeros_like(x_BTCYX),
        "contrast": colours.mean_grey(grey),
        "colour": grey,
        "sharpness": colours.smooth(x_BTCYX),
    }
    base = x_BTCYX
    for name, found in bases.items():
        base = torch.where(_is(chosen_B, name), found, base)
    changed = colours.blend(x_BTCYX, base, 1 + BLEND * strength_B)
    first = OPERATIONS.index(BLENDS[0])
    same_B = (chosen_B < first) | (chosen_B >= first + len(BLENDS)) | (strength_B == 0)
    return torch.where(same_B[:, None, None, None, None], x_BTCYX, changed)


def _is(chosen_B: Tensor, name: str) -> Tensor:
    return (chosen_B == OPERATIONS.index(name))[:, None, None, None, None]
