"""The `varlen` back end: PyTorch's flash attention on flat batches, on CUDA with 16-bit types.

`torch.nn.attention.varlen` has no dropout, but its underlying operators do. They draw the mask from
PyTorch's generator on the device, also inside a CUDA graph. The forward pass returns the state of
the generator. The backward pass draws the same mask from that state, so no mask is stored. The
kernel compares 8 random bits per weight with the probability, which is therefore rounded to a
multiple of 1/256. For example, 0.1 becomes 0.102.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout

FORWARD: Any = torch.ops.aten._flash_attention_forward
BACKWARD: Any = torch.ops.aten._flash_attention_backward


def attend_varlen(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    assert queries.bounds is not None
    assert keys.bounds is not None
    repeats = q_NHK.shape[1] // k_MGK.shape[1]
    if repeats > 1:  # torch 2.11 has no grouped heads here
        k_MGK, v_MGK = k_MGK.repeat_interleave(repeats, 1), v_MGK.repeat_interleave(repeats, 1)
    reach = -1 if scope.window is None else scope.window - 1
    out_NHK: Tensor = varlen_forward(
        q_NHK,
        k_MGK,
        v_MGK,
        queries.bounds,
        keys.bounds,
        queries.longest,
        keys.longest,
        scope.dropout,
        scope.scale_for(q_NHK.shape[-1]),
        reach,
        0 if scope.causal else reach,
    )[0]
    return out_NHK


@torch.library.custom_op("headway::varlen_forward", mutates_args=())
def varlen_forward(
    q_NHK: Tensor,
    k_MHK: Tensor,
    v_MHK: Tensor,
    q_bounds: Tensor,
    k_bounds: Tensor,
    q_longest: int,
    k_longest: int,
    dropout: float,
    scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the log-sum-exp of each query, and the state of the random generator, from
    which `varlen_backward` draws the same dropout mask.

    `left`, `right`: maximum number of keys that a query sees before and after its own position; −1
    means no limit.
    """
    out_NHK, sums_HN, state, _, _ = FORWARD(
        q_NHK, k_MHK, v_MHK, q_bounds, k_bounds, q_longest, k_longest,
        dropout, (left, right) == (-1, 0), False,
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    # Without dropout there is no state, and the placeholder that is returned differs between
    # versions.
    return out_NHK, sums_HN, state if dropout else _empty_state(q_NHK)


@torch.library.custom_op("headway::varlen_backward", mutates_args=())
def varlen_backward(
    dout_NHK: Tensor,
    q_NHK: Tensor,
    k_MHK: Tensor,
    v_MHK: Tensor,
    out_NHK: Tensor,
    sums_HN: Tensor,
    q_bounds: Tensor,
    k_bounds: Tensor,
    state: Tensor,
    q_longest: int,
    k_longest: int,
    dropout: float,
    scale: float,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v."""
    dq_NHK, dk_MHK, dv_MHK = BACKWARD(
        dout_NHK, q_NHK, k_MHK, v_MHK, out_NHK, sums_HN, q_bounds, k_bounds, q_longest, k_longest,
        dropout, (left, right) == (-1, 0), state, q_NHK.new_empty(0),
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return dq_NHK, dk_MHK, dv_MHK


def _empty_state(q_NHK: Tensor) -> Tensor:
    return q_NHK.new_empty(2, dtype=torch.uint64)


@varlen_forward.register_fake
def _(q_NHK: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums_HN = q_NHK.new_empty(q_NHK.shape[1], q_NHK.shape[0], dtype=torch.float32)
    return torch.empty_like(q_NHK), sums_HN, _empty_state(q_NHK)


@varlen_backward.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q_NHK, k_MHK, v_MHK, q_bounds, k_bounds, *ctx.options = inputs
    out_NHK, sums_HN, state = output
    ctx.save_for_backward(q_NHK, k_MHK, v_MHK, out_NHK, sums_HN, q_bounds, k_bounds, state)


def _backward_of_forward(ctx: Any, dout_NHK: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
    dq, dk, dv = varlen_backward(dout_NHK, *ctx.saved_tensors, *ctx.options)
    return dq, dk, dv, *([None] * 8)


varlen_forward.register_autograd(_backward_of_forward, setup_context=_keep)
