"""LayerNorm and RMSNorm. They compute in fp32 or wider, and return the dtype of their input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.dropout import add_dropped
from headway.nn.kernels import HAS_TRITON

SIXTEEN_BIT = (torch.bfloat16, torch.float16)


class LayerNorm(nn.Module):
    """Layer norm: mean 0, variance 1 over the last axis, then a learned scale and shift."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x_ND: Tensor) -> Tensor:
        if self.weight.dtype == x_ND.dtype:  # torch's kernels compute in fp32 by themselves
            return F.layer_norm(x_ND, self.weight.shape, self.weight, self.bias, self.eps)
        wide = _at_least_fp32(x_ND)
        weight, bias = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        return F.layer_norm(wide, weight.shape, weight, bias, self.eps).to(x_ND.dtype)


class RMSNorm(nn.Module):
    """RMS norm: mean square 1 over the last axis, then a learned scale."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_ND: Tensor) -> Tensor:
        if self.weight.dtype == x_ND.dtype:
            return F.rms_norm(x_ND, self.weight.shape, self.weight, self.eps)
        wide = _at_least_fp32(x_ND)
        return F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps).to(
            x_ND.dtype
        )


NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}


def add_norm(norm: nn.Module, x_ND: Tensor, y_ND: Tensor, dropout: float) -> Tensor:
    """Return norm(x + dropout(y)). On CUDA with 16-bit types this is one fused kernel, otherwise
    plain PyTorch."""
    fits = HAS_TRITON and x_ND.is_cuda and x_ND.dtype in SIXTEEN_BIT
    if fits and isinstance(norm, LayerNorm):
        from headway.nn.kernels.add_norm import fused_add_norm

        return fused_add_norm(x_ND, y_ND, norm.weight, norm.bias, norm.eps, dropout)
    return norm(add_dropped(x_ND, y_ND, dropout))


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in SIXTEEN_BIT else x
