"""Linear layers that compute in the dtype of their input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.cpu_packed import ALL, PackedWeight, can_pack


class Linear(nn.Linear):
    """Linear layer that casts its weight to the input's dtype. The gradient has the dtype of the
    weight.

    Mixed precision thus depends only on the dtype of the residual stream, for example bf16 with
    fp32 weights. The model needs no autocast context.
    """

    packed: PackedWeight | None = None
    """Packed copies of the weight, for fast inference on a CPU; see `nn/cpu_packed.py`. None if
    packing is off."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None, rows: slice = ALL) -> Tensor:
        """Apply the layer with this bias instead of its own, and optionally with only some rows of
        the weight."""
        if self.packed is not None and self.packed.fits(x, self.weight):
            return self.packed.product(x, self.weight, bias, rows)
        return linear(x, self.weight if rows is ALL else self.weight[rows], bias)

    def relu(self, x: Tensor) -> Tensor:
        if self.packed is not None and self.packed.fits(x, self.weight):
            return self.packed.product(x, self.weight, self.bias, relu=True)
        return linear_relu(x, self.weight, self.bias)


def pack(model: nn.Module) -> None:
    """Let the linear layers of a model keep packed copies of their weights, if this machine
    supports it."""
    if can_pack():
        for layer in _layers(model):
            layer.packed = layer.packed or PackedWeight()


def unpack(model: nn.Module) -> None:
    """Remove the packed copies from all linear layers of a model."""
    for layer in _layers(model):
        layer.packed = None


@contextmanager
def packing(models: Sequence[nn.Module]) -> Iterator[None]:
    """Use packed weights inside the `with`. Packed copies that it made are removed afterwards."""
    before = {layer: layer.packed for model in models for layer in _layers(model)}
    try:
        for model in models:
            pack(model)
        yield
    finally:
        for layer, was in before.items():
            layer.packed = was


def _layers(model: nn.Module) -> Iterator[Linear]:
    return (part for part in model.modules() if isinstance(part, Linear))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


FUSES_RELU = hasattr(torch.ops.aten, "_addmm_activation")
"""Whether PyTorch has `_addmm_activation`, which it does not guarantee. `python -m
benchmarks.shortcuts`: with it, a step of `transformer-base` in a CUDA graph is 1.03 times as fast
on an H200."""


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return relu(linear(x)). On CUDA, one kernel computes product, bias and ReLU."""
    if bias is None or not x.is_cuda or not FUSES_RELU:
        return F.relu(linear(x, weight, bias))
    return product_relu(x, weight.to(x.dtype), bias.to(x.dtype))


@torch.library.custom_op("headway::product_relu", mutates_args=())
def product_relu(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    return torch.ops.aten._addmm_activation(bias_F, x_ND, weight_FD.T)


@product_relu.register_fake
def _(x_ND: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    return x_ND.new_empty(len(x_ND), len(weight_FD))


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output)


def _backward(ctx: Any, dout_NF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x_ND, weight_FD, out_NF = ctx.saved_tensors
    dproduct_NF = dout_NF * (out_NF > 0)
    return dproduct_NF @ weight_FD, dproduct_NF.T @ x_ND, dproduct_NF.sum(0)


product_relu.register_autograd(_backward, setup_context=_keep)
