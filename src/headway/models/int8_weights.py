"""8-bit storage of weights, in a quarter of the size. They are converted to fp32 when they are
loaded.

Each row of a matrix is rounded to 255 levels between minus and plus its largest magnitude, as in
`nn/int8.py`, which computes with 8-bit weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headway.nn.int8 import QuantizedMatrix

SCALE = ".row_scale"
"""Suffix that is appended to the name of a matrix to name the tensor of its scales."""


def to_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round matrices to 8-bit integers with one scale per row. Other tensors are unchanged."""
    small: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.ndim != 2 or not tensor.is_floating_point():
            small[name] = tensor
            continue
        small[name], small[name + SCALE] = QuantizedMatrix.quantize(tensor)
    return small


def from_int8(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert matrices that `to_int8` rounded back to fp32. Other tensors are unchanged."""
    return {
        name: QuantizedMatrix(tensor, weights[name + SCALE]).dequantize()
        if name + SCALE in weights
        else tensor
        for name, tensor in weights.items()
        if not name.endswith(SCALE)
    }
