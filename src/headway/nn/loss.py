"""Cross-entropy over a large vocabulary, from vectors: scores exist a chunk of rows at a time.

The gradient of a chunk is made where its scores stood and used at once, so nothing of size N × V is
kept, nothing is computed twice, and three matrix products remain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.nn.kernels import HAS_TRITON
from headway.nn.linear import linear

CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 25}
"""Scores held at a time. On a CPU they should stay near the caches."""


class Smoothing(NamedTuple):
    """The target distribution: `right` on the target word and `wrong` on every other."""

    right: float
    wrong: float

    @classmethod
    def of(cls, amount: float, vocab_size: int, kind: str = "paper") -> Smoothing:
        """`paper`: the amount is spread over the wrong words; `torch`: over all words."""
        if kind == "paper":
            return cls(1.0 - amount, amount / max(vocab_size - 1, 1))
        if kind == "torch":
            return cls(1.0 - amount + amount / vocab_size, amount / vocab_size)
        raise ValueError(f"unknown smoothing {kind!r}, known are 'paper' and 'torch'")


class Loss(NamedTuple):
    sum: Tensor
    """Cross-entropy with the smoothed targets, summed over rows; this one has a gradient."""

    nll: Tensor
    """Negative log-likelihood without smoothing, summed over rows, for reporting."""


def vocabulary_loss(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    smoothing: Smoothing,
    weights_N: Tensor | None = None,
) -> Loss:
    """Summed, not averaged: the loop divides by the targets of the whole step."""
    if weights_N is None:
        weights_N = torch.ones(len(targets_N), device=x_ND.device)
    learns = torch.is_grad_enabled()
    loss, nll = _VocabularyLoss.apply(
        x_ND, weight_VD, bias_V, targets_N, smoothing, weights_N, learns
    )
    return Loss(loss, nll)


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        smoothing: Smoothing,
        weights_N: Tensor,
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        cast_VD = weight_VD.to(x_ND.dtype)
        needs_x, needs_weight, needs_bias = (learns and need for need in ctx.needs_input_grad[:3])
        dx_ND = torch.empty_like(x_ND) if needs_x else None
        dweight_VD = dbias_V = None
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        loss, nll = torch.zeros((2,), device=x_ND.device, dtype=wide)
        size = max(1, CHUNK_BYTES.get(x_ND.device.type, 1 << 25) // (x_ND.itemsize * len(cast_VD)))
        for first in range(0, len(x_ND), size):
            rows = slice(first, first + size)
            scores_NV = linear(x_ND[rows], cast_VD, bias_V)
            loss_N, nll_N = loss_and_gradient_(
                scores_NV, targets_N[rows], weights_N[rows], smoothing
            )
            loss, nll = loss + loss_N.sum(), nll + nll_N.sum()
            if dx_ND is not None:
                torch.mm(scores_NV, cast_VD, out=dx_ND[rows])
            if needs_weight:
                dweight_VD = _plus(dweight_VD, _product(scores_NV.T, x_ND[rows], wide))
            if needs_bias:
                dbias_V = _plus(dbias_V, scores_NV.sum(0, dtype=wide))
        ctx.save_for_backward(dx_ND, dweight_VD, dbias_V)
        ctx.dtypes = weight_VD.dtype, None if bias_V is None else bias_V.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dx_ND, dweight_VD, dbias_V = ctx.saved_tensors
        weight_type, bias_type = ctx.dtypes
        return (
            None if dx_ND is None else dx_ND * grad.to(dx_ND.dtype),
            None if dweight_VD is None else (dweight_VD * grad).to(weight_type),
            None if dbias_V is None else (dbias_V * grad).to(bias_type),
            *[None] * 4,
        )


def loss_and_gradient_(
    scores_NV: Tensor, targets_N: Tensor, weights_N: Tensor, smoothing: Smoothing
) -> tuple[Tensor, Tensor]:
    """Weighted loss and likelihood of each row; the scores are overwritten by their gradient."""
    if HAS_TRITON and scores_NV.is_cuda and scores_NV.dtype != torch.float64:
        from headway.nn.kernels.loss import fused_loss_and_gradient_

        return fused_loss_and_gradient_(scores_NV, targets_N, weights_N, *smoothing)
    wide = torch.promote_types(scores_NV.dtype, torch.float32)
    logs_NV = scores_NV.log_softmax(-1, dtype=wide)
    log_target_N = logs_NV.gather(1, targets_N[:, None])[:, 0]
    right, wrong = smoothing
    loss_N = -(right - wrong) * log_target_N
    if wrong:
        loss_N = loss_N - wrong * logs_NV.sum(-1)
    gradient_NV = logs_NV.exp_()
    if wrong:
        gradient_NV -= wrong
    rows_N = torch.arange(len(targets_N), device=targets_N.device)
    gradient_NV[rows_N, targets_N] -= right - wrong
    gradient_NV *= weights_N[:, None]
    scores_NV.copy_(gradient_NV)
    return loss_N * weights_N, -log_target_N * weights_N


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, summed up in `dtype` and left there."""
    if a.is_cuda and a.dtype != dtype:
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a, b).to(dtype)


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)
