"""A model in a folder: what is saved comes back; what is wrong with a folder is said in words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from headway.errors import FolderError
from headway.models.build import build_model
from headway.models.folder import load_model, load_settings, save_model
from headway.nn.layout import Layout
from headway.settings.model import ModelSettings
from headway.settings.presets import preset
from headway.settings.toml import to_toml

TINY = ["transformer-test", "encoder-test", "decoder-test"]


def scores(model: nn.Module) -> torch.Tensor:
    layout = Layout.of([3, 5])
    tokens_N = torch.arange(8)
    inputs = (tokens_N, layout) * (2 if hasattr(model, "encoder") else 1)
    with torch.no_grad():
        return model.eval().scores(model(*inputs))  # type: ignore[operator]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    settings = preset("decoder-test")
    save_model(tmp_path / "run", build_model(settings), settings)
    return tmp_path / "run"


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(FolderError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("name", TINY)
def test_saving_and_loading_gives_the_same_scores(name: str, tmp_path: Path) -> None:
    settings = preset(name)
    model = build_model(settings, seed=7)
    save_model(tmp_path / "new" / "run", model, settings)
    assert load_settings(tmp_path / "new" / "run") == settings
    loaded = load_model(tmp_path / "new" / "run")
    assert torch.equal(scores(loaded), scores(model))
    assert not torch.equal(scores(build_model(settings)), scores(model))  # it can fail


@pytest.mark.parametrize("tie", ["all", "target-softmax", "none"])
def test_a_shared_weight_is_written_once_and_stays_shared(tie: str, tmp_path: Path) -> None:
    settings = replace(preset("transformer-test"), tie=tie)
    model = build_model(settings)
    save_model(tmp_path, model, settings)
    in_file = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert in_file == sum(parameter.numel() for parameter in model.parameters())
    loaded = load_model(tmp_path)
    n_embeddings = {"all": 1, "target-softmax": 2, "none": 3}[tie]
    sizes = [parameter.numel() for parameter in loaded.parameters()]
    assert sizes.count(100 * 32) == n_embeddings
    assert torch.equal(scores(loaded), scores(model))


def test_a_shared_weight_is_found_under_any_of_its_names(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    before = scores(load_model(saved))
    assert "head.linear.weight" not in weights
    weights["head.linear.weight"] = weights.pop("front.tokens.weight")
    save_file(weights, saved / "model.safetensors")
    assert torch.equal(scores(load_model(saved)), before)


def test_the_folder_is_the_model_and_can_be_copied(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "elsewhere")
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "config.toml",
        "model.safetensors",
    ]
    assert torch.equal(scores(load_model(tmp_path / "elsewhere")), scores(load_model(saved)))


def test_saving_again_gives_the_same_bytes(saved: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    save_model(saved, load_model(saved), load_settings(saved))
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_weights_of_another_shape_are_shown_as_a_short_table(saved: Path) -> None:
    other: ModelSettings = replace(preset("decoder-test"), d_ff=48)
    (saved / "config.toml").write_text(to_toml(other))
    lines = refusal(lambda: load_model(saved)).splitlines()
    assert lines[0] == (
        f"{saved / 'model.safetensors'} does not fit the model of {saved / 'config.toml'}."
    )
    assert "  stack.blocks.0.feed_forward.to_hidden.weight: file (64, 32), model (48, 32)" in lines
    assert lines[-1] == "  ... and 1 more"
    assert len(lines) == 7


def test_weights_that_are_missing_or_too_many_are_named(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    weights["head.linear.weight"] = weights["front.tokens.weight"].clone()
    del weights["stack.final_norm.bias"]
    save_file(weights, saved / "model.safetensors")
    message = refusal(lambda: load_model(saved))
    assert "  head.linear.weight: file (100, 32), model nothing" in message
    assert "  stack.final_norm.bias: file nothing, model (32,)" in message


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.99])
def test_a_cut_off_file_is_refused_in_one_message(saved: Path, share: float) -> None:
    whole = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(whole[: int(len(whole) * share)])
    message = refusal(lambda: load_model(saved))
    assert message.startswith(f"{saved / 'model.safetensors'} is damaged or no safetensors file")


def test_a_file_of_another_kind_is_refused(saved: Path) -> None:
    (saved / "model.safetensors").write_bytes(b"\x80\x04 no tensors here" * 1000)
    assert "is damaged or no safetensors file" in refusal(lambda: load_model(saved))


def test_a_missing_folder_or_file_is_refused_with_what_is_there(saved: Path) -> None:
    missing = saved.parent / "deep" / "er"
    assert refusal(lambda: load_model(missing)) == (
        f"there is no folder {missing}. {saved.parent} holds: run/."
    )
    (saved / "model.safetensors").unlink()
    assert refusal(lambda: load_model(saved)) == (
        f"there is no model.safetensors in {saved}, which holds: config.toml."
    )
    (saved / "config.toml").unlink()
    assert refusal(lambda: load_settings(saved)) == (
        f"there is no config.toml in {saved}, which holds: nothing."
    )


def test_a_save_that_fails_leaves_the_old_model_and_nothing_half_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.storage.os.fsync", full)
    settings = preset("decoder-test")
    model = build_model(settings, seed=1)
    message = refusal(lambda: save_model(saved, model, settings))
    assert message.startswith(f"cannot write the model to {saved}: ")
    assert "No space left on device" in message
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings = preset("decoder-test")
    message = refusal(lambda: save_model(tmp_path / "file", build_model(settings), settings))
    assert message.startswith(f"cannot write the model to {tmp_path / 'file'}: ")
