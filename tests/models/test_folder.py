"""A model in a folder: what is saved comes back; what is wrong with a folder is said in words."""

from __future__ import annotations

import re
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

from ..facts import missing

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


def error_text(action: Callable[[], object]) -> str:
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
    lines = error_text(lambda: load_model(saved)).splitlines()
    assert not missing(lines[0], str(saved / "model.safetensors"), str(saved / "config.toml"))
    pattern = r"stack\.blocks\.0\.feed_forward\.to_hidden\.weight\b.*\(64, 32\).*\(48, 32\)"
    assert sum(bool(re.search(pattern, line)) for line in lines) == 1
    assert not missing(lines[-1], "1")
    assert len(lines) == 7


def test_weights_that_are_missing_or_too_many_are_named(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    weights["head.linear.weight"] = weights["front.tokens.weight"].clone()
    del weights["stack.final_norm.bias"]
    save_file(weights, saved / "model.safetensors")
    message = error_text(lambda: load_model(saved))
    assert re.search(r"head\.linear\.weight\b.*\bfile\b.*\(100, 32\).*\bmodel\b", message)
    assert re.search(r"stack\.final_norm\.bias\b.*\bfile\b.*\bmodel\b.*\(32,\)", message)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named_in_one_line(saved: Path, share: float) -> None:
    whole = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(whole[: int(len(whole) * share)])
    message = error_text(lambda: load_model(saved))
    assert str(saved / "model.safetensors") in message
    assert str(saved / "config.toml") not in message  # no comparison with the settings
    assert "\n" not in message


def test_a_file_of_another_kind_is_named(saved: Path) -> None:
    (saved / "model.safetensors").write_bytes(b"\x80\x04 no tensors here" * 1000)
    message = error_text(lambda: load_model(saved))
    assert str(saved / "model.safetensors") in message
    assert str(saved / "config.toml") not in message
    assert "\n" not in message


def test_a_missing_folder_or_file_is_named_with_what_is_there(saved: Path) -> None:
    absent = saved.parent / "deep" / "er"
    message = error_text(lambda: load_model(absent))
    assert not missing(message, str(absent), str(saved.parent), "run/")
    (saved / "model.safetensors").unlink()
    message = error_text(lambda: load_model(saved))
    assert not missing(message, "model.safetensors", str(saved), "config.toml")
    (saved / "config.toml").unlink()
    message = error_text(lambda: load_settings(saved))
    assert not missing(message, "config.toml", str(saved))
    assert "model.safetensors" not in message


def test_a_save_that_fails_leaves_the_old_model_and_nothing_half_written(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.storage.os.fsync", full)
    settings = preset("decoder-test")
    model = build_model(settings, seed=1)
    message = error_text(lambda: save_model(saved, model, settings))
    assert not missing(message, str(saved))
    assert "No space left on device" in message
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    settings = preset("decoder-test")
    message = error_text(lambda: save_model(tmp_path / "file", build_model(settings), settings))
    assert not missing(message, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "in the way"
