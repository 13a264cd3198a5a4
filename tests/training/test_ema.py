"""The running average of the weights: its formula, and that borrowing it leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.errors import FolderError
from headway.training.average import Ema


def model() -> nn.Module:
    torch.manual_seed(0)
    tied = nn.Linear(3, 3, bias=False)
    return nn.Sequential(tied, nn.Linear(3, 2), tied)


def change(module: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random))


def test_it_is_the_formula() -> None:
    module = model()
    ema = Ema(module, 0.9)
    weight = module.get_parameter("1.weight")
    wanted = weight.detach().double()
    for t in range(1, 120):
        change(module, t)
        ema.update()
        d = min(0.9, (1 + t) / (10 + t))
        wanted = d * wanted + (1 - d) * weight.detach().double()
    torch.testing.assert_close(ema.averages["1.weight"].double(), wanted, rtol=1e-5, atol=1e-5)


def test_inside_the_model_has_the_average_and_afterwards_its_own_weights() -> None:
    module = model()
    ema = Ema(module, 0.5)
    change(module, 1)
    ema.update()
    own = {name: value.clone() for name, value in module.state_dict().items()}
    average = {name: value.clone() for name, value in ema.averages.items()}
    addresses = [parameter.data_ptr() for parameter in module.parameters()]
    with ema.swap():
        for name, parameter in module.named_parameters():
            assert torch.equal(parameter, average[name])
            assert not torch.equal(parameter, own[name])
        with pytest.raises(AssertionError):
            ema.update()
    with pytest.raises(KeyError), ema.swap():
        raise KeyError
    assert all(torch.equal(value, own[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(value, average[name]) for name, value in ema.averages.items())
    assert [parameter.data_ptr() for parameter in module.parameters()] == addresses
    ema.update()


def test_a_run_in_two_halves_is_the_whole_run_bit_for_bit() -> None:
    whole, half = model(), model()
    ema, first = Ema(whole, 0.99), Ema(half, 0.99)
    for step in range(6):
        change(whole, step)
        ema.update()
    for step in range(3):
        change(half, step)
        first.update()
    saved = {name: value.clone() for name, value in first.tensors().items()}
    second = Ema(half, 0.99)
    second.load(saved)
    for step in range(3, 6):
        change(half, step)
        second.update()
    assert all(torch.equal(value, ema.tensors()[name]) for name, value in second.tensors().items())


def test_the_average_of_another_model_is_an_error() -> None:
    ema = Ema(model(), 0.9)
    with pytest.raises(FolderError, match=r"\b1\.bias\b.*\b2\b"):
        ema.load({"0.weight": torch.zeros(3, 3)})
