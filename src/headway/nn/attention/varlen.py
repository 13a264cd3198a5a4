"""The `varlen` back end: torch's flash attention over sequences side by side. CUDA, 16 bits."""

from __future__ import annotations

from torch import Tensor

from headway.nn.attention.scope import Scope
from headway.nn.layout import Layout


def attend_varlen(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: Scope
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    assert queries.bounds is not None
    assert keys.bounds is not None
    repeats = q_NHK.shape[1] // k_MGK.shape[1]
    if repeats > 1:  # torch 2.11 knows no grouped heads here
        k_MGK, v_MGK = k_MGK.repeat_interleave(repeats, 1), v_MGK.repeat_interleave(repeats, 1)
    reach = -1 if scope.window is None else scope.window - 1
    out_NHK = varlen_attn(
        q_NHK,
        k_MGK,
        v_MGK,
        queries.bounds,
        keys.bounds,
        queries.longest,
        keys.longest,
        scale=scope.scale_for(q_NHK.shape[-1]),
        window_size=(reach, 0 if scope.causal else reach),
    )
    assert isinstance(out_NHK, Tensor)
    return out_NHK
