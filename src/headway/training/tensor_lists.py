"""In-place operations on lists of tensors, in a few kernels instead of one per tensor.

They use PyTorch operators that are not a public API; without these operators, tensors are changed
one after another. `python -m benchmarks.shortcuts`: gradients of `transformer-base` are summed,
scaled and cleared 7 times as fast on an H200, and twice as fast inside a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

AT_ONCE = all(hasattr(torch, f"_foreach_{name}") for name in ("add_", "mul_", "sub", "zero_"))


def add_(tensors: list[Tensor], others: list[Tensor]) -> None:
    if AT_ONCE:
        torch._foreach_add_(tensors, others)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other)


def scale_(tensors: list[Tensor], factor: Tensor) -> None:
    if AT_ONCE:
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def zero_(tensors: list[Tensor]) -> None:
    if AT_ONCE:
        torch._foreach_zero_(tensors)
        return
    for tensor in tensors:
        tensor.zero_()


def differences(tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    if AT_ONCE:
        return list(torch._foreach_sub(tensors, others))
    return [tensor - other for tensor, other in zip(tensors, others, strict=True)]
