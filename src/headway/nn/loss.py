"""Memory-efficient cross-entropy for large vocabularies: the logits of all tokens are never in
memory at once.

Logits are computed for one chunk of tokens at a time. The gradient of a chunk overwrites its logits
and is used immediately. Nothing of size N × V is stored, and nothing is recomputed. The cost is
three matrix products: the logits, the gradient of the inputs, and the gradient of the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.embedding import deferred_gradients
from headway.nn.kernels import HAS_TRITON
from headway.nn.linear import linear

CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Maximum size in bytes of the logits in memory, by device."""

ALIGNED = {"cuda": 64, "cpu": 1}
"""The vocabulary is padded to a multiple of this number, by device. Tensor cores need rows that
begin at multiples of 16 bytes. Otherwise the three largest products of a step cannot use them:
without padding, transformer-base with 31,903 tokens trained at two thirds of its speed."""

BLOCK_BYTES = 1 << 22
"""Size in bytes of the block of logits that a CPU turns into its gradient at a time. It fits into
the caches."""


class LabelSmoothing(NamedTuple):
    """Smoothed target distribution, with probability `right` for the target token and `wrong` for
    every other token."""

    right: float
    wrong: float

    @classmethod
    def of(cls, amount: float, vocab_size: int, kind: str = "paper") -> LabelSmoothing:
        """Build the target distribution for a smoothing `amount`. `kind`: spread the amount over
        the other tokens (`paper`), or over all tokens (`torch`)."""
        if kind == "paper":
            return cls(1.0 - amount, amount / max(vocab_size - 1, 1))
        if kind == "torch":
            return cls(1.0 - amount + amount / vocab_size, amount / vocab_size)
        raise ValueError(f"unknown label smoothing {kind!r}. Known kinds: 'paper', 'torch'.")


class Loss(NamedTuple):
    sum: Tensor
    """Cross-entropy with smoothed targets, summed over the tokens. It has a gradient."""

    nll: Tensor
    """Negative log-likelihood without smoothing, summed over the tokens. It is only for
    reporting."""


def vocabulary_loss(
    x_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    smoothing: LabelSmoothing,
    weights_N: Tensor | None = None,
) -> Loss:
    """Return the cross-entropy over the vocabulary, summed over the tokens. The training loop
    divides it by the number of targets of the step."""
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
        smoothing: LabelSmoothing,
        weights_N: Tensor,
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        n_words = len(weight_VD)
        more = -n_words % ALIGNED.get(x_ND.device.type, 1)  # padding, not part of the loss
        cast_VD, padded_V = weight_VD.to(x_ND.dtype), bias_V
        if more:
            cast_VD = F.pad(cast_VD, (0, 0, 0, more))
            padded_V = None if bias_V is None else F.pad(bias_V, (0, more))
        needs_x, needs_weight, needs_bias = (learns and need for need in ctx.needs_input_grad[:3])
        dx_ND = torch.empty_like(x_ND) if needs_x else None
        dweight_VD = dbias_V = None
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        loss, nll = torch.zeros((2,), device=x_ND.device, dtype=wide)
        for rows in _chunks(x_ND, len(cast_VD)):
            scores_NV = linear(x_ND[rows], cast_VD, padded_V)
            loss_N, nll_N = loss_and_gradient_(
                scores_NV[:, :n_words], targets_N[rows], weights_N[rows], smoothing
            )
            if more:
                scores_NV[:, n_words:] = 0.0
            loss, nll = loss + loss_N.sum(), nll + nll_N.sum()
            if dx_ND is not None:
                torch.mm(scores_NV, cast_VD, out=dx_ND[rows])
            if needs_weight:
                dweight_VD = _plus_product(dweight_VD, scores_NV.T, x_ND[rows], wide)
            if needs_bias:
                dbias_V = _plus(dbias_V, scores_NV.sum(0, dtype=wide))
        if dweight_VD is not None:
            dweight_VD = dweight_VD[:n_words]
        if dbias_V is not None:
            dbias_V = dbias_V[:n_words]
        ctx.save_for_backward(dx_ND, dweight_VD, dbias_V)
        ctx.waiting = deferred_gradients(weight_VD)
        ctx.dtypes = weight_VD.dtype, None if bias_V is None else bias_V.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dx_ND, dweight_VD, dbias_V = ctx.saved_tensors
        weight_type, bias_type = ctx.dtypes
        if dweight_VD is not None and ctx.waiting is not None:
            ctx.waiting.expect()
        return (
            None if dx_ND is None else dx_ND * grad.to(dx_ND.dtype),
            None if dweight_VD is None else (dweight_VD * grad).to(weight_type),
            None if dbias_V is None else (dbias_V * grad).to(bias_type),
            *[None] * 4,
        )


def _chunks(x_ND: Tensor, n_words: int) -> list[slice]:
    """Return slices with about equal numbers of rows, as few as `CHUNK_BYTES` allows."""
    limit = max(1, CHUNK_BYTES.get(x_ND.device.type, 1 << 26) // (x_ND.itemsize * n_words))
    n_chunks = -(-len(x_ND) // limit)
    size = max(1, -(-len(x_ND) // max(1, n_chunks)))
    return [slice(first, first + size) for first in range(0, n_chunks * size, size)]


def loss_and_gradient_(
    scores_NV: Tensor, targets_N: Tensor, weights_N: Tensor, smoothing: LabelSmoothing
) -> tuple[Tensor, Tensor]:
    """Return the weighted loss and NLL of each row. The logits are overwritten with their
    gradient."""
    if HAS_TRITON and scores_NV.is_cuda and scores_NV.dtype != torch.float64:
        from headway.nn.kernels.loss import fused_loss_and_gradient_

        return fused_loss_and_gradient_(scores_NV, targets_N, weights_N, *smoothing)
    size = len(scores_NV)
    if scores_NV.device.type == "cpu":
        size = BLOCK_BYTES // (scores_NV.itemsize * scores_NV.shape[1])
    parts = [x.split(max(1, size)) for x in (scores_NV, targets_N, weights_N)]
    done = [_block_(x, y, w, smoothing) for x, y, w in zip(*parts, strict=True)]
    losses, nlls = zip(*done, strict=True)
    return torch.cat(losses), torch.cat(nlls)


def _block_(
    scores_NV: Tensor, targets_N: Tensor, weights_N: Tensor, smoothing: LabelSmoothing
) -> tuple[Tensor, Tensor]:
    """Compute the loss of a block in plain PyTorch and overwrite its logits with their gradient.
    Logits narrower than fp32 are first copied to fp32."""
    x_NV = scores_NV.to(torch.promote_types(scores_NV.dtype, torch.float32))
    weights_N = weights_N.to(x_NV.dtype)
    right, wrong = smoothing
    top_N = x_NV.amax(-1)
    at_target_N = x_NV.gather(1, targets_N[:, None])[:, 0]
    sum_N = x_NV.sum(-1) if wrong else 0.0
    torch.softmax(x_NV, -1, out=x_NV)
    # Derive the normalizer from the largest probability, which saves another exponential.
    log_total_N = top_N - x_NV.amax(-1).log()
    nll_N = log_total_N - at_target_N
    loss_N = (right - wrong) * nll_N
    x_NV *= weights_N[:, None]
    if wrong:
        loss_N = loss_N + wrong * (x_NV.shape[1] * log_total_N - sum_N)
        x_NV -= wrong * weights_N[:, None]
    x_NV.scatter_add_(1, targets_N[:, None], -(right - wrong) * weights_N[:, None])
    if x_NV is not scores_NV:
        scores_NV.copy_(x_NV)
    return loss_N * weights_N, nll_N * weights_N


def _plus_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    if total is not None and total.dtype == a.dtype:
        return total.addmm_(a, b)
    return _plus(total, _product(a, b, dtype))


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a @ b, accumulated and returned in `dtype`."""
    if a.is_cuda and a.dtype != dtype:
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a, b).to(dtype)


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)
