"""Who may attend to whom, and how scores are made: what a call of `attend` means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Bias = Callable[[Tensor], Tensor]
"""Distances (… T S), key position less query position, to what is added to the scores (… H T S)."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    causal: bool = False
    """A query sees no later key."""

    window: int | None = None
    """A query sees only keys nearer than this, on either side."""

    bias: Bias | None = None
    dropout: float = 0.0
    """Share of the attention weights set to zero."""

    scale: float | None = None
    """What scores are multiplied by. None: 1/√K, which keeps their variance at 1."""

    def scale_for(self, width: int) -> float:
        return width**-0.5 if self.scale is None else self.scale

    def without_dropout(self) -> Scope:
        return replace(self, dropout=0.0) if self.dropout else self

    @staticmethod
    def distance_TS(scores_HTS: Tensor) -> Tensor:
        """Key position less query position; the last query stands at the last key."""
        n_queries, n_keys = scores_HTS.shape[-2:]
        q_T1 = torch.arange(n_keys - n_queries, n_keys, device=scores_HTS.device)[:, None]
        return torch.arange(n_keys, device=scores_HTS.device) - q_T1


def allowed_TS(scope: Scope, scores_HTS: Tensor) -> Tensor:
    """True where a query may attend, for one sequence."""
    distance_TS = scope.distance_TS(scores_HTS)
    may_TS = torch.ones_like(distance_TS, dtype=torch.bool)
    if scope.causal:
        may_TS = may_TS & (distance_TS <= 0)
    if scope.window is not None:
        may_TS = may_TS & (distance_TS.abs() < scope.window)
    return may_TS
