"""8-bit weights for storage, a quarter of the size. They are loaded as fp32.

Each row of a matrix is rounded to 255 levels between minus and plus its largest magnitude, as in
`nn/int8.py`, which computes with them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headway.nn.int8 import QuantizedMatrix

SCALE = ".row_scale"
"""Suffix that names the scales of a matrix: they are stored under its name with this suffix."""


def to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round matrices to 8-bit integers with one scale per row; keep other tensors unchanged."""
    small: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.ndim != 2 or not tensor.is_floating_point():
            small[name] = tensor
            continue
        small[name], small[name + SCALE] = QuantizedMatrix.quantize(tensor)
    return small


def from_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the matrices that `to_int8` rounded back to fp32; keep other tensors unchanged."""
    return {
        name: QuantizedMatrix(tensor, weights[name + SCALE]).dequantize()
        if name + SCALE in weights
        else tensor
        for name, tensor in weights.items()
        if not name.endswith(SCALE)
    }
