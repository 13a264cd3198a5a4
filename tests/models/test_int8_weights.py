from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.models.build import build_model
from headway.models.folder import load_model, model_weights, save_model, save_weights
from headway.models.int8_weights import from_int8, to_int8
from headway.settings.presets import preset


def test_every_weight_comes_back_to_half_a_level_of_its_row() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 64, generator=draw) * torch.logspace(-6, 3, 50)[:, None]
    weights = {
        "a.weight": rows,
        "a.bias": torch.randn(50, generator=draw),
        "zero": torch.zeros(3, 4),
    }
    small = to_int8(weights)
    assert small["a.weight"].dtype == torch.int8
    back = from_int8(small)
    assert back.keys() == weights.keys()
    level = rows.abs().amax(1) / 127
    assert ((back["a.weight"] - rows).abs().amax(1) <= 0.5001 * level).all()
    assert torch.equal(back["a.bias"], weights["a.bias"])
    assert not back["zero"].any()


def test_a_folder_of_8_bit_weights_is_a_quarter_of_the_size_and_loads(tmp_path: Path) -> None:
    settings = preset("transformer-test")
    model = build_model(settings, seed=3)
    save_model(tmp_path, model, settings)
    before = (tmp_path / "model.safetensors").stat().st_size
    save_weights(tmp_path, to_int8(model_weights(model)))
    assert (tmp_path / "model.safetensors").stat().st_size < 0.4 * before
    loaded = model_weights(load_model(tmp_path))
    for name, tensor in model_weights(model).items():
        assert loaded[name].sub(tensor).abs().max() <= 0.005 * tensor.abs().max() + 1e-9


@pytest.mark.parametrize("weights", [{"w": torch.randn(3, 3)}, {"n": torch.arange(4)}])
def test_other_weights_are_left_alone(weights: dict[str, torch.Tensor]) -> None:
    back = from_int8(weights)
    assert all(torch.equal(back[name], weights[name]) for name in weights)
