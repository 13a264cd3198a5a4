"""The `wide` back end: explicit attention on padded sequences of fixed shape.

It is used in CUDA graphs, where lengths must stay on the device, for heads that are too wide for
the kernels. Examples are the single heads of recurrent models.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.attention.scope import AttentionSpec
from headway.nn.grid import cells_N, to_grid, to_rows
from headway.nn.layout import Layout

HIDDEN = -1e30
"""Score of masked keys. It is finite because a softmax over only −∞ gives NaN."""


def attend_wide(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    cell_N, cell_M = cells_N(queries), cells_N(keys)
    repeats = q_NHK.shape[1] // k_MGK.shape[1]
    if repeats > 1:
        k_MGK, v_MGK = k_MGK.repeat_interleave(repeats, 1), v_MGK.repeat_interleave(repeats, 1)
    q_TBHK = to_grid(q_NHK, cell_N, queries)
    k_SBHK, v_SBHK = to_grid(k_MGK, cell_M, keys), to_grid(v_MGK, cell_M, keys)
    scores_BHTS = torch.einsum("tbhk,sbhk->bhts", q_TBHK, k_SBHK)
    wide = torch.promote_types(q_NHK.dtype, torch.float32)
    scores_BHTS = scores_BHTS.to(wide) * scope.scale_for(q_NHK.shape[-1])
    may_B1TS = _allowed(queries, keys, scope)[:, None]
    # A query without visible keys, such as padding, gets zeros.
    weights_BHTS = scores_BHTS.masked_fill(~may_B1TS, HIDDEN).softmax(-1) * may_B1TS
    weights_BHTS = F.dropout(weights_BHTS, scope.dropout).to(v_SBHK.dtype)
    return to_rows(torch.einsum("bhts,sbhk->tbhk", weights_BHTS, v_SBHK), cell_N)


def _allowed(queries: Layout, keys: Layout, scope: AttentionSpec) -> Tensor:
    """Return the attention mask (B T S), which is true where a query may attend. The last query of
    a sequence has the position of its last key."""
    device = keys.lengths_B.device
    key_S = torch.arange(keys.longest, device=device)
    may_BTS = (key_S < keys.lengths_B[:, None])[:, None]
    if scope.causal or scope.window is not None:
        before_B = (keys.lengths_B - queries.lengths_B)[:, None]
        place_BT = torch.arange(queries.longest, device=device) + before_B
        distance_BTS = key_S - place_BT[..., None]
        if scope.causal:
            may_BTS = may_BTS & (distance_BTS <= 0)
        if scope.window is not None:
            may_BTS = may_BTS & (distance_BTS.abs() < scope.window)
    return may_BTS
