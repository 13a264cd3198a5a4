"""Attention scope: the mask, bias, dropout and scale of a call of `attend`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

PositionBias = Callable[[Tensor], Tensor]
"""Returns the addend of the scores (… H T S) for distances (… T S), key minus query position."""


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Keys that each query sees, and the scale, bias and dropout of its weights."""

    causal: bool = False
    """Whether a query sees only itself and earlier keys."""

    window: int | None = None
    """Sliding window: a query sees only keys closer than this, on either side. None: all."""

    bias: PositionBias | None = None
    dropout: float = 0.0
    """Dropout probability of the attention weights."""

    scale: float | None = None
    """Factor of the scores. None: 1/√K, which keeps their variance at 1."""

    def scale_for(self, width: int) -> float:
        return width**-0.5 if self.scale is None else self.scale

    def without_dropout(self) -> AttentionSpec:
        return replace(self, dropout=0.0) if self.dropout else self

    @staticmethod
    def distance_TS(scores_HTS: Tensor) -> Tensor:
        """Position of each key minus that of each query. The last query has the position of the
        last key."""
        n_queries, n_keys = scores_HTS.shape[-2:]
        q_T1 = torch.arange(n_keys - n_queries, n_keys, device=scores_HTS.device)[:, None]
        return torch.arange(n_keys, device=scores_HTS.device) - q_T1


def allowed_TS(scope: AttentionSpec, scores_HTS: Tensor) -> Tensor:
    """Mask of one sequence that is true where a query may attend."""
    distance_TS = scope.distance_TS(scores_HTS)
    may_TS = torch.ones_like(distance_TS, dtype=torch.bool)
    if scope.causal:
        may_TS = may_TS & (distance_TS <= 0)
    if scope.window is not None:
        may_TS = may_TS & (distance_TS.abs() < scope.window)
    return may_TS
