from __future__ import annotations

import pytest
import torch

from headway.nn.dropout import Dropout, add_dropped, dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1001, 257), (3, 1_000_003)])
def test_the_share_of_zeros_is_the_rate_in_every_place(rate: float, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(shape), rate)
    n = out.numel()
    assert abs((out == 0).float().mean().item() - rate) < 5 * (rate * (1 - rate) / n) ** 0.5 + 1e-5
    lanes = out.flatten()[: n // 4 * 4].view(-1, 4)  # four elements share a draw
    shares = (lanes == 0).float().mean(0)
    assert (shares - rate).abs().max() < 5 * (rate * (1 - rate) / (n // 4)) ** 0.5 + 1e-5
    together = ((lanes[:, 0] == 0) & (lanes[:, 1] == 0)).float().mean()
    assert abs(together - rate**2) < 0.005  # and are independent all the same
    assert out.mean().sub(1).abs() < 0.02


def test_kept_elements_are_enlarged_alike_and_gradients_follow() -> None:
    torch.manual_seed(1)
    x = torch.randn(64, 33, dtype=torch.float64, requires_grad=True)
    y = torch.randn(64, 33, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(2)
    out = add_dropped(x, y, 0.25)
    torch.manual_seed(2)
    assert torch.allclose(out, x + dropout(y, 0.25))
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    factor = ((out - x) / y).detach()
    assert torch.allclose(y.grad, factor)
    assert set(y.grad.unique().tolist()) == {0.0, 4 / 3}


def test_it_follows_the_seed_and_is_off_outside_training() -> None:
    x, drop = torch.ones(100, 10), Dropout(0.5)
    torch.manual_seed(3)
    first = drop(x)
    torch.manual_seed(3)
    assert torch.equal(first, drop(x))
    assert not torch.equal(first, drop(x))
    assert drop.eval()(x) is x
    assert dropout(x, 0.0) is x


def test_an_empty_tensor_stays_empty() -> None:
    assert dropout(torch.empty(0, 8), 0.5).shape == (0, 8)
