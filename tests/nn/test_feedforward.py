"""The feed-forward sub-layer: each activation against its formula, gated ones too."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headway.nn.dropout import dropout
from headway.nn.feedforward import ACTIVATIONS, GATED, FeedForward
from headway.nn.tap import record


def normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def tanh_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * normal_cdf(x),
    "gelu-tanh": lambda x: x * tanh_cdf(x),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu2": lambda x: x**2 * (x > 0),
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
    "geglu": lambda x: x * normal_cdf(x),
    "geglu-tanh": lambda x: x * tanh_cdf(x),
}


def test_every_activation_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS) | set(GATED)


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("bias", [False, True])
def test_it_equals_two_or_three_matrices_written_out(
    activation: str, bias: bool, shake: Callable[[nn.Module], nn.Module], device: torch.device
) -> None:
    part = shake(FeedForward(6, 10, activation, bias=bias)).to(device, torch.float64)
    x_ND = torch.randn(4, 6, dtype=torch.float64, device=device) * 2
    first, second = part.to_hidden, part.to_out
    assert (first.bias is not None) is (second.bias is not None) is bias
    hidden = x_ND @ first.weight.T + (first.bias if bias else 0.0)
    if activation in GATED:
        assert hidden.shape[1] == 20
        hidden = FORMULAS[activation](hidden[:, :10]) * hidden[:, 10:]
    else:
        hidden = FORMULAS[activation](hidden)
    wanted = hidden @ second.weight.T + (second.bias if bias else 0.0)
    torch.testing.assert_close(part(x_ND), wanted, rtol=0.0, atol=1e-10)


def test_dropout_is_on_the_hidden_layer_and_off_in_use() -> None:
    part = FeedForward(6, 100, "relu", dropout=0.5)
    x_ND = torch.randn(4, 6)
    torch.manual_seed(3)
    dropped = part(x_ND)
    torch.manual_seed(3)
    hidden = dropout(part.to_hidden(x_ND).relu(), 0.5)
    assert torch.equal(dropped, part.to_out(hidden))
    part.eval()
    assert torch.equal(part(x_ND), part.to_out(part.to_hidden(x_ND).relu()))


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_the_hidden_layer_can_be_looked_at(activation: str) -> None:
    part = FeedForward(6, 10, activation)
    x_ND = torch.randn(4, 6)
    with record(part, "hidden") as seen:
        out_ND = part(x_ND)
    assert torch.equal(part.to_out(seen["hidden"][0]), out_ND)
