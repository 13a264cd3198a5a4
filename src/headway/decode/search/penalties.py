"""What log P is divided by, so that long outputs are not ranked last for being long."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headway.settings.decode import DecodeSettings

Penalty = Callable[[Tensor], Tensor]
"""Numbers of tokens, end token included, to what log P is divided by."""


def length_penalty(settings: DecodeSettings) -> Penalty:
    alpha = settings.alpha
    if settings.length_penalty == "gnmt":  # Wu et al. 2016
        return lambda n: ((5.0 + n) / 6.0) ** alpha
    if settings.length_penalty == "power":
        return lambda n: n.to(torch.float32) ** alpha
    return lambda n: torch.ones_like(n, dtype=torch.float32)


def coverage_penalty(attention_S: Tensor, real_S: Tensor, weight: float) -> Tensor:
    """GNMT's: `weight` · Σ log min(what a source token got in all, 1); 0 when all got enough.

    `attention_S` is summed over target tokens; `real_S` is True where there is a source token.
    """
    # A token that got nothing at all would cost infinitely much.
    lack_S = attention_S.clamp(1e-9, 1.0).log().masked_fill(~real_S, 0.0)
    return weight * lack_S.sum(-1)
