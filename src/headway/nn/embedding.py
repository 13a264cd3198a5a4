"""Embedding lookup with a faster gradient for embeddings tied to the output projection.

On a CPU, the gradients of looked-up rows are added to the gradient of the output projection.
PyTorch would first scatter them into a matrix of zeros. This needs the number of the backward pass,
which PyTorch does not promise to provide. Without it, PyTorch's lookup is used. `python -m
benchmarks.shortcuts`: a training step of `transformer-base` with 600 tokens is 1.2 times as fast on
one core.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NONE = -1
"""Placeholder for "no backward pass"; PyTorch numbers them from 0."""

CAN_DEFER = hasattr(torch._C, "_current_graph_task_id")


class Embedding(nn.Embedding):
    """Token embedding, which may be tied to the output projection."""

    def forward(self, tokens_N: Tensor) -> Tensor:
        return look_up(self.weight, tokens_N)


@dataclass
class DeferredGradients:
    """Deferred gradients of single rows of an embedding matrix.

    They are held here during a backward pass, until the gradient of the whole matrix is computed.
    """

    task: int = NONE
    """Number of the backward pass that will compute a gradient of the whole matrix."""

    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Token indices and the gradients of their embeddings."""

    def expect(self) -> None:
        """Announce that this backward pass will compute a gradient of the whole matrix. Call it in
        the backward pass."""
        task = NONE if torch.is_grad_enabled() else torch._C._current_graph_task_id()
        if self.task != task:  # otherwise another loss has announced one
            self.task, self.rows = task, []

    def accepts(self, tokens_N: Tensor, grad_ND: Tensor) -> bool:
        if self.task == NONE or self.task != torch._C._current_graph_task_id():
            return False
        self.rows.append((tokens_N, grad_ND))
        return True

    def join(self, grad_VD: Tensor) -> Tensor:
        """Add the deferred gradients to `grad_VD`, the sum of all other gradients, before autograd
        uses it."""
        if self.task == torch._C._current_graph_task_id():
            for tokens_N, rows_ND in self.rows:
                grad_VD.index_add_(0, tokens_N, rows_ND.to(grad_VD.dtype))
            self.task, self.rows = NONE, []
        return grad_VD


_deferred: dict[int, DeferredGradients] = {}
"""Deferred gradients, keyed by the `id` of their embedding matrix. An entry is removed when its
matrix is freed."""


def deferred_gradients(weight_VD: Tensor) -> DeferredGradients | None:
    """Return the deferred gradients of this matrix, or None if it was never passed to `look_up`."""
    return _deferred.get(id(weight_VD))


def look_up(weight_VD: Tensor, tokens_N: Tensor) -> Tensor:
    """Look up rows of an embedding matrix. Result and gradient equal those of `F.embedding`."""
    learns = weight_VD.requires_grad and weight_VD.is_leaf and torch.is_grad_enabled()
    waits = CAN_DEFER and weight_VD.device.type == "cpu" and learns
    if not waits or torch.compiler.is_compiling():
        return F.embedding(tokens_N, weight_VD)
    if id(weight_VD) not in _deferred:
        waiting = _deferred[id(weight_VD)] = DeferredGradients()
        weight_VD.register_hook(waiting.join)
        weakref.finalize(weight_VD, _deferred.pop, id(weight_VD), None)
    rows_ND: Tensor = _Rows.apply(weight_VD, tokens_N, _deferred[id(weight_VD)])
    return rows_ND


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight_VD: Tensor, tokens_N: Tensor, waiting: DeferredGradients
    ) -> Tensor:
        ctx.save_for_backward(tokens_N)
        ctx.n_words, ctx.waiting = len(weight_VD), waiting
        return F.embedding(tokens_N, weight_VD)

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, None, None]:
        (tokens_N,) = ctx.saved_tensors
        if ctx.waiting.accepts(tokens_N, grad_ND):
            return None, None, None
        dense_VD = torch.ops.aten.embedding_dense_backward(
            grad_ND, tokens_N, ctx.n_words, -1, False
        )
        return dense_VD, None, None
