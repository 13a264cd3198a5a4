"""Length penalty: the divisor of log P that keeps long outputs from being ranked too low."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headway.settings.decode import DecodeSettings

Penalty = Callable[[Tensor], Tensor]
"""Function from numbers of tokens, including the end token, to the divisors of log P."""


def length_penalty(settings: DecodeSettings) -> Penalty:
    alpha = settings.length_penalty_alpha
    if settings.length_penalty == "gnmt":  # Wu et al. 2016
        return lambda n: ((5.0 + n) / 6.0) ** alpha
    if settings.length_penalty == "power":
        return lambda n: n.to(torch.float32) ** alpha
    return lambda n: torch.ones_like(n, dtype=torch.float32)
