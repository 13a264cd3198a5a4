"""Kernel for the cross-entropy of each row of logits, in two passes over the row. The gradient
overwrites the logits.

`python -m benchmarks.shortcuts`: with it, a training step of `transformer-base` in a CUDA graph is
1.4 times as fast on an H200.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192
"""Number of logits that a program holds at a time. Rows of a larger vocabulary are processed in
several blocks."""


@triton.jit
def _row(
    scores_ptr, targets_ptr, weights_ptr, loss_ptr, nll_ptr, stride, right, wrong,
    WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    target, weight = tl.load(targets_ptr + n), tl.load(weights_ptr + n)
    scores = scores_ptr + n * stride
    at_target = tl.load(scores + target).to(tl.float32)
    top, total, sum_of_scores = -1e30, 0.0, 0.0
    for first in range(0, WORDS, BLOCK):
        word = first + tl.arange(0, BLOCK)
        block = tl.load(scores + word, word < WORDS, float("-inf")).to(tl.float32)
        new_top = tl.maximum(top, tl.max(block, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(block - new_top), 0)
        top = new_top
        sum_of_scores += tl.sum(tl.where(word < WORDS, block, 0.0), 0)
    log_total = top + tl.log(total)
    nll = log_total - at_target
    loss = (right - wrong) * nll + wrong * (WORDS * log_total - sum_of_scores)
    tl.store(loss_ptr + n, loss * weight)
    tl.store(nll_ptr + n, nll * weight)
    for first in range(0, WORDS, BLOCK):
        word = first + tl.arange(0, BLOCK)
        block = tl.load(scores + word, word < WORDS, 0.0).to(tl.float32)
        wanted = tl.where(word == target, right, wrong)
        gradient = (tl.exp(block - log_total) - wanted) * weight
        tl.store(scores + word, gradient.to(scores_ptr.dtype.element_ty), word < WORDS)


def fused_loss_and_gradient_(
    scores_NV: Tensor, targets_N: Tensor, weights_N: Tensor, right: float, wrong: float
) -> tuple[Tensor, Tensor]:
    n_rows, n_words = scores_NV.shape
    loss_N = torch.empty(n_rows, device=scores_NV.device)
    nll_N = torch.empty_like(loss_N)
    assert scores_NV.stride(1) == 1
    _row[(n_rows,)](
        scores_NV,
        targets_N.contiguous(),
        weights_N.contiguous(),
        loss_N,
        nll_N,
        scores_NV.stride(0),
        right,
        wrong,
        WORDS=n_words,
        BLOCK=min(BLOCK, triton.next_power_of_2(n_words)),
        num_warps=16,
    )
    return loss_N, nll_N
