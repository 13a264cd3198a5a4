"""Muon optimizer: orthogonalized momentum for hidden matrices, AdamW for all other parameters.

Keller Jordan et al. 2024, with the scaling of Liu et al. 2025 (arXiv 2502.16982).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial x → ax + bx³ + cx⁵, as in Jordan et al. 2024. It moves
singular values to about 0.7 … 1.2."""

ITERATIONS = 5
"""Number of Newton–Schulz iterations per update, as in Jordan et al. 2024."""

MOMENTUM = 0.95
"""Momentum of the updates, as in Jordan et al. 2024."""

RMS = 0.2
"""Root mean square of an update at learning rate 1. It equals that of a typical AdamW update, so
that a learning rate for AdamW also suits Muon."""


class Muon(torch.optim.AdamW):
    """Muon for parameter groups with `matrix_rows`, the row counts of the matrices that are fused
    in each tensor. AdamW, with its own kernels, updates all other groups.

    As with PyTorch's fused kernels, a step changes nothing if the attribute `found_inf` is a tensor
    that holds 1, because inside a CUDA graph the host cannot decide.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if "matrix_rows" not in group]
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if "matrix_rows" in group:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        skip = getattr(self, "found_inf", None)
        taken = 1.0 if skip is None else 1.0 - skip
        lr = group["lr"] * taken
        weights: list[Tensor] = []
        updates: list[Tensor] = []
        for parameter, rows in zip(group["params"], group["matrix_rows"], strict=True):
            if parameter.grad is None:
                continue
            gradient = parameter.grad if skip is None else parameter.grad.where(skip == 0, 0.0)
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(gradient, (1 - MOMENTUM) * taken)
            update = gradient.lerp(state["momentum"], MOMENTUM)  # Nesterov's look ahead
            weights += parameter.split(rows)
            updates += update.split(rows)
        for weight, update in zip(weights, orthogonal(updates), strict=True):
            scale = RMS * max(weight.shape) ** 0.5
            if group["weight_decay"]:
                weight.mul_(1 - lr * group["weight_decay"])
            weight.sub_(update * (lr * scale))


def orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """Return matrices with their singular values moved to about 1, each in its own type.

    Matrices of the same shape, or of its transpose, are processed together, because a model has
    many matrices of few shapes.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for number, matrix in enumerate(matrices):
        n_rows, n_columns = matrix.shape
        groups.setdefault((min(n_rows, n_columns), max(n_rows, n_columns)), []).append(number)
    done: dict[int, Tensor] = {}
    for numbers in groups.values():
        flat = [_lying(matrices[number]) for number in numbers]
        for number, result in zip(numbers, newton_schulz(torch.stack(flat)), strict=True):
            turned = result.T if matrices[number].shape != result.shape else result
            done[number] = turned.to(matrices[number].dtype)
    return [done[number] for number in range(len(matrices))]


def newton_schulz(x_BRC: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a stack of matrices with their singular values moved towards 1. The matrices must not
    have more rows than columns."""
    if dtype is None:
        dtype = torch.bfloat16 if x_BRC.is_cuda else torch.float32
    a, b, c = COEFFICIENTS
    norm_B11 = x_BRC.float().norm(dim=(1, 2), keepdim=True)
    x_BRC = (x_BRC / norm_B11.clamp(min=1e-7)).to(dtype)
    for _ in range(ITERATIONS):
        gram_BRR = x_BRC @ x_BRC.mT
        mixed_BRR = torch.baddbmm(gram_BRR, gram_BRR, gram_BRR, beta=b, alpha=c)
        x_BRC = torch.baddbmm(x_BRC, mixed_BRR, x_BRC, beta=a)
    return x_BRC


def _lying(matrix: Tensor) -> Tensor:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
