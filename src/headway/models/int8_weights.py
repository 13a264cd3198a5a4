"""Weights in 8 bits for storing and shipping: a quarter of the size. Loaded, they are fp32 again.

Each row of a matrix is rounded to 255 levels between minus and plus its largest magnitude, as in
`nn/int8.py`, which computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headway.nn.int8 import Rounded

SCALE = ".row_scale"
"""Follows the name of the matrix whose rows it belongs to."""


def to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as whole numbers with a scale a row; everything else as it is."""
    small: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.ndim != 2 or not tensor.is_floating_point():
            small[name] = tensor
            continue
        small[name], small[name + SCALE] = Rounded.of(tensor)
    return small


def from_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The matrices that `to_int8` rounded, in fp32; what has no scale comes back as it is."""
    return {
        name: Rounded(tensor, weights[name + SCALE]).wide() if name + SCALE in weights else tensor
        for name, tensor in weights.items()
        if not name.endswith(SCALE)
    }
