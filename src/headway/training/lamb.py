"""LAMB optimizer: Adam, with the update of each matrix scaled by the norm of the matrix (You et al.
2019).

The trust ratio has a lower limit, as in Merity (2019) for the SHA-RNN, so that small matrices are
not slowed down too much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LEAST_TRUST = 0.25
"""Lower limit of the trust ratio: no matrix learns more slowly than at a quarter of the learning
rate."""

MOST_NORM = 10.0
"""Upper limit of the norm of a matrix in the trust ratio. It is the function φ of the paper, with
the limit of common implementations."""


class Lamb(torch.optim.AdamW):
    """LAMB optimizer. Vectors such as biases and norms are updated as in AdamW.

    As with PyTorch's fused kernels, a step changes nothing if the attribute `found_inf` is a tensor
    that holds 1.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        skip = getattr(self, "found_inf", None)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group, skip)
        return loss

    def _step(self, weight: Tensor, group: dict[str, Any], skip: Tensor | None) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), device=weight.device)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        taken = 1.0 if skip is None else 1.0 - skip
        gradient = gradient if skip is None else gradient.where(skip == 0, 0.0)
        beta1, beta2 = group["betas"]
        state["step"] += taken
        state["exp_avg"].lerp_(gradient, (1 - beta1) * taken)
        state["exp_avg_sq"].lerp_(gradient.square(), (1 - beta2) * taken)
        step = state["step"].clamp(min=1.0)
        mean = state["exp_avg"] / (1 - beta1**step)
        spread = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
        update = mean / spread + group["weight_decay"] * weight
        if weight.ndim >= 2:
            update = update * trust(weight, update)
        weight.sub_(update * (group["lr"] * taken))


def trust(weight: Tensor, update: Tensor) -> Tensor:
    """Return the trust ratio: the norm of the matrix divided by the norm of its update."""
    size, moved = weight.norm().clamp(max=MOST_NORM), update.norm()
    ratio = (size / moved.clamp(min=1e-12)).clamp(min=LEAST_TRUST)
    return torch.where((size > 0) & (moved > 0), ratio, torch.ones_like(ratio))
