"""Weights in fp32, the stream in whatever type it comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn import linear as linear_file
from headway.nn.linear import Linear, linear_relu, pack, product_relu


@pytest.mark.parametrize("bias", [False, True])
def test_in_one_type_it_is_torchs_layer(bias: bool, device: torch.device) -> None:
    ours = Linear(6, 4, bias=bias, device=device)
    theirs = torch.nn.Linear(6, 4, bias=bias, device=device)
    theirs.load_state_dict(ours.state_dict())
    x_ND = torch.randn(3, 6, device=device)
    assert torch.equal(ours(x_ND), theirs(x_ND))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_stream_stays_narrow_and_weights_get_fp32_gradients(
    dtype: torch.dtype, device: torch.device
) -> None:
    layer = Linear(6, 4, device=device)
    x_ND = torch.randn(3, 6, device=device, dtype=dtype).requires_grad_()
    out_ND = layer(x_ND)
    assert out_ND.dtype == dtype
    out_ND.square().sum().backward()
    assert x_ND.grad is not None
    assert x_ND.grad.dtype == dtype
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    assert layer.weight.dtype == layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32
    # What is computed is the product of the rounded weights.
    rounded = F.linear(x_ND, layer.weight.to(dtype), layer.bias.to(dtype))
    assert torch.equal(out_ND, rounded)


def parts(device: torch.device, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = [(5, 6), (4, 6), (4,)]
    return [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("fused", [linear_relu, product_relu])
def test_a_layer_with_relu_equals_the_two_one_after_another(
    fused: Callable[..., Tensor], device: torch.device
) -> None:
    leaves = parts(device)
    dout_NF = torch.randn(4, 5, device=device, dtype=torch.float64).T
    found, wanted = fused(*leaves), F.relu(F.linear(*leaves))
    assert not wanted.all()  # some are cut off
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-10)
    gradients = [torch.autograd.grad(out, leaves, dout_NF) for out in (found, wanted)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-10)


def test_a_layer_with_relu_may_have_no_bias(device: torch.device) -> None:
    x_ND, weight_FD, _ = parts(device)
    assert torch.equal(linear_relu(x_ND, weight_FD, None), F.relu(F.linear(x_ND, weight_FD)))


def test_a_layer_with_relu_in_bf16_gives_fp32_gradients_to_its_weights(
    device: torch.device,
) -> None:
    x_ND, weight_FD, bias_F = parts(device, torch.float32)
    narrow_ND = x_ND.detach().bfloat16().requires_grad_()
    out_NF = linear_relu(narrow_ND, weight_FD, bias_F)
    assert out_NF.dtype == torch.bfloat16
    wanted = F.relu(F.linear(narrow_ND.float(), weight_FD, bias_F))
    assert (out_NF.float() - wanted).norm() <= 0.01 * wanted.norm()
    gradients = torch.autograd.grad(out_NF.sum(), (narrow_ND, weight_FD, bias_F))
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32, torch.float32]


def test_the_custom_operator_keeps_torchs_contract(device: torch.device) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(product_relu, tuple(parts(device, torch.float32)), test_utils=checks)


def test_where_torch_cannot_pack_weights_a_packed_model_is_the_plain_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear_file, "can_pack", lambda: False)
    layer, x = Linear(6, 5), torch.randn(3, 6)
    pack(layer)
    assert layer.packed is None
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
        torch.testing.assert_close(layer.relu(x), F.linear(x, layer.weight, layer.bias).relu())


def test_where_torch_has_no_product_with_relu_a_gpu_does_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        asked.append("fused")
        return F.relu(F.linear(x, weight, bias))

    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(linear_file, "product_relu", product)
    leaves = parts(torch.device("cpu"))
    wanted = F.relu(F.linear(*leaves))
    for fuses in (True, False):
        monkeypatch.setattr(linear_file, "FUSES_RELU", fuses)
        torch.testing.assert_close(linear_relu(*leaves), wanted)
    assert asked == ["fused"]
