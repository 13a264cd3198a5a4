"""Non-negative matrix factorization of activations (Lee and Seung 2001, multiplicative updates).

Ecco introduced it for the feed-forward activations of one text. As in Ecco, negative activations
are first set to zero, because activation functions such as gelu are slightly negative for inactive
neurons.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALL = 1e-12
"""Constant added to divisors, so that a factor that is zero stays zero instead of becoming NaN."""

STILL = 1e-5
"""Relative improvement over ten steps below which the iteration stops."""


@dataclass(frozen=True)
class Nmf:
    """Factorization `x_TF` ≈ `weights_TK @ parts_KF`. The strongest factor is first."""

    weights_TK: Tensor
    """Weight of each factor for each token (tokens, factors)."""

    parts_KF: Tensor
    """Features of each factor (factors, features). Each row has norm 1."""

    errors: tuple[float, ...]
    """Reconstruction error relative to |x|², before the first step and after each step."""

    @property
    def explained(self) -> float:
        return 1.0 - self.errors[-1]


@torch.no_grad()
def nmf(x_TF: Tensor, n: int, *, steps: int = 200, seed: int = 1) -> Nmf:
    """Factorize the positive part of `x_TF` into `n` factors.

    The reconstruction error never increases. Equal seeds give equal factors.
    """
    x_TF = x_TF.detach().float().clamp(min=0).cpu()
    total = float(x_TF.square().sum())
    random = torch.Generator().manual_seed(seed)
    size = (float(x_TF.mean()) / n) ** 0.5 if total else 1.0
    weights_TK = (0.1 + torch.rand(len(x_TF), n, generator=random)) * size
    parts_KF = (0.1 + torch.rand(n, x_TF.shape[1], generator=random)) * size
    errors = [_error(x_TF, weights_TK, parts_KF, total)]
    for step in range(steps):
        weights_TK *= (x_TF @ parts_KF.T) / (weights_TK @ (parts_KF @ parts_KF.T) + SMALL)
        parts_KF *= (weights_TK.T @ x_TF) / ((weights_TK.T @ weights_TK) @ parts_KF + SMALL)
        errors.append(_error(x_TF, weights_TK, parts_KF, total))
        if step >= 10 and errors[-11] - errors[-1] <= STILL * errors[-11]:
            break
    return _sorted(weights_TK, parts_KF, errors)


def _error(x_TF: Tensor, weights_TK: Tensor, parts_KF: Tensor, total: float) -> float:
    left = float((x_TF - weights_TK @ parts_KF).square().sum())
    return left / total if total else 0.0


def _sorted(weights_TK: Tensor, parts_KF: Tensor, errors: list[float]) -> Nmf:
    norms_K = parts_KF.norm(dim=1).clamp(min=SMALL)
    weights_TK, parts_KF = weights_TK * norms_K, parts_KF / norms_K[:, None]
    order_K = weights_TK.square().sum(0).argsort(descending=True, stable=True)
    return Nmf(weights_TK[:, order_K], parts_KF[order_K], tuple(errors))
