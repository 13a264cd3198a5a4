"""`attend`, the attention function of all model families, and its choice of a back end.

A back end is a function with a check of whether it supports a call. `attend` uses the first that
does. All back ends give the same result. `explicit` defines it, and tests compare the others with
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import UserError, suggest
from headway.nn.attention.dense import attend_dense, tree_distance
from headway.nn.attention.padded import PaddedLayout, attend_padded
from headway.nn.attention.scope import AttentionSpec, allowed_TS
from headway.nn.attention.wide import attend_wide
from headway.nn.kernels import HAS_TRITON
from headway.nn.layout import Layout

SHORT_LIMIT = 128
"""Maximum length, in tokens, of a sequence that the `short` kernel processes in a single tile."""

FEW_LONG = 1024, 64
"""Limits for using the `short` kernel when some sequences exceed `SHORT_LIMIT`: maximum length of a
sequence, and maximum mean length in the batch, in tokens. One program processes a whole long
sequence, which takes as long as dozens of short ones. If most sequences are long, `varlen` is
faster."""

STEP_LIMIT = 16
"""Maximum number of queries per sequence in the `step` kernel. It reads the keys once per query,
which is wasteful for many queries."""

WIDEST_DROPPED = 192
"""Maximum head width that `varlen` supports with dropout. For wider heads, the backward pass of
flash attention supports dropout only on GPUs with a large shared memory."""

KERNEL_TYPES = (torch.bfloat16, torch.float16)

SupportCheck = Callable[[Tensor, Tensor, Layout, Layout, AttentionSpec], str | None]
AttendFunction = Callable[[Tensor, Tensor, Tensor, Layout, Layout, AttentionSpec], Tensor]


@dataclass(frozen=True)
class BackEnd:
    unsupported_reason: SupportCheck
    """Returns the reason why the back end does not support a call, or None if it does."""

    run: AttendFunction


def attend(
    q_NHK: Tensor,
    k_MGK: Tensor,
    v_MGK: Tensor,
    queries: Layout,
    keys: Layout,
    scope: AttentionSpec = AttentionSpec(),
    back_end: str | None = None,
) -> Tensor:
    """Compute attention within each sequence of a flat batch.

    Queries are contiguous. Keys may have gaps between sequences, as in a cache. If a sequence has
    fewer queries than keys, the queries are its last tokens. A query without visible keys gets
    zeros.
    """
    assert queries.bounds is not None, "queries must be contiguous"
    if back_end is not None:
        return _named(back_end, q_NHK, k_MGK, queries, keys, scope).run(
            q_NHK, k_MGK, v_MGK, queries, keys, scope
        )
    for choice in BACK_ENDS.values():
        if choice.unsupported_reason(q_NHK, k_MGK, queries, keys, scope) is None:
            return choice.run(q_NHK, k_MGK, v_MGK, queries, keys, scope)
    raise AssertionError("unreachable: the back end `explicit` supports every call")


def _named(
    name: str, q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> BackEnd:
    if name not in BACK_ENDS:
        raise UserError(f"unknown attention back end {name!r}.{suggest(name, BACK_ENDS)}")
    reason = BACK_ENDS[name].unsupported_reason(q_NHK, k_MGK, queries, keys, scope)
    if reason is not None:
        raise UserError(f"attention back end {name!r} does not support this call: {reason}.")
    return BACK_ENDS[name]


def attend_explicit(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> tuple[Tensor, list[Tensor]]:
    """Compute softmax attention one sequence at a time, as the reference for all back ends. Return
    the output and the attention weights of each sequence (H T S)."""
    n_heads, width = q_NHK.shape[1:]
    repeats = n_heads // k_MGK.shape[1]
    scale = scope.scale_for(width)
    weights: list[Tensor] = []
    outs: list[Tensor] = []
    sequences = zip(queries.split(q_NHK), keys.split(k_MGK), keys.split(v_MGK), strict=True)
    for number, (q_THK, k_SGK, v_SGK) in enumerate(sequences):
        k_SHK, v_SHK = k_SGK.repeat_interleave(repeats, 1), v_SGK.repeat_interleave(repeats, 1)
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_SHK) * scale
        distance_TS = scope.distance_TS(scores_HTS)
        may_TS = allowed_TS(scope, scores_HTS)
        if keys.tree is not None:
            distance_TS = tree_distance(keys.tree, queries)[number, :, : len(k_SGK)]
            may_TS = keys.tree.may_BTS[number, :, : len(k_SGK)]
            if scope.window is not None:
                may_TS = may_TS & (distance_TS.abs() < scope.window)
        if scope.bias is not None:
            scores_HTS = scores_HTS + scope.bias(distance_TS).to(scores_HTS)
        blind_T1 = ~may_TS.any(-1, keepdim=True)  # no visible keys: zeros, not 0/0
        weights_HTS = scores_HTS.masked_fill(~may_TS & ~blind_T1, -math.inf).softmax(-1)
        weights_HTS = weights_HTS.masked_fill(blind_T1, 0.0)
        weights.append(weights_HTS)
        outs.append(torch.einsum("hts,shk->thk", F.dropout(weights_HTS, scope.dropout), v_SHK))
    return torch.cat(outs) if outs else torch.zeros_like(q_NHK), weights


def _run_explicit(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    return attend_explicit(q_NHK, k_MGK, v_MGK, queries, keys, scope)[0]


def _run_padded(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    return attend_padded(q_NHK, k_MGK, v_MGK, queries, keys, scope)[0]


def _run_short(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    from headway.nn.kernels.short_attention import attend_short  # Triton comes only with CUDA

    return attend_short(q_NHK, k_MGK, v_MGK, queries, keys, scope)


def _run_step(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    from headway.nn.kernels.decode_attention import attend_step

    return attend_step(q_NHK, k_MGK, v_MGK, queries, keys, scope)


def _run_varlen(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    from headway.nn.attention.varlen import attend_varlen

    return attend_varlen(q_NHK, k_MGK, v_MGK, queries, keys, scope)


def _padded_unsupported(
    q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> str | None:
    if not isinstance(keys, PaddedLayout):
        return "it is for exported graphs, whose batches have padding"
    return None


def _kernel_unsupported(q_NHK: Tensor) -> str | None:
    if not q_NHK.is_cuda:
        return f"it needs a CUDA device, and the tensors are on {q_NHK.device.type}"
    if q_NHK.dtype not in KERNEL_TYPES:
        return f"it computes in bf16 or fp16, and the tensors are {q_NHK.dtype}"
    return None


def suits_short(longest: int, n_rows: int, n_sequences: int) -> bool:
    """Return whether the `short` kernel is efficient for batches with this maximum and mean
    sequence length."""
    most, mean = FEW_LONG
    return longest <= SHORT_LIMIT or (longest <= most and n_rows <= mean * n_sequences)


def _short_unsupported(
    q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> str | None:
    if not all(
        suits_short(side.longest, side.n_rows, side.n_sequences) for side in (queries, keys)
    ):
        longest = max(queries.longest, keys.longest)
        return f"it is for short sequences, and the longest here may have {longest} tokens"
    if scope.bias is not None:
        return "it does not support a position bias"
    if keys.tree is not None:
        return "it does not support tree attention (hypotheses that share a cache)"
    if keys.bounds is None and k_MGK.requires_grad:
        return "it computes no gradient for keys with gaps between sequences"
    if not HAS_TRITON:
        return "it needs Triton, which is not installed"
    if not 16 <= q_NHK.shape[-1] <= 128:
        return f"the head width is {q_NHK.shape[-1]}, and it supports 16 to 128"
    return _kernel_unsupported(q_NHK)


def _step_unsupported(
    q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> str | None:
    if keys.tree is None:
        return "it is for decoding steps with tree attention, and the keys here have no tree"
    if not queries.is_full_grid or keys.stride is None:
        return "it needs equal numbers of queries and of cache cells for all sequences"
    if scope.window is not None or scope.bias is not None or scope.dropout:
        return "it does not support a window, a position bias or dropout"
    if torch.is_grad_enabled() and (q_NHK.requires_grad or k_MGK.requires_grad):
        return "it computes no gradients"
    if not HAS_TRITON:
        return "it needs Triton, which is not installed"
    if not q_NHK.is_cuda:
        return f"it needs a CUDA device, and the tensors are on {q_NHK.device.type}"
    if q_NHK.dtype not in (*KERNEL_TYPES, torch.float32):
        return f"it computes in fp32, bf16 or fp16, and the tensors are {q_NHK.dtype}"
    if queries.longest > STEP_LIMIT or q_NHK.shape[-1] > 256:
        return f"it supports at most {STEP_LIMIT} queries per sequence and a head width of 256"
    return None


def _grid_unsupported(
    q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> str | None:
    if not (queries.is_full_grid and keys.is_full_grid) or keys.tree is not None:
        return "it needs contiguous sequences of equal length"
    if scope.bias is not None or scope.window is not None or scope.dropout:
        return "it is used only without bias, window and dropout, where it is the fastest"
    if q_NHK.shape[-1] % 8 or q_NHK.shape[-1] > 128:
        return f"the head width is {q_NHK.shape[-1]}, and it supports multiples of 8 up to 128"
    return _kernel_unsupported(q_NHK)


def _varlen_unsupported(
    q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> str | None:
    if queries.bounds is None or keys.bounds is None:
        return "it needs contiguous sequences, without gaps"
    if scope.bias is not None:
        return "it does not support a position bias"
    widest = WIDEST_DROPPED if scope.dropout else 256
    if q_NHK.shape[-1] % 8 or q_NHK.shape[-1] > widest:
        given = " with dropout" if scope.dropout else ""
        return (
            f"the head width is {q_NHK.shape[-1]}, and it supports multiples of 8 up to "
            f"{widest}{given}"
        )
    return _kernel_unsupported(q_NHK)


def _wide_unsupported(
    q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> str | None:
    if queries.lengths is not None or keys.lengths is not None or keys.tree is not None:
        return "it is for steps whose lengths the host does not know; use `dense` otherwise"
    if queries.bounds is None or keys.bounds is None:
        return "it needs contiguous sequences, without gaps"
    if scope.bias is not None:
        return "it does not support a position bias"
    if q_NHK.shape[-1] <= 128:
        return f"the head width is {q_NHK.shape[-1]}, and up to 128 other back ends are faster"
    short = max(queries.longest, keys.longest) <= SHORT_LIMIT
    if not short and _varlen_unsupported(q_NHK, k_MGK, queries, keys, scope) is None:
        return "`varlen` is faster for long sequences"
    return None


def _all_supported(
    q_NHK: Tensor, k_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> str | None:
    return None


BACK_ENDS: dict[str, BackEnd] = {
    "padded": BackEnd(_padded_unsupported, _run_padded),
    "step": BackEnd(_step_unsupported, _run_step),
    "short": BackEnd(_short_unsupported, _run_short),
    "grid": BackEnd(_grid_unsupported, attend_dense),
    "wide": BackEnd(_wide_unsupported, attend_wide),
    "varlen": BackEnd(_varlen_unsupported, _run_varlen),
    "dense": BackEnd(_all_supported, attend_dense),
    "explicit": BackEnd(_all_supported, _run_explicit),
}
"""Back ends by name, in order of preference."""
