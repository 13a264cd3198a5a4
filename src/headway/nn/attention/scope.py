"""Attention options: causal mask, sliding window, bias, dropout and scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

PositionBias = Callable[[Tensor], Tensor]
"""Function that maps distances (… T S) to a bias of the attention scores (… H T S). A distance is
the position of the key minus that of the query."""


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Options of an `attend` call: the mask, and the scale, bias and dropout of the attention
    weights."""

    causal: bool = False
    """Whether a query may attend only to itself and to earlier tokens."""

    window: int | None = None
    """Size of the sliding window: a query may attend only to keys at a distance below this, on
    either side. None: no limit."""

    bias: PositionBias | None = None
    dropout: float = 0.0
    """Dropout probability of the attention weights."""

    scale: float | None = None
    """Factor applied to the scores. None: 1/√K, which keeps the variance of the scores at 1."""

    def scale_for(self, width: int) -> float:
        return width**-0.5 if self.scale is None else self.scale

    def without_dropout(self) -> AttentionSpec:
        return replace(self, dropout=0.0) if self.dropout else self

    @staticmethod
    def distance_TS(scores_HTS: Tensor) -> Tensor:
        """Return the position of each key minus that of each query (T S). The last query has the
        position of the last key."""
        n_queries, n_keys = scores_HTS.shape[-2:]
        q_T1 = torch.arange(n_keys - n_queries, n_keys, device=scores_HTS.device)[:, None]
        return torch.arange(n_keys, device=scores_HTS.device) - q_T1


def allowed_TS(scope: AttentionSpec, scores_HTS: Tensor) -> Tensor:
    """Return the mask of one sequence (T S), which is true where a query may attend."""
    distance_TS = scope.distance_TS(scores_HTS)
    may_TS = torch.ones_like(distance_TS, dtype=torch.bool)
    if scope.causal:
        may_TS = may_TS & (distance_TS <= 0)
    if scope.window is not None:
        may_TS = may_TS & (distance_TS.abs() < scope.window)
    return may_TS
