"""Norms against torch's and against their formulas, in every type of stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headway.nn.dropout import dropout
from headway.nn.norms import NORMS, LayerNorm, RMSNorm, add_norm

Shake = Callable[[nn.Module], nn.Module]


def by_formula(norm: LayerNorm | RMSNorm, x_ND: Tensor) -> Tensor:
    if isinstance(norm, RMSNorm):
        return x_ND / (x_ND.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
    centred = x_ND - x_ND.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return scaled * norm.weight + norm.bias


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_a_norm_equals_its_formula(
    name: str, eps: float, shake: Shake, device: torch.device
) -> None:
    norm = shake(NORMS[name](8, eps)).to(device, torch.float64)
    x_ND = torch.randn(5, 8, dtype=torch.float64, device=device) * 3 + 1
    torch.testing.assert_close(norm(x_ND), by_formula(norm, x_ND), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("name", NORMS)
def test_a_fresh_norm_gives_unit_scale(name: str) -> None:
    out_ND = NORMS[name](64)(torch.randn(5, 64) * 7)
    torch.testing.assert_close(out_ND.square().mean(-1), torch.ones(5), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_stream_is_computed_in_fp32_and_rounded_once(
    name: str, dtype: torch.dtype, shake: Shake, device: torch.device
) -> None:
    norm = shake(NORMS[name](64)).to(device)
    x_ND = (torch.randn(50, 64, device=device) + 20).to(dtype)
    out_ND = norm(x_ND)
    assert out_ND.dtype == dtype
    # Equal to the last bit, which it is not where the mean is taken in the narrow type.
    assert torch.equal(out_ND, norm(x_ND.float()).to(dtype))
    out_ND.sum().backward()
    assert norm.weight.grad is not None
    assert norm.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_add_norm_without_dropout_is_the_norm_of_the_sum(
    name: str, dtype: torch.dtype, shake: Shake, device: torch.device
) -> None:
    norm = shake(NORMS[name](8)).to(device)
    x_ND, y_ND = torch.randn(2, 5, 8, dtype=dtype, device=device)
    torch.testing.assert_close(add_norm(norm, x_ND, y_ND, 0.0), norm(x_ND + y_ND))


def test_add_norm_drops_from_what_is_added_and_not_from_the_stream(device: torch.device) -> None:
    x_ND, y_ND = torch.randn(2, 5, 64, device=device)
    norm = LayerNorm(64).to(device)
    torch.manual_seed(3)
    found = add_norm(norm, x_ND, y_ND, 0.5)
    torch.manual_seed(3)
    wanted = norm(x_ND + dropout(y_ND, 0.5))
    assert torch.equal(found, wanted)
    assert not torch.equal(found, norm(x_ND + y_ND))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NORMS)
def test_on_a_gpu_in_bf16_add_norm_is_near_fp32(name: str, shake: Shake) -> None:
    norm = shake(NORMS[name](512)).to("cuda")
    x_ND, y_ND = torch.randn(2, 100, 512, device="cuda").bfloat16()
    wanted = norm(x_ND.float() + y_ND.float())
    found = add_norm(norm, x_ND, y_ND, 0.0)
    assert found.dtype == torch.bfloat16
    assert (found.float() - wanted).norm() <= 0.01 * wanted.norm()
