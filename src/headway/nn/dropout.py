"""Dropout that is faster on a CPU, because four elements share one random number.

On other devices, and in compiled code, PyTorch's dropout is used. `python -m benchmarks.shortcuts`:
a training step of `transformer-base` with 600 tokens is 1.1 times as fast on one core.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16
"""Resolution of the dropout rate: each element uses 16 bits of a 64-bit random number."""


class Dropout(nn.Module):
    """Dropout: sets a random fraction `p` of the elements to zero in training, and scales up the
    others."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p:g}"


def dropout(x: Tensor, p: float) -> Tensor:
    if p == 0.0:
        return x
    return F.dropout(x, p) if _is_torchs(x) else x * keep_mask(x, p)


def add_dropped(x: Tensor, y: Tensor, p: float) -> Tensor:
    """Return x + dropout(y)."""
    if p == 0.0:
        return x + y
    if _is_torchs(y):
        return x + F.dropout(y, p)
    return torch.addcmul(x, y, keep_mask(y, p))


def keep_mask(x: Tensor, p: float) -> Tensor:
    """Return the factors for `x`: zero with probability `p`, else 1 / (1 − p), which preserves the
    mean."""
    dropped = round(p * LEVELS)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    scale = LEVELS / (LEVELS - dropped)
    return torch.where(bits >= dropped - LEVELS // 2, x.new_tensor(scale), x.new_zeros(()))


def _is_torchs(x: Tensor) -> bool:
    return x.device.type != "cpu" or torch.compiler.is_compiling()
