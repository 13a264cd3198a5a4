"""norm(x + dropout(y)) in one kernel against the same in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor


def leaves(n_rows: int, width: int, device: torch.device) -> list[Tensor]:
    shapes = [(n_rows, width), (n_rows, width), (width,), (width,)]
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]


def plain(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, keep: Tensor | float) -> Tensor:
    return F.layer_norm(x + keep * y, weight.shape, weight, bias, 1e-3)


@pytest.mark.parametrize(("n_rows", "width"), [(1, 16), (9, 16), (5, 20), (3, 3), (4, 100)])
def test_output_and_gradients_equal_the_plain_way(
    n_rows: int, width: int, kernel_device: torch.device
) -> None:
    from headway.nn.kernels.add_norm import fused_add_norm

    parts = leaves(n_rows, width, kernel_device)
    dout_ND = torch.randn(n_rows, width, device=kernel_device)
    found = fused_add_norm(*parts, 1e-3, 0.0)
    wanted = plain(*parts, 1.0)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)
    gradients = [torch.autograd.grad(out, parts, dout_ND) for out in (found, wanted)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_a_strided_stream_and_a_strided_gradient_give_the_same(
    kernel_device: torch.device,
) -> None:
    from headway.nn.kernels.add_norm import fused_add_norm

    x, y, weight, bias = leaves(6, 16, kernel_device)
    strided = _apart(x), _apart(y), torch.randn(16, 6, device=kernel_device).T
    side_by_side = (x, y, strided[2].contiguous())
    found, wanted = [], []
    for results, (x_ND, y_ND, dout_ND) in ((found, strided), (wanted, side_by_side)):
        out_ND = fused_add_norm(x_ND, y_ND, weight, bias, 1e-3, 0.0)
        results.extend([out_ND, *torch.autograd.grad(out_ND, (x, y, weight, bias), dout_ND)])
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-6)


def _apart(x_ND: Tensor) -> Tensor:
    """The same numbers, every other one of a wider row."""
    return torch.stack([x_ND, x_ND], -1)[..., 0]


@pytest.mark.parametrize("width", [16, 20])
def test_dropout_has_its_rate_and_backward_its_mask(
    width: int, kernel_device: torch.device
) -> None:
    from headway.nn.kernels.add_norm import add_norm_forward

    rate, n_rows = 0.3, 24
    x, y, weight, bias = leaves(n_rows, width, kernel_device)
    seed = torch.tensor([123], device=kernel_device)
    # The second thing that comes back is x + dropout(y): with x = 0 and y = 1, the mask.
    zeros, ones = torch.zeros_like(x), torch.ones_like(y)
    keep_ND = add_norm_forward(zeros, ones, weight, bias, seed, 1e-3, rate)[1]
    kept_ND = keep_ND != 0
    torch.testing.assert_close(keep_ND[kept_ND], torch.full_like(keep_ND[kept_ND], 1 / (1 - rate)))
    dropped = 1 - kept_ND.double().mean().item()
    assert abs(dropped - rate) < 5 * (rate * (1 - rate) / kept_ND.numel()) ** 0.5
    assert not torch.equal(kept_ND[0], kept_ND[1])
    assert len({tuple(column) for column in kept_ND.T.tolist()}) == width
    other = torch.tensor([124], device=kernel_device)
    again = add_norm_forward(zeros, ones, weight, bias, other, 1e-3, rate)[1]
    assert not torch.equal(again, keep_ND)

    parts, dout_ND = (x, y, weight, bias), torch.randn_like(x)
    found = add_norm_forward(*parts, seed, 1e-3, rate)[0]
    wanted = plain(*parts, keep_ND)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)
    gradients = [torch.autograd.grad(out, parts, dout_ND) for out in (found, wanted)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_each_call_draws_a_mask_of_its_own(kernel_device: torch.device) -> None:
    from headway.nn.kernels.add_norm import fused_add_norm

    parts = leaves(4, 16, kernel_device)
    first, second = (fused_add_norm(*parts, 1e-3, 0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    first = fused_add_norm(*parts, 1e-3, 0.5)
    torch.manual_seed(3)
    assert torch.equal(fused_add_norm(*parts, 1e-3, 0.5), first)


OPERATOR_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_its_operators_keep_torchs_contract(rate: float, kernel_device: torch.device) -> None:
    """What the compiler is told of their results, without running them, is true."""
    from headway.nn.kernels.add_norm import add_norm_backward, add_norm_forward

    x, y, weight, bias = leaves(4, 16, kernel_device)
    seed = torch.tensor([123], device=kernel_device) if rate else None
    arguments = (_apart(x), y, weight, bias, seed, 1e-3, rate)
    torch.library.opcheck(add_norm_forward, arguments, test_utils=OPERATOR_CHECKS)
    with torch.no_grad():
        out, *kept = add_norm_forward(*arguments)
    arguments = (torch.randn_like(out), *kept, weight, seed, rate)
    torch.library.opcheck(add_norm_backward, arguments, test_utils=OPERATOR_CHECKS)


@pytest.mark.gpu
def test_in_bf16_it_is_near_fp32_and_weights_get_fp32_gradients() -> None:
    from headway.nn.kernels.add_norm import fused_add_norm

    for n_rows, width in ((3000, 512), (7, 1000), (64, 4096)):
        x, y, weight, bias = leaves(n_rows, width, torch.device("cuda"))
        narrow = [x.detach().bfloat16().requires_grad_(), y.detach().bfloat16().requires_grad_()]
        wide = [part.detach().float().requires_grad_() for part in narrow]
        dout_ND = torch.randn(n_rows, width, device="cuda").bfloat16()
        found = fused_add_norm(*narrow, weight, bias, 1e-6, 0.0)
        wanted = F.layer_norm(wide[0] + wide[1], (width,), weight, bias, 1e-6)
        gradients = torch.autograd.grad(found, (*narrow, weight, bias), dout_ND)
        theirs = torch.autograd.grad(wanted, (*wide, weight, bias), dout_ND.float())
        assert [g.dtype for g in gradients[2:]] == [torch.float32, torch.float32]
        for mine, other in zip((found, *gradients), (wanted, *theirs), strict=True):
            assert (mine.float() - other).norm() <= 0.01 * other.norm()
