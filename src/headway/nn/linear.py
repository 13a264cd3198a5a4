"""Linear layers that compute in the type of what comes in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.cpu_packed import ALL, Packed, can_pack


class Linear(nn.Linear):
    """Weights may be fp32 while the stream is bf16: they are cast on use, gradients arrive in fp32.

    So mixed precision is one decision, the type of the stream that the front hands over,
    and needs no context manager around the model.
    """

    packed: Packed | None = None
    """Copies of the weight for quick products without a gradient; see `nn/cpu_packed.py`."""

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None, rows: slice = ALL) -> Tensor:
        """With another bias, or with some rows of the weight alone."""
        if self.packed is not None and self.packed.fits(x, self.weight):
            return self.packed.product(x, self.weight, bias, rows)
        return linear(x, self.weight if rows is ALL else self.weight[rows], bias)

    def relu(self, x: Tensor) -> Tensor:
        if self.packed is not None and self.packed.fits(x, self.weight):
            return self.packed.product(x, self.weight, self.bias, relu=True)
        return linear_relu(x, self.weight, self.bias)


def pack(model: nn.Module) -> None:
    """Let the linear layers of a model keep packed copies, where this machine can use them."""
    if can_pack():
        for layer in _layers(model):
            layer.packed = layer.packed or Packed()


def unpack(model: nn.Module) -> None:
    """Let none of them have any."""
    for layer in _layers(model):
        layer.packed = None


@contextmanager
def packing(models: Sequence[nn.Module]) -> Iterator[None]:
    """Packed inside; afterwards the copies are gone, unless they were there before."""
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
"""torch does not promise this product. `python -m benchmarks.shortcuts`: a recorded step of
`transformer-base` is 1.03 times as fast with it on an H200."""


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """relu(linear(x)): on CUDA the product applies bias and relu as it writes its result."""
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
