"""Torch's flash attention operators in plain torch, so that what calls them runs on any machine.

They take the arguments of `aten::_flash_attention_forward` and `_backward` and no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def forward(
    q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, q_bounds: Tensor, k_bounds: Tensor,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, return_debug_mask: bool,
    *, scale: float, window_size_left: int, window_size_right: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    state = torch.randint(2**31, (2,)).to(torch.uint64)
    out_NHK, sums_HN = torch.zeros_like(q_NHK), q_NHK.new_zeros(q_NHK.shape[1], len(q_NHK))
    for place, q, k, v, may, keep in _sequences(
        (q_NHK, k_MHK, v_MHK), q_bounds, k_bounds, state, dropout_p, is_causal,
        window_size_left, window_size_right,
    ):  # fmt: skip
        scores_HTS = (torch.einsum("thk,shk->hts", q, k) * scale).masked_fill(~may, -math.inf)
        sums_HN[:, place[0]] = scores_HTS.logsumexp(-1)
        weights_HTS = scores_HTS.softmax(-1).nan_to_num()
        out_NHK[place[0]] = torch.einsum("hts,shk->thk", weights_HTS * keep, v)
    return out_NHK, sums_HN, state, q_NHK.new_empty(0), q_NHK.new_empty(0)


def backward(
    dout_NHK: Tensor, q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, out_NHK: Tensor, sums_HN: Tensor,
    q_bounds: Tensor, k_bounds: Tensor, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    rng_state: Tensor, unused: Tensor,
    *, scale: float, window_size_left: int, window_size_right: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    grads = torch.zeros_like(q_NHK), torch.zeros_like(k_MHK), torch.zeros_like(v_MHK)
    for place, q, k, v, may, keep in _sequences(
        (q_NHK, k_MHK, v_MHK), q_bounds, k_bounds, rng_state, dropout_p, is_causal,
        window_size_left, window_size_right,
    ):  # fmt: skip
        rows, keys = place
        scores_HTS = torch.einsum("thk,shk->hts", q, k) * scale
        weights_HTS = (scores_HTS - sums_HN[:, rows, None]).exp().masked_fill(~may, 0.0)
        dout, out = dout_NHK[rows], out_NHK[rows]
        dweights_HTS = torch.einsum("thk,shk->hts", dout, v) * keep
        slope_HT1 = (dout * out).sum(-1).T[..., None]
        dscores_HTS = weights_HTS * (dweights_HTS - slope_HT1) * scale
        grads[0][rows] = torch.einsum("hts,shk->thk", dscores_HTS, k)
        grads[1][keys] = torch.einsum("hts,thk->shk", dscores_HTS, q)
        grads[2][keys] = torch.einsum("hts,thk->shk", weights_HTS * keep, dout)
    return grads


def _sequences(
    tensors: tuple[Tensor, Tensor, Tensor], q_bounds: Tensor, k_bounds: Tensor, state: Tensor,
    dropout_p: float, is_causal: bool, left: int, right: int,
) -> Iterator[tuple[tuple[slice, slice], Tensor, Tensor, Tensor, Tensor, Tensor]]:  # fmt: skip
    """Per sequence: its rows and keys, q, k, v, which keys a row sees, and the dropout mask."""
    assert is_causal == ((left, right) == (-1, 0))
    draw = torch.Generator().manual_seed(int(state[0]))
    q_ends, k_ends = q_bounds.tolist(), k_bounds.tolist()
    for b in range(len(q_ends) - 1):
        rows, keys = slice(q_ends[b], q_ends[b + 1]), slice(k_ends[b], k_ends[b + 1])
        q, k, v = tensors[0][rows], tensors[1][keys], tensors[2][keys]
        distance_TS = torch.arange(len(k)) - (torch.arange(len(q)) + len(k) - len(q))[:, None]
        may_TS = torch.ones_like(distance_TS, dtype=torch.bool)
        if left >= 0:
            may_TS &= distance_TS >= -left
        if right >= 0:
            may_TS &= distance_TS <= right
        chance_HTS = torch.rand(q.shape[1], len(q), len(k), generator=draw)
        keep_HTS = (chance_HTS >= dropout_p).to(q.dtype) / (1.0 - dropout_p)
        yield (rows, keys), q, k, v, may_TS, keep_HTS
