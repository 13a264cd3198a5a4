"""Weights in 8 bits for storing and shipping: a quarter of the size. Computing stays in fp32.

Each row of a matrix is rounded to 255 levels between minus and plus its largest magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".row_scale"
"""Follows the name of the matrix whose rows it belongs to."""


def to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as whole numbers with a scale a row; everything else as it is."""
    small: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.ndim != 2 or not tensor.is_floating_point():
            small[name] = tensor
            continue
        scale_1 = (tensor.float().abs().amax(1) / 127).clamp(min=1e-12)
        small[name] = (tensor.float() / scale_1[:, None]).round().to(torch.int8)
        small[name + SCALE] = scale_1
    return small


def from_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices that `to_int8` rounded, in fp32; what has no scale comes back as it is."""
    return {
        name: tensor.float() * weights[name + SCALE][:, None] if name + SCALE in weights else tensor
        for name, tensor in weights.items()
        if not name.endswith(SCALE)
    }
